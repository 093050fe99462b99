"""The numbers that ops at load draw, elementwise for places of the run. `tfprep.load.at_load_graph` has them in TensorFlow.

A place counts the samples of all epochs, so it stands for (epoch, position in the epoch).
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from tfprep.read.at_load import AtLoad, Cut, CutMix, MixUp, RandomFlip
from tfprep.read.permute import Words, below, mix, subkey, words
from tfprep.read.schedule import Numbers

QUANTILES = 4096
"""Values of Beta(alpha, alpha) that are drawn from: the quantiles (i + 1/2) / 4096."""
PARTS = 256
"""The weights of MixUp are whole multiples of 1 / 256: an 8-bit image cannot show more."""


class Window(NamedTuple):
    """What is left of each raster, one element a sample: rows [y, y + height), columns [x, x + width), then mirrored or not."""

    y: Numbers
    x: Numbers
    height: Numbers
    width: Numbers
    flip_y: npt.NDArray[np.bool_]
    flip_x: npt.NDArray[np.bool_]

    @property
    def rows(self) -> list[tuple[int, int, int, int, bool, bool]]:
        """The same, sample by sample."""
        return list(zip(*(column.tolist() for column in self), strict=True))


class Mixed(NamedTuple):
    """How each sample is mixed with its partner.

    `weight` of 256 is its own part in MixUp (256: not mixed so); rows [top, bottom), columns [left, right) are the partner's
    in CutMix (none where top = bottom). `share` float32 is its own part in the labels.
    """

    weight: Numbers
    top: Numbers
    bottom: Numbers
    left: Numbers
    right: Numbers
    share: npt.NDArray[np.float32]


def bits(key: int, place: Any, number: int) -> Words:
    """64 random bits, the `number`-th of this key at each place."""
    return mix(subkey(subkey(key, place), number))


def threshold(p: float) -> int:
    """The upper 32 bits of a draw are below this with probability p."""
    return round(p * 2**32)


def happens(draw: Words, p: float) -> npt.NDArray[np.bool_]:
    chosen: npt.NDArray[np.bool_] = (draw >> np.uint64(32)) < np.uint64(threshold(p))
    return chosen


# --- flips and crops ------------------------------------------------------------------------------------------------


def windows(plan: AtLoad, place: Numbers, height: Any, width: Any) -> Window:
    """What the flips and crops together leave of rasters of this height and width, one number or one a sample."""
    count = len(place)
    window = Window(
        np.zeros(count, np.int64),
        np.zeros(count, np.int64),
        np.broadcast_to(np.asarray(height, np.int64), count),
        np.broadcast_to(np.asarray(width, np.int64), count),
        np.zeros(count, np.bool_),
        np.zeros(count, np.bool_),
    )
    for op, key in zip(plan.cuts, plan.keys.cuts, strict=True):
        window = _cut(op, key, place, window, plan.training)
    return window


def _cut(op: Cut, key: int, place: Numbers, window: Window, training: bool) -> Window:
    if isinstance(op, RandomFlip):
        flip = happens(bits(key, place, 0), op.p if training else 0.0)
        if op.vertical:
            return window._replace(flip_y=window.flip_y ^ flip)
        return window._replace(flip_x=window.flip_x ^ flip)
    room_y, room_x = window.height - op.height, window.width - op.width
    if training:
        down = below(bits(key, place, 0), words(room_y + 1)).astype(np.int64)
        right = below(bits(key, place, 1), words(room_x + 1)).astype(np.int64)
    else:
        down, right = room_y // 2, room_x // 2
    return window._replace(
        y=window.y + np.where(window.flip_y, room_y - down, down),  # in an image that is upside down, down is up
        x=window.x + np.where(window.flip_x, room_x - right, right),
        height=np.full_like(window.height, op.height),
        width=np.full_like(window.width, op.width),
    )


# --- mixing ---------------------------------------------------------------------------------------------------------


def mixtures(plan: AtLoad, place: Numbers, height: int, width: int) -> Mixed:
    """How the samples at these places are mixed, in images of this size."""
    drawn = plan.keys
    chosen = below(bits(drawn.choice, place, 0), words(len(plan.mixes)))
    mixed = _unmixed(len(place))
    for number, (op, key) in enumerate(zip(plan.mixes, drawn.mixes, strict=True)):
        does = (chosen == number) & happens(bits(key, place, 0), op.p if plan.training else 0.0)
        made = _weighed(op, key, place) if isinstance(op, MixUp) else _boxed(op, key, place, height, width)
        mixed = _chosen(does, made, mixed)
    return mixed


def _unmixed(count: int) -> Mixed:
    nothing = np.zeros(count, np.int64)
    return Mixed(np.full(count, PARTS), nothing, nothing, nothing, nothing, np.ones(count, np.float32))


def _chosen(does: npt.NDArray[np.bool_], made: Any, other: Any) -> Mixed:
    return Mixed(*(np.where(does, new, old) for new, old in zip(made, other, strict=True)))


def _weighed(op: MixUp, key: int, place: Numbers) -> Mixed:
    weight = weights(op.alpha)[quantile(bits(key, place, 1))]
    return _unmixed(len(place))._replace(weight=weight, share=(weight / PARTS).astype(np.float32))


def _boxed(op: CutMix, key: int, place: Numbers, height: int, width: int) -> Mixed:
    at = quantile(bits(key, place, 1))
    top, bottom = _side(bits(key, place, 2), box_sides(op.alpha, height)[at], height)
    left, right = _side(bits(key, place, 3), box_sides(op.alpha, width)[at], width)
    area = (bottom - top) * (right - left)
    share = (1.0 - area / (height * width)).astype(np.float32)
    return Mixed(np.full(len(place), PARTS), top, bottom, left, right, share)


def _side(draw: Words, side: Numbers, length: int) -> tuple[Numbers, Numbers]:
    """Where a box of so many pixels begins and ends, its centre anywhere: as in the authors' code."""
    centre = below(draw, words(length)).astype(np.int64)
    return np.clip(centre - side // 2, 0, length), np.clip(centre + side // 2, 0, length)


def quantile(draw: Words) -> Numbers:
    """Which of the quantiles: the upper 12 bits."""
    number: Numbers = (draw >> np.uint64(52)).astype(np.int64)
    return number


@lru_cache
def weights(alpha: float) -> Numbers:
    """The weight of 256 at each quantile: int64 [4096]."""
    return np.rint(beta_quantiles(alpha, QUANTILES) * PARTS).astype(np.int64)


@lru_cache
def box_sides(alpha: float, length: int) -> Numbers:
    """How long the box is on a side of so many pixels, at each quantile of w: int64 [4096]."""
    sides: Numbers = np.floor(length * np.sqrt(1 - beta_quantiles(alpha, QUANTILES))).astype(np.int64)
    return sides


@lru_cache
def beta_quantiles(alpha: float, count: int) -> npt.NDArray[np.float64]:
    """The quantiles (i + 1/2) / count of Beta(alpha, alpha), an even count of them, by bisection.

    The lower half is solved for log x, as x is tiny for small alpha; the upper half is its mirror image.
    """
    wanted = (np.arange(count // 2) + 0.5) / count
    low, high = np.full(len(wanted), -700.0), np.full(len(wanted), np.log(0.5))
    whole = 2 * _incomplete(np.log(np.array([0.5])), alpha)
    for _ in range(60):
        middle = (low + high) / 2
        under = _incomplete(middle, alpha) / whole < wanted
        low, high = np.where(under, middle, low), np.where(under, high, middle)
    half = np.exp(high)
    return np.concatenate([half, 1 - half[::-1]])


def _incomplete(log_x: npt.NDArray[np.float64], alpha: float) -> npt.NDArray[np.float64]:
    """The incomplete beta function B_x(alpha, alpha), x up to 1/2, times 4^alpha against underflow.

    DLMF 8.17.8: x^a (1 - x)^b / a · F(a + b, 1; a + 1; x), all of whose terms are positive.
    """
    x = np.exp(log_x)
    term, total = np.ones_like(x), np.ones_like(x)
    for n in range(60 + int(12 * alpha**0.5)):
        term = term * x * (2 * alpha + n) / (alpha + 1 + n)
        total += term
    front: npt.NDArray[np.float64] = np.exp(alpha * (log_x + np.log1p(-x) + np.log(4.0)))
    return front / alpha * total
