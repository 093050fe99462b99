"""What a pipeline is made of, and the buffers and work of its stages.

For tf.data they are in the model that its autotuner keeps (`tf.data.experimental.get_model_proto`). It can be read from another
thread while the consumer waits, in about 40 µs. tfprep's loader has counters of its own.

No public name leads from an iterator to its datasets. `iterator._dataset`, `Dataset._inputs` and `Dataset._functions` do so
(tried with TensorFlow 2.21): they find tfprep's loader before a `.map`, and functions that call Python. Without them a cause is
named by its stage, and that of a loader before a `.map` is not known.
"""

from __future__ import annotations

import weakref
from dataclasses import dataclass, replace
from typing import Any

from tfprep.train.backend import is_tensor_iterator

_PYTHON_OPS = ("PyFunc", "PyFuncStateless", "EagerPyFunc")
_WITHOUT_MODEL: weakref.WeakSet[Any] = weakref.WeakSet()
"""Iterators for which TensorFlow has no model. It logs an error for each request of one."""


@dataclass(frozen=True)
class Stage:
    """One transformation of a pipeline; several at the same depth of one kind are summed.

    Attributes:
        name: Depth from the consumer and kind, such as `2/Shuffle`.
        elements: Elements in its buffer.
        bytes: Bytes in its buffer.
        produced: Elements that it has passed on so far.
        busy_s: Seconds spent in its own code, all threads together.
        capacity: Size of its buffer in elements; 0 where it has none.
        parallelism: Threads that it uses, at least 1.
    """

    name: str
    elements: int
    bytes: int
    produced: int
    busy_s: float
    capacity: int
    parallelism: int

    def beside(self, other: Stage) -> Stage:
        """Return the sum of two stages that work at the same time."""
        summed = ("elements", "bytes", "produced", "busy_s", "capacity")
        numbers = {name: getattr(self, name) + getattr(other, name) for name in summed}
        return replace(self, parallelism=max(self.parallelism, other.parallelism), **numbers)

    def with_work(self, other: Stage | None, sign: int = 1) -> Stage:
        """Return the stage with the work of another one added to its own, or subtracted (`sign=-1`)."""
        if other is None:
            return self
        return replace(self, produced=self.produced + sign * other.produced, busy_s=self.busy_s + sign * other.busy_s)

    @property
    def depth(self) -> int:
        """Its distance from the consumer."""
        return int(self.name.split("/", 1)[0])

    @property
    def kind(self) -> str:
        """The transformation, such as `Shuffle`."""
        return self.name.split("/", 1)[1]

    @property
    def fills(self) -> bool:
        """True for a shuffle buffer that has not passed an element on: no batch comes before it is full."""
        return "Shuffle" in self.kind and self.elements > 0 and not self.produced

    def in_words(self) -> str:
        """Return the name with the time of its own code for each element."""
        threads = f" on {self.parallelism} threads" if self.parallelism > 1 else ""
        return f"{self.name} ({1e3 * self.busy_s / max(1, self.produced):.2f} ms an element{threads})"


@dataclass(frozen=True)
class Pipeline:
    """The transformations between the source and the consumer, as the program has written them; empty where they are not known.

    Attributes:
        kinds: Their kinds, such as `ParallelMap`, the consumer's side first.
        python: Those whose function calls Python for each element.
    """

    kinds: tuple[str, ...] = ()
    python: tuple[str, ...] = ()

    @property
    def maps(self) -> tuple[str, ...]:
        """The transformations that call a function of the user."""
        return tuple(
            kind for kind in self.kinds if "Map" in kind or kind in ("Filter", "Interleave", "ParallelInterleave")
        )


def pipeline_of(iterator: Any) -> Pipeline:
    """Return the transformations before a `tf.data.Iterator`, as far as tfprep's loader, whose own are not the user's."""
    kinds, python = [], []
    for dataset in _datasets_of(iterator):
        kinds.append(type(dataset).__name__.strip("_").removesuffix("Dataset").removesuffix("V2"))
        if hasattr(dataset, "stats"):
            break
        graphs = [wrapped.function.graph.as_graph_def() for wrapped in getattr(dataset, "_functions", list)()]
        nodes = [node for graph in graphs for node in graph.node]
        nodes += [node for graph in graphs for function in graph.library.function for node in function.node_def]
        if any(node.op in _PYTHON_OPS for node in nodes):
            python.append(kinds[-1])
    return Pipeline(tuple(kinds), tuple(python))


def _datasets_of(iterator: Any) -> list[Any]:
    """Return the datasets that an iterator of tf.data reads, the consumer's side first; empty where they are not known."""
    waiting, datasets = [getattr(iterator, "_dataset", None)] if is_tensor_iterator(iterator) else [], []
    while waiting:
        dataset = waiting.pop(0)
        if dataset is not None:
            datasets.append(dataset)
            waiting += getattr(dataset, "_inputs", list)()
    return datasets


# --- stages of tf.data


def stages(iterator: Any) -> tuple[Stage, ...]:
    """Return the stages of tf.data before a `tf.data.Iterator`, the consumer's side first; none where autotune is off."""
    if not is_tensor_iterator(iterator) or iterator in _WITHOUT_MODEL:
        return ()
    datasets = _datasets_of(iterator)
    if datasets and datasets[0].options().autotune.enabled is False:
        return ()
    import tensorflow as tf

    try:
        model = tf.data.experimental.get_model_proto(iterator)
    except (tf.errors.NotFoundError, ValueError):
        _WITHOUT_MODEL.add(iterator)
        return ()
    by_name: dict[str, Stage] = {}
    waiting = [(0, model.output)]
    while waiting:  # from the consumer to the sources
        depth, number = waiting.pop()
        node = model.nodes[number]
        waiting += [(depth + 1, other) for other in reversed(node.inputs)]
        if node.name != "Root":
            parameters = {parameter.name: int(parameter.value) for parameter in node.parameters}
            stage = Stage(
                name=f"{depth}/{node.name}",
                elements=int(node.buffered_elements),
                bytes=int(node.buffered_bytes),
                produced=int(node.num_elements),
                busy_s=node.processing_time / 1e9,
                capacity=parameters.get("buffer_size", 0),
                parallelism=max(1, parameters.get("parallelism", 1)),
            )
            sibling = by_name.get(stage.name)
            by_name[stage.name] = stage if sibling is None else sibling.beside(stage)
    return tuple(by_name.values())


class StageTotals:
    """The stages of the iterators that a training reads, one after the other, with all work since the first look.

    TensorFlow counts a stage's work from its making, and `repeat` makes its inputs again in each epoch.
    """

    def __init__(self) -> None:
        self._stages: dict[str, Stage] = {}
        self._ended: dict[str, Stage] = {}  # the work of the stages of a name that were made before

    def look(self, iterator: Any) -> tuple[Stage, ...]:
        """Return all stages that were ever seen, the consumer's side first; those that are gone hold nothing."""
        now = {stage.name: stage for stage in stages(iterator)}
        for name, last in self._stages.items():
            if name not in now:
                self._stages[name] = replace(last, elements=0, bytes=0)
            elif now[name].produced < last.produced:
                self._ended[name] = last.with_work(self._ended.get(name))
        self._stages |= now
        totals = [stage.with_work(self._ended.get(name)) for name, stage in self._stages.items()]
        return tuple(sorted(totals, key=lambda stage: stage.depth))


def slowest(spent: tuple[Stage, ...]) -> Stage | None:
    """Return the stage of tf.data that spent the most time in its own code for each of its threads."""
    working = [stage for stage in spent if stage.kind != "Prefetch"]  # a prefetch has no work of its own
    return max(working, key=lambda stage: stage.busy_s / stage.parallelism, default=None)


# --- the counters of tfprep's loader

GAUGES = frozenset(
    {"batches_ready", "batches_in_flight", "prefetch", "threads", "cache_bytes", "longest_wait_s"}
    | {"cache_records", "cache_capacity", "cache_of"}
)
"""Counters that are current values, not totals."""


def counters(loader: Any, source: Any) -> dict[str, float]:
    """Return the counters of tfprep's loader, or of that which a `tf.data.Iterator` reads, and what its cache holds; else {}."""
    if loader is None:  # a loader without an end has no truth value
        loader = next((dataset for dataset in _datasets_of(source) if hasattr(dataset, "stats")), None)
    if loader is None:
        return {}
    cache = loader.report()["cache"]
    cached = {f"cache_{name}": cache[name] for name in ("records", "capacity", "of") if name in cache}
    numbers = {**loader.stats, **cached}
    return {name: float(value) for name, value in numbers.items() if isinstance(value, (int, float))}
