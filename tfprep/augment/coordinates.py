"""Boxes and points under a transform. Coordinates are continuous: the image covers [0, W] × [0, H]."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tfprep.augment.transform import Transform
from tfprep.errors import SampleError
from tfprep.fields import Array


def warp_points(points: Array, transform: Transform) -> Array:
    """float32 [N, 2] or [N, 3] to the same: x, y mapped; with a third column, visibility becomes 0 outside the output.

    Coordinates outside the output are kept as they are mapped; a point that a perspective throws behind the eye is NaN.
    """
    table = _table(points, (2, 3), "points are [N, 2] or [N, 3]: x, y, visible")
    moved = table.astype(np.float32)
    moved[:, :2] = transform.push(table[:, :2])
    if table.shape[1] == 3:
        moved[~inside(moved[:, :2], transform), 2] = 0
    return moved


def exchange_rows(points: Array, flip_indices: Sequence[int]) -> Array:
    """The points [N, ...] of a mirror image: row i is what row `flip_indices[i]` was, in every `len(flip_indices)` rows.

    Raises SampleError where N is not a multiple of it. Without indices the points keep their rows.
    """
    if not flip_indices:
        return points
    if len(points) % len(flip_indices):
        rule = f"flip_indices has {len(flip_indices)} rows for each object"
        raise SampleError(f"{rule}; {len(points)} points are no multiple of it", stage="geometry")
    return points.reshape(-1, len(flip_indices), *points.shape[1:])[:, list(flip_indices)].reshape(points.shape)


def inside(xy: Array, transform: Transform) -> Array:
    """Whether output points [N, 2] lie on the output's pixels: bool [N]."""
    height, width = transform.size
    return np.asarray((xy[:, 0] >= 0) & (xy[:, 0] < width) & (xy[:, 1] >= 0) & (xy[:, 1] < height))


def warp_boxes(boxes: Array, transform: Transform) -> tuple[Array, Array]:
    """float32 [N, 4] to the smallest upright boxes around the mapped ones, cut at the output's edges, and how much of each
    is visible: the cut box's area as a share of the whole one's, float64 [N].

    A box that lies outside altogether shrinks to no area at the edge, visible 0. A bend curves the sides of a box: it is
    refitted to points along them, too.
    """
    table = _table(boxes, (4,), "boxes are [N, 4]: x0, y0, x1, y1")
    outline = transform.push(_outline(table, _ALONG_BENT_SIDES if transform.bends else 1))
    behind = np.isnan(outline)
    low, high = np.where(behind, np.inf, outline).min(1), np.where(behind, -np.inf, outline).max(1)
    height, width = transform.size
    cut = np.clip(np.concatenate([low, high], 1), 0, [width, height, width, height])
    with np.errstate(invalid="ignore", divide="ignore"):
        visible = np.nan_to_num(_area(cut) / np.prod(high - low, axis=1))
    cut[visible <= 0, 2:] = cut[visible <= 0, :2]
    return cut.astype(np.float32), visible


_ALONG_BENT_SIDES = 8
"""Points along each side of a box to which it is refitted after a bend."""


def _outline(boxes: Array, count: int) -> Array:
    """[N, 4 · count, 2]: the corners of each box, and further points evenly along its sides."""
    corners = boxes[:, [0, 1, 2, 1, 2, 3, 0, 3]].reshape(-1, 4, 1, 2)
    ahead = np.roll(corners, -1, axis=1)
    share = (np.arange(count) / count)[:, None]
    return np.asarray((corners * (1 - share) + ahead * share).reshape(len(boxes), 4 * count, 2))


def _area(boxes: Array) -> Array:
    return np.asarray((boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1]))


def _table(value: Array, columns: tuple[int, ...], rule: str) -> Array:
    table = np.asarray(value, np.float64)
    if table.ndim != 2 or table.shape[1] not in columns:
        raise SampleError(f"{rule}; this array has the shape {table.shape}", stage="geometry")
    return table
