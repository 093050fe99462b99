"""Elastic deformation: every pixel moves by its own offset, and the size stays.

It is a bend: output = where the input is *pulled* from. In a chain they are evaluated once for each output pixel, together with
all matrices before and after, and the image is interpolated once. Points go the other way, by fixed-point iteration, and
by a search where that does not settle. Unaugmented, it does nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from tfprep.augment.transform import Transform, identity
from tfprep.checks import is_number, require, require_number
from tfprep.fields import Array, Size
from tfprep.optional import cv2

_STEPS = 50
_CLOSE_PX = 1e-3
_RIGHT_PX = 1e-2
"""The accuracy of `OffsetGrid.push`."""
_STARTS = 16


@dataclass(frozen=True)
class Elastic:
    """Simard, Steinkraus and Platt, 'Best Practices for Convolutional Neural Networks', ICDAR 2003: at each pixel an offset of
    two independent numbers uniform in ± 1, smoothed by a Gaussian of `sigma_px`, times `alpha_px`.

    Smoothing leaves offsets of about alpha_px / (6 · sigma_px) in standard deviation: 1.5 pixels with the defaults. Offsets
    are drawn on a grid of one node every `sigma_px` / 4 pixels (at least one pixel) and interpolated linearly in between, which
    is as smooth and far faster. From about alpha_px = 1.5 · sigma_px² on (Simard et al. took 34 and 4) the image may fold over
    itself in places: what is there is seen several times, and a point goes to one of these places. alpha_px is at most
    3 · sigma_px².
    """

    effects: ClassVar[frozenset[str]] = frozenset({"crop", "warp"})
    uncovers: ClassVar[bool] = True

    alpha_px: float = 90.0
    sigma_px: float = 10.0

    def __post_init__(self) -> None:
        require_number("Elastic.sigma_px", self.sigma_px, 1, example=10)
        most = 3 * self.sigma_px**2
        rule = f"Elastic.alpha_px is from 0 to 3 sigma_px² = {most:g}, beyond which the image folds over itself"
        require(is_number(self.alpha_px) and 0 <= self.alpha_px <= most, rule, self.alpha_px, "raise sigma_px")

    def __call__(self, size: Size, generator: np.random.Generator | None, /) -> Transform:
        if generator is None:
            return identity(size)
        step = max(1.0, self.sigma_px / 4)
        # A margin of nodes, so that the smoothing sees as much noise at the edges as within.
        margin = int(np.ceil(4 * self.sigma_px / step))
        nodes = [int(np.ceil(length / step)) + 1 + 2 * margin for length in size]
        noise = generator.uniform(-1, 1, (*nodes, 2)).astype(np.float32)
        sigma = self.sigma_px / step
        smooth = np.asarray(cv2.GaussianBlur(noise, (0, 0), sigma, borderType=cv2.BORDER_REFLECT))
        # A number per node is the mean of step² pixels' numbers: their mean is smaller by the factor step.
        offsets = smooth[margin:-margin, margin:-margin] * np.float32(self.alpha_px / step)
        return Transform(np.eye(3), size, ((np.eye(3), OffsetGrid(offsets, step)),))


@dataclass(frozen=True, eq=False)
class OffsetGrid:
    """A bend, a smooth map of the plane onto itself that does not mirror: the output point p shows the input point p + offset(p),
    offsets bilinear between the nodes of a grid. Coordinates come and go as two arrays, x and y, float32 or float64.

    `offsets` float32 [rows, columns, 2] (x, y) stand every `step` pixels, the first node at (0, 0); beyond the grid the
    outermost hold on.
    """

    offsets: Array
    step: float

    def pull(self, x: Array, y: Array) -> tuple[Array, Array]:
        right, down = self._offset(x, y)
        return x + right, y + down

    def push(self, x: Array, y: Array) -> tuple[Array, Array]:
        """Solves p + offset(p) = (x, y): where offsets change by less than the way between two points, steps get shorter."""
        guess = x, y
        for _ in range(_STEPS):
            right, down = self._offset(*guess)
            nearer = x - right, y - down
            moved = max(np.nanmax(np.abs(new - old), initial=0) for new, old in zip(nearer, guess, strict=True))
            guess = nearer
            if moved < _CLOSE_PX:
                return guess
        return self._searched(x, y, guess)

    def _searched(self, x: Array, y: Array, guess: tuple[Array, Array]) -> tuple[Array, Array]:
        """The guesses, those that show another point replaced by the best of a search: the image folds over itself there.

        There is always a solution, because offsets have bounds; with folds there are several.
        """
        right, down = (np.array(coordinates, np.float64).ravel() for coordinates in guess)
        x, y = (np.asarray(coordinates, np.float64).ravel() for coordinates in (x, y))
        errors = np.subtract(self.pull(right, down), (x, y))
        reach = float(np.abs(self.offsets).max()) + 1
        spacing = max(self.step / 4, 0.25)
        ticks = np.linspace(-reach, reach, 2 * int(np.ceil(reach / spacing)) + 1)
        around = np.stack(np.meshgrid(ticks, ticks)).reshape(2, -1)
        for place in np.flatnonzero(np.hypot(*errors) > _RIGHT_PX):
            target = np.array([[x[place]], [y[place]]])
            right[place], down[place] = self._nearest(target + around, spacing, target)
        found_x, found_y = (
            np.asarray(new.reshape(np.shape(old)), old.dtype) for new, old in zip((right, down), guess, strict=True)
        )
        return found_x, found_y

    def _nearest(self, candidates: Array, spacing: float, target: Array) -> Array:
        """The point that shows `target` [2, 1] best: around each of the best candidates [2, N], in ever smaller steps."""
        far = np.hypot(*(np.asarray(self.pull(*candidates)) - target))
        points = candidates[:, np.argsort(far)[:_STARTS]]
        square = np.stack(np.meshgrid(np.arange(-3, 4), np.arange(-3, 4))).reshape(2, 1, -1) / 3
        while spacing > _CLOSE_PX / 10:
            candidates = points[:, :, None] + spacing * square
            far = np.hypot(*(np.asarray(self.pull(*candidates)) - target[:, :, None]))
            points = np.take_along_axis(candidates, far.argmin(1)[None, :, None], 2)[:, :, 0]
            spacing /= 2
        return np.asarray(points[:, far.min(1).argmin()])

    def _offset(self, x: Array, y: Array) -> tuple[Array, Array]:
        """Bilinear between nodes, of the dtype that came; NaN for NaN."""
        if not x.size:
            return x, y
        lost = np.isnan(x)
        some_lost = bool(lost.any())
        # Two dimensions for OpenCV, and one channel at a time, whose coordinates it does not round.
        right, down = (
            np.atleast_2d((np.where(lost, 0, along) if some_lost else along) / self.step).astype(np.float32, copy=False)
            for along in (x, y)
        )
        offsets = []
        for channel in (0, 1):
            plane = np.ascontiguousarray(self.offsets[:, :, channel])
            offset = np.asarray(cv2.remap(plane, right, down, cv2.INTER_LINEAR, borderMode=cv2.BORDER_REPLICATE))
            offset = offset.reshape(x.shape).astype(x.dtype, copy=False)
            offsets.append(np.where(lost, np.nan, offset) if some_lost else offset)
        return offsets[0], offsets[1]
