"""Frees weights that TensorFlow keeps although nothing uses them: those in the gradients of dead functions.

`tf.custom_gradient` in a traced function registers that gradient for good, its closure holds the function's graph, and the graph
holds all weights and optimizer slots that it used. Keras traces one whenever it builds a train step, so each discarded model
leaves its weights and slots behind: in TensorFlow 2.21, 27 MB for 2.1 million parameters with Adam (`benchmarks/sessions.py`),
which neither `clear_session` nor the garbage collector frees. An entry whose graph only the graph's own operations and tensors
refer to can never be looked up again, so dropping it is safe.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from types import FunctionType
from typing import Any

import tensorflow as tf

from tfprep.load.tensorflow.private import gradient_registry

_CUSTOM = "CustomGradient-"
_GRAPH_PARTS = (tf.Operation, tf.Tensor)


def forget_dead_gradients() -> int:
    """Drop the registered gradients of functions that are gone. Collect garbage before and after.

    Returns:
        How many were dropped; 0 where this TensorFlow's registry is not known.
    """
    registry = gradient_registry()
    graphs_by_name = {name: _graphs(entry["type"]) for name, entry in registry.items() if name.startswith(_CUSTOM)}
    graphs = {number: graph for of_one in graphs_by_name.values() for number, graph in of_one.items()}
    used = _used(graphs, [graphs, *graphs_by_name.values()])
    dead = [name for name, of_one in graphs_by_name.items() if of_one and not used & set(of_one)]
    for name in dead:
        del registry[name]
    return len(dead)


def _graphs(gradient: Any) -> dict[int, Any]:
    """The graphs of functions that the tensors in a gradient's closure belong to, by their ids."""
    symbolic = [tensor for tensor in _tensors(gradient) if tf.is_symbolic_tensor(tensor)]
    return {id(tensor.graph): tensor.graph for tensor in symbolic if type(tensor.graph) is not tf.Graph}


def _used(graphs: dict[int, Any], own: list[dict[int, Any]]) -> set[int]:
    """The graphs that something other than their operations and tensors refers to, such as a function or an inner graph.

    One look at the heap for all of them, because each `gc.get_referrers` goes through every object.
    """
    own_ids, asked = {id(one) for one in own}, tuple(graphs.values())
    holders = gc.get_referrers(*asked) if graphs else []
    foreign = [one for one in holders if id(one) not in own_ids and not issubclass(type(one), _GRAPH_PARTS)]
    foreign = [one for one in foreign if not _is_copy(one, asked)]
    return {id(graph) for holder in foreign for graph in gc.get_referents(holder) if id(graph) in graphs}


def _is_copy(one: Any, asked: tuple[Any, ...]) -> bool:
    """Whether this is the call's own copy of its arguments, which `gc.get_referrers` lists from Python 3.13 on."""
    return type(one) is tuple and list(map(id, one)) == list(map(id, asked))


def _tensors(gradient: Any) -> Iterator[Any]:
    """The tensors in the closures of a function, and of the functions in its closures."""
    waiting, seen = [gradient], {id(gradient)}
    while waiting:
        value = waiting.pop()
        if isinstance(value, tf.Tensor):
            yield value
        elif isinstance(value, FunctionType):
            inside = [cell.cell_contents for cell in value.__closure__ or () if _is_filled(cell)]
            waiting += [other for other in inside if id(other) not in seen]
            seen.update(map(id, inside))
        elif isinstance(value, (list, tuple)):
            waiting += value


def _is_filled(cell: Any) -> bool:
    try:
        cell.cell_contents  # noqa: B018
    except ValueError:
        return False
    return True
