"""`memory_report`: the memory of a training that can be counted or measured."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import keras
import numpy as np

from tfprep.errors import TrainError
from tfprep.train.backend import is_tensor_iterator
from tfprep.train.monitor.stages import stages

_MB = 1e6


@dataclass(frozen=True)
class MemoryReport:
    """Memory of a train step, in bytes.

    Attributes:
        batch_size: Samples in a batch.
        parameters: All weights, counted.
        gradients: One value for each trainable weight, counted.
        optimizer: Slots and other variables of the optimizer, counted.
        input_buffers: Batches in flight, counted.
        measured_peak: Peak of one train step on the GPU above what was in use before: activations, gradients and workspaces.
            None without a GPU, because no backend keeps such a count on a CPU, and on JAX and PyTorch.
    """

    batch_size: int
    parameters: int
    gradients: int
    optimizer: int
    input_buffers: int
    measured_peak: int | None = None

    @property
    def counted(self) -> int:
        """The sum of what was counted. The activations of the forward pass come on top."""
        return self.parameters + self.gradients + self.optimizer + self.input_buffers

    def __str__(self) -> str:
        sizes = {
            "parameters": self.parameters,
            "gradients": self.gradients,
            "optimizer": self.optimizer,
            "input buffers": self.input_buffers,
            "counted": self.counted,
        }
        if self.measured_peak is not None:
            sizes["one step, measured"] = self.measured_peak
        lines = [f"{name:24s}{size / _MB:12,.1f} MB" for name, size in sizes.items()]
        return "\n".join([f"batch of {self.batch_size}", *lines])


def memory_report(model: Any, batch_size: int, *, data: Any = None) -> MemoryReport:
    """Count the memory of weights, gradients, optimizer and input; on a GPU with TensorFlow, measure a train step too.

    Activations are measured, never estimated: on a CPU `find_batch_size` finds what fits.

    Args:
        model: A compiled Keras model that is built, or whose input `data` describes.
        batch_size: Samples in a batch.
        data: The input. A `tf.data.Iterator` in use: its buffers are counted as they are. A `tf.data.Dataset` or tfprep's
            `keras_loader`: two batches in flight. None: one batch.

    Returns:
        The report; `print` shows it as a table in MB (10⁶ bytes).

    Raises:
        TrainError: `batch_size` is below 1, `data` is something else, or the model is not compiled or has no known input.
    """
    if batch_size < 1:
        raise TrainError(f"batch_size is at least 1, got {batch_size!r}")
    if data is not None and not hasattr(data, "element_spec") and not hasattr(data, "get_numpy_iterator"):
        raise TrainError(
            f"data is a tf.data.Dataset, its iterator, or tfprep's keras_loader, got {type(data).__name__}; leave it out for a "
            "model with keras.Input"
        )
    if getattr(model, "optimizer", None) is None:
        raise TrainError("memory_report needs the optimizer's slots: call model.compile(...) first")
    inputs = _input_specs(model, batch_size, data)
    if not model.built:
        model.build(keras.tree.map_structure(lambda spec: spec.shape, inputs))
    if not model.optimizer.built:
        model.optimizer.build(model.trainable_variables)
    return MemoryReport(
        batch_size=batch_size,
        parameters=_variable_bytes(model.weights),
        gradients=_variable_bytes(model.trainable_variables),
        optimizer=_variable_bytes(model.optimizer.variables),
        input_buffers=_buffer_bytes(inputs, data),
        measured_peak=_measured_peak(model, inputs),
    )


def _input_specs(model: Any, batch_size: int, data: Any) -> Any:
    if data is not None:
        element = data.element_spec if hasattr(data, "element_spec") else next(iter(data))
        first = element[0] if isinstance(element, tuple) else element
        return keras.tree.map_structure(lambda part: _spec(part, batch_size), first)
    if not model.built or not getattr(model, "inputs", None):
        raise TrainError("the model has no fixed input yet; pass data=the dataset, or build it with keras.Input")
    specs = [_spec(tensor, batch_size) for tensor in model.inputs]
    return specs[0] if len(specs) == 1 else specs


def _spec(part: Any, batch_size: int) -> Any:
    dtype = keras.backend.standardize_dtype(getattr(part.dtype, "name", part.dtype))
    return keras.KerasTensor((batch_size, *part.shape[1:]), dtype)


def _array_bytes(value: Any) -> int:
    dtype = keras.backend.standardize_dtype(value.dtype)
    itemsize = 2 if dtype == "bfloat16" else np.dtype(dtype).itemsize
    return int(np.prod(value.shape)) * itemsize


def _variable_bytes(variables: Any) -> int:
    return sum(map(_array_bytes, variables))


def _buffer_bytes(inputs: Any, data: Any) -> int:
    batch = sum(map(_array_bytes, keras.tree.flatten(inputs)))
    if is_tensor_iterator(data):
        return sum(stage.bytes for stage in stages(data)) or batch
    return batch if data is None else 2 * batch


def _measured_peak(model: Any, inputs: Any) -> int | None:
    """Run one step on zeros; the weights are put back after it. TensorFlow alone can set the peak back before the step."""
    if keras.backend.backend() != "tensorflow":
        return None
    import tensorflow as tf

    devices = tf.config.list_logical_devices("GPU")
    if not devices:
        return None
    name = devices[0].name.removeprefix("/device:")
    variables = [*model.variables, *model.optimizer.variables]
    before_step = [variable.numpy() for variable in variables]
    zeros = tf.nest.map_structure(lambda spec: tf.zeros(spec.shape, spec.dtype), inputs)
    tf.config.experimental.reset_memory_stats(name)
    before = tf.config.experimental.get_memory_info(name)["current"]
    model.train_on_batch(zeros, model(zeros, training=False))
    peak = tf.config.experimental.get_memory_info(name)["peak"]
    for variable, value in zip(variables, before_step, strict=True):
        variable.assign(value)
    return int(peak - before)
