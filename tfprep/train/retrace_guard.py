"""`RetraceGuard`: raises when a step is traced again after the warm-up, and says why. The successor of `graph.finalize()`."""

from __future__ import annotations

import functools
import inspect
import logging
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal, TypeAlias

import numpy as np
import tensorflow as tf

from tfprep.errors import RetraceError, TrainError
from tfprep.train.backend import require_backend
from tfprep.train.steps import Listener, TrainSteps, attach, count_traces, detach

_LOG = logging.getLogger("tfprep.train")


class RetraceGuard(Listener):
    """Raises a `RetraceError` when a step is traced after the warm-up.

    A trace takes seconds to minutes and its graph stays in memory, so a training that traces again and again is slow and grows.
    The message says which argument changed: its shape, its dtype, a Python value; it names a partial last batch.

    In Keras: `model.fit(..., callbacks=[RetraceGuard()])`. In a custom training loop: `step = guard.watch(step)`, and call that.

    Args:
        warmup_steps: Steps that may trace, counted over all calls of `fit` of a model with the same guard.
        action: `"raise"`, or `"warn"` to log each new trace.

    Attributes:
        retraces: The messages so far.

    Raises:
        TrainError: An argument is wrong, or Keras does not run on TensorFlow.
    """

    def __init__(self, *, warmup_steps: int = 2, action: Literal["raise", "warn"] = "raise") -> None:
        super().__init__()
        require_backend("RetraceGuard", "tensorflow")
        if warmup_steps < 1:
            raise TrainError(f"warmup_steps counts the steps that may trace, at least 1, got {warmup_steps}")
        if action not in ("raise", "warn"):
            raise TrainError(f'action is "raise" or "warn", got {action!r}')
        self.retraces: list[str] = []
        self._warmup_steps = warmup_steps
        self._action = action
        self._known: list[Signature] = []
        self._done = 0
        self._steps: TrainSteps | None = None

    # --- Keras --------------------------------------------------------------------------------------------------------

    def set_model(self, model: Any) -> None:
        """Count the traces of the model's train step, from its first step on for another model than before."""
        if model is not self.model:
            self._known, self._done = [], 0
        super().set_model(model)
        count_traces(model)

    def on_train_begin(self, logs: Any = None) -> None:
        """Attach to the model's train steps."""
        self._steps = attach(self.model, self, timed=False)
        self._traces = self._steps.traces

    def on_train_end(self, logs: Any = None) -> None:
        """Detach."""
        detach(self.model, self)

    def step_done(self) -> None:
        """See `Listener`."""
        assert self._steps is not None
        self._done += 1
        if self._steps.traces > self._traces:
            # The specs of the data: within a trace, the axes that ever differed are unknown.
            call = signature({"data": getattr(self._steps.source, "element_spec", None)})
            self._traced("the train step", call, self._known, self._done)
        self._traces = self._steps.traces

    # --- custom training loops ----------------------------------------------------------------------------------------

    def watch(self, function: Any) -> Callable[..., Any]:
        """Guard a train step of a custom training loop.

        Args:
            function: The `tf.function`.

        Returns:
            The function to call in its place, which looks up the trace count twice for each call.

        Raises:
            TrainError: `function` is not a `tf.function`.
        """
        if not hasattr(function, "experimental_get_tracing_count"):
            raise TrainError(f"watch() guards a tf.function, got {function!r}; decorate it with @tf.function")
        name = getattr(function, "__name__", "the function")
        calls, known = 0, list[Signature]()

        @functools.wraps(function.python_function)
        def guarded(*args: Any, **kwargs: Any) -> Any:
            nonlocal calls
            before = function.experimental_get_tracing_count()
            result = function(*args, **kwargs)
            calls += 1
            if function.experimental_get_tracing_count() > before:
                bound = inspect.signature(function.python_function).bind(*args, **kwargs)
                self._traced(name, signature(bound.arguments), known, calls)
            return result

        return guarded

    def _traced(self, name: str, call: Signature, known: list[Signature], number: int) -> None:
        if number > self._warmup_steps:
            # The latest of the known signatures that differ in the fewest leaves.
            changed = min((differences(known_call, call) for known_call in reversed(known)), key=len, default=[])
            because = "; and ".join(changed) or (
                "no argument changed: the model was compiled again, a layer was frozen or unfrozen, or a Python value that the "
                "function reads from outside has changed"
            )
            text = f"{name} was traced again at call {number}: {because}"
            self.retraces.append(text)
            if self._action == "raise":
                raise RetraceError(text)
            _LOG.warning("RetraceGuard: %s", text)
        known.append(call)


# --- how two calls differ


Leaf: TypeAlias = "tf.TensorSpec | str"
"""One value of a call: dtype and shape of a tensor or array, or a Python value as text."""
Signature: TypeAlias = Mapping[str, Leaf]


def signature(arguments: Mapping[str, Any]) -> Signature:
    """Return the path of each leaf (`images`, `labels['class']`, `data[0]`) to its description."""
    return {path: leaf for name, value in arguments.items() for path, leaf in _leaves(name, value)}


def differences(before: Signature, now: Signature) -> list[str]:
    """Return what changed, a line for each leaf, with what to do about it."""
    paths = dict.fromkeys([*before, *now])
    return [_difference(path, before.get(path), now.get(path)) for path in paths if before.get(path) != now.get(path)]


def _difference(path: str, before: Leaf | None, now: Leaf | None) -> str:
    if before is None or now is None:
        fix = "always pass the same structure"
    elif isinstance(before, str) or isinstance(now, str):
        fix = "each new Python value is a new trace: pass numbers as tensors (tf.constant), and make a tf.function for each model"
    elif before.dtype != now.dtype:
        fix = "cast it in the dataset"
    elif _shrinks(before.shape, now.shape):
        fix = "the partial last batch: use batch(..., drop_remainder=True)"
    else:
        fix = "pad or resize to one shape, or give the function an input_signature with None for that axis"
    return f"{path}: {_in_words(before)} before, {_in_words(now)} now; {fix}"


def _shrinks(before: tf.TensorShape, now: tf.TensorShape) -> bool:
    """Return True for a call that differs only in a smaller batch."""
    (first, *rest), (now_first, *now_rest) = (shape.as_list() if shape.rank else [None] for shape in (before, now))
    return first is not None and now_first is not None and now_first < first and rest == now_rest


def _in_words(leaf: Leaf | None) -> str:
    if leaf is None or isinstance(leaf, str):
        return "absent" if leaf is None else f"Python value {leaf}"
    return f"{leaf.dtype.name} of shape {'unknown' if leaf.shape.rank is None else tuple(leaf.shape.as_list())}"


def _leaves(path: str, value: Any) -> Iterator[tuple[str, Leaf]]:
    if isinstance(value, Mapping):
        for key, inside in value.items():
            yield from _leaves(f"{path}[{key!r}]", inside)
    elif isinstance(value, (list, tuple)):
        for index, inside in enumerate(value):
            yield from _leaves(f"{path}[{index}]", inside)
    elif isinstance(value, (tf.data.Iterator, tf.data.Dataset)):
        yield from _leaves(f"elements of {path}", value.element_spec)
    elif hasattr(value, "shape") and hasattr(value, "dtype") and not isinstance(value, np.generic):
        yield path, tf.TensorSpec(value.shape, value.dtype)
    else:  # a model has a dtype too
        text = repr(value)
        yield path, text if len(text) <= 60 else f"{text[:57]}..."
