"""The waits of a training for its input: when each batch was requested and when it came."""

from __future__ import annotations

import threading
import time
import weakref
from array import array
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True)
class Waits:
    """The waits since the beginning of a training, or between two moments of it.

    Attributes:
        window_s: Seconds of training; validation does not count.
        batches: Batches that came.
        waited_s: Seconds of waiting; of a wait that has not ended the part so far.
        images: Images that came.
        pending_s: Seconds that the consumer has been waiting at the end.
        each_s: The waits that ended, in seconds.
    """

    window_s: float = 0.0
    batches: int = 0
    waited_s: float = 0.0
    images: int = 0
    pending_s: float = 0.0
    each_s: npt.NDArray[np.float64] = field(default_factory=lambda: np.zeros(0), compare=False)

    def since(self, before: Waits) -> Waits:
        """Return the waits since an earlier moment."""
        passed = {
            name: getattr(self, name) - getattr(before, name) for name in ("window_s", "batches", "waited_s", "images")
        }
        # A copy: a part of an array keeps all of it, and a monitor keeps a thousand of these.
        return replace(self, **passed, each_s=self.each_s[before.batches :].copy())

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

    Attributes:
        waited_s: Seconds of the waits that ended.
    """

    def __init__(self) -> None:
        self.waited_s = 0.0
        self._lock = threading.Lock()
        self._each_s = array("d")  # 8 bytes for each batch of the training
        self._images = 0
        self._active_s = 0.0
        self._asked_at: float | None = None
        self._running_since: float | None = None

    @property
    def batches(self) -> int:
        """Batches that came."""
        return len(self._each_s)

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
            self.waited_s += wait_s
            self._images += images
            self._asked_at = None

    def ended(self) -> None:
        """Note that there are no more batches."""
        with self._lock:
            self._asked_at = None

    def pause(self) -> None:
        """Stop counting time."""
        self.resume()
        with self._lock:
            self._running_since = self._asked_at = None

    def resume(self) -> None:
        """Count time from now on."""
        with self._lock:
            now = time.perf_counter()
            self._active_s += now - self._running_since if self._running_since is not None else 0.0
            self._running_since = now

    def read(self) -> Waits:
        """Return the waits since the beginning."""
        with self._lock:
            now = time.perf_counter()
            pending_s = now - self._asked_at if self._asked_at is not None else 0.0
            running_s = now - self._running_since if self._running_since is not None else 0.0
            return Waits(
                window_s=self._active_s + running_s,
                batches=self.batches,
                waited_s=self.waited_s + pending_s,
                images=self._images,
                pending_s=pending_s,
                each_s=np.array(self._each_s),
            )


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
