"""`configure_gpu`: chooses GPUs, and how much of their memory is taken.

What TensorFlow does with each setting: `tensorflow/python/eager/context.py` (`_compute_device_options`) and
`core/common_runtime/gpu/gpu_bfc_allocator.cc` (`TF_FORCE_GPU_ALLOW_GROWTH`).
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

import tensorflow as tf

from tfprep.errors import TrainError
from tfprep.train.backend import require_backend

_GROWTH = "TF_FORCE_GPU_ALLOW_GROWTH"
_ALLOCATOR = "TF_GPU_ALLOCATOR"
_POOL = "cuda_malloc_async"
"""CUDA's own pool: it grows as needed and keeps no limit (`gpu_cudamallocasync_allocator.h`)."""


@dataclass(frozen=True)
class GpuSettings:
    """The settings that took effect.

    Attributes:
        gpus: Names of the visible GPUs, such as `GPU:0`.
        growth: Whether memory is taken as it is needed.
        limit_mb: The limit of each GPU in MB (2²⁰ bytes); None for no limit.
    """

    gpus: tuple[str, ...]
    growth: bool
    limit_mb: int | None

    def __str__(self) -> str:
        if not self.gpus:
            return "no GPU: nothing to configure, training runs on the CPU"
        growing = "grows as needed" if self.growth else "all of it"
        limit = growing if self.limit_mb is None else f"up to {self.limit_mb:,} MB"
        return ", ".join(f"{name} ({limit})" for name in self.gpus)


def configure_gpu(
    visible: Sequence[int] | None = None,
    *,
    growth: bool = False,
    memory_limit_mb: int | None = None,
) -> GpuSettings:
    """Choose GPUs, and how their memory is taken; prints what took effect.

    Call it before anything runs on a GPU. By default TensorFlow takes nearly all memory of each GPU at the start. Without a GPU
    nothing happens, and the printed line says so.

    Args:
        visible: Numbers of the GPUs to use, from 0, among those that `CUDA_VISIBLE_DEVICES` leaves; `()` hides all. They keep
            CUDA's order: `GPU:0` is the first of them as CUDA counts, not as `visible` lists them. None means all.
        growth: Take memory as it is needed; it is never given back.
        memory_limit_mb: Take this many MB (2²⁰ bytes) of each GPU and no more.

    Returns:
        What took effect.

    Raises:
        TrainError: Arguments exclude each other, the environment overrules them, a number is not among the GPUs, or TensorFlow
            has initialized the GPUs already.
    """
    require_backend("configure_gpu", "tensorflow")
    if isinstance(visible, int):
        raise TrainError(f"visible is a list of GPU numbers, got {visible!r}; [{visible}] for only this one")
    numbers = None if visible is None else list(visible)
    _check(numbers, growth, memory_limit_mb)
    gpus = list(tf.config.list_physical_devices("GPU"))
    if gpus and numbers is not None:
        if not all(0 <= number < len(gpus) for number in numbers):
            raise TrainError(
                f"visible numbers the GPUs from 0 to {len(gpus) - 1}, got {numbers}; the numbers count among those that "
                f"CUDA_VISIBLE_DEVICES leaves ({os.environ.get('CUDA_VISIBLE_DEVICES', 'not set')})"
            )
        gpus = [gpus[number] for number in sorted(numbers)]
    try:
        if numbers is not None and tf.config.list_physical_devices("GPU"):
            tf.config.set_visible_devices(gpus, "GPU")
        for gpu in gpus:
            if memory_limit_mb is not None:
                limited = [tf.config.LogicalDeviceConfiguration(memory_limit=memory_limit_mb)]
                tf.config.set_logical_device_configuration(gpu, limited)
            elif growth:
                tf.config.experimental.set_memory_growth(gpu, True)
    except (RuntimeError, ValueError) as error:
        raise TrainError(
            f"TensorFlow refuses: {error}; configure each GPU once, before the first tensor, model or list of logical devices, "
            "at the top of the script (in a notebook: restart the kernel)"
        ) from error
    names = tuple(gpu.name.removeprefix("/physical_device:") for gpu in gpus)
    always = os.environ.get(_GROWTH) == "true" or os.environ.get(_ALLOCATOR) == _POOL
    grows = bool(gpus) and (growth or always)
    settings = GpuSettings(names, grows, memory_limit_mb)
    print(f"configure_gpu: {settings}")
    return settings


def _check(numbers: list[int] | None, growth: bool, limit_mb: int | None) -> None:
    """Raise a `TrainError` for arguments that are wrong, exclude each other or are overruled by the environment."""
    if numbers is not None and any(type(number) is not int for number in numbers):
        raise TrainError(f"visible is a list of GPU numbers, such as [0, 2], got {numbers}")
    if numbers is not None and len(set(numbers)) != len(numbers):
        raise TrainError(f"visible names each GPU once, got {numbers}")
    if growth and limit_mb is not None:
        raise TrainError(
            "growth and a memory limit exclude each other: a device with a limit takes all of it at the start; drop "
            "growth=True to keep the limit, or the limit to keep growth"
        )
    if limit_mb is not None and (not isinstance(limit_mb, (int, float)) or limit_mb < 1):
        raise TrainError(f"memory_limit_mb is a number of MB, at least 1, got {limit_mb!r}")
    if growth and os.environ.get(_GROWTH) == "false":
        raise TrainError(f"{_GROWTH}=false in the environment overrules growth=True; unset it")
    if limit_mb is not None and os.environ.get(_ALLOCATOR) == _POOL:
        raise TrainError(f"{_ALLOCATOR}={_POOL} in the environment keeps no memory limit; unset it, or drop the limit")
    split = [
        cpu.name for cpu in tf.config.list_physical_devices("CPU") if tf.config.get_logical_device_configuration(cpu)
    ]
    if growth and split and tf.config.list_physical_devices("GPU"):
        raise TrainError(
            f"growth has no effect while {split[0]} is split into logical devices: TensorFlow ignores it; give a "
            f"memory_limit_mb, or start with {_GROWTH}=true in the environment"
        )
