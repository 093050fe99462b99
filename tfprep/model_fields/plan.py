"""The shards of added fields: which there are to compute, what is there already, and the receipts that say so."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from tfprep.builder.sums import merge
from tfprep.dataset import FileInfo
from tfprep.dataset.manifest import digest_of
from tfprep.dataset.names import SHARDS, fields_receipts, shard_name
from tfprep.dataset.plain_json import from_json, with_digest, without_digest
from tfprep.dataset.verify import part_faults
from tfprep.dataset.versions import current_version
from tfprep.errors import BuildError, DatasetError, RecipeError
from tfprep.fields import FieldSpec
from tfprep.load import Data
from tfprep.recipe.describe import what_changed
from tfprep.recipe.model_fields import ModelFields, deciding, fingerprint_of
from tfprep.records import Frame, format_index
from tfprep.storage.urls import check_no_link, durable_write, is_remote, read_content, remove_file, size_of


@dataclass(frozen=True)
class FieldsTask:
    """One shard of one variant to compute.

    Attributes:
        split, variant, shard: Which shard.
        first, records: The numbers of its samples in the split's variant: [first, first + records).
        name: The name of the file with the fields.
        of: What the main shard is: its SHA-256, or for an imported one what its storage says of its version, and the checksum of
            where its records are and what they hold. Then digests of how the inputs are read, and of the samples' keys.
    """

    split: str
    variant: int
    shard: int
    first: int
    records: int
    name: str
    of: str

    def __str__(self) -> str:
        return f"{self.split}, variant {self.variant}, shard {self.shard}"


@dataclass(frozen=True)
class FieldsReceipt:
    """What became of one shard.

    Attributes:
        fingerprint: That of the model and its options.
        of: As in `FieldsTask`, when it was computed.
        folder: The folder that it was written to.
        file: Its name, size and digest there.
        specs: What each field is.
        rows: For each record the offset and size of its frame, the checksum of its payload, and the offset in the payload and the
            size of each field, in the order of `specs`.
    """

    fingerprint: str
    of: str
    folder: str
    file: FileInfo
    specs: Mapping[str, FieldSpec]
    rows: Sequence[Sequence[int]]


@dataclass(frozen=True)
class FieldsPlan:
    """All shards that get the fields."""

    data: Data
    fields: ModelFields
    description: Mapping[str, Any]

    @cached_property
    def fingerprint(self) -> str:
        """The digest of the model and its options."""
        return fingerprint_of(self.description)

    def changes(self, before: Mapping[str, Any]) -> list[str]:
        """Return what differs from an earlier description, such as "batch_size: 64 -> 32", "files['teacher.keras'] changed"."""
        return what_changed(deciding(before), deciding(self.description))

    @cached_property
    def variants(self) -> dict[str, int]:
        """The number of variants that get the fields, by split."""
        splits = self.data.splits if self.fields.splits is None else self.fields.splits
        stored = {split: self.data.split(split).variants for split in splits}
        if self.fields.variants == "all":
            return stored
        return {split: min(int(self.fields.variants), count) for split, count in stored.items()}

    @cached_property
    def tasks(self) -> list[FieldsTask]:
        """The tasks, by split, variant and shard."""
        tasks, imported = [], self.data.manifest.imported
        reading = {name: repr(self.data.manifest.fields.get(name)) for name in self.fields.inputs}
        if imported is not None:
            reading |= {f"feature of {name}": imported.features.get(name, "") for name in self.fields.inputs}
        how = hashlib.sha256(json.dumps(reading, sort_keys=True).encode()).hexdigest()[:16]
        for split, variants in self.variants.items():
            info, shards = self.data.split(split), self.data.split(split).shards
            keys = self.data.index(split, 0, ["key"])["key"]  # no shard holds them
            for variant in range(variants):
                first = 0
                for shard, file in enumerate(info.files[variant]):
                    name = shard_name(self.data.name, split, variant, shard, shards)
                    of = file.sha256
                    if imported is not None:  # files that one archive held may be alike in size and time
                        of = f"{file.bytes} {imported.versions[split][shard]} {info.rows_crc32c[0][shard]}"
                    text = json.dumps(keys.slice(first, file.records).to_pylist())
                    of = f"{of} {how} {hashlib.sha256(text.encode()).hexdigest()[:16]}"
                    tasks.append(FieldsTask(split, variant, shard, first, file.records, name, of))
                    first += file.records
        return tasks

    @cached_property
    def folder(self) -> str:
        """The name of the folder: one content has one name, so that what readers see is never written over."""
        text = json.dumps([self.fingerprint, [(task.name, task.of) for task in self.tasks]])
        return f"{self.fields.name}-{hashlib.sha256(text.encode()).hexdigest()[:12]}"

    @property
    def root(self) -> Path:
        """The folder or URL of the dataset."""
        assert self.data.version is not None
        return self.data.version.root

    @property
    def path(self) -> Path:
        """Where the fields are made: a folder that waits to be published, or at a store that of this content."""
        return self._waiting(self.folder)

    def _waiting(self, folder: str) -> Path:
        if is_remote(self.root):
            return self.root / SHARDS / folder
        return self.root / fields_receipts(self.fields.name) / folder

    def find(self, folder: str, name: str) -> Path:
        """Return the path of a computed file, which waits to be published or is published."""
        waiting = self._waiting(folder) / name
        entry = self.data.manifest.groups.get(self.fields.name)
        if entry is None or entry.folder != folder or (not is_remote(self.root) and waiting.exists()):
            return waiting
        return self.data.folder_of(entry) / name

    def receipt_path(self, task: FieldsTask) -> Path:
        return self.root / fields_receipts(self.fields.name) / f"{task.split}-v{task.variant}-{task.shard:05d}.json"

    def is_published(self, *, verify: bool = False) -> bool:
        """Return True if the dataset has these fields, with files of the right sizes: then no receipt is needed.

        A model may give other values each time, so that files which the manifest names are not computed again.

        Args:
            verify: Whether all bytes are read and compared.
        """
        entry = self.data.manifest.groups.get(self.fields.name)
        if entry is None or entry.folder != self.folder:
            return False
        if (entry.pixels, entry.variants) != (self.fields.follows_pixels, self.variants):
            return False
        try:
            added = self.data.added(self.fields.name)
            for split, info in added.splits.items():
                added.check_files(split, range(info.variants))
        except DatasetError:
            return False
        return not verify or not any(part_faults(added, self.data))

    def receipt(self, task: FieldsTask) -> FieldsReceipt | None:
        """Return the receipt of a shard that is up to date; None if it is to be computed."""
        noted = self.noted(task)
        return noted if noted and (noted.fingerprint, noted.of) == (self.fingerprint, task.of) else None

    def noted(self, task: FieldsTask) -> FieldsReceipt | None:
        """Return what a run noted of a shard, of any model; None where there is no such note, or its file is gone."""
        try:
            receipt = from_json(FieldsReceipt, without_digest(read_content(self.receipt_path(task))))
        except (OSError, ValueError):
            return None
        size = size_of(self.find(receipt.folder, receipt.file.name))
        return receipt if size == receipt.file.bytes and len(receipt.rows) == receipt.file.records else None

    def forget_damaged(self, tasks: Iterable[FieldsTask]) -> None:
        """Remove the receipts of tasks whose files do not have the bytes that were computed."""
        for task in tasks:
            if (receipt := self.noted(task)) is None:
                continue
            path, idx = (self.find(receipt.folder, f"{receipt.file.name}{suffix}") for suffix in ("", ".idx"))
            text = format_index(Frame(*row[:2]) for row in receipt.rows).encode()
            has_index = size_of(idx) is not None and read_content(idx) == text
            if not has_index or digest_of(path).sha256 != receipt.file.sha256:
                remove_file(self.receipt_path(task))

    def write_receipt(self, task: FieldsTask, receipt: FieldsReceipt) -> None:
        path = self.receipt_path(task)
        if not is_remote(path):
            path.parent.mkdir(parents=True, exist_ok=True)
        durable_write(path, with_digest(asdict(receipt)))

    def check(self) -> None:
        """Raise RecipeError where the dataset has no such inputs, or has such fields already."""
        if current_version(self.root) != self.data.version:
            raise BuildError(
                f"{self.data.path} is not the current version of {self.root}, to which fields are added: open that"
            )
        own = self.data.manifest.groups
        if self.fields.name in own:
            check_no_link(self.data.folder_of(own[self.fields.name]))
        for name in self.fields.inputs:
            if name not in ("key", *self.data.manifest.fields):
                added = " in its records; those that a model added are not inputs" if name in self.data.fields else ""
                names = ", ".join(self.data.manifest.fields)
                raise RecipeError(f"inputs: {self.data.path} has no field {name!r}{added}; it has {names}")
        for name in self.fields.store:
            if name in self.data.fields and self.data.group_of(name) != self.fields.name:
                raise RecipeError(f"store: {self.data.path} has a field {name!r} already; choose another name")


def join_specs(specs: dict[str, FieldSpec], others: Mapping[str, FieldSpec], where: object) -> None:
    """Join what fields are in some samples to `specs`: a side that differs becomes None. BuildError where their types differ."""
    for name, spec in others.items():
        before = specs.get(name, spec)
        if (before.dtype, len(before.shape)) != (spec.dtype, len(spec.shape)):
            raise BuildError(
                f"{name!r} of {where} is {spec.dtype} {list(spec.shape)}, of samples before it {before.dtype} "
                f"{list(before.shape)}; a field has one type in a dataset"
            )
        specs[name] = merge(before, spec) or spec
