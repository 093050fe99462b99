"""Weights that TensorFlow keeps for nobody: the gradients of dead functions.

`tf.custom_gradient` in a traced function registers that gradient for good (`ops.gradient_registry`), and the gradient's
closure holds the function's graph, and the graph the handles of all weights and optimiser slots that it used. Keras
traces one whenever it builds a train step, so each discarded model leaves its weights and slots behind: in TensorFlow
2.21 27 MB for 2.1 million parameters with Adam (`benchmarks/sessions.py`), which neither `clear_session` nor the
garbage collector frees. An entry whose graph nothing refers to but the graph's own operations and tensors can never be
asked for again: dropping it is safe.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from types import FunctionType
from typing import Any

import tensorflow as tf
from tensorflow.python.framework import func_graph, ops

_CUSTOM = "CustomGradient-"
_OWN = (tf.Operation, tf.Tensor)


def forget_dead_gradients() -> int:
    """Drop the registered gradients of functions that are gone; how many there were. Collect garbage before and after."""
    registry = getattr(ops.gradient_registry, "_registry", {})
    dead = [name for name, entry in registry.items() if name.startswith(_CUSTOM) and _is_dead(entry["type"])]
    for name in dead:
        del registry[name]
    return len(dead)


def _is_dead(gradient: Any) -> bool:
    graphs = {id(tensor.graph): tensor.graph for tensor in _tensors(gradient) if _in_function(tensor)}
    return bool(graphs) and not any(map(_is_used, list(graphs), [graphs] * len(graphs)))


def _in_function(tensor: Any) -> bool:
    return not isinstance(tensor, tf.__internal__.EagerTensor) and type(tensor.graph) is func_graph.FuncGraph


def _is_used(number: int, graphs: dict[int, Any]) -> bool:
    """Whether more than its own operations and tensors refer to graph `number`: a function, a graph inside it, a
    variable of yours.

    The graph is named only through `graphs`, so that this look at it is one known referrer: that dictionary.
    """
    for holder in gc.get_referrers(graphs[number]):
        if holder is not graphs and not issubclass(type(holder), _OWN):
            return True
    return False


def _tensors(gradient: Any) -> Iterator[Any]:
    """The tensors in the closures of a function, and of the functions in its closures."""
    waiting, seen = [gradient], {id(gradient)}
    while waiting:
        value = waiting.pop()
        if isinstance(value, tf.Tensor):
            yield value
        elif isinstance(value, FunctionType):
            inside = [cell.cell_contents for cell in value.__closure__ or () if _filled(cell)]
            waiting += [other for other in inside if id(other) not in seen]
            seen.update(map(id, inside))
        elif isinstance(value, (list, tuple)):
            waiting += value


def _filled(cell: Any) -> bool:
    try:
        cell.cell_contents  # noqa: B018
    except ValueError:
        return False
    return True
