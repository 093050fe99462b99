"""What all codecs are: a codec turns one stored field into features of a `tf.train.Example` and back."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import fields
from typing import Any, ClassVar, TypeAlias

import numpy as np

from tfprep.errors import RecipeError, SampleError
from tfprep.fields import Array, FieldSpec, Kind

Feature: TypeAlias = "bytes | Array"
"""One feature of an Example: bytes (a bytes list of one), an int64 array or a float32 array [N]."""


class Codec:
    """A frozen dataclass of options. What is here is a codec that reads only, of one feature of bytes that holds an array.

    `encode` returns the features of one value by suffix: "" is stored under the field's own name, "/shape" under
    `FIELD/shape`. `decode` takes the feature named "" back (with the shape where records differ in it). A codec of arrays also
    has `decode_into(feature, spec, out)`: the values of `decode` into `out`, C-contiguous; SampleError where they do not fit.

    Attributes:
        kinds: The kinds of fields that it holds.
        fix: What to do with a field of another kind.
        tf_batches: Whether `tf_decode` also takes a batch of records of one shape.
        holds_jpeg: Whether what is stored may be a JPEG of the image, which can be decoded at a reduced size.
    """

    kinds: ClassVar[tuple[Kind, ...]]
    fix: ClassVar[str] = "it reads TFRecords of other tools"
    tf_batches: ClassVar[bool] = False
    holds_jpeg: ClassVar[bool] = False

    def check(self, field: str, kind: Kind) -> None:
        """Raise RecipeError if the codec cannot hold a field of this kind."""
        if kind not in self.kinds:
            rule = f"store: {type(self).__name__} holds {', '.join(self.kinds)}; '{field}' has the kind {kind}"
            raise RecipeError(f"{rule}: {_CODECS.get(kind, self.fix)}")

    def encode(self, value: Any) -> Mapping[str, Feature]:
        raise RecipeError(f"{type(self).__name__}() reads TFRecords of other tools, and stores nothing")

    def spec(self, kind: Kind, value: Any) -> FieldSpec:
        """The kind, shape and dtype of one value once it is stored."""
        return FieldSpec(kind, value.shape, value.dtype.name)

    def decode(self, feature: Any, spec: FieldSpec, shape: tuple[int, ...] | None = None) -> Any:
        raise NotImplementedError

    def needs_record(self, spec: FieldSpec) -> bool:
        """Return True if decoding takes other features of the record, too."""
        return False

    def tf_features(self, name: str, spec: FieldSpec) -> Mapping[str, Any]:
        """For `tf.io.parse_single_example`: feature name to `tf.io.FixedLenFeature` and the like."""
        import tensorflow as tf

        return {name: tf.io.FixedLenFeature([], tf.string)}

    def tf_decode(self, features: Mapping[str, Any], name: str, spec: FieldSpec) -> Any:
        """The value as a tensor, from the parsed features, by TensorFlow ops only. The values are those of `decode`."""
        return features[name]

    def tfds_feature(self, name: str, spec: FieldSpec, num_classes: int | None) -> Mapping[str, Any]:
        """The entries of `features.json` for TensorFlow Datasets, by feature name."""
        return {name: tensor_feature(spec.shape, spec.dtype, "none")}

    def describe(self) -> dict[str, Any]:
        """Return plain JSON, enough to build the codec again with `tfprep.codecs.from_description`.

        A subclass of a user's is described as the codec that reads what it stores.
        """
        ours = next(kind for kind in type(self).__mro__ if kind.__module__.startswith("tfprep.codecs."))
        options = {option.name: getattr(self, option.name) for option in fields(ours)}
        return {"codec": codec_name(ours), **options}


_CODECS: Mapping[Kind, str] = {
    **dict.fromkeys(("label", "scalar", "boxes", "points"), "use Scalar()"),
    "text": "use Text()",
}
"""The fix for kinds that one codec is made for."""


def codec_name(codec: type) -> str:
    """Return the name of a codec in descriptions: `zstd` of `Zstd`."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", codec.__name__).lower()


def cast_float(array: Array, dtype: Any) -> Array:
    """The array in a floating dtype. SampleError where a finite value is too large for it."""
    with np.errstate(over="ignore"):
        narrow = array.astype(dtype)
    may_overflow = not np.can_cast(array.dtype, narrow.dtype)
    if may_overflow and not np.array_equal(np.isfinite(narrow), np.isfinite(array)):
        finite = array[np.isfinite(array)]
        low, high = float(abs(finite).min()), float(abs(finite).max())
        # NumPy does not know bfloat16.
        most = 3.38953139e38 if narrow.dtype.name == "bfloat16" else np.finfo(narrow.dtype).max
        rule = f"magnitudes from {low:.6g} to {high:.6g} do not fit into {narrow.dtype}, which ends at {most:.6g}"
        raise SampleError(f"{rule}; choose a wider dtype, or bound the values first (truncate_px=...)")
    return narrow


# --- the leaves of features.json (https://www.tensorflow.org/datasets/api_docs/python/tfds/features) ------------------

_FEATURES = "tensorflow_datasets.core.features"


def image_feature(spec: FieldSpec, encoding: str) -> dict[str, Any]:
    """An image; one of two dimensions has, to TensorFlow Datasets, a third of one channel."""
    dimensions = _dimensions(spec.shape if len(spec.shape) == 3 else (*spec.shape, 1))
    image: dict[str, Any] = {"dtype": spec.dtype, "shape": dimensions}
    if encoding:
        image["encodingFormat"] = encoding
    return {"pythonClassName": f"{_FEATURES}.image_feature.Image", "image": image}


def tensor_feature(shape: tuple[int | None, ...], dtype: str, encoding: str) -> dict[str, Any]:
    tensor = {"dtype": dtype, "encoding": encoding, "shape": _dimensions(shape)}
    leaf = "tensor_feature.Tensor" if shape or encoding != "none" else "scalar.Scalar"
    return {"pythonClassName": f"{_FEATURES}.{leaf}", "tensor": tensor}


def class_label_feature(num_classes: int) -> dict[str, Any]:
    return {
        "pythonClassName": f"{_FEATURES}.class_label_feature.ClassLabel",
        "classLabel": {"numClasses": str(num_classes)},
    }


def _dimensions(shape: tuple[int | None, ...]) -> dict[str, Any]:
    return {"dimensions": [str(-1 if n is None else n) for n in shape]} if shape else {}
