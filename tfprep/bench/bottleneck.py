"""The stage that limits the loader, in words, and the predicted effect of other storage forms.

Another form of a field is measured on a few of its values: bytes, and the time to decode.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import cast

import numpy as np

from tfprep.bench.stages import StageCost, StageCosts
from tfprep.codecs import Codec, Jpeg, Raw, Zstd
from tfprep.dataset import Dataset
from tfprep.fields import RASTER_KINDS, Array, Kind
from tfprep.limits import OTHERS_COUNT, OTHERS_FIRST, lost_to_others
from tfprep.optional import cv2
from tfprep.units import number

MAP_SHARE = 0.5
"""From this share of the time per image on, what comes behind the loader's cache limits."""
SCARCE = 2
"""With room for so few batches in advance, threads wait for the consumer."""
WAITS_BELOW = 0.6
"""A stage that keeps less than this share of the cores busy waits for a disk, or for other threads."""
REPEATS = 3
MOST_SPEED = 5.0
"""Beyond it a predicted speed is a difference of two nearly equal times: of PNG as raw 10 was predicted, and 30 to 70 came."""
_LARGE_BATCH = 32
"""From this size on, larger batches were not measurably faster to hand over."""


@dataclass(frozen=True)
class Change:
    """Another storage form of a field, with the predicted `speed` and `disk` as multiples of the current ones.

    A speed of `MOST_SPEED` stands for that or more.
    """

    field: str
    now: str
    then: str
    speed: float
    disk: float

    @property
    def words(self) -> str:
        more = " or more" if self.speed >= MOST_SPEED else ""
        return (
            f"store '{self.field}' as {self.then} instead of {self.now}: {times(self.speed)} the speed{more}, "
            f"{times(self.disk)} the disk"
        )


@dataclass(frozen=True)
class LoaderFacts:
    """Facts about the loader that advice depends on.

    Attributes:
        batch_size: Samples in a batch.
        prefetch: Batches that the memory budget has room for in advance; None where something else decides, such as a cache.
        cache: "filling" or "full" where the loader's cache is to hold all records decoded; else "".
        map_share: With a full cache, the share of the time (0 to 1) that the user's `.map` adds.
        python: Whether the user's `.map` calls Python for each batch.
        floats: Arrays of floats, of rank 3 or more, in a batch, that are not stored as floats.
        images_per_s: Of the loader as it was measured.
        cores: Cores that it kept busy then; None takes those of the last stage.
        starved: Its threads that were ready to run but had no processor, on average; None where that is not known.
    """

    batch_size: int = 32
    prefetch: int | None = None
    cache: str = ""
    map_share: float = 0.0
    python: bool = False
    floats: int = 0
    images_per_s: float = 0.0
    cores: float | None = None
    starved: float | None = None


@dataclass(frozen=True)
class Bottleneck:
    """The limit of the loader on this machine, an explanation, and helpful changes, the best first.

    `stage` is a stage of loading, or "processors" (other programs take them), "memory" (no room to load ahead), "filling" (the
    first epoch decodes for a cache that holds all records) or "copying" (from the loader's full cache).
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
    facts: LoaderFacts | None = None,
) -> Bottleneck:
    """Explain the bottleneck, with the evidence, and with advice that is not followed yet.

    Args:
        stages: The measured cost of each stage.
        cores: Usable cores of the machine.
        changes: Other storage forms; those that help against this bottleneck are included.
        others: Share of the cores (0 to 1) that other programs use.
        facts: Facts about the loader.
    """
    facts = facts or LoaderFacts()
    own = _own_limit(stages, cores, changes, others, facts)
    loader = stages.top.cores.median if facts.cores is None else facts.cores
    starved = facts.starved
    if starved is None:  # a stage that waits for a disk or for Python does not lack a core
        sleeps = (
            _waits(stages.limit, cores, others) and stages.limit.name in ("reading", "map") and facts.cache != "full"
        )
        starved = 0.0 if sleeps else float(cores)
    lost = lost_to_others(loader, starved, others * cores, cores)
    if others < OTHERS_COUNT or lost < OTHERS_COUNT:
        return own
    by_others = (
        f"other programs take {others * cores:.1f} of {cores} cores ({others:.0%}), and the loader gets {loader:.1f}"
    )
    if lost > OTHERS_FIRST:
        words = f"processors: {by_others}; end them, and measure again. Of the loader itself, {own.words}"
        return Bottleneck("processors", words, own.changes)
    return replace(own, words=f"{own.words}. As well, {by_others}")


def _waits(stage: StageCost, cores: int, others: float) -> bool:
    return stage.cores.median < WAITS_BELOW * cores * (1 - others)


def _own_limit(
    stages: StageCosts, cores: int, changes: Sequence[Change], others: float, facts: LoaderFacts
) -> Bottleneck:
    stage = stages.limit
    if facts.cache == "full":
        return _behind_cache(stages, facts)
    helping = [change for change in changes if change.speed > 1.1] if stage.name in ("reading", "decoding") else []
    helping = sorted(helping, key=lambda change: -change.speed)[:3]
    busy = f"{stage.cores.median:.1f} of {cores} cores busy, {stage.share:.0%} of the time per image"
    if facts.cache == "filling" and stage.name != "map":
        words = (
            f"filling the cache: the first epoch reads and decodes ('{stage.words}' takes most, {busy}) and reaches "
        )
        words += f"{stages.top.images_per_s.median:,.0f} images/s; later epochs copy from the cache, and were not reached here"
        return Bottleneck("filling", words, tuple(helping))
    few = facts.prefetch is not None and facts.prefetch <= SCARCE
    if facts.starved is None:
        idle = _waits(stages.top, cores, others)
    else:  # what others leave says nothing where threads ask for little
        idle = stages.top.cores.median + facts.starved < WAITS_BELOW * cores
    if few and stage.name in ("decoding", "batching") and idle:
        room = f"room for {facts.prefetch} batch{'es' if facts.prefetch != 1 else ''} in advance, {busy}"
        return Bottleneck(
            "memory", f"memory: the loader's memory_budget has {room}; raise it, or make batches smaller", ()
        )
    words = {
        "reading": "the disk limits; smaller records, order='block' or a faster disk help"
        if _waits(stage, cores, others)
        else "copying the bytes into memory limits; smaller records help",
        "decoding": "",
        "batching": "",
        "tensorflow": "larger batches need fewer hand-overs" if facts.batch_size < _LARGE_BATCH else "",
        "map": _map_advice(facts),
    }[stage.name]
    rate = f"{stage.bytes_per_s.median / 1e6:,.0f} MB/s, " if stage.name == "reading" else ""
    name = {"tensorflow": "handing batches to TensorFlow", "map": "your .map"}.get(stage.name, stage.name)
    return Bottleneck(stage.name, f"{name}: {rate}{busy}{'; ' if words else ''}{words}", tuple(helping))


def _map_advice(facts: LoaderFacts) -> str:
    return "move its work to the recipe" + (", or write it with TensorFlow ops" if facts.python else "")


def _behind_cache(stages: StageCosts, facts: LoaderFacts) -> Bottleneck:
    words = f"the first epoch reaches {stages.top.images_per_s.median:,.0f} images/s, of which '{stages.limit.words}' takes most "
    words += (
        f"of the time, and later epochs copy rows from the loader's full cache at {facts.images_per_s:,.0f} images/s"
    )
    if facts.map_share > MAP_SHARE:
        advice = _map_advice(facts)
        words = f"your .map: {words}; the .map then adds {facts.map_share:.0%} of the time per image: {advice}"
        return Bottleneck("map", words, ())
    if facts.floats:
        words += f"; {number(facts.floats, 'array')} delivered as floats: deliver uint8 and cast in the model"
    return Bottleneck("copying", f"copying: {words}", ())


# --- other forms


@dataclass(frozen=True)
class Cost:
    """The median cost of a value in one form: bytes, and CPU milliseconds to decode."""

    bytes: float
    decode_ms: float


def codec_name(codec: Codec) -> str:
    """The name of a codec, such as `JPEG 95`, `PNG`, `Zstd` or `raw`."""
    described = codec.describe()
    name = str(described["codec"])
    shown = {"jpeg": "JPEG", "png": "PNG", "zstd": "Zstd"}.get(name, name)
    return f"{shown} {described['quality']}" if "quality" in described else shown


def cost(codec: Codec, kind: Kind, values: Sequence[Array]) -> Cost:
    """Decode every value `REPEATS` times on one core; the least CPU time of each counts. Decoding a raw value is a copy."""
    measured = []
    for value in values:
        content, spec = cast(bytes, codec.encode(value)[""]), codec.spec(kind, value)
        shape = tuple(int(n) for n in spec.shape if n is not None)
        out, seconds = np.empty(shape, spec.dtype), []
        for _ in range(REPEATS):
            started = time.thread_time()  # does not depend on other programs
            if hasattr(codec, "decode_into"):
                codec.decode_into(content, spec, out)
            else:
                codec.decode(content, spec, shape)
            seconds.append(time.thread_time() - started)
        measured.append((len(content), min(seconds)))
    sizes, decode_s = (median(column) for column in zip(*measured, strict=True))
    return Cost(sizes, 1000 * decode_s)


def changes_of(dataset: Dataset, split: str, stages: StageCosts, cores: float, samples: int = 24) -> list[Change]:
    """The predicted effect of every other storage form of each raster field, from measurements on a few records."""
    positions = range(min(samples, dataset.split(split).samples))
    some = list(dataset.samples(split, 0, positions, list(dataset.manifest.fields)))
    values = {
        name: [np.asarray(sample[name]) for sample in some]
        for name, info in dataset.manifest.fields.items()
        if info.spec.kind in RASTER_KINDS and info.codec["codec"] != "original"
    }
    now = {name: cost(dataset.codecs[name], dataset.fields[name].kind, of) for name, of in values.items()}
    side = _side_by_side(stages, sum(one.decode_ms for one in now.values()))
    proposed = []
    for name, of_field in values.items():
        spec, codec = dataset.fields[name], dataset.codecs[name]
        forms: list[tuple[Codec, list[Array]]] = [(Raw(), of_field), (Zstd(), of_field)]
        if spec.kind == "image":
            halved = [_halved(value) for value in of_field]
            forms += [(Jpeg(95), of_field), (Jpeg(85), of_field), (Jpeg(95), halved)]
        for form, arrays in forms:
            then, (height, width) = codec_name(form), arrays[0].shape[:2]
            if arrays is not of_field:
                then += f" at {width} x {height}"
            if then != codec_name(codec):
                speed, disk = _gain(stages, now[name], cost(form, spec.kind, arrays), side, cores)
                proposed.append(Change(name, codec_name(codec), then, speed, disk))
    return proposed


def _halved(value: Array) -> Array:
    height, width = (max(1, round(length / 2)) for length in value.shape[:2])
    small = cv2.resize(value, (width, height), interpolation=cv2.INTER_AREA)
    return small.reshape(height, width, *value.shape[2:])


def _side_by_side(stages: StageCosts, alone_ms: float) -> float:
    """The ratio of CPU time per image when all cores decode to when one does: cores share caches, memory and hardware threads."""
    decoding = stages.stage("decoding").cpu_ms.median - stages.stage("reading").cpu_ms.median
    return min(3.0, max(1.0, decoding / alone_ms)) if alone_ms else 1.0


def _gain(stages: StageCosts, now: Cost, then: Cost, side: float, cores: float) -> tuple[float, float]:
    """Speed and disk as multiples of the current ones."""
    top, reading, record = stages.top, stages.stage("reading"), stages.record_bytes
    waits_for_disk = reading.cores.median < WAITS_BELOW * cores
    disk = reading.bytes_per_s.median if waits_for_disk else float("inf")

    def least_s(cpu_ms: float, nbytes: float) -> float:
        """The lower bound of seconds per image: all cores do only this work, and the disk is as fast as it was measured."""
        return max(cpu_ms / 1000 / cores, nbytes / disk)

    moved = max(record + then.bytes - now.bytes, 1.0)
    cpu_ms = max(top.cpu_ms.median + side * (then.decode_ms - now.decode_ms), 0.02 * top.cpu_ms.median)
    speed = least_s(top.cpu_ms.median, record) / least_s(cpu_ms, moved)
    return min(speed, MOST_SPEED), moved / record
