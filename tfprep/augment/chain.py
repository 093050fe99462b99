"""Chains of ops: color ops with runs of tone curves as one look-up, and geometry with whole-sample ops in between."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeGuard

import numpy as np

from tfprep.augment.aligned import same_depth
from tfprep.augment.transform import ColorOp, GeometryOp, Transform, identity
from tfprep.augment.warp import warp_sample
from tfprep.errors import SampleError
from tfprep.fields import RASTER_KINDS, Array, ImageArray, Kind, Sample, raster_size
from tfprep.optional import cv2


class ToneOp:
    """A color op that is one table for any image."""

    def curve(self, generator: np.random.Generator) -> Array:
        """The table: uint8 [256], or one per channel [256, 3]."""
        raise NotImplementedError

    def __call__(self, image: ImageArray, generator: np.random.Generator, /) -> ImageArray:
        return apply_curve(image, self.curve(generator))


def is_tone(op: object) -> TypeGuard[ToneOp]:
    """Return True if an op has a table, of tfprep's own or a user's: any class with a method `curve`."""
    return callable(getattr(type(op), "curve", None))


@dataclass(frozen=True)
class Custom:
    """Any function of (sample, generator) that returns a new sample, among the geometry ops of a recipe.

    It may change any field, rasters of one size provided, and that size may be another; an albumentations pipeline, say. What
    comes before it is resampled first, what comes after it once more. Without a generator, for variant 0 and validation,
    the sample passes unchanged, unless `always`: then the function is called with a generator of None. A function that mirrors
    the sample also exchanges the rows of its points; `Recipe.flip_indices` does so for other ops only.
    """

    function: Callable[[Sample, Any], Sample]
    always: bool = False

    def __call__(self, sample: Sample, generator: np.random.Generator | None, /) -> Sample:
        return self.function(sample, generator) if self.always or generator is not None else sample


def is_idle(op: Any) -> bool:
    """Return True for an op of tfprep that does nothing unaugmented, such as Flip."""
    if isinstance(op, Custom) or not type(op).__module__.startswith("tfprep."):
        return False
    made = op((1009, 757), None)
    return bool(made.size == (1009, 757) and not made.bends and np.array_equal(made.matrix, np.eye(3)))


def apply_colors(image: ImageArray, steps: Iterable[tuple[ColorOp, np.random.Generator]]) -> ImageArray:
    """Color ops in order, each with its generator: the same bytes as one by one, runs of tone curves in one look-up."""
    curve: Array | None = None
    for op, generator in steps:
        if is_tone(op):
            table = op.curve(generator)
            if table.dtype != np.uint8 or table.shape not in ((256,), (256, 3)):
                rule = f"{type(op).__name__}.curve returns uint8 [256] or [256, 3]"
                raise SampleError(f"{rule}, this one returned {table.dtype} {list(table.shape)}", stage="color")
            curve = table if curve is None else follow(curve, table)
            continue
        image = op(image if curve is None else apply_curve(image, curve), generator)
        curve = None
    return image if curve is None else apply_curve(image, curve)


def apply_curve(image: ImageArray, curve: Array) -> ImageArray:
    """A tone curve uint8 [256], or one per channel [256, 3], applied to uint8 [H, W, 3], or [H, W, 1] for one of [256]."""
    return same_depth(np.asarray(cv2.LUT(image, curve if curve.ndim == 1 else curve[None]), np.uint8), image)


def follow(first: Array, then: Array) -> Array:
    """The table that does `first` and `then`: uint8 [256], or [256, 3] where one of them is."""
    if then.ndim == 1:
        return np.asarray(then[first])
    return np.take_along_axis(then, np.broadcast_to(first.reshape(256, -1), (256, 3)).astype(np.intp), axis=0)


def check_unmasked(name: str, value: Any) -> None:
    """Raise SampleError for an array with masked values, which a user's function has made."""
    if np.ma.is_masked(value):
        raise SampleError(
            f"masked values would be stored as the numbers below the mask: fill those of {name!r} (`filled`)"
        )


def check_finite(value: Any, origin: str = "it") -> None:
    """Raise SampleError for floats with NaN or infinity, which a user's function has made."""
    if isinstance(value, np.ndarray) and value.dtype.kind == "f" and not np.isfinite(value).all():
        raise SampleError(f"{origin} gave NaN or infinity")


def apply_geometry(
    sample: Sample,
    kinds: Mapping[str, Kind],
    steps: Iterable[tuple[GeometryOp | Custom, np.random.Generator | None]],
    **rules: Any,
) -> Sample:
    """Geometry ops in order, each with its generator: one resampling of every field between two `Custom`s.

    `rules` are options of `warp_sample`. Raises SampleError where a `Custom` returns no sample.
    """
    size = raster_size(sample, kinds)
    transform: Transform | None = None

    def warped() -> Sample:
        return sample if transform is None else warp_sample(sample, kinds, transform, size=size, **rules)

    for op, generator in steps:
        if isinstance(op, Custom):
            made: Any = op(warped(), generator)
            if not isinstance(made, Mapping):
                rule = f"a Custom function returns a mapping, this one returned {type(made).__name__}"
                raise SampleError(rule, stage="geometry")
            for name, value in made.items():
                check_unmasked(name, value)
                if kinds.get(name) in ("image", "boxes"):  # maps may store NaN, and a perspective makes it of points
                    check_finite(value, f"a Custom function, as {name!r},")
            sample, transform = made, None
            size = raster_size(sample, kinds)
            rasters = [name for name, kind in kinds.items() if kind in RASTER_KINDS and name in sample]
            if other := next((name for name in rasters if np.shape(sample[name])[:2] != size), None):
                rule = "a Custom function returns images, masks and maps of one height and width"
                raise SampleError(
                    f"{rule}: {rasters[0]!r} has the shape {list(np.shape(sample[rasters[0]]))}, {other!r} "
                    f"{list(np.shape(sample[other]))}",
                    stage="geometry",
                )
        elif size is not None:
            transform = identity(size) if transform is None else transform
            transform = transform.then(op(transform.size, generator))
    return warped()
