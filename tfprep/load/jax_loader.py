"""Batches as JAX arrays on the devices, for custom training loops, transferred ahead of their use.

`jax.device_put` only starts a transfer. So while the devices compute on one batch, the transfers of the next ones run, and a
step does not wait for its input to arrive. The reader's own threads fill further batches in host memory meanwhile.

Loaders of other frameworks ask this module which part of every batch a process of JAX reads, and who divides the batches: JAX
itself is imported where it is used.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import numpy as np

from tfprep.checks import whole_number
from tfprep.errors import LoaderError
from tfprep.load.loader import BatchPass, Loader
from tfprep.load.order.schedule import BatchSchedule
from tfprep.load.outputs import Outputs
from tfprep.load.pipeline import Pipeline
from tfprep.load.reader.batch import Batch


class JaxLoader(Loader):
    """An iterable of elements whose arrays are on JAX's devices. Made by `Data.jax_loader`.

    The order, the passes, the length and the state are those of `numpy_loader`. With several processes of `jax.distributed`,
    each reads its part of every batch, and with `sharding` an element is the whole batch, and this process holds its part.
    Text stays in NumPy arrays.
    """

    def __init__(self, pipeline: Pipeline, sharding: Any, ahead: int) -> None:
        super().__init__(pipeline)
        self._sharding, self._ahead = sharding, whole_number("ahead", ahead, 0)
        check_elements(self.pipeline.outputs, "JAX")
        if sharding is not None:
            check_equal_parts(self.pipeline.schedule)
            self._check_sharding()

    def __reduce__(self) -> tuple[Any, ...]:
        return JaxLoader, (self.pipeline, self._sharding, self._ahead), {"_epochs": self._epochs}

    def __iter__(self) -> Iterator[Any]:
        """A pass (see `Loader`): its batches are delivered, and counted, when `ahead` more are on their way to the devices."""
        return TransferredAhead(self, self._ahead)

    def _element(self, batch: Batch) -> Any:
        arrays = {name: self._put(in_types_of_jax(value, name)) for name, value in batch.values.items()}
        return self.pipeline.outputs.pack(arrays)

    def _put(self, value: Any) -> Any:
        import jax

        if value.dtype == object:
            return value
        if self._sharding is not None and self.pipeline.schedule.hosts.count > 1:
            return jax.make_array_from_process_local_data(self._sharding, value)
        return jax.device_put(value, self._sharding)

    def _check_sharding(self) -> None:
        """Refuse what JAX would fail on with the first batch, or only with the last, smaller one."""
        schedule, outputs = self.pipeline.schedule, self.pipeline.outputs.outputs
        shapes = [output.shape for output in outputs if output.dtype != "string"]
        for shape in [(size, *shape) for size in (*schedule.smaller, schedule.batch_size) for shape in shapes]:
            try:
                self._sharding.check_compatible_aval(shape)  # that there are enough axes
                self._sharding.shard_shape(shape)
            except (AttributeError, ValueError) as error:
                raise LoaderError(
                    f"the sharding cannot divide a batch of {shape[0]} samples: {error!r}; give a `jax.sharding.Sharding`, and "
                    "choose a batch_size that its devices divide, and remainder='drop'"
                ) from error


class TransferredAhead(BatchPass):
    """Delivers each batch when `ahead` more are taken."""

    def __init__(self, loader: JaxLoader, ahead: int) -> None:
        super().__init__(loader)
        self._ahead, self._queue = ahead, dict[int, Any]()

    def __next__(self) -> Any:
        with self._lock:
            while not self.is_over and len(self._queue) <= self._ahead:
                self.take(self._queue.__setitem__)
            if not self._queue:
                raise StopIteration
            step = next(iter(self._queue))
            self._progress.delivered(self, step)
            return self._queue.pop(step)


def in_types_of_jax(value: np.ndarray, name: str = "a field") -> np.ndarray:
    """Return an array in the type that JAX stores: without `jax_enable_x64`, numbers of 64 bits have 32.

    LoaderError for a number that does not fit: JAX would cut it off, or make it infinite, silently.
    """
    import jax

    if value.dtype == object or (dtype := jax.dtypes.canonicalize_dtype(value.dtype)) == value.dtype:
        return value
    with np.errstate(over="ignore"):
        narrow = value.astype(dtype)
    if (lost := value[narrow != value if dtype.kind in "iu" else np.isinf(narrow) != np.isinf(value)]).size:
        raise LoaderError(
            f"{name} holds {lost[0]}, which JAX would cut off to {dtype}; jax.config.update('jax_enable_x64', True) keeps 64 bits"
        )
    return narrow


def check_elements(outputs: Outputs, taker: str, *, text: bool = True) -> None:
    """Raise LoaderError for outputs that the framework `taker` has no arrays for: samples that differ in shape, or text."""
    for output in outputs.outputs:
        if output.dtype == "string" and not text:
            raise LoaderError(
                f"{output.name!r} is text, and {taker} takes numbers only; name what the model takes with inputs= and targets="
            )
        if None in output.shape:
            raise LoaderError(
                f"the samples of {output.name!r} differ in shape, {output.shape}, and {taker} takes arrays of one shape; give "
                "the loader geometry=[augment.Resize(...)] for images, pad={'boxes': 100} for boxes and other fields of N rows"
            )


# --- several processes of JAX -------------------------------------------------------------------------------------------


def jax_hosts() -> tuple[int, int] | None:
    """(index, count) of this process among those of `jax.distributed`, as the option `hosts` takes it; None for a single one."""
    import jax

    count = jax.process_count()
    return (jax.process_index(), count) if count > 1 else None


def check_distribution(feature: str, *, by_process: bool = False) -> None:
    """Refuse a `keras.distribution` that does not fit a loader whose batches the processes divide.

    With `auto_shard_dataset=True`, Keras's default, it divides the batches among the processes once more: of two processes,
    each then trains on half of its half, and the other samples are lost. A mesh with fewer parts of a batch than processes
    needs the same part in several processes, which `by_process`, without the option `hosts`, does not give them.
    """
    keras = sys.modules.get("keras")
    if keras is None or keras.backend.backend() != "jax":  # only Keras on JAX has a distribution
        return
    distribution = keras.distribution.distribution()
    processes = int(getattr(distribution, "num_processes", 1))
    if distribution is None or processes < 2:
        return
    if distribution.auto_shard_dataset:
        raise LoaderError(
            f"{feature} reads this process's part of every batch, and keras.distribution would divide it among the "
            f"{processes} processes again, so that most samples are lost; make the distribution with auto_shard_dataset=False"
        )
    mesh = distribution.device_mesh
    parts = int(dict(zip(mesh.axis_names, mesh.shape, strict=True)).get(distribution.batch_dim_name, 1))
    if by_process and parts % processes:
        raise LoaderError(
            f"the mesh divides a batch into {parts} parts, and there are {processes} processes: some of them need the same part. "
            f"Name it: {feature[:-2]}(..., hosts=(part, {parts}))"
        )


def check_equal_parts(schedule: BatchSchedule) -> None:
    """Raise LoaderError for batches that processes divide into unequal parts: JAX makes an array of equal parts."""
    hosts = schedule.hosts.count
    if uneven := [size for size in (schedule.batch_size, *schedule.smaller) if size % hosts]:
        raise LoaderError(
            f"a batch of {uneven[0]} samples has no {hosts} equal parts, one for each process; make batch_size a multiple of "
            f"{hosts} that divides the {schedule.size} samples, or give remainder='drop'"
        )
