"""The loader against a training step: for how much of the time would the accelerator wait?

The step is a sleep: it takes time and no CPU, as a step on an accelerator does. What is measured is the wait for each
batch; what is predicted comes from two figures that are measured apart from it: the loader needs `batch_s` for a batch, and
to hand over one that is ready takes `handover_s`. Loader and step run beside each other, the hand-over is between the steps:
from step to step it takes the longer of `batch_s` and `step_s + handover_s`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np

from tfprep.bench.measure import Candidate, settle
from tfprep.bench.usage import Meter, Used

SETTLE_STEPS = 5
"""Steps that do not count: the loader fills its batches ahead meanwhile."""
UNEXPLAINED = 0.05
"""So much more waiting than the rate explains has another cause."""


@dataclass(frozen=True)
class Moment:
    """How many batches were ready at each place, this many seconds after the first counted step."""

    seconds: float
    ready: Mapping[str, float]


@dataclass(frozen=True)
class Against:
    """Waits (seconds) of every counted step, and the share of all the time that they are.

    `predicted` is that share by the loader's rate and its hand-over; `needed_ahead` how many batches would have covered the
    longest wait.
    """

    step_s: float
    batch_s: float
    predicted: float
    waits: tuple[float, ...]
    used: Used
    moments: tuple[Moment, ...]
    handover_s: float = 0.0

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
        """What the accelerator waits for.

        - "step": nothing, or hardly; - "loader": its rate; - "ahead": its unevenness, nothing was ready;
        - "handover": batches were ready, and yet they came late: the step is short beside what handing over a batch takes, or
          something else keeps the processor busy.
        """
        by_rate = predicted_share(self.step_s, self.batch_s)
        if by_rate > UNEXPLAINED:
            return "loader"
        if self.share <= by_rate + UNEXPLAINED:
            return "step"
        return "ahead" if self.empty_share > 0.5 else "handover"

    @property
    def empty_share(self) -> float:
        """The share of the waiting that began with no batch ready; 1 where that is not known."""
        empty = [moment.ready.get("ready", 0.0) == 0 for moment in self.moments]
        waited = sum(self.waits)
        if len(empty) != len(self.waits) or not waited:
            return 1.0
        return sum(wait for wait, nothing in zip(self.waits, empty, strict=True) if nothing) / waited

    @property
    def needed_ahead(self) -> int:
        """As many batches ahead as would have covered the longest wait: those there are, and one for each step in it."""
        ahead = self.moments[0].ready.get("ahead", 0.0) if self.moments else 0.0
        return int(ahead + np.ceil(max(self.waits) / self.step_s))

    def words(self) -> str:
        spare = self.step_s / self.batch_s
        if self.limit == "step":
            return f"the step limits, as it should: the loader could feed {spare:.1f} times as fast a one"
        if self.limit == "ahead":
            return (
                f"too few batches ahead: on average the loader is {spare:.1f} times as fast as the step, but it is uneven; "
                f"ahead={self.needed_ahead} would cover its longest pause"
            )
        if self.limit == "handover":
            return f"batches are ready and come late: the loader is {spare:.1f} times as fast as the step, but {self._late()}"
        return f"the loader limits: it gives a batch every {1000 * self.batch_s:.1f} ms, the step takes {1000 * self.step_s:.1f}"

    def _late(self) -> str:
        if predicted_share(self.step_s, self.batch_s, self.handover_s) > UNEXPLAINED:
            return f"to hand one over takes {1000 * self.handover_s:.1f} ms; larger batches make it rarer"
        return "the processor is busy with something else, the step itself or another program"

    def as_json(self) -> dict[str, Any]:
        return {
            "step_ms": 1000 * self.step_s,
            "batch_ms": 1000 * self.batch_s,
            "handover_ms": 1000 * self.handover_s,
            "waiting_predicted": self.predicted,
            "waiting_measured": self.share,
            "wait_ms_p50": 1000 * self.p50_s,
            "wait_ms_p99": 1000 * self.p99_s,
            "steps": len(self.waits),
            "limit": self.limit,
            "verdict": self.words(),
            "needed_ahead": self.needed_ahead,
            "moments": [{"seconds": moment.seconds, **moment.ready} for moment in self.moments],
        }


def predicted_share(step_s: float, batch_s: float, handover_s: float = 0.0) -> float:
    """The share of the time for which a step of `step_s` waits for a loader that gives a batch every `batch_s`."""
    return 1 - step_s / max(step_s + handover_s, batch_s)


def handover(candidate: Candidate, batch_s: float, seconds: float = 1.5) -> float:
    """Seconds to hand over a batch that is ready: the median of a loop that leaves the loader time for two between any two.

    0 where none was ever ready.
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


def against_step(
    candidate: Candidate,
    step_s: float,
    batch_s: float,
    *,
    seconds: float = 5.0,
) -> Against:
    """Run the loop of a trainer whose step sleeps. An iterator that has `ready()` is asked how many batches wait where."""
    handover_s = handover(candidate, batch_s)
    iterator = candidate.open()
    try:
        next(iterator)
        settle(iterator)
        for _ in islice(iterator, SETTLE_STEPS):
            time.sleep(step_s)
        waits, moments, used = _loop(iterator, step_s, seconds)
    finally:
        _close(iterator)
    predicted = predicted_share(step_s, batch_s, handover_s)
    return Against(step_s, batch_s, predicted, tuple(waits), used, tuple(moments), handover_s)


def _close(iterator: Iterator[Any]) -> None:
    close = getattr(iterator, "close", None)
    if close is not None:
        close()


def _loop(iterator: Iterator[Any], step_s: float, seconds: float) -> tuple[list[float], list[Moment], Used]:
    waits: list[float] = []
    moments: list[Moment] = []
    ready: Callable[[], Mapping[str, float]] | None = getattr(iterator, "ready", None)
    with Meter() as meter:
        started = time.perf_counter()
        while time.perf_counter() - started < seconds or len(waits) < 10:
            asked = time.perf_counter()
            if ready is not None:
                moments.append(Moment(asked - started, dict(ready())))
            next(iterator)
            waits.append(time.perf_counter() - asked)
            time.sleep(step_s)
    return waits, moments, meter.used
