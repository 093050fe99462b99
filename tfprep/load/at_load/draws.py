"""The random numbers of the ops at load, element by element for positions of the run.

A position counts the samples of all epochs, so it stands for (epoch, position in the epoch).
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, prod
from typing import Any, NamedTuple, cast

import numpy as np
import numpy.typing as npt

from tfprep.augment.transform import Transform
from tfprep.fields import Array
from tfprep.load.at_load.ops import Cut, MixUp, Placed, RandomFlip
from tfprep.load.at_load.plan import AtLoad
from tfprep.load.order.permutation import Words, below, mix, subkey, words
from tfprep.load.order.schedule import Numbers

BLOCK = 256
"""Positions whose beta draws come from one generator."""
PARTS = 256
"""The weights of MixUp are whole multiples of 1 / 256: an 8-bit image cannot show more."""


class Window(NamedTuple):
    """The window of each sample's rasters: rows [y, y + height), columns [x, x + width), and whether it is mirrored."""

    y: Numbers
    x: Numbers
    height: Numbers
    width: Numbers
    flip_y: npt.NDArray[np.bool_]
    flip_x: npt.NDArray[np.bool_]

    @property
    def rows(self) -> list[tuple[int, int, int, int, bool, bool]]:
        """The windows, sample by sample."""
        return list(zip(*(column.tolist() for column in self), strict=True))


class Mixed(NamedTuple):
    """The way in which each sample is mixed with its partner.

    In MixUp the sample has the weight `weight` / 256 (256: it is not mixed). In CutMix the rows [top, bottom) and columns
    [left, right) are the partner's (none where top = bottom). `share` is the sample's weight in the labels.
    """

    weight: Numbers
    top: Numbers
    bottom: Numbers
    left: Numbers
    right: Numbers
    share: npt.NDArray[np.float32]


def bits(key: int, position: Any, number: int) -> Words:
    """64 random bits, the `number`-th of this key at each position."""
    return mix(subkey(subkey(key, position), number))


def happens(draw: Words, p: float) -> npt.NDArray[np.bool_]:
    """True with probability p: the upper 32 bits of a draw are below p of all."""
    chosen: npt.NDArray[np.bool_] = (draw >> np.uint64(32)) < np.uint64(ceil(p * 2**32))
    return chosen


# --- flips and crops ------------------------------------------------------------------------------------------------


def windows(plan: AtLoad, position: Numbers, height: Any, width: Any) -> Window:
    """The windows after all flips and crops, of rasters with this height and width (one number, or one for each sample)."""
    count = len(position)
    window = Window(
        np.zeros(count, np.int64),
        np.zeros(count, np.int64),
        np.broadcast_to(np.asarray(height, np.int64), count),
        np.broadcast_to(np.asarray(width, np.int64), count),
        np.zeros(count, np.bool_),
        np.zeros(count, np.bool_),
    )
    for op, key in zip(plan.geometry, plan.keys, strict=False):
        window = _cut(cast(Cut, op), key, position, window, plan.training)
    return window


def _cut(op: Cut, key: int, position: Numbers, window: Window, training: bool) -> Window:
    if isinstance(op, RandomFlip):
        flip = happens(bits(key, position, 0), op.p if training else 0.0)
        if op.direction == "vertical":
            return window._replace(flip_y=window.flip_y ^ flip)
        return window._replace(flip_x=window.flip_x ^ flip)
    room_y, room_x = window.height - op.height, window.width - op.width
    if training:
        down = below(bits(key, position, 0), words(room_y + 1)).astype(np.int64)
        right = below(bits(key, position, 1), words(room_x + 1)).astype(np.int64)
    else:
        down, right = room_y // 2, room_x // 2
    return window._replace(
        y=window.y
        + np.where(window.flip_y, room_y - down, down),  # in a mirrored image the offset counts from the other side
        x=window.x + np.where(window.flip_x, room_x - right, right),
        height=np.full_like(window.height, op.height),
        width=np.full_like(window.width, op.width),
    )


# --- ops of one sample ----------------------------------------------------------------------------------------------


class Drawn:
    """The draws of one op for one sample, in place of a generator: numbers from [0, 1), multiples of 2^-32."""

    def __init__(self, numbers: Array) -> None:
        self._numbers, self._at = numbers, 0

    def anew(self) -> Drawn:
        """The same draws from the first one on: all images of a sample get the same change."""
        return Drawn(self._numbers)

    def random(self, shape: int | tuple[int, ...] | None = None) -> Any:
        """The next number, or as many as make a list of this shape."""
        first = self._at
        self._at += 1 if shape is None else prod(shape) if isinstance(shape, tuple) else shape
        return self._numbers[first : self._at].reshape(shape or ()).tolist()

    def uniform(self, low: float, high: float) -> float:
        """The next number, scaled to [low, high)."""
        return low + (high - low) * float(self.random())


def drawn(plan: AtLoad, position: Numbers) -> list[list[Drawn]]:
    """The draws of each op, for the sample at each position. Those of flips and crops are the ones that `windows` takes.

    All of them are computed at once: for a few samples this takes as long as for one.
    """
    counts = [op.draws for op in plan.ops]
    of_op = subkey(np.array(plan.keys[: len(counts)], np.uint64)[None, :], position[:, None])
    number = np.concatenate([np.arange(count) for count in counts]) if counts else np.arange(0)
    draws = (mix(subkey(np.repeat(of_op, counts, axis=1), number)) >> np.uint64(32)) * 2.0**-32
    ends = np.cumsum(counts).tolist()
    spans = [slice(end - count, end) for end, count in zip(ends, counts, strict=True)]
    return [[Drawn(row[span]) for span in spans] for row in draws]


def placed(picture: Transform, ops: Sequence[Placed], draws: Sequence[Drawn] | None) -> Transform:
    """This transform and then the ops, with their draws, or without in their unaugmented form."""
    for number, op in enumerate(ops):
        generator: Any = None if draws is None else draws[number]
        picture = picture.then(op(picture.size, generator))
    return picture


# --- mixing ---------------------------------------------------------------------------------------------------------


def mixtures(plan: AtLoad, position: Numbers, height: int, width: int) -> Mixed:
    """Return how the samples at these positions are mixed, in images of this size."""
    *keys, choice = plan.keys[len(plan.ops) :]
    chosen = below(bits(choice, position, 0), words(len(plan.mixes)))
    mixed = _unmixed(len(position))
    for number, (op, key) in enumerate(zip(plan.mixes, keys, strict=True)):
        does = (chosen == number) & happens(bits(key, position, 0), op.p if plan.training else 0.0)
        draw = betas(op.alpha, key, position)
        if isinstance(op, MixUp):
            weight = np.rint(draw * PARTS).astype(np.int64)
            new = _unmixed(len(position))._replace(weight=weight, share=(weight / PARTS).astype(np.float32))
        else:
            ratio = np.sqrt(1 - draw)
            top, bottom = _side(bits(key, position, 2), ratio, height)
            left, right = _side(bits(key, position, 3), ratio, width)
            area = (bottom - top) * (right - left)
            share = (1.0 - area / (height * width)).astype(np.float32)
            new = Mixed(np.full(len(position), PARTS), top, bottom, left, right, share)
        columns: Any = zip(new, mixed, strict=True)
        mixed = Mixed(*(np.where(does, one, other) for one, other in columns))
    return mixed


def _unmixed(count: int) -> Mixed:
    nothing = np.zeros(count, np.int64)
    return Mixed(np.full(count, PARTS), nothing, nothing, nothing, nothing, np.ones(count, np.float32))


def _side(draw: Words, ratio: npt.NDArray[np.float64], length: int) -> tuple[Numbers, Numbers]:
    """Return where a box of this share of the side begins and ends, its center anywhere: as in the authors' code."""
    side = np.floor(length * ratio).astype(np.int64)
    center = below(draw, words(length)).astype(np.int64)
    return np.clip(center - side // 2, 0, length), np.clip(center + side // 2, 0, length)


def betas(alpha: float, key: int, position: Numbers) -> npt.NDArray[np.float64]:
    """A draw from Beta(alpha, alpha) for each position, by NumPy's generator.

    A generator draws for `BLOCK` consecutive positions at once: making one takes as long as some hundred draws.
    """
    drawn = np.empty(len(position))
    blocks = position // BLOCK
    for block in np.unique(blocks):
        here = blocks == block
        generator = np.random.Generator(np.random.Philox(key=[key, int(block)]))
        drawn[here] = generator.beta(alpha, alpha, BLOCK)[position[here] % BLOCK]
    return drawn
