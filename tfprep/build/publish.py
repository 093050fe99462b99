"""From finished shards to a dataset that readers see: all of it, or what was there before.

The order of a publication: take `tfprep.json` away if files of the old dataset are about to change; move the waiting shards to
their places; write the index, the files for TensorFlow Datasets and the rejects; write `tfprep.json`; only then remove
what no longer belongs. Killed at any point, the same build does the rest.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import reduce
from importlib.metadata import version
from platform import python_version
from typing import Any

import numpy as np
import pyarrow as pa

from tfprep import __version__
from tfprep.build.accumulate import add_counts, merge_specs
from tfprep.build.files import remove_leftovers, sync_folder, write_whole
from tfprep.build.layout import Layout
from tfprep.build.plan import Plan
from tfprep.build.receipt import Moments, Receipt, read_receipt
from tfprep.dataset import FieldInfo, Manifest, SplitInfo, Statistics
from tfprep.dataset.index import schema, write_index
from tfprep.dataset.manifest import MANIFEST
from tfprep.dataset.names import INDEX
from tfprep.dataset.tfds import tfds_files
from tfprep.errors import BuildError, SampleError, TooManyRejectsError
from tfprep.fields import FieldSpec

_LIBRARIES = ("numpy", "opencv-python-headless", "pillow", "simplejpeg", "pyarrow")


def publish(plan: Plan, layout: Layout, max_bad: float) -> Manifest:
    """Make the built shards the dataset.

    Raises TooManyRejectsError, and BuildError where the shards' fields do not fit together.
    """
    receipts = [_receipt(layout, split, shard) for split, shard in plan.starts]
    write_whole(layout.rejects, "".join(_reject_lines(receipts)))
    _check_rejects(layout, receipts, len(plan), max_bad)
    manifest = _manifest(plan, receipts)
    if (
        (layout.out / MANIFEST).exists()
        and not any(layout.staged.iterdir())
        and (layout.out / MANIFEST).read_text() == manifest.to_json()
    ):
        _remove_rest(layout, manifest)
        return manifest
    _place(layout, manifest)
    _write_index(plan, layout, manifest, receipts)
    for name, text in tfds_files(manifest).items():
        write_whole(layout.out / name, text)
    sync_folder(layout.out)
    write_whole(layout.out / MANIFEST, manifest.to_json())
    sync_folder(layout.out)
    _remove_rest(layout, manifest)
    return manifest


def _is_published(layout: Layout, manifest: Manifest) -> bool:
    written = layout.out / MANIFEST
    return written.exists() and not any(layout.staged.iterdir()) and written.read_text() == manifest.to_json()


def _receipt(layout: Layout, split: str, shard: int) -> Receipt:
    receipt = read_receipt(layout, split, shard)
    if receipt is None:
        raise BuildError(
            f"shard {shard} of {split!r} vanished from {layout.out} while it was built; run the build again"
        )
    return receipt


# --- files ----------------------------------------------------------------------------------------------------------


def _place(layout: Layout, manifest: Manifest) -> None:
    waiting = [file for file in _names(manifest) if (layout.staged / file).exists()]
    if any((layout.out / name).exists() for name in waiting):
        (layout.out / MANIFEST).unlink(missing_ok=True)
        sync_folder(layout.out)
    for name in waiting:
        os.replace(layout.staged / name, layout.out / name)
    sync_folder(layout.out)


def _names(manifest: Manifest) -> Iterator[str]:
    for split in manifest.splits.values():
        for files in split.files:
            for file in files:
                yield file.name
                yield f"{file.name}.idx"


def _remove_rest(layout: Layout, manifest: Manifest) -> None:
    """Shards of other variants, splits or numbers of shards than the dataset now has, and their receipts."""
    kept = {*_names(manifest)}
    shards = [*layout.out.glob(f"{manifest.name}-*.tfrecord-*"), *layout.staged.iterdir()]
    receipts = {
        path.name
        for split, info in manifest.splits.items()
        for shard in range(info.shards)
        for path in (layout.receipt(split, shard), layout.rows(split, shard))
    }
    for path in shards:
        if path.parent == layout.staged or path.name not in kept:
            path.unlink()
    for path in layout.receipts.iterdir():
        if path.name not in receipts:
            path.unlink()
    remove_leftovers(layout.out)


# --- metadata -------------------------------------------------------------------------------------------------------


def _manifest(plan: Plan, receipts: Sequence[Receipt]) -> Manifest:
    specs = _specs(receipts)
    splits = {split: [r for r in receipts if r.split == split] for split in plan.splits}
    codecs = {name: codec.describe() for name, codec in plan.recipe.store.items()}
    return Manifest(
        name=plan.recipe.name,
        fingerprint=plan.recipe.fingerprint(),
        recipe=plan.recipe.describe(),
        fields={name: FieldInfo(specs[name], codecs[name]) for name in codecs if name in specs},
        splits={split: _split(plan, split, of_split) for split, of_split in splits.items()},
        classes=plan.classes,
        class_counts=_class_counts(splits),
        statistics=_statistics(receipts),
        versions={"tfprep": __version__, "python": python_version(), **{name: version(name) for name in _LIBRARIES}},
        rejects=sum(len(receipt.rejects) for receipt in receipts),
    )


def _specs(receipts: Sequence[Receipt]) -> dict[str, FieldSpec]:
    specs: dict[str, FieldSpec] = {}
    for receipt in receipts:
        try:
            specs = merge_specs(specs, receipt.specs)
        except SampleError as error:
            raise BuildError(f"field '{error.field}' of shard {receipt.shard} of {receipt.split!r}: {error}") from error
    return specs


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
    return {name: _mean_and_std(total) for name, total in totals.items()}


def _mean_and_std(total: Moments) -> Statistics:
    mean = np.array(total.sums, np.float64) / total.pixels
    variance = np.array(total.squares, np.float64) / total.pixels - mean**2
    return Statistics(tuple(mean.tolist()), tuple(np.sqrt(np.maximum(variance, 0)).tolist()))


# --- index and rejects ----------------------------------------------------------------------------------------------


def _write_index(plan: Plan, layout: Layout, manifest: Manifest, receipts: Sequence[Receipt]) -> None:
    """Streamed: the rows of one variant of one shard are in memory at a time."""
    columns = schema(list(manifest.fields), _label_type(manifest))
    temporary = layout.out / f".{INDEX}.{os.getpid()}.tmp"
    try:
        write_index(temporary, columns, _tables(layout, manifest, receipts, columns))
        with temporary.open("rb+") as file:
            os.fsync(file.fileno())
        temporary.replace(layout.out / INDEX)
    finally:
        temporary.unlink(missing_ok=True)


def _label_type(manifest: Manifest) -> pa.DataType | None:
    shapes = [info.spec.shape for info in manifest.fields.values() if info.spec.kind == "label"]
    if not shapes:
        return None
    return pa.int64() if shapes[0] == () else pa.list_(pa.int64())


def _tables(layout: Layout, manifest: Manifest, receipts: Sequence[Receipt], columns: pa.Schema) -> Iterator[pa.Table]:
    for split, info in manifest.splits.items():
        for variant in range(info.variants):
            for receipt in (r for r in receipts if r.split == split):
                rows = json.loads(layout.rows(split, receipt.shard).read_bytes())[variant]
                yield _table(rows, split, variant, receipt.shard, list(manifest.fields), columns)


def _table(
    rows: Sequence[Any], split: str, variant: int, shard: int, fields: Sequence[str], columns: pa.Schema
) -> pa.Table:
    names = ["key", "offset", "size", "label", "height", "width", "source_digest"]
    names += [f"{name}_{what}" for name in fields for what in ("offset", "size")]
    held: dict[str, Sequence[Any]] = dict.fromkeys(names, ())
    held |= zip(names, zip(*rows, strict=True), strict=False)
    held["source_digest"] = [bytes.fromhex(digest) for digest in held["source_digest"]]
    held |= {"split": [split] * len(rows), "variant": [variant] * len(rows), "shard": [shard] * len(rows)}
    return pa.table({column.name: pa.array(held[column.name], column.type) for column in columns}, schema=columns)


def _reject_lines(receipts: Sequence[Receipt]) -> Iterator[str]:
    for receipt in receipts:
        for reject in receipt.rejects:
            yield json.dumps(asdict(reject), ensure_ascii=False) + "\n"


def _check_rejects(layout: Layout, receipts: Sequence[Receipt], samples: int, max_bad: float) -> None:
    rejects = [reject for receipt in receipts for reject in receipt.rejects]
    if len(rejects) == samples or len(rejects) > max_bad * samples:
        (reason, often), *_ = Counter(f"{reject.stage}: {reject.error}" for reject in rejects).most_common(1)
        raise TooManyRejectsError(
            f"{len(rejects)} of {samples} samples were rejected, {max_bad:.3g} of them at most are allowed; nothing was "
            f"published. Most often ({often} times): {reason}. All are in {layout.rejects}"
        )
