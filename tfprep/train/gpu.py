"""`configure_gpu`: chooses GPUs, how much of their memory is taken, and by which allocator.

What TensorFlow does with each setting: `tensorflow/python/eager/context.py` (`_compute_device_options`),
`core/common_runtime/gpu/gpu_bfc_allocator.cc` (`TF_FORCE_GPU_ALLOW_GROWTH`), `gpu_process_state.cc` (`TF_GPU_ALLOCATOR`)
and `gpu_cudamallocasync_allocator.h` (which ignores a limit).
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import tensorflow as tf

from tfprep.errors import TrainError
from tfprep.train.backend import require_backend

_ALLOCATOR = "TF_GPU_ALLOCATOR"
_ASYNC = "cuda_malloc_async"
_GROWTH = "TF_FORCE_GPU_ALLOW_GROWTH"


@dataclass(frozen=True)
class GpuSettings:
    """The settings that took effect.

    Attributes:
        gpus: Names of the visible GPUs, such as `GPU:0`.
        growth: Whether memory is taken as it is needed.
        limits_mb: The limit of each GPU in MB (2²⁰ bytes); None for no limit.
        allocator: `"bfc"`, `"cuda_malloc_async"`, or `"none"` without a GPU.
    """

    gpus: tuple[str, ...]
    growth: bool
    limits_mb: tuple[int | None, ...]
    allocator: str

    def in_words(self) -> str:
        """Return one sentence with each GPU and its memory."""
        if not self.gpus:
            return "no GPU: nothing to configure, training runs on the CPU"
        each = [f"{name} ({self._memory(limit)})" for name, limit in zip(self.gpus, self.limits_mb, strict=True)]
        return f"{', '.join(each)}; allocator {self.allocator}"

    def _memory(self, limit: int | None) -> str:
        if limit is None:
            return "grows as needed" if self.growth else "all of it"
        return f"up to {limit:,} MB{', as needed' if self.growth else ''}"


def configure_gpu(
    visible: Sequence[int] | None = None,
    *,
    growth: bool = False,
    memory_limit_mb: int | None = None,
    fraction: float | None = None,
    allocator: Literal["bfc", "cuda_malloc_async"] | None = None,
) -> GpuSettings:
    """Choose GPUs, and how their memory is taken; prints what took effect.

    Call it before anything runs on a GPU. By default TensorFlow takes nearly all memory of each GPU at the start. Without a GPU
    nothing happens, and the printed line says so. A second call with the same arguments is allowed, as a notebook's cell does.

    Args:
        visible: Numbers of the GPUs to use, from 0, among those that `CUDA_VISIBLE_DEVICES` leaves; `()` hides all. They keep
            CUDA's order: `GPU:0` is the first of them as CUDA counts, not as `visible` lists them. None means all.
        growth: Take memory as it is needed; it is never given back.
        memory_limit_mb: Take this many MB (2²⁰ bytes) of each GPU and no more.
        fraction: The same as a share of the GPU's memory, above 0 and up to 1 (of a MIG slice: of the slice).
        allocator: `"bfc"` is TensorFlow's own. `"cuda_malloc_async"` is CUDA's pool: less fragmentation, it grows as needed and
            keeps no limit. None means what the environment says, or `"bfc"`.

    Returns:
        What took effect.

    Raises:
        TrainError: Arguments exclude each other, the environment overrules them, a number is not among the GPUs, or TensorFlow
            has initialized the GPUs already.
    """
    require_backend("configure_gpu", "tensorflow")
    if isinstance(visible, int):
        raise TrainError(f"visible is a list of GPU numbers, got {visible!r}; [{visible}] for this one alone")
    visible = None if visible is None else tuple(visible)
    asked = visible, growth, memory_limit_mb, fraction, allocator
    pool = allocator or os.environ.get(_ALLOCATOR) or "bfc"
    _check(*asked, pool)
    with _allocator_in_place(allocator):
        gpus = _chosen(visible)
        if tf.config.list_physical_devices("GPU") and asked != _Applied.arguments:
            _require_in_time()
            cpus = tf.config.list_physical_devices("CPU")
            split = [cpu.name for cpu in cpus if tf.config.get_logical_device_configuration(cpu)]
            if growth and split:
                raise TrainError(
                    f"growth has no effect while {split[0]} is split into logical devices: TensorFlow ignores it; give a "
                    f"memory_limit_mb, or start with {_GROWTH}=true in the environment"
                )
        settings = GpuSettings(
            gpus=tuple(gpu.name.removeprefix("/physical_device:") for gpu in gpus),
            growth=bool(gpus) and (growth or pool == _ASYNC or os.environ.get(_GROWTH) == "true"),
            limits_mb=tuple(
                memory_limit_mb if fraction is None else max(1, int(fraction * _total_mb(gpu))) for gpu in gpus
            ),
            allocator=pool if gpus else "none",
        )
        _apply(gpus, settings, growth=growth, choose=visible is not None)
    _Applied.arguments = asked
    print(f"configure_gpu: {settings.in_words()}{_environment()}")
    return settings


def _check(
    visible: tuple[int, ...] | None, growth: bool, limit_mb: int | None, fraction: float | None, allocator: str | None, pool: str
) -> None:  # fmt: skip
    """Raise a `TrainError` for arguments that are wrong, exclude each other or are overruled by the environment."""
    limits = [limit_mb is not None, fraction is not None]
    if visible is not None and any(type(number) is not int for number in visible):
        raise TrainError(f"visible is a list of GPU numbers, such as [0, 2], got {list(visible)}")
    if growth and any(limits):
        raise TrainError(
            "growth and a memory limit exclude each other: a device with a limit takes all of it at the start; drop "
            "growth=True to keep the limit, or the limit to keep growth"
        )
    if all(limits):
        raise TrainError("memory_limit_mb and fraction both set the limit; give one of them")
    if limit_mb is not None and (not isinstance(limit_mb, (int, float)) or limit_mb < 1):
        raise TrainError(f"memory_limit_mb is a number of MB, at least 1, got {limit_mb!r}")
    if fraction is not None and not 0 < fraction <= 1:
        raise TrainError(f"fraction is a share of the GPU's memory, above 0 and up to 1, got {fraction!r}")
    if allocator not in (None, "bfc", "cuda_malloc_async"):
        raise TrainError(f'allocator is "bfc" or "cuda_malloc_async", got {allocator!r}')
    if visible is not None and len(set(visible)) != len(visible):
        raise TrainError(f"visible names each GPU once, got {list(visible)}")
    if growth and os.environ.get(_GROWTH) == "false":
        raise TrainError(f"{_GROWTH}=false in the environment overrules growth=True; unset it")
    if any(limits) and pool == _ASYNC:
        raise TrainError(
            "cuda_malloc_async keeps no memory limit: CUDA's pool takes it as what stays reserved after use; use "
            'allocator="bfc" for a limit, or drop the limit'
        )


class _Applied:
    """The arguments of the last call."""

    arguments: Any = None


@contextmanager
def _allocator_in_place(allocator: str | None) -> Iterator[None]:
    """Set the environment variable of the allocator, and reset it where the call fails.

    TensorFlow reads the variable once, when it first lists GPUs.
    """
    before = os.environ.get(_ALLOCATOR)
    if allocator == _ASYNC:
        os.environ[_ALLOCATOR] = _ASYNC
    elif allocator == "bfc":
        os.environ.pop(_ALLOCATOR, None)
    try:
        yield
    except TrainError:
        os.environ.pop(_ALLOCATOR, None)
        if before is not None:
            os.environ[_ALLOCATOR] = before
        raise


def _require_in_time() -> None:
    # TensorFlow has no call that asks whether it is initialized, but it refuses another number of threads from then on.
    threads = tf.config.threading.get_inter_op_parallelism_threads()
    try:
        tf.config.threading.set_inter_op_parallelism_threads(threads + 1)
        tf.config.threading.set_inter_op_parallelism_threads(threads)
    except RuntimeError as error:
        raise TrainError(
            "too late: TensorFlow has initialized its devices already; call configure_gpu before the first tensor, model "
            "or list of logical devices, at the top of the script (in a notebook: restart the kernel)"
        ) from error


def _chosen(visible: Sequence[int] | None) -> list[Any]:
    gpus = tf.config.list_physical_devices("GPU")
    if visible is None or not gpus:
        return list(gpus)
    if not all(0 <= number < len(gpus) for number in visible):
        raise TrainError(
            f"visible numbers the GPUs from 0 to {len(gpus) - 1}, got {list(visible)}{_environment()}; "
            "the numbers count among those that CUDA_VISIBLE_DEVICES leaves"
        )
    return [gpus[number] for number in sorted(visible)]


def _apply(gpus: list[Any], settings: GpuSettings, *, growth: bool, choose: bool) -> None:
    try:
        if choose:
            tf.config.set_visible_devices(gpus, "GPU")
        for gpu, limit in zip(gpus, settings.limits_mb, strict=True):
            if limit is not None:
                limited = [tf.config.LogicalDeviceConfiguration(memory_limit=limit)]
                tf.config.set_logical_device_configuration(gpu, limited)
            elif growth:
                tf.config.experimental.set_memory_growth(gpu, True)
    except (RuntimeError, ValueError) as error:
        raise TrainError(f"this contradicts what was configured before: {error}; configure each GPU once") from error


def _total_mb(gpu: Any) -> int:
    """The memory of a GPU in MB (2²⁰ bytes), from CUDA's driver: TensorFlow would have to initialize the device.

    The number in TensorFlow's name is the driver's, which counts what `CUDA_VISIBLE_DEVICES` leaves, UUIDs and MIG slices
    included, in the order of `CUDA_DEVICE_ORDER`. (nvidia-smi numbers otherwise, and reports the whole GPU of a slice.)
    """
    device, size = ctypes.c_int(), ctypes.c_size_t()
    try:
        cuda = _driver()
        _checked(cuda.cuInit(0))
        _checked(cuda.cuDeviceGet(ctypes.byref(device), int(gpu.name.rsplit(":", 1)[1])))
        _checked(cuda.cuDeviceTotalMem_v2(ctypes.byref(size), device))
    except (OSError, AttributeError) as error:
        raise TrainError(
            f"fraction needs the memory of {gpu.name}, and CUDA's driver did not report it ({error}); give memory_limit_mb"
        ) from error
    return size.value >> 20


def _driver() -> Any:
    return ctypes.CDLL("libcuda.so.1")


def _checked(status: int) -> None:
    if status:
        raise OSError(f"CUDA error {status}")


def _environment() -> str:
    left = os.environ.get("CUDA_VISIBLE_DEVICES")
    return "" if left is None else f" (CUDA_VISIBLE_DEVICES={left!r})"
