"""What a training has done and used up to a moment, the difference between two moments, and where both are written."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from tfprep.limits import CpuTimes
from tfprep.train.charts import SummaryWriter
from tfprep.train.monitor.pipeline import GAUGES, Pipeline, Stage, work_since
from tfprep.train.monitor.waits import Waits

MB = 1e6


@dataclass(frozen=True)
class Sample:
    """One moment of a training: totals since its beginning, and what is in use now. `since` makes the totals differences.

    Attributes:
        time: Unix time in seconds; of a difference the seconds between the two.
        step: Batches trained on so far.
        waits: The waits for input; None where they were not measured (before the first step, under a distribution strategy). In
            `InputMonitor.samples` and in `input.jsonl` they are those since the sample before.
        cpu: Processor time in seconds, of this process and of others.
        cpus: Processors that this process may use.
        rss: Resident memory of this process in bytes.
        available: Bytes of memory that may still be taken.
        gpus: Device to (bytes in use, peak), of what the backend allocated.
        stages: Buffers of a pipeline of tf.data, the consumer's side first.
        readers: Counters of tfprep's loader, by name.
        between_s: Seconds that the trainer has spent between steps since `fit` began, in callbacks and in Keras's loop; None
            outside of `fit`.
        validation_s: Seconds of validation since `fit` began.
        traces: How often the train step has been traced (TensorFlow), or any function compiled (JAX); 0 if not counted.
        compile_s: Seconds of tracing and compiling so far, where the backend counts them (JAX).
        pipeline: The transformations of the pipeline, as the program has written them.
    """

    time: float
    step: int
    waits: Waits | None
    cpu: CpuTimes
    cpus: int = 1
    rss: int = 0
    available: int = 0
    gpus: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    stages: tuple[Stage, ...] = ()
    readers: Mapping[str, float] = field(default_factory=dict)
    between_s: float | None = None
    validation_s: float = 0.0
    traces: int = 0
    compile_s: float = 0.0
    pipeline: Pipeline = field(default_factory=Pipeline)

    @property
    def wait_share(self) -> float | None:
        """The share of the training time that was spent waiting for input, from 0 to 1."""
        return self.waits.share if self.waits else None

    def since(self, before: Sample) -> Sample:
        """Return what has passed since an earlier moment in place of every total."""
        counted = {
            name: value if name in GAUGES else value - before.readers.get(name, 0.0)
            for name, value in self.readers.items()
        }
        return replace(
            self,
            time=max(self.time - before.time, 1e-9),
            waits=None if self.waits is None else self.waits.since(before.waits or Waits()),
            cpu=self.cpu.since(before.cpu),
            stages=work_since(self.stages, before.stages),
            readers=counted,
            between_s=None if self.between_s is None else self.between_s - (before.between_s or 0.0),
            validation_s=self.validation_s - before.validation_s,
            traces=max(0, self.traces - before.traces),
            compile_s=self.compile_s - before.compile_s,
        )

    def as_json(self) -> dict[str, Any]:
        """Return what is written to `input.jsonl`."""
        return {**asdict(replace(self, waits=None)), "waits": self.waits.as_json() if self.waits else {}}

    def as_scalars(self) -> dict[str, float]:
        """Return tag to value, for TensorBoard. Memory is in MB (10⁶ bytes)."""
        tags = {"share": "wait_share", "p50_ms": "wait_ms/p50", "p99_ms": "wait_ms/p99", "images_per_s": "images_per_s"}
        waits = self.waits.as_json() if self.waits else {}
        timed = {f"input/{tag}": waits[name] for name, tag in tags.items() if waits.get(name) is not None}
        memory = {"machine/rss_mb": self.rss / MB, "machine/available_mb": self.available / MB}
        elements = {f"buffers/elements/{stage.name}": float(stage.elements) for stage in self.stages}
        sizes = {f"buffers/mb/{stage.name}": stage.bytes / MB for stage in self.stages}
        readers = {f"reader/{name}": value for name, value in self.readers.items()}
        gpus = {f"gpu/{name}_mb": used / MB for name, (used, _) in self.gpus.items()}
        return {**timed, **memory, **elements, **sizes, **readers, **gpus}


class InputLog:
    """Appends to `<folder>/input.jsonl`, a line for each sample or warning; events for TensorBoard go to `<folder>/input/`."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._writer = SummaryWriter(str(folder / "input"))
        self._lines = (folder / "input.jsonl").open("a", encoding="utf-8")

    def sample(self, sample: Sample) -> None:
        """Write a sample."""
        self._write_line(sample.as_json())
        self._writer.scalars(sample.as_scalars(), sample.step)

    def warning(self, warned: Any) -> None:
        """Write an `InputWarning`."""
        self._write_line({"time": time.time(), "warning": asdict(warned)})

    def close(self) -> None:
        """Close both files."""
        self._writer.close()
        self._lines.close()

    def _write_line(self, line: dict[str, Any]) -> None:
        self._lines.write(json.dumps(line) + "\n")
        self._lines.flush()
