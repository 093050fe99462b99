"""Raw: the array's own bytes. Large on disk, nothing to decode."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from tfprep.codecs.codec import Feature, cast_float, require_kind, tensor_feature
from tfprep.errors import RecipeError, SampleError
from tfprep.fields import Array, FieldSpec, Kind

DTYPES = (
    *("bool", "uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64"),
    *("float16", "float32", "float64", "complex64", "complex128"),
)


@dataclass(frozen=True)
class Raw:
    """Any array as its little-endian bytes in C order, with its shape as `FIELD/shape`.

    With `dtype` the array is cast first, rounded to the nearest value of that type. A value that does not fit, such as 70,000 in
    float16, NaN in an integer type, or 2 in bool, is a SampleError: it is neither wrapped nor turned into infinity.
    """

    dtype: str | None = None

    def __post_init__(self) -> None:
        if self.dtype is not None and self.dtype not in DTYPES:
            raise RecipeError(f"Raw(dtype=...) is one of {', '.join(DTYPES)}, not {self.dtype!r}")

    def check(self, field: str, kind: Kind) -> None:
        kinds: tuple[Kind, ...] = ("image", "mask", "map", "boxes", "points", "label", "scalar")
        require_kind(self, field, kind, kinds, "use Text()")

    def encode(self, value: Any) -> Mapping[str, Feature]:
        array = np.asarray(value)
        if self.dtype is not None and array.dtype != self.dtype:
            array = _cast(array, np.dtype(self.dtype))
        if array.dtype.name not in DTYPES:
            raise SampleError(f"Raw holds arrays of numbers, not {array.dtype}")
        little = array.astype(array.dtype.newbyteorder("<"), copy=False)
        return {"": little.tobytes(), "/shape": np.array(array.shape, np.int64)}

    def spec(self, kind: Kind, value: Any) -> FieldSpec:
        array = np.asarray(value)
        return FieldSpec(kind, array.shape, self.dtype or array.dtype.name)

    def decode(self, feature: Any, spec: FieldSpec, shape: tuple[int, ...] | None = None) -> Array:
        array = np.frombuffer(feature, np.dtype(spec.dtype).newbyteorder("<"))
        if sys.byteorder == "big":
            array = array.astype(spec.dtype)
        return array.reshape(shape if shape is not None else _shape(spec, array.size))

    def decode_into(self, feature: Any, spec: FieldSpec, out: Array) -> None:
        """`decode` into `out`, C-contiguous. Raises SampleError where the number of bytes is not that of `out`.

        On a little-endian machine a reader may read the bytes directly into `out` instead.
        """
        if len(feature) != out.nbytes:
            raise SampleError(f"{len(feature)} bytes, expected {out.nbytes} of {spec.dtype} {list(out.shape)}")
        np.copyto(out, self.decode(feature, spec, out.shape))

    def tf_features(self, name: str, spec: FieldSpec) -> Mapping[str, Any]:
        import tensorflow as tf

        return {
            name: tf.io.FixedLenFeature([], tf.string),
            f"{name}/shape": tf.io.FixedLenFeature([len(spec.shape)], tf.int64),
        }

    def tf_decode(self, features: Mapping[str, Any], name: str, spec: FieldSpec) -> Any:
        import tensorflow as tf

        dtype = tf.dtypes.as_dtype(spec.dtype)
        readable = {"uint32": tf.int32, "uint64": tf.int64}.get(spec.dtype, dtype)
        flat = tf.io.decode_raw(features[name], readable, little_endian=True)
        flat = flat if readable == dtype else tf.bitcast(flat, dtype)
        return tf.ensure_shape(tf.reshape(flat, features[f"{name}/shape"]), spec.shape)

    def tfds_feature(self, name: str, spec: FieldSpec, num_classes: int | None) -> Mapping[str, Any]:
        if spec.shape.count(None) <= 1 and spec.dtype != "uint32":
            return {name: tensor_feature(spec.shape, spec.dtype, "bytes")}
        # TFDS has no decoder for uint32 (`tf.io.decode_raw` has none), and would expect another layout for several unknown
        # sizes. One feature that it cannot decode makes the whole dataset unreadable: it gets the bytes and the shape instead.
        return {
            name: tensor_feature((), "string", "none"),
            f"{name}/shape": tensor_feature((len(spec.shape),), "int64", "none"),
        }

    def describe(self) -> dict[str, Any]:
        return {"codec": "raw", "dtype": self.dtype}


def _cast(array: Array, dtype: np.dtype[Any]) -> Array:
    """The array in another dtype. SampleError where a value would be wrapped, cut, made infinite or lose its imaginary part."""
    if array.dtype.kind not in "biufc":
        raise SampleError(f"Raw holds arrays of numbers, not {array.dtype}")
    if array.dtype.kind == "c" and dtype.kind != "c":
        raise SampleError(f"complex numbers do not fit into {dtype}; store them as complex64 or complex128")
    if dtype.kind in "fc":
        return cast_float(array, dtype)
    low, high = (0, 1) if dtype.kind == "b" else (np.iinfo(dtype).min, np.iinfo(dtype).max)
    if array.size and not (array.min() >= low and array.max() <= high):
        raise SampleError(f"values from {array.min()} to {array.max()} do not fit into {dtype} ({low} to {high})")
    return (np.rint(array) if array.dtype.kind == "f" else array).astype(dtype)


def _shape(spec: FieldSpec, size: int) -> tuple[int, ...]:
    """The spec's shape, its one unknown size computed from the number of values."""
    if None not in spec.shape:
        return tuple(n for n in spec.shape if n is not None)
    if spec.shape.count(None) > 1:
        raise ValueError(f"a shape of {spec.shape} needs the record's own FIELD/shape")
    known = prod(n for n in spec.shape if n is not None)
    return tuple(size // max(known, 1) if n is None else n for n in spec.shape)
