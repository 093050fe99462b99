"""When each batch was requested and when it came: the wait for input, measured inside tf.data.

A train step of Keras pulls its batch inside a compiled function, where Python sees no wait. So TensorFlow ops on either side of
the pull note the two moments, in variables on the CPU that any thread may read.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

RING = 4096
"""How many of the latest waits are kept one by one: enough for the steps of several seconds."""

Seconds = npt.NDArray[np.float64]


@dataclass(frozen=True)
class ClockReading:
    """A snapshot of an `InputClock`.

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
    """The waits of one Python iterator, with the methods of an `InputClock` as far as they are read."""

    def __init__(self) -> None:
        self._answered = self._images = 0
        self._asked_at = 0.0
        self._ring: Seconds = np.zeros(RING)

    def asking(self) -> None:
        """Note that the consumer waits from now on."""
        self._asked_at = time.time()

    def answered(self, images: int) -> None:
        """Note that a batch has come."""
        self._ring[self._answered % RING] = max(0.0, time.time() - self._asked_at)
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


class InputClock:
    """The waits of one iterator. `asking`, `answered` and `ended` are called in tf.data functions; `read` anywhere."""

    def __init__(self) -> None:
        with tf.device("CPU:0"):
            self._asked_at = tf.Variable(0.0, dtype=tf.float64, trainable=False)
            self._moments = tf.Variable(tf.zeros([RING, 2], tf.float64), trainable=False)
            self._delivered = tf.Variable([0, 0], dtype=tf.int64, trainable=False)

    def asking(self) -> Any:
        """Note that the consumer waits from now on; returns that moment, a float64 scalar."""
        now = tf.timestamp()
        with tf.control_dependencies([self._asked_at.assign(now, read_value=False)]):
            return tf.identity(now)  # what depends on it runs after the note

    def answered(self, position: Any, asked_at: Any, images: Any) -> None:
        """Note that a batch has come. Call it under a control dependency on the batch.

        Args:
            position: The batch's number modulo `RING`.
            asked_at: What `asking` returned.
            images: Images in the batch.
        """
        noted = tf.raw_ops.ResourceScatterUpdate(
            resource=self._moments.handle, indices=position, updates=tf.stack([asked_at, tf.timestamp()])
        )
        with tf.control_dependencies([noted]):
            self._delivered.assign_add([1, images], read_value=False)

    def ended(self) -> Any:
        """Note that there are no more batches; returns the op."""
        return self._asked_at.assign(0.0, read_value=False)

    def pending_s(self, now: float) -> float:
        """How long the consumer has been waiting at Unix time `now`, in seconds; 0 while it does not wait."""
        return self.read().pending_s(now)

    def read(self) -> ClockReading:
        """Return a snapshot; this copies 64 KiB."""
        answered, images = self._delivered.numpy().tolist()
        moments = self._moments.numpy()
        asked_at = float(self._asked_at.numpy())
        has_come = answered > 0 and asked_at == moments[(answered - 1) % RING, 0]
        return ClockReading(
            answered=answered,
            images=images,
            asked_at=0.0 if has_come else asked_at,
            ring=np.maximum(moments[:, 1] - moments[:, 0], 0.0),
        )
