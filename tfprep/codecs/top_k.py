"""The codec of class scores: the largest ones only, as dataset reinforcement stores the outputs of a teacher."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np

from tfprep.codecs.codec import Codec, Feature, cast_float, tensor_feature
from tfprep.errors import RecipeError, SampleError
from tfprep.fields import Array, FieldSpec, Kind

_MOST_CLASSES = 1 << 31


@dataclass(frozen=True)
class TopK(Codec):
    """The `k` largest of [classes] logits, as probabilities: their class numbers and float16 values.

    The softmax of logits / `temperature` is taken in float64, its `k` largest values are kept (the first of equal ones), and the
    rest of 1 is spread evenly over the other classes when it is read, as in Faghri et al., "Reinforce Data, Multiply Impact"
    (ICCV 2023), and its code (ml-dr). It is delivered as float32 [classes], which sum to 1 up to the rounding of float16. Readers
    that name `FIELD/indices` and `FIELD/values` get int32 [k] and float32 [k] instead, the largest value first.

    On disk: `k` class numbers as uint16 (uint32 from 65,537 classes on), then `k` float16, little-endian.

    Attributes:
        k: The number of values that are kept.
        temperature: What logits are divided by before the softmax; None for values that are probabilities already.
    """

    k: int
    temperature: float | None = 1.0
    kinds: ClassVar = ("scalar",)
    fix: ClassVar = "it holds one score per class"

    def __post_init__(self) -> None:
        if isinstance(self.k, bool) or not isinstance(self.k, int) or self.k < 1:
            raise RecipeError(f"TopK(k) is a whole number from 1 on, not {self.k!r}")
        if self.temperature is not None and not 0 < self.temperature < math.inf:
            raise RecipeError(
                f"TopK(temperature=...) is a number above 0, or None for probabilities, not {self.temperature!r}"
            )

    def encode(self, value: Any) -> Mapping[str, Feature]:
        scores = np.asarray(value)
        if scores.ndim != 1 or scores.dtype.kind not in "fiu" or not 1 <= len(scores) < _MOST_CLASSES:
            raise SampleError(
                f"TopK holds one score per class, [classes] of numbers, not {scores.dtype} {list(scores.shape)}"
            )
        if not np.isfinite(scores).all():
            raise SampleError("TopK holds finite scores; there is NaN or infinity")
        share = self._shares(scores.astype(np.float64))
        largest = np.argsort(-share, kind="stable")[: self.k]
        values = cast_float(share[largest], np.float16).astype("<f2")
        return {"": largest.astype(_index_type(len(scores))).tobytes() + values.tobytes()}

    def _shares(self, scores: Array) -> Array:
        if self.temperature is None:
            if scores.min() < 0 or scores.max() > 1 or abs(scores.sum() - 1) > 1e-2:
                raise SampleError(
                    f"TopK(temperature=None) holds probabilities; these sum to {scores.sum():.4g}, from {scores.min():.4g} to "
                    f"{scores.max():.4g}. For logits, leave temperature at 1"
                )
            return scores
        with np.errstate(
            over="ignore"
        ):  # the largest is subtracted first: a small temperature makes others -inf, not NaN
            powers = np.exp((scores - scores.max()) / self.temperature)
        shares: Array = powers / powers.sum()
        return shares

    def spec(self, kind: Kind, value: Any) -> FieldSpec:
        return FieldSpec(kind, np.shape(value), "float32")

    def parts(self, spec: FieldSpec) -> Mapping[str, tuple[Codec, FieldSpec]]:
        """Codec and spec of what readers deliver as `FIELD/indices` and `FIELD/values`."""
        (classes,) = spec.shape
        return {
            half: (
                _Half(self.k, self.temperature, classes or 0, half),
                FieldSpec("scalar", (self._kept(classes),), dtype),
            )
            for half, dtype in _HALVES.items()
        }

    def decode(self, feature: Any, spec: FieldSpec, shape: tuple[int, ...] | None = None) -> Array:
        if None in spec.shape:
            raise SampleError("TopK needs the same number of classes in all samples")
        out = np.empty([size or 0 for size in spec.shape], spec.dtype)
        self.decode_into(np.frombuffer(feature, np.uint8), spec, out)
        return out

    def decode_into(self, feature: Any, spec: FieldSpec, out: Array) -> None:
        """`decode` into `out`, float32 [classes]. Raises SampleError where the bytes are not such values."""
        numbers, values = self._halves(feature, len(out))
        rest = max(0.0, 1.0 - float(values.sum(dtype=np.float64)))
        out[:] = rest / (len(out) - len(values)) if len(out) > len(values) else 0
        out[numbers] = values

    def _kept(self, classes: int | None) -> int:
        return min(self.k, classes or self.k)

    def _halves(self, feature: Any, classes: int) -> tuple[Array, Array]:
        """The class numbers and the float16 values. SampleError where the bytes are not such."""
        index_type, kept = _index_type(classes), self._kept(classes)
        content = memoryview(feature).tobytes()
        width = index_type.itemsize + 2
        if len(content) != kept * width:
            raise SampleError(
                f"{len(content)} bytes, expected {kept * width} of the {kept} largest of {classes} classes"
            )
        numbers = np.frombuffer(content, index_type, kept)
        if numbers.max() >= classes or len(np.unique(numbers)) < kept:
            raise SampleError(f"its class numbers are not {kept} different ones below {classes}")
        return numbers, np.frombuffer(content, "<f2", kept, kept * index_type.itemsize).astype(np.float32)

    def tf_decode(self, features: Mapping[str, Any], name: str, spec: FieldSpec) -> Any:
        import tensorflow as tf

        classes = spec.shape[0] or 0
        numbers, values = self._tf_halves(features[name], classes)
        kept = self._kept(classes)
        rest = tf.maximum(tf.constant(0, tf.float64), 1 - tf.reduce_sum(values)) / max(classes - kept, 1)
        dense = tf.tensor_scatter_nd_update(tf.fill([classes], rest), tf.reshape(numbers, [kept, 1]), values)
        return tf.cast(dense, tf.float32)

    def _tf_halves(self, content: Any, classes: int) -> tuple[Any, Any]:
        import tensorflow as tf

        index_type, kept = _index_type(classes), self._kept(classes)
        split = kept * index_type.itemsize
        readable = tf.uint16 if index_type.itemsize == 2 else tf.int32
        numbers = tf.cast(tf.io.decode_raw(tf.strings.substr(content, 0, split), readable), tf.int64)
        halves = tf.io.decode_raw(tf.strings.substr(content, split, 2 * kept), tf.float16)
        return tf.ensure_shape(numbers, [kept]), tf.ensure_shape(tf.cast(halves, tf.float64), [kept])

    def tfds_feature(self, name: str, spec: FieldSpec, num_classes: int | None) -> Mapping[str, Any]:
        return {name: tensor_feature((), "string", "none")}


_HALVES: Mapping[Literal["indices", "values"], str] = {"indices": "int32", "values": "float32"}
"""The parts of a field that readers can name, and their dtypes."""


@dataclass(frozen=True)
class _Half(TopK):
    """The class numbers, or the values, of what `TopK` stores. It only reads."""

    classes: int = 0
    half: Literal["indices", "values"] = "indices"

    def decode_into(self, feature: Any, spec: FieldSpec, out: Array) -> None:
        """`decode` into `out`, int32 or float32 [k]."""
        numbers, values = self._halves(feature, self.classes)
        out[:] = numbers if self.half == "indices" else values

    def tf_decode(self, features: Mapping[str, Any], name: str, spec: FieldSpec) -> Any:
        import tensorflow as tf

        numbers, values = self._tf_halves(features[name], self.classes)
        return tf.cast(numbers if self.half == "indices" else values, tf.dtypes.as_dtype(spec.dtype))


def _index_type(classes: int) -> np.dtype[Any]:
    return np.dtype("<u2" if classes <= 1 << 16 else "<u4")
