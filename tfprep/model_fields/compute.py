"""Computing the fields of one shard: batches are read and decoded ahead by threads, and the model runs in the calling thread."""

from __future__ import annotations

import pickle
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np

from tfprep.builder.shards.sums import merge
from tfprep.child_process import NO_ITEM, Mark
from tfprep.dataset import FileInfo
from tfprep.dataset.manifest import sha256_of
from tfprep.errors import BuildError, RecipeError, SampleError, TfprepError, summary_of
from tfprep.fields import Array, FieldSpec
from tfprep.limits import usable_cpus
from tfprep.load import Data
from tfprep.load import open as open_data
from tfprep.load.random_access import RandomAccess
from tfprep.model_fields.plan import FieldsPlan, FieldsReceipt, FieldsTask
from tfprep.recipe.model_fields import Compute, ModelFields, as_arrays, load_fields
from tfprep.records import RecordWriter, encode, format_index
from tfprep.storage.local import whole_file
from tfprep.storage.store import open_store
from tfprep.storage.urls import is_remote

AHEAD = 2
"""Batches that wait decoded beyond those that threads are working on."""
MOST_THREADS = 16


@dataclass
class Timing:
    """Seconds that the model took, and samples that it got."""

    model_s: float = 0.0
    calls: int = 0
    samples: int = 0


class Computer:
    """Computes shards, one after another, with one model. Use it in one thread."""

    def __init__(self, data: Data, plan: FieldsPlan, scratch: Path) -> None:
        self._data, self._plan, self._fields, self._scratch = data, plan, plan.fields, scratch
        self._threads = min(usable_cpus(), MOST_THREADS)
        self._pool = ThreadPoolExecutor(self._threads, "tfprep-fields")
        self._access: dict[tuple[str, int], RandomAccess] = {}
        self.timing = Timing()

    @cached_property
    def _compute(self) -> Compute:
        try:
            compute = self._fields.model()
        except TfprepError:
            raise
        except Exception as error:
            raise RecipeError(f"model() of {self._fields.name!r} failed: {summary_of(error)}") from error
        if not callable(compute):
            raise RecipeError(f"model() returns a function of a batch, not {compute!r}")
        return compute

    def close(self) -> None:
        """End the threads and close the files."""
        self._pool.shutdown(cancel_futures=True)
        for access in self._access.values():
            access.close()

    def compute(self, task: FieldsTask, mark: Mark = lambda item: None) -> FieldsReceipt:
        """Compute the fields of a shard, and write its file and then its receipt.

        Raises:
            BuildError: The model failed, or what it returned cannot be stored; the message names the samples.
        """
        _ = self._compute
        calls = self.timing.calls
        if is_remote(self._plan.data.path):
            path = self._scratch / task.name
            receipt = self._written(task, path, mark)
            store = open_store(self._plan.path)
            for name in (f"{task.name}.idx", task.name):
                store.write(name, self._scratch / name)
                (self._scratch / name).unlink()
        else:
            self._plan.receipt_path(task).parent.mkdir(parents=True, exist_ok=True)
            self._plan.path.mkdir(exist_ok=True)
            receipt = self._written(task, self._plan.path / task.name, mark)
        receipt = FieldsReceipt(**{**vars(receipt), "calls": self.timing.calls - calls})
        self._plan.write_receipt(task, receipt)
        mark(NO_ITEM)
        return receipt

    def _written(self, task: FieldsTask, path: Path, mark: Mark) -> FieldsReceipt:
        specs: dict[str, FieldSpec] = {}
        spans: list[list[int]] = []
        with whole_file(path) as file:
            writer = RecordWriter(file)
            for keys, outputs in self._outputs(task, mark):
                for row, key in enumerate(keys):
                    spans.append(
                        self._write(writer, key, {name: values[row] for name, values in outputs.items()}, specs)
                    )
        with whole_file(path.with_name(f"{path.name}.idx")) as index:
            index.write(format_index(writer.frames).encode())
        rows = [
            [*frame, crc, *of_fields]
            for frame, crc, of_fields in zip(writer.frames, writer.payload_crcs, spans, strict=True)
        ]
        info = FileInfo(task.name, task.records, path.stat().st_size, sha256_of(path))
        return FieldsReceipt(self._plan.fingerprint, task.of, self._plan.folder, info, specs, rows, 0)

    def _write(
        self, writer: RecordWriter, key: str, values: Mapping[str, Array], specs: dict[str, FieldSpec]
    ) -> list[int]:
        """Write the record of a sample; return where its fields lie in the payload: offset and size of each."""
        features: dict[str, Any] = {"key": key.encode("utf-8", "surrogateescape")}
        for name, codec in self._fields.store.items():
            kind = self._fields.kind(name)
            try:
                features |= {f"{name}{suffix}": part for suffix, part in codec.encode(values[name]).items()}
                spec = codec.spec(kind, values[name])
            except SampleError as error:
                raise BuildError(f"{name!r} of sample {key!r} cannot be stored: {error.reason}") from error
            before = specs.get(name, spec)
            if (before.dtype, len(before.shape)) != (spec.dtype, len(spec.shape)):
                raise BuildError(
                    f"{name!r} of sample {key!r} is {spec.dtype} {list(spec.shape)}, of samples before it {before.dtype} "
                    f"{list(before.shape)}"
                )
            specs[name] = merge(before, spec) or spec
        payload, spans = encode(features)
        writer.write(payload)
        return [number for name in self._fields.store for number in spans[name]]

    def _outputs(self, task: FieldsTask, mark: Mark) -> Iterator[tuple[list[str], dict[str, Array]]]:
        """Yield the keys and the outputs of each batch, in the order of the records."""
        for first, values in self._batches(task):
            mark(first - task.first)
            keys = [str(key) for key in values["key"]]
            given = self._fields.batch_size if self._fields.pad_batches else len(keys)
            batch = {name: _padded(values[name], given) for name in self._fields.inputs}
            began = time.monotonic()
            try:
                outputs = as_arrays(self._compute(batch))
            except Exception as error:
                raise BuildError(f"the model failed on {_named(task, keys)}: {summary_of(error)}") from error
            self.timing.model_s += time.monotonic() - began
            self.timing.calls += 1
            self.timing.samples += len(keys)
            yield keys, self._checked(outputs, given, task, keys)

    def _checked(
        self, outputs: Mapping[str, Array], returned: int, task: FieldsTask, keys: Sequence[str]
    ) -> dict[str, Array]:
        if outputs.keys() != self._fields.store.keys():
            returns, stores = (", ".join(map(repr, names)) or "nothing" for names in (outputs, self._fields.store))
            raise BuildError(f"the model returned {returns}; store names {stores}")
        for name, values in outputs.items():
            if values.shape[:1] != (returned,):
                raise BuildError(
                    f"the model returned {name!r} of shape {list(values.shape)} for a batch of {returned}; the first axis is "
                    "that of the samples"
                )
            if self._fields.not_finite == "raise" and values.dtype.kind in "fc":
                rows = np.isfinite(values[: len(keys)]).reshape(len(keys), -1)
                bad = [keys[number] for number in np.flatnonzero(~rows.all(axis=1)).tolist()]
                if bad:
                    raise BuildError(
                        f"the model returned NaN or infinity in {name!r} for {len(bad)} of {_named(task, keys)}, such as "
                        f"{bad[0]!r}; mend the model, or keep such values with not_finite='keep'"
                    )
        return {name: values[: len(keys)] for name, values in outputs.items()}

    # --- reading ahead ---------------------------------------------------------------------------------------------------

    def _batches(self, task: FieldsTask) -> Iterator[tuple[int, dict[str, Array]]]:
        """Yield the batches of a shard with the number of the first sample; at most `AHEAD` batches wait beyond the threads'."""
        stop = task.first + task.records
        starts = iter(range(task.first, stop, self._fields.batch_size))
        waiting: deque[tuple[int, Future[dict[str, Any]]]] = deque()
        access = self._opened(task.split, task.variant)
        try:
            while True:
                while len(waiting) < self._threads + AHEAD and (first := next(starts, None)) is not None:
                    numbers = range(first, min(first + self._fields.batch_size, stop))
                    waiting.append((first, self._pool.submit(access.batch, numbers)))
                if not waiting:
                    return
                first, future = waiting.popleft()
                yield first, {name: _stacked(name, values) for name, values in future.result().items()}
        finally:
            for _, future in waiting:
                future.cancel()

    def _opened(self, split: str, variant: int) -> RandomAccess:
        if (split, variant) not in self._access:
            names = [*dict.fromkeys([*self._fields.inputs, "key"])]
            self._access[split, variant] = self._data.random_access(split, fields=names, variant=variant)
        return self._access[split, variant]


def _stacked(name: str, values: Any) -> Array:
    """One array [B, ...] of a batch's values, also where samples of the dataset differ in size and those of this batch do not."""
    if isinstance(values, np.ndarray):
        return values
    if len({np.shape(value) for value in values}) > 1:
        raise BuildError(
            f"the samples of {name!r} differ in size, so that they are no array [B, ...]: give ModelFields batch_size=1, or "
            "store them in one size"
        )
    return np.stack(values)


def _padded(values: Array, rows: int) -> Array:
    """Repeat the last sample up to a number of rows."""
    if len(values) == rows:
        return values
    return np.concatenate([values, np.repeat(values[-1:], rows - len(values), axis=0)])


def _named(task: FieldsTask, keys: Sequence[str]) -> str:
    return f"{len(keys)} samples of {task}, {keys[0]!r} to {keys[-1]!r}"


# --- in another process ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class FieldsJob:
    """What a process that computes is told: the dataset, the fields by their file and name or as a pickle, their fingerprint."""

    path: str
    source: Path | bytes
    name: str
    fingerprint: str
    scratch: Path


def open_work(job: FieldsJob) -> Callable[[FieldsTask, Mark], Timing]:
    """Return the function that computes a task in a worker process. Raises RecipeError where the model is another one here."""
    known = load_fields(job.source) if isinstance(job.source, Path) else [pickle.loads(job.source)]
    fields: ModelFields = next(one for one in known if one.name == job.name)
    data = open_data(job.path)
    plan = FieldsPlan(data, fields, fields.describe())
    if plan.fingerprint != job.fingerprint:
        raise RecipeError(
            f"{job.source if isinstance(job.source, Path) else 'the model'} changed meanwhile; run it again"
        )
    return partial(_work, Computer(data, plan, job.scratch))


def _work(computer: Computer, task: FieldsTask, mark: Mark) -> Timing:
    before = Timing(**vars(computer.timing))
    computer.compute(task, mark)
    now = computer.timing
    return Timing(now.model_s - before.model_s, now.calls - before.calls, now.samples - before.samples)
