"""The train steps of `model.fit`, as callbacks see them.

Keras tells a callback that a batch begins and ends, but not where the batch comes from. On TensorFlow and JAX
`model.train_function` gets the iterator as its argument, so `TrainSteps` takes its place, passes an iterator that notes the
waits, and calls the callbacks after each step. On PyTorch `model.train_function` gets the batch itself, which Keras has fetched
before.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import keras

from tfprep.errors import TrainError
from tfprep.load.threads import CountingLoader, forget_loader, loader_of_this_thread
from tfprep.train.backend import block_until_done, compilations, ends_data, has_accelerator, is_tensor_iterator
from tfprep.train.monitor.iterators import TimedIterator, image_count, timed_tensors
from tfprep.train.monitor.waits import WaitClock

_TRACING = "_tfprep_tracing"
"""Attribute of a train step whose traces are counted."""


class Listener(keras.callbacks.Callback):  # type: ignore[misc]
    """A callback that `TrainSteps` calls too, from the thread that trains."""

    def step_done(self) -> None:
        """Called when the train function has returned, after `steps_per_execution` steps."""

    def failed(self) -> None:
        """Called when the train function raised an error."""


class TrainSteps:
    """Takes the place of `model.train_function` while callbacks listen.

    Attributes:
        function: The train function of Keras.
        tracing: The traces of the model's train step; None on other backends than TensorFlow.
        before: Steps of earlier calls of `fit`.
        clock: The waits for input.
        measured: Whether an input's waits are noted: not before the first step, without a callback that set `timed`, and under a
            distribution strategy.
        has_run: Whether a step was called since the listeners were attached.
    """

    def __init__(self, function: Callable[..., Any], *, steps_per_call: int, tracing: TraceCount | None = None) -> None:
        self.function = function
        self.tracing = tracing
        self.before = self._calls = 0
        self.clock = WaitClock()
        self.measured = self.timed = self.has_run = False
        self._between_s = self._compile_s = 0.0
        self.listeners: list[Listener] = []
        self._compiled = 0
        self._steps_per_call = steps_per_call
        # A GPU computes on while the train function has returned, and Keras waits for it when it reads the logs. That wait is not
        # work of Python, so only the thread's processor time counts there. On JAX the monitor itself waits for the step.
        self._clock = time.thread_time if has_accelerator() and keras.backend.backend() != "jax" else time.perf_counter
        self._returned_at: float | None = None
        self._fetches = keras.backend.backend() == "torch"
        self._given: Any = None
        self._input: Any = None
        self._loader: Any = None
        self._loader_wait_s = self._waited_s = 0.0

    @property
    def source(self) -> Any:
        """Keras's own iterator, or the `tf.data.Iterator` that it reads; None before the first step and on PyTorch."""
        return self._input.source if isinstance(self._input, TimedIterator) else self._given

    @property
    def loader(self) -> CountingLoader | None:
        """tfprep's loader that the batches come from, on JAX and PyTorch."""
        return self._input.loader if isinstance(self._input, TimedIterator) else self._loader

    @property
    def count(self) -> int:
        """Steps so far, those of earlier calls of `fit` included.

        Where waits are not measured, a call that ran fewer than `steps_per_execution`, at the end of the data, counts as if it
        had run them all.
        """
        return self.before + (self.clock.batches if self.measured else self._calls * self._steps_per_call)

    @property
    def traces(self) -> int:
        """The number of traces (TensorFlow), or of functions that JAX compiled in the train function; 0 if not counted."""
        return self.tracing.count if self.tracing else self._compiled

    @property
    def compile_s(self) -> float:
        """Seconds of tracing and compiling within steps, where the backend counts them (JAX)."""
        return self._compile_s

    @property
    def between_s(self) -> float | None:
        """Seconds that the trainer spent between steps, in callbacks and in Keras's own loop; None where that is not known."""
        return self._between_s

    def __call__(self, *arguments: Any) -> Any:
        *state, data = arguments  # on JAX Keras passes (state, iterator)
        if not self.listeners:
            return self.function(*arguments)
        self.has_run = True
        if self._fetches:
            self._take_batch(data[0])
        elif data is not self._given:
            self._take_input(data)
        if self._returned_at is not None:
            self._between_s += self._clock() - self._returned_at - self._fetched_s()
        compiled, compile_s = compilations()
        try:
            result = self.function(*state, data if self._fetches else self._input)
        except BaseException as error:
            if not ends_data(error):
                for listener in self.listeners:
                    listener.failed()
                self.close()
            raise
        finally:
            self.clock.ended()  # a step of several requests a batch after the last one too
        if self.timed:
            block_until_done(result)
        now_compiled, now_compile_s = compilations()
        self._compiled += now_compiled - compiled
        self._compile_s += now_compile_s - compile_s
        self._returned_at = self._clock()
        self._calls += 1
        for listener in self.listeners:
            listener.step_done()
        return result

    def fetching(self) -> None:
        """Note that Keras goes on to the next batch."""
        if self._fetches:
            self.clock.asking()

    def pause(self) -> None:
        """Do not count the time until the next step: an epoch has ended."""
        self.clock.pause()
        self._returned_at = None
        forget_loader()

    def close(self) -> None:
        """Drop the input and all listeners. A `fit` that failed calls no `on_train_end`."""
        self._given = self._input = self._loader = self._returned_at = None
        self.listeners = []
        self.measured = self.timed = self.has_run = False

    def _take_input(self, iterator: Any) -> None:
        self._given = self._input = iterator
        if self.timed and is_tensor_iterator(iterator):
            self._input, self.measured = timed_tensors(iterator, self.clock), True
        elif self.timed and keras.backend.backend() != "tensorflow":
            self._input, self.measured = TimedIterator(iterator, self.clock), True

    def _take_batch(self, batch: Any) -> None:
        """Note the batch of this step, which Keras has fetched.

        tfprep's loader has measured the wait. For another input the time since the last callback counts.
        """
        self._loader, before = loader_of_this_thread(), self._loader
        wait_s = None
        if self._loader is not None:
            total_s = float(self._loader.stats["wait_s"])
            wait_s = total_s - self._loader_wait_s if self._loader is before else None
            self._loader_wait_s = total_s
        self.clock.answered(image_count(batch), wait_s)
        self.measured = self.timed

    def _fetched_s(self) -> float:
        """Return the seconds that fetching the batch of this step took, on PyTorch: this is not work of callbacks."""
        if not self._fetches:
            return 0.0
        before, self._waited_s = self._waited_s, self.clock.waited_s
        return self._waited_s - before


class CustomLoop(TrainSteps):
    """The input of a custom training loop, which does not say when a step or an epoch ends."""

    def __init__(self) -> None:
        super().__init__(lambda: None, steps_per_call=1)
        self._step: Any = None

    @property
    def loader(self) -> Any:
        """tfprep's loader that is watched. The one of this thread may be that of a validation."""
        return self._loader

    @property
    def traces(self) -> int:
        """Traces of the function that trains, or compilations of JAX."""
        return compilations()[0] + (self._step.experimental_get_tracing_count() if self._step is not None else 0)

    @property
    def compile_s(self) -> float:
        """Seconds of compiling, where the backend counts them (JAX)."""
        return compilations()[1]

    @property
    def between_s(self) -> None:
        """None: not known."""

    def watch(self, data: Any, step: Any = None) -> TimedIterator:
        """Return an iterator over `data`, whose waits count from now on; see `InputMonitor.watch`."""
        if not isinstance(data, Iterable) or hasattr(data, "shape") or isinstance(data, list | tuple | str | dict):
            raise TrainError(
                f"watch() takes a loader, a tf.data.Dataset or an iterator of batches, got {type(data).__name__}"
            )
        batches, self._loader = TimedIterator(iter(data), self.clock), data if hasattr(data, "report") else None
        self._input, self._step, self.measured = batches, step, True
        self.clock.resume()
        return batches


@dataclass
class TraceCount:
    """How often a train step was traced; a step that is not traced runs no Python."""

    count: int = 0


def count_traces(model: Any) -> None:
    """Count the traces of the model's train step from now on, on TensorFlow. Call it in `set_model`."""
    if keras.backend.backend() != "tensorflow" or hasattr(model.train_step, _TRACING):
        return
    import tensorflow as tf

    train_step, tracing = model.train_step, TraceCount()

    @tf.autograph.experimental.do_not_convert  # type: ignore[untyped-decorator]
    @functools.wraps(train_step)
    def counted(data: Any) -> Any:
        tracing.count += tf.inside_function()
        return train_step(data)

    setattr(counted, _TRACING, tracing)
    model.train_step = counted
    model.train_function = None  # it holds the step without the count


def attach(model: Any, listener: Listener, *, timed: bool) -> TrainSteps:
    """Listen to the train steps of a Keras model.

    Args:
        model: A model in `on_train_begin`, where `model.train_function` exists.
        listener: What to call.
        timed: Whether the waits for input are noted.

    Returns:
        The train steps, which all listeners of the model share.
    """
    steps = model.train_function
    if isinstance(steps, TrainSteps) and (steps.has_run or not steps.listeners):  # the last fit broke off
        detach_all(model)
        steps = model.train_function
    if not isinstance(steps, TrainSteps):
        tracing = getattr(model.train_step, _TRACING, None)
        steps = TrainSteps(model.train_function, steps_per_call=model.steps_per_execution, tracing=tracing)
        model.train_function = steps
    if model.optimizer is not None:
        # It is a variable, a variable of each device, or a tensor where gradients are accumulated: all of them have numpy().
        # With gradient accumulation, an optimizer counts only the steps that change the weights.
        iterations = int(model.optimizer.iterations.numpy())
        steps.before = iterations * (model.optimizer.gradient_accumulation_steps or 1)
    steps.listeners.append(listener)
    steps.timed |= timed
    return steps


def detach(model: Any, listener: Listener) -> None:
    """Stop listening; the last listener puts the train function back."""
    steps = model.train_function
    if isinstance(steps, TrainSteps):
        steps.listeners = [other for other in steps.listeners if other is not listener]
        if not steps.listeners:
            detach_all(model)


def detach_all(model: Any) -> None:
    """Put the train function back."""
    model.train_function.close()
    model.train_function = model.train_function.function
