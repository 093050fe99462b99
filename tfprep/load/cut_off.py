"""Samples that a loader leaves out, and the parts of pictures that its geometry cuts off, in words."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tfprep.augment.transform import effects_of
from tfprep.errors import DatasetError, LoaderError
from tfprep.fields import RASTER_KINDS, Size
from tfprep.load.augmentation import Augmentation, View
from tfprep.load.order.schedule import Numbers
from tfprep.load.plan import LoaderPlan

PICTURES = 1000
"""Pictures that stand for all: a share of 1/2 is then known to 2 %."""


def not_shown(plan: LoaderPlan) -> str:
    """Return the samples that each bucket leaves out, and how much of a picture is cut off: on average, and at most."""
    augmentation, buckets, sizes = plan.augmentation, plan.schedule.buckets, plan.options.bucket
    if augmentation is None:
        return ""
    if buckets is not None and sizes is not None and plan.schedule.rows is not None:
        ends = np.cumsum(buckets.sizes) // plan.schedule.times
        rows = np.split(plan.schedule.rows, ends[:-1])
        return "; buckets: " + "; ".join(
            f"{height} x {width} of {samples:,}{f', {left:,} left out' if left else ''}"
            f"{_cut_off(augmentation, augmentation.views[0], _pictures(plan, mine), form, ', ')}"
            for form, ((height, width), samples, left, mine) in enumerate(
                zip(sizes.sizes, buckets.sizes, buckets.left_out, rows, strict=True)
            )
        )
    named = {view.name.partition("/")[0]: view for view in augmentation.views}
    ops = [op for view in named.values() for op in view.forms[-1].geometry]
    cuts = any("crop" in effects_of(op) for op in ops)  # only then their sizes are worth a look
    pictures = _pictures(plan, plan.schedule.rows) if cuts else []
    before = {name: f"; {name} views: " if name else "; " for name in named}
    return "".join(_cut_off(augmentation, view, pictures, -1, before[name]) for name, view in named.items())


def _pictures(plan: LoaderPlan, rows: Numbers | None) -> list[Size]:
    """Sizes of some of the pictures as they are stored; none where the index does not hold them, or lies at a URL."""
    rasters = [
        plan.specs[name] for name in plan.read.fields if name in plan.specs and plan.specs[name].kind in RASTER_KINDS
    ]
    height, width = rasters[0].shape[:2] if rasters else (None, None)
    if height is not None and width is not None:
        return [(height, width)] * (PICTURES if rows is None else min(len(rows), PICTURES))
    part = plan.table.parts[0]
    if not rasters or (plan.is_remote and plan.options.bucket is None):
        return []
    try:
        if rows is None:  # records lie in random order
            index = part.dataset.index(part.split, 0, ["height", "width"], PICTURES)
            columns = [index.column(name) for name in index.column_names]
        else:
            some = rows[np.linspace(0, len(rows) - 1, min(len(rows), PICTURES)).astype(np.int64)]
            columns = [plan.table.column(name).take(some) for name in ("height", "width")]
    except (DatasetError, LoaderError):  # the index is of another build, say: reading says so
        return []
    sizes = zip(*(column.to_pylist() for column in columns), strict=True)
    return [size for size in sizes if len(size) == 2 and None not in size]


def _cut_off(augmentation: Augmentation, view: View, pictures: Sequence[Size], form: int, before: str) -> str:
    """Return the share of a picture that this form of the geometry cuts off; "" where that is nothing, or not known."""
    shares = []
    for position, size in enumerate(pictures):
        transform = view.forms[form].transform(augmentation.draws(view, position), size)
        if transform is None:
            return ""
        corners = np.array([[0, 0], [transform.size[1], transform.size[0]]], np.float64)
        ends = np.clip(transform.pull(corners), 0, [size[1], size[0]])
        shares.append(1 - float(np.prod(np.ptp(ends, axis=0))) / (size[0] * size[1]))
    if not shares or max(shares) < 0.0005:
        return ""
    return f"{before}{np.mean(shares):.1%} of a picture cut off (at most {max(shares):.1%})"
