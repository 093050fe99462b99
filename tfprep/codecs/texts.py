"""Texts: lists of strings in TFRecords that another tool wrote. Reading only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from tfprep.codecs.codec import Feature, require_kind, tensor_feature
from tfprep.errors import RecipeError, SampleError
from tfprep.fields import Array, FieldSpec, Kind

_ITEM = 0x0A


@dataclass(frozen=True)
class Texts:
    """A list of strings, of one length or of different lengths; a feature that a record does not have is an empty list."""

    def check(self, field: str, kind: Kind) -> None:
        require_kind(self, field, kind, ("text",), "it holds strings")

    def encode(self, value: Any) -> Mapping[str, Feature]:
        raise RecipeError("Texts() reads TFRecords of other tools; a recipe stores one string a field, as Text()")

    def spec(self, kind: Kind, value: Any) -> FieldSpec:
        return FieldSpec(kind, (len(value),), "string")

    def decode(self, feature: Any, spec: FieldSpec, shape: tuple[int, ...] | None = None) -> list[str]:
        """The strings; `feature` is the content of a `BytesList`, or the list of its items."""
        items = feature if isinstance(feature, list) else self.items(bytes(feature), spec).tolist()
        return [bytes(item).decode("utf-8", "surrogateescape") for item in items]

    def items(self, content: bytes, spec: FieldSpec) -> Array:
        """The items of a `BytesList`'s content, each as bytes: object [N]. SampleError where it is none, or of another length."""
        items, at = [], 0
        while at < len(content):
            size, start = _length(content, at)
            at = start + size
            items.append(content[start:at])
        expected = spec.shape[0]
        if at > len(content) or (expected is not None and len(items) != expected):
            raise SampleError(f"a list of {len(items)} strings, expected {expected or 'whole ones'}")
        array = np.empty(len(items), object)
        array[:] = items
        return array

    def tf_features(self, name: str, spec: FieldSpec) -> Mapping[str, Any]:
        import tensorflow as tf

        if None in spec.shape:
            return {name: tf.io.FixedLenSequenceFeature([], tf.string, allow_missing=True)}
        return {name: tf.io.FixedLenFeature(spec.shape, tf.string)}

    def tf_decode(self, features: Mapping[str, Any], name: str, spec: FieldSpec) -> Any:
        return features[name]

    def tfds_feature(self, name: str, spec: FieldSpec, num_classes: int | None) -> Mapping[str, Any]:
        return {name: tensor_feature(spec.shape, "string", "none")}

    def describe(self) -> dict[str, Any]:
        return {"codec": "texts"}


def _length(content: bytes, at: int) -> tuple[int, int]:
    """The length of the item whose tag stands at a position, and where its bytes begin."""
    if content[at] != _ITEM:
        raise SampleError("its bytes are no list of strings")
    size = shift = 0
    for position in range(at + 1, min(at + 6, len(content))):
        size |= (content[position] & 0x7F) << shift
        if content[position] < 0x80:
            return size, position + 1
        shift += 7
    raise SampleError("its bytes are no list of strings")
