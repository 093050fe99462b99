"""The content of `tfprep.json` and of `index.parquet`, from the receipts of all shards."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import reduce
from typing import Any

import numpy as np
import pyarrow as pa

from tfprep.builder.layout import Layout
from tfprep.builder.planning.plan import Plan, recorded_versions
from tfprep.builder.receipts import Receipt, read_contents
from tfprep.builder.shards.sums import Moments, add_counts, merge
from tfprep.dataset import FieldInfo, Manifest, SplitInfo, Statistics
from tfprep.dataset.index import OPTIONAL, joined_tables
from tfprep.fields import FieldSpec


def manifest_of(plan: Plan, receipts: Sequence[Receipt], common: Mapping[str, str]) -> Manifest:
    """Return the manifest, without the digests of the files that are no shards; `common` is the form of each field."""
    specs = {name: spec for name, form in common.items() if (spec := _spec(name, form, receipts))}
    splits = {split: [r for r in receipts if r.split == split] for split in plan.splits}
    codecs = {name: codec.describe() for name, codec in plan.recipe.store.items()}
    return Manifest(
        name=plan.recipe.name,
        fingerprint=plan.fingerprint,
        recipe=plan.description,
        fields={name: FieldInfo(specs[name], codecs[name]) for name in codecs if name in specs},
        splits={split: _split(plan, split, of_split) for split, of_split in splits.items()},
        classes=plan.classes,
        class_counts=_class_counts(splits, codecs),
        statistics=_statistics(receipts),
        versions=recorded_versions(),
        rejects=sum(len(receipt.rejects) for receipt in receipts),
    )


def _spec(name: str, form: str, receipts: Sequence[Receipt]) -> FieldSpec | None:
    written = [receipt.forms[name].get(form) for receipt in receipts if name in receipt.forms]
    return reduce(merge, (one.spec for one in written if one), None)


def _split(plan: Plan, split: str, receipts: Sequence[Receipt]) -> SplitInfo:
    variants = range(plan.recipe.variants_of(split))
    files = tuple(tuple(receipt.files[variant] for receipt in receipts) for variant in variants)
    return SplitInfo(sum(receipt.records for receipt in receipts), files)


def _class_counts(
    splits: Mapping[str, Sequence[Receipt]], fields: Iterable[str]
) -> dict[str, dict[str, tuple[int, ...]]]:
    counts: dict[str, dict[str, tuple[int, ...]]] = {}
    for split, receipts in splits.items():
        for receipt in receipts:
            for name, of_shard in receipt.class_counts.items():
                before = counts.setdefault(name, {}).get(split, ())
                counts[name][split] = add_counts(before, of_shard)
    return {name: counts[name] for name in fields if name in counts}


def _statistics(receipts: Sequence[Receipt]) -> dict[str, Statistics]:
    names = {name for receipt in receipts for name in receipt.moments}
    totals = {n: reduce(Moments.plus, (r.moments[n] for r in receipts if n in r.moments)) for n in sorted(names)}
    return {name: mean_and_std(total) for name, total in totals.items()}


def mean_and_std(total: Moments) -> Statistics:
    mean = np.array(total.sums, np.float64) / total.pixels
    variance = np.array(total.squares, np.float64) / total.pixels - mean**2
    return Statistics(tuple(mean.tolist()), tuple(np.sqrt(np.maximum(variance, 0)).tolist()))


# --- the rows of the index ---------------------------------------------------------------------------------------------


_MOST_ITEMS = 2**31 - 1
"""Offsets of `string` and `list` are int32."""


def index_tables(
    layout: Layout, manifest: Manifest, receipts: Sequence[Receipt], columns: pa.Schema
) -> Iterator[pa.Table]:
    """Yield the rows of the index as row groups; each is of one variant of one split."""
    for split, info in manifest.splits.items():
        for variant in range(info.variants):
            yield from joined_tables(_shard_tables(layout, manifest, split, variant, receipts, columns))


def _shard_tables(
    layout: Layout, manifest: Manifest, split: str, variant: int, receipts: Sequence[Receipt], columns: pa.Schema
) -> Iterator[pa.Table]:
    for receipt in (r for r in receipts if r.split == split and r.records):
        contents = read_contents(layout, receipt)
        yield _table(contents.rows[variant], split, variant, receipt.shard, contents.fields, columns)


def _table(
    rows: Sequence[Any], split: str, variant: int, shard: int, fields: Sequence[str], columns: pa.Schema
) -> pa.Table:
    names = ["key", "offset", "size", "payload_crc", "label", "height", "width", "source_digest"]
    names += [f"{name}_{what}" for name in fields for what in ("offset", "size")]
    names += OPTIONAL
    by_name: dict[str, Sequence[Any]] = dict(zip(names, zip(*rows, strict=True), strict=True))
    for name in ("source_digest", "image_digest"):
        by_name[name] = [None if digest is None else bytes.fromhex(digest) for digest in by_name[name]]
    by_name |= {"split": [split] * len(rows), "variant": [variant] * len(rows), "shard": [shard] * len(rows)}
    return pa.table({column.name: array_of(by_name[column.name], column.type) for column in columns}, schema=columns)


# --- arrays ---


def array_of(values: Sequence[Any], dtype: pa.DataType) -> pa.Array:
    """Return an Arrow array, without `pyarrow.array`, which imports pandas if it is installed: that takes 0.3 s.

    Args:
        values: Whole numbers, texts, bytes, or lists of whole numbers; None where a value is missing.
        dtype: A type of whole numbers, `string`, `binary(N)`, or a list of whole numbers.

    Raises:
        TypeError: A value is of another type; True and 1.0 are no whole numbers.
        OverflowError: A number, or the number of bytes or items, is too large for the type.
        ValueError: Bytes have another length than the type says.
    """
    present = np.array([value is not None for value in values], bool)
    validity = None if present.all() else pa.py_buffer(np.packbits(present, bitorder="little"))
    return pa.Array.from_buffers(
        dtype, len(values), [validity, *_buffers(values, dtype)], children=_items(values, dtype)
    )


def _buffers(values: Sequence[Any], dtype: pa.DataType) -> list[pa.Buffer]:
    if pa.types.is_list(dtype):
        return [_ends(values)]
    if pa.types.is_string(dtype):
        texts = [b"" if value is None else str.encode(value) for value in values]
        return [_ends(texts), pa.py_buffer(b"".join(texts))]
    if pa.types.is_fixed_size_binary(dtype):
        items = [bytes(dtype.byte_width) if value is None else value for value in values]
        if any(len(item) != dtype.byte_width for item in items):
            raise ValueError(f"values have {dtype.byte_width} bytes each")
        return [pa.py_buffer(b"".join(items))]
    _check_types(values, int)
    numbers = [0 if value is None else value for value in values]
    return [pa.py_buffer(np.array(numbers, dtype.to_pandas_dtype()))]


def _check_types(values: Sequence[Any], *allowed: type) -> None:
    """Raise TypeError if NumPy would have to fit a value."""
    if wrong := set(map(type, values)) - {*allowed, type(None)}:
        names = " or ".join(one.__name__ for one in allowed)
        raise TypeError(f"expected {names}, got {', '.join(sorted(one.__name__ for one in wrong))}")


def _ends(values: Sequence[Any]) -> pa.Buffer:
    """Return where the items of each value end, from 0 on."""
    ends = np.cumsum([0, *(0 if value is None else len(value) for value in values)], dtype=np.int64)
    if ends[-1] > _MOST_ITEMS:
        raise OverflowError(f"{ends[-1]:,} bytes or items in one array; Arrow counts to {_MOST_ITEMS:,}")
    return pa.py_buffer(ends.astype(np.int32))


def _items(values: Sequence[Any], dtype: pa.DataType) -> list[pa.Array] | None:
    if not pa.types.is_list(dtype):
        return None
    _check_types(values, list, tuple)
    return [array_of([item for value in values for item in value or ()], dtype.value_type)]
