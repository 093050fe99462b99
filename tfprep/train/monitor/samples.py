"""One look at the input of a training every few seconds: waits, buffers, memory and processors; and where it is written."""

from __future__ import annotations

import json
import time
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import psutil

from tfprep.limits import CpuTimes, available_memory, usable_cpus
from tfprep.train.backend import accelerator_memory
from tfprep.train.charts import SummaryWriter
from tfprep.train.monitor.pipeline import GAUGES, Pipeline, Stage, work_since
from tfprep.train.monitor.waits import Waits

MB = 1e6


@dataclass(frozen=True)
class MachineState:
    """Memory in bytes, times in seconds.

    Attributes:
        rss: Resident memory of this process.
        available: Memory that may still be taken.
        swap_used: Swap in use.
        swapped_in: Read from swap since the machine started.
        swapped_out: Written to swap since the machine started.
        gpus: Device to (bytes in use, peak), of what the backend allocated.
        cpus: Processors that this process may use.
        cpu_s: Processor time of this process and its children so far.
        cpu_wait_s: Time that threads of this process and its children were ready to run but had no processor; 0 where the system
            does not count it (Linux does).
        cpu_others_s: Time that other programs have taken from these processors since the machine started.
    """

    rss: int
    available: int
    swap_used: int
    swapped_in: int
    swapped_out: int
    gpus: dict[str, tuple[int, int]] = field(default_factory=dict)
    cpus: int = 1
    cpu_s: float = 0.0
    cpu_wait_s: float = 0.0
    cpu_others_s: float = 0.0


def look() -> MachineState:
    """Return the state of the machine now; takes some milliseconds."""
    swap, times = psutil.swap_memory(), CpuTimes.now()
    return MachineState(
        rss=psutil.Process().memory_info().rss,
        available=available_memory(),
        swap_used=swap.used,
        swapped_in=swap.sin,
        swapped_out=swap.sout,
        gpus=accelerator_memory(),
        cpus=usable_cpus(),
        cpu_s=times.own,
        cpu_wait_s=times.lacking,
        cpu_others_s=times.others,
    )


@dataclass(frozen=True)
class Sample:
    """The time between the last sample and this one.

    Attributes:
        time: Unix time in seconds.
        step: Batches trained on so far.
        waits: The waits for input; None where they were not measured (before the first step, under a distribution strategy).
        machine: Memory and processors.
        stages: Buffers of the pipeline, the consumer's side first; the reader of tfprep's loader last.
        readers: Counters of a reader outside tf.data, by name.
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
    machine: MachineState
    stages: tuple[Stage, ...] = ()
    readers: dict[str, float] = field(default_factory=dict)
    between_s: float | None = None
    validation_s: float = 0.0
    traces: int = 0
    compile_s: float = 0.0
    pipeline: Pipeline = field(default_factory=Pipeline)

    @property
    def wait_share(self) -> float | None:
        """The share of the training time that was spent waiting for input, from 0 to 1."""
        return self.waits.share if self.waits else None

    def since(self, before: Sample | None) -> Sample:
        """Return what has passed since an earlier sample in place of every total; `time` is then the seconds between the two.

        Without an earlier one, totals count from the start of the process; `time` and the counts of `machine` are 0.
        """
        of_machine = ("cpu_s", "cpu_wait_s", "cpu_others_s", "swapped_in", "swapped_out")
        if before is None:
            nothing: dict[str, Any] = dict.fromkeys(of_machine, 0)
            return replace(self, time=0.0, machine=replace(self.machine, **nothing))
        passed = {name: getattr(self.machine, name) - getattr(before.machine, name) for name in of_machine}
        counted = {
            name: value - (0.0 if name in GAUGES else before.readers.get(name, 0.0))
            for name, value in self.readers.items()
        }
        return replace(
            self,
            time=max(self.time - before.time, 1e-9),
            machine=replace(self.machine, **passed),
            stages=work_since(self.stages, before.stages),
            readers=counted,
            between_s=None if self.between_s is None else self.between_s - (before.between_s or 0.0),
            validation_s=self.validation_s - before.validation_s,
            traces=max(0, self.traces - before.traces),
            compile_s=self.compile_s - before.compile_s,
        )

    def as_json(self) -> dict[str, Any]:
        """Return what is written to `input.jsonl`."""
        return {**asdict(replace(self, waits=None)), "waits": self._waits()}

    def as_scalars(self) -> dict[str, float]:
        """Return tag to value, for TensorBoard. Memory is in MB (10⁶ bytes)."""
        tags = {"share": "wait_share", "p50_ms": "wait_ms/p50", "p99_ms": "wait_ms/p99", "images_per_s": "images_per_s"}
        waits = self._waits()
        timed = {f"input/{tag}": waits[name] for name, tag in tags.items() if waits.get(name) is not None}
        memory = {"machine/rss_mb": self.machine.rss / MB, "machine/available_mb": self.machine.available / MB}
        elements = {f"buffers/elements/{stage.name}": float(stage.elements) for stage in self.stages}
        sizes = {f"buffers/mb/{stage.name}": stage.bytes / MB for stage in self.stages}
        readers = {f"reader/{name}": value for name, value in self.readers.items()}
        gpus = {f"gpu/{name}_mb": used / MB for name, (used, _) in self.machine.gpus.items()}
        return {**timed, **memory, **elements, **sizes, **readers, **gpus}

    def _waits(self) -> dict[str, Any]:
        waits = self.waits
        if waits is None:
            return {}
        names = ("window_s", "batches", "share", "pending_s", "images_per_s")
        quantiles = {"p50_ms": waits.quantile_ms(50), "p99_ms": waits.quantile_ms(99)}
        return {**{name: getattr(waits, name) for name in names}, **quantiles}


# --- the log

LINES = "input.jsonl"
_LAYOUT = {
    "share of the step spent waiting for input": "input/wait_share",
    "wait for a batch (ms)": "input/wait_ms/.*",
    "images a second": "input/images_per_s",
    "elements in each buffer": "buffers/elements/.*",
    "MB in each buffer": "buffers/mb/.*",
    "resident memory of this process (MB)": "machine/rss_mb",
    "available memory of the machine (MB)": "machine/available_mb",
    "swap in and out (MB/s)": "machine/swap_.*",
}
"""Titles of charts, with the tags that they show."""
_READER = {"batches in the reader": "reader/batches_.*"}
_GPU = {"GPU memory (MB)": "gpu/.*"}


class InputLog:
    """Appends to `<folder>/input.jsonl`, a line for each sample or warning; events for TensorBoard go to `<folder>/input/`."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._writer = SummaryWriter(str(folder / "input"))
        self._has_layout = False
        self._lines = (folder / LINES).open("a", encoding="utf-8")

    def sample(self, sample: Sample, before: Sample | None) -> None:
        """Write a sample; `before` is the sample before it, for rates."""
        self._write_line(sample.as_json())
        spent = sample.since(before)
        swapped = {"in": spent.machine.swapped_in, "out": spent.machine.swapped_out}
        swap = {f"machine/swap_{way}_mb_per_s": size / MB / max(spent.time, 1e-9) for way, size in swapped.items()}
        if not self._has_layout:
            self._has_layout = True
            more = (_READER if sample.readers else {}) | (_GPU if sample.machine.gpus else {})
            self._writer.layout("Input pipeline", _LAYOUT | more)
        self._writer.scalars({**sample.as_scalars(), **swap}, sample.step)

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
