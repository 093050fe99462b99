"""When a sample is worth a warning, and what the warning says."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tfprep.train.monitor.causes import input_cause
from tfprep.train.monitor.samples import MB, Sample, swap_rates
from tfprep.train.monitor.stages import Stage
from tfprep.train.monitor.window import Waits


@dataclass(frozen=True)
class Thresholds:
    """When a sample is worth a warning.

    Attributes:
        wait_share: Share of the step spent waiting for input, from 0 to 1.
        fill_s: Seconds without a batch while a shuffle buffer fills.
        swap_mb_per_s: MB (10⁶ bytes) a second that the machine swaps in and out together.
    """

    wait_share: float = 0.1
    fill_s: float = 10.0
    swap_mb_per_s: float = 1.0


@dataclass(frozen=True)
class InputWarning:
    """A warning.

    Attributes:
        kind: "input" (the step waits), "shuffle" (a buffer fills) or "swap".
        text: What was seen, its cause, and what to do.
        cause: Of "input" the kind of the cause (see `tfprep.train.monitor.causes`); empty otherwise.
    """

    kind: str
    text: str
    cause: str = ""


def warnings_of(sample: Sample, before: Sample | None, limits: Thresholds) -> Iterator[InputWarning]:
    """Yield the warnings of a sample; `before` is the sample before it, None at the start, where buffers fill."""
    if before is None:
        return
    filling = _filling(sample, before, limits)
    if filling:
        yield filling
    elif sample.waits and sample.waits.batches and (sample.waits.share or 0.0) > limits.wait_share:
        yield _waiting(sample, sample.waits, before)
    if sum(swap_rates(sample, before)) > limits.swap_mb_per_s:
        yield InputWarning("swap", _swapping(sample, before))


def _filling(sample: Sample, before: Sample, limits: Thresholds) -> InputWarning | None:
    """A shuffle buffer that grew while the consumer waited."""
    if sample.waits is None or sample.waits.pending_s < limits.fill_s:
        return None
    elements_before = {stage.name: stage.elements for stage in before.stages}
    for stage in sample.stages:
        grown = stage.elements - elements_before.get(stage.name, 0)
        if "Shuffle" in stage.kind and grown > 0:
            return InputWarning("shuffle", _fills(stage, grown, sample.waits.pending_s, sample.time - before.time))
    return None


def _fills(stage: Stage, grown: int, pending_s: float, seconds: float) -> str:
    return (
        f"no batch for {pending_s:.0f} s: the shuffle buffer (stage {stage.name}) fills, {stage.elements:,} elements "
        f"({stage.bytes / MB:,.0f} MB) so far, {grown / seconds:,.0f} a second; no step runs before it is full, at the "
        f"start of every iterator. Shuffle file names or keys before decoding, shuffle less than the whole set, or read the "
        f"records in a random order (tfprep's loader has no shuffle buffer)"
    )


def _waiting(sample: Sample, waits: Waits, before: Sample) -> InputWarning:
    cause = input_cause(sample, before, waits.waited_s)
    text = (
        f"the train step waits for input {waits.share or 0:.0%} of its time (p50 {waits.quantile_ms(50):.1f} ms, p99 "
        f"{waits.quantile_ms(99):.1f} ms a batch, {waits.images_per_s or 0:,.0f} images/s): {cause.text}. {cause.advice}"
    )
    return InputWarning("input", text, cause.kind)


def _swapping(sample: Sample, before: Sample) -> str:
    largest = max(sample.stages, key=lambda stage: stage.bytes, default=None)
    buffer = f"; the largest buffer is {largest.name} with {largest.bytes / MB:,.0f} MB" if largest else ""
    return (
        f"the machine swaps, {sum(swap_rates(sample, before)):,.1f} MB/s; this process uses "
        f"{sample.machine.rss / MB:,.0f} MB and {sample.machine.available / MB:,.0f} MB are free{buffer}. Shrink "
        f"shuffle and prefetch buffers, shuffle before decoding, drop `cache()`, or run fewer workers: every step is slow "
        f"once memory comes from disk"
    )
