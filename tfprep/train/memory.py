"""Memory of a training: `configure_gpu` limits it, `memory_report` counts it, and `find_batch_size` tries what fits."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

import keras
import numpy as np
import psutil

from tfprep.errors import TrainError
from tfprep.limits import available_memory
from tfprep.pool import ending_of
from tfprep.train.backend import require_backend
from tfprep.train.isolation import fresh_process, require_picklable

_POLL_S = 0.02
"""Time between two looks at the memory of a trial: 0.1 % of a processor."""


def configure_gpu(
    visible: Sequence[int] | None = None, *, growth: bool = False, memory_limit_mb: int | None = None
) -> tuple[str, ...]:
    """Choose TensorFlow's GPUs, and how their memory is taken; prints the settings. Call it before the first tensor.

    Args:
        visible: Numbers of the GPUs to use, among those that `CUDA_VISIBLE_DEVICES` leaves; None means all.
        growth: Take memory as it is needed; it is never given back. By default nearly all memory is taken at the start.
        memory_limit_mb: Take this many MB (2²⁰ bytes) of each GPU and no more.

    Returns:
        The names of the visible GPUs. Environment variables such as `TF_FORCE_GPU_ALLOW_GROWTH` overrule the settings.

    Raises:
        TrainError: Growth is asked for with a limit, a number is not among the GPUs, or TensorFlow has initialized them already.
    """
    require_backend("configure_gpu", "tensorflow")
    import tensorflow as tf

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
    return names


# --- what a train step takes


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
        names = ("parameters", "gradients", "optimizer", "input_buffers", "counted")
        sizes = {name.replace("_", " "): getattr(self, name) for name in names}
        if self.measured_peak is not None:
            sizes["one step, measured"] = self.measured_peak
        lines = [f"{name:24s}{size / 1e6:12,.1f} MB" for name, size in sizes.items()]
        if self.measured_peak is None:
            lines.append(
                "without activations, which are measured only on a GPU with TensorFlow; find_batch_size tries what fits"
            )
        return "\n".join([f"batch of {self.batch_size}", *lines])


def memory_report(model: Any, batch_size: int, *, data: Any = None) -> MemoryReport:
    """Count the memory of weights, gradients, optimizer and input; on a GPU with TensorFlow, measure a train step too.

    Activations are measured, never estimated: on a CPU `find_batch_size` finds what fits.

    Args:
        model: A compiled Keras model that is built, or whose input `data` describes.
        batch_size: Samples in a batch.
        data: The input, a `tf.data.Dataset` or tfprep's `keras_loader`: two batches in flight. None: one batch.

    Returns:
        The report; `print` shows it as a table in MB (10⁶ bytes).

    Raises:
        TrainError: `batch_size` is below 1, `data` is something else, or the model is not compiled or has no known input.
    """
    if batch_size < 1:
        raise TrainError(f"batch_size is at least 1, got {batch_size!r}")
    if data is not None and not hasattr(data, "element_spec") and not hasattr(data, "pipeline"):
        raise TrainError(
            f"data is a tf.data.Dataset or tfprep's keras_loader, got {type(data).__name__}; leave it out for a "
            "model with keras.Input"
        )
    if getattr(model, "optimizer", None) is None:
        raise TrainError("memory_report needs the optimizer's slots: call model.compile(...) first")
    inputs, targets = _specs(model, batch_size, data)
    if not model.built:
        model(inputs)  # `build` of a class with a `call` of its own makes no weights
    if not model.optimizer.built:
        model.optimizer.build(model.trainable_variables)
    return MemoryReport(
        batch_size=batch_size,
        parameters=_bytes_of(model.weights),
        gradients=_bytes_of(model.trainable_variables),
        optimizer=_bytes_of(model.optimizer.variables),
        input_buffers=_bytes_of(keras.tree.flatten(inputs)) * (1 if data is None else 2),
        measured_peak=_measured_peak(model, inputs, targets, batch_size),
    )


def _specs(model: Any, batch_size: int, data: Any) -> tuple[Any, Any]:
    """Return the specs of the inputs, and what `data` says of the targets; None where it says nothing."""
    if data is not None:
        if hasattr(data, "element_spec"):
            element = data.element_spec
        else:  # of what a loader has planned: a batch would be one of an epoch
            outs = data.pipeline.outputs
            element = outs.pack(
                {one.name: keras.KerasTensor((None, *one.batch_shape), one.dtype) for one in outs.outputs}
            )
        inputs, *rest = element if isinstance(element, tuple) else (element,)
        return _specs_of(inputs, batch_size), rest[0] if rest else None
    if not model.built or not getattr(model, "inputs", None):
        raise TrainError("the model has no fixed input yet; pass data=the dataset, or build it with keras.Input")
    specs = [_spec(tensor, batch_size) for tensor in model.inputs]
    return specs[0] if len(specs) == 1 else specs, None


def _specs_of(values: Any, batch_size: int) -> Any:
    return keras.tree.map_structure(lambda value: _spec(value, batch_size), values)


def _spec(part: Any, batch_size: int) -> Any:
    if None in part.shape[1:]:
        raise TrainError(
            f"an input of the shape {tuple(part.shape)} has no known size; give data= with batches of one size"
        )
    dtype = keras.backend.standardize_dtype(getattr(part.dtype, "name", part.dtype))
    return keras.KerasTensor((batch_size, *part.shape[1:]), dtype)


def _bytes_of(values: Any) -> int:
    """Bytes of variables or specs, also of bfloat16, which NumPy does not know."""
    dtypes = [keras.backend.standardize_dtype(value.dtype) for value in values]
    sizes = [2 if dtype == "bfloat16" else np.dtype(dtype).itemsize for dtype in dtypes]
    return sum(int(np.prod(value.shape)) * size for value, size in zip(values, sizes, strict=True))


def _measured_peak(model: Any, inputs: Any, targets: Any, batch_size: int) -> int | None:
    """Run one step on zeros; the weights are put back after it. Only TensorFlow can set the peak back before the step.

    Targets that are not known are those of the outputs' shape.
    """
    if keras.backend.backend() != "tensorflow":
        return None
    import tensorflow as tf

    devices = tf.config.list_logical_devices("GPU")
    if not devices:
        return None
    name = devices[0].name.removeprefix("/device:")
    variables = [*model.variables, *model.optimizer.variables]
    before_step = [variable.numpy() for variable in variables]

    def zeros_of(specs: Any) -> Any:
        return tf.nest.map_structure(lambda spec: tf.zeros(spec.shape, spec.dtype), specs)

    zeros = zeros_of(inputs)
    goals = model(zeros, training=False) if targets is None else zeros_of(_specs_of(targets, batch_size))
    tf.config.experimental.reset_memory_stats(name)
    before = tf.config.experimental.get_memory_info(name)["current"]
    try:
        model.train_on_batch(zeros, goals)
    except ValueError as error:
        raise TrainError(f"a step on zeros failed; give data=, whose targets fit the loss: {error}") from error
    finally:
        for variable, value in zip(variables, before_step, strict=True):
            variable.assign(value)
    peak = tf.config.experimental.get_memory_info(name)["peak"]
    return int(peak - before)


# --- the largest batch


@dataclass(frozen=True)
class BatchTrial:
    """One batch size that was tried.

    Attributes:
        size: Samples in the batch.
        fits: Whether the train steps ran within the limit.
        peak_mb: Peak resident memory of the trial process in MB (10⁶ bytes); None where it ended before it was read.
        reason: Why it does not fit; empty where it does.
    """

    size: int
    fits: bool
    peak_mb: float | None
    reason: str = ""


@dataclass(frozen=True)
class BatchSize:
    """The result of a search.

    Attributes:
        size: The largest size that was tried and fits; a quarter more, or less, does not.
        trials: All trials in their order.
    """

    size: int
    trials: tuple[BatchTrial, ...]


def find_batch_size(
    build_model: Callable[[], Any],
    make_batch: Callable[[int], Any],
    *,
    memory_limit_mb: float | None = None,
    largest: int = 65536,
    steps: int = 2,
) -> BatchSize:
    """Find the largest batch for which train steps fit into memory, by doubling and then by quarters.

    The trials run in processes of their own, so that a failed allocation leaves nothing and the memory of this process
    and of the GPU is not touched. A batch does not fit where the backend raises its error for memory, or where the
    resident memory of the trial process exceeds the limit (CPU and GPU); it is read 50 times a second, so a shorter peak can be
    missed.

    Args:
        build_model: Returns a compiled Keras model; a function at the top of a module, because it runs in another process.
        make_batch: Returns inputs and targets, as arrays, for a batch size; a function at the top of a module.
        memory_limit_mb: Limit of the whole trial process in MB (10⁶ bytes); TensorFlow takes about 500. None means 90 %
            of the memory that is free now.
        largest: Largest batch to try.
        steps: Train steps that must fit.

    Returns:
        The size and all trials.

    Raises:
        TrainError: Not even a batch of 1 fits, a train step failed for another reason than memory, or the functions cannot be
            sent to another process.
    """
    if largest < 1 or steps < 1:
        raise TrainError(f"largest and steps are at least 1, got largest={largest!r}, steps={steps!r}")
    require_picklable("find_batch_size", build_model, make_batch)
    limit_mb = 0.9 * available_memory() / 1e6 if memory_limit_mb is None else memory_limit_mb
    doubling = [*(2**power for power in range((largest - 1).bit_length())), largest]
    trials = list(_try_all(build_model, make_batch, doubling, steps, limit_mb))
    good = max((trial.size for trial in trials if trial.fits), default=0)
    if not good:
        raise TrainError(
            f"not even a batch of 1 fits into {limit_mb:,.0f} MB: {trials[0].reason}. The limit covers the whole "
            "process, and TensorFlow by itself takes about 500 MB; raise memory_limit_mb, or make the model or its input "
            "smaller (memory_report counts the weights and the input)"
        )
    bad = min((trial.size for trial in trials if not trial.fits), default=0)
    between = sorted({good + (bad - good) * quarter // 4 for quarter in (1, 2, 3)} - {good, bad}) if bad else []
    trials += _try_all(build_model, make_batch, between, steps, limit_mb)
    return BatchSize(max(trial.size for trial in trials if trial.fits), tuple(trials))


def _try_all(
    build_model: Callable[[], Any], make_batch: Callable[[int], Any], sizes: Sequence[int], steps: int, limit_mb: float
) -> list[BatchTrial]:
    """Try growing sizes in one process until one does not fit. Its memory only grows, so each peak is that of its size."""
    if not sizes:
        return []
    trials: list[BatchTrial] = []
    with fresh_process(_run_trials, build_model, make_batch, list(sizes), steps) as (process, receiver):
        while len(trials) < len(sizes) and all(trial.fits for trial in trials):
            trials.append(_watched_trial(process, receiver, sizes[len(trials)], limit_mb))
        process.kill()
    return trials


def _watched_trial(process: Any, receiver: Connection, size: int, limit_mb: float) -> BatchTrial:
    """Wait for the trial of `size`, and end it as soon as it exceeds the limit."""
    peak_mb = 0.0
    while not receiver.poll(_POLL_S):
        peak_mb = max(peak_mb, _rss_mb(process.pid))
        if peak_mb > limit_mb:
            return BatchTrial(size, False, peak_mb, f"more than {limit_mb:,.0f} MB")
    try:
        reason, error = receiver.recv()
    except EOFError:
        process.join()
        ending = ending_of(process.exitcode)
        if process.exitcode >= 0:  # memory ends a process by a signal
            raise TrainError(f"the process that tried a batch of {size} {ending}, and not for memory") from None
        return BatchTrial(size, False, peak_mb or None, f"its process was {ending}")
    if error is not None:
        raise TrainError(f"the train step with a batch of {size} failed, and not for memory: {error}")
    peak_mb = max(peak_mb, _rss_mb(process.pid))
    exceeded = f"more than {limit_mb:,.0f} MB" if peak_mb > limit_mb else ""
    return BatchTrial(size, not (reason or exceeded), peak_mb, reason or exceeded)


def _rss_mb(pid: int) -> float:
    try:
        return float(psutil.Process(pid).memory_info().rss / 1e6)
    except psutil.Error:  # it has ended
        return 0.0


def _run_trials(
    sender: Connection,
    build_model: Callable[[], Any],
    make_batch: Callable[[int], Any],
    sizes: Sequence[int],
    steps: int,
) -> None:
    """Send (why it does not fit or "", another error or None) for each size; runs in the trial process."""
    try:
        # The backend takes the GPU's memory as it is needed, not all of it at the start. (PyTorch always does.)
        os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"
        if keras.backend.backend() == "tensorflow":
            import tensorflow as tf

            for gpu in tf.config.list_physical_devices("GPU"):
                tf.config.experimental.set_memory_growth(gpu, True)
        model = build_model()
        for size in sizes:
            inputs, targets = make_batch(size)
            for _ in range(steps):
                model.train_on_batch(inputs, targets)
            sender.send(("", None))
            del inputs, targets
            with suppress(OSError, AttributeError):  # other C libraries than glibc have no malloc_trim
                ctypes.CDLL(None).malloc_trim(0)  # freed memory of the smaller batch would count against the next one
    except BaseException as error:
        name, text = type(error).__name__, f"{type(error).__name__}: {error}"
        for_memory = (
            isinstance(error, MemoryError)
            or name in ("ResourceExhaustedError", "OutOfMemoryError")
            or (name in ("JaxRuntimeError", "XlaRuntimeError") and "RESOURCE_EXHAUSTED" in text)
            or (isinstance(error, RuntimeError) and "you tried to allocate" in text)  # PyTorch on a CPU
        )
        sender.send((text[:200], None) if for_memory else ("", text))
