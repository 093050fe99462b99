"""One-hot labels, and the mixing of samples within a batch when all its rows are filled."""

from __future__ import annotations

import cv2
import numpy as np

from tfprep.errors import LoaderError
from tfprep.fields import Array
from tfprep.load.online.draws import PARTS, Mixed, mixtures
from tfprep.load.online.ops import AtLoad, not_a_class
from tfprep.load.order.schedule import BatchSchedule
from tfprep.load.reader.batch import Batch

HALF_UP = 1 / 512
"""Added before OpenCV rounds half to even: the sums are whole 256ths, so that this rounds halves up and changes nothing else."""


class Mixing:
    """Completes batches."""

    def __init__(self, plan: AtLoad, schedule: BatchSchedule) -> None:
        """`schedule` says which batches have the partner of their last row behind it (see `BatchSchedule.partners`)."""
        self._plan, self._schedule = plan, schedule

    def finish(self, batch: Batch) -> None:
        """Complete a batch all of whose rows are filled: mixed with their partners."""
        self._one_hot(batch)
        if self._plan.mixes_samples and batch.rows:
            self._mix(batch)

    def _one_hot(self, batch: Batch) -> None:
        """Class numbers [B] to float32 [B, classes]."""
        for name, count in self._plan.labels.items():
            wrong = (batch.values[name] < 0) | (batch.values[name] >= count)
            if wrong.any():
                raise LoaderError(not_a_class(name, int(batch.values[name][wrong][0]), count))
            batch.values[name] = (batch.values[name][:, None] == np.arange(count)).astype(np.float32)

    def _mix(self, batch: Batch) -> None:
        """Mix from the first row on, so that each row's partner is still unmixed."""
        start, stop = self._schedule.span(batch.step)
        count = stop - start
        partner = count if batch.rows > count else 0
        last = {name: batch.values[name][partner].copy() for name in (*self._plan.rasters, *self._plan.labels)}
        batch.cut_to(count)
        rasters = [batch.values[name] for name in self._plan.rasters]
        height, width = rasters[0].shape[1:3] if rasters else (1, 1)
        mixed = mixtures(self._plan, batch.indices.position, height, width)
        for name in self._plan.rasters:
            pixels = batch.values[name]
            for row in range(count):
                other = pixels[row + 1] if row + 1 < count else last[name]
                mix_pixels(pixels[row : row + 1], other[None], mixed, row)
        for name in self._plan.labels:
            values = batch.values[name]
            others = np.concatenate([values[1:], last[name][None]])
            values[:] = values * mixed.share[:, None] + others * (np.float32(1) - mixed.share)[:, None]


def mix_pixels(own: Array, other: Array, mixed: Mixed, row: int) -> None:
    """Mix `other` into `own`, arrays [1, H, W, ...] of one sample, in place, as `row` of `mixed` says."""
    if mixed.bottom[row] > mixed.top[row]:
        box = np.s_[:, mixed.top[row] : mixed.bottom[row], mixed.left[row] : mixed.right[row]]
        own[box] = other[box]
    if mixed.weight[row] < PARTS:
        blend(own, other, int(mixed.weight[row]))


def blend(own: Array, other: Array, weight: int) -> None:
    """`own` becomes (weight own + (256 - weight) other) / 256: whole numbers rounded half up, floats in float32."""
    if own.dtype == np.uint8:
        a, b = own.reshape(1, -1), other.reshape(1, -1)
        cv2.addWeighted(a, weight / PARTS, b, 1 - weight / PARTS, HALF_UP, dst=a)
    elif own.dtype.kind in "iu":
        wide = own.astype(np.int64) * weight + other.astype(np.int64) * (PARTS - weight)
        own[...] = (wide + PARTS // 2) >> 8
    else:
        share = np.float32(weight / PARTS)
        own[...] = own.astype(np.float32) * share + other.astype(np.float32) * (np.float32(1) - share)
