"""The backend that Keras runs on. TensorFlow, JAX and PyTorch are asked only where they are in use."""

from __future__ import annotations

import sys
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import keras

from tfprep.errors import TrainError


def require_backend(name: str, *backends: str) -> None:
    """Raise a `TrainError` in the name of a function or class unless Keras runs on one of `backends`."""
    backend = keras.backend.backend()
    if backend not in backends:
        raise TrainError(
            f"{name} needs Keras's backend {' or '.join(backends)}, and Keras runs on {backend} here; set "
            f"KERAS_BACKEND={backends[0]} before the first import of keras, or leave {name} out"
        )


def tensorflow_in_use() -> Any:
    """The module `tensorflow` where this process has imported it, else None."""
    return sys.modules.get("tensorflow")


def is_tensor_iterator(value: Any) -> bool:
    """Return True for a `tf.data.Iterator`."""
    tf = tensorflow_in_use()
    return tf is not None and isinstance(value, tf.data.Iterator)


def ends_data(error: BaseException) -> bool:
    """Return True for an error that says that the input has no more batches."""
    tf = tensorflow_in_use()
    return isinstance(error, StopIteration) or (tf is not None and isinstance(error, tf.errors.OutOfRangeError))


def block_until_done(result: Any) -> None:
    """On JAX, wait until a step has run: it returns before. Keras waits at once afterwards, for the logs that callbacks get."""
    if keras.backend.backend() == "jax":
        import jax

        jax.block_until_ready(result)


_COMPILED = SimpleNamespace(listening=False, count=0, seconds=0.0)
"""Compilations of JAX in this process."""


def compilations() -> tuple[int, float]:
    """The number of functions that JAX has compiled since the first call of this function, and the seconds of that."""
    if keras.backend.backend() == "jax" and not _COMPILED.listening:
        from jax import monitoring

        _COMPILED.listening = True
        monitoring.register_event_duration_secs_listener(_note_compilation)
    return _COMPILED.count, _COMPILED.seconds


def _note_compilation(event: str, seconds: float, **_: Any) -> None:
    if event.startswith("/jax/core/compile/"):
        _COMPILED.seconds += seconds
        _COMPILED.count += event.endswith("backend_compile_duration")


def accelerator_memory() -> dict[str, tuple[int, int]]:
    """Device to (bytes in use, peak) of the accelerators of this process, as the backend counts them."""
    backend, memory_of = keras.backend.backend(), {}
    if backend == "jax":
        import jax

        for one in jax.local_devices():
            if one.platform != "cpu" and (memory := one.memory_stats()):
                used = memory.get("bytes_in_use", 0), memory.get("peak_bytes_in_use", 0)
                memory_of[f"{one.platform.upper()}:{one.id}"] = used
    elif backend == "torch":
        from torch import cuda

        for number in range(cuda.device_count()):
            memory_of[f"GPU:{number}"] = cuda.memory_allocated(number), cuda.max_memory_allocated(number)
    elif backend == "tensorflow":
        import tensorflow as tf

        for device in tf.config.list_logical_devices("GPU"):
            name = device.name.removeprefix("/device:")
            with suppress(ValueError):  # a pluggable device may keep no count
                counted = tf.config.experimental.get_memory_info(name)
                memory_of[name] = int(counted["current"]), int(counted["peak"])
    return memory_of
