"""A shard task: a pure function of the recipe and a list of samples. It decodes each sample once, and writes a file per variant.

Memory is bounded by one sample and its encoded variants: records go to disk as they are made.
The results of a task appear in this order: the files and their `.idx`, the receipt. A task that dies leaves nothing but temporary
files.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple

from tfprep.builder.layout import name_locked
from tfprep.builder.make_sample import BuildContext, RawSample
from tfprep.builder.receipts import (
    Contents,
    Receipt,
    RejectedSample,
    ShardTask,
    changed_samples,
    read_contents,
    read_receipt,
    same_files,
    stats_of,
    withdraw_receipt,
    write_receipt,
)
from tfprep.builder.sums import (
    FieldForm,
    Moments,
    check_expected,
    class_counts,
    count_forms,
    image_moments,
    of_variants,
)
from tfprep.codecs import Original
from tfprep.dataset.manifest import FileInfo
from tfprep.dataset.names import SHARDS, shard_name, stored_name
from tfprep.errors import BuildError, SampleError
from tfprep.fields import RASTER_KINDS, FieldSpec, Sample, class_numbers
from tfprep.images import perceptual_hash
from tfprep.optional import cv2
from tfprep.pool import NO_ITEM, Mark
from tfprep.records import Frame, encode, format_index, frame
from tfprep.records.framing import HEADER_BYTES, MOST_RECORD, footer_crc
from tfprep.storage.local import sync_folder, temporary_path, write_error, writing
from tfprep.storage.store import Store, open_store
from tfprep.storage.urls import durable_write

_OF_ORIGINALS = 128
_LEAST_A_SHARD, _MOST_A_SHARD = 2, 16
"""Some of the images that are stored by their own bytes are decoded for the pixel statistics: the first 2 to 16 of each shard, so
that a dataset has about 128 or more. A shard holds a random part of the data in random order, so these are a random part of it,
and always the same one."""
_MOST_REASON = 1000
"""Characters of the reason of a rejected sample that are kept: an exception's text may hold a whole array."""
KEY, OFFSET, SIZE, PAYLOAD_CRC = range(4)
DIGEST = 7
"""Places in a row of the index; label, height and width are before the digest, the fields' spans after it."""
OF_IMAGE = 2
"""Entries at the end of a row: digest and hash of the image."""


def open_work(context: BuildContext) -> Callable[[ShardTask, Mark], dict[str, Any]]:
    """Return the function that runs the tasks of a worker. Raises RecipeError if the recipe is not the one of the plan."""
    cv2.setNumThreads(0)
    context.recipe.check_files()
    if context.layout.at_store:
        context.layout.make()  # The scratch folder of another machine is not there yet.
    return partial(run_task, context)


def run_task(context: BuildContext, task: ShardTask, mark: Mark) -> dict[str, Any]:
    """Build the shard, or find that it is up to date by the content of its sources; the result says which."""
    if mark.lost:
        task = replace(task, skip=mark.lost)
    started = perf_counter()
    old = read_receipt(context.layout, task.split, task.shard)
    built = old is None or not (is_same(old, task) or _renew(context, task, old, mark))
    receipt = _build(context, task, mark) if built else old
    assert receipt is not None
    return {"rejected": len(receipt.rejected), "built": built, "seconds": perf_counter() - started}


def _renew(context: BuildContext, task: ShardTask, old: Receipt, mark: Mark) -> bool:
    """Return True if the shard is up to date by the content of its inputs, and renew its receipt if it is."""
    same = (old.fingerprint, old.expected, old.shards) == (task.fingerprint, task.expected, task.shards)
    # Memory is missed by files that are read as before: their content would say that nothing has changed.
    if task.skip or not same or any(sample.accident == "memory" for sample in old.rejected):
        return False
    contents = read_contents(context.layout, old)
    changed = changed_samples(task, old, contents.stats)
    digests = {row[KEY]: bytes.fromhex(row[DIGEST]) for row in json.loads(contents.rows[0])}  # without rejected samples
    due = {key for key, *_ in task.samples if key in changed or key not in digests}
    digest = _start_digest(task)
    for position, (key, files, values, *_) in enumerate(task.samples):
        mark(position)
        digest.update(_digest_entry(key, context.digest(files, values) if key in due else digests[key]))
    mark(NO_ITEM)
    if digest.hexdigest() != old.digest:
        return False
    renewed = replace(old, signature=task.signature, identity=task.identity)
    write_receipt(context.layout, renewed, replace(contents, stats=stats_of(task)))
    return True


class ShardFile:
    """The file of one variant of a shard while it is built, under a temporary name until `commit`.

    Records go to the operating system one by one. A process that dies leaves a temporary file, which the next attempt of the same
    run (`run` is a word that belongs to it) overwrites.
    """

    def __init__(self, path: Path, run: str) -> None:
        self._path, self._temporary = path, temporary_path(path, run)
        with writing(path):
            self._file = self._temporary.open("wb")
        self._frames: list[Frame] = []
        self._bytes, self._sha256 = 0, hashlib.sha256()

    def write(self, payload: bytes) -> tuple[Frame, int]:
        """Write a record; return where it is, and the masked checksum of the payload."""
        framed = frame(payload)
        try:
            self._file.write(framed)
        except OSError as error:
            raise write_error(self._path, error) from error
        written = Frame(self._bytes, len(framed))
        self._frames.append(written)
        self._sha256.update(framed)
        self._bytes += len(framed)
        return written, footer_crc(framed)

    def close(self) -> None:
        """Close the file, and remove it if it was not committed."""
        with suppress(OSError):  # The disk is full: that was reported.
            self._file.close()
        with suppress(OSError):
            self._temporary.unlink(missing_ok=True)

    def commit(self) -> None:
        """Give the file, synced, its final name, and write the `.idx` beside it. The caller syncs the folder."""
        with writing(self._path):
            self._file.flush()
            os.fsync(self._file.fileno())
            self._temporary.replace(self._path)
        durable_write(self._path.with_name(f"{self._path.name}.idx"), format_index(self._frames), sync=False)

    def put(self, store: Store) -> FileInfo:
        """Write the file to a store, with its `.idx`, under a name that belongs to its content."""
        info = self.info()
        info = replace(info, name=stored_name(info.name, info.sha256))
        with writing(self._path):
            self._file.flush()
        store.write(f"{info.name}.idx", format_index(self._frames).encode())
        store.write(info.name, self._temporary)
        return info

    def info(self) -> FileInfo:
        return FileInfo(self._path.name, len(self._frames), self._bytes, self._sha256.hexdigest())


# --- building -------------------------------------------------------------------------------------------------------


def _build(context: BuildContext, task: ShardTask, mark: Mark) -> Receipt:
    context.maker.seconds.clear()
    variants = range(context.recipe.variants_of(task.split))
    names = [shard_name(context.recipe.name, task.split, v, task.shard, task.shards) for v in variants]
    with ExitStack() as stack:  # which removes files that are not committed
        opened = (ShardFile(context.layout.staged / name, context.run) for name in names)
        files = [stack.enter_context(closing(file)) for file in opened]
        shard = _Shard(context, task, files)
        for position in range(len(task.samples)):
            mark(position)
            shard.add(position)
        mark(NO_ITEM)
        context.recipe.check_files()  # A function may have read them only now.
        return _commit(context, task, shard, files)


def _commit(context: BuildContext, task: ShardTask, shard: _Shard, files: Sequence[ShardFile]) -> Receipt:
    """Make the files and the receipt of one attempt those of the shard, as one step for all other attempts.

    Two parts of a build, or two nodes where one was taken for dead, may attempt the same shard at the same time. The first
    attempt that gets here wins, so that files and receipt belong together whatever happens to the others.
    """
    layout = context.layout
    if layout.at_store:
        # Names belong to contents, so that other attempts do not matter: the receipt that is written last describes its files.
        store = open_store(layout.out / SHARDS)
        receipt = replace(shard.receipt(), files=tuple(file.put(store) for file in files))
        write_receipt(layout, receipt, shard.contents())
        return receipt
    with name_locked(layout, f"shard {task.split} {task.shard}"):
        first = read_receipt(layout, task.split, task.shard)
        if first is not None and is_same(first, task):
            return first
        withdraw_receipt(layout, task.split, task.shard)
        for file in files:
            file.commit()
        sync_folder(layout.staged)
        receipt = shard.receipt()
        write_receipt(layout, receipt, shard.contents())
        return receipt


def is_same(receipt: Receipt, task: ShardTask) -> bool:
    """Return True if the receipt is that of this very task, without a rejected sample that another try might accept."""
    accident = any(sample.accident for sample in receipt.rejected)
    same = (receipt.signature, receipt.expected) == (task.signature, task.expected)
    return same and same_files(receipt, task.identity) and not accident and not task.skip


class _Made(NamedTuple):
    """The addition of one sample to its shard: rows of the index and records by variant, and sums over variant 0 by field.

    A row has no place in the file yet: the fields' offsets count from the beginning of the payload.
    """

    rows: Sequence[list[Any]]
    payloads: Sequence[bytes]
    specs: Mapping[str, FieldSpec]
    moments: Mapping[str, Moments]
    counts: Mapping[str, Mapping[int, int]]


class _Shard:
    """The sums over the samples of one shard, and the rows of its index."""

    def __init__(self, context: BuildContext, task: ShardTask, files: Sequence[ShardFile]) -> None:
        self._context, self._task, self._files = context, task, files
        self._count = context.recipe.variants_of(task.split)
        self._sampled = min(_MOST_A_SHARD, max(_LEAST_A_SHARD, -(-_OF_ORIGINALS // task.shards)))
        kinds, store = context.maker.all_kinds, context.recipe.store
        # The order of keys in `store` is not part of the fingerprint, except for which label and which image come first.
        self._label = context.recipe.first_label(context.maker.kinds)
        self._raster = next((name for name in kinds if name in store and kinds[name] in RASTER_KINDS), None)
        self._rows: list[list[Sequence[Any]]] = [[] for _ in range(self._count)]
        self._digest = _start_digest(task)
        self._forms: dict[str, dict[str, FieldForm]] = {}
        self._moments: dict[str, Moments] = {}
        self._counts: dict[str, Counter[int]] = {}
        self._rejected_samples: list[RejectedSample] = []
        self._notes: Counter[str] = Counter()
        self._warned: list[RejectedSample] = []

    def add(self, position: int) -> None:
        """Make all variants of a sample, write them and add them up; or note why the sample is rejected."""
        key, files, values, stat, _ = self._task.samples[position]
        digest = b""
        made: _Made | None = None
        try:
            if position in self._task.skip:  # Its files are not read: that may be what takes too long.
                raise SampleError(self._task.skip[position], stage="process")
            started = perf_counter()
            try:
                raw = self._context.read(files, values)
            finally:
                self._context.check_places(files, stat)
            self._spent("read", started)
            digest = raw.digest
            made = self._made(position, key, raw)
            check_expected(made.specs, self._task.expected)
        except SampleError as error:
            self._rejected_samples.append(self._rejected(key, files, error))
            if made is not None:
                count_forms(self._forms, made.specs, written=False)
        else:
            self._write(made)
            self._add_up(key, made)
        self._digest.update(_digest_entry(key, digest))

    def _write(self, made: _Made) -> None:
        started = perf_counter()
        for row, payload, file, rows in zip(made.rows, made.payloads, self._files, self._rows, strict=True):
            frame, crc = file.write(payload)
            row[OFFSET : PAYLOAD_CRC + 1] = frame.offset, frame.size, crc
            for place in range(DIGEST + 1, len(row) - OF_IMAGE, 2):
                row[place] += frame.offset + HEADER_BYTES
            rows.append(row)
        self._spent("write", started)

    def _add_up(self, key: str, made: _Made) -> None:
        maker, image = self._context.maker, self._context.image
        count_forms(self._forms, made.specs, written=True)
        for name, moments in made.moments.items():
            written = [form for form in self._forms[name].values() if form.spec is not None]
            if len(written) > 1:  # such a shard is built again with one form of the field, and summed up then
                self._moments.pop(name, None)
            else:
                self._moments[name] = self._moments.get(name, Moments()).plus(moments)
        for name, counts in made.counts.items():
            totals = self._counts.setdefault(name, Counter())
            for number, count in counts.items():
                totals[number] += count
        if image in maker.notes:
            self._notes[maker.notes[image]] += 1
        if maker.warned:
            warning = "; ".join(maker.warned)
            self._warned.append(RejectedSample(key, self._task.split, "decode", "", warning, ""))

    def _made(self, position: int, key: str, raw: RawSample) -> _Made:
        """Return what the sample adds; the pixels of one variant at a time are in memory."""
        payloads: list[bytes] = []
        rows: list[list[Any]] = []
        specs: list[Mapping[str, FieldSpec]] = []
        moments: dict[str, Moments] = {}
        counts: Mapping[str, Mapping[int, int]] = {}
        image, maker = self._context.image, self._context.maker
        for sample in maker.made(key, raw.parts, range(self._count), pixels=position < self._sampled):
            features, of_variant = maker.encode(sample, raw.parts)
            if maker.warned and self._context.options.on_warning == "reject":
                rule = "--on-warning reject leaves out samples with warnings"
                raise SampleError(f"{rule}: {'; '.join(maker.warned)}", stage="decode")
            if not rows:
                moments, counts = self._sums(sample, of_variant, position)
            payload, spans = encode(features)
            if len(payload) >= MOST_RECORD:
                raise SampleError(f"a record has less than 2 GiB, not {len(payload):,} bytes", stage="encode")
            digest = image_hash = None  # what belongs to the image, and not to a variant, is in the row of variant 0
            if not rows:
                digest = raw.image_digest.hex() or None
                if image is not None and self._context.options.hash:
                    started = perf_counter()
                    image_hash = perceptual_hash(sample[image])
                    self._spent("hash", started)
            label = None if self._label is None else class_numbers(sample[self._label])
            height, width = of_variant[self._raster].shape[:2] if self._raster else (None, None)
            row = [key, 0, 0, 0, label, height, width, raw.digest.hex()]
            for name in self._context.recipe.store:
                row += spans[name]
            rows.append([*row, digest, image_hash])
            payloads.append(payload)
            specs.append(of_variant)
        return _Made(rows, payloads, of_variants(specs), moments, counts)

    def _sums(
        self, values: Sample, specs: Mapping[str, FieldSpec], position: int
    ) -> tuple[dict[str, Moments], dict[str, dict[int, int]]]:
        """Sum up variant 0: class counts of every split, pixels of the training split only."""
        moments, counts, classes = {}, {}, self._context.maker.classes
        for name, spec in specs.items():
            value = values[name]
            sampled = position < self._sampled or not isinstance(self._context.recipe.store[name], Original)
            if spec.kind == "image" and self._task.split == self._context.train and sampled:
                moments[name] = image_moments(value)
            if name in classes and spec.kind in ("label", "mask"):
                numbers = class_numbers(value) if spec.kind == "label" else value
                counts[name] = class_counts(numbers, len(classes[name]))
        return moments, counts

    def _rejected(self, key: str, files: Sequence[str], error: SampleError) -> RejectedSample:
        """Return the rejected sample. Raises BuildError if the first one ends the build."""
        names = self._context.listing.files
        path = error.path or (files[names.index(error.field)] if error.field in names else next(iter(files), ""))
        if self._context.options.on_bad == "fail":
            raise BuildError(
                f"{path}: {error.place}: {error.reason} (sample {key!r}; --on-bad skip would leave it out)"
            )
        reason = error.reason
        if len(reason) > _MOST_REASON:
            reason = f"{reason[:_MOST_REASON]}... ({len(reason)} characters)"
        return RejectedSample(key, self._task.split, error.stage, error.field, reason, path)

    def _spent(self, stage: str, started: float) -> None:
        seconds = self._context.maker.seconds
        seconds[stage] = seconds.get(stage, 0.0) + perf_counter() - started

    def receipt(self) -> Receipt:
        task, classes = self._task, self._context.maker.classes
        counts = {name: tuple(of_name[n] for n in range(len(classes[name]))) for name, of_name in self._counts.items()}
        return Receipt(
            split=task.split, shard=task.shard, shards=task.shards, fingerprint=task.fingerprint,
            signature=task.signature, identity=task.identity,
            digest=self._digest.hexdigest(),
            files=tuple(file.info() for file in self._files), forms=self._forms, expected=task.expected,
            moments=self._moments, class_counts=counts, rejected=tuple(self._rejected_samples),
            seconds=dict(self._context.maker.seconds), notes=dict(self._notes),
            warned=tuple(self._warned),
        )  # fmt: skip

    def contents(self) -> Contents:
        return Contents(tuple(self._context.recipe.store), [*map(json.dumps, self._rows)], stats_of(self._task))


# --- digests --------------------------------------------------------------------------------------------------------


def _start_digest(task: ShardTask) -> Any:
    rules = sorted([*task.skip.items(), *task.expected.items()], key=str)
    return hashlib.sha256("".join(f"{name} {rule}\n" for name, rule in rules).encode())


def _digest_entry(key: str, digest: bytes) -> bytes:
    return key.encode("utf-8", "surrogateescape") + b"\0" + digest + b"\n"
