"""From computed shards to fields of the dataset: their own index and manifest, then the entry in that of the dataset.

The folder of the fields has a name of its own for each content, and nobody reads it before `tfprep.json` of the dataset names it,
which is replaced in one step. The folder that it named before goes afterwards.
"""

from __future__ import annotations

import hashlib
import itertools
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from tfprep.builder.planning.plan import recorded_versions
from tfprep.builder.publish import replace_manifest
from tfprep.codecs import TopK
from tfprep.dataset import Dataset, FieldInfo, FileInfo, Manifest, SplitInfo, read_manifest
from tfprep.dataset.arrow import array_of
from tfprep.dataset.index import joined_tables, schema, write_index
from tfprep.dataset.locations import write_locations
from tfprep.dataset.manifest import MANIFEST, AddedFields, FileDigest, digest_of, parse_manifest
from tfprep.dataset.names import INDEX, LOCATIONS, PRIVATE, fields_receipts
from tfprep.dataset.other_readers import tfds_files
from tfprep.dataset.verify import record_digest
from tfprep.errors import BuildError
from tfprep.fields import RASTER_KINDS, FieldSpec
from tfprep.load import Data
from tfprep.model_fields.plan import FieldsPlan, FieldsReceipt, FieldsTask, join_specs
from tfprep.records.framing import HEADER_BYTES
from tfprep.storage.local import link_or_copy, remove_leftovers, sync_folder, temporary_path, write_whole
from tfprep.storage.store import open_store
from tfprep.storage.urls import is_remote, write_content

Receipts = Mapping[FieldsTask, FieldsReceipt]


def publish_fields(plan: FieldsPlan, scratch: Path, version: str | None) -> tuple[str, ...]:
    """Make the computed shards fields of the dataset. Other added fields that were computed from others of them go.

    Args:
        plan: All shards.
        scratch: A local folder for files on their way to a store.
        version: That of `tfprep.json` at a store when the run began.

    Returns:
        The names of the fields that are gone. Their files stay: the next run that computes them takes what is up to date.

    Raises:
        BuildError: A shard is not computed, shards hold arrays of different types, or another process published meanwhile.
    """
    before = read_manifest(plan.data.path)  # under the lock: other fields may have been added meanwhile
    receipts = {task: _ready(plan, task) for task in plan.tasks}
    specs: dict[str, FieldSpec] = {}  # over all shards
    for task, receipt in receipts.items():
        join_specs(specs, receipt.specs, task)
    if not specs:
        raise BuildError("the splits hold no samples, so that nothing says what the fields are")
    for name, spec in specs.items():
        if isinstance(plan.fields.store[name], TopK) and None in spec.shape:
            raise BuildError(f"{name!r} has other numbers of classes in some samples; TopK holds one number of classes")
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
        versions=recorded_versions(),
    )
    content = _written(plan, receipts, manifest, scratch)
    entry = AddedFields(
        plan.folder, hashlib.sha256(content).hexdigest(), manifest.fields, plan.variants, plan.fields.follows_pixels
    )
    was = before.groups
    old = was.get(plan.fields.name)
    is_same = old is not None and old.sha256 == entry.sha256
    stale = [] if is_same else _computed_from(plan.data, was, plan.fields.name, set(entry.fields))
    added = {name: one for name, one in {**was, plan.fields.name: entry}.items() if name not in stale}
    if added != before.added:
        _replace_manifest(plan.data, replace(before, added=added), version)
    _remove_folders(plan.data.path, plan.fields.name, plan.folder)
    return tuple(name for group in stale for name in was[group].fields)


def _computed_from(data: Data, added: Mapping[str, AddedFields], changed: str, names: set[str]) -> list[str]:
    """The groups of which inputs are among `names`, the fields of the group that changed, or are such fields themselves."""
    for group, one in added.items():
        if group != changed and not names.issuperset(one.fields):
            inputs = data.added(group).manifest.recipe["model_fields"]["inputs"]
            if names.intersection(inputs):
                return [group, *_computed_from(data, added, changed, {*names, *one.fields})]
    return []


def unpublish_fields(data: Dataset, group: str, version: str | None) -> None:
    """Take the fields out of `tfprep.json`, if they are there, and then remove receipts and folders; at a store folders stay."""
    manifest = read_manifest(data.path)
    added = {name: entry for name, entry in manifest.groups.items() if name != group}
    if len(added) < len(manifest.groups):
        _replace_manifest(data, replace(manifest, added=added or None), version)
    store = open_store(data.path)
    if receipts := [info.name for info in store.list(fields_receipts(group))]:
        store.delete(receipts)
    _remove_folders(data.path, group, "")


def _remove_folders(path: Path, name: str, kept: str) -> None:
    """Remove the folders of fields replaced, removed or never finished; at a store, where one may be read, they stay."""
    if is_remote(path):
        return
    for folder in path.glob(f"{name}-*"):
        if re.fullmatch(rf"{name}-[0-9a-f]{{12}}", folder.name) and folder.name != kept and not folder.is_symlink():
            shutil.rmtree(folder, ignore_errors=True)
    if kept:
        for folder in (path, path / kept, path / fields_receipts(name)):  # the lock is held: nobody else writes here
            remove_leftovers(folder)


def _replace_manifest(data: Dataset, manifest: Manifest, version: str | None) -> None:
    """Replace `tfprep.json` of the dataset, and the copy of which `tfprep repair` makes a lost one again."""
    text = manifest.to_json()
    parse_manifest(text.encode("utf-8", "surrogateescape"), data.path / MANIFEST)  # a fault here would hide the dataset
    if not is_remote(data.path):
        data.check_not_replaced()
    replace_manifest(data.path, manifest, version)
    if not is_remote(data.path) and (copy := data.path / PRIVATE / MANIFEST).exists():
        write_whole(copy, text)


def _ready(plan: FieldsPlan, task: FieldsTask) -> FieldsReceipt:
    """Return the receipt of a shard that is up to date and lies in the plan's folder, and is noted there.

    It has no rows: those of all shards together would take many times the memory of the index.
    """
    receipt = plan.stored_receipt(task)
    if receipt is None or plan.why(task, receipt):
        raise _vanished(plan, task)
    if receipt.folder != plan.folder:  # take it over from the folder that it was computed for
        source, before = plan.data.path / receipt.folder, receipt.file.name
        for suffix in (".idx", ""):  # the dataset may have another name now
            old, new = f"{before}{suffix}", f"{task.name}{suffix}"
            if is_remote(plan.data.path):
                open_store(plan.path).write(new, bytes(open_store(source).read(old)))
            else:
                plan.path.mkdir(exist_ok=True)
                link_or_copy(source / old, plan.path / new)
        receipt = replace(receipt, folder=plan.folder, file=replace(receipt.file, name=task.name))
        plan.write_receipt(task, receipt)
    return replace(receipt, rows=())


def _vanished(plan: FieldsPlan, task: FieldsTask) -> BuildError:
    return BuildError(f"the fields of {task} vanished from {plan.data.path} meanwhile; run it again")


def _written(plan: FieldsPlan, receipts: Receipts, manifest: Manifest, scratch: Path) -> bytes:
    """Write the tables, the files for TensorFlow Datasets and the manifest of the fields; return the manifest's content."""
    remote = is_remote(plan.data.path)
    place = scratch if remote else plan.path
    paths = {name: temporary_path(place / name, plan.folder) for name in (INDEX, LOCATIONS)}
    columns = schema(list(manifest.fields), None)
    tables = (
        joined_tables(_tables(plan, receipts, split, variant, manifest, columns))
        for split, variants in plan.variants.items()
        for variant in range(variants)
    )
    write_index(paths[INDEX], columns, itertools.chain.from_iterable(tables))
    manifest = write_locations(paths[LOCATIONS], paths[INDEX], manifest)
    files: dict[str, FileDigest] = {name: digest_of(path) for name, path in paths.items()}
    for name, path in paths.items():
        if remote:
            open_store(plan.path).write(name, path)
            path.unlink()
        else:
            path.replace(plan.path / name)
    for name, text in ({} if remote else tfds_files(manifest)).items():
        write_whole(plan.path / name, text)
        files[name] = digest_of(plan.path / name)
    text = replace(manifest, files=files).to_json()
    content = text.encode("utf-8", "surrogateescape")
    parse_manifest(content, plan.path / MANIFEST)
    write_content(plan.path / MANIFEST, text)
    if not remote:
        sync_folder(plan.path)
    return content


def _tables(
    plan: FieldsPlan, receipts: Receipts, split: str, variant: int, manifest: Manifest, columns: pa.Schema
) -> Iterator[pa.Table]:
    """Yield the rows of the index of one variant, a shard at a time."""
    main = plan.data.index(split, variant, ["key", "payload_crc"])
    rasters = (info.spec.shape for info in manifest.fields.values() if info.spec.kind in RASTER_KINDS)
    height, width, *_ = next(rasters, (None, None))
    for task in receipts:
        if (task.split, task.variant) != (split, variant):
            continue
        if (receipt := plan.stored_receipt(task)) is None:
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
        arrays = {column.name: array_of(by_name[column.name], column.type) for column in columns}
        yield pa.table(arrays, schema=columns)
