"""The samples that a loader reads, and how often: splits of one or several datasets, `where`, `balance` and `weights`."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tfprep.dataset import Dataset
from tfprep.dataset.names import is_training_split
from tfprep.errors import LoaderError
from tfprep.fields import FieldSpec, Size, rarest_classes
from tfprep.load.options import LoaderOptions
from tfprep.load.order.samplers import Numbers, Sampler, UniformSampler, WeightedSampler, mix, seed_key, subkey
from tfprep.load.reader.table import RecordTable, SplitRows


def common_specs(sources: Sequence[SplitRows]) -> Mapping[str, FieldSpec]:
    """The fields that all the datasets have, alike; LoaderError where there is none."""
    first = sources[0].dataset
    specs = dict(first.fields_of(sources[0].split))
    for source in sources[1:]:
        other, fields = source.dataset, source.dataset.fields_of(source.split)
        for name, spec in list(specs.items()):
            same = fields.get(name) == spec and other.codecs[name] == first.codecs[name]
            if not same or other.group_of(name) != first.group_of(name):
                del specs[name]
    if not specs:
        raise LoaderError("the datasets of a mix have no field in common: same name, kind, shape, dtype and codec")
    return specs


def added_fields(dataset: Dataset, split: str, group: str, variants: Sequence[int]) -> Dataset:
    """The dataset whose records hold the added fields of a group; LoaderError where they are not of all these variants."""
    computed = dataset.manifest.groups[group].variants.get(split, 0)
    if max(variants) >= computed:
        raise LoaderError(
            f"the added fields {group!r} of {dataset.path} are of {computed} variants of {split!r}, and variant "
            f"{max(variants)} is read: choose variants=0 or `fields`, or run tfprep fields add for all variants"
        )
    return dataset.added(group)


def check_class_names(sources: Sequence[SplitRows], fields: Iterable[str]) -> None:
    """LoaderError where one number means different classes in the datasets of a mix, in one of these fields."""
    for name in fields if len(sources) > 1 else ():
        names = [tuple(source.dataset.manifest.classes.get(name, ())) for source in sources]
        for source, other in zip(sources[1:], names[1:], strict=True):
            if other != names[0]:
                raise LoaderError(
                    f"the numbers of '{name}' mean other classes in {sources[0].dataset.path} "
                    f"({_listed(names[0])}) than in {source.dataset.path} ({_listed(other)}). Build both with the same class "
                    f"names in the same order, or leave '{name}' out of `fields`, `where`, `balance` and `weights`"
                )


def _listed(names: Sequence[str], most: int = 5) -> str:
    return (", ".join(names[:most]) + (", ..." if len(names) > most else "")) or "no names"


# --- what they are for ---------------------------------------------------------------------------------------------------

EVALUATION = frozenset({"val", "valid", "validation", "dev", "test", "testing", "eval", "evaluation", "holdout"})
"""The first words of the names of splits that a model is evaluated on."""


def is_training(sources: Sequence[SplitRows]) -> bool:
    """Return True if a loader of these samples is for training, by the names of their splits.

    Nothing is assumed of a name that says neither, because it would not be noticed: a training set would come in the same order
    each time, or a test set augmented. LoaderError where a name says neither, or they say both.
    """
    roles = set()
    for source in sources:
        role, words = source.training, re.findall(r"[a-z]+", source.split.lower())
        if role is None and is_training_split(source.split):
            role = True
        elif role is None and words and words[0] in EVALUATION:
            role = False
        roles.add(role)
    if len(roles) == 1 and None not in roles:
        return roles == {True}
    named = ", ".join(repr(split) for split in dict.fromkeys(source.split for source in sources))
    reason = (
        f"splits for training and for evaluation are read, {named}"
        if None not in roles
        else f"the name of the split {named} does not say if it is for training"
    )
    raise LoaderError(
        f"{reason}: add training=True (each pass is an epoch in another order, with augmented variants) or "
        "training=False (each sample once, in the order on disk, as it is)"
    )


# --- which, and how often ------------------------------------------------------------------------------------------------


Selection: TypeAlias = tuple[Sampler, Numbers | None, tuple[int, ...]]
"""A sampler, the row of each of its samples (None: the same number), and the samples of each bucket, if there are buckets."""


def select(table: RecordTable, options: LoaderOptions, least: int) -> Selection:
    """The selection for these options; a bucket has at least `least` samples, or none."""
    sources, class_names, rows = table.parts, table.parts[0].class_names, table.rows
    named = _columns_in(options.where, table)
    columns: set[Any] = {*named}
    columns |= {"label"} if isinstance(options.weights, Mapping) else {options.balance}
    columns |= {source.label for source in sources if "label" in columns}
    columns.discard(None)
    check_class_names(sources, columns)
    if derived := sorted(columns & options.derive.keys()):
        raise LoaderError(
            f"where, balance and weights go by the stored '{derived[0]}', and derive makes another one; give that another name"
        )
    if options.where is not None:
        found = _rows_where(options.where, named, table)
        chosen = found if rows is None else np.intersect1d(found, rows)
        if not len(chosen):
            count = table.samples if rows is None else len(rows)
            raise LoaderError(f"where leaves none of the {count} samples")
        rows = chosen
    shares = [source.share for source in sources if source.share is not None] or None
    by_rule = {"balance": options.balance, "weights": options.weights, "mix": shares}
    rules = [name for name, value in by_rule.items() if value is not None]
    if len(rules) > 1:
        raise LoaderError(f"{' and '.join(rules)} both say how often a sample comes; choose one")
    if rules and not options.training:
        raise LoaderError(f"{rules[0]} is for training; with training=False every sample is read once")
    if rules and options.order == "sequential":
        raise LoaderError(f"{rules[0]} draws samples in a random order; leave order='sequential' out")
    if options.bucket is not None:
        if shares is not None:
            raise LoaderError(
                "bucket takes each sample once per epoch; a mix draws by shares: make a loader of each dataset"
            )
        return _in_buckets(table, rows, options.bucket.sizes, options.batch_size, least)
    numbers = np.arange(table.samples) if rows is None else rows
    if not rules or not len(numbers):
        return UniformSampler(len(numbers)), rows, ()
    weights, stratum, count = np.ones(len(numbers)), np.zeros(len(numbers), np.int64), len(numbers)
    if options.balance is not None:
        # Every class that occurs equally often, rounded up; an epoch is about as long as without `balance`.
        values = _values(table, rows, options.balance, several=True)
        stratum = np.unique(values, return_inverse=True)[1]
        quotas = (-(-count // (classes := int(stratum.max()) + 1)),) * classes
    elif shares is not None:
        # Each part in proportion to its share, exactly in every epoch, which is as long as all parts together.
        stratum, quotas = table.part_of(numbers), _apportion(count, shares)
    else:
        weights, quotas = _weights(table, rows, options.weights, class_names), (count,)
    shuffled = mix(subkey(seed_key(options.seed, "selection"), np.arange(count)))
    order, sizes = np.lexsort((shuffled, stratum)), tuple(np.bincount(stratum, minlength=len(quotas)).tolist())
    return WeightedSampler(weights[order], sizes, quotas, options.seed), numbers[order].astype(np.int64), ()


def _rows_where(where: Any, named: Sequence[str], table: RecordTable) -> Numbers:
    """The rows that `where`, which names these columns, selects, ascending; one whose value is missing (null) is left out.
    LoaderError if it does not fit."""
    rule = "where is an expression over columns of the index, pc.field('height') >= 224, or one bool per sample of the split"
    if isinstance(where, pc.Expression):
        if "FieldPath(" in str(where):  # it would be one of the table below
            raise LoaderError(f"{rule}: columns by their names, not by numbers as in {where}")
        columns = {name: table.column(name) for name in named}
        try:
            found = pa.table({**columns, "#": np.arange(table.samples)}).filter(where).column("#")
        except (pa.ArrowException, NotImplementedError, TypeError) as error:
            known = ", ".join(table.column_names)
            raise LoaderError(f"{rule}; {error} in {where}. The columns are {known}; classes are numbers") from error
        return np.asarray(found.to_numpy(), np.int64)
    chosen = np.asarray(where)
    if chosen.dtype != bool or chosen.shape != (table.samples,):
        raise LoaderError(f"{rule} ({table.samples}), not {chosen.dtype} {list(chosen.shape)}: {where!r:.200}")
    return np.flatnonzero(chosen).astype(np.int64)


def _columns_in(where: Any, table: RecordTable) -> list[str]:
    """The columns of the index that an expression names; none of other values."""
    names = table.column_names if isinstance(where, pc.Expression) else []
    return [name for name in names if re.search(rf"(?<!\w){re.escape(name)}(?!\w)", str(where))]


def _in_buckets(
    table: RecordTable, rows: Numbers | None, sizes: Sequence[Size], batch_size: int, least: int
) -> Selection:
    """The rows by the size that each belongs to, by the height and width of variant 0 (see `Buckets`)."""
    height, width = (_values(table, rows, name).astype(np.uint64) for name in ("height", "width"))
    by_aspect = sorted(sizes, key=lambda size: Fraction(*size))
    rank = np.zeros(len(height), np.int64)
    # Whole numbers, which are the same on every machine: logarithms are not, and all hosts need the same buckets.
    for (low, wide), (high, narrow) in itertools.pairwise(by_aspect):
        rank += height**2 * np.uint64(wide * narrow) >= width**2 * np.uint64(low * high)
    bucket = np.array([sizes.index(size) for size in by_aspect])[rank]
    counts = tuple(np.bincount(bucket, minlength=len(sizes)).tolist())
    for size, samples in zip(sizes, counts, strict=True):
        if 0 < samples < least:
            raise LoaderError(
                f"bucket {size[0]} x {size[1]} has {samples} samples, fewer than batch_size={batch_size}: none of "
                "them would ever be seen. Leave this size out, so that the next one takes them, or use remainder='keep'"
            )
    order = np.argsort(bucket, kind="stable")
    return UniformSampler(len(order)), (order if rows is None else rows[order]).astype(np.int64), counts


def _apportion(total: int, shares: Sequence[float]) -> tuple[int, ...]:
    """Whole numbers in proportion to the shares that add up to `total`, by the largest remainders."""
    if not 1e-290 < sum(shares) < 1e290:
        shares = [share / max(shares) for share in shares]
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
    rule = f"weights are a dict by class, or one number per sample of the split ({table.samples})"
    by_class = isinstance(weights, Mapping)
    try:
        array = np.asarray(list(weights.values()) if by_class else weights, np.float64)
    except (TypeError, ValueError):
        raise LoaderError(f"{rule}, not {weights!r}") from None
    if array.shape != (len(weights) if by_class else table.samples,):
        raise LoaderError(f"{rule}, not {array.shape}")
    if not by_class:
        return array if rows is None else array[rows]
    weight_of = dict(zip((_class_number(name, class_names) for name in weights), array.tolist(), strict=True))
    if len(weight_of) < len(weights):
        raise LoaderError(f"weights name a class twice, by its name and by its number: {weights!r}")
    labels = _values(table, rows, "label")
    missing = sorted(set(np.unique(labels).tolist()) - weight_of.keys())
    if missing:
        names = [repr(class_names[label]) if 0 <= label < len(class_names) else str(label) for label in missing]
        raise LoaderError(f"weights do not name the classes {', '.join(names)}; name every class, 0 leaves one out")
    return np.array([weight_of[label] for label in labels.tolist()])


def _class_number(name: Any, class_names: Sequence[str]) -> int:
    if isinstance(name, str):
        if name not in class_names:
            there = (
                f"there are {', '.join(class_names)}" if class_names else "the dataset has no class names, give numbers"
            )
            raise LoaderError(f"there is no class {name!r}; {there}")
        return class_names.index(name)
    # pandas and NumPy count labels of floats by 0.0 and 1.0.
    if isinstance(name, bool) or not isinstance(name, int | float | np.integer) or name % 1:
        raise LoaderError(f"weights name classes by their names or whole numbers, not by {name!r}")
    return int(name)


def _values(table: RecordTable, rows: Numbers | None, name: str, several: bool = False) -> npt.NDArray[Any]:
    """The values of a column. With `several`, the rarest class stands for a list of classes."""
    column = table.column(name)
    if column.null_count:
        absent = column.is_null().to_numpy()
        if count := int((absent if rows is None else absent[rows]).sum()):
            raise LoaderError(
                f"{count:,} samples have no value of {name!r}, which balance, weights and bucket need; select the others with "
                "where"
            )
        if not pa.types.is_list(column.type):
            column = column.fill_null(0 if pa.types.is_primitive(column.type) else "")
    values: npt.NDArray[Any] = column.to_numpy()
    if several and pa.types.is_list(column.type):
        chosen = values if rows is None else values[rows]
        return rarest_classes([numbers.tolist() for numbers in chosen])
    if values.dtype == object and len(values) and not isinstance(values[0], str):
        raise LoaderError(f"the samples have several values of {name!r} each; give weights= a number for each sample")
    return values if rows is None else values[rows]
