"""The cause that limits a training, with its evidence and advice, as the warning of a sample and as the summary of a run.

For a pipeline of TensorFlow ops the cause is the stage that its autotuner's model shows as the slowest. Behind tfprep's loader
that model is off; there the reader's counters tell the causes apart: where batches were ready in the reader while the step
waited, something behind the loader limits.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import keras

from tfprep.train.monitor.clock import Waits, added
from tfprep.train.monitor.samples import MB, Sample, swap_rates
from tfprep.train.monitor.stages import slowest

_STARVED = 0.5
"""Seconds for each second of waiting for input in which threads of this process were ready to run but had no processor."""
_OTHERS = 0.25
"""Share of the processors that other programs take."""
_BEHIND = 0.5
"""Share of the step's wait below which the reader kept its consumer waiting because its batches were ready."""
_IDLE = 0.5
"""Share of the reading threads' time without work, although the step waited."""
_CACHED = 0.99
_PYTHON = 0.25
"""Share of the time between steps from which on Python is what limits."""


@dataclass(frozen=True)
class Cause:
    """A limit of a training.

    Attributes:
        kind: "stage", "behind the loader", "processors", "memory", "read", "decode", "copy", "unknown" (input); "python", "step".
        text: What limits, as a clause.
        advice: What to do about it, as a sentence.
    """

    kind: str
    text: str
    advice: str


def input_cause(now: Sample, before: Sample | None, waited_s: float) -> Cause:
    """Find why the step waited for its input.

    Args:
        now: The sample at the end of the time.
        before: The sample at its beginning; None counts from the start of the process.
        waited_s: Seconds that the step waited between the two.
    """
    return (
        _processors(now, before, waited_s)
        or _reader(now, before, waited_s)
        or _stage(now, before)
        or Cause(
            "unknown",
            "the input limits, in a stage that is not known, for autotune is off in this pipeline",
            "Leave options.autotune.enabled on, or pass reader= with counters of your own",
        )
    )


def step_cause(share: float, between_share: float | None) -> Cause:
    """Say what limits where the step hardly waits for input.

    Args:
        share: Share of the time that the step waited for input.
        between_share: Share of the time between steps, in callbacks and in Keras's loop; None where it is not known.
    """
    text = f"the step limits; a faster input would save at most {share:.0%} of the time"
    if between_share is None or between_share <= _PYTHON:
        return Cause("step", text, "")
    return Cause(
        "python",
        f"{text}, and Python between the steps takes {between_share:.0%} of it",
        "Do less in callbacks"
        if keras.backend.backend() == "torch"  # where steps_per_execution is always 1
        else "Raise steps_per_execution in compile(), and do less in callbacks",
    )


def _processors(now: Sample, before: Sample | None, waited_s: float) -> Cause | None:
    if before is None or waited_s <= 0:
        return None
    seconds = max(now.time - before.time, 1e-9)
    starved_s = now.machine.cpu_wait_s - before.machine.cpu_wait_s
    others = (now.machine.cpu_others_s - before.machine.cpu_others_s) / seconds
    own = (now.machine.cpu_s - before.machine.cpu_s) / seconds
    # Threads that mostly sleep wait for a processor too, but ask for little: below one processor that is not what limits.
    demand = own + starved_s / seconds
    if starved_s < _STARVED * waited_s or demand < 1:
        return None
    # Own threads may also wait for each other.
    if others < _OTHERS * now.machine.cpus or others < 0.5 * own:
        return None
    return Cause(
        "processors",
        f"other programs limit: they take {others:.1f} of {now.machine.cpus} processors, and this one gets {own:.1f}",
        "End or move the other programs, or give this one processors of its own (taskset, the batch system's request)",
    )


def _reader(now: Sample, before: Sample | None, waited_s: float) -> Cause | None:
    """Tell the causes behind tfprep's loader apart by the seconds that its threads spent on each kind of work."""
    spent = {name: value - (before.readers.get(name, 0.0) if before else 0.0) for name, value in now.readers.items()}
    if not {"wait_s", "read_s", "decode_s", "idle_s"} <= set(spent):
        return None
    read_s, decode_s, idle_s = spent["read_s"], spent["decode_s"], spent["idle_s"]
    from_cache, read = spent.get("records_cached", 0.0), spent.get("records_read", 0.0)
    all_cached = from_cache > _CACHED * (from_cache + read)
    prefetch, threads = now.readers.get("prefetch", 0.0), f"on {now.readers.get('threads', 0.0):.0f} threads"
    if spent["wait_s"] < _BEHIND * waited_s:
        worst = slowest(now.stages, before.stages if before else ())
        where = f", most of all stage {worst.in_words()}" if worst else ""
        return Cause(
            "behind the loader",
            f"what comes after the loader limits{where}: {now.readers.get('batches_ready', 0.0):.0f} of {prefetch:.0f} batches "
            "are ready in the reader while the step waits for input",
            "Move the work of a `.map` behind the loader into the recipe, or give it num_parallel_calls=tf.data.AUTOTUNE",
        )
    if idle_s > _IDLE * (read_s + decode_s + idle_s) and prefetch <= 2 and not all_cached:
        return Cause(
            "memory",
            f"the loader's memory limits: it has room for {prefetch:.0f} batches in advance, and its threads wait for room",
            "Raise memory_budget of the loader, or make batches smaller",
        )
    if all_cached:
        return Cause(
            "copy",
            f"the loader limits while it copies rows from its cache {threads}",
            "Deliver uint8 and cast in the model (dtype=), and drop fields that are not used (inputs=, targets=)",
        )
    if read_s > decode_s:
        return Cause(
            "read",
            f"reading limits: the loader's threads spent {read_s:.1f} s reading and {decode_s:.1f} s decoding {threads}",
            "Copy the dataset to a faster disk, give the loader's cache more memory_budget, or raise threads",
        )
    return Cause(
        "decode",
        f"decoding limits: the loader's threads spent {decode_s:.1f} s decoding and {read_s:.1f} s reading {threads}",
        "Store smaller images or a codec that decodes faster (tfprep advise measures them), or give the job more processors",
    )


def _stage(now: Sample, before: Sample | None) -> Cause | None:
    worst = slowest(now.stages, before.stages if before else ())
    if worst is None:
        return None
    return Cause(
        "stage",
        f"the input limits, most of all its stage {worst.in_words()}",
        "Compute once what is the same in each epoch (tfprep build), give `map` num_parallel_calls=tf.data.AUTOTUNE, and end "
        "the pipeline with prefetch",
    )


# --- warnings


@dataclass(frozen=True)
class Thresholds:
    """Limits from which on a sample is worth a warning.

    Attributes:
        wait_share: Share of the step spent waiting for input, from 0 to 1.
        fill_s: Seconds without a batch while a shuffle buffer fills.
        swap_mb_per_s: MB (10⁶ bytes) a second that the machine swaps in and out together.
    """

    wait_share: float = 0.1
    fill_s: float = 10.0
    swap_mb_per_s: float = 1.0


@dataclass(frozen=True)
class InputWarning:
    """A warning.

    Attributes:
        kind: "input" (the step waits), "shuffle" (a buffer fills) or "swap".
        text: What was seen, its cause, and what to do.
        cause: Of "input" the kind of the cause (see `tfprep.train.monitor.causes`); empty otherwise.
    """

    kind: str
    text: str
    cause: str = ""


def warnings_of(sample: Sample, before: Sample | None, limits: Thresholds) -> Iterator[InputWarning]:
    """Yield the warnings of a sample; `before` is the sample before it, None at the start, where buffers fill."""
    if before is None:
        return
    waits, machine = sample.waits, sample.machine
    elements_before = {stage.name: stage.elements for stage in before.stages}
    filling = [s for s in sample.stages if "Shuffle" in s.kind and s.elements > elements_before.get(s.name, 0)]
    if waits and waits.pending_s >= limits.fill_s and filling:
        stage, seconds = filling[0], sample.time - before.time
        grown = stage.elements - elements_before.get(stage.name, 0)
        yield InputWarning(
            "shuffle",
            f"no batch for {waits.pending_s:.0f} s: the shuffle buffer (stage {stage.name}) fills, {stage.elements:,} elements "
            f"({stage.bytes / MB:,.0f} MB) so far, {grown / seconds:,.0f} a second; no step runs before it is full, at the "
            "start of every iterator. Shuffle file names or keys before decoding, shuffle less than the whole set, or read the "
            "records in a random order (tfprep's loader has no shuffle buffer)",
        )
    elif waits and waits.batches and (waits.share or 0.0) > limits.wait_share:
        cause = input_cause(sample, before, waits.waited_s)
        yield InputWarning(
            "input",
            f"the train step waits for input {waits.share or 0:.0%} of its time (p50 {waits.quantile_ms(50):.1f} ms, p99 "
            f"{waits.quantile_ms(99):.1f} ms a batch, {waits.images_per_s or 0:,.0f} images/s): {cause.text}. {cause.advice}",
            cause.kind,
        )
    swapped_mb = sum(swap_rates(sample, before))
    if swapped_mb > limits.swap_mb_per_s:
        largest = max(sample.stages, key=lambda stage: stage.bytes, default=None)
        buffer = f"; the largest buffer is {largest.name} with {largest.bytes / MB:,.0f} MB" if largest else ""
        yield InputWarning(
            "swap",
            f"the machine swaps, {swapped_mb:,.1f} MB/s; this process uses {machine.rss / MB:,.0f} MB and "
            f"{machine.available / MB:,.0f} MB are free{buffer}. Shrink shuffle and prefetch buffers, shuffle before decoding, "
            "drop `cache()`, or run fewer workers: every step is slow once memory comes from disk",
        )


# --- the summary of a run


@dataclass(frozen=True)
class TrainingSummary:
    """A training without its start.

    Attributes:
        waits: All waits, as those of one window.
        cause: What limits.
    """

    waits: Waits
    cause: Cause

    def in_words(self) -> str:
        """Return two lines."""
        waits, advice = self.waits, f". {self.cause.advice}" if self.cause.advice else ""
        return (
            f"InputMonitor: {waits.batches:,} batches in {waits.window_s:,.1f} s, {waits.images_per_s:,.0f} images/s; "
            f"{waits.share:.0%} of the time waiting for input (p50 {waits.quantile_ms(50):.1f} ms, p99 "
            f"{waits.quantile_ms(99):.1f} ms a batch)\n"
            f"InputMonitor: {self.cause.text}{advice}"
        )


def summary(
    samples: Sequence[Sample], start: Waits | None, baseline: Sample | None, wait_share: float
) -> TrainingSummary | None:
    """Sum up samples.

    Args:
        samples: All samples of a training.
        start: The waits until the end of the first step, which traces and fills buffers; they are left out.
        baseline: A sample of that moment; None counts from the beginning.
        wait_share: The share of waiting from which on the input limits.

    Returns:
        The summary; None where fewer than two waits were measured.
    """
    measured = [sample for sample in samples if sample.waits is not None]
    waits = added([sample.waits for sample in measured if sample.waits is not None])
    waits = waits if start is None else waits.without(start)
    if waits.window_s <= 0 or waits.each_s.size < 2:
        return None
    last, share = measured[-1], waits.share or 0.0
    if share > wait_share:
        return TrainingSummary(waits, input_cause(last, baseline, waits.waited_s))
    before_s = (baseline.between_s or 0.0) if baseline else 0.0
    between = None if last.between_s is None else (last.between_s - before_s) / waits.window_s
    return TrainingSummary(waits, step_cause(share, between))
