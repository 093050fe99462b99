"""Batches as JAX arrays on the devices, for custom training loops, transferred ahead of their use.

`jax.device_put` only starts a transfer. So while the devices compute on one batch, the transfers of the next ones run, and a
step does not wait for its input to arrive. The reader's own threads fill further batches in host memory meanwhile.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import jax

from tfprep.errors import LoaderError
from tfprep.load.jax_hosts import check_equal_parts, jax_hosts
from tfprep.load.numpy_loader import NumpyLoader, with_text
from tfprep.load.pipeline import Pipeline, repeated

AHEAD = 2
"""Batches on the devices beyond the one in use: one that arrives, and one that has arrived. Each takes device memory."""


class JaxLoader(NumpyLoader):
    """An iterable of elements whose arrays lie on JAX's devices. Made by `Data.jax_loader`.

    The order, the passes, the length and the state are those of `numpy_loader`. With several processes of `jax.distributed`,
    each reads its part of every batch, and with `sharding` an element is the whole batch, of which this process holds its part.
    Text stays in NumPy arrays.
    """

    def __init__(self, pipeline: Pipeline, sharding: Any = None, ahead: int = AHEAD, epochs: int | None = 1) -> None:
        """`epochs`: those of one iteration in training; None for an iteration without an end."""
        if isinstance(ahead, bool) or not isinstance(ahead, int) or ahead < 0:
            raise LoaderError(
                f"ahead is the number of batches on the devices beyond the one in use, from 0, not {ahead!r}"
            )
        hosts = jax_hosts()
        if pipeline.options.hosts is None and hosts is not None:
            pipeline = pipeline.with_options(replace(pipeline.options, hosts=hosts))
        super().__init__(pipeline, epochs)
        self._sharding, self._ahead = sharding, ahead
        self._check()

    def __iter__(self) -> Iterator[Any]:
        pack = self.pipeline.outputs.pack
        batches = self.pipeline.batches(
            lambda batch: pack({name: self._put(value) for name, value in with_text(batch).items()}),
            epochs=self._epochs,
        )
        return TransferredAhead(batches, self._ahead)

    def repeat(self, count: int | None = None) -> JaxLoader:
        """The epochs one after another in one iteration: `count` of them, or without an end.

        Raises:
            LoaderError: `count` is not a number from 1 or None, or this loader is for evaluation, which has no epochs.
        """
        return JaxLoader(self.pipeline, self._sharding, self._ahead, repeated(self.pipeline, count))

    def _put(self, value: Any) -> Any:
        if value.dtype == object:
            return value
        if self._sharding is not None and self.pipeline.schedule.hosts.count > 1:
            return jax.make_array_from_process_local_data(self._sharding, value)
        return jax.device_put(value, self._sharding)

    def _check(self) -> None:
        """Refuse what JAX would fail on with the first batch, or with the last one."""
        for output in self.pipeline.outputs.outputs:
            if None in output.shape:
                raise LoaderError(
                    f"the samples of {output.name!r} differ in shape, {output.shape}, and JAX takes arrays of one shape; give "
                    "the loader geometry=[augment.Resize(...)], or crop in the recipe"
                )
        if self._sharding is None:
            return
        check_equal_parts(self.pipeline.schedule)
        schedule = self.pipeline.schedule
        sizes = {schedule.batch_size}
        if schedule.remainder == "keep" and schedule.size % schedule.batch_size:
            sizes.add(schedule.size % schedule.batch_size)
        for size in sorted(sizes):
            self._check_size(size)

    def _check_size(self, size: int) -> None:
        output = next(one for one in self.pipeline.outputs.outputs if one.dtype != "string")
        try:
            self._sharding.shard_shape((size, *output.shape))
        except ValueError as error:
            raise LoaderError(
                f"the sharding cannot divide a batch of {size} samples, {output.name!r} of shape {(size, *output.shape)}: "
                f"{error}; choose a batch_size that its devices divide, and remainder='drop'"
            ) from error


class TransferredAhead(Iterator[Any]):
    """Delivers each batch when `ahead` more are taken. Not a generator: that would end with Ctrl-C, and the data with it."""

    def __init__(self, batches: Iterator[Any], ahead: int) -> None:
        self._batches, self._ahead = batches, ahead
        self._queue: deque[Any] = deque()

    def __next__(self) -> Any:
        while len(self._queue) <= self._ahead:
            try:
                self._queue.append(next(self._batches))
            except StopIteration:
                if not self._queue:
                    raise
                break
        return self._queue.popleft()
