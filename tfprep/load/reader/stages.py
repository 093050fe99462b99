"""Stages around reading, row by row: the decoded cache, casts, flips and crops. Threads and worker processes put the same
together.

Rasters that are cut are decoded into memory of the thread, a few rows at a time so that they stay in the processor's cache, and
their windows are copied into the batch. Rasters that are only mirrored are decoded in place.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from tfprep.errors import SampleError
from tfprep.fields import Array, Size
from tfprep.load.at_load.draws import windows
from tfprep.load.at_load.plan import AtLoad
from tfprep.load.order.schedule import Numbers
from tfprep.load.outputs import Output
from tfprep.load.reader.parts import Cast
from tfprep.load.reader.rows import Rows, Stage, UnreadRow
from tfprep.load.reader.thread_state import ThreadState
from tfprep.optional import CV_CHANNELS, HAS_OPENCV, cv2

View: TypeAlias = tuple[int, int, int, int, bool, bool]
"""The window of a raster: y, x, height, width, whether it is flipped vertically, and horizontally."""

STAGED_ROWS = 8
"""Rows decoded before they are cut: enough to share the cost of a call, and few enough to stay in the processor's cache."""


Cuts: TypeAlias = tuple[AtLoad, Mapping[str, Output]]
"""The flips and crops of a plan, and the outputs by name as they are before them."""


class CutRows:
    """Fills rows that are flipped and cut. Called by many threads at once."""

    def __init__(self, inner: Stage, cuts: Cuts) -> None:
        self._inner, (self._plan, self._read) = inner, cuts
        self._staged = set(self._plan.rasters) if self._plan.crop else set()
        size = self._read[self._plan.rasters[0]].shape[:2]
        self._known_size = None if None in size else size

    def fill(self, values: Mapping[str, Any], rows: Rows, state: ThreadState) -> list[UnreadRow]:
        """See `Stage`."""
        views = windows(self._plan, rows["position"], *self._known_size).rows if self._known_size else None
        unread: list[UnreadRow] = []
        # Consecutive rows, `STAGED_ROWS` at most.
        breaks, numbers = [0], rows["row"].tolist()
        for number in range(1, len(numbers)):
            if number - breaks[-1] == STAGED_ROWS or numbers[number] != numbers[number - 1] + 1:
                breaks.append(number)
        for first, last in itertools.pairwise([*breaks, len(numbers)] if numbers else []):
            failed = self._fill(values, rows.take(slice(first, last)), views and views[first:last], state)
            unread += [UnreadRow(first + failure.number, failure.reason) for failure in failed]
        return unread

    def _fill(
        self, values: Mapping[str, Any], rows: Rows, views: Sequence[View] | None, state: ThreadState
    ) -> list[UnreadRow]:
        """Fill consecutive rows; `views` holds their windows where these are known already."""
        begin, count = int(rows["row"][0]), len(rows)
        inside = {name: self._inside(name, value, begin, count, state) for name, value in values.items()}
        unread = self._inner.fill(inside, rows.moved(-begin), state)
        for number in sorted(set(range(count)) - {failure.number for failure in unread}):
            try:
                view = views[number] if views else self._view(inside, rows, number)
            except SampleError as error:
                unread.append(UnreadRow(number, error.reason))
                continue
            for name, value in inside.items():
                if name in self._plan.rasters:
                    self._cut(name, value[number], values, begin + number, view, state)
                elif isinstance(value, list) and not rows["cached"][number]:  # what is cached is in the batch already
                    values[name][begin + number] = value[number]
        return unread

    def _inside(self, name: str, values: Any, begin: int, count: int, state: ThreadState) -> Any:
        """Return where the rows of an output are filled before they are cut."""
        if name in self._staged and None not in (shape := self._read[name].shape):
            known = tuple(size or 0 for size in shape)
            return state.array((STAGED_ROWS, *known), self._read[name].dtype, f"before the cut of {name}")[:count]
        if name in self._staged or not isinstance(values, np.ndarray):
            return [None] * count
        return values[begin : begin + count]

    def _view(self, source: Mapping[str, Any], rows: Rows, number: int) -> View:
        """The window of a sample; SampleError where its rasters differ or are smaller than the crop: only where sizes were not
        known before."""
        sizes = {source[name][number].shape[:2] for name in self._plan.rasters}
        size: Size = next(iter(sizes))
        if len(sizes) > 1:
            raise SampleError(f"the rasters of a sample have one height and width, not {sorted(sizes)}")
        if self._plan.crop is not None:
            self._plan.crop.check_size(size)
        return windows(self._plan, rows["position"][number : number + 1], *size).rows[0]

    def _cut(self, name: str, source: Any, values: Mapping[str, Any], row: int, view: View, state: ThreadState) -> None:
        y, x, height, width, flip_y, flip_x = view
        flips, target = flip_y or flip_x, values[name]
        if not isinstance(target, np.ndarray):
            part = source[y : y + height, x : x + width]
            target[row] = mirrored(part, flip_y, flip_x) if flips else part
        elif name in self._staged:
            part, pixels = source[y : y + height, x : x + width], target[row]
            mirrored(part, flip_y, flip_x, out=pixels) if flips else np.copyto(pixels, part)
        elif flips:
            scratch = state.array(source.shape, source.dtype.name, "mirrored")
            target[row] = mirrored(source, flip_y, flip_x, out=scratch)


def mirrored(part: Array, flip_y: bool, flip_x: bool, out: Array | None = None) -> Array:
    """The mirror image of [H, W] or [H, W, C], written into `out` if that is an array, which must be other memory.

    OpenCV is ten times as fast as a copy of a reversed view; it treats each pixel as a number of bytes.
    """
    target = np.empty(part.shape, part.dtype) if out is None else out
    height, width = part.shape[:2]
    if part[:1, :1].nbytes > CV_CHANNELS or not HAS_OPENCV:
        target[...] = part[:: -1 if flip_y else 1, :: -1 if flip_x else 1]
        return target
    code = -1 if flip_y and flip_x else int(flip_x)
    cv2.flip(part.view(np.uint8).reshape(height, width, -1), code, target.view(np.uint8).reshape(height, width, -1))
    return target


def with_stages(reading: Stage, cache: Mapping[str, Array] | None, casts: Sequence[Cast], cuts: Cuts | None) -> Stage:
    """Wrap the reader with the stages in use.

    Args:
        reading: What reads and decodes.
        cache: The arrays of the decoded cache by output, none if it holds text alone; None without a cache.
        casts: The outputs that are made of their stored form.
        cuts: Flips and crops; None without any.
    """
    stages = reading
    if cache is not None:
        stages = CachedRows(stages, cache)
    if casts:
        stages = CastRows(stages, casts)
    if cuts is not None:
        stages = CutRows(stages, cuts)
    return stages


class CachedRows:
    """Copies the rows that the cache holds, reads the others, and copies those that have a slot into the cache."""

    def __init__(self, inner: Stage, cache: Mapping[str, Array]) -> None:
        self._inner, self._cache = inner, cache

    def fill(self, values: Mapping[str, Any], rows: Rows, state: ThreadState) -> list[UnreadRow]:
        """See `Stage`."""
        state.enter("read")
        others = np.flatnonzero(rows["cached"] == 0)
        if not len(others):
            self._copy(self._cache, values, rows["slot"], rows["row"])
            return []
        cached = rows["cached"] != 0
        self._copy(self._cache, values, rows["slot"][cached], rows["row"][cached])
        part = rows.take(others)
        unread = self._inner.fill(values, part, state)
        kept = part["slot"] >= 0
        kept[[failure.number for failure in unread]] = False
        self._copy(values, self._cache, part["row"][kept], part["slot"][kept])
        return [UnreadRow(int(others[failure.number]), failure.reason) for failure in unread]

    def _copy(self, source: Any, target: Any, rows_from: Numbers, rows_to: Numbers) -> None:
        if not len(rows_to):
            return
        first, stop = int(rows_to[0]), int(rows_to[0]) + len(rows_to)
        together = bool((rows_to == np.arange(first, stop)).all())
        for name in self._cache:
            if together:
                np.take(source[name], rows_from, axis=0, out=target[name][first:stop], mode="clip")
                continue
            for row_from, row_to in zip(rows_from.tolist(), rows_to.tolist(), strict=True):
                target[name][row_to] = source[name][row_from]


class CastRows:
    """Makes rows of their stored form."""

    def __init__(self, inner: Stage, casts: Sequence[Cast]) -> None:
        self._inner, self._casts = inner, casts

    def fill(self, values: Mapping[str, Any], rows: Rows, state: ThreadState) -> list[UnreadRow]:
        """See `Stage`."""
        unread = self._inner.fill(values, rows, state)
        for cast in self._casts:
            cast.rows(values, rows["row"].tolist())
        return unread
