"""What else a field could be stored as, measured on a few of its values: bytes, time to decode, time to encode."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, cast

import cv2
import numpy as np

from tfprep.codecs import Codec, Jpeg, Png, Raw
from tfprep.fields import Array, FieldSpec, Kind

REPEATS = 3


@dataclass(frozen=True)
class Form:
    """A way to store a raster: its codec, and the factor by which it is made smaller before."""

    codec: Codec
    scale: float = 1.0

    def name(self, size: tuple[int, int]) -> str:
        """As `JPEG 95 at 112 x 112`."""
        told = codec_name(self.codec)
        height, width = (max(1, round(length * self.scale)) for length in size)
        return told if self.scale == 1 else f"{told} at {width} x {height}"

    def resized(self, value: Array) -> Array:
        if self.scale == 1:
            return value
        height, width = (max(1, round(length * self.scale)) for length in value.shape[:2])
        small = cv2.resize(value, (width, height), interpolation=cv2.INTER_AREA)
        return small.reshape(height, width, *value.shape[2:])


@dataclass(frozen=True)
class Cost:
    """One value in one form, the median of the sample: bytes, and milliseconds of one core to decode and to encode."""

    bytes: float
    decode_ms: float
    encode_ms: float


def codec_name(codec: Codec) -> str:
    """As `JPEG 95`, `PNG`, `raw`."""
    described = codec.describe()
    name = str(described["codec"])
    told = name.upper() if name in ("jpeg", "png") else name
    return f"{told} {described['quality']}" if "quality" in described else told


def cost(form: Form, kind: Kind, values: Sequence[Array]) -> Cost:
    """Encode and decode every value `REPEATS` times on one core. A raw value costs what it takes to copy it."""
    measured = [_cost_of_one(form.codec, kind, form.resized(value)) for value in values]
    sizes, decode_s, encode_s = (median(column) for column in zip(*measured, strict=True))
    return Cost(sizes, 1000 * decode_s, 1000 * encode_s)


def alternatives(kind: Kind, spec: FieldSpec) -> list[Form]:
    """The forms that a field of this kind and dtype can take instead."""
    if kind == "image":
        return [Form(Raw()), Form(Jpeg(95)), Form(Jpeg(85)), Form(Jpeg(95), 0.5)]
    if kind in ("mask", "map") and spec.dtype in ("uint8", "uint16"):
        return [Form(Raw()), Form(Png())]
    return [Form(Raw())]


def _cost_of_one(codec: Codec, kind: Kind, value: Array) -> tuple[float, float, float]:
    features = codec.encode(value)
    content = cast(bytes, features[""])
    spec = codec.spec(kind, value)
    shape = tuple(int(n) for n in spec.shape if n is not None)
    out = np.empty(shape, spec.dtype)
    decode_into = getattr(codec, "decode_into", None)
    decode: Callable[[], Any] = (
        (lambda: decode_into(content, spec, out)) if decode_into else (lambda: codec.decode(content, spec, shape))
    )
    return float(len(content)), _seconds(decode), _seconds(lambda: codec.encode(value))


def _seconds(work: Callable[[], Any]) -> float:
    """CPU seconds of this thread: what others do meanwhile does not count."""
    times = []
    for _ in range(REPEATS):
        started = time.thread_time()
        work()
        times.append(time.thread_time() - started)
    return min(times)


def sample_values(samples: Sequence[Mapping[str, Any]], field: str) -> list[Array]:
    return [np.asarray(sample[field]) for sample in samples]
