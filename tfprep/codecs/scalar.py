"""Numbers and text, stored as an Example's own lists."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from tfprep.codecs.codec import Feature, cast_float, class_label_feature, require_kind, tensor_feature
from tfprep.errors import SampleError
from tfprep.fields import Array, FieldSpec, Kind


@dataclass(frozen=True)
class Scalar:
    """A number, or an array of them, as int64 or float32 (an Example has no other): labels, scalars, boxes, points.

    Floats are stored as float32, rounded; a float64 beyond its range is a SampleError. `Raw()` keeps float64.
    """

    def check(self, field: str, kind: Kind) -> None:
        require_kind(self, field, kind, ("label", "scalar", "boxes", "points"), "use Png() or Raw() for pixels")

    def encode(self, value: Any) -> Mapping[str, Feature]:
        array = np.asarray(value)
        if array.dtype.kind not in "biuf":
            raise SampleError(f"expected a number, found {value!r}")
        if array.dtype.kind == "u" and array.size and array.max() > np.iinfo(np.int64).max:
            raise SampleError(f"{array.max()} does not fit into int64")
        flat = array.reshape(-1)
        return {"": cast_float(flat, np.float32) if array.dtype.kind == "f" else flat.astype(np.int64)}

    def spec(self, kind: Kind, value: Any) -> FieldSpec:
        array = np.asarray(value)
        return FieldSpec(kind, array.shape, "float32" if array.dtype.kind == "f" else "int64")

    def decode(self, feature: Any, spec: FieldSpec, shape: tuple[int, ...] | None = None) -> Array:
        return np.asarray(feature, spec.dtype).reshape([-1 if n is None else n for n in spec.shape])

    def tf_features(self, name: str, spec: FieldSpec) -> Mapping[str, Any]:
        import tensorflow as tf

        dtype = tf.dtypes.as_dtype(spec.dtype)
        if None in spec.shape:
            return {name: tf.io.FixedLenSequenceFeature([], dtype, allow_missing=True)}
        return {name: tf.io.FixedLenFeature(spec.shape, dtype)}

    def tf_decode(self, features: Mapping[str, Any], name: str, spec: FieldSpec) -> Any:
        import tensorflow as tf

        if None not in spec.shape:
            return features[name]
        shape = [-1 if n is None else n for n in spec.shape]
        return tf.ensure_shape(tf.reshape(features[name], shape), spec.shape)

    def tfds_feature(self, name: str, spec: FieldSpec, num_classes: int | None) -> Mapping[str, Any]:
        if spec.kind == "label" and spec.shape == () and num_classes:
            return {name: class_label_feature(num_classes)}
        return {name: tensor_feature(spec.shape, spec.dtype, "none")}

    def describe(self) -> dict[str, Any]:
        return {"codec": "scalar"}


@dataclass(frozen=True)
class Text:
    """A string as UTF-8."""

    def check(self, field: str, kind: Kind) -> None:
        require_kind(self, field, kind, ("text",), "use Scalar()")

    def encode(self, value: Any) -> Mapping[str, Feature]:
        if not isinstance(value, str):
            raise SampleError(f"expected text, found {value!r}")
        return {"": value.encode("utf-8", "surrogateescape")}

    def spec(self, kind: Kind, value: Any) -> FieldSpec:
        return FieldSpec(kind, (), "string")

    def decode(self, feature: Any, spec: FieldSpec, shape: tuple[int, ...] | None = None) -> str:
        return bytes(feature).decode("utf-8", "surrogateescape")

    def tf_features(self, name: str, spec: FieldSpec) -> Mapping[str, Any]:
        import tensorflow as tf

        return {name: tf.io.FixedLenFeature([], tf.string)}

    def tf_decode(self, features: Mapping[str, Any], name: str, spec: FieldSpec) -> Any:
        return features[name]

    def tfds_feature(self, name: str, spec: FieldSpec, num_classes: int | None) -> Mapping[str, Any]:
        return {name: {"pythonClassName": "tensorflow_datasets.core.features.text_feature.Text", "text": {}}}

    def describe(self) -> dict[str, Any]:
        return {"codec": "text"}
