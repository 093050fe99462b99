"""Other storage forms of a dataset's fields, with their predicted effect on its rate and size.

A form is measured on a few values of a field: bytes, and the time to decode.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import cast

import numpy as np

from tfprep.codecs import Codec, Jpeg, Raw, Zstd
from tfprep.dataset import Dataset
from tfprep.fields import RASTER_KINDS, Array, Kind
from tfprep.optional import cv2

REPEATS = 3
MOST_SPEED = 5.0
"""Beyond it a predicted speed is a difference of two nearly equal times: of PNG as raw 10 was predicted, and 30 to 70 came."""
_HELPS = 1.1
_SHOWN = 3


@dataclass(frozen=True)
class Rates:
    """What a loader without a cache took for an image.

    Attributes:
        cpu_ms: CPU milliseconds, of all threads and of the main program.
        decode_ms: Milliseconds of decoding, of all threads together.
        record_bytes: Bytes of its record on disk.
        disk_bytes_per_s: The rate of the disk where it limits; infinite elsewhere.
        cores: Cores that the loader may use.
    """

    cpu_ms: float
    decode_ms: float
    record_bytes: float
    disk_bytes_per_s: float
    cores: float

    def least_s(self, cpu_ms: float, nbytes: float) -> float:
        """Return the lower bound of seconds per image: all cores do only this work, and the disk is as fast as measured."""
        return max(cpu_ms / 1000 / self.cores, nbytes / self.disk_bytes_per_s)


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


def times(ratio: float) -> str:
    return f"{ratio:.1f} times" if ratio < 9.95 else f"{ratio:.0f} times"


@dataclass(frozen=True)
class Cost:
    """The median cost of a value in one form: bytes, and CPU milliseconds to decode."""

    bytes: float
    decode_ms: float


def codec_name(codec: Codec) -> str:
    """Return the name of a codec, such as `JPEG 95`, `PNG`, `Zstd` or `raw`."""
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


def changes_of(dataset: Dataset, split: str, rates: Rates, samples: int = 24) -> tuple[Change, ...]:
    """Return other storage forms of raster fields that help, the best first, from measurements on a few records."""
    positions = range(min(samples, dataset.split(split).samples))
    some = list(dataset.samples(split, 0, positions, list(dataset.manifest.fields)))
    values = {
        name: [np.asarray(sample[name]) for sample in some]
        for name, info in dataset.manifest.fields.items()
        if info.spec.kind in RASTER_KINDS and info.codec["codec"] != "original"
    }
    now = {name: cost(dataset.codecs[name], dataset.fields[name].kind, of) for name, of in values.items()}
    side = side_by_side(rates, sum(one.decode_ms for one in now.values()))
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
                speed, disk = gain(rates, now[name], cost(form, spec.kind, arrays), side)
                proposed.append(Change(name, codec_name(codec), then, speed, disk))
    helping = [change for change in proposed if change.speed > _HELPS]
    return tuple(sorted(helping, key=lambda change: -change.speed)[:_SHOWN])


def _halved(value: Array) -> Array:
    height, width = (max(1, round(length / 2)) for length in value.shape[:2])
    small = cv2.resize(value, (width, height), interpolation=cv2.INTER_AREA)
    return small.reshape(height, width, *value.shape[2:])


def side_by_side(rates: Rates, alone_ms: float) -> float:
    """Return how much longer decoding takes when all cores decode: they share caches, memory and hardware threads."""
    return min(3.0, max(1.0, rates.decode_ms / alone_ms)) if alone_ms else 1.0


def gain(rates: Rates, now: Cost, then: Cost, side: float) -> tuple[float, float]:
    """Return speed and disk as multiples of the current ones."""
    record = max(rates.record_bytes + then.bytes - now.bytes, 1.0)
    cpu_ms = max(rates.cpu_ms + side * (then.decode_ms - now.decode_ms), 0.02 * rates.cpu_ms)
    speed = rates.least_s(rates.cpu_ms, rates.record_bytes) / rates.least_s(cpu_ms, record)
    return min(speed, MOST_SPEED), record / rates.record_bytes
