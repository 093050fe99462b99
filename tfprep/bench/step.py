"""The loader against a training step: for how much of the time would the accelerator wait?

The step is a sleep: it takes time and no CPU, as a step on an accelerator does. What is measured is the wait for each
batch; what is predicted comes from the loader's rate alone: a consumer that takes `step_s` a batch, and a loader that needs
`batch_s`, run beside each other, so a step takes the longer of the two and waits for the difference.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np

from tfprep.bench.measure import Candidate
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

    `predicted` is that share by the loader's rate alone; `needed_ahead` how many batches would have covered the longest wait.
    """

    step_s: float
    batch_s: float
    predicted: float
    waits: tuple[float, ...]
    used: Used
    moments: tuple[Moment, ...]

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
        - "handover": batches were ready, and yet they came late: something else keeps the processor busy.
        """
        if self.predicted > UNEXPLAINED:
            return "loader"
        if self.share <= self.predicted + UNEXPLAINED:
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
            return (
                f"batches are ready and come late: the loader is {spare:.1f} times as fast as the step, but the processor is "
                "busy with something else, the step itself or another program"
            )
        return f"the loader limits: it gives a batch every {1000 * self.batch_s:.1f} ms, the step takes {1000 * self.step_s:.1f}"

    def as_json(self) -> dict[str, Any]:
        return {
            "step_ms": 1000 * self.step_s,
            "batch_ms": 1000 * self.batch_s,
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


def predicted_share(step_s: float, batch_s: float) -> float:
    """The share of the time for which a step of `step_s` waits for a loader that gives a batch every `batch_s`."""
    return max(0.0, 1 - step_s / max(step_s, batch_s))


def against_step(
    candidate: Candidate,
    step_s: float,
    batch_s: float,
    *,
    seconds: float = 5.0,
) -> Against:
    """Run the loop of a trainer whose step sleeps. An iterator that has `ready()` is asked how many batches wait where."""
    iterator = candidate.open()
    try:
        for _ in islice(iterator, SETTLE_STEPS):
            time.sleep(step_s)
        waits, moments, used = _loop(iterator, step_s, seconds)
    finally:
        close = getattr(iterator, "close", None)
        if close is not None:
            close()
    return Against(step_s, batch_s, predicted_share(step_s, batch_s), tuple(waits), used, tuple(moments))


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
