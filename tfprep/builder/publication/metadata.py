"""The content of `tfprep.json` and of `index.parquet`, added up from the receipts of all shards."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import reduce

import numpy as np

from tfprep.builder.planning.plan import Plan
from tfprep.builder.planning.versions import recorded_versions
from tfprep.builder.receipts import Moments, Receipt
from tfprep.builder.shards.accumulate import add_counts
from tfprep.builder.shards.forms import merge
from tfprep.dataset import FieldInfo, Manifest, SplitInfo, Statistics
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
