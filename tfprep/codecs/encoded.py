"""Codecs of image files: JPEG, small and fast to decode, which loses a little; PNG, exact, small for masks and slow for photos
and maps; Original, the bytes of the source's file, for recipes that do not change the image; Encoded, JPEG and PNG mixed in
TFRecords that another tool wrote, for reading only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Literal

import numpy as np

from tfprep import images
from tfprep.checks import require_whole
from tfprep.codecs.codec import Codec, Feature, image_feature, tensor_feature
from tfprep.errors import RecipeError, SampleError
from tfprep.fields import Array, FieldSpec, Kind
from tfprep.optional import HAS_OPENCV, cv2

_PNG_START = b"\x89PNG"
_OPAQUE = {"uint8": 255, "uint16": 65535}


@dataclass(frozen=True)
class Encoded(Codec):
    """The pixels that `tf.io.decode_image(channels=C)` returns, of JPEG and PNG mixed, with the channels of the field's spec.

    Gray is repeated for RGB, an alpha channel is dropped where the spec has none, and opaque where only the spec has one. The
    EXIF orientation is not applied, as in TensorFlow: boxes and masks belong to the pixels as they are stored. A mask [H, W] has
    one channel.
    """

    kinds: ClassVar = ("image", "mask")
    holds_jpeg: ClassVar = True

    def decode(self, feature: Any, spec: FieldSpec, shape: tuple[int, ...] | None = None) -> Array:
        data, channels = bytes(feature), _channels(spec)
        form = "JPEG" if images.is_jpeg(data) else "PNG"
        if form == "PNG" and not data.startswith(_PNG_START):
            raise SampleError(f"neither a JPEG nor a PNG: {len(data)} bytes that begin with {data[:8]!r}")
        read_jpeg = partial(images.decode_stored_jpeg, channels=min(channels, 3))
        pixels = read_jpeg(data) if form == "JPEG" else images.decode_png(data)
        if pixels.dtype != spec.dtype:
            raise SampleError(f"a {form} of {pixels.dtype}, expected {spec.dtype}")
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
            size, expected = (f"{array.shape[1]} x {array.shape[0]}" for array in (pixels, out))
            raise SampleError(f"an image of {size} pixels, expected {expected}")
        np.copyto(out, pixels)

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


def _channels(spec: FieldSpec) -> int:
    return 1 if len(spec.shape) == 2 else spec.shape[2] or 3


def _with_channels(pixels: Array, channels: int) -> Array:
    """The pixels [H, W, C] with another number of channels, where no value has to be computed."""
    stored = pixels.shape[2]
    if stored == channels:
        return pixels
    if stored in (2, 4) and channels == stored - 1:
        return pixels[:, :, :channels]
    color = pixels[:, :, :1] if stored <= 2 else pixels[:, :, :3]
    if channels < color.shape[2]:
        raise SampleError(f"an image of {stored} channels, expected {channels}")
    opaque = pixels[:, :, -1:] if stored in (2, 4) else np.full_like(pixels[:, :, :1], _OPAQUE[pixels.dtype.name])
    if channels == 2:
        return np.concatenate([color, opaque], axis=2)
    color = np.repeat(color, 3, axis=2) if color.shape[2] == 1 else color
    return color if channels == 3 else np.concatenate([color, opaque], axis=2)


@dataclass(frozen=True)
class Jpeg(Codec):
    """uint8 [H, W, 3] RGB or [H, W, 1] gray as JPEG of this `quality` (1 to 100) and chroma `subsampling`.

    Decoding is libjpeg-turbo's accurate integer DCT, bit-identical in simplejpeg, Pillow and TensorFlow
    (`dct_method="INTEGER_ACCURATE"`).
    """

    quality: int = 95
    subsampling: Literal["444", "422", "420"] = "420"
    kinds: ClassVar = ("image",)
    fix: ClassVar = "JPEG changes values; use Zstd(), Png() or Raw()"
    holds_jpeg: ClassVar = True

    def __post_init__(self) -> None:
        require_whole("Jpeg(quality=...)", self.quality, 1, 100, example=95)
        if self.subsampling not in ("444", "422", "420"):
            raise RecipeError(f"Jpeg(subsampling=...) is '444', '422' or '420', not {self.subsampling!r}")

    def encode(self, value: Any) -> Mapping[str, Feature]:
        if value.dtype != np.uint8 or value.ndim != 3 or value.shape[2] not in (1, 3):
            rule = f"JPEG holds uint8 [H, W, 3] or [H, W, 1], not {value.dtype} {list(value.shape)}"
            fix = "make 8-bit RGB of it (sources.Pixels(background=(255, 255, 255)), or to='uint8' of 16 bits)"
            raise SampleError(f"{rule}; use Zstd(), Png() or Raw(), or {fix}")
        return {"": images.encode_jpeg(value, self.quality, self.subsampling)}

    def decode(self, feature: Any, spec: FieldSpec, shape: tuple[int, ...] | None = None) -> Array:
        return images.decode_stored_jpeg(feature, channels=spec.shape[-1])

    def decode_into(self, feature: Any, spec: FieldSpec, out: Array) -> None:
        """`decode` into `out`, uint8 [H, W, C], C-contiguous. SampleError where the image is not of just that size."""
        images.decode_stored_jpeg(feature, channels=out.shape[2], out=out)

    def tf_decode(self, features: Mapping[str, Any], name: str, spec: FieldSpec) -> Any:
        import tensorflow as tf

        image = tf.io.decode_jpeg(features[name], channels=spec.shape[-1], dct_method="INTEGER_ACCURATE")
        return tf.ensure_shape(image, spec.shape)

    def tfds_feature(self, name: str, spec: FieldSpec, num_classes: int | None) -> Mapping[str, Any]:
        return {name: image_feature(spec, "jpeg")}


@dataclass(frozen=True)
class Png(Codec):
    """uint8 or uint16 [H, W] or [H, W, C] as PNG; `level` is zlib's, 0 (none) to 9 (smallest).

    C is 1, 3 or 4, and 2 for uint8 only.
    """

    level: int = 3
    kinds: ClassVar = ("image", "mask", "map")
    fix: ClassVar = "use Scalar(), Text() or Raw()"

    def __post_init__(self) -> None:
        require_whole("Png(level=...)", self.level, 0, 9, example=3)

    def encode(self, value: Any) -> Mapping[str, Feature]:
        return {"": images.encode_png(value, self.level)}

    def decode(self, feature: Any, spec: FieldSpec, shape: tuple[int, ...] | None = None) -> Array:
        pixels = images.decode_png(feature)
        return pixels[:, :, 0] if len(spec.shape) == 2 else pixels

    def decode_into(self, feature: Any, spec: FieldSpec, out: Array) -> None:
        """`decode` into `out`, [H, W] or [H, W, C], C-contiguous. SampleError where the image is not of that size and type."""
        if out.shape[2:] in ((2,), (4,)) or not HAS_OPENCV:
            pixels = images.decode_png(bytes(feature))
            _copy(pixels[:, :, 0] if out.ndim == 2 else pixels, out)
            return
        images.check_png_size(feature)
        stored = cv2.imdecode(np.frombuffer(feature, np.uint8), cv2.IMREAD_UNCHANGED) if len(feature) else None
        if stored is None:
            raise SampleError("not a whole PNG image")
        if out.shape[2:] == (3,) and stored.shape == out.shape and stored.dtype == out.dtype:
            cv2.cvtColor(stored, cv2.COLOR_BGR2RGB, dst=out)
        else:
            _copy(stored, out)

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


def _copy(stored: Array, out: Array) -> None:
    expected = out.shape[:2] if out.shape[2:] == (1,) and stored.ndim == 2 else out.shape
    if stored.shape != expected or stored.dtype != out.dtype:
        raise SampleError(f"a PNG of {stored.dtype} {list(stored.shape)}, expected {out.dtype} {list(out.shape)}")
    np.copyto(out.reshape(stored.shape), stored)


@dataclass(frozen=True)
class Original(Codec):
    """The source file's bytes, untouched, in a recipe without geometry or color.

    An image that TensorFlow would read otherwise (EXIF-rotated, CMYK, 16 bit, palette, transparent, TIFF, WebP, ...) is
    stored as a PNG of its upright RGB pixels instead.

    A build accepts the files that a loader can decode, as tolerantly as Pillow. For most JPEGs (sequential ones) that is known
    from their segments, without their pixels; all other files are decoded. Statistics are those of a random sample: the first 2
    to 16 images of each shard, 128 or more in all. The mean of 128 photos is within 4 levels of that of all, the deviation
    within 2 (on average; 9 and 4 in 19 of 20 draws).
    """

    kinds: ClassVar = ("image",)
    fix: ClassVar = "Original keeps a photo's own file; use Zstd(), Png() or Raw()"
    holds_jpeg: ClassVar = True

    def encode(self, value: Any) -> Mapping[str, Feature]:
        """`value` is the file's bytes where they can be kept (`tfprep.images.keeps_original`), else the pixels."""
        return {"": value if isinstance(value, bytes) else images.encode_png(value, 3)}

    def spec(self, kind: Kind, value: Any) -> FieldSpec:
        size = images.stored_size(value) if isinstance(value, bytes) else value.shape[:2]
        return FieldSpec(kind, (*size, 3), "uint8")

    def decode(self, feature: Any, spec: FieldSpec, shape: tuple[int, ...] | None = None) -> Array:
        return images.decode_image(bytes(feature))

    def tf_decode(self, features: Mapping[str, Any], name: str, spec: FieldSpec) -> Any:
        """`decode_jpeg` reads PNG as well; `decode_image` has no `dct_method`."""
        import tensorflow as tf

        image = tf.io.decode_jpeg(features[name], channels=3, dct_method="INTEGER_ACCURATE")
        return tf.ensure_shape(image, spec.shape)

    def tfds_feature(self, name: str, spec: FieldSpec, num_classes: int | None) -> Mapping[str, Any]:
        return {name: image_feature(spec, "")}
