"""The protocol of derived inputs, and the fields that they read: each is taken from a sample and checked."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from tfprep.checks import require
from tfprep.errors import RecipeError, SampleError
from tfprep.fields import EFFECTS, KINDS, Array, Kind, Sample, Size
from tfprep.optional import CV_CHANNELS, cv2


def mask_of(sample: Sample, name: str) -> Array:
    """The mask [H, W] called `name`."""
    mask = field_of(sample, name)
    if mask.ndim != 2 or mask.dtype.kind not in "ui":
        raise SampleError(
            f"a mask is whole numbers [H, W]; {name!r} is {mask.dtype} {list(mask.shape)}", stage="derive", field=name
        )
    return mask


def merged(channels: Sequence[Array]) -> Array:
    """Arrays [H, W] as the channels of one: [H, W, C]."""
    if len(channels) > CV_CHANNELS:  # NumPy takes several times as long
        return np.stack(channels, axis=2)
    return np.asarray(cv2.merge(channels)).reshape(*channels[0].shape, len(channels))


def classes_of(mask: Array) -> list[int]:
    """The class numbers that occur in a mask, ascending. SampleError for numbers below 0."""
    return [int(number) for number in np.flatnonzero(np.bincount(counted_from_0(mask).ravel()))]


def counted_from_0(mask: Array) -> Array:
    """The mask. SampleError for numbers below 0."""
    if mask.dtype.kind == "i" and mask.min(initial=0) < 0:
        rule = f"class numbers count from 0; the mask holds {mask.min()}"
        raise SampleError(f"{rule}, give void pixels a class of their own, such as 255", stage="derive")
    return mask


def image_of(sample: Sample, name: str) -> Array:
    """The image uint8 [H, W, 3] called `name`."""
    image = field_of(sample, name)
    if image.ndim != 3 or image.dtype != np.uint8 or image.shape[2] not in (1, 3):
        raise SampleError(
            f"an image is uint8 [H, W, 3]; {name!r} is {image.dtype} {list(image.shape)}", stage="derive", field=name
        )
    return image


def points_of(sample: Sample, name: str) -> Array:
    """The points [N, 2] or more columns called `name`."""
    points = field_of(sample, name)
    if points.ndim != 2 or points.shape[1] < 2:
        raise SampleError(f"points are [N, 2] or [N, 3]; {name!r} is {list(points.shape)}", stage="derive", field=name)
    return points


def size_of(sample: Sample, name: str) -> Size:
    """(height, width) of the raster called `name`."""
    shape = field_of(sample, name).shape
    if len(shape) < 2:
        raise SampleError(f"{name!r} has the shape {list(shape)}, not a height and width", stage="derive", field=name)
    return int(shape[0]), int(shape[1])


def field_of(sample: Sample, name: str) -> Array:
    if name not in sample:
        raise RecipeError(
            f"a derived input asks for the field {name!r}, the sample has {sorted(sample)}; name one of them"
        )
    return np.asarray(sample[name])


class Derived(Protocol):
    """A frozen dataclass of options, or any function with this signature.

    Given the warped sample (rasters of one size) and a generator of its own, it returns the new field's array. The sample must
    not be changed. Raises SampleError where this sample cannot have the derived input. Attributes that it may have:

    - `kind`: the kind of the new field; without one it is a `map`.
    - `follows`: the part of `tfprep.fields.EFFECTS` under which a stored copy stays valid when it is moved like an image;
      without one, none. It means the map of the whole frame: after a crop, that shows distances to what is outside of the window.
    - `inputs`: the names of its options that name the fields that it reads; without one it may read all of them.
    """

    def __call__(self, sample: Sample, generator: np.random.Generator, /) -> Array: ...


@dataclass(frozen=True)
class Own:
    """A function of your own as a derived input.

    Attributes:
        function: Takes the sample and a generator, and returns the array of the new field.
        kind: The kind of the new field.
        follows: What its stored copy follows, of "crop", "flip", "resize" and "warp" (see `Derived`).
        reads: The fields that the function reads; None if it may read all of them.
    """

    function: Callable[[Sample, np.random.Generator], Array]
    kind: Kind = "map"
    follows: Collection[str] = ()
    reads: Sequence[str] | None = None

    def __post_init__(self) -> None:
        require(callable(self.function), "Own takes a function of (sample, generator)", self.function, "Own(function)")
        require(self.kind in KINDS, f"Own.kind is one of {', '.join(KINDS)}", self.kind, "for example 'map'")
        known = not isinstance(self.follows, str) and set(self.follows) <= EFFECTS
        rule = f"Own.follows holds names of {', '.join(sorted(EFFECTS))}"
        require(known, rule, self.follows, "for example {'crop', 'flip'}")
        object.__setattr__(self, "follows", tuple(sorted(self.follows)))
        names = self.reads is None or (not isinstance(self.reads, str) and all(isinstance(n, str) for n in self.reads))
        require(names, "Own.reads is a list of names of fields", self.reads, "for example ['mask']")

    def __call__(self, sample: Sample, generator: np.random.Generator, /) -> Array:
        return self.function(sample, generator)


def follows_of(derived: Any) -> frozenset[str]:
    """Return what a derived input follows, of `tfprep.fields.EFFECTS`; nothing if it does not say."""
    return frozenset(getattr(derived, "follows", ()))


def reads_of(derived: Any) -> frozenset[str] | None:
    """Return the fields that a derived input reads; None if it does not say, so that it may read all of them."""
    if isinstance(derived, Own):
        return None if derived.reads is None else frozenset(derived.reads)
    options: Sequence[str] | None = getattr(derived, "inputs", None)
    return None if options is None else frozenset(getattr(derived, name) for name in options) - {None}


def derived_kind(derived: Any) -> Kind:
    """Return the kind of a derived input; a map if it does not say."""
    kind: Kind = getattr(derived, "kind", "map")
    return kind
