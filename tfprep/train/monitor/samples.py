"""What a training has done and used up to a moment, the difference between two moments, and the files that have all of them."""

from __future__ import annotations

import json
import os
import socket
import struct
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from tfprep.limits import CpuTimes
from tfprep.records import frame
from tfprep.records.example import varint
from tfprep.train.monitor.pipeline import GAUGES, Pipeline, Stage
from tfprep.train.monitor.waits import Waits


@dataclass(frozen=True)
class Sample:
    """One moment of a training: totals since its beginning, and what is in use now. `since` makes the totals differences.

    Attributes:
        time: Unix time in seconds; of a difference the seconds between the two.
        step: Batches trained on so far.
        waits: The waits for input; empty where they are not measured: before the first step, and under a distribution strategy.
            In `InputMonitor.samples` and in `input.jsonl` they are those since the sample before.
        cpu: Processor time in seconds, of this process and of others.
        cpus: Processors that this process may use.
        rss: Resident memory of this process in bytes.
        available: Bytes of memory that may still be taken.
        gpus: Device to (bytes in use, peak), of what the backend allocated.
        stages: Buffers of a pipeline of tf.data, the consumer's side first.
        readers: Counters of tfprep's loader, by name.
        between_s: Seconds that the trainer has spent between steps since `fit` began, in callbacks and in Keras's loop.
        validation_s: Seconds of validation since `fit` began.
        traces: How often the train step has been traced (TensorFlow), or any function compiled (JAX); 0 if not counted.
        compile_s: Seconds of tracing and compiling so far, where the backend counts them (JAX).
        pipeline: The transformations of the pipeline, as the program has written them.
    """

    time: float
    step: int
    waits: Waits
    cpu: CpuTimes
    cpus: int = 1
    rss: int = 0
    available: int = 0
    gpus: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    stages: tuple[Stage, ...] = ()
    readers: Mapping[str, float] = field(default_factory=dict)
    between_s: float = 0.0
    validation_s: float = 0.0
    traces: int = 0
    compile_s: float = 0.0
    pipeline: Pipeline = field(default_factory=Pipeline)

    @property
    def wait_share(self) -> float | None:
        """The share of the training time that was spent waiting for input, from 0 to 1; None if no such time passed."""
        return self.waits.share

    def since(self, before: Sample) -> Sample:
        """Return what has passed since an earlier moment in place of every total."""
        stages = {stage.name: stage for stage in before.stages}
        counted = {
            name: value if name in GAUGES else value - before.readers.get(name, 0.0)
            for name, value in self.readers.items()
        }
        return replace(
            self,
            time=max(self.time - before.time, 1e-9),
            waits=self.waits.since(before.waits),
            cpu=self.cpu.since(before.cpu),
            stages=tuple(stage.with_work(stages.get(stage.name), -1) for stage in self.stages),
            readers=counted,
            between_s=self.between_s - before.between_s,
            validation_s=self.validation_s - before.validation_s,
            traces=max(0, self.traces - before.traces),
            compile_s=self.compile_s - before.compile_s,
        )

    def as_json(self) -> dict[str, Any]:
        """Return what is written to `input.jsonl`."""
        return {**asdict(replace(self, waits=Waits())), "waits": self.waits.as_json()}

    def as_scalars(self) -> dict[str, float]:
        """Return tag to value, for TensorBoard. Memory is in MB (10⁶ bytes)."""
        tags = {"share": "wait_share", "p50_ms": "wait_ms/p50", "p99_ms": "wait_ms/p99", "images_per_s": "images_per_s"}
        timed = {f"input/{tags[name]}": value for name, value in self.waits.as_json().items() if name in tags}
        memory = {"machine/rss_mb": self.rss / 1e6, "machine/available_mb": self.available / 1e6}
        elements = {f"buffers/elements/{stage.name}": float(stage.elements) for stage in self.stages}
        sizes = {f"buffers/mb/{stage.name}": stage.bytes / 1e6 for stage in self.stages}
        readers = {f"reader/{name}": value for name, value in self.readers.items()}
        gpus = {f"gpu/{name}_mb": used / 1e6 for name, (used, _) in self.gpus.items()}
        return {**timed, **memory, **elements, **sizes, **readers, **gpus}


# --- where they are written


class InputLog:
    """Appends to `<folder>/input.jsonl`, a line for each sample or warning; events for TensorBoard go to `<folder>/input/`.

    TensorBoard's file is a TFRecord file of `tensorflow.Event` messages, written without TensorFlow
    (https://github.com/tensorflow/tensorflow/blob/master/tensorflow/core/util/event.proto).
    """

    def __init__(self, folder: Path) -> None:
        (folder / "input").mkdir(parents=True, exist_ok=True)
        # TensorBoard reads the files of a folder in the order of their names, and so of their times.
        name = f"events.out.tfevents.{time.time():017.6f}.{socket.gethostname()}.{os.getpid()}"
        self._events = (folder / "input" / name).open("wb")
        self._lines = (folder / "input.jsonl").open("a", encoding="utf-8")
        self._write_event(_bytes(3, b"brain.Event:2"))

    def sample(self, sample: Sample) -> None:
        """Write a sample."""
        self._write_line(sample.as_json())
        scalars = sample.as_scalars().items()
        values = (_bytes(1, tag.encode()) + varint(2 << 3 | 5) + struct.pack("<f", value) for tag, value in scalars)
        summary = b"".join(_bytes(1, value) for value in values)
        self._write_event(varint(2 << 3) + varint(sample.step) + _bytes(5, summary))

    def warning(self, cause: str, text: str) -> None:
        """Write a warning."""
        self._write_line({"time": time.time(), "warning": {"cause": cause, "text": text}})

    def close(self) -> None:
        """Close both files."""
        self._events.close()
        self._lines.close()

    def _write_line(self, line: dict[str, Any]) -> None:
        self._lines.write(json.dumps(line) + "\n")
        self._lines.flush()

    def _write_event(self, content: bytes) -> None:
        self._events.write(frame(varint(1 << 3 | 1) + struct.pack("<d", time.time()) + content))
        self._events.flush()


# --- protocol buffers: a field has its number and its wire type, 1 for a double, 2 for bytes, 5 for a float


def _bytes(number: int, content: bytes) -> bytes:
    return varint(number << 3 | 2) + varint(len(content)) + content
