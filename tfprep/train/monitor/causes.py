"""What limits a training: one cause, with its own advice, from two samples and the wait between them.

For a pipeline of TensorFlow ops the cause is the stage that its autotuner's model shows as the slowest. Behind tfprep's loader
that model is off; there the reader's counters tell the causes apart: where batches were ready in the reader while the step
waited, something behind the loader limits.
"""

from __future__ import annotations

from dataclasses import dataclass

import keras

from tfprep.train.monitor.samples import Sample
from tfprep.train.monitor.stages import slowest

_STARVED = 0.5
"""Seconds for each second of waiting for input in which threads of this process were ready to run but had no processor."""
_OTHERS = 0.25
"""Share of the processors that other programs take."""
_BEHIND = 0.5
"""Where the reader kept its consumer waiting for less than this share of the step's wait, its batches were ready."""
_IDLE = 0.5
"""Share of the reading threads' time without work, although the step waited."""
_CACHED = 0.99
_PYTHON = 0.25
"""Share of the time between steps from which on Python is what limits."""


@dataclass(frozen=True)
class Cause:
    """What limits a training.

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


def _reader(now: Sample, before: Sample | None, waited_s: float) -> Cause | None:
    spent = {name: value - (before.readers.get(name, 0.0) if before else 0.0) for name, value in now.readers.items()}
    if not {"wait_s", "read_s", "decode_s", "idle_s"} <= set(spent):
        return None
    ready, most = now.readers.get("batches_ready", 0.0), now.readers.get("prefetch", 0.0)
    if spent["wait_s"] < _BEHIND * waited_s:
        return _behind_the_loader(now, before, ready, most)
    busy_s = spent["read_s"] + spent["decode_s"]
    if spent["idle_s"] > _IDLE * (busy_s + spent["idle_s"]) and most <= 2 and not _all_cached(spent):
        return Cause(
            "memory",
            f"the loader's memory limits: it has room for {most:.0f} batches in advance, and its threads wait for room",
            "Raise memory_budget of the loader, or make batches smaller",
        )
    return _reading_threads(now, spent)


def _behind_the_loader(now: Sample, before: Sample | None, ready: float, most: float) -> Cause:
    worst = slowest(now.stages, before.stages if before else ())
    where = f", most of all stage {worst.in_words()}" if worst else ""
    return Cause(
        "behind the loader",
        f"what comes after the loader limits{where}: {ready:.0f} of {most:.0f} batches are ready in the reader while the step "
        "waits for input",
        "Move the work of a `.map` behind the loader into the recipe, or give it num_parallel_calls=tf.data.AUTOTUNE",
    )


def _all_cached(spent: dict[str, float]) -> bool:
    return spent.get("records_cached", 0.0) > _CACHED * (
        spent.get("records_cached", 0.0) + spent.get("records_read", 0.0)
    )


def _reading_threads(now: Sample, spent: dict[str, float]) -> Cause:
    threads = f"on {now.readers.get('threads', 0.0):.0f} threads"
    if _all_cached(spent):
        return Cause(
            "copy",
            f"the loader limits while it copies rows from its cache {threads}",
            "Deliver uint8 and cast in the model (dtype=), and drop fields that are not used (inputs=, targets=)",
        )
    if spent["read_s"] > spent["decode_s"]:
        return Cause(
            "read",
            f"reading limits: the loader's threads spent {spent['read_s']:.1f} s reading and {spent['decode_s']:.1f} s "
            f"decoding {threads}",
            "Copy the dataset to a faster disk, give the loader's cache more memory_budget, or raise threads",
        )
    return Cause(
        "decode",
        f"decoding limits: the loader's threads spent {spent['decode_s']:.1f} s decoding and {spent['read_s']:.1f} s reading "
        f"{threads}",
        "Store smaller images or a codec that decodes faster (tfprep advise measures them), or give the job more processors",
    )
