"""`mixed_precision`: the dtype policy that fits the device, and the dtype that the input should have."""

from __future__ import annotations

from dataclasses import dataclass

import keras

from tfprep.errors import TrainError
from tfprep.train.backend import require_backend

_TENSOR_CORES = (7, 0)  # Volta: float16; https://www.tensorflow.org/guide/mixed_precision
_BFLOAT16_CORES = (8, 0)  # Ampere


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


def mixed_precision(policy: str = "auto") -> Precision:
    """Set Keras's dtype policy for the models built from now on; the weights stay float32.

    Give the last layer `dtype="float32"`, so that a softmax keeps its digits.

    Args:
        policy: A policy of Keras, or `"auto"`: `mixed_bfloat16` on GPUs of compute capability 8.0 and above and on TPUs;
            `mixed_float16` on GPUs from 7.0 (Keras scales the loss then); float32 elsewhere, where half precision is slower or
            was not measured.

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
    if not gpus:
        return "float32", 'no GPU; a CPU may be faster with "mixed_bfloat16", which depends on the model'
    details = [tf.config.experimental.get_device_details(gpu) for gpu in gpus]
    least = min(one.get("compute_capability") or (0, 0) for one in details)
    weakest = f"the weakest GPU has compute capability {least[0]}.{least[1]}"
    if least < _TENSOR_CORES:
        return "float32", f"{weakest}: below 7.0 half precision is not faster"
    return "mixed_bfloat16" if least >= _BFLOAT16_CORES else "mixed_float16", weakest
