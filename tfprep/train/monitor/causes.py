"""The causes that limit a training, ranked, each with its evidence and with advice that is not followed yet.

For a pipeline of TensorFlow ops the cause is the stage that its autotuner's model shows as the slowest. tfprep's loader has no
such model; its counters tell the causes apart: if batches were ready in the loader while the step waited, something after the
loader limits. What was not measured is not said, and advice depends on what the pipeline is made of.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import keras

from tfprep.train.monitor.samples import Sample, Stage, slowest
from tfprep.train.monitor.waits import Waits
from tfprep.units import number, size

_OTHERS_COUNT, _OTHERS_FIRST = 0.25, 0.55
"""Share of a program's time that other programs cost at which they are named, and at which they come before what they
slow down: more than half. Two programs that compute, beside one of two threads, cost half."""
_READY = 0.5
"""Share of the step's wait below which the reader kept its consumer waiting because its batches were ready."""
_IDLE = 0.5
"""Share of the reading threads' time without work, although the step waited."""
_CACHED = 0.99
_FILLING = 0.1
"""Share of the records that were read for a cache that is to hold them all."""
_WORKING = 0.1
"""Share of the step's wait that a stage worked at least, if it is what the step waited for."""
_PYTHON = 0.25
"""Share of the time between steps, or in validation, from where it is what limits."""
_RETRACED = 0.1
"""Share of the steps that were traced again."""
_COMPILING = 0.25


@dataclass(frozen=True)
class Cause:
    """A limit of a training.

    Attributes:
        kind: "filling", "shuffle", "python map", "map", "stage", "hand-over", "processors", "memory", "fetch", "read", "decode",
            "copy" or "unknown" (input); "python", "retracing", "validation" or "step".
        text: What limits and the evidence, as a clause.
        advice: What to do about it, as a sentence; empty where nothing is to be done.
        share: Of the time that a limit of the step takes, from 0 to 1; 0 where that is not known.
    """

    kind: str
    text: str
    advice: str = ""
    share: float = 0.0


@dataclass(frozen=True)
class Verdict:
    """What limits a training, or some seconds of one: the result of `InputMonitor`, its warnings, and the limits of `bench`.

    Attributes:
        spent: What passed in the time (`Sample.since`).
        causes: What limits, the first most.
    """

    spent: Sample = field(repr=False)
    causes: tuple[Cause, ...]

    @property
    def waits(self) -> Waits:
        """The waits for input."""
        return self.spent.waits

    @property
    def cause(self) -> str:
        """The kind of the first cause."""
        return self.causes[0].kind

    @property
    def limit(self) -> str:
        """The causes as sentences, those after the first as what limits as well."""
        sentences = [f"{cause.text}{'. ' if cause.advice else ''}{cause.advice}" for cause in self.causes]
        return ". As well, ".join(sentences)

    @property
    def text(self) -> str:
        """The waits and the causes."""
        return f"{self.waits.in_words()}: {self.limit}"

    def as_json(self) -> dict[str, Any]:
        """Return the waits as in `input.jsonl`, the kinds of the `causes`, and the `limit` in words."""
        return {**self.waits.as_json(), "causes": [cause.kind for cause in self.causes], "limit": self.limit}


def verdict_of(spent: Sample, wait_share: float) -> Verdict | None:
    """Find what limits a training; None where its waits were not measured, or it took no time.

    Args:
        spent: What passed in the time (`Sample.since`), waits included.
        wait_share: The share of waiting for input, from 0 to 1, above which the input limits.
    """
    if (share := spent.waits.share) is None:
        return None
    of_step = _step_causes(spent, share)
    if share > wait_share:
        return Verdict(spent, (*(cause for cause in of_step if cause.share > share), *_input_causes(spent)))
    others = _others(spent, _lost(spent), "it")
    return Verdict(spent, (*of_step, *([others] if others else [])))


def warning_of(spent: Sample, wait_share: float) -> Verdict | None:
    """Return what is worth a warning about some seconds, or None.

    The step waits for more than `wait_share` of its time; where no batch came at all, for the whole of it.
    """
    waits = spent.waits
    if (waits.share or 0.0) <= wait_share or not (waits.batches or waits.pending_s >= waits.window_s):
        return None
    return Verdict(spent, tuple(_input_causes(spent)))


def _input_causes(spent: Sample) -> list[Cause]:
    """Find why the step waited for its input; the first is what limits most. See `verdict_of`."""
    of_input = _loader_cause(spent) or _stage_cause(spent)
    if of_input is None:
        of_input = Cause("unknown", "the input limits; it is an iterator of Python, and nothing is known about it")
        if spent.pipeline.kinds:
            text = "the input limits, in a stage that is not known, for autotune is off in this pipeline"
            of_input = Cause("unknown", text, "Leave options.autotune.enabled on")
    if (others := _others(spent, _lost_by_input(spent), "the input")) is None:
        return [of_input]
    return [others, of_input] if others.share > _OTHERS_FIRST else [of_input, others]


# --- the step


def _step_causes(spent: Sample, share: float) -> list[Cause]:
    """Say what limits beside the input, for which the step waited this share of the time; the first is what limits most."""
    window_s, steps = spent.waits.window_s, spent.waits.batches
    saved = f"a faster input would save at most {share:.0%} of the time"
    causes = []
    validation = spent.validation_s / (window_s + spent.validation_s)
    if validation > _PYTHON:
        text = f"validation takes {validation:.0%} of the time; {saved} of training"
        advice = "Validate less often (validation_freq=) or on fewer steps"
        causes.append(Cause("validation", text, advice, validation))
    compiling = spent.compile_s / window_s
    # JAX compiles small functions of its own in the first steps, and counts the time.
    if spent.traces > _RETRACED * steps > 0 and (compiling > _COMPILING or not spent.compile_s):
        text = f"the step was traced or compiled {spent.traces} times again in {steps} steps"
        text += f", which took {compiling:.0%} of the time" if spent.compile_s else ""
        advice = "Give it batches of one shape and tensors in place of Python values; RetraceGuard names what changed"
        causes.append(Cause("retracing", f"{text}; {saved}", advice, compiling or 0.5))
    between = spent.between_s / window_s
    if between > _PYTHON:
        advice = "Do less in callbacks"
        if keras.backend.backend() != "torch":  # where steps_per_execution is always 1
            advice = "Raise steps_per_execution in compile(), and do less in callbacks"
        text = f"the step limits; {saved}, and Python between the steps takes {between:.0%} of it"
        causes.append(Cause("python", text, advice, between))
    return sorted(causes, key=lambda cause: -cause.share) or [Cause("step", f"the step limits; {saved}")]


# --- other programs


def _others(spent: Sample, lost: float, waiting: str) -> Cause | None:
    """Return other programs as a cause where they cost the share `lost` of the time of what `waiting` names; else None."""
    others, own = spent.cpu.others / spent.time, spent.cpu.own / spent.time
    if others < _OTHERS_COUNT * spent.cpus or lost < _OTHERS_COUNT:
        return None
    text = f"other programs limit: they take {others:.1f} of {spent.cpus} processors ({others / spent.cpus:.0%})"
    text += f", and this one gets {own:.1f}, so that {waiting} lacks a processor for up to {lost:.0%} of its time"
    advice = (
        "End or move the other programs, or give this one processors of its own (taskset, the batch system's request)"
    )
    return Cause("processors", text, advice, lost)


def _lost(spent: Sample) -> float:
    """Return the share of this program's time that processors which others took could have saved: an upper bound.

    Without the others, it would take what its threads ask for, as far as there are processors.
    """
    own, lacking, others = (s / spent.time for s in (spent.cpu.own, spent.cpu.lacking, spent.cpu.others))
    if others <= 0 or own + lacking < 1:  # threads that mostly sleep wait for a processor too, but ask for little
        return 0.0
    return 1 - own / max(min(own + lacking, own + others, spent.cpus), own, 1e-9)


def _lost_by_input(spent: Sample) -> float:
    """Return the share of the input's time that processors which others took could have saved: an upper bound.

    No more was lost than all threads of this process waited for a processor, beside the time that the input's threads worked; and
    threads of the loader that wait for room do not lack a processor.
    """
    count = defaultdict(float, spent.readers)
    worked_s = count["read_s"] + count["decode_s"]
    busy = worked_s / (worked_s + count["idle_s"]) if worked_s else 1.0
    worked_s = worked_s or sum(stage.busy_s for stage in spent.stages)
    return busy * min(_lost(spent), spent.cpu.lacking / worked_s if worked_s > 0 else 1.0)


# --- tfprep's loader


def _loader_cause(spent: Sample) -> Cause | None:
    """Tell the causes within tfprep's loader apart by the seconds that its threads spent on each kind of work."""
    if not spent.readers:
        return None
    count = defaultdict(float, spent.readers)
    if count["wait_s"] < _READY * spent.waits.waited_s:
        return _after_the_loader(spent)
    read_s, decode_s, idle_s = count["read_s"], count["decode_s"], count["idle_s"]
    if count["requests"]:  # threads that have nothing to do wait for what is fetched, while the step waits
        read_s, idle_s = read_s + idle_s, 0.0
    from_cache, read = count["records_cached"], count["records_read"]
    if from_cache > _CACHED * (from_cache + read):
        text = f"the loader limits while it copies rows from its cache on {count['threads']:.0f} threads"
        return Cause("copy", text, "Drop fields that are not used (inputs=, targets=), or store smaller images")
    capacity = count["cache_capacity"]
    if 0 < count["cache_of"] <= capacity and read > _FILLING * (from_cache + read):
        text = f"the first epoch decodes and fills the loader's cache: {count['cache_records']:,.0f} of {capacity:,.0f} images "
        text += f"are in it; its threads spent {read_s:.1f} s reading and {decode_s:.1f} s decoding. Later epochs copy from it"
        return Cause("filling", text)
    if not capacity and count["prefetch"] <= 2 and idle_s > _IDLE * (read_s + decode_s + idle_s):
        text = f"the loader's memory limits: it has room for {count['prefetch']:.0f} batches in advance, and its threads wait "
        text += f"for room {idle_s / (read_s + decode_s + idle_s):.0%} of the time"
        return Cause("memory", text, "Raise memory_budget (or prefetch) of the loader, or make batches smaller")
    return _working(count, read_s, decode_s, spent.cpus)


def _working(count: Mapping[str, float], read_s: float, decode_s: float, cpus: int) -> Cause:
    """Tell reading, fetching and decoding apart, by the seconds that the loader's threads spent on them."""
    threads, requests = count["threads"], count["requests"]
    what = "waiting for what is fetched" if requests else "reading"
    decoding = "decoding with ops" if count["ops"] else "decoding"
    busy = f"limits: the loader's threads spent {read_s:.1f} s {what} and {decode_s:.1f} s {decoding} "
    busy += f"on {number(int(threads), 'thread')}"
    if read_s <= decode_s:
        advice = "Store smaller images or a codec that decodes faster (tfprep bench --forms measures them)"
        if count["ops"]:
            advice = "Move ops and derived inputs that need not differ between epochs from the loader to the recipe"
        advice += ", or give the job more processors"
        if threads < cpus:
            advice = f"Raise threads: {threads:.0f} of {cpus} processors decode"
        if 0 < count["cache_capacity"] < count["cache_of"]:
            share = count["cache_capacity"] / count["cache_of"]
            advice = f"Raise memory_budget: the cache has room for {share:.0%} of the records"
        return Cause("decode", f"{decoding} {busy}", advice)
    if requests:
        text = f"fetching {busy}; {requests:,.0f} requests brought {size(count['bytes_fetched'])}"
        advice = "Copy the dataset to a local disk, or raise memory_budget, so that more is fetched in advance"
        if requests > 0.5 * count["records_read"]:
            advice = "Copy the dataset to a local disk, or let order='sequential' join records to fewer requests"
        return Cause("fetch", text, advice)
    advice = "Copy the dataset to a faster disk, or keep decoded images (cache=)"
    if count["cache_capacity"]:
        advice = "Copy the dataset to a faster disk, or raise memory_budget, so that the cache holds more"
    return Cause("read", f"reading {busy}", advice)


def _after_the_loader(spent: Sample) -> Cause:
    worst = slowest(spent.stages, _WORKING * spent.waits.waited_s)
    count, python = defaultdict(float, spent.readers), bool(spent.pipeline.python)
    evidence = f"{count['batches_ready']:.0f} batches are ready in the reader while the step waits for input"
    if worst is None and not spent.pipeline.maps:
        advice = "Move work after the loader into the recipe; if there is none, use larger batches, and pad= for ragged fields"
        return Cause("hand-over", f"the hand-over of batches from the loader to the step limits: {evidence}", advice)
    where = f", most of all stage {worst.in_words()}" if worst else ""
    calls = ", and it calls Python for each element" if python else ""
    advice = _map_advice("Move the work of a `.map` after the loader into the recipe", worst, spent)
    kind = "python map" if python else "map"
    return Cause(kind, f"what comes after the loader limits{where}{calls}: {evidence}", advice)


# --- tf.data


def _stage_cause(spent: Sample) -> Cause | None:
    """Name the slowest stage of a pipeline of tf.data, and a shuffle buffer that it fills."""
    if (shuffle := next((stage for stage in spent.stages if stage.fills), None)) is not None:
        filled = f"{shuffle.elements:,} elements ({size(shuffle.bytes)}) so far"
        text = f"the shuffle buffer (stage {shuffle.name}) fills, {filled}; no step runs before it is full, at the start of "
        text += "every iterator"
        advice = "Shuffle file names or keys before decoding, shuffle less than the whole set, or read the records in a random "
        return Cause("shuffle", text, f"{advice}order (tfprep's loader has no shuffle buffer)")
    if (worst := slowest(spent.stages, _WORKING * spent.waits.waited_s)) is None:
        text = "the input limits, in a stage that has not noted its work yet"
        return Cause("unknown", text) if spent.stages else None
    cache = next((stage.depth for stage in spent.stages if "Cache" in stage.kind), None)
    if cache is not None and worst.depth > cache and worst.produced:
        text = f"the first epoch fills `.cache()`, and its stage {worst.in_words()} limits. Later epochs read from the cache"
        return Cause("filling", text)
    python = "Map" in worst.kind and bool(spent.pipeline.python)
    why = " and calls Python for each element" if python else ""
    kind = "python map" if python else "map" if "Map" in worst.kind else "stage"
    text = f"the input limits, most of all its stage {worst.in_words()}{why}"
    return Cause(kind, text, _map_advice("Compute once what is the same in each epoch (tfprep build)", worst, spent))


def _map_advice(first: str, worst: Stage | None, spent: Sample) -> str:
    """Add to `first` what the pipeline does not do yet."""
    if spent.pipeline.python:
        return f"{first}, or write it with TensorFlow ops"
    parallel = any(kind.startswith("Parallel") or "AndBatch" in kind for kind in spent.pipeline.kinds)
    parallel |= worst is not None and worst.parallelism > 1
    if parallel or not spent.pipeline.maps:
        return first
    return f"{first}, or give `map` num_parallel_calls=tf.data.AUTOTUNE"
