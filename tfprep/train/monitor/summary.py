"""A whole training in two lines: how fast it was, how much of it waited for input, and what limits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tfprep.train.monitor.causes import Cause, input_cause, step_cause
from tfprep.train.monitor.clock import Seconds
from tfprep.train.monitor.samples import Sample
from tfprep.train.monitor.window import Waits


@dataclass(frozen=True)
class TrainingSummary:
    """A training without its start.

    Attributes:
        seconds: Time of training in seconds.
        waited_s: Seconds of it that the step waited for input.
        batches: Batches in that time.
        images: Images in that time.
        each_s: The waits in seconds.
        cause: What limits.
    """

    seconds: float
    waited_s: float
    batches: int
    images: int
    each_s: Seconds
    cause: Cause

    def in_words(self) -> str:
        """Return two lines."""
        p50, p99 = (1e3 * float(np.percentile(self.each_s, percent)) for percent in (50, 99))
        share = _share(self.waited_s, self.seconds)
        advice = f". {self.cause.advice}" if self.cause.advice else ""
        return (
            f"InputMonitor: {self.batches:,} batches in {self.seconds:,.1f} s, {self.images / self.seconds:,.0f} images/s; "
            f"{share:.0%} of the time waiting for input (p50 {p50:.1f} ms, p99 {p99:.1f} ms a batch)\n"
            f"InputMonitor: {self.cause.text}{advice}"
        )


def summary(
    samples: Sequence[Sample], start: Waits | None, baseline: Sample | None, wait_share: float
) -> TrainingSummary | None:
    """Sum up samples.

    Args:
        samples: All samples of a training.
        start: The waits until the end of the first step, which traces and fills buffers; they are left out.
        baseline: A sample of that moment; None counts from the beginning.
        wait_share: The share of waiting from which on the input limits.

    Returns:
        The summary; None where fewer than two waits were measured.
    """
    measured = [sample for sample in samples if sample.waits is not None]
    windows = [sample.waits for sample in measured if sample.waits is not None]
    seconds = sum(waits.window_s for waits in windows) - (start.window_s if start else 0.0)
    waited_s = sum(waits.waited_s for waits in windows) - (start.waited_s if start else 0.0)
    each_s = np.concatenate([np.zeros(0), *[waits.each_s for waits in windows]])[start.each_s.size if start else 0 :]
    if seconds <= 0 or each_s.size < 2:
        return None
    share = _share(waited_s, seconds)
    return TrainingSummary(
        seconds=seconds,
        waited_s=waited_s,
        batches=sum(waits.batches for waits in windows) - (start.batches if start else 0),
        images=sum(waits.images for waits in windows) - (start.images if start else 0),
        each_s=each_s,
        cause=input_cause(measured[-1], baseline, waited_s)
        if share > wait_share
        else step_cause(share, _between_share(measured[-1], baseline, seconds)),
    )


def _share(waited_s: float, seconds: float) -> float:
    return min(1.0, max(0.0, waited_s / seconds))


def _between_share(last: Sample, baseline: Sample | None, seconds: float) -> float | None:
    if last.between_s is None:
        return None
    return (last.between_s - (baseline.between_s or 0.0 if baseline else 0.0)) / seconds
