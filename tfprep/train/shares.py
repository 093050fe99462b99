"""Where the time of profiled train steps went: accelerator, input, CPU or Python."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from tfprep.train.trace import TraceEvent

Interval: TypeAlias = tuple[int, int]
"""(from, to) in nanoseconds."""

STEP = "train_step"
"""The name that `profile` gives to each step."""


@dataclass(frozen=True)
class Shares:
    """Shares of the time of some train steps; they sum to 1.

    Attributes:
        steps: Number of steps.
        total_us: Time of all steps in microseconds.
        device: The accelerator computed.
        input: The step waited for input while the accelerator was idle.
        host: TensorFlow's ops ran on the CPU.
        other: The rest: Python and dispatch.
    """

    steps: int
    total_us: float
    device: float
    input: float
    host: float
    other: float

    def in_words(self) -> str:
        """Return one sentence with the shares and one with advice."""
        step_ms = self.total_us / max(1, self.steps) / 1e3
        shares = [
            f"{self.device:.0%} computing on the accelerator" if self.device else "no accelerator in use",
            f"{self.input:.0%} waiting for input",
            f"{self.host:.0%} ops on the CPU",
            f"{self.other:.0%} Python and dispatch",
        ]
        return f"{self.steps} steps of {step_ms:.1f} ms: {', '.join(shares)}; {self._advice()}"

    def _advice(self) -> str:
        shares = {"device": self.device, "input": self.input, "host": self.host, "other": self.other}
        return {
            "device": "the accelerator is what limits: mixed precision or a smaller model would help, a faster input would not",
            "input": "the input is what limits: build ahead, or read and decode in more threads",
            "host": "the CPU's ops are what limits: without an accelerator that is the model itself",
            "other": "Python is what limits: raise steps_per_execution, and keep work out of callbacks",
        }[max(shares, key=lambda name: shares[name])]


def shares(events: list[TraceEvent]) -> Shares:
    """Sum up where the time of the steps went.

    Args:
        events: The events of a profile whose steps are named `STEP`.

    Returns:
        The shares. Where two things went on at once, the one that `Shares` lists first counts.
    """
    steps = [_interval(event) for event in events if event.name == STEP]
    device = [_interval(event) for event in events if event.process.startswith("/device:") and _is_work(event)]
    waiting = [_interval(event) for event in events if event.name.startswith("IteratorGetNext")]
    host = [_interval(e) for e in events if e.thread.startswith("tf_Compute") or e.name.startswith("PyFunc")]
    total = _length(_union(steps))
    if not total:
        return Shares(0, 0.0, 0.0, 0.0, 0.0, 0.0)
    with_device = _length(_clipped(device, steps)) / total
    with_input = _length(_clipped([*device, *waiting], steps)) / total
    with_host = _length(_clipped([*device, *waiting, *host], steps)) / total
    return Shares(
        steps=len(steps),
        total_us=total / 1e3,
        device=with_device,
        input=with_input - with_device,
        host=with_host - with_input,
        other=1 - with_host,
    )


def _interval(event: TraceEvent) -> Interval:
    return event.start, event.stop


def _is_work(event: TraceEvent) -> bool:
    # Kernels and copies are on threads named after streams; the other threads of a device sum them up.
    return event.thread.startswith("Stream") or "XLA Ops" in event.thread


def _union(intervals: list[Interval]) -> list[Interval]:
    merged: list[Interval] = []
    for start, end in sorted(intervals):
        if merged and start <= merged[-1][1]:
            merged[-1] = merged[-1][0], max(end, merged[-1][1])
        else:
            merged.append((start, end))
    return merged


def _clipped(intervals: list[Interval], windows: list[Interval]) -> list[Interval]:
    """The union of `intervals` inside the union of `windows`."""
    inside = []
    cut = _union(windows)
    for start, end in _union(intervals):
        inside += [(max(start, low), min(end, high)) for low, high in cut if start < high and low < end]
    return inside


def _length(intervals: list[Interval]) -> int:
    return sum(end - start for start, end in intervals)
