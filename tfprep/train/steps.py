"""The train steps of `model.fit`, as callbacks see them.

Keras tells a callback that a batch begins and ends, but not where the batch comes from. On TensorFlow and JAX
`model.train_function` gets the iterator as its argument, so `TrainSteps` takes its place, puts one `Relay` before it for all
callbacks together, and calls them after each step. On PyTorch it gets the batch itself.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import keras

from tfprep.load.waits import TimedLoader, forget_loader
from tfprep.train.backend import block_until_done, compilations, ends_data, has_accelerator, is_tensor_iterator
from tfprep.train.monitor.python_relay import FetchedInput, PythonRelay, TimedInput


class Listener(keras.callbacks.Callback):  # type: ignore[misc]
    """A callback that `TrainSteps` calls too, from the thread that trains."""

    def input_changed(self) -> None:
        """Called when `TrainSteps.relay` is another one, or None; a relay that a listener kept stays readable."""

    def step_done(self) -> None:
        """Called when the train function has returned, after `steps_per_execution` steps."""

    def failed(self, error: BaseException) -> BaseException:
        """Called when the train function raised `error`; returns the error to raise."""
        return error


class TrainSteps:
    """Stands in for `model.train_function` while callbacks listen.

    Attributes:
        function: The train function of Keras.
        count: Steps so far, those of earlier calls of `fit` included; a call that ran fewer than `steps_per_execution`, at the
            end of the data, counts as if it had run them all.
        relay: None before the first step, where no callback set `timed`, and where the input is no plain iterator (under a
            distribution strategy).
        source: Keras's own iterator; None on PyTorch.
        listeners: The callbacks to call.
        between_s: Seconds that the trainer spent between steps: in callbacks and in Keras's own loop.
        compile_s: Seconds of tracing and compiling within steps, where the backend counts them (JAX).
    """

    def __init__(self, function: Callable[..., Any], *, steps_per_call: int) -> None:
        self.function = function
        self.count = 0
        self.relay: TimedInput | None = None
        self.source: Any = None
        self.between_s = self.compile_s = 0.0
        self._compiled = 0
        self.timed = self.cancellable = False
        self.listeners: list[Listener] = []
        self._steps_per_call = steps_per_call
        # A GPU computes on while the train function has returned, and Keras waits for it when it reads the logs. That wait is no
        # work of Python, so only the thread's processor time counts there. On JAX the step is waited for.
        self._clock = time.thread_time if has_accelerator() and keras.backend.backend() != "jax" else time.perf_counter
        self._returned_at: float | None = None
        self._fetches = keras.backend.backend() == "torch"
        self._waited_s = 0.0

    @property
    def loader(self) -> TimedLoader | None:
        """tfprep's loader behind the input, on JAX and PyTorch."""
        return self.relay.loader if self.relay is not None else None

    @property
    def traces(self) -> int:
        """The number of traces (TensorFlow), or of functions that JAX compiled in the train function; 0 where nobody counts."""
        count = getattr(self.function, "experimental_get_tracing_count", None)
        return int(count()) if count else self._compiled

    def __call__(self, *arguments: Any) -> Any:
        *state, data = arguments  # on JAX Keras passes (state, iterator)
        if not self.listeners:
            return self.function(*arguments)
        if self._fetches:
            self._take_batch(data)
        elif data is not self.source:
            self._take_input(data)
        if self._returned_at is not None:
            self.between_s += self._clock() - self._returned_at - self._fetched_s()
        compiled, compile_s = compilations()
        try:
            result = self.function(*state, data if self.relay is None or self._fetches else self.relay.iterator)
        except BaseException as error:
            if ends_data(error):
                raise
            raised: BaseException = error
            if self.relay is not None and self.relay.error is not None:
                raised = self.relay.error  # the consumer only saw that the queue was closed
            for listener in self.listeners:
                raised = listener.failed(raised)
            self.close()
            raise raised  # noqa: B904  (a listener that replaces it sets the cause)
        if self.timed:
            block_until_done(result)
        now_compiled, now_compile_s = compilations()
        self._compiled, self.compile_s = (
            self._compiled + now_compiled - compiled,
            self.compile_s + now_compile_s - compile_s,
        )
        self._returned_at = self._clock()
        self.count += self._steps_per_call
        for listener in self.listeners:
            listener.step_done()
        return result

    def pause(self) -> None:
        """Do not count the time until the next step: an epoch has ended."""
        self._returned_at = None
        forget_loader()
        if isinstance(self.relay, FetchedInput):
            self.relay.ended()

    def fetching(self) -> None:
        """Note that Keras goes on to the next batch."""
        if isinstance(self.relay, FetchedInput):
            self.relay.fetching()

    def close(self) -> None:
        """Drop the input and all listeners. A `fit` that failed calls no `on_train_end`."""
        self._drop_input()
        self.listeners = []
        self.timed = self.cancellable = False

    def _drop_input(self) -> None:
        if self.relay is not None:
            self.relay.close()
        self.relay = self.source = self._returned_at = None

    def _input_changed(self) -> None:
        for listener in self.listeners:
            listener.input_changed()

    def _take_input(self, iterator: Any) -> None:
        self._drop_input()
        if self.timed and is_tensor_iterator(iterator):
            from tfprep.train.monitor.relay import Relay

            self.relay = Relay(iterator, cancellable=self.cancellable)
        elif self.timed and keras.backend.backend() != "tensorflow":
            self.relay = PythonRelay(iterator, cancellable=self.cancellable)
        self.source = iterator
        self._input_changed()

    def _take_batch(self, batches: Any) -> None:
        """Note the batch of this step, which Keras has fetched: a list of the one batch."""
        fetched = self.relay if isinstance(self.relay, FetchedInput) else FetchedInput()
        is_new = fetched.fetched(batches[0]) or fetched is not self.relay
        if self.timed and is_new:
            self.relay = fetched
            self._input_changed()

    def _fetched_s(self) -> float:
        """Seconds that fetching the batch of this step took, on PyTorch: no work of callbacks."""
        if not isinstance(self.relay, FetchedInput):
            return 0.0
        before, self._waited_s = self._waited_s, self.relay.clock.waited_s
        return self._waited_s - before


def attach(model: Any, listener: Listener, *, timed: bool) -> TrainSteps:
    """Listen to the train steps of a Keras model.

    Args:
        model: A model in `on_train_begin`, where `model.train_function` exists.
        listener: What to call.
        timed: Whether the input goes through a `Relay`.

    Returns:
        The train steps, which all listeners of the model share.
    """
    steps = model.train_function
    if not isinstance(steps, TrainSteps):
        steps = TrainSteps(model.train_function, steps_per_call=model.steps_per_execution)
        model.train_function = steps
    if steps.source is not None:  # the last fit broke off between two steps
        steps.close()
    steps.count = 0
    if model.optimizer is not None:
        # It is a variable, a variable of each device, or a tensor where gradients are accumulated: all of them have numpy().
        # With gradient accumulation, an optimizer counts only the steps that change the weights.
        iterations = int(model.optimizer.iterations.numpy())
        steps.count = iterations * (model.optimizer.gradient_accumulation_steps or 1)
    steps.listeners.append(listener)
    steps.timed |= timed
    return steps


def detach(model: Any, listener: Listener) -> None:
    """Stop listening; the last listener puts the train function back."""
    steps = model.train_function
    if isinstance(steps, TrainSteps):
        steps.listeners = [other for other in steps.listeners if other is not listener]
        if not steps.listeners:
            steps.close()
            model.train_function = steps.function
