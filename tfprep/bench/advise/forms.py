"""Other storage forms of a field, measured on a few of its values: bytes, time to decode, time to encode."""

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
class StorageForm:
    """A way to store a raster: its codec, and the factor by which it is scaled down before."""

    codec: Codec
    scale: float = 1.0

    def name(self, size: tuple[int, int]) -> str:
        """The name of the form, such as `JPEG 95 at 112 x 112`."""
        codec = codec_name(self.codec)
        height, width = (max(1, round(length * self.scale)) for length in size)
        return codec if self.scale == 1 else f"{codec} at {width} x {height}"

    def resized(self, value: Array) -> Array:
        if self.scale == 1:
            return value
        height, width = (max(1, round(length * self.scale)) for length in value.shape[:2])
        small = cv2.resize(value, (width, height), interpolation=cv2.INTER_AREA)
        return small.reshape(height, width, *value.shape[2:])


@dataclass(frozen=True)
class Cost:
    """The median cost of a value in one form: bytes, and CPU milliseconds to decode and to encode."""

    bytes: float
    decode_ms: float
    encode_ms: float


def codec_name(codec: Codec) -> str:
    """The name of a codec, such as `JPEG 95`, `PNG` or `raw`."""
    described = codec.describe()
    name = str(described["codec"])
    shown = name.upper() if name in ("jpeg", "png") else name
    return f"{shown} {described['quality']}" if "quality" in described else shown


def cost(form: StorageForm, kind: Kind, values: Sequence[Array]) -> Cost:
    """Encode and decode every value `REPEATS` times on one core. Decoding a raw value is a copy."""
    measured = [_cost_of_one(form.codec, kind, form.resized(value)) for value in values]
    sizes, decode_s, encode_s = (median(column) for column in zip(*measured, strict=True))
    return Cost(sizes, 1000 * decode_s, 1000 * encode_s)


def alternatives(kind: Kind, spec: FieldSpec) -> list[StorageForm]:
    """The other forms that a field of this kind and dtype can have."""
    if kind == "image":
        return [StorageForm(Raw()), StorageForm(Jpeg(95)), StorageForm(Jpeg(85)), StorageForm(Jpeg(95), 0.5)]
    if kind in ("mask", "map") and spec.dtype in ("uint8", "uint16"):
        return [StorageForm(Raw()), StorageForm(Png())]
    return [StorageForm(Raw())]


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
    """CPU seconds of this thread, which do not depend on other programs."""
    times = []
    for _ in range(REPEATS):
        started = time.thread_time()
        work()
        times.append(time.thread_time() - started)
    return min(times)


def sample_values(samples: Sequence[Mapping[str, Any]], field: str) -> list[Array]:
    return [np.asarray(sample[field]) for sample in samples]
