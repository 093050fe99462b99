"""One look at the input of a training, every few seconds: what it holds, and what it says in words."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from tfprep.train.machine import Machine
from tfprep.train.stages import Stage, slowest
from tfprep.train.window import Waits

_MB = 1e6


@dataclass(frozen=True)
class Sample:
    """What happened between the sample before and `time` (Unix, seconds); `step` counts the batches trained on.

    `waits` is None where the wait for input was not measured (before the first step, under a distribution strategy).
    """

    time: float
    step: int
    waits: Waits | None
    machine: Machine
    stages: tuple[Stage, ...] = ()
    readers: dict[str, float] = field(default_factory=dict)

    @property
    def wait_share(self) -> float | None:
        """The share of the training time that was spent waiting for input."""
        return self.waits.share if self.waits else None

    def as_json(self) -> dict[str, Any]:
        waits = {} if self.waits is None else _numbers(self.waits)
        rest = asdict(replace(self, waits=None))
        return {**rest, "waits": waits}

    def as_scalars(self) -> dict[str, float]:
        """Tag to value, for TensorBoard. Memory in MB (10⁶ bytes)."""
        waits = {} if self.waits is None else _numbers(self.waits)
        tags = {"share": "input/wait_share", "p50_ms": "input/wait_ms/p50", "p99_ms": "input/wait_ms/p99"}
        tags["images_per_s"] = "input/images_per_s"
        timed = {tags[name]: value for name, value in waits.items() if name in tags and value is not None}
        memory = {"machine/rss_mb": self.machine.rss / _MB, "machine/available_mb": self.machine.available / _MB}
        buffers = {f"buffers/elements/{stage.name}": float(stage.elements) for stage in self.stages}
        held = {f"buffers/mb/{stage.name}": stage.bytes / _MB for stage in self.stages}
        readers = {f"reader/{name}": value for name, value in self.readers.items()}
        gpus = {f"gpu/{name}_mb": used / _MB for name, (used, _) in self.machine.gpus.items()}
        return {**timed, **memory, **buffers, **held, **readers, **gpus}


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


@dataclass(frozen=True)
class Thresholds:
    """When a sample is worth a warning."""

    wait_share: float = 0.1
    """Share of the step spent waiting for input."""
    fill_s: float = 10.0
    """Seconds without a batch while a shuffle buffer fills."""
    swap_mb_per_s: float = 1.0
    """MB a second that the machine swaps in and out together."""


@dataclass(frozen=True)
class Warned:
    """A warning: `kind` is "input", "shuffle" or "swap"."""

    kind: str
    text: str


def warnings_of(sample: Sample, before: Sample | None, limits: Thresholds) -> Iterator[Warned]:
    """What `sample` should tell the user; `before` is the sample before it."""
    if before is None:  # the start: buffers fill, functions are traced
        return
    filling = _filling(sample, before, limits)
    if filling:
        yield filling
    elif sample.waits and sample.waits.batches and (sample.waits.share or 0.0) > limits.wait_share:
        yield Warned("input", _waits(sample, sample.waits, before))
    if sum(swapped(sample, before)) > limits.swap_mb_per_s:
        yield Warned("swap", _swaps(sample, before))


def swapped(sample: Sample, before: Sample) -> tuple[float, float]:
    """MB a second that came in from swap and went out to it between two samples, on the whole machine."""
    seconds = _MB * max(sample.time - before.time, 1e-9)
    now, then = sample.machine, before.machine
    return (now.swapped_in - then.swapped_in) / seconds, (now.swapped_out - then.swapped_out) / seconds


def _filling(sample: Sample, before: Sample, limits: Thresholds) -> Warned | None:
    """A shuffle buffer that grew while the consumer waited."""
    if sample.waits is None or sample.waits.pending_s < limits.fill_s:
        return None
    had = {stage.name: stage.elements for stage in before.stages}
    for stage in sample.stages:
        grown = stage.elements - had.get(stage.name, 0)
        if "Shuffle" in stage.kind and grown > 0:
            return Warned("shuffle", _fills(stage, grown, sample.waits.pending_s, sample.time - before.time))
    return None


def _fills(stage: Stage, grown: int, pending_s: float, seconds: float) -> str:
    return (
        f"no batch for {pending_s:.0f} s: the shuffle buffer (stage {stage.name}) fills, {stage.elements:,} elements "
        f"({stage.bytes / _MB:,.0f} MB) so far, {grown / seconds:,.0f} a second; nothing is trained before it is full, at the "
        f"start of every iterator. Shuffle file names or keys before decoding, shuffle less than the whole set, or read the "
        f"records in a random order (tfprep's loader has no shuffle buffer)"
    )


def _waits(sample: Sample, waits: Waits, before: Sample) -> str:
    worst = slowest(sample.stages, before.stages)
    where = f" Most time goes to stage {_worst(worst)}." if worst else ""
    return (
        f"the train step waits for input {waits.share or 0:.0%} of its time (p50 {waits.quantile_ms(50):.1f} ms, p99 "
        f"{waits.quantile_ms(99):.1f} ms a batch, {waits.images_per_s or 0:,.0f} images/s).{where} A faster accelerator would "
        f"only wait longer: compute ahead what is the same in each epoch (tfprep build), give `map` "
        f"num_parallel_calls=tf.data.AUTOTUNE, end the pipeline with prefetch"
    )


def _worst(stage: Stage) -> str:
    threads = f" on {stage.parallelism} threads" if stage.parallelism > 1 else ""
    return f"{stage.name} ({stage.ms_per_element:.2f} ms an element{threads})"


def _swaps(sample: Sample, before: Sample) -> str:
    largest = max(sample.stages, key=lambda stage: stage.bytes, default=None)
    holds = f"; the largest buffer is {largest.name} with {largest.bytes / _MB:,.0f} MB" if largest else ""
    return (
        f"the machine swaps, {sum(swapped(sample, before)):,.1f} MB/s; this process holds {sample.machine.rss / _MB:,.0f} MB and "
        f"{sample.machine.available / _MB:,.0f} MB are free{holds}. Shrink shuffle and prefetch buffers, shuffle before "
        f"decoding, drop `cache()`, or run fewer workers: every step is slow once memory comes from disk"
    )
