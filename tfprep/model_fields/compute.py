"""Computing the fields of one shard: batches are read and decoded ahead by threads, and the model runs in the calling thread."""

from __future__ import annotations

import secrets
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from tfprep.builder.shard import ShardFile
from tfprep.errors import BuildError, RecipeError, SampleError, TfprepError, summary_of
from tfprep.fields import Array, FieldSpec
from tfprep.limits import usable_cpus
from tfprep.load.random_access import RandomAccess
from tfprep.model_fields.plan import FieldsPlan, FieldsReceipt, FieldsTask, join_specs
from tfprep.recipe.model_fields import Compute
from tfprep.records import encode
from tfprep.storage.local import sync_folder
from tfprep.storage.store import open_store
from tfprep.storage.urls import is_remote

AHEAD = 2
"""Batches that wait decoded beyond those that threads are working on."""
MOST_THREADS = 16


class Computer:
    """Computes shards, one after another, with one model. Use it in one thread.

    While the model runs in that thread, others read and decode the batches that come next, also of the next shard, and one
    encodes and writes what it returned before.

    Attributes:
        model_s, calls: Seconds that the model took, and how often it was called.
    """

    def __init__(self, plan: FieldsPlan, scratch: Path) -> None:
        self._plan, self._fields, self._scratch = plan, plan.fields, scratch
        self._threads = min(usable_cpus(), MOST_THREADS)
        self._readers = ThreadPoolExecutor(self._threads, "tfprep-fields-read")
        self._writer = ThreadPoolExecutor(1, "tfprep-fields-write")
        self._access: dict[tuple[str, int], RandomAccess] = {}
        self.model_s, self.calls = 0.0, 0

    @cached_property
    def _compute(self) -> Compute:
        try:
            compute = self._fields.model()
        except TfprepError:
            raise
        except (Exception, SystemExit) as error:
            raise RecipeError(f"model() of {self._fields.name!r} failed: {summary_of(error)}") from error
        if not callable(compute):
            raise RecipeError(f"model() returns a function of a batch, not {compute!r}")
        if self._fields.file_digests() != self._plan.description["files"]:
            raise RecipeError(
                f"files of {self._fields.name!r} changed while the model was loaded, which may have read either; run it again"
            )
        return compute

    def close(self) -> None:
        """End the threads and close the files."""
        for pool in (self._readers, self._writer):
            pool.shutdown(cancel_futures=True)
        for access in self._access.values():
            access.close()

    def compute(self, tasks: Sequence[FieldsTask], mark: Callable[[int], None]) -> None:
        """Compute the fields of shards, and write the file of each and then its receipt; `mark` gets the number of samples done.

        Raises:
            BuildError: The model failed, or what it returned cannot be stored; the message names the samples.
        """
        _ = self._compute  # an error of the model itself comes before any file
        shards = {task: _ShardFile(self._plan, task, self._scratch) for task in tasks}
        writing: deque[Future[None]] = deque()
        try:
            done = 0
            for task, stop, values in self._batches(tasks):
                mark(done)
                keys, outputs = self._outputs(task, values)
                writing.append(self._writer.submit(shards[task].add, keys, outputs))
                if stop == task.first + task.records:
                    writing.append(self._writer.submit(shards[task].finish))
                while len(writing) > AHEAD:
                    writing.popleft().result()
                done += len(keys)
            for task in tasks:
                if not task.records:
                    writing.append(self._writer.submit(shards[task].finish))
            while writing:
                writing.popleft().result()
        except BaseException:
            for future in writing:
                future.cancel()
            for shard in shards.values():  # in the thread that writes them, after what it is doing
                self._writer.submit(shard.abort).result()
            raise
        mark(done)

    def _outputs(self, task: FieldsTask, values: Mapping[str, Array]) -> tuple[list[str], dict[str, Array]]:
        keys = [str(key) for key in values["key"]]
        batch = {name: values[name] for name in self._fields.inputs}
        began = time.monotonic()
        try:
            returned: object = self._compute(batch)
            outputs = None
            if isinstance(returned, Mapping):
                outputs = {name: np.asarray(value) for name, value in returned.items()}
        except (Exception, SystemExit) as error:
            shapes = ", ".join(f"{name} {values[name].dtype} {list(values[name].shape)}" for name in batch)
            raise BuildError(f"the model failed on {_named(task, keys)} ({shapes}): {summary_of(error)}") from error
        if outputs is None:
            names = ", ".join(f"{name!r}: array" for name in self._fields.store)
            raise BuildError(f"the function that model() returned gives {{{names}}}, not {type(returned).__name__}")
        self.model_s += time.monotonic() - began
        self.calls += 1
        return keys, self._checked(outputs, task, keys)

    def _checked(self, outputs: Mapping[str, Array], task: FieldsTask, keys: Sequence[str]) -> dict[str, Array]:
        if outputs.keys() != self._fields.store.keys():
            returns, stores = (", ".join(map(repr, names)) or "nothing" for names in (outputs, self._fields.store))
            raise BuildError(f"the model returned {returns}; store names {stores}")
        for name, values in outputs.items():
            if values.shape[:1] != (len(keys),):
                raise BuildError(
                    f"the model returned {name!r} of shape {list(values.shape)} for a batch of {len(keys)}; the first axis is "
                    "that of the samples"
                )
            if values.dtype.kind in "fc" or values.dtype.name == "bfloat16":
                rows = np.isfinite(values).reshape(len(keys), -1)
                bad = [keys[number] for number in np.flatnonzero(~rows.all(axis=1)).tolist()]
                if bad:
                    raise BuildError(
                        f"the model returned NaN or infinity in {name!r} for {len(bad)} of {_named(task, keys)}, such as "
                        f"{bad[0]!r}; let the function return a number for it, such as by numpy.nan_to_num"
                    )
        # Copies: the model may write its next outputs to the same memory, while these wait to be written.
        return {name: values.copy() for name, values in outputs.items()}

    # --- reading ahead ---------------------------------------------------------------------------------------------------

    def _batches(self, tasks: Sequence[FieldsTask]) -> Iterator[tuple[FieldsTask, int, dict[str, Array]]]:
        """Yield the batches of the shards, each with the number after its last sample; `AHEAD` wait beyond the threads'."""
        spans = (
            (task, first, min(first + self._fields.batch_size, task.first + task.records))
            for task in tasks
            for first in range(task.first, task.first + task.records, self._fields.batch_size)
        )
        waiting: deque[tuple[FieldsTask, int, Future[dict[str, Any]]]] = deque()
        try:
            while True:
                while len(waiting) < self._threads + AHEAD and (span := next(spans, None)) is not None:
                    task, first, stop = span
                    if (task.split, task.variant) not in self._access:
                        names = [*dict.fromkeys([*self._fields.inputs, "key"])]
                        opened = self._plan.data.random_access(task.split, fields=names, variant=task.variant)
                        self._access[task.split, task.variant] = opened
                    access = self._access[task.split, task.variant]
                    waiting.append((task, stop, self._readers.submit(access.batch, range(first, stop))))
                if not waiting:
                    return
                task, stop, future = waiting.popleft()
                yield task, stop, {name: _stacked(name, values) for name, values in future.result().items()}
        finally:
            for *_, future in waiting:
                future.cancel()


class _ShardFile:
    """The file of one shard, which appears whole under its name, and then its receipt."""

    def __init__(self, plan: FieldsPlan, task: FieldsTask, scratch: Path) -> None:
        self._plan, self._fields, self._task = plan, plan.fields, task
        self._path = (scratch if is_remote(plan.data.path) else plan.path) / task.name
        self._specs: dict[str, FieldSpec] = {}
        self._rows: list[list[int]] = []
        self._opened: ShardFile | None = None

    def _file(self) -> ShardFile:
        if self._opened is None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._opened = ShardFile(self._path, secrets.token_hex(6))
        return self._opened

    def add(self, keys: Sequence[str], outputs: Mapping[str, Array]) -> None:
        """Write the records of a batch."""
        store = self._fields.store
        for row, key in enumerate(keys):
            features: dict[str, Any] = {"key": key.encode("utf-8", "surrogateescape")}
            for name, codec in store.items():
                value = outputs[name][row]
                try:
                    features |= {f"{name}{suffix}": part for suffix, part in codec.encode(value).items()}
                    spec = codec.spec(self._fields.kind(name), value)
                except SampleError as error:
                    raise BuildError(f"{name!r} of sample {key!r} cannot be stored: {error.reason}") from error
                join_specs(self._specs, {name: spec}, f"sample {key!r}")
            payload, spans = encode(features)
            place, crc = self._file().write(payload)
            self._rows.append([*place, crc, *(number for name in store for number in spans[name])])

    def finish(self) -> None:
        """Complete the file, its `.idx` and its receipt."""
        task, file = self._task, self._file()
        if len(self._rows) != task.records:  # a batch before failed, and this was waiting already
            raise BuildError(f"{task}: {len(self._rows)} of {task.records} records were written")
        file.commit()
        sync_folder(self._path.parent)  # before its receipt, which is in another folder
        file.close()
        if is_remote(self._plan.data.path):
            store = open_store(self._plan.path)
            for path in (self._path.with_name(f"{self._path.name}.idx"), self._path):
                store.write(path.name, path)
                path.unlink()
        plan = self._plan
        receipt = FieldsReceipt(plan.fingerprint, task.of, plan.folder, file.info(), self._specs, self._rows)
        self._plan.write_receipt(task, receipt)

    def abort(self) -> None:
        """Remove what is not complete."""
        if self._opened is not None:
            self._opened.close()


def _stacked(name: str, values: Any) -> Array:
    """One array [B, ...] of a batch's values, also where samples of the dataset differ in size and those of this batch do not."""
    if isinstance(values, np.ndarray):
        return values
    if len({np.shape(value) for value in values}) > 1:
        raise BuildError(
            f"the samples of {name!r} differ in size, so that they are not an array [B, ...]: give ModelFields batch_size=1, or "
            "store them in one size"
        )
    return np.stack(values)


def _named(task: FieldsTask, keys: Sequence[str]) -> str:
    return f"{len(keys)} samples of {task}, {keys[0]!r} to {keys[-1]!r}"
