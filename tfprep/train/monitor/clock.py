"""When each batch was requested and when it came: the waits for input."""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

RING = 4096
"""How many of the latest waits are kept one by one: enough for the steps of several seconds."""

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
        """How long the consumer has been waiting at Unix time `now`, in seconds; 0 while it does not wait."""
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
    """The waits of one Python iterator, with the methods of a `TensorClock` as far as they are read."""

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

    def pending_s(self, now: float) -> float:
        """How long the consumer has been waiting at Unix time `now`, in seconds; 0 while it does not wait."""
        return self.read().pending_s(now)

    def read(self) -> ClockReading:
        """Return a snapshot."""
        return ClockReading(self._answered, self._images, self._asked_at, self._ring.copy())
