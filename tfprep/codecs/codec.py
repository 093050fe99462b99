"""What every codec is: one stored field to and from the features of a `tf.train.Example`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol, TypeAlias

from tfprep.fields import Array, FieldSpec, Kind

Feature: TypeAlias = "bytes | Array"
"""One feature of an Example: bytes (a bytes list of one), an int64 array or a float32 array [N]."""


class Codec(Protocol):
    """A frozen dataclass of options.

    `encode` returns the features of one value by suffix: "" is stored under the field's own name, "/shape" under
    `FIELD/shape`. `decode` takes the feature named "" back (with the shape where records differ in it). `check` raises
    RecipeError where the codec cannot hold a field of this kind. `describe` is plain JSON, enough to build the codec again
    with `tfprep.codecs.from_description`.
    """

    def check(self, field: str, kind: Kind) -> None: ...

    def encode(self, value: Any) -> Mapping[str, Feature]: ...

    def decode(self, feature: Any, spec: FieldSpec, shape: tuple[int, ...] | None = None) -> Any: ...

    def tf_features(self, name: str, spec: FieldSpec) -> Mapping[str, Any]:
        """For `tf.io.parse_single_example`: feature name to `tf.io.FixedLenFeature` and the like."""
        ...

    def tf_decode(self, features: Mapping[str, Any], name: str, spec: FieldSpec) -> Any:
        """The value as a tensor, from the parsed features: TensorFlow ops alone, the same values as `decode`."""
        ...

    def tfds_feature(self, name: str, spec: FieldSpec, num_classes: int | None) -> Mapping[str, Any]:
        """The entries of `features.json` for TensorFlow Datasets, by feature name."""
        ...

    def describe(self) -> dict[str, Any]: ...
