"""One-hot labels, and the mixing of samples within a batch when all its rows are filled, by the thread that did."""

from __future__ import annotations

import numpy as np

from tfprep.errors import LoaderError
from tfprep.fields import Array
from tfprep.load.at_load.draws import PARTS, Mixed, mixtures
from tfprep.load.at_load.plan import AtLoad, not_a_class
from tfprep.load.order.schedule import BatchSchedule
from tfprep.load.reader.batch import Batch
from tfprep.optional import cv2

HALF_UP = 1 / 512
"""Added before OpenCV rounds half to even: the sums are whole 256ths, so that this rounds halves up and changes nothing else."""


def mix_batch(batch: Batch, plan: AtLoad, schedule: BatchSchedule) -> None:
    """Complete a batch all of whose rows are filled: mixed with their partners.

    `schedule` says which batches have the partner of their last row behind it (see `BatchSchedule.partners`).
    """
    position = np.arange(*schedule.span(batch.step))  # of all rows but a partner behind them
    for name, count in plan.labels.items():  # class numbers [B] to float32 [B, classes]
        labels = batch.values[name]
        if (wrong := (labels < 0) | (labels >= count)).any():
            raise LoaderError(not_a_class(name, int(labels[wrong][0]), count))
        batch.values[name] = (labels[:, None] == np.arange(count)).astype(np.float32)
    if not plan.mixes_samples or not batch.rows:
        return
    height, width = batch.values[plan.rasters[0]].shape[1:3] if plan.rasters else (1, 1)
    mixed = mixtures(plan, position, height, width)
    for name in plan.rasters:
        mix_rows(batch.values[name], mixed)
    for name in plan.labels:
        own = batch.values[name][: len(position)]
        others = np.concatenate([batch.values[name][1:], own[:1]])[: len(own)]
        batch.values[name] = own * mixed.share[:, None] + others * (np.float32(1) - mixed.share)[:, None]
    batch.cut_to(len(position))


def mix_rows(pixels: Array, mixed: Mixed) -> None:
    """Mix rows of an array [B, H, W, ...] in place, each with the next one: the last with the row behind those, or the first.

    It begins with the first row, so that each row's partner is still unmixed.
    """
    count = len(mixed.share)
    last = pixels[count] if len(pixels) > count else pixels[0].copy()
    for row in range(count):
        own, other = pixels[row], pixels[row + 1] if row + 1 < count else last
        if mixed.bottom[row] > mixed.top[row]:
            box = np.s_[mixed.top[row] : mixed.bottom[row], mixed.left[row] : mixed.right[row]]
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
