"""The train steps of `model.fit`, as callbacks see them.

Keras tells a callback that a batch begins and ends, but not where the batch comes from. On TensorFlow and JAX
`model.train_function` gets the iterator as its argument, so `TrainSteps` takes its place, passes an iterator that notes the
waits, and calls the callbacks after each step. On PyTorch `model.train_function` gets the batch itself, which Keras has fetched
before.
"""

from __future__ import annotations

import functools
import logging
import time
from collections.abc import Callable, Iterable
from types import SimpleNamespace
from typing import Any

import keras

from tfprep.errors import TrainError
from tfprep.fields import batch_size_of
from tfprep.load.threads import CountingLoader, forget_loader, loader_of_this_thread
from tfprep.train.backend import accelerator_memory, block_until_done, compilations, ends_data, is_tensor_iterator
from tfprep.train.monitor.waits import TimedIterator, WaitClock, timed_tensors

_LOG = logging.getLogger("tfprep.train")
_TRACING = "_tfprep_tracing"
"""Attribute of a train step whose traces are counted."""


class Listener(keras.callbacks.Callback):  # type: ignore[misc]
    """A callback that `TrainSteps` calls too, from the thread that trains."""

    def step_done(self) -> None:
        """Called when the train function has returned, after `steps_per_execution` steps."""

    def failed(self) -> None:
        """Called when the train function raised an error."""


class Watched:
    """The input of a training, as `InputMonitor` sees it.

    Attributes:
        clock: The waits for input.
        source: The iterator that the batches come from; None before the first step, and on PyTorch.
        loader: tfprep's loader that the batches come from, where Python takes them from it.
        measured: Whether the waits are noted.
        between_s: Seconds between steps, in callbacks and in Keras's own loop; 0 outside of `fit`.
    """

    def __init__(self) -> None:
        self.clock = WaitClock()
        self.source: Any = None
        self.loader: CountingLoader | None = None
        self.measured = False
        self.between_s = 0.0

    @property
    def count(self) -> int:
        """Steps so far."""
        return self.clock.batches

    @property
    def traces(self) -> int:
        """The number of traces (TensorFlow), or of functions that JAX compiled; 0 if not counted."""
        return compilations()[0]

    @property
    def compile_s(self) -> float:
        """Seconds of compiling, where the backend counts them (JAX)."""
        return compilations()[1]

    def fetching(self) -> None:
        """Note that Keras goes on to the next batch."""

    def pause(self) -> None:
        """Do not count the time until `clock.resume`."""
        self.clock.pause()

    def close(self) -> None:
        """Drop the input."""
        self.source = self.loader = None
        self.measured = False


class CustomLoop(Watched):
    """The input of a custom training loop, which does not say when a step or an epoch ends."""

    _step: Any = None

    @property
    def traces(self) -> int:
        """Traces of the function that trains, or compilations of JAX."""
        return super().traces + (self._step.experimental_get_tracing_count() if self._step is not None else 0)

    def watch(self, data: Any, step: Any = None) -> TimedIterator:
        """Return an iterator over `data`, whose waits count from now on; see `InputMonitor.watch`."""
        if not isinstance(data, Iterable) or hasattr(data, "shape") or isinstance(data, list | tuple | str | dict):
            raise TrainError(
                f"watch() takes a loader, a tf.data.Dataset or an iterator of batches, got {type(data).__name__}"
            )
        loader: Any = data if hasattr(data, "report") and hasattr(data, "stats") else None
        self.source, self.loader = iter(data), loader
        self._step, self.measured = step, True
        self.clock.resume()
        return TimedIterator(self.source, self.clock)


class TrainSteps(Watched):
    """Takes the place of `model.train_function` while callbacks listen.

    Waits are not measured before the first step, without a callback that set `timed`, and under a distribution strategy.

    Attributes:
        function: The train function of Keras.
        tracing: The `count` of traces of the model's train step; None on other backends than TensorFlow.
        before: Steps of earlier calls of `fit`.
        has_run: Whether a step was called since the listeners were attached.
    """

    compile_s = 0.0

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.function: Callable[..., Any] = model.train_function
        self.tracing = getattr(model.train_step, _TRACING, None)
        self.listeners: list[Listener] = []
        self.timed = self.has_run = False
        self.before = self._calls = self._compiled = 0
        self._steps_per_call = model.steps_per_execution
        self._fetches_beside = self.tracing is not None and not model.run_eagerly
        # A GPU computes on while the train function has returned, and Keras waits for it when it reads the logs. That wait is not
        # work of Python, so only the thread's processor time counts there. On JAX the monitor itself waits for the step.
        self._on_gpu = keras.backend.backend() != "jax" and bool(accelerator_memory())
        self._clock = time.thread_time if self._on_gpu else time.perf_counter
        self._returned_at: float | None = None
        self._fetches = keras.backend.backend() == "torch"
        self._input: Any = None
        self._loader_wait_s = 0.0

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
        return int(self.tracing.count) if self.tracing else self._compiled

    def __call__(self, *arguments: Any) -> Any:
        *state, data = arguments  # on JAX Keras passes (state, iterator)
        if not self.listeners:
            return self.function(*arguments)
        self.has_run = True
        fetched_s = 0.0
        if self._fetches:
            fetched_s = self._take_batch(data[0])
        elif data is not self.source:
            self._take_input(data)
        # Waiting for a batch, which takes no processor time, is not work of callbacks.
        if self._returned_at is not None:
            self.between_s += self._clock() - self._returned_at - (0.0 if self._on_gpu else fetched_s)
        compiled, compile_s = compilations()
        batches = self.clock.batches
        try:
            result = self.function(*state, data if self._fetches else self._input)
        except BaseException as error:
            if not ends_data(error):
                for listener in self.listeners:
                    listener.failed()
                self.close()
            raise
        finally:
            # A call of several steps requests a batch after the last one too.
            self.clock.ended(several_steps=self._fetches_beside and self.clock.batches > batches + 1)
        if self.timed:
            block_until_done(result)
        now_compiled, now_compile_s = compilations()
        self._compiled += now_compiled - compiled
        self.compile_s += now_compile_s - compile_s
        self._returned_at = self._clock()
        self._calls += 1
        if not is_tensor_iterator(self.source):
            self.loader = loader_of_this_thread()
        for listener in self.listeners:
            listener.step_done()
        return result

    def fetching(self) -> None:
        """See `Watched`. On PyTorch the wait begins here."""
        if self._fetches:
            self.clock.asking()

    def pause(self) -> None:
        """See `Watched`: an epoch has ended."""
        super().pause()
        self._returned_at = None
        forget_loader()

    def close(self) -> None:
        """Drop the input and all listeners. A `fit` that failed calls no `on_train_end`."""
        super().close()
        self._input = self._returned_at = None
        self.listeners = []
        self.timed = self.has_run = False

    def _take_input(self, iterator: Any) -> None:
        self.source = self._input = iterator
        if self.timed and is_tensor_iterator(iterator):
            try:
                self._input, self.measured = timed_tensors(iterator, self.clock), True
            except Exception:  # a monitor never ends a training
                _LOG.exception("InputMonitor: the waits for this input cannot be measured")
        elif self.timed and keras.backend.backend() != "tensorflow":
            self._input, self.measured = TimedIterator(iterator, self.clock), True

    def _take_batch(self, batch: Any) -> float:
        """Note the batch of this step, which Keras has fetched; returns the seconds of the wait for it.

        tfprep's loader has measured the wait. For another input the time since the last callback counts.
        """
        self.loader, before = loader_of_this_thread(), self.loader
        wait_s = None
        if self.loader is not None:
            total_s = float(self.loader.stats["wait_s"])
            wait_s = total_s - self._loader_wait_s if self.loader is before else None
            self._loader_wait_s = total_s
        self.measured = self.timed
        return self.clock.answered(batch_size_of(batch), wait_s)


def count_traces(model: Any) -> None:
    """Count the traces of the model's train step from now on, on TensorFlow. Call it in `set_model`."""
    if keras.backend.backend() != "tensorflow" or hasattr(model.train_step, _TRACING):
        return
    import tensorflow as tf

    train_step, tracing = model.train_step, SimpleNamespace(count=0)

    @tf.autograph.experimental.do_not_convert  # type: ignore[untyped-decorator]
    @functools.wraps(train_step)
    def counted(data: Any) -> Any:
        tracing.count += tf.inside_function()
        return train_step(data)

    setattr(counted, _TRACING, tracing)
    model.train_step = counted
    model.train_function = None  # it holds the step without the count


def attach(model: Any, listener: Listener, *, timed: bool) -> TrainSteps:
    """Let `listener` listen to the train steps of a Keras model, and return these, which all its listeners share.

    Call it in `on_train_begin`, where `model.train_function` exists. `timed`: the waits for input are noted.
    """
    steps = model.train_function
    if isinstance(steps, TrainSteps) and (steps.has_run or not steps.listeners):  # the last fit broke off
        detach_all(model)
        steps = model.train_function
    if not isinstance(steps, TrainSteps):
        steps = model.train_function = TrainSteps(model)
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
