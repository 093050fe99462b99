"""The waits of a training for its input: when each batch was requested and when it came."""

from __future__ import annotations

import threading
import time
import weakref
from array import array
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True)
class Waits:
    """The waits of one window of training time, or since the beginning.

    Attributes:
        window_s: Length of the window in seconds; validation does not count.
        batches: Batches that came in it.
        waited_s: Seconds of waiting in it; of a wait that crosses its border the part inside.
        images: Images that came in it.
        pending_s: Seconds that the consumer has been waiting at its end.
        each_s: The waits that ended in it, in seconds; left out in those since the beginning.
    """

    window_s: float = 0.0
    batches: int = 0
    waited_s: float = 0.0
    images: int = 0
    pending_s: float = 0.0
    each_s: npt.NDArray[np.float64] = field(default_factory=lambda: np.zeros(0), compare=False)

    @property
    def share(self) -> float | None:
        """The share of the window spent waiting, from 0 to 1; None for an empty window."""
        return min(1.0, max(0.0, self.waited_s / self.window_s)) if self.window_s else None

    @property
    def images_per_s(self) -> float | None:
        """Images per second; None for an empty window."""
        return self.images / self.window_s if self.window_s else None

    def quantile_ms(self, percent: float) -> float:
        """Return a percentile of the waits that ended, in milliseconds; the pending wait if none has ended."""
        return 1e3 * float(np.percentile(self.each_s, percent) if self.each_s.size else self.pending_s)

    def in_words(self) -> str:
        """Return the waits as a clause."""
        return (
            f"{self.batches:,} batches in {self.window_s:,.1f} s, {self.images_per_s or 0:,.0f} images/s; "
            f"{self.share or 0:.0%} of the time waiting for input (p50 {self.quantile_ms(50):.1f} ms, "
            f"p99 {self.quantile_ms(99):.1f} ms a batch)"
        )

    def as_json(self) -> dict[str, Any]:
        """Return the numbers that are written to `input.jsonl`."""
        names = ("window_s", "batches", "share", "pending_s", "images_per_s")
        quantiles = {"p50_ms": self.quantile_ms(50), "p99_ms": self.quantile_ms(99)}
        return {**{name: getattr(self, name) for name in names}, **quantiles}


class WaitClock:
    """The waits of one training, whose inputs may change. Training time counts from `resume` to `pause`.

    Any thread may call it.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._each_s = array("d")  # 8 bytes for each batch of the training
        self._images = 0
        self._waited_s = self._active_s = 0.0
        self._asked_at: float | None = None
        self._running_since: float | None = None

    def asking(self) -> None:
        """Note that the trainer requests a batch."""
        with self._lock:
            self._asked_at = time.perf_counter()

    def answered(self, images: int, wait_s: float | None = None) -> None:
        """Note that a batch of this many images is there; `wait_s` where the loader has measured the wait itself."""
        with self._lock:
            if wait_s is None:
                wait_s = time.perf_counter() - self._asked_at if self._asked_at is not None else 0.0
            self._each_s.append(wait_s)
            self._waited_s += wait_s
            self._images += images
            self._asked_at = None

    def ended(self) -> None:
        """Note that there are no more batches."""
        with self._lock:
            self._asked_at = None

    def pause(self) -> None:
        """Stop counting time."""
        with self._lock:
            self._stop(time.perf_counter())
            self._running_since = self._asked_at = None

    def resume(self) -> None:
        """Count time from now on."""
        with self._lock:
            now = time.perf_counter()
            self._stop(now)
            self._running_since = now

    def read(self) -> Waits:
        """Return the waits since the beginning."""
        with self._lock:
            now = time.perf_counter()
            pending_s = now - self._asked_at if self._asked_at is not None else 0.0
            running_s = now - self._running_since if self._running_since is not None else 0.0
            return Waits(
                window_s=self._active_s + running_s,
                batches=len(self._each_s),
                waited_s=self._waited_s + pending_s,
                images=self._images,
                pending_s=pending_s,
            )

    def between(self, before: Waits, now: Waits) -> Waits:
        """Return the waits between two readings."""
        with self._lock:
            each_s = np.array(self._each_s[before.batches : now.batches])
        return Waits(
            window_s=now.window_s - before.window_s,
            batches=now.batches - before.batches,
            waited_s=now.waited_s - before.waited_s,
            images=now.images - before.images,
            pending_s=now.pending_s,
            each_s=each_s,
        )

    def _stop(self, now: float) -> None:
        if self._running_since is not None:
            self._active_s += now - self._running_since


def call_often(look: Callable[[], bool], every_s: float, stopped: threading.Event, name: str) -> None:
    """Call a method of an object every `every_s` seconds, in a thread of its own that does not keep the object.

    The thread ends where the method returns False, `stopped` is set, or the object is gone because a training broke off.
    """
    reference = weakref.WeakMethod(look)

    def run() -> None:
        while not stopped.wait(every_s):
            alive = reference()
            if alive is None or not alive():
                return
            del alive

    threading.Thread(target=run, name=name, daemon=True).start()
