"""Encoded: JPEG and PNG files in TFRecords that another tool wrote. Reading only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from tfprep import images
from tfprep.codecs.codec import Feature, image_feature, require_kind
from tfprep.errors import RecipeError, SampleError
from tfprep.fields import Array, FieldSpec, Kind

_PNG_START = b"\x89PNG"
_OPAQUE = {"uint8": 255, "uint16": 65535}


@dataclass(frozen=True)
class Encoded:
    """The pixels that `tf.io.decode_image(channels=C)` returns, of JPEG and PNG mixed, with the channels of the field's spec.

    Gray is repeated for RGB, an alpha channel is dropped where the spec has none, and opaque where only the spec has one. The
    EXIF orientation is not applied, as in TensorFlow: boxes and masks belong to the pixels as they are stored. A mask [H, W] has
    one channel.
    """

    def check(self, field: str, kind: Kind) -> None:
        require_kind(self, field, kind, ("image", "mask"), "it is read as it is stored")

    def encode(self, value: Any) -> Mapping[str, Feature]:
        raise RecipeError("Encoded() reads TFRecords of other tools; a recipe stores Jpeg(), Png() or Original()")

    def spec(self, kind: Kind, value: Any) -> FieldSpec:
        return FieldSpec(kind, value.shape, value.dtype.name)

    def decode(self, feature: Any, spec: FieldSpec, shape: tuple[int, ...] | None = None) -> Array:
        data, channels = bytes(feature), _channels(spec)
        pixels = images.decode_stored_jpeg(data, channels=min(channels, 3)) if _checked_jpeg(data) else _png(data, spec)
        pixels = _with_channels(pixels, channels)
        return pixels[:, :, 0] if len(spec.shape) == 2 else pixels

    def decode_into(self, feature: Any, spec: FieldSpec, out: Array) -> None:
        """`decode` into `out`, C-contiguous. SampleError where the image is not of that size and type."""
        if images.is_jpeg(bytes(feature[:3])) and out.dtype == np.uint8 and _channels(spec) in (1, 3):
            images.decode_stored_jpeg(
                feature, channels=_channels(spec), out=out if out.ndim == 3 else out.reshape(*out.shape, 1)
            )
            return
        pixels = self.decode(feature, spec)
        if pixels.shape != out.shape:
            raise SampleError(f"an image of {_size(pixels)} pixels, expected {_size(out)}")
        np.copyto(out, pixels)

    def tf_features(self, name: str, spec: FieldSpec) -> Mapping[str, Any]:
        import tensorflow as tf

        return {name: tf.io.FixedLenFeature([], tf.string)}

    def tf_decode(self, features: Mapping[str, Any], name: str, spec: FieldSpec) -> Any:
        """`decode_jpeg` and `decode_png` both read either format."""
        import tensorflow as tf

        content, channels = features[name], _channels(spec)
        if spec.dtype == "uint8" and channels in (1, 3):
            image = tf.io.decode_jpeg(content, channels=channels, dct_method="INTEGER_ACCURATE")
        else:
            image = tf.io.decode_png(content, channels=channels, dtype=tf.dtypes.as_dtype(spec.dtype))
        return tf.ensure_shape(image[:, :, 0] if len(spec.shape) == 2 else image, spec.shape)

    def tfds_feature(self, name: str, spec: FieldSpec, num_classes: int | None) -> Mapping[str, Any]:
        return {name: image_feature(spec, "")}

    def describe(self) -> dict[str, Any]:
        return {"codec": "encoded"}


def _channels(spec: FieldSpec) -> int:
    return 1 if len(spec.shape) == 2 else spec.shape[2] or 3


def _checked_jpeg(data: bytes) -> bool:
    """Whether it is a JPEG; SampleError where its header, or a PNG's, gives more pixels than are decoded."""
    if not images.is_jpeg(data) and not data.startswith(_PNG_START):
        raise SampleError(f"neither a JPEG nor a PNG: {len(data)} bytes that begin with {data[:8]!r}")
    images.stored_size(data)
    return images.is_jpeg(data)


def _png(data: bytes, spec: FieldSpec) -> Array:
    pixels = images.decode_png(data)
    if pixels.dtype != spec.dtype:
        raise SampleError(f"a PNG of {pixels.dtype}, expected {spec.dtype}")
    return pixels


def _with_channels(pixels: Array, channels: int) -> Array:
    """The pixels [H, W, C] with another number of channels, where no value has to be computed."""
    stored = pixels.shape[2]
    if stored == channels:
        return pixels
    if stored in (2, 4) and channels == stored - 1:
        return pixels[:, :, :channels]
    colour = pixels[:, :, :1] if stored <= 2 else pixels[:, :, :3]
    if channels < colour.shape[2]:
        raise SampleError(f"an image of {stored} channels, expected {channels}")
    opaque = pixels[:, :, -1:] if stored in (2, 4) else np.full_like(pixels[:, :, :1], _OPAQUE[pixels.dtype.name])
    if channels == 2:
        return np.concatenate([colour, opaque], axis=2)
    colour = np.repeat(colour, 3, axis=2) if colour.shape[2] == 1 else colour
    return colour if channels == 3 else np.concatenate([colour, opaque], axis=2)


def _size(pixels: Array) -> str:
    return f"{pixels.shape[1]} x {pixels.shape[0]}"
