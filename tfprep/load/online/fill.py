"""Applies flips, crops and mixing between the reader's threads and the `Filler`, which reads and decodes.

Rasters that are cut are decoded into memory of the thread, a few rows at a time so that they stay in the processor's cache,
and their windows are copied into the batch. Rasters that are only mirrored are decoded in place. Samples are mixed within the
batch when all its rows are filled.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import cv2
import numpy as np

from tfprep.errors import LoaderError, SampleError
from tfprep.fields import Array, Size
from tfprep.load.online.draws import PARTS, Mixed, mixtures, windows
from tfprep.load.online.ops import AtLoad, not_a_class
from tfprep.load.order.schedule import BatchIndices, BatchSchedule, Numbers
from tfprep.load.outputs import Output
from tfprep.load.reader.batch import Batch
from tfprep.load.reader.fill import Filler
from tfprep.load.reader.worker import Worker

View: TypeAlias = tuple[int, int, int, int, bool, bool]
"""The window of a raster: y, x, height, width, whether it is flipped vertically, and horizontally."""

STAGED_ROWS = 8
"""Rows decoded before they are cut: enough to share the cost of a call, and few enough to stay in the processor's cache."""
CV2_PIXEL_BYTES = 512
"""The largest pixel, in bytes, that OpenCV mirrors."""
HALF_UP = 1 / 512
"""Added before OpenCV rounds half to even: the sums are whole 256ths, so that this rounds halves up and changes nothing else."""


class AtLoadFiller:
    """A filler that applies the ops to its batches. Called by many threads at once."""

    def __init__(
        self, inner: Filler, plan: AtLoad, read: Sequence[Output], schedule: BatchSchedule, key_of: Callable[[int], str]
    ) -> None:
        """`read` are the outputs as `inner` fills them, before the ops; `key_of` names a row's sample in errors."""
        self._inner, self._plan, self._schedule, self._key_of = inner, plan, schedule, key_of
        self._read = {output.name: output for output in read}
        self._staged = set(plan.rasters) if plan.size else set()
        first = self._read[plan.rasters[0]].shape[:2] if plan.cuts else (None, None)
        self._known = None if None in first else first
        self._own = threading.local()

    cheap = all_cached = False
    """Every row is processed, also where it comes from memory."""

    def close(self) -> None:
        self._inner.close()

    def fill(self, batch: Batch, start: int, stop: int, worker: Worker) -> None:
        """Fill the rows [start, stop), flipped and cut."""
        views = self._windows(batch.indices.position[start:stop], *self._known) if self._known else None
        for first in range(start, stop, STAGED_ROWS):
            last = min(first + STAGED_ROWS, stop)
            indices = BatchIndices(*(column[first:last] for column in batch.indices))
            rows = Batch(batch.step, indices, {name: value[first:last] for name, value in batch.values.items()})
            self._fill(rows, views and views[first - start : last - start], worker)
            batch.lost += [first + row for row in rows.lost]
            for name, value in rows.values.items():
                if isinstance(value, list):
                    batch.values[name][first:last] = value

    def finish(self, batch: Batch) -> None:
        """Complete a batch all of whose rows are filled: mixed with their partners."""
        self._inner.finish(batch)
        self._one_hot(batch)
        if self._plan.mixes and self._plan.training and batch.rows:
            self._mix(batch, self._partner(batch))

    # --- flips and crops --------------------------------------------------------------------------------------------

    def _fill(self, rows: Batch, views: Sequence[View] | None, worker: Worker) -> None:
        """Fill a few rows of a batch, passed as a batch; `views` holds their windows where these are known already."""
        inside = Batch(rows.step, rows.indices, {**rows.values, **{n: self._array(n, rows.rows) for n in self._staged}})
        self._inner.fill(inside, 0, rows.rows, worker)
        rows.lost = inside.lost
        if not self._plan.cuts:
            return
        for row in range(rows.rows):
            if row in rows.lost:
                continue
            position = rows.indices.position[row : row + 1]
            view = views[row] if views else self._windows(position, *self._size(inside.values, rows, row))[0]
            for name in self._plan.rasters:
                self._copy(name, inside.values[name], rows.values[name], row, view)

    def _windows(self, position: Numbers, height: int | None, width: int | None) -> list[View]:
        return windows(self._plan, position, height, width).rows

    def _size(self, source: Mapping[str, Any], rows: Batch, row: int) -> Size:
        """(height, width) of a sample; SampleError where its rasters differ or are smaller than the crop: only where sizes
        were not known before."""
        sizes = {source[name][row].shape[:2] for name in self._plan.rasters}
        size: Size = next(iter(sizes))
        least = self._plan.least
        if len(sizes) > 1:
            reason = f"the rasters of a sample have one height and width, not {sorted(sizes)}"
        elif least is not None and (size[0] < least[0] or size[1] < least[1]):
            reason = (
                f"{size[0]} x {size[1]} pixels are fewer than RandomCrop({least[0]}, {least[1]}) leaves; store images of at "
                "least that size, or choose a smaller crop"
            )
        else:
            return size
        raise SampleError(f"{reason} (key {self._key_of(int(rows.indices.row[row]))!r})")

    def _copy(self, name: str, source: Any, values: Any, row: int, view: View) -> None:
        y, x, height, width, flip_y, flip_x = view
        flips = flip_y or flip_x
        if isinstance(values, list):
            part = source[row][y : y + height, x : x + width]
            values[row] = mirrored(part, flip_y, flip_x) if flips else part
        elif name in self._staged:
            part, target = source[row][y : y + height, x : x + width], values[row]
            mirrored(part, flip_y, flip_x, out=target) if flips else np.copyto(target, part)
        elif flips:
            values[row] = mirrored(values[row], flip_y, flip_x, out=self._scratch(values[row]))

    # --- mixing -----------------------------------------------------------------------------------------------------

    def _partner(self, batch: Batch) -> dict[str, Any]:
        """The last row's partner: the first row of the next host's part, or of the first one."""
        start, stop = self._schedule.global_span(batch.step)
        position = int(batch.indices.position[-1]) + 1
        position = start if position == stop else position
        if position == batch.indices.position[0]:
            return {name: batch.values[name][0].copy() for name in self._mixed}
        indices = self._schedule.at(np.array([position], np.int64))
        values = {
            name: [None] if isinstance(value, list) else np.empty_like(value[:1])
            for name, value in batch.values.items()
        }
        values.update({name: np.empty(1, self._read[name].dtype) for name in self._plan.labels})
        other = Batch(batch.step, indices, values)
        views = self._windows(indices.position, *self._known) if self._known else None
        self._fill(other, views, Worker("partner"))
        self._inner.finish(other)
        self._one_hot(other)
        return {name: other.values[name][0] for name in self._mixed}

    def _one_hot(self, batch: Batch) -> None:
        """Class numbers [B] to float32 [B, classes]."""
        for name, count in self._plan.labels.items():
            wrong = (batch.values[name] < 0) | (batch.values[name] >= count)
            if wrong.any():
                raise LoaderError(not_a_class(name, int(batch.values[name][wrong][0]), count))
            batch.values[name] = (batch.values[name][:, None] == np.arange(count)).astype(np.float32)

    @property
    def _mixed(self) -> list[str]:
        return [*self._plan.rasters, *self._plan.labels]

    def _mix(self, batch: Batch, partner: Mapping[str, Any]) -> None:
        """Mix from the first row on, so that each row's partner is still unmixed."""
        rasters = [batch.values[name] for name in self._plan.rasters]
        height, width = rasters[0].shape[1:3] if rasters else (1, 1)
        mixed = mixtures(self._plan, batch.indices.position, height, width)
        for name in self._plan.rasters:
            for row in range(batch.rows):
                other = batch.values[name][row + 1] if row + 1 < batch.rows else partner[name]
                mix_pixels(batch.values[name][row : row + 1], other[None], mixed, row)
        for name in self._plan.labels:
            values = batch.values[name]
            others = np.concatenate([values[1:], partner[name][None]])
            values[:] = values * mixed.share[:, None] + others * (np.float32(1) - mixed.share)[:, None]

    # --- memory of each thread --------------------------------------------------------------------------------------

    def _array(self, name: str, rows: int) -> Any:
        """Memory for decoded rows of an output, valid until the thread's next call."""
        output = self._read[name]
        if None in output.shape:
            return [None] * rows
        arrays = self._own.__dict__.setdefault("staged", {})
        if name not in arrays:
            arrays[name] = np.empty((STAGED_ROWS, *(size or 0 for size in output.shape)), output.dtype)
        return arrays[name][:rows]

    def _scratch(self, like: Array) -> Array:
        arrays: dict[Any, Array] = self._own.__dict__.setdefault("mirrored", {})
        key = like.shape, like.dtype.name
        if key not in arrays:
            arrays[key] = np.empty(like.shape, like.dtype)
        return arrays[key]


def mirrored(part: Array, flip_y: bool, flip_x: bool, out: Array | None = None) -> Array:
    """The mirror image of [H, W] or [H, W, C], written into `out` if that is an array, which must be other memory.

    OpenCV is ten times as fast as a copy of a reversed view; it treats each pixel as a number of bytes.
    """
    target = np.empty(part.shape, part.dtype) if out is None else out
    height, width = part.shape[:2]
    if part[:1, :1].nbytes > CV2_PIXEL_BYTES:
        target[...] = part[:: -1 if flip_y else 1, :: -1 if flip_x else 1]
        return target
    code = -1 if flip_y and flip_x else int(flip_x)
    cv2.flip(part.view(np.uint8).reshape(height, width, -1), code, target.view(np.uint8).reshape(height, width, -1))
    return target


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
