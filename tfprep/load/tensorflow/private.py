"""The private names of TensorFlow by which a monitor finds the loader that `fit` reads.

Tried with TensorFlow 2.21. `iterator._dataset` and `Dataset._inputs` lead from an iterator, or a dataset, to the loader after
which it is made; `Dataset._functions` has the functions of a dataset. Without them `InputMonitor` must be passed the loader
(`reader=`).
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf


def datasets_behind(iterator: Any) -> list[tf.data.Dataset]:
    """The datasets that an eager iterator reads from, the consumer's side first; empty where they are not known."""
    return datasets_of(getattr(iterator, "_dataset", None))


def datasets_of(dataset: Any) -> list[tf.data.Dataset]:
    """A dataset and those that it is made of; it alone where these are not known, and empty for anything else."""
    waiting, datasets = [dataset], []
    while waiting:
        first = waiting.pop(0)
        if isinstance(first, tf.data.Dataset):
            datasets.append(first)
            waiting += getattr(first, "_inputs", list)()
    return datasets


def python_functions(dataset: tf.data.Dataset) -> bool:
    """Return whether a dataset's own functions call Python for each element (`numpy_function`, `py_function`)."""
    python = ("PyFunc", "PyFuncStateless", "EagerPyFunc")
    wrapped: list[Any] = getattr(dataset, "_functions", list)()
    graphs = [one.function.graph.as_graph_def() for one in wrapped]
    nodes = [[*graph.node, *(node for one in graph.library.function for node in one.node_def)] for graph in graphs]
    return any(node.op in python for of_graph in nodes for node in of_graph)
