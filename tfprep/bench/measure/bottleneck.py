"""The stage that limits the loader, in words, and the predicted effect of other storage forms."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tfprep.bench.advise.forms import Cost, StorageForm, alternatives, codec_name, cost, sample_values
from tfprep.bench.measure.stage_costs import StageCost, StageCosts
from tfprep.dataset import Dataset
from tfprep.fields import RASTER_KINDS

TAKEN = 0.25
"""Share of the cores that other programs take from which on they are what limits."""
MAP_SHARE = 0.5
"""From this share of the time per image on, what comes behind the loader's cache limits."""
SCARCE = 2
"""With room for so few batches in advance, threads wait for the consumer."""
WAITS_BELOW = 0.6
"""Reading that keeps less than this share of the cores busy waits for the disk."""


@dataclass(frozen=True)
class Change:
    """Another storage form of a field, with the predicted `speed` and `disk` as multiples of the current ones."""

    field: str
    now: str
    then: str
    speed: float
    disk: float

    @property
    def words(self) -> str:
        return f"store '{self.field}' as {self.then} instead of {self.now}: {times(self.speed)} the speed, " + (
            f"{times(self.disk)} the disk"
        )


@dataclass(frozen=True)
class Bottleneck:
    """What limits the loader on this machine, an explanation, and helpful changes, the best first.

    `stage` is a stage of loading, or "processors" (other programs take them), "memory" (no room to load ahead) or "copying" (from
    the loader's cache).
    """

    stage: str
    words: str
    changes: tuple[Change, ...]

    def lines(self) -> list[str]:
        return [self.words, *(change.words for change in self.changes)]


def times(ratio: float) -> str:
    return f"{ratio:.1f} times" if ratio < 9.95 else f"{ratio:.0f} times"


def explain(
    stages: StageCosts,
    cores: int,
    changes: Sequence[Change] = (),
    others: float = 0.0,
    prefetch: int | None = None,
    behind_cache: float | None = None,
) -> Bottleneck:
    """Explain the bottleneck.

    Args:
        stages: The measured cost of each stage.
        cores: Usable cores of the machine.
        changes: Other storage forms; those that help against this bottleneck are included.
        others: Share of the cores (0 to 1) that other programs use.
        prefetch: Batches that the loader's memory budget has room for in advance; None where something else decides.
        behind_cache: The share of the time (0 to 1) that the user's `.map` adds where the loader's cache has all records decoded;
            None where it has not.
    """
    if behind_cache is not None:
        return _behind_cache(behind_cache, stages.limit)
    stage = stages.limit
    free = cores * (1 - others)
    if others > TAKEN and others * cores > stages.top.cores.median / 2 and not _waits(stage, free):
        return _processors(others, cores, stages.top)
    if (
        prefetch is not None
        and prefetch <= SCARCE
        and stage.name in ("decoding", "batching")
        and _waits(stages.top, free)
    ):
        return _memory(prefetch, stages.top, cores)
    explanations: dict[str, Callable[[StageCost, int], str]] = {
        "reading": functools.partial(_reading, free=free),
        "decoding": _decoding,
        "batching": _batching,
        "tensorflow": _tensorflow,
        "map": _map,
    }
    helping = [change for change in changes if change.speed > 1.1] if stage.name in ("reading", "decoding") else []
    return Bottleneck(
        stage.name, explanations[stage.name](stage, cores), tuple(sorted(helping, key=lambda change: -change.speed)[:3])
    )


def _waits(stage: StageCost, free: float) -> bool:
    """Whether the cores have time left in which the stage waits for something else."""
    return stage.cores.median < WAITS_BELOW * free


def _processors(others: float, cores: int, top: StageCost) -> Bottleneck:
    words = f"other programs take {others * cores:.1f} of {cores} cores, and the loader gets {top.cores.median:.1f}"
    return Bottleneck("processors", f"processors: {words}; end them, and measure again for the loader's own limit", ())


def _memory(prefetch: int, top: StageCost, cores: int) -> Bottleneck:
    room = f"room for {prefetch} batch{'es' if prefetch > 1 else ''} in advance, {_at_work(top, cores)}"
    return Bottleneck("memory", f"memory: the loader's memory_budget has {room}; raise it, or make batches smaller", ())


def _behind_cache(share: float, first: StageCost) -> Bottleneck:
    words = f"in the first epoch '{first.words}' takes most of the time, and later epochs copy rows from the loader's full cache"
    if share > MAP_SHARE:
        added = f"the .map then adds {share:.0%} of the time per image"
        advice = "move its work to the recipe, or use TensorFlow ops on whole batches"
        return Bottleneck("map", f"your .map: {words}; {added}: {advice}", ())
    advice = "deliver uint8 and cast in the model, or drop fields that are not used"
    return Bottleneck("copying", f"copying: {words}; to make these faster, {advice}", ())


def _at_work(stage: StageCost, cores: int) -> str:
    return f"{stage.cores.median:.1f} of {cores} cores busy"


def _reading(stage: StageCost, cores: int, free: float) -> str:
    rate = f"{stage.bytes_per_s.median / 1e6:,.0f} MB/s, {_at_work(stage, cores)}"
    if waits_for_disk(stage, free):
        return f"reading: {rate}: the disk limits; smaller records, order='block' or a faster disk help"
    return f"reading: {rate}: copying the bytes into memory limits; smaller records help"


def _decoding(stage: StageCost, cores: int) -> str:
    return f"decoding: {_at_work(stage, cores)}"


def _batching(stage: StageCost, cores: int) -> str:
    return f"batching: {_at_work(stage, cores)}; larger batches or a larger `prefetch` help"


def _tensorflow(stage: StageCost, cores: int) -> str:
    return f"handing batches to TensorFlow: {_at_work(stage, cores)}; larger batches help"


def _map(stage: StageCost, cores: int) -> str:
    share = f"it adds {stage.share:.0%} of the time per image"
    return f"your .map: {share}, {_at_work(stage, cores)}; move its work to the recipe, or use TensorFlow ops on whole batches"


def waits_for_disk(reading: StageCost, cores: float) -> bool:
    return reading.cores.median < WAITS_BELOW * cores


# --- other forms ----------------------------------------------------------------------------------------------------


def changes_of(dataset: Dataset, split: str, stages: StageCosts, cores: float, samples: int = 24) -> list[Change]:
    """The predicted effect of every other storage form of each raster field, from measurements on a few records."""
    positions = range(min(samples, dataset.split(split).samples))
    some = list(dataset.samples(split, 0, positions))
    values = {
        name: sample_values(some, name)
        for name, spec in dataset.fields.items()
        if spec.kind in RASTER_KINDS and dataset.manifest.fields[name].codec["codec"] != "original"
    }
    now = {name: cost(StorageForm(dataset.codecs[name]), dataset.fields[name].kind, of) for name, of in values.items()}
    side = _side_by_side(stages, sum(one.decode_ms for one in now.values()))
    found = []
    for name, of_field in values.items():
        spec, codec = dataset.fields[name], dataset.codecs[name]
        size = of_field[0].shape[:2]
        for form in alternatives(spec.kind, spec):
            if codec_name(form.codec) == codec_name(codec) and form.scale == 1:
                continue
            speed, disk = _gain(stages, now[name], cost(form, spec.kind, of_field), side, cores)
            found.append(Change(name, codec_name(codec), form.name((size[0], size[1])), speed, disk))
    return found


def _side_by_side(stages: StageCosts, alone_ms: float) -> float:
    """The ratio of CPU time per image when all cores decode to when one does: cores share caches, memory and hardware threads."""
    decoding = stages.stage("decoding").cpu_ms.median - stages.stage("reading").cpu_ms.median
    return min(3.0, max(1.0, decoding / alone_ms)) if alone_ms else 1.0


def _gain(stages: StageCosts, now: Cost, then: Cost, side: float, cores: float) -> tuple[float, float]:
    """Speed and disk as multiples of the current ones."""
    top, reading = stages.top, stages.stage("reading")
    record = reading.bytes_per_s.median / reading.images_per_s.median
    disk = reading.bytes_per_s.median if waits_for_disk(reading, cores) else float("inf")

    def least_s(cpu_ms: float, nbytes: float) -> float:
        """The lower bound of seconds per image: all cores do only this work, and the disk is as fast as it was measured."""
        return max(cpu_ms / 1000 / cores, nbytes / disk)

    moved = max(record + then.bytes - now.bytes, 1.0)
    cpu_ms = max(top.cpu_ms.median + side * (then.decode_ms - now.decode_ms), 0.02 * top.cpu_ms.median)
    speed = least_s(top.cpu_ms.median, record) / least_s(cpu_ms, moved)
    return min(speed, 99), moved / record
