"""One look at the input of a training, every few seconds."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace
from typing import Any

from tfprep.train.monitor.machine import MachineState
from tfprep.train.monitor.stages import Stage
from tfprep.train.monitor.window import Waits

MB = 1e6


@dataclass(frozen=True)
class Sample:
    """What happened between the last sample and this one.

    Attributes:
        time: Unix time in seconds.
        step: Batches trained on so far.
        waits: The waits for input; None where they were not measured (before the first step, under a distribution strategy).
        machine: Memory and processors.
        stages: Buffers of the pipeline, the consumer's side first; the reader of tfprep's loader last.
        readers: Counters of a reader outside tf.data, by name.
        between_s: Seconds that the trainer has spent between steps since `fit` began, in callbacks and in Keras's loop; None
            outside of `fit`.
    """

    time: float
    step: int
    waits: Waits | None
    machine: MachineState
    stages: tuple[Stage, ...] = ()
    readers: dict[str, float] = field(default_factory=dict)
    between_s: float | None = None

    @property
    def wait_share(self) -> float | None:
        """The share of the training time that was spent waiting for input, from 0 to 1."""
        return self.waits.share if self.waits else None

    def as_json(self) -> dict[str, Any]:
        """Return what is written to `input.jsonl`."""
        waits = {} if self.waits is None else _numbers(self.waits)
        rest = asdict(replace(self, waits=None))
        return {**rest, "waits": waits}

    def as_scalars(self) -> dict[str, float]:
        """Return tag to value, for TensorBoard. Memory is in MB (10⁶ bytes)."""
        waits = {} if self.waits is None else _numbers(self.waits)
        tags = {"share": "input/wait_share", "p50_ms": "input/wait_ms/p50", "p99_ms": "input/wait_ms/p99"}
        tags["images_per_s"] = "input/images_per_s"
        timed = {tags[name]: value for name, value in waits.items() if name in tags and value is not None}
        memory = {"machine/rss_mb": self.machine.rss / MB, "machine/available_mb": self.machine.available / MB}
        elements = {f"buffers/elements/{stage.name}": float(stage.elements) for stage in self.stages}
        sizes = {f"buffers/mb/{stage.name}": stage.bytes / MB for stage in self.stages}
        readers = {f"reader/{name}": value for name, value in self.readers.items()}
        gpus = {f"gpu/{name}_mb": used / MB for name, (used, _) in self.machine.gpus.items()}
        return {**timed, **memory, **elements, **sizes, **readers, **gpus}


def _numbers(waits: Waits) -> dict[str, float | None]:
    return {
        "window_s": waits.window_s,
        "batches": waits.batches,
        "share": waits.share,
        "p50_ms": waits.quantile_ms(50),
        "p99_ms": waits.quantile_ms(99),
        "pending_s": waits.pending_s,
        "images_per_s": waits.images_per_s,
    }


def swap_rates(sample: Sample, before: Sample) -> tuple[float, float]:
    """Return the MB a second that were read from swap and written to it between two samples, on the whole machine."""
    seconds = MB * max(sample.time - before.time, 1e-9)
    now, then = sample.machine, before.machine
    return (now.swapped_in - then.swapped_in) / seconds, (now.swapped_out - then.swapped_out) / seconds
