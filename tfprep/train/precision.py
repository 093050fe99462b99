"""`mixed_precision`: the dtype policy that fits the device, and the dtype that the input should have."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import keras

from tfprep.errors import TrainError
from tfprep.train.backend import require_backend

_TENSOR_CORES = (7, 0)  # Volta: float16; https://www.tensorflow.org/guide/mixed_precision
_BFLOAT16_CORES = (8, 0)  # Ampere
_CPU_BFLOAT16 = frozenset({"avx512_bf16", "amx_bf16"})
_ROUNDS = 3


@dataclass(frozen=True)
class Precision:
    """The policy that `mixed_precision` has set.

    Attributes:
        policy: Name of the Keras dtype policy.
        dtype: The dtype that layers compute in; what the loader's `dtype=` should be.
        why: Why it was chosen.
    """

    policy: str
    dtype: str
    why: str

    def cast(self, dataset: Any) -> Any:
        """Return a `tf.data.Dataset` with its float32 inputs in `dtype`.

        Of elements (x, y, ...) only x is cast. Integers (uint8 images) stay: they are smaller still, and the model casts them on
        the device.
        """
        if self.dtype == "float32":
            return dataset
        import tensorflow as tf

        def cast_inputs(first: Any, *rest: Any) -> Any:
            narrow = tf.nest.map_structure(
                lambda part: tf.cast(part, self.dtype) if part.dtype == tf.float32 else part, first
            )
            return (narrow, *rest) if rest else narrow

        return dataset.map(cast_inputs, num_parallel_calls=tf.data.AUTOTUNE)


def mixed_precision(policy: str = "auto") -> Precision:
    """Set Keras's dtype policy for the models built from now on; the weights stay float32.

    Give the last layer `dtype="float32"`, so that a softmax keeps its digits. Any pipeline but tfprep's loader, which has
    `dtype=`, goes through `.cast(dataset)`.

    Args:
        policy: A policy of Keras, or `"auto"`: `mixed_bfloat16` on GPUs of compute capability 8.0 and above and on TPUs, and on
            CPUs that have instructions for it and on which it is faster, which takes about a second to measure;
            `mixed_float16` on GPUs from 7.0 (Keras scales the loss then); float32 elsewhere, where half precision is slower.

    Returns:
        The policy that is set now, and why.

    Raises:
        TrainError: Keras does not know the policy, or `"auto"` on a backend other than TensorFlow.
    """
    chosen, why = _fitting() if policy == "auto" else (policy, "as asked")
    try:
        keras.config.set_dtype_policy(chosen)
    except ValueError as error:
        raise TrainError(f'policy is "auto", "mixed_bfloat16", "mixed_float16" or "float32", got {policy!r}') from error
    return Precision(policy=chosen, dtype=str(keras.config.dtype_policy().compute_dtype), why=why)


def _fitting() -> tuple[str, str]:
    require_backend('mixed_precision("auto")', "tensorflow")
    import tensorflow as tf

    if tf.config.list_physical_devices("TPU"):
        return "mixed_bfloat16", "a TPU computes in bfloat16"
    gpus = tf.config.list_physical_devices("GPU")
    if gpus:
        details = [tf.config.experimental.get_device_details(gpu) for gpu in gpus]
        least = min(one.get("compute_capability") or (0, 0) for one in details)
        weakest = f"the weakest GPU has compute capability {least[0]}.{least[1]}"
        if least >= _TENSOR_CORES:
            return "mixed_bfloat16" if least >= _BFLOAT16_CORES else "mixed_float16", weakest
        return "float32", f"{weakest}: below 7.0 half precision is not faster"
    instructions = ", ".join(sorted(_CPU_BFLOAT16 & _cpu_flags()))
    if not instructions:
        return "float32", "no GPU, and the CPU has no instructions for bfloat16: half precision would be slower"
    speedups = _cpu_speedups()
    measured = ", ".join(f"{kind} {speedup:.2f}" for kind, speedup in speedups.items())
    why = f"no GPU; the CPU has {instructions}; speed in bfloat16 over float32: {measured}"
    # One kind of layer that is slower is enough: which of them a model spends its time in is not known here.
    if min(speedups.values()) < 1:
        return "float32", f"{why}, so half precision may be slower"
    return "mixed_bfloat16", why


def _cpu_speedups() -> dict[str, float]:
    """Measure the speed of two kinds of layers in bfloat16 on this CPU, as a multiple of that in float32."""
    import tensorflow as tf

    images = tf.zeros([8, 56, 56, 64])
    kernel, depthwise = tf.zeros([3, 3, 64, 64]), tf.zeros([3, 3, 64, 1])
    layers: dict[str, tuple[Callable[..., Any], Any]] = {
        "convolution": (lambda x, k: tf.nn.conv2d(x, k, 1, "SAME"), kernel),
        "depthwise convolution": (lambda x, k: tf.nn.depthwise_conv2d(x, k, [1, 1, 1, 1], "SAME"), depthwise),
    }
    with tf.device("CPU:0"):
        return {
            kind: _seconds(layer, images, weights)
            / _seconds(layer, tf.cast(images, tf.bfloat16), tf.cast(weights, tf.bfloat16))
            for kind, (layer, weights) in layers.items()
        }


def _seconds(layer: Callable[..., Any], *arguments: Any) -> float:
    import tensorflow as tf

    compiled = tf.function(layer, autograph=False)
    compiled(*arguments).numpy()  # traces
    seconds = []
    for _ in range(_ROUNDS):
        began = time.perf_counter()
        compiled(*arguments).numpy()
        seconds.append(time.perf_counter() - began)
    return min(seconds)  # other programs only add time


def _cpu_flags() -> frozenset[str]:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:  # not Linux
        return frozenset()
    flags = [line.partition(":")[2] for line in lines if line.startswith("flags")]
    return frozenset(flags[0].split()) if flags else frozenset()
