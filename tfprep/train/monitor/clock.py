"""The waits for input: when each batch was requested and when it came, and the windows of training time they fall in."""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

RING = 4096
"""Number of the latest waits that are kept one by one: enough for the steps of several seconds."""

Seconds = npt.NDArray[np.float64]


@dataclass(frozen=True)
class ClockReading:
    """A snapshot of a clock.

    Attributes:
        answered: Batches that have come.
        images: Images in them.
        asked_at: Unix time since which the consumer waits; 0 while it does not wait.
        ring: The latest waits in seconds; that of batch n is at n modulo `RING`.
    """

    answered: int
    images: int
    asked_at: float
    ring: Seconds

    def pending_s(self, now: float) -> float:
        """Seconds that the consumer has been waiting at Unix time `now`; 0 while it does not wait."""
        return max(0.0, now - self.asked_at) if self.asked_at else 0.0

    def waits_since(self, answered: int) -> Seconds:
        """The waits of the batches after the first `answered`, in seconds: the last `RING` of them."""
        first = max(answered, self.answered - RING)
        return self.ring[np.arange(first, self.answered) % RING]

    def wait_s_since(self, answered: int) -> float:
        """The sum of the waits after the first `answered` batches; those no longer in the ring count as the mean."""
        waits = self.waits_since(answered)
        return float(waits.mean() * (self.answered - answered)) if waits.size else 0.0


class PythonClock:
    """The waits of one Python iterator."""

    def __init__(self) -> None:
        self.waited_s = 0.0
        """The sum of all waits in seconds."""
        self._answered = self._images = 0
        self._asked_at = 0.0
        self._ring: Seconds = np.zeros(RING)

    def asking(self) -> None:
        """Note that the consumer waits from now on."""
        self._asked_at = time.time()

    def answered(self, images: int) -> None:
        """Note that a batch has come."""
        wait_s = max(0.0, time.time() - self._asked_at) if self._asked_at else 0.0
        self._ring[self._answered % RING] = wait_s
        self.waited_s += wait_s
        self._answered, self._images, self._asked_at = self._answered + 1, self._images + images, 0.0

    def ended(self) -> None:
        """Note that there are no more batches."""
        self._asked_at = 0.0

    def read(self) -> ClockReading:
        """Return a snapshot."""
        return ClockReading(self._answered, self._images, self._asked_at, self._ring.copy())


_NOTHING = ClockReading(answered=0, images=0, asked_at=0.0, ring=np.zeros(1))


@dataclass(frozen=True)
class Waits:
    """The waits of one window of training time.

    Attributes:
        window_s: Length of the window in seconds; validation does not count.
        batches: Batches that came in it.
        waited_s: Seconds of waiting in it; of a wait that crosses its border the part inside.
        images: Images that came in it.
        pending_s: Seconds that the consumer has been waiting at its end.
        each_s: The waits that ended in it, in seconds.
    """

    window_s: float
    batches: int
    waited_s: float
    images: int
    pending_s: float
    each_s: Seconds

    @property
    def share(self) -> float | None:
        """The share of the window spent waiting, from 0 to 1; None for an empty window."""
        return min(1.0, max(0.0, self.waited_s / self.window_s)) if self.window_s else None

    @property
    def images_per_s(self) -> float | None:
        """Images a second; None for an empty window."""
        return self.images / self.window_s if self.window_s else None

    def without(self, start: Waits) -> Waits:
        """Return the rest of these waits, which begin with those of `start`."""
        return replace(
            self,
            window_s=self.window_s - start.window_s,
            batches=self.batches - start.batches,
            waited_s=self.waited_s - start.waited_s,
            images=self.images - start.images,
            each_s=self.each_s[start.each_s.size :],
        )

    def quantile_ms(self, percent: float) -> float:
        """A percentile of the waits that ended, in milliseconds; of the pending wait where none has ended."""
        return 1e3 * float(np.percentile(self.each_s, percent) if self.each_s.size else self.pending_s)


def added(parts: Sequence[Waits]) -> Waits:
    """The waits of consecutive windows as those of one."""
    return Waits(
        window_s=sum(part.window_s for part in parts),
        batches=sum(part.batches for part in parts),
        waited_s=sum(part.waited_s for part in parts),
        images=sum(part.images for part in parts),
        pending_s=parts[-1].pending_s if parts else 0.0,
        each_s=np.concatenate([np.zeros(0), *(part.each_s for part in parts)]),
    )


class InputWindow:
    """Training time counts from `resume` to `pause`; `take` ends a window and begins the next. Any thread may call."""

    def __init__(self) -> None:
        self.relay: Any = None
        self._lock = threading.RLock()
        self._seen = _NOTHING
        self._waited_before_s = 0.0
        self._since: float | None = None
        self._clear()

    def switch(self, relay: Any) -> None:
        """Measure another input from now on: a relay (see `tfprep.train.monitor.python_relay`), or None."""
        with self._lock:
            self._collect()
            self.relay, self._seen = relay, _NOTHING

    def pause(self) -> None:
        """Stop counting time."""
        with self._lock:
            self._active_s += self._ran_s()
            self._since = None

    def resume(self) -> None:
        """Count time from now on."""
        with self._lock:
            self._active_s += self._ran_s()
            self._since = time.monotonic()

    def take(self) -> Waits | None:
        """End the window; returns its waits, or None where no input was measured in it."""
        with self._lock:
            waits = self.so_far()
            self._clear()
            self._waited_before_s = waits.pending_s if waits else 0.0
            if self._since is not None:
                self._since = time.monotonic()
            return waits

    def so_far(self) -> Waits | None:
        """Return the waits of the current window without ending it; None where no input was measured in it."""
        with self._lock:
            reading, measured = self._collect(), self.relay is not None or bool(self._waits)
            pending_s = reading.pending_s(time.time()) if self._since is not None else 0.0
            waits = Waits(
                window_s=self._active_s + self._ran_s(),
                batches=self._batches,
                waited_s=self._waited_s + pending_s - self._waited_before_s,
                images=self._images,
                pending_s=pending_s,
                each_s=np.concatenate([np.zeros(0), *self._waits]),
            )
            return waits if measured else None

    def _clear(self) -> None:
        self._waits: list[Seconds] = []
        self._waited_s, self._active_s = 0.0, 0.0
        self._batches = self._images = 0

    def _ran_s(self) -> float:
        return 0.0 if self._since is None else time.monotonic() - self._since

    def _collect(self) -> ClockReading:
        """Add what the clock has noted since the last call; returns its reading."""
        if self.relay is None:
            return _NOTHING
        now: ClockReading = self.relay.clock.read()
        seen = self._seen
        if now.answered > seen.answered:
            self._waits.append(now.waits_since(seen.answered))
        self._waited_s += now.wait_s_since(seen.answered)
        self._batches += now.answered - seen.answered
        self._images += now.images - seen.images
        self._seen = now
        return now


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
