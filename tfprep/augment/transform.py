"""What a geometry op returns, how ops compose, and what ops and colour functions look like.

Coordinates are those of `tfprep.fields`: continuous, pixel centres at half-integers. A matrix maps (x, y, 1) of the input
to (x', y', 1) of the output.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from tfprep.fields import Array, ImageArray, Size


@dataclass(frozen=True)
class Transform:
    """A 3 × 3 float64 `matrix` from input to output coordinates and the (height, width) `size` of the output."""

    matrix: Array
    size: Size

    def then(self, after: Transform) -> Transform:
        """This transform followed by `after`."""
        return Transform(after.matrix @ self.matrix, after.size)


class GeometryOp(Protocol):
    """A frozen dataclass of options, or any function with this signature.

    `size` is the (height, width) that arrives. Without a generator the op takes its unaugmented form, the one that variant
    0 and validation get: `Crop` takes the centre, `Rotate` does nothing. Where it takes one, it draws the same number of
    values whatever the size.
    """

    def __call__(self, size: Size, generator: np.random.Generator | None, /) -> Transform: ...


class ColourOp(Protocol):
    """A frozen dataclass of options, or any function with this signature: uint8 [H, W, 3] RGB to the same shape and dtype.

    Called for augmented variants only, with a generator that starts afresh for each image field, so that all images of
    one sample get the same change.
    """

    def __call__(self, image: ImageArray, generator: np.random.Generator, /) -> ImageArray: ...
