"""JPEG: small and fast to decode; loses a little."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from tfprep import images
from tfprep.codecs.codec import Feature, image_feature, require_kind
from tfprep.errors import RecipeError, SampleError
from tfprep.fields import Array, FieldSpec, Kind


@dataclass(frozen=True)
class Jpeg:
    """uint8 [H, W, 3] RGB or [H, W, 1] gray as JPEG of this `quality` (1 to 100) and chroma `subsampling`.

    Decoding is libjpeg-turbo's accurate integer DCT, bit-identical in simplejpeg, Pillow and TensorFlow
    (`dct_method="INTEGER_ACCURATE"`).
    """

    quality: int = 95
    subsampling: Literal["444", "422", "420"] = "420"

    def __post_init__(self) -> None:
        if not 1 <= self.quality <= 100:
            raise RecipeError(f"Jpeg(quality=...) is from 1 to 100, not {self.quality!r}")
        if self.subsampling not in ("444", "422", "420"):
            raise RecipeError(f"Jpeg(subsampling=...) is '444', '422' or '420', not {self.subsampling!r}")

    def check(self, field: str, kind: Kind) -> None:
        require_kind(self, field, kind, ("image",), "JPEG changes values; use Png() or Raw()")

    def encode(self, value: Any) -> Mapping[str, Feature]:
        if value.dtype != np.uint8 or value.ndim != 3 or value.shape[2] not in (1, 3):
            rule = f"JPEG holds uint8 [H, W, 3] or [H, W, 1], not {value.dtype} {list(value.shape)}"
            raise SampleError(
                f"{rule}; use Png() or Raw(), or let the source make 8 bits of it (sources.Pixels(to='uint8'))"
            )
        return {"": images.encode_jpeg(value, self.quality, self.subsampling)}

    def spec(self, kind: Kind, value: Any) -> FieldSpec:
        return FieldSpec(kind, value.shape, "uint8")

    def decode(self, feature: Any, spec: FieldSpec, shape: tuple[int, ...] | None = None) -> Array:
        return images.decode_stored_jpeg(feature, channels=spec.shape[-1])

    def decode_into(self, feature: Any, spec: FieldSpec, out: Array) -> None:
        """`decode` into `out`, uint8 [H, W, C], C-contiguous. SampleError where the image is not of just that size."""
        images.decode_stored_jpeg(feature, channels=out.shape[2], out=out)

    def tf_features(self, name: str, spec: FieldSpec) -> Mapping[str, Any]:
        import tensorflow as tf

        return {name: tf.io.FixedLenFeature([], tf.string)}

    def tf_decode(self, features: Mapping[str, Any], name: str, spec: FieldSpec) -> Any:
        import tensorflow as tf

        image = tf.io.decode_jpeg(features[name], channels=spec.shape[-1], dct_method="INTEGER_ACCURATE")
        return tf.ensure_shape(image, spec.shape)

    def tfds_feature(self, name: str, spec: FieldSpec, num_classes: int | None) -> Mapping[str, Any]:
        return {name: image_feature(spec, "jpeg")}

    def describe(self) -> dict[str, Any]:
        return {"codec": "jpeg", "quality": self.quality, "subsampling": self.subsampling}
