"""PNG: small for masks, exact; slow to decode for photos and maps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import cv2
import numpy as np

from tfprep import images
from tfprep.codecs.codec import Feature, image_feature, require_kind, tensor_feature
from tfprep.errors import RecipeError, SampleError
from tfprep.fields import Array, FieldSpec, Kind


@dataclass(frozen=True)
class Png:
    """uint8 or uint16 [H, W] or [H, W, C] as PNG; `level` is zlib's, 0 (none) to 9 (smallest).

    C is 1, 3 or 4, and 2 for uint8 alone.
    """

    level: int = 3

    def __post_init__(self) -> None:
        if not 0 <= self.level <= 9:
            raise RecipeError(f"Png(level=...) is from 0 to 9, not {self.level!r}")

    def check(self, field: str, kind: Kind) -> None:
        require_kind(self, field, kind, ("image", "mask", "map"), "use Scalar(), Text() or Raw()")

    def encode(self, value: Any) -> Mapping[str, Feature]:
        if value.dtype not in (np.uint8, np.uint16):
            raise SampleError(f"PNG holds uint8 and uint16, not {value.dtype}; store it as Raw()")
        return {"": images.encode_png(value, self.level)}

    def spec(self, kind: Kind, value: Any) -> FieldSpec:
        return FieldSpec(kind, value.shape, value.dtype.name)

    def decode(self, feature: Any, spec: FieldSpec, shape: tuple[int, ...] | None = None) -> Array:
        pixels = images.decode_png(feature)
        return pixels[:, :, 0] if len(spec.shape) == 2 else pixels

    def decode_into(self, feature: Any, spec: FieldSpec, out: Array) -> None:
        """`decode` into `out`, [H, W] or [H, W, C], C-contiguous. SampleError where the image is not of that size and type."""
        if out.shape[2:] in ((2,), (4,)):
            _copy(images.decode_png(bytes(feature)), out)
            return
        stored = cv2.imdecode(np.frombuffer(feature, np.uint8), cv2.IMREAD_UNCHANGED) if len(feature) else None
        if stored is None:
            raise SampleError("not a whole PNG image")
        if out.shape[2:] == (3,) and stored.shape == out.shape and stored.dtype == out.dtype:
            cv2.cvtColor(stored, cv2.COLOR_BGR2RGB, dst=out)
        else:
            _copy(stored, out)

    def tf_features(self, name: str, spec: FieldSpec) -> Mapping[str, Any]:
        import tensorflow as tf

        return {name: tf.io.FixedLenFeature([], tf.string)}

    def tf_decode(self, features: Mapping[str, Any], name: str, spec: FieldSpec) -> Any:
        import tensorflow as tf

        channels = spec.shape[2] if len(spec.shape) == 3 else 1
        dtype = tf.dtypes.as_dtype(spec.dtype)
        pixels = tf.io.decode_png(features[name], channels=4 if channels == 2 else channels, dtype=dtype)
        if channels == 2:
            pixels = tf.gather(pixels, [0, 3], axis=2)
        return tf.ensure_shape(pixels if len(spec.shape) == 3 else pixels[:, :, 0], spec.shape)

    def tfds_feature(self, name: str, spec: FieldSpec, num_classes: int | None) -> Mapping[str, Any]:
        if spec.shape[2:] == (2,):  # TensorFlow Datasets has no image of two channels: it gets the PNG's bytes
            return {name: tensor_feature((), "string", "none")}
        return {name: image_feature(spec, "png")}

    def describe(self) -> dict[str, Any]:
        return {"codec": "png", "level": self.level}


def _copy(stored: Array, out: Array) -> None:
    expected = out.shape[:2] if out.shape[2:] == (1,) and stored.ndim == 2 else out.shape
    if stored.shape != expected or stored.dtype != out.dtype:
        raise SampleError(f"a PNG of {stored.dtype} {list(stored.shape)}, expected {out.dtype} {list(out.shape)}")
    np.copyto(out.reshape(stored.shape), stored)
