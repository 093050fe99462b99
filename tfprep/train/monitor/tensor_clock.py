"""The clock of a tf.data pipeline: the wait for input, measured inside tf.data.

A train step of Keras pulls its batch inside a compiled function, where Python sees no wait. So TensorFlow ops on either side of
the pull note the two moments, in variables on the CPU that any thread may read.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import tensorflow as tf

from tfprep.train.monitor.clock import RING, ClockReading


class TensorClock:
    """The waits of one iterator. `asking`, `answered` and `ended` are called in tf.data functions; `read` anywhere."""

    def __init__(self) -> None:
        self._now = _graph_clock()
        with tf.device("CPU:0"):
            self._asked_at = tf.Variable(0.0, dtype=tf.float64, trainable=False)
            self._moments = tf.Variable(tf.zeros([RING, 2], tf.float64), trainable=False)
            self._delivered = tf.Variable([0, 0], dtype=tf.int64, trainable=False)

    def asking(self) -> Any:
        """Note that the consumer waits from now on; returns that moment, a float64 scalar."""
        now = self._now()
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
            resource=self._moments.handle, indices=position, updates=tf.stack([asked_at, self._now()])
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


def _graph_clock() -> Any:
    """Return a function that makes the op of Unix time, a float64 scalar.

    `tf.timestamp` fails under `tf.config.experimental.enable_op_determinism()`; then Python's clock serves, at some 50 us a call.
    No public function says whether determinism is enabled, so one call finds out.
    """
    try:
        tf.timestamp()
    except tf.errors.FailedPreconditionError:
        return _python_time
    return tf.timestamp


def _python_time() -> Any:
    return tf.ensure_shape(tf.numpy_function(_unix_time, [], tf.float64), [])


def _unix_time() -> Any:
    return np.float64(time.time())
