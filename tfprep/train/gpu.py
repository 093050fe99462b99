"""`configure_gpu`: which GPUs, how much of their memory, and by which allocator; in the right order, or why not."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import tensorflow as tf
from tensorflow.python.eager import context

from tfprep.errors import TrainError

_ALLOCATOR = "TF_GPU_ALLOCATOR"


@dataclass(frozen=True)
class GpuOptions:
    """What was asked for. `visible` counts among the GPUs that `CUDA_VISIBLE_DEVICES` leaves; memory in MB (2²⁰
    bytes)."""

    visible: Sequence[int] | None = None
    growth: bool = False
    memory_limit_mb: int | None = None
    fraction: float | None = None
    allocator: Literal["bfc", "cuda_malloc_async"] | None = None

    def __post_init__(self) -> None:
        limits = [self.memory_limit_mb is not None, self.fraction is not None]
        if self.growth and any(limits):
            raise TrainError(
                "growth and a memory limit exclude each other: a device with a limit takes all of it at once; drop "
                "growth=True to keep the limit, or the limit to keep growth"
            )
        if all(limits):
            raise TrainError("memory_limit_mb and fraction say the same thing twice; give one of them")
        if self.memory_limit_mb is not None and self.memory_limit_mb < 1:
            raise TrainError(f"memory_limit_mb is a number of MB, at least 1, got {self.memory_limit_mb!r}")
        if self.fraction is not None and not 0 < self.fraction <= 1:
            raise TrainError(f"fraction is a share of the GPU's memory, above 0 and up to 1, got {self.fraction!r}")
        if self.allocator not in (None, "bfc", "cuda_malloc_async"):
            raise TrainError(f'allocator is "bfc" or "cuda_malloc_async", got {self.allocator!r}')


@dataclass(frozen=True)
class GpuSettings:
    """What took effect: the names of the visible GPUs, the limit of each in MB (None for no limit)."""

    gpus: tuple[str, ...]
    growth: bool
    limits_mb: tuple[int | None, ...]
    allocator: str

    def in_words(self) -> str:
        if not self.gpus:
            return "no GPU: nothing to configure, training runs on the CPU"
        each = [
            f"{name} ({'grows as needed' if self.growth else 'all of it' if limit is None else f'up to {limit:,} MB'})"
            for name, limit in zip(self.gpus, self.limits_mb, strict=True)
        ]
        return f"{', '.join(each)}; allocator {self.allocator}"


def configure_gpu(
    visible: Sequence[int] | None = None,
    *,
    growth: bool = False,
    memory_limit_mb: int | None = None,
    fraction: float | None = None,
    allocator: Literal["bfc", "cuda_malloc_async"] | None = None,
) -> GpuSettings:
    """Choose GPUs, and how their memory is taken; call it before anything runs on a GPU. Prints what took effect.

    `visible` numbers the GPUs that stay, from 0, among those that `CUDA_VISIBLE_DEVICES` leaves; `()` hides all. By default
    TensorFlow takes nearly all memory of each at once. With `growth` it takes what it needs, and never gives it back; with
    `memory_limit_mb`, or `fraction` of what the GPU has, it takes that much and no more. `allocator="cuda_malloc_async"` lets
    CUDA keep the pool (less fragmentation), "bfc" is TensorFlow's own.

    Where there is no GPU it does nothing and says so. Raises a `TrainError` where options exclude each other, where a
    number is not among the GPUs, and where TensorFlow has initialised the GPUs already.
    """
    options = GpuOptions(visible, growth, memory_limit_mb, fraction, allocator)
    gpus = _chosen(options.visible)
    if tf.config.list_physical_devices("GPU"):
        _require_in_time()
    settings = GpuSettings(
        gpus=tuple(gpu.name.removeprefix("/physical_device:") for gpu in gpus),
        growth=growth and bool(gpus),
        limits_mb=tuple(_limit_mb(gpu, options) for gpu in gpus),
        allocator=(allocator or os.environ.get(_ALLOCATOR, "bfc")) if gpus else "none",
    )
    _apply(gpus, settings, choose=visible is not None)
    print(f"configure_gpu: {settings.in_words()}{_environment()}")
    return settings


def _require_in_time() -> None:
    if context.context()._context_handle is not None:
        raise TrainError(
            "too late: TensorFlow has initialised its devices already; call configure_gpu before the first tensor, model "
            "or list of logical devices, at the top of the script"
        )


def _chosen(visible: Sequence[int] | None) -> list[Any]:
    gpus = tf.config.list_physical_devices("GPU")
    if visible is None or not gpus:
        return list(gpus)
    strange = [number for number in visible if not 0 <= number < len(gpus)]
    if strange:
        raise TrainError(
            f"visible numbers the GPUs from 0 to {len(gpus) - 1}, got {list(visible)}{_environment()}; "
            "the numbers count among those that CUDA_VISIBLE_DEVICES leaves"
        )
    return [gpus[number] for number in visible]


def _apply(gpus: list[Any], settings: GpuSettings, *, choose: bool) -> None:
    try:
        if choose:
            tf.config.set_visible_devices(gpus, "GPU")
        for gpu, limit in zip(gpus, settings.limits_mb, strict=True):
            if limit is not None:
                limited = [tf.config.LogicalDeviceConfiguration(memory_limit=limit)]
                tf.config.set_logical_device_configuration(gpu, limited)
            elif settings.growth:
                tf.config.experimental.set_memory_growth(gpu, True)
    except (RuntimeError, ValueError) as error:
        raise TrainError(f"this contradicts what was configured before: {error}; configure each GPU once") from error
    # TensorFlow reads the variable when it initialises a GPU.
    if settings.allocator == "cuda_malloc_async":
        os.environ[_ALLOCATOR] = settings.allocator
    elif settings.allocator == "bfc":
        os.environ.pop(_ALLOCATOR, None)


def _limit_mb(gpu: Any, options: GpuOptions) -> int | None:
    if options.fraction is None:
        return options.memory_limit_mb
    return max(1, int(options.fraction * _total_mb(gpu)))


def _total_mb(gpu: Any) -> int:
    """The memory of a GPU, asked of the driver (nvidia-smi): TensorFlow would initialise the device to tell
    it."""
    try:
        query = ["nvidia-smi", "--query-gpu=memory.total", "--format=csv,noheader,nounits", "-i", _driver_name(gpu)]
        told = subprocess.run(query, check=True, capture_output=True, text=True, timeout=30).stdout
        return int(told.split()[0])
    except (OSError, subprocess.SubprocessError, ValueError, IndexError) as error:
        raise TrainError(
            f"fraction needs the memory of {gpu.name}, and nvidia-smi did not tell it ({error}); give memory_limit_mb"
        ) from error


def _driver_name(gpu: Any) -> str:
    """The number (or UUID) that the driver knows this GPU by: TensorFlow's numbers count what CUDA_VISIBLE_DEVICES
    leaves."""
    number = int(gpu.name.rsplit(":", 1)[1])
    left = [name.strip() for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name.strip()]
    return left[number] if number < len(left) else str(number)


def _environment() -> str:
    left = os.environ.get("CUDA_VISIBLE_DEVICES")
    return "" if left is None else f" (CUDA_VISIBLE_DEVICES={left!r})"
