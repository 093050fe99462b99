"""What a training has done and used up to a moment, the difference between two moments, and the files that have all of them.

What a pipeline of tf.data is made of, and the buffers and work of its stages, are in the model that its autotuner keeps
(`tf.data.experimental.get_model_proto`). It can be read from another thread while the consumer waits, in about 40 µs. tfprep's
loader has counters of its own.

No public name leads from an iterator to its datasets. `iterator._dataset`, `Dataset._inputs` and `Dataset._functions` do so
(tried with TensorFlow 2.21): they find tfprep's loader before a `.map`, and functions that call Python. Without them a cause is
named by its stage, and that of a loader before a `.map` is not known.
"""

from __future__ import annotations

import json
import logging
import os
import socket
import struct
import time
import weakref
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, BinaryIO

from tfprep.limits import CpuTimes
from tfprep.records import frame
from tfprep.records.example import varint
from tfprep.train.backend import is_tensor_iterator
from tfprep.train.monitor.waits import Waits

_LOG = logging.getLogger("tfprep.train")
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


def slowest(spent: tuple[Stage, ...], least_s: float = 0.0) -> Stage | None:
    """Return the stage of tf.data that spent the most time in its own code for each of its threads, at least `least_s` in all.

    TensorFlow forgets the work of a stage whose iterator has ended, and counts that of an element when the element is done. A
    prefetch has no work of its own.
    """
    working = [stage for stage in spent if stage.kind != "Prefetch" and stage.busy_s >= least_s]
    return max(working, key=lambda stage: stage.busy_s / stage.parallelism, default=None)


# --- the counters of tfprep's loader

GAUGES = frozenset(
    {"batches_ready", "batches_in_flight", "prefetch", "threads", "cache_bytes", "longest_wait_s"}
    | {"cache_records", "cache_capacity", "cache_of", "ops"}
)
"""Counters that are current values, not totals."""


def counters(loader: Any, source: Any) -> dict[str, float]:
    """Return the counters of tfprep's loader, or of that which a `tf.data.Iterator` reads, and what its cache holds; else {}.

    `ops` is 1 where it has ops or derived inputs, whose time its counters add to that of decoding.
    """
    if loader is None:  # a loader without an end has no truth value
        loader = next((dataset for dataset in _datasets_of(source) if hasattr(dataset, "stats")), None)
    if loader is None:
        return {}
    cache = loader.report()["cache"]
    cached = {f"cache_{name}": cache[name] for name in ("records", "capacity", "of") if name in cache}
    plan = loader.pipeline.plan if hasattr(loader, "pipeline") else None
    numbers = {**loader.stats, **cached, "ops": plan is not None and plan.reading.augmentation is not None}
    return {name: float(value) for name, value in numbers.items() if isinstance(value, (int, float))}


# --- all of it at a moment


@dataclass(frozen=True)
class Sample:
    """One moment of a training: totals since its beginning, and what is in use now. `since` makes the totals differences.

    Attributes:
        time: Unix time in seconds; of a difference the seconds between the two.
        step: Batches trained on so far.
        waits: The waits for input; empty where they are not measured: before the first step, and under a distribution strategy.
            In `InputMonitor.samples` and in `input.jsonl` they are those since the sample before.
        cpu: Processor time in seconds, of this process and of others.
        cpus: Processors that this process may use.
        rss: Resident memory of this process in bytes.
        available: Bytes of memory that may still be taken.
        gpus: Device to (bytes in use, peak), of what the backend allocated.
        stages: Buffers of a pipeline of tf.data, the consumer's side first.
        readers: Counters of tfprep's loader, by name.
        between_s: Seconds that the trainer has spent between steps since `fit` began, in callbacks and in Keras's loop.
        validation_s: Seconds of validation since `fit` began.
        traces: How often the train step has been traced (TensorFlow), or any function compiled (JAX); 0 if not counted.
        compile_s: Seconds of tracing and compiling so far, where the backend counts them (JAX).
        pipeline: The transformations of the pipeline, as the program has written them.
    """

    time: float
    step: int
    waits: Waits
    cpu: CpuTimes
    cpus: int = 1
    rss: int = 0
    available: int = 0
    gpus: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    stages: tuple[Stage, ...] = ()
    readers: Mapping[str, float] = field(default_factory=dict)
    between_s: float = 0.0
    validation_s: float = 0.0
    traces: int = 0
    compile_s: float = 0.0
    pipeline: Pipeline = field(default_factory=Pipeline)

    def since(self, before: Sample) -> Sample:
        """Return what has passed since an earlier moment in place of every total."""
        stages = {stage.name: stage for stage in before.stages}
        counted = {
            name: value if name in GAUGES else value - before.readers.get(name, 0.0)
            for name, value in self.readers.items()
        }
        return replace(
            self,
            time=max(self.time - before.time, 1e-9),
            waits=self.waits.since(before.waits),
            cpu=self.cpu.since(before.cpu),
            stages=tuple(stage.with_work(stages.get(stage.name), -1) for stage in self.stages),
            readers=counted,
            between_s=self.between_s - before.between_s,
            validation_s=self.validation_s - before.validation_s,
            traces=max(0, self.traces - before.traces),
            compile_s=self.compile_s - before.compile_s,
        )

    def as_json(self) -> dict[str, Any]:
        """Return what is written to `input.jsonl`."""
        return {**asdict(replace(self, waits=Waits())), "waits": self.waits.as_json()}

    def as_scalars(self) -> dict[str, float]:
        """Return tag to value, for TensorBoard. Memory is in MB (10⁶ bytes)."""
        tags = {"share": "wait_share", "p50_ms": "wait_ms/p50", "p99_ms": "wait_ms/p99", "images_per_s": "images_per_s"}
        timed = {f"input/{tags[name]}": value for name, value in self.waits.as_json().items() if name in tags}
        memory = {"machine/rss_mb": self.rss / 1e6, "machine/available_mb": self.available / 1e6}
        elements = {f"buffers/elements/{stage.name}": float(stage.elements) for stage in self.stages}
        sizes = {f"buffers/mb/{stage.name}": stage.bytes / 1e6 for stage in self.stages}
        readers = {f"reader/{name}": value for name, value in self.readers.items()}
        gpus = {f"gpu/{name}_mb": used / 1e6 for name, (used, _) in self.gpus.items()}
        return {**timed, **memory, **elements, **sizes, **readers, **gpus}


# --- where they are written


class InputLog:
    """Appends to `<folder>/input.jsonl`, a line for each sample or warning; events for TensorBoard go to `<folder>/input/`.

    TensorBoard's file is a TFRecord file of `tensorflow.Event` messages, written without TensorFlow
    (https://github.com/tensorflow/tensorflow/blob/master/tensorflow/core/util/event.proto).
    """

    def __init__(self, folder: Path) -> None:
        (folder / "input").mkdir(parents=True, exist_ok=True)
        # TensorBoard reads the files of a folder in the order of their names, and so of their times.
        name = f"events.out.tfevents.{time.time():017.6f}.{socket.gethostname()}.{os.getpid()}"
        self._events = (folder / "input" / name).open("wb")
        self._lines = (folder / "input.jsonl").open("ab")
        self._failed = False
        self._write_event(_bytes(3, b"brain.Event:2"))

    def sample(self, sample: Sample) -> None:
        """Write a sample."""
        self._write_line(sample.as_json())
        scalars = sample.as_scalars().items()
        values = (_bytes(1, tag.encode()) + varint(2 << 3 | 5) + struct.pack("<f", value) for tag, value in scalars)
        summary = b"".join(_bytes(1, value) for value in values)
        self._write_event(varint(2 << 3) + varint(sample.step) + _bytes(5, summary))

    def warning(self, cause: str, text: str) -> None:
        """Write a warning."""
        self._write_line({"time": time.time(), "warning": {"cause": cause, "text": text}})

    def close(self) -> None:
        """Close both files."""
        self._events.close()
        self._lines.close()

    def _write_line(self, line: dict[str, Any]) -> None:
        self._write(self._lines, f"{json.dumps(line)}\n".encode())

    def _write_event(self, content: bytes) -> None:
        self._write(self._events, frame(varint(1 << 3 | 1) + struct.pack("<d", time.time()) + content))

    def _write(self, file: BinaryIO, content: bytes) -> None:
        if not self._failed:
            try:
                file.write(content)
                file.flush()
            except OSError as error:  # a monitor never ends a training, and would say so in each sample
                self._failed = True
                _LOG.warning("InputMonitor: %s cannot be written (%s), and is not continued", file.name, error)


# --- protocol buffers: a field has its number and its wire type, 1 for a double, 2 for bytes, 5 for a float


def _bytes(number: int, content: bytes) -> bytes:
    return varint(number << 3 | 2) + varint(len(content)) + content
