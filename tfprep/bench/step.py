"""The loader compared with a training step: the share of the time for which the accelerator would wait.

The step is a sleep, which takes time but no CPU, like a step on an accelerator. The wait for each batch is measured. The
prediction uses two figures that are measured separately: the loader needs `batch_s` for a batch, and the hand-over of a batch
that is ready takes `handover_s`. The loader and the step run in parallel, and the hand-over happens between steps. The time from
step to step is therefore the larger of `batch_s` and `step_s + handover_s`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np

from tfprep.bench.rounds import Candidate, Meter, Used, settle

SETTLE_STEPS = 5
"""Steps that do not count, during which the loader prefetches batches."""
TOLERATED = 0.05
"""The share of the time that the accelerator may wait for input while the step still counts as what limits."""


@dataclass(frozen=True)
class ReadyBatches:
    """The batches that were ready in each stage, `seconds` after the first counted step."""

    seconds: float
    ready: Mapping[str, float]


@dataclass(frozen=True)
class StepComparison:
    """The wait of every counted step in seconds, and the predicted share of the time that is spent waiting.

    The step limits where no more than the share `tolerated` of the time is spent waiting.
    """

    step_s: float
    batch_s: float
    predicted: float
    waits: tuple[float, ...]
    used: Used
    moments: tuple[ReadyBatches, ...]
    handover_s: float = 0.0
    tolerated: float = TOLERATED

    @property
    def share(self) -> float:
        return sum(self.waits) / self.used.seconds

    @property
    def p50_s(self) -> float:
        return float(np.percentile(self.waits, 50))

    @property
    def p99_s(self) -> float:
        return float(np.percentile(self.waits, 99))

    @property
    def limit(self) -> str:
        """The cause of the accelerator's waits.

        - "step": nothing, or no longer than is tolerated.
        - "loader": the rate of the loader is too low.
        - "prefetch": the rate suffices but is uneven, and no batch was ready.
        - "handover": batches were ready but late: the step is short compared with the hand-over of a batch, or something else
          keeps the processor busy.
        """
        if self.share <= self.tolerated:
            return "step"
        if predicted_share(self.step_s, self.batch_s) > min(self.tolerated, self.share / 2):
            return "loader"
        return "prefetch" if self.empty_share > 0.5 else "handover"

    @property
    def empty_share(self) -> float:
        """The share of the waiting that began with no batch ready; 1 if unknown."""
        empty = [moment.ready.get("ready", 0.0) == 0 for moment in self.moments]
        waited = sum(self.waits)
        if len(empty) != len(self.waits) or not waited:
            return 1.0
        return sum(wait for wait, nothing in zip(self.waits, empty, strict=True) if nothing) / waited

    @property
    def needed_prefetch(self) -> int:
        """The prefetched batches that would have covered the longest wait: the current number, and one for each step in it."""
        prefetch = self.moments[0].ready.get("prefetch", 0.0) if self.moments else 0.0
        return int(prefetch + np.ceil(max(self.waits) / self.step_s))

    def words(self) -> str:
        spare = self.step_s / self.batch_s
        if self.limit == "step" and spare < 1:
            return (
                f"the step limits, as it should: the loader alone was measured {1 / spare:.1f} times as slow as the step, but "
                "batches were ready in time"
            )
        if self.limit == "step":
            return f"the step limits, as it should: the loader could feed a step {spare:.1f} times as fast"
        if self.limit == "prefetch":
            return (
                f"too few prefetched batches: on average the loader is {spare:.1f} times as fast as the step, but it is uneven; "
                f"prefetch={self.needed_prefetch} would cover its longest pause"
            )
        if self.limit == "loader":
            return (
                f"the loader limits: a batch takes {1000 * self.batch_s:.1f} ms, the step {1000 * self.step_s:.1f} ms"
            )
        late = "the processor is busy with the step itself or with another program"
        if predicted_share(self.step_s, self.batch_s, self.handover_s) > min(self.tolerated, self.share / 2):
            late = f"the hand-over of a batch takes {1000 * self.handover_s:.1f} ms; larger batches need fewer of them"
        return f"batches are ready but late: the loader is {spare:.1f} times as fast as the step, but {late}"

    def as_json(self) -> dict[str, Any]:
        return {
            "step_ms": 1000 * self.step_s,
            "batch_ms": 1000 * self.batch_s,
            "handover_ms": 1000 * self.handover_s,
            "waiting_predicted": self.predicted,
            "waiting_measured": self.share,
            "wait_ms_p50": 1000 * self.p50_s,
            "wait_ms_p99": 1000 * self.p99_s,
            "waiting_tolerated": self.tolerated,
            "steps": len(self.waits),
            "limit": self.limit,
            "verdict": self.words(),
            "needed_prefetch": self.needed_prefetch,
            "moments": [{"seconds": moment.seconds, **moment.ready} for moment in self.moments],
        }


def predicted_share(step_s: float, batch_s: float, handover_s: float = 0.0) -> float:
    """The share of the time for which a step of `step_s` waits for a loader that yields a batch every `batch_s`."""
    return 1 - step_s / max(step_s + handover_s, batch_s)


def handover(candidate: Candidate, batch_s: float, seconds: float = 1.5) -> float:
    """Seconds to hand over a batch that is ready: a median over steps that leave the loader time for two batches.

    Returns 0 if no batch was ever ready.
    """
    pause = min(max(2 * batch_s, 0.002), 0.2)
    iterator = candidate.open()
    ready: Callable[[], Mapping[str, float]] = getattr(iterator, "ready", lambda: {"ready": 1.0})
    waits = []
    try:
        for number in range(max(10, min(50, int(seconds / pause)))):
            time.sleep(pause)
            waiting = ready()["ready"] > 0
            asked = time.perf_counter()
            next(iterator)
            if number >= SETTLE_STEPS and waiting:
                waits.append(time.perf_counter() - asked)
    finally:
        _close(iterator)
    return float(np.median(waits)) if waits else 0.0


def compare_with_step(
    candidate: Candidate, step_s: float, batch_s: float, *, seconds: float = 5.0, tolerated: float = TOLERATED
) -> StepComparison:
    """Run a training loop whose step sleeps.

    Args:
        candidate: The loader. An iterator with a method `ready()` reports the batches that are ready.
        step_s: Length of the step, in seconds.
        batch_s: The loader's time for a batch, in seconds, measured before.
        seconds: Length of the loop.
        tolerated: The share of waiting (0 to 1) up to which the step is what limits.
    """
    handover_s = handover(candidate, batch_s)
    iterator = candidate.open()
    ready: Callable[[], Mapping[str, float]] = getattr(iterator, "ready", dict)
    waits: list[float] = []
    moments: list[ReadyBatches] = []
    try:
        next(iterator)
        settle(iterator)
        for _ in islice(iterator, SETTLE_STEPS):
            time.sleep(step_s)
        with Meter() as meter:
            started = time.perf_counter()
            while time.perf_counter() - started < seconds or len(waits) < 10:
                asked = time.perf_counter()
                moments.append(ReadyBatches(asked - started, dict(ready())))
                next(iterator)
                waits.append(time.perf_counter() - asked)
                time.sleep(step_s)
    finally:
        _close(iterator)
    predicted = predicted_share(step_s, batch_s, handover_s)
    return StepComparison(step_s, batch_s, predicted, tuple(waits), meter.used, tuple(moments), handover_s, tolerated)


def _close(iterator: Iterator[Any]) -> None:
    close = getattr(iterator, "close", None)
    if close is not None:
        close()
