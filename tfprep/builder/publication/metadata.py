"""The content of `tfprep.json` and of `index.parquet`, added up from the receipts of all shards."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import reduce
from typing import Any

import numpy as np
import pyarrow as pa

from tfprep.builder.layout import Layout
from tfprep.builder.planning.plan import Plan
from tfprep.builder.planning.versions import recorded_versions
from tfprep.builder.receipts import Moments, Receipt, read_contents
from tfprep.builder.shards.accumulate import add_counts
from tfprep.builder.shards.forms import merge
from tfprep.dataset import FieldInfo, Manifest, SplitInfo, Statistics
from tfprep.dataset.arrays import array_of
from tfprep.dataset.index import OPTIONAL, ROW_GROUP
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
        class_counts=_class_counts(splits),
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


def _class_counts(splits: Mapping[str, Sequence[Receipt]]) -> dict[str, dict[str, tuple[int, ...]]]:
    counts: dict[str, dict[str, tuple[int, ...]]] = {}
    for split, receipts in splits.items():
        for receipt in receipts:
            for name, of_shard in receipt.class_counts.items():
                before = counts.setdefault(name, {}).get(split, ())
                counts[name][split] = add_counts(before, of_shard)
    return counts


def _statistics(receipts: Sequence[Receipt]) -> dict[str, Statistics]:
    names = {name for receipt in receipts for name in receipt.moments}
    totals = {n: reduce(Moments.plus, (r.moments[n] for r in receipts if n in r.moments)) for n in sorted(names)}
    return {name: mean_and_std(total) for name, total in totals.items()}


def mean_and_std(total: Moments) -> Statistics:
    mean = np.array(total.sums, np.float64) / total.pixels
    variance = np.array(total.squares, np.float64) / total.pixels - mean**2
    return Statistics(tuple(mean.tolist()), tuple(np.sqrt(np.maximum(variance, 0)).tolist()))


def index_tables(
    layout: Layout, manifest: Manifest, receipts: Sequence[Receipt], columns: pa.Schema
) -> Iterator[pa.Table]:
    """Yield the rows of the index as row groups; each is of one variant of one split.

    In format version 1 each shard is a row group. Large datasets have so many of them that a reader would take seconds.
    """
    rows = ROW_GROUP if manifest.format_version > 1 else 0
    for split, info in manifest.splits.items():
        for variant in range(info.variants):
            yield from _merged(_shard_tables(layout, manifest, split, variant, receipts, columns), rows)


def _shard_tables(
    layout: Layout, manifest: Manifest, split: str, variant: int, receipts: Sequence[Receipt], columns: pa.Schema
) -> Iterator[pa.Table]:
    for receipt in (r for r in receipts if r.split == split and r.records):
        rows = read_contents(layout, receipt).rows[variant]
        yield _table(rows, split, variant, receipt.shard, list(manifest.fields), columns)


def _merged(tables: Iterable[pa.Table], rows: int) -> Iterator[pa.Table]:
    """Join tables that follow each other, as long as they have at most `rows` rows together."""
    waiting: list[pa.Table] = []
    for table in tables:
        if waiting and sum(map(len, waiting)) + len(table) > rows:
            yield pa.concat_tables(waiting)
            waiting = []
        waiting.append(table)
    if waiting:
        yield pa.concat_tables(waiting)


def _table(
    rows: Sequence[Any], split: str, variant: int, shard: int, fields: Sequence[str], columns: pa.Schema
) -> pa.Table:
    names = ["key", "offset", "size", "payload_crc", "label", "height", "width", "source_digest"]
    names += [f"{name}_{what}" for name in fields for what in ("offset", "size")]
    by_name: dict[str, Sequence[Any]] = dict.fromkeys(names, ())
    # Receipts of earlier versions end before these two.
    by_name |= {name: [None] * len(rows) for name in OPTIONAL}
    names += OPTIONAL
    by_name |= zip(names, zip(*rows, strict=True), strict=False)
    for name in ("source_digest", "image_digest"):
        by_name[name] = [None if digest is None else bytes.fromhex(digest) for digest in by_name[name]]
    by_name |= {"split": [split] * len(rows), "variant": [variant] * len(rows), "shard": [shard] * len(rows)}
    return pa.table({column.name: array_of(by_name[column.name], column.type) for column in columns}, schema=columns)
