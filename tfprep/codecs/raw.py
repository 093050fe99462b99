"""Codecs of arrays, numbers and text: Raw, the array's own bytes, large on disk with nothing to decode; Scalar and Text, an
Example's own lists; Texts, lists of strings in TFRecords that another tool wrote, for reading only.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from math import prod
from typing import Any, ClassVar, cast

import numpy as np

from tfprep import images
from tfprep.codecs.codec import Codec, Feature, cast_float, class_label_feature, tensor_feature
from tfprep.errors import RecipeError, SampleError
from tfprep.fields import Array, BoxFormat, FieldSpec, Kind, check_box_format, convert_boxes
from tfprep.optional import require_package

DTYPES = (
    *("bool", "uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64"),
    *("float16", "float32", "float64"),
)
RAW_DTYPES = (*DTYPES, "bfloat16")


def require_bfloat16() -> None:
    """Importing ml_dtypes teaches NumPy the name 'bfloat16'. Raises MissingDependencyError where it is not installed."""
    require_package("ml_dtypes", "bfloat16")
    import ml_dtypes  # noqa: F401


class Arrays(Codec):
    """Codecs of any array, cast to `dtype` where it is given, whose shape is stored beside it."""

    dtype: str | None

    def spec(self, kind: Kind, value: Any) -> FieldSpec:
        """The kind, shape and dtype of one value, as in `Codec`."""
        array = np.asarray(value)
        return FieldSpec(kind, array.shape, self.dtype or array.dtype.name)

    def needs_record(self, spec: FieldSpec) -> bool:
        """Return True where several sides differ."""
        return spec.shape.count(None) > 1

    def tfds_feature(self, name: str, spec: FieldSpec, num_classes: int | None) -> Mapping[str, Any]:
        """Return the bytes and the shape, which are what TensorFlow Datasets can be told of most arrays."""
        shape = tensor_feature((len(spec.shape),), "int64", "none")
        return {name: tensor_feature((), "string", "none"), f"{name}/shape": shape}


@dataclass(frozen=True)
class Raw(Arrays):
    """Any array as its little-endian bytes in C order, with its shape as `FIELD/shape`.

    With `dtype` the array is cast first, rounded to the nearest value of that type. A value that does not fit, such as 70,000 in
    float16, NaN in an integer type, or 2 in bool, is a SampleError: it is neither wrapped nor turned into infinity.
    """

    dtype: str | None = None
    kinds: ClassVar = ("image", "mask", "map", "boxes", "points", "label", "scalar")
    fix: ClassVar = "use Text()"
    tf_batches: ClassVar = True

    def __post_init__(self) -> None:
        check_dtype(self, self.dtype)

    def encode(self, value: Any) -> Mapping[str, Feature]:
        array = stored_array(value, self.dtype)
        return {"": array.tobytes(), "/shape": np.array(array.shape, np.int64)}

    def decode(self, feature: Any, spec: FieldSpec, shape: tuple[int, ...] | None = None) -> Array:
        shape = checked_shape(spec, len(feature), shape)
        array = np.frombuffer(feature, little(spec.dtype))
        if sys.byteorder == "big":
            array = array.astype(spec.dtype)
        return array.reshape(shape)

    def decode_into(self, feature: Any, spec: FieldSpec, out: Array) -> None:
        """`decode` into `out`, C-contiguous. Raises SampleError where the number of bytes is not that of `out`.

        On a little-endian machine a reader may read the bytes directly into `out` instead.
        """
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
        shape = features[f"{name}/shape"]
        if None in spec.shape:
            return tf.ensure_shape(tf.reshape(flat, shape), spec.shape)
        rule = f"the shape of '{name}' is not {list(spec.shape)} in all records"
        with tf.control_dependencies([tf.debugging.assert_equal(shape, tf.constant(spec.shape, tf.int64), rule)]):
            return tf.reshape(flat, (*(side or -1 for side in shape.shape[:-1]), *spec.shape))

    def tfds_feature(self, name: str, spec: FieldSpec, num_classes: int | None) -> Mapping[str, Any]:
        if spec.shape.count(None) <= 1 and spec.dtype not in ("uint32", "bfloat16"):
            return {name: tensor_feature(spec.shape, spec.dtype, "bytes")}
        # TFDS has no decoder for uint32 (`tf.io.decode_raw` has none), no bfloat16, and would expect another layout for several
        # unknown sizes. One feature that it cannot decode makes the whole dataset unreadable.
        return super().tfds_feature(name, spec, num_classes)


def check_dtype(codec: Codec, dtype: str | None) -> None:
    """Raise RecipeError unless arrays can be stored as this type; None is that of each array."""
    if dtype is not None and dtype not in RAW_DTYPES:
        raise RecipeError(f"{type(codec).__name__}(dtype=...) is one of {', '.join(RAW_DTYPES)}, not {dtype!r}")
    if dtype == "bfloat16":
        require_bfloat16()


def stored_array(value: Any, dtype: str | None) -> Array:
    """Return a value as it is stored: cast to `dtype`, little-endian. SampleError where it does not fit, or is not numbers."""
    array = np.asarray(value)
    if dtype is not None and array.dtype != dtype:
        array = _cast(array, np.dtype(dtype))
    if array.dtype.name not in RAW_DTYPES:
        raise SampleError(f"only arrays of numbers can be stored so, not {array.dtype}")
    return array.astype(little(array.dtype), copy=False)


@cache
def little(dtype: Any) -> np.dtype[Any]:
    """Return the dtype with little-endian bytes; NumPy knows bfloat16 only in the machine's own order."""
    known: np.dtype[Any] = np.dtype(dtype)
    return known if known.name == "bfloat16" else known.newbyteorder("<")


def _cast(array: Array, dtype: np.dtype[Any]) -> Array:
    """The array in another dtype. SampleError where a value would be wrapped, cut or made infinite."""
    if array.dtype.kind not in "biuf":
        raise SampleError(f"only arrays of numbers can be stored so, not {array.dtype}")
    if dtype.kind == "f" or dtype.name == "bfloat16":
        return cast_float(array, dtype)
    low, high = (0, 1) if dtype.kind == "b" else (np.iinfo(dtype).min, np.iinfo(dtype).max)
    # As numbers of Python, which compares them exactly: NumPy would round `high` to 2^31 or inf for an array of floats.
    least, most = (array.min().item(), array.max().item()) if array.size else (low, high)
    if not low <= least <= most <= high:
        raise SampleError(f"values from {least} to {most} do not fit into {dtype} ({low} to {high})")
    return (np.rint(array) if array.dtype.kind == "f" else array).astype(dtype)


def checked_shape(spec: FieldSpec, size: int, shape: tuple[int, ...] | None) -> tuple[int, ...]:
    """Return the shape of an array of `size` bytes. Raises SampleError where it takes another number, or is not the spec's.

    Args:
        spec: The field's spec.
        size: The number of bytes.
        shape: That of the record; None for the spec's, its one unknown side computed from the number of values.
    """
    itemsize = np.dtype(spec.dtype).itemsize
    if shape is None:
        if spec.shape.count(None) > 1:
            raise SampleError(f"a shape of {spec.shape} needs the record's own FIELD/shape")
        known = prod([side for side in spec.shape if side is not None]) * itemsize
        shape = tuple([size // max(known, 1) if side is None else side for side in spec.shape])
    elif len(shape) != len(spec.shape) or any(side not in (None, n) for side, n in zip(spec.shape, shape, strict=True)):
        raise SampleError(f"an array of the shape {list(shape)}, expected {list(spec.shape)}")
    expected = prod(shape) * itemsize
    if size != expected or min(shape, default=0) < 0:
        raise SampleError(f"an array of {size} bytes, expected {expected} of {spec.dtype} {list(shape)}")
    return shape


@dataclass(frozen=True)
class Scalar(Codec):
    """A number, or an array of them, as int64 or float32 (an Example has no other): labels, scalars, boxes, points.

    Floats are stored as float32, rounded; a float64 beyond its range is a SampleError. A build warns of whole numbers that are
    rounded, such as identifiers in a column with fractions. `Raw()` keeps float64.
    """

    kinds: ClassVar = ("label", "scalar", "boxes", "points")
    fix: ClassVar = "use Zstd(), Png() or Raw() for pixels"
    tf_batches: ClassVar = True

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
        return super().tfds_feature(name, spec, num_classes)


@dataclass(frozen=True)
class Text(Codec):
    """A string as UTF-8."""

    kinds: ClassVar = ("text",)
    fix: ClassVar = "use Scalar()"
    tf_batches: ClassVar = True

    def encode(self, value: Any) -> Mapping[str, Feature]:
        if not isinstance(value, str):
            raise SampleError(f"expected text, found {value!r}")
        return {"": value.encode("utf-8", "surrogateescape")}

    def spec(self, kind: Kind, value: Any) -> FieldSpec:
        return FieldSpec(kind, (), "string")

    def decode(self, feature: Any, spec: FieldSpec, shape: tuple[int, ...] | None = None) -> str:
        return bytes(feature).decode("utf-8", "surrogateescape")

    def tfds_feature(self, name: str, spec: FieldSpec, num_classes: int | None) -> Mapping[str, Any]:
        return {name: {"pythonClassName": "tensorflow_datasets.core.features.text_feature.Text", "text": {}}}


@dataclass(frozen=True)
class Boxes(Codec):
    """Boxes that another tool stored, read as x0, y0, x1, y1 in pixels of the image: float32 [N, 4].

    Attributes:
        features: The four features of one number per box, or the one feature of four numbers per box.
        format: Their form (`tfprep.convert_boxes`).
        image: The feature of the encoded image, whose size makes pixels of shares; "" for boxes that are stored in pixels.
    """

    features: Sequence[str]
    format: str
    image: str = ""
    kinds: ClassVar = ("boxes",)

    def __post_init__(self) -> None:
        check_box_format(self.format, "format")
        names = list(self.features) if isinstance(self.features, list | tuple) else []
        if len(names) not in (1, 4) or not all(isinstance(name, str) for name in (*names, self.image)):
            raise RecipeError(f"Boxes reads one feature, or four; got {self.features!r} and the image {self.image!r}")
        if self.format.startswith("rel_") != bool(self.image):
            raise RecipeError(f"Boxes: {self.format} and the image {self.image!r}; shares are those of an image")
        object.__setattr__(self, "features", names)

    def spec(self, kind: Kind, value: Any) -> FieldSpec:
        return FieldSpec(kind, (len(value), 4), "float32")

    def needs_record(self, spec: FieldSpec) -> bool:
        """True: its numbers are several features."""
        return True

    def decode(self, feature: Any, spec: FieldSpec, shape: tuple[int, ...] | None = None) -> Array:
        """The boxes; `feature` is a mapping with the features of the record. One that it lacks has no numbers."""
        columns = [np.asarray(feature.get(name, ()), np.float32) for name in self.features]
        if len({len(column) for column in columns}) != 1:
            counts = ", ".join(f"{len(one)} of {name!r}" for name, one in zip(self.features, columns, strict=True))
            raise SampleError(f"sides of the same boxes differ in number: {counts}")
        if len(columns) == 1 and len(columns[0]) % 4:
            raise SampleError(f"{len(columns[0])} numbers of {self.features[0]!r} are not boxes of four")
        boxes = np.stack(columns, -1).reshape(-1, 4)
        size = None
        if self.image:
            if len(content := feature.get(self.image, ())) != 1:
                raise SampleError(
                    f"the record has {len(content)} values of {self.image!r}, of whose size boxes are shares"
                )
            size = images.stored_size(bytes(content[0]))
        pixels: Array = convert_boxes(boxes, "xyxy", source=cast(BoxFormat, self.format), size=size)
        return pixels.astype(np.float32, copy=False)

    def tf_features(self, name: str, spec: FieldSpec) -> Mapping[str, Any]:
        import tensorflow as tf

        numbers = {
            feature: tf.io.FixedLenSequenceFeature([], tf.float32, allow_missing=True) for feature in self.features
        }
        return numbers | ({self.image: tf.io.FixedLenFeature([], tf.string)} if self.image else {})

    def tf_decode(self, features: Mapping[str, Any], name: str, spec: FieldSpec) -> Any:
        import tensorflow as tf

        boxes = tf.reshape(tf.stack([features[feature] for feature in self.features], -1), [-1, 4])
        size: Any = None
        if self.image:
            content = features[self.image]
            sides = tf.cond(
                tf.io.is_jpeg(content),
                lambda: tf.io.extract_jpeg_shape(content)[:2],
                lambda: tf.reverse(
                    tf.io.decode_raw(tf.strings.substr(content, 16, 8), tf.int32, little_endian=False), [0]
                ),
            )
            size = tf.unstack(tf.cast(sides, tf.float32), num=2)
        return tf.ensure_shape(convert_boxes(boxes, "xyxy", source=cast(BoxFormat, self.format), size=size), spec.shape)


@dataclass(frozen=True)
class Texts(Codec):
    """A list of strings, of one length or of different lengths; a feature that a record does not have is an empty list."""

    kinds: ClassVar = ("text",)

    def spec(self, kind: Kind, value: Any) -> FieldSpec:
        return FieldSpec(kind, (len(value),), "string")

    def decode(self, feature: Any, spec: FieldSpec, shape: tuple[int, ...] | None = None) -> list[str]:
        """The strings; `feature` is the content of a `BytesList`, or the list of its items."""
        items = feature if isinstance(feature, list) else _items(bytes(feature), spec.shape[0])
        return [bytes(item).decode("utf-8", "surrogateescape") for item in items]

    def tf_features(self, name: str, spec: FieldSpec) -> Mapping[str, Any]:
        import tensorflow as tf

        if None in spec.shape:
            return {name: tf.io.FixedLenSequenceFeature([], tf.string, allow_missing=True)}
        return {name: tf.io.FixedLenFeature(spec.shape, tf.string)}


def _items(content: bytes, expected: int | None) -> list[bytes]:
    """The items of a `BytesList`'s content. SampleError where it is none, or not of the expected length."""
    items, at = [], 0
    while at < len(content):
        size = shift = 0
        head = content[at + 1 : at + 6] if content[at] == 0x0A else b""  # the mark of an item
        start = at + 1 + next((n for n, byte in enumerate(head, 1) if byte < 0x80), len(content))
        if start > len(content):
            raise SampleError("its bytes are not a list of strings")
        for byte in content[at + 1 : start]:  # the length of an item, 7 bits in each byte
            size |= (byte & 0x7F) << shift
            shift += 7
        at = start + size
        items.append(content[start:at])
    if at > len(content) or (expected is not None and len(items) != expected):
        raise SampleError(f"a list of {len(items)} strings, expected {expected or 'whole ones'}")
    return items


def feature_value(codec: Codec, features: Mapping[str, Any], name: str) -> tuple[Any, tuple[int, ...] | None]:
    """Take a field's value from the features of a record.

    Args:
        codec: The field's codec.
        features: The features of the record.
        name: The name of the field's feature.

    Returns:
        The value as the codec decodes it, and its shape if the record holds one.

    Raises:
        SampleError: The record does not have exactly one value.
    """
    if isinstance(codec, Boxes):
        return features, None
    value = features.get(name, [])  # other tools leave a feature out where it has no values
    if not isinstance(codec, Scalar | Texts):
        if len(value) != 1:
            raise SampleError(f"the record has {len(value)} values of {name!r}, expected one")
        value = value[0]
    shape = features.get(f"{name}/shape")
    return value, None if shape is None else tuple(map(int, shape))
