"""Several processes of JAX: which part of every batch this one reads, and who divides the batches."""

from __future__ import annotations

import sys
from typing import Any

from tfprep.errors import LoaderError
from tfprep.load.options import LoaderOptions
from tfprep.load.order.schedule import BatchSchedule


def jax_hosts() -> tuple[int, int] | None:
    """(index, count) of this process among those of `jax.distributed`, as the option `hosts` takes it; None for a single one."""
    import jax

    count = jax.process_count()
    return (jax.process_index(), count) if count > 1 else None


def check_distribution(feature: str, options: LoaderOptions) -> None:
    """Refuse a `keras.distribution` that does not fit a loader of which each process reads its part.

    With `auto_shard_dataset=True`, Keras's default, it divides the batches among the processes once more: of two processes,
    each then trains on half of its half, and nobody sees the other samples. A mesh with fewer parts of a batch than processes
    needs the same part in several processes.

    Args:
        feature: The name of the loader's function, for the message.
        options: The options of the loader.

    Raises:
        LoaderError: Keras would divide the batches again, or processes share a part of the batch.
    """
    distribution = _keras_distribution()
    if distribution is None:
        return
    processes = int(getattr(distribution, "num_processes", 1))
    if processes < 2:
        return
    if distribution.auto_shard_dataset:
        raise LoaderError(
            f"{feature} reads this process's part of every batch, and keras.distribution would divide it among the "
            f"{processes} processes again, so that most samples are lost; make the distribution with auto_shard_dataset=False"
        )
    parts = _batch_parts(distribution)
    if options.hosts is None and parts % processes:
        raise LoaderError(
            f"the mesh divides a batch into {parts} parts, and there are {processes} processes: some of them need the same part. "
            f"Name it: {feature[:-2]}(..., hosts=(part, {parts}))"
        )


def _keras_distribution() -> Any:
    """The distribution that was set, if Keras is there and runs on JAX, which alone has one."""
    keras = sys.modules.get("keras")
    if keras is None or keras.backend.backend() != "jax":
        return None
    return keras.distribution.distribution()


def _batch_parts(distribution: Any) -> int:
    """Into how many parts the mesh divides a batch."""
    mesh = distribution.device_mesh
    return int(dict(zip(mesh.axis_names, mesh.shape, strict=True)).get(distribution.batch_dim_name, 1))


def check_equal_parts(schedule: BatchSchedule) -> None:
    """Refuse batches of which processes read parts of different sizes: JAX puts equal parts together to an array.

    Raises:
        LoaderError: The processes do not divide the batch size, or the last batch of an epoch.
    """
    hosts, size, batch = schedule.hosts.count, schedule.size, schedule.batch_size
    if hosts == 1:
        return
    if batch % hosts:
        raise LoaderError(
            f"batch_size={batch} has no {hosts} equal parts, one for each process; make it a multiple of {hosts}"
        )
    last = size % batch
    if schedule.remainder != "drop" and last % hosts and (schedule.remainder == "keep" or schedule.epochs is not None):
        raise LoaderError(
            f"the last batch of an epoch has {last} samples, which {hosts} processes cannot share equally; use a batch_size that "
            f"divides the {size} samples, or remainder='drop'"
        )
