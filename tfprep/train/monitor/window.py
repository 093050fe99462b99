"""The wait for input over a window of training time, put together from the clocks of one input after another."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from tfprep.train.monitor.clock import ClockReading, Seconds
from tfprep.train.monitor.python_relay import FetchedInput, PythonRelay

if TYPE_CHECKING:
    from tfprep.train.monitor.relay import Relay

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
        self.relay: Relay | PythonRelay | FetchedInput | None = None
        self._lock = threading.RLock()
        self._seen = _NOTHING
        self._waited_before_s = 0.0
        self._since: float | None = None
        self._clear()

    @property
    def source(self) -> Any:
        """The iterator that the input comes from; None before the first and after the last."""
        relay = self.relay
        return relay and relay.source

    def switch(self, relay: Relay | PythonRelay | FetchedInput | None) -> None:
        """Measure another input from now on."""
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
        now, seen = self.relay.clock.read(), self._seen
        if now.answered > seen.answered:
            self._waits.append(now.waits_since(seen.answered))
        self._waited_s += now.wait_s_since(seen.answered)
        self._batches += now.answered - seen.answered
        self._images += now.images - seen.images
        self._seen = now
        return now
