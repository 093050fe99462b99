"""From computed shards to fields of the dataset: their own index and manifest, and a version of the dataset that names them."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from tfprep.builder.plan import building_versions
from tfprep.dataset import Dataset, FieldInfo, FileInfo, Manifest, SplitInfo
from tfprep.dataset.index import schema
from tfprep.dataset.locations import with_rows, write_rows
from tfprep.dataset.manifest import AddedFields, parse_manifest
from tfprep.dataset.names import INDEX, LOCATIONS, MANIFEST, SHARDS, fields_receipts
from tfprep.dataset.verify import record_digest
from tfprep.dataset.versions import NewVersion
from tfprep.errors import BuildError
from tfprep.fields import RASTER_KINDS, FieldSpec
from tfprep.model_fields.plan import FieldsPlan, FieldsReceipt, FieldsTask, join_specs
from tfprep.records.framing import HEADER_BYTES
from tfprep.storage.local import link_or_copy, temporary_path
from tfprep.storage.store import open_store
from tfprep.storage.urls import check_no_link, durable_write, is_remote, names_in, read_content, remove_files

Receipts = Mapping[FieldsTask, FieldsReceipt]


def publish_fields(plan: FieldsPlan, scratch: Path, new: NewVersion) -> None:
    """Make the computed shards fields of the dataset; files on their way to a store are made in `scratch`.

    Raises:
        BuildError: A shard is not computed, shards hold arrays of different types, or another process published meanwhile.
    """
    before = plan.data.manifest
    receipts = {task: _ready(plan, task) for task in plan.tasks}
    specs: dict[str, FieldSpec] = {}  # over all shards
    for task, receipt in receipts.items():
        join_specs(specs, receipt.specs, task)
    if not specs:
        raise BuildError("the splits hold no samples, so that nothing says what the fields are")
    splits = {}
    for split, variants in plan.variants.items():
        files: list[list[FileInfo]] = [[] for _ in range(variants)]
        for task, receipt in receipts.items():
            if task.split == split:
                files[task.variant].append(receipt.file)
        splits[split] = SplitInfo(plan.data.split(split).samples, tuple(map(tuple, files)))
    stored = {name: codec.describe() for name, codec in plan.fields.store.items() if name in specs}
    manifest = Manifest(
        name=plan.data.name,
        fingerprint=plan.fingerprint,
        recipe={"model_fields": plan.description},
        fields={name: FieldInfo(specs[name], codec) for name, codec in stored.items()},
        splits=splits,
        versions=building_versions(),
    )
    content = _written(plan, receipts, manifest, scratch)
    entry = AddedFields(
        plan.folder,
        hashlib.sha256(content).hexdigest(),
        manifest.fields,
        plan.variants,
        plan.fields.follows_pixels,
        SHARDS if is_remote(plan.root) else "",
    )
    _publish(new, replace(before, added={**before.groups, plan.fields.name: entry}), plan)


def unpublish_fields(data: Dataset, root: Path, group: str, new: NewVersion) -> None:
    """Publish the dataset without the fields, if it has them, and then remove receipts and files that wait."""
    added = {name: entry for name, entry in data.manifest.groups.items() if name != group}
    if len(added) < len(data.manifest.groups):
        _publish(new, replace(data.manifest, added=added or None))
    remove_waiting(root, group)
    remove_files(root / fields_receipts(group), names_in(root / fields_receipts(group)))


def remove_waiting(root: Path, group: str) -> None:
    """Remove the folders of fields that wait to be published; at a store, where one may be read, they stay."""
    folder = root / fields_receipts(group)
    check_no_link(folder)
    for path in folder.iterdir() if not is_remote(root) and folder.is_dir() else ():
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)


def _publish(new: NewVersion, manifest: Manifest, plan: FieldsPlan | None = None) -> None:
    """Publish a version with all files of the current one, and those of a plan."""
    assert new.before is not None
    if is_remote(new.root):
        manifest = manifest.staying_in(new.before.path.name)
    new.add_current(manifest.files)
    for entry in manifest.groups.values():
        if plan is None or entry.folder != plan.folder:
            new.add_fields(entry)
        elif not is_remote(plan.root):
            for path in plan.path.iterdir():
                new.add(f"{plan.folder}/{path.name}", path)
    new.complete(manifest)
    new.publish()


def _ready(plan: FieldsPlan, task: FieldsTask) -> FieldsReceipt:
    """Return the receipt of a shard that is up to date and in the plan's folder, and is noted there.

    It has no rows: those of all shards together would take many times the memory of the index.
    """
    receipt = plan.receipt(task)
    if receipt is None:
        raise _vanished(plan, task)
    # It may be in the folder that it was computed for; and the dataset may have another name now.
    for suffix in (".idx", ""):
        source, target = plan.find(receipt.folder, f"{receipt.file.name}{suffix}"), plan.path / f"{task.name}{suffix}"
        if source == target:
            continue
        if is_remote(plan.root):
            open_store(plan.path).write(target.name, read_content(source))
        else:
            plan.path.mkdir(parents=True, exist_ok=True)
            target.unlink(missing_ok=True)
            link_or_copy(source, target)
    if (receipt.folder, receipt.file.name) != (plan.folder, task.name):
        receipt = replace(receipt, folder=plan.folder, file=replace(receipt.file, name=task.name))
        plan.write_receipt(task, receipt)
    return replace(receipt, rows=())


def _vanished(plan: FieldsPlan, task: FieldsTask) -> BuildError:
    return BuildError(f"the fields of {task} vanished from {plan.data.path} meanwhile; run it again")


def _written(plan: FieldsPlan, receipts: Receipts, manifest: Manifest, scratch: Path) -> bytes:
    """Write the tables and the manifest of the fields; return the manifest's content."""
    remote = is_remote(plan.data.path)
    place = scratch if remote else plan.path
    paths = {name: temporary_path(place / name, plan.folder) for name in (INDEX, LOCATIONS)}
    columns = schema(list(manifest.fields), None)
    tables = (
        table
        for split, variants in plan.variants.items()
        for variant in range(variants)
        for table in _tables(plan, receipts, split, variant, manifest, columns)
    )
    written = write_rows(paths[INDEX], paths[LOCATIONS], manifest.fields, columns, tables)
    manifest = with_rows(manifest, written, paths[INDEX], paths[LOCATIONS])
    for name, path in paths.items():
        if remote:
            open_store(plan.path).write(name, path)
            path.unlink()
        else:
            with path.open("rb+") as file:
                os.fsync(file.fileno())
            path.replace(plan.path / name)
    text = manifest.to_json()
    content = text.encode("utf-8", "surrogateescape")
    parse_manifest(content, plan.path / MANIFEST)
    durable_write(plan.path / MANIFEST, text)
    return content


def _tables(
    plan: FieldsPlan, receipts: Receipts, split: str, variant: int, manifest: Manifest, columns: pa.Schema
) -> Iterator[pa.Table]:
    main = plan.data.index(split, variant, ["key", "payload_crc"])
    rasters = (info.spec.shape for info in manifest.fields.values() if info.spec.kind in RASTER_KINDS)
    height, width, *_ = next(rasters, (None, None))
    for task in receipts:
        if (task.split, task.variant) != (split, variant):
            continue
        receipt = plan.receipt(task)
        if receipt is None or receipt.file != receipts[task].file:
            raise _vanished(plan, task)
        keys, crcs = (main[name].slice(task.first, task.records).to_pylist() for name in ("key", "payload_crc"))
        rows, count = receipt.rows, len(receipt.rows)
        by_name: dict[str, Sequence[Any]] = {
            "key": keys, "split": [split] * count, "variant": [variant] * count, "shard": [task.shard] * count,
            "offset": [row[0] for row in rows], "size": [row[1] for row in rows], "payload_crc": [row[2] for row in rows],
            "source_digest": [record_digest(key, crc) for key, crc in zip(keys, crcs, strict=True)],
            "image_digest": [None] * count, "image_hash": [None] * count, "height": [height] * count, "width": [width] * count,
        }  # fmt: skip
        for number, name in enumerate(receipt.specs or manifest.fields):  # a shard without records has no specs
            by_name[f"{name}_offset"] = [row[0] + HEADER_BYTES + row[3 + 2 * number] for row in rows]
            by_name[f"{name}_size"] = [row[4 + 2 * number] for row in rows]
        arrays = {column.name: pa.array(by_name[column.name], column.type) for column in columns}
        yield pa.table(arrays, schema=columns)
