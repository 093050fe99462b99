"""Checks of boxes and points as they were annotated. A box covers some pixels of its image, or its sample is rejected."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from tfprep.boxes import BoxFormat, convert_boxes
from tfprep.errors import SampleError
from tfprep.fields import Array, Size
from tfprep.sources.source import Entry

TOLERANCE_PX = 1.0
"""How far a box may reach outside its image by rounding, in pixels; what reaches outside is cut off. Pascal VOC counts pixels
from 1 and some tools from 0, which is one pixel."""


def check_boxes(rows: Array, size: Size, names: Sequence[str], outside: Literal["reject", "cut"]) -> Array:
    """Return boxes x0, y0, x1, y1 [N, 4] in pixels as float32, cut at the image's edges. Raises SampleError.

    Args:
        rows: The boxes.
        size: (height, width) of the image in pixels.
        names: How a message names each box.
        outside: "cut" accepts boxes that reach further outside than by rounding.
    """
    edges = np.array([size[1], size[0]] * 2, np.float64)
    cut = np.clip(rows, 0, edges)
    for row, inside, name in zip(rows.tolist(), cut.tolist(), names, strict=True):
        if not np.isfinite(row).all():
            raise SampleError(f"{name}: its box {_text(row)} holds NaN or infinity")
        if row[2] <= row[0] or row[3] <= row[1]:
            raise SampleError(
                f"{name}: its box {_text(row)} covers no pixel; a box is x0, y0, x1, y1 with x0 < x1 and y0 < y1. "
                "If these are x, y, width and height, say so (box_format='xywh')"
            )
        further = max(abs(a - b) for a, b in zip(row, inside, strict=True))
        if inside[2] <= inside[0] or inside[3] <= inside[1] or (outside == "reject" and further > TOLERANCE_PX):
            raise SampleError(f"{name}: its box {_text(row)} reaches outside the image of {size[1]} x {size[0]}")
    return cut.astype(np.float32)


def check_point(point: Sequence[float], size: Size, name: str, outside: Literal["reject", "cut"]) -> list[float]:
    """Return a point x, y, visible in pixels. Raises SampleError if a labelled point lies outside and `outside` is "reject"."""
    x, y, visible = point
    if not np.isfinite(point).all():
        raise SampleError(f"{name}: a point {list(point)} holds NaN or infinity")
    within = -TOLERANCE_PX <= x <= size[1] + TOLERANCE_PX and -TOLERANCE_PX <= y <= size[0] + TOLERANCE_PX
    if visible and outside == "reject" and not within:
        raise SampleError(f"{name}: its point ({x:g}, {y:g}) lies outside the image of {size[1]} x {size[0]}")
    return [x, y, visible]


@dataclass(frozen=True)
class TableBoxes:
    """Boxes of a table's column in the form that its option names."""

    field: str
    format: BoxFormat = "xyxy"
    outside: Literal["reject", "cut"] = "reject"

    def size(self, raw: Mapping[str, Any]) -> Size | None:
        return None

    def decode(self, raw: Mapping[str, Any], size: Size | None) -> Array:
        value = raw[self.field]
        if value is None:
            raise SampleError("the listing has no value for it")
        rows = np.asarray(value, np.float64).reshape(-1, 4)
        if size is None:
            raise SampleError("boxes need an image, whose size is not known")
        corners = convert_boxes(rows, "xyxy", source=self.format, size=size)
        return check_boxes(corners, size, [f"box {number}" for number in range(len(rows))], self.outside)


def warn_if_relative(entries: Iterator[Entry], boxes: Mapping[str, int], format: str) -> Iterator[Entry]:
    """Yield the entries, and warn at the end if no number of a field of boxes is above 1.

    Args:
        entries: The entries.
        boxes: The place of each field of boxes among the values of an entry.
        format: The form that the boxes are said to have.
    """
    largest = dict.fromkeys(boxes, 0.0)
    for entry in entries:
        for name, place in boxes.items():
            if largest[name] <= 1:
                largest[name] = max([largest[name], *_plain_numbers(entry.values[place])])
        yield entry
    for name, most in largest.items():
        if 0 < most <= 1:
            warnings.warn(
                f"no number in {name!r} is above 1: these boxes look like shares of width and height, but are read as {format}, "
                f"in pixels. If they are shares, say so: box_format='rel_{format}'",
                stacklevel=2,
            )


def _plain_numbers(value: Any) -> Iterator[float]:
    """The numbers in a (nested) list; what is no number is found when the sample is made."""
    if isinstance(value, list | tuple):
        for item in value:
            yield from _plain_numbers(item)
    elif isinstance(value, int | float) and not math.isnan(value):
        yield float(value)


def _text(row: Sequence[float]) -> str:
    return "[" + ", ".join(f"{value:g}" for value in row) + "]"
