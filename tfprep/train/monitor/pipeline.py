"""The buffers of a pipeline, stage by stage.

For tf.data they are in the model that its autotuner keeps (`tf.data.experimental.get_model_proto`). It can be read from another
thread while the consumer waits, in about 40 µs. tfprep's loader, or another reader outside tf.data, has counters of its own.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol

from tfprep.errors import TrainError
from tfprep.train.backend import is_tensor_iterator

Counters = Mapping[str, float]

READER = "Reader"
"""The kind of the stage that stands for tfprep's reader."""
_IN_MEMORY = ("Range", "Tensor", "TensorSlice")
"""Sources that are in memory."""
_WITHOUT_MODEL: weakref.WeakSet[Any] = weakref.WeakSet()
"""Iterators of which TensorFlow has no model."""


class HasStats(Protocol):
    """An object with counters of its own buffers, such as tfprep's loader; `stats` is a method or a property."""

    @property
    def stats(self) -> Counters | Callable[[], Counters]: ...


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
        per_element: How many elements of the stage before make one of its own; 0 where that is not fixed.
    """

    name: str
    elements: int
    bytes: int
    produced: int
    busy_s: float
    capacity: int
    parallelism: int
    per_element: float

    @property
    def kind(self) -> str:
        """The transformation, such as `Shuffle`."""
        return self.name.split("/", 1)[1]

    @property
    def ms_per_element(self) -> float:
        """Milliseconds of its own code for each element."""
        return 1e3 * self.busy_s / self.produced if self.produced else 0.0

    def in_words(self) -> str:
        """Return the name with the time."""
        threads = f" on {self.parallelism} threads" if self.parallelism > 1 else ""
        return f"{self.name} ({self.ms_per_element:.2f} ms an element{threads})"


@dataclass(frozen=True)
class Pipeline:
    """The transformations between the source and the consumer, as the program has written them; empty where they are not known.

    Attributes:
        kinds: Their kinds, such as `ParallelMap`, the consumer's side first.
        python: Those of them whose function calls Python for each element.
        floats: See `float_arrays`; None where that is not known.
    """

    kinds: tuple[str, ...] = ()
    python: tuple[str, ...] = ()
    floats: int | None = None

    @property
    def maps(self) -> tuple[str, ...]:
        """The transformations that call a function of the user."""
        return tuple(
            kind for kind in self.kinds if "Map" in kind or kind in ("Filter", "Interleave", "ParallelInterleave")
        )


def pipeline_of(iterator: Any) -> Pipeline:
    """Return the transformations before a `tf.data.Iterator`, as far as tfprep's loader, whose own are not the user's."""
    datasets = _datasets_of(iterator)
    if not datasets:
        return Pipeline()
    loader = next((number for number, dataset in enumerate(datasets) if hasattr(dataset, "stats")), len(datasets))
    datasets = datasets[: loader + 1]
    from tfprep.load.tensorflow.private import python_functions

    kinds = [type(dataset).__name__.strip("_").removesuffix("Dataset").removesuffix("V2") for dataset in datasets]
    python = [kind for kind, dataset in zip(kinds, datasets, strict=True) if python_functions(dataset)]
    return Pipeline(tuple(kinds), tuple(python), float_arrays(datasets[0], datasets[-1]))


def float_arrays(dataset: Any, source: Any) -> int:
    """Return how many components of an element are float arrays of rank 3 or more which tfprep's loader does not store so.

    Args:
        dataset: The `tf.data.Dataset` that the consumer reads.
        source: The loader that it reads, or another dataset, which stores nothing.
    """
    import tensorflow as tf

    specs = [spec for spec in tf.nest.flatten(dataset.element_spec) if isinstance(spec, tf.TensorSpec)]
    floats: int = sum(bool(spec.dtype.is_floating) and (spec.shape.rank or 0) >= 3 for spec in specs)
    if not hasattr(source, "pipeline"):
        return floats
    plan = source.pipeline.plan
    floating = {name for name, spec in plan.specs.items() if tf.as_dtype(spec.dtype).is_floating}
    rasters = [output for output in plan.outputs.outputs if len(output.shape) >= 2]
    return max(0, floats - sum(floating.issuperset(output.fields) for output in rasters))


def stages(iterator: Any) -> tuple[Stage, ...]:
    """Return the stages of tf.data before a `tf.data.Iterator`, the consumer's side first; none where autotune is off."""
    if not is_tensor_iterator(iterator) or iterator in _WITHOUT_MODEL:
        return ()
    datasets = _datasets_of(iterator)  # TensorFlow logs an error for each request of a model that does not exist
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
            name = f"{depth}/{node.name}"
            by_name[name] = _stage(depth, node, by_name.get(name))
    return tuple(by_name.values())


def work_since(now: tuple[Stage, ...], before: tuple[Stage, ...]) -> tuple[Stage, ...]:
    """Return stages with the work since `before` in place of their totals.

    Stages of the same name are others where they have passed on less: `repeat` makes its inputs again in each epoch.
    """
    known = {stage.name: stage for stage in before}
    same = {stage.name for stage in now if stage.name in known and stage.produced >= known[stage.name].produced}
    return tuple(_with_work(stage, known[stage.name], -1) if stage.name in same else stage for stage in now)


def added_work(total: tuple[Stage, ...], spent: tuple[Stage, ...]) -> tuple[Stage, ...]:
    """Add the work of some seconds to that of the seconds before; the buffers are those at the end."""
    old = {stage.name: stage for stage in total}
    new = {one.name: _with_work(one, old[one.name], 1) if one.name in old else one for one in spent}
    return tuple({**old, **new}.values())


def _with_work(stage: Stage, other: Stage, sign: int) -> Stage:
    return replace(stage, busy_s=stage.busy_s + sign * other.busy_s, produced=stage.produced + sign * other.produced)


def reader_stage(readers: Counters, depth: int) -> tuple[Stage, ...]:
    """Return the reader of tfprep's loader as a stage, from its counters; nothing where they are another reader's."""
    if not {"batches_ready", "batches", "read_s", "decode_s"} <= set(readers):
        return ()
    produced, ready = int(readers["batches"]), int(readers["batches_ready"])
    return (
        Stage(
            name=f"{depth}/{READER}",
            elements=ready,
            bytes=int(ready * readers.get("bytes_delivered", 0) / max(1, produced)),
            produced=produced,
            busy_s=readers["read_s"] + readers["decode_s"],
            capacity=int(readers.get("prefetch", 0)),
            parallelism=max(1, int(readers.get("threads", 1))),
            per_element=0.0,
        ),
    )


def loader_of(iterator: Any) -> HasStats | None:
    """Return the nearest dataset that an iterator reads and that has counters, such as tfprep's loader before a `.map`."""
    return next((dataset for dataset in _datasets_of(iterator) if hasattr(dataset, "stats")), None)


def _datasets_of(iterator: Any) -> list[Any]:
    if not is_tensor_iterator(iterator):
        return []
    from tfprep.load.tensorflow.private import datasets_behind

    return datasets_behind(iterator)


def checked(reader: HasStats | Callable[[], Counters] | None) -> HasStats | Callable[[], Counters] | None:
    """Return `reader`; raise a `TrainError` where it has no counters."""
    if reader is not None and not callable(getattr(reader, "stats", reader)) and not hasattr(reader, "stats"):
        raise TrainError(
            f"reader is an object with `stats` or a function that returns a dict of numbers, got {reader!r}; tfprep's loader "
            "is found without it"
        )
    return reader


def counters(*readers: HasStats | Callable[[], Counters] | None) -> dict[str, float]:
    """Return the numbers of the first reader that is not None: of its `stats`, or of the callable itself."""
    reader = next((one for one in readers if one is not None), None)  # a loader without an end has no truth value
    if reader is None:
        return {}
    if hasattr(reader, "report"):
        return loader_counters(reader)
    stats: Any = getattr(reader, "stats", reader)
    numbers: Counters = stats() if callable(stats) else stats
    return {name: float(value) for name, value in numbers.items() if isinstance(value, (int, float))}


def loader_wait_s(loader: Any) -> float:
    """Return the seconds that tfprep's loader has kept its consumer waiting."""
    return float(loader.stats["wait_s"])


def loader_counters(loader: Any) -> dict[str, float]:
    """Return the counters of tfprep's loader."""
    cache = loader.report()["cache"]
    cached = {f"cache_{name}": cache[name] for name in ("records", "capacity", "of") if name in cache}
    numbers = {**loader.stats, **cached}
    return {name: float(value) for name, value in numbers.items() if isinstance(value, (int, float))}


GAUGES = frozenset(
    {"batches_ready", "batches_in_flight", "prefetch", "threads", "cache_bytes"}
    | {"cache_records", "cache_capacity", "cache_of"}
)
"""Counters of a reader that are current values, not totals."""


def slowest(spent: tuple[Stage, ...]) -> Stage | None:
    """Return the stage of tf.data that spent the most time in its own code for each of its threads."""
    working = [stage for stage in spent if stage.kind not in (READER, "Prefetch")]  # a prefetch has no work of its own
    return max(working, key=lambda stage: stage.busy_s / stage.parallelism, default=None)


def stopped(now: tuple[Stage, ...]) -> tuple[Stage, ...]:
    """Return the stage that took elements in and passes none on, nearest to the source; else the source.

    A stage with a fixed ratio works on an element when the stage before has passed on more than it used and holds: a map that
    received 49 elements and passed on 48 works on one. A fused map and batch that holds a part of a batch either works on it or
    waits for more. Finished elements in the buffer of the map before it tell; else both it and the source are returned.
    """
    fused: tuple[Stage, ...] = ()
    pairs = list(zip(now[-2::-1], now[:0:-1], strict=True))
    for stage, before in pairs:
        # A fused map and batch counts the unfinished batch as an element of its buffer.
        buffered = 0 if "AndBatch" in stage.kind else stage.elements
        inside = before.produced - (stage.produced + buffered) * stage.per_element
        if stage.per_element and inside >= stage.per_element:
            return (stage,)
        if "AndBatch" in stage.kind and inside > 0:
            fused = (stage,) if before.per_element and before.elements else (stage, now[-1])
    if (
        now and now[-1].kind in _IN_MEMORY and pairs
    ):  # it never stops: what comes after it holds less than one element of its own
        holding = (stage for stage, before in pairs if before.produced > stage.produced * stage.per_element)
        return (next(holding, now[-2]),)
    return fused or now[-1:]


def _stage(depth: int, node: Any, sibling: Stage | None) -> Stage:
    """The stage of a node, together with a stage of the same kind and depth."""
    parameters = {parameter.name: int(parameter.value) for parameter in node.parameters}
    stage = Stage(
        name=f"{depth}/{node.name}",
        elements=int(node.buffered_elements),
        bytes=int(node.buffered_bytes),
        produced=int(node.num_elements),
        busy_s=node.processing_time / 1e9,
        capacity=parameters.get("buffer_size", 0),
        parallelism=max(1, parameters.get("parallelism", 1)),
        per_element=float(node.ratio),
    )
    if sibling is None:
        return stage
    summed = ("elements", "bytes", "produced", "busy_s", "capacity")
    numbers = {name: getattr(sibling, name) + getattr(stage, name) for name in summed}
    return replace(sibling, parallelism=max(sibling.parallelism, stage.parallelism), **numbers)
