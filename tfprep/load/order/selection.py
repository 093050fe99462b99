"""The samples that a loader reads, and how often: `where`, `balance`, `weights` and the shares of a mix."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tfprep.errors import LoaderError
from tfprep.load.options import LoaderOptions
from tfprep.load.order.samplers import Sampler, StratifiedSampler, UniformSampler, WeightedSampler
from tfprep.load.order.where import column_names, rows_where
from tfprep.load.reader.table import RecordTable

Numbers: TypeAlias = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Selection:
    """A sampler, and the row of each of its samples (None: the same number)."""

    sampler: Sampler
    rows: Numbers | None


def columns_of(options: LoaderOptions) -> set[str]:
    """The columns of the index that the options name."""
    columns = set() if options.where is None else column_names(options.where)
    columns |= {options.balance} if options.balance else set()
    return columns | ({"label"} if isinstance(options.weights, Mapping) else set())


def select(
    table: RecordTable,
    options: LoaderOptions,
    class_names: Sequence[str],
    subset: Numbers | None,
    shares: Sequence[float] | None,
) -> Selection:
    """The selection for these options. `subset` holds the rows of a fold, `shares` those of the table's parts in a mix."""
    rows = _rows(table, options, class_names, subset)
    rules = [
        name
        for name, value in (("balance", options.balance), ("weights", options.weights), ("mix", shares))
        if value is not None
    ]
    if len(rules) > 1:
        raise LoaderError(f"{' and '.join(rules)} both say how often a sample comes; choose one")
    if rules and options.order not in (None, "global"):
        raise LoaderError(f"{rules[0]} draws single samples: it needs order='global', not {options.order!r}")
    if rules and not options.training:
        raise LoaderError(f"{rules[0]} is for training; with training=False every sample is read once")
    if options.balance is not None:
        return _balanced(table, rows, options)
    if options.weights is not None:
        weights = _weights(table, rows, options.weights, class_names)
        return Selection(WeightedSampler(weights, options.seed), rows)
    if shares is not None:
        return _mixed(table, rows, shares, options.seed)
    return Selection(UniformSampler(table.samples if rows is None else len(rows)), rows)


def _rows(
    table: RecordTable, options: LoaderOptions, class_names: Sequence[str], subset: Numbers | None
) -> Numbers | None:
    if options.where is None:
        return subset
    rows = rows_where(options.where, table.column, class_names, table.samples)
    if not len(rows):
        raise LoaderError(f"where={options.where!r} leaves none of the {table.samples} samples")
    return rows if subset is None else np.intersect1d(rows, subset)


def _balanced(table: RecordTable, rows: Numbers | None, options: LoaderOptions) -> Selection:
    """Every class that occurs equally often, rounded up; an epoch is about as long as without `balance`."""
    values = _values(table, rows, str(options.balance))
    order = np.argsort(values, kind="stable")
    _, counts = np.unique(values, return_counts=True)
    quota = -(-len(values) // len(counts))
    members = order if rows is None else rows[order]
    sizes = tuple(map(int, counts))
    return Selection(StratifiedSampler(sizes, (quota,) * len(sizes), options.seed), members.astype(np.int64))


def _mixed(table: RecordTable, rows: Numbers | None, shares: Sequence[float], seed: int) -> Selection:
    """Each part in proportion to its share, exactly in every epoch, which is as long as all parts together."""
    numbers = np.arange(table.samples) if rows is None else rows
    part = np.searchsorted(table.first_row, numbers, "right") - 1
    sizes = tuple(int((part == number).sum()) for number in range(len(shares)))
    quotas = _apportion(len(numbers), shares)
    return Selection(StratifiedSampler(sizes, quotas, seed), numbers[np.argsort(part, kind="stable")].astype(np.int64))


def _apportion(total: int, shares: Sequence[float]) -> tuple[int, ...]:
    """Whole numbers in proportion to the shares that add up to `total`, by the largest remainders."""
    if not shares or not all(np.isfinite(share) and share >= 0 for share in shares) or not sum(shares):
        raise LoaderError(f"the shares of a mix are numbers from 0 on, not all 0; got {list(shares)}")
    shares = [share / max(shares) for share in shares] if not 1e-290 < sum(shares) < 1e290 else shares
    exact = [total * share / sum(shares) for share in shares]
    whole = [int(value) for value in exact]
    by_remainder = sorted(range(len(exact)), key=lambda i: whole[i] - exact[i])
    for number in by_remainder[: total - sum(whole)]:
        whole[number] += 1
    return tuple(whole)


def _weights(
    table: RecordTable, rows: Numbers | None, weights: Any, class_names: Sequence[str]
) -> npt.NDArray[np.float64]:
    """One weight for each sample, from an array or from a dict by class (name or number)."""
    if isinstance(weights, Mapping):
        by_class = {_class_number(name, class_names): float(weight) for name, weight in weights.items()}
        labels = _values(table, rows, "label")
        missing = sorted(set(np.unique(labels).tolist()) - by_class.keys())
        if missing:
            names = [repr(class_names[label]) if label < len(class_names) else str(label) for label in missing]
            raise LoaderError(f"weights do not name the classes {', '.join(names)}; name every class, 0 leaves one out")
        return np.array([by_class[label] for label in labels.tolist()])
    rule = f"weights are a dict by class, or one number a sample of the split ({table.samples})"
    try:
        array = np.asarray(weights, np.float64)
    except (TypeError, ValueError):
        raise LoaderError(f"{rule}, not {weights!r}") from None
    if array.shape != (table.samples,):
        raise LoaderError(f"{rule}, not {array.shape}")
    return array if rows is None else array[rows]


def _class_number(name: Any, class_names: Sequence[str]) -> int:
    if isinstance(name, str):
        if name not in class_names:
            raise LoaderError(f"there is no class {name!r}; there are {', '.join(class_names) or 'none'}")
        return class_names.index(name)
    return int(name)


def _values(table: RecordTable, rows: Numbers | None, name: str) -> npt.NDArray[Any]:
    column = table.column(name)
    if column.null_count:
        absent = column.is_null().to_numpy()
        if count := int((absent if rows is None else absent[rows]).sum()):
            raise LoaderError(
                f"{count:,} samples have no value of {name!r}, which balance and weights need; select the others with where"
            )
        column = column.fill_null(0 if pa.types.is_primitive(column.type) else "")
    values: npt.NDArray[Any] = column.to_numpy()
    if values.dtype == object and len(values) and not isinstance(values[0], str):
        raise LoaderError(f"the samples have several values of {name!r} each; balance and weights need one")
    return values if rows is None else values[rows]
