"""`configure_gpu` and `mixed_precision`: settings of TensorFlow's GPUs, made before the first tensor."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import keras
import tensorflow as tf

from tfprep.errors import TrainError
from tfprep.train.backend import require_backend


@dataclass(frozen=True)
class GpuSettings:
    """The settings of the GPUs: the visible GPUs, such as `GPU:0`, and how their memory is taken."""

    gpus: tuple[str, ...]
    growth: bool
    limit_mb: int | None


def configure_gpu(
    visible: Sequence[int] | None = None, *, growth: bool = False, memory_limit_mb: int | None = None
) -> GpuSettings:
    """Choose GPUs, and how their memory is taken; prints the settings. Call it before the first tensor.

    Args:
        visible: Numbers of the GPUs to use, among those that `CUDA_VISIBLE_DEVICES` leaves; None means all.
        growth: Take memory as it is needed; it is never given back. By default nearly all memory is taken at the start.
        memory_limit_mb: Take this many MB (2²⁰ bytes) of each GPU and no more.

    Returns:
        The settings. Variables of the environment, such as `TF_FORCE_GPU_ALLOW_GROWTH`, overrule them.

    Raises:
        TrainError: Growth is asked for with a limit, a number is not among the GPUs, or TensorFlow has initialized them already.
    """
    require_backend("configure_gpu", "tensorflow")
    if growth and memory_limit_mb is not None:
        raise TrainError(
            "growth and a memory limit exclude each other: a device with a limit takes all of it at the start"
        )
    gpus = list(tf.config.list_physical_devices("GPU"))
    if gpus and visible is not None:
        if not set(visible) <= set(range(len(gpus))):
            raise TrainError(f"visible lists GPUs by their numbers from 0 to {len(gpus) - 1}, got {visible!r}")
        gpus = [gpus[number] for number in sorted(set(visible))]
    try:
        if visible is not None:
            tf.config.set_visible_devices(gpus, "GPU")
        for gpu in gpus:
            if memory_limit_mb is not None:
                limited = tf.config.LogicalDeviceConfiguration(memory_limit=memory_limit_mb)
                tf.config.set_logical_device_configuration(gpu, [limited])
            elif growth:
                tf.config.experimental.set_memory_growth(gpu, True)
    except (RuntimeError, ValueError) as error:
        raise TrainError(f"TensorFlow refuses: {error}; configure each GPU once, at the top of the script") from error
    names = tuple(gpu.name.removeprefix("/physical_device:") for gpu in gpus)
    whole = "grows as needed" if growth else "all of it"
    taken = whole if memory_limit_mb is None else f"up to {memory_limit_mb:,} MB"
    said = f"{', '.join(names)}: {taken}" if names else "no GPU: nothing to configure, training runs on the CPU"
    print(f"configure_gpu: {said}")
    return GpuSettings(names, growth, memory_limit_mb)


@dataclass(frozen=True)
class Precision:
    """The dtype policy that `mixed_precision` has set, the dtype that layers compute in, and why it was chosen."""

    policy: str
    dtype: str
    why: str


def mixed_precision() -> Precision:
    """Set the dtype policy of Keras that fits the devices, for the models built from now on; the weights stay float32.

    It is `mixed_bfloat16` on GPUs of compute capability 8.0 and above and on TPUs, `mixed_float16` on GPUs from 7.0, and float32
    elsewhere (https://www.tensorflow.org/guide/mixed_precision). Give the last layer `dtype="float32"`.

    Returns:
        The policy that is set now, and why.

    Raises:
        TrainError: Keras does not run on TensorFlow.
    """
    require_backend("mixed_precision", "tensorflow")
    if tf.config.list_physical_devices("TPU"):
        policy, why = "mixed_bfloat16", "a TPU computes in bfloat16"
    elif gpus := tf.config.list_physical_devices("GPU"):
        details = [tf.config.experimental.get_device_details(gpu) for gpu in gpus]
        least = min(detail.get("compute_capability") or (0, 0) for detail in details)
        policy = "mixed_bfloat16" if least >= (8, 0) else "mixed_float16" if least >= (7, 0) else "float32"
        why = f"the weakest GPU has compute capability {least[0]}.{least[1]}; half precision is faster from 7.0"
    else:
        policy, why = "float32", "no GPU; on a CPU half precision is often slower"
    keras.config.set_dtype_policy(policy)
    return Precision(policy, policy.removeprefix("mixed_"), why)
