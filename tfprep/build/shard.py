"""A shard task: a pure function of the recipe and a list of samples. Decodes each sample once, writes one file a variant.

Memory is bounded by one sample and its variants: records go to disk as they are made. What a task leaves behind appears in this
order: the files and their `.idx`, the rows for the index, the receipt. A task that dies leaves temporary files alone.
"""

from __future__ import annotations

import base64
import hashlib
import json
import pickle
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import cv2

from tfprep.build.accumulate import add_counts, class_counts, image_moments, merge_specs
from tfprep.build.files import sync_folder, whole_file, write_whole
from tfprep.build.layout import Layout
from tfprep.build.receipt import Moments, Receipt, Reject, read_receipt
from tfprep.build.task import ShardTask
from tfprep.dataset.manifest import FileInfo
from tfprep.dataset.names import shard_name
from tfprep.engines.engine import Json, Mark, Work
from tfprep.errors import BuildError, SampleError
from tfprep.recipe import Recipe
from tfprep.recipe_file import load_recipe
from tfprep.records import RecordWriter, encode, format_index
from tfprep.records.framing import HEADER_BYTES
from tfprep.sample import SampleMaker, Stored
from tfprep.sources import Entry, read_files

ENTRY = "tfprep.build.shard:open_job"


@dataclass(frozen=True)
class Job:
    """What all shard tasks of a build share."""

    maker: SampleMaker
    layout: Layout
    root: Path
    files: tuple[str, ...]
    values: tuple[str, ...]
    train: str
    stop_at_reject: bool

    @property
    def recipe(self) -> Recipe:
        return self.maker.recipe


def open_job(argument: Json) -> Work:
    """The work of a worker process."""
    cv2.setNumThreads(0)
    file = argument["recipe_file"]
    recipe = load_recipe(Path(file)) if file else pickle.loads(base64.b64decode(argument["recipe"]))
    job = Job(
        maker=SampleMaker(recipe, argument["kinds"], argument["classes"]),
        layout=Layout(Path(argument["out"])),
        root=Path(argument["root"]),
        files=tuple(argument["files"]),
        values=tuple(argument["values"]),
        train=argument["train"],
        stop_at_reject=argument["stop_at_reject"],
    )
    return lambda task, mark: run_task(job, ShardTask(**task), mark)


def run_task(job: Job, task: ShardTask, mark: Mark) -> Json:
    """Build the shard, or find by its sources' content that it is up to date. The result says which."""
    if task.only is not None:
        mark(task.only)
        return _probe(job, task, task.only)
    old = read_receipt(job.layout, task.split, task.shard)
    if old is not None and not task.skip and old.digest == _digest_of_sources(job, task):
        renewed = Receipt(**{**vars(old), "signature": task.signature, "stats": _stats(task)})
        write_whole(job.layout.receipt(task.split, task.shard), renewed.to_json())
        return {"rejects": len(renewed.rejects)}
    return {"rejects": len(_build(job, task, mark).rejects)}


def _probe(job: Job, task: ShardTask, position: int) -> Json:
    """One sample alone, nothing written: does it crash by itself?"""
    key, files, values, _ = task.samples[position]
    try:
        raw, _ = _read(job, files, values)
        for _ in job.maker.variants(key, raw, job.recipe.variants_of(task.split)):
            pass
    except SampleError:
        pass  # an ordinary error is named when the shard is built
    return {}


# --- building -------------------------------------------------------------------------------------------------------


def _build(job: Job, task: ShardTask, mark: Mark) -> Receipt:
    started = time.perf_counter()
    with ExitStack() as stack:
        shard = _Shard(job, task, stack)
        for position, sample in enumerate(task.samples):
            mark(position)
            shard.add(position, *sample[:3])
    shard.write_indexes()
    sync_folder(job.layout.staged)
    receipt = shard.receipt({"total": time.perf_counter() - started})
    write_whole(job.layout.rows(task.split, task.shard), json.dumps(shard.rows))
    write_whole(job.layout.receipt(task.split, task.shard), receipt.to_json())
    sync_folder(job.layout.receipts)
    return receipt


class _File:
    """One variant's file while it is written."""

    def __init__(self, path: Path, file: BinaryIO) -> None:
        self.path = path
        self._file = file
        self._sha256 = hashlib.sha256()
        self.writer = RecordWriter(self)  # type: ignore[arg-type]

    def write(self, data: bytes) -> None:
        self._sha256.update(data)
        self._file.write(data)

    def info(self) -> FileInfo:
        frames = self.writer.frames
        size = frames[-1].offset + frames[-1].size if frames else 0
        return FileInfo(self.path.name, len(frames), size, self._sha256.hexdigest())


class _Shard:
    """The files of one shard, and all that adds up while samples are added."""

    def __init__(self, job: Job, task: ShardTask, stack: ExitStack) -> None:
        self._job, self._task = job, task
        self._count = job.recipe.variants_of(task.split)
        self.files = [_File(path, stack.enter_context(whole_file(path))) for path in self._paths()]
        self.rows: list[list[list[Any]]] = [[] for _ in self.files]
        self._digest = _start_digest(task)
        self._specs: dict[str, Any] = {}
        self._moments: dict[str, Moments] = {}
        self._counts: dict[str, tuple[int, ...]] = {}
        self._rejects: list[Reject] = []

    def _paths(self) -> list[Path]:
        task = self._task
        names = [shard_name(self._job.recipe.name, task.split, v, task.shard, task.shards) for v in range(self._count)]
        return [self._job.layout.staged / name for name in names]

    def add(self, position: int, key: str, files: Sequence[str], values: Sequence[Any]) -> None:
        """Write every variant of the sample, or none and a reject."""
        digest = b""
        try:
            raw, digest = _read(self._job, files, values)
            if str(position) in self._task.skip:
                raise SampleError(self._task.skip[str(position)], stage="process")
            variants = list(self._job.maker.variants(key, raw, self._count))
            specs = self._specs
            for stored in variants:
                specs = merge_specs(specs, stored.specs)
        except SampleError as error:
            self._reject(key, files, error)
        else:
            self._specs = dict(specs)
            self._write(key, digest, variants)
        self._digest.update(_digest_entry(key, digest))

    def _reject(self, key: str, files: Sequence[str], error: SampleError) -> None:
        path = error.path or (files[self._job.files.index(error.field)] if error.field in self._job.files else "")
        path = path or (files[0] if files else "")
        if self._job.stop_at_reject:
            where = f"{error.stage} of '{error.field}'" if error.field else error.stage
            raise BuildError(f"{path}: {where}: {error.reason} (sample {key!r}; --on-bad skip would leave it out)")
        self._rejects.append(Reject(key, self._task.split, error.stage, error.field, error.reason, path))

    def _write(self, key: str, digest: bytes, variants: Sequence[Stored]) -> None:
        for file, rows, stored in zip(self.files, self.rows, variants, strict=True):
            payload, spans = encode(stored.features)
            frame = file.writer.write(payload)
            start = frame.offset + HEADER_BYTES
            places = [n for name in self._job.recipe.store for n in (start + spans[name].offset, spans[name].size)]
            rows.append([key, frame.offset, frame.size, *_facts(stored), digest.hex(), *places])
        self._add_up(variants[0])

    def _add_up(self, stored: Stored) -> None:
        """Statistics are of variant 0; pixel sums of the training split alone."""
        for name, spec in stored.specs.items():
            value = stored.values[name]
            if spec.kind == "image" and self._task.split == self._job.train:
                self._moments[name] = self._moments.get(name, Moments()).plus(image_moments(value))
            if name in self._job.maker.classes and spec.kind in ("label", "mask"):
                counts = class_counts(value, self._job.maker.classes[name])
                self._counts[name] = add_counts(self._counts.get(name, ()), counts)

    def write_indexes(self) -> None:
        for file in self.files:
            write_whole(file.path.with_name(f"{file.path.name}.idx"), format_index(file.writer.frames))

    def receipt(self, seconds: Mapping[str, float]) -> Receipt:
        task = self._task
        return Receipt(
            split=task.split, shard=task.shard, shards=task.shards, signature=task.signature,
            digest=self._digest.hexdigest(), files=tuple(file.info() for file in self.files), specs=self._specs,
            moments=self._moments, class_counts=self._counts, rejects=tuple(self._rejects), stats=_stats(task),
            seconds=seconds,
        )  # fmt: skip


def _facts(stored: Stored) -> list[Any]:
    """Label, height and width, as the index holds them: of the first label and the first raster stored."""
    labels = [stored.values[name] for name, spec in stored.specs.items() if spec.kind == "label"]
    sizes = [spec.shape[:2] for spec in stored.specs.values() if spec.kind in ("image", "mask", "map")]
    height, width = sizes[0] if sizes else (None, None)
    return [labels[0].tolist() if labels else None, height, width]


# --- sources --------------------------------------------------------------------------------------------------------


def _read(job: Job, files: Sequence[str], values: Sequence[Any]) -> tuple[dict[str, Any], bytes]:
    """The raw sample, and 16 bytes of SHA-256 of its files' content and its values. SampleError where one is unreadable."""
    raw: dict[str, Any] = {**read_files(job.root, job.files, Entry("", "", tuple(files)))}
    sha256 = hashlib.sha256()
    for data in raw.values():
        sha256.update(len(data).to_bytes(8, "little"))
        sha256.update(data)
    sha256.update(json.dumps(values).encode())
    return {**raw, **dict(zip(job.values, values, strict=True))}, sha256.digest()[:16]


def _start_digest(task: ShardTask) -> Any:
    digest = hashlib.sha256(task.fingerprint.encode())
    for position, reason in sorted(task.skip.items()):
        digest.update(f"{position} {reason}\n".encode())
    return digest


def _digest_entry(key: str, digest: bytes) -> bytes:
    return key.encode("utf-8", "surrogateescape") + b"\0" + digest + b"\n"


def _digest_of_sources(job: Job, task: ShardTask) -> str:
    digest = _start_digest(task)
    for key, files, values, _ in task.samples:
        try:
            content = _read(job, files, values)[1]
        except SampleError:
            content = b""
        digest.update(_digest_entry(key, content))
    return str(digest.hexdigest())


def _stats(task: ShardTask) -> dict[str, str]:
    return {key: stat for key, _, _, stat in task.samples}
