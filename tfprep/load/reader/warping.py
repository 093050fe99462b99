"""Geometry and color on the way into a batch: the fields of a sample are decoded, warped in one resampling as in a build, and
written into their row.

With ops at load a JPEG is decoded at 1/2, 1/4 or 1/8 where the window is so large that nothing is lost. All fields keep their
geometry: `warp_sample` counts in pixels of the whole image.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from tfprep import images
from tfprep.augment.transform import GeometryOp, Transform
from tfprep.augment.warp import reduction_for, warp_sample
from tfprep.errors import SampleError
from tfprep.fields import RASTER_KINDS, Kind, Size
from tfprep.load.at_load.draws import Drawn, drawn, placed
from tfprep.load.at_load.plan import PLACES, AtLoad
from tfprep.load.order.schedule import Numbers
from tfprep.load.outputs import transform_of
from tfprep.load.reader.parts import FieldPart
from tfprep.load.reader.thread_state import ThreadState

Draws: TypeAlias = Sequence[Sequence[Drawn] | None]
"""The draws of a sample: for each of its views those of all ops, None in evaluation."""


class Warping:
    """Fills rows from the bytes of their fields. Called by many threads at once, each with a state of its own."""

    def __init__(
        self,
        parts: Sequence[FieldPart],
        geometry: Sequence[GeometryOp],
        rules: Mapping[str, Any] | None,
        plan: AtLoad | None,
    ) -> None:
        """`geometry` comes first, in its unaugmented form, then the ops of `plan`, in each of its views; `rules` are options of
        `warp_sample` where there is no `plan`."""
        self._parts, self._geometry, self._rules, self._plan = parts, geometry, rules, plan
        self._views: Sequence[AtLoad | None] = (None,) if plan is None else plan.views or (plan,)
        self._fields = {part.field: part for part in parts}
        kinds: dict[str, Kind] = {name: part.spec.kind for name, part in self._fields.items()}
        self._kinds = {name: kind for name, kind in kinds.items() if kind in RASTER_KINDS | PLACES}
        self._rasters = [name for name, kind in kinds.items() if kind in RASTER_KINDS]

    def draws(self, position: Numbers) -> Sequence[Draws]:
        """The draws for the samples at these positions: for each of the views those of all its ops, None in evaluation."""
        if self._plan is None or not self._plan.training or not self._rasters:
            return [[None] * len(self._views)] * len(position)
        views = [drawn(view, position) for view in self._views if view]
        return list(zip(*views, strict=True))

    def store(
        self,
        contents: Mapping[str, Any],
        values: Mapping[str, Any],
        row: int,
        form: int,
        draws: Draws,
        state: ThreadState,
    ) -> None:
        """Fill a row by this form of the geometry, from the bytes of its fields, or of the whole Example as "".

        Raises SampleError where they cannot be decoded.
        """
        bytes_of = {name: contents["" if part.whole_example else name] for name, part in self._fields.items()}
        sample: dict[str, Any] = {}
        size = self._size(bytes_of, sample, state)
        if size is None:
            for part in self._parts:
                part.place(part.decode(bytes_of[part.field], state), values, row)
            return
        before = transform_of(self._geometry, size)
        transforms = [
            placed(before, view.forms[form] if view else (), each)
            for view, each in zip(self._views, draws, strict=True)
        ]
        reduced = min(map(reduction_for, transforms)) if self._plan else 1
        for name, part in self._fields.items():
            if name not in sample:
                jpeg = self._plan is not None and part.is_jpeg(bytes_of[name])
                sample[name] = (
                    part.decode_jpeg(bytes_of[name], size, reduced, state)
                    if jpeg
                    else part.decode(bytes_of[name], state)
                )
        for number, (view, transform, each) in enumerate(zip(self._views, transforms, draws, strict=True)):
            warped = self._warped(sample, view, transform, size, reduced, each)
            for part in self._parts:
                if part.output.view == number:
                    part.place(warped[part.field], values, row)

    def _size(self, bytes_of: Mapping[str, Any], sample: dict[str, Any], state: ThreadState) -> Size | None:
        """The size of the sample's rasters: by the spec, by a JPEG's header, or of the first one, decoded into `sample`."""
        if not self._rasters:
            return None
        name = self._rasters[0]
        part, (height, width) = self._fields[name], self._fields[name].spec.shape[:2]
        if height is not None and width is not None:
            return height, width
        if self._plan and part.is_jpeg(bytes_of[name]):
            return images.stored_size(bytes_of[name].tobytes())
        sample[name] = part.decode(bytes_of[name], state)
        height, width = sample[name].shape[:2]
        return int(height), int(width)

    def _warped(
        self,
        sample: Mapping[str, Any],
        view: AtLoad | None,
        transform: Transform,
        size: Size,
        reduced: int,
        draws: Sequence[Drawn] | None,
    ) -> dict[str, Any]:
        if view is None:
            return warp_sample(sample, self._kinds, transform, size=size, **(self._rules or {}))
        allowed = {size, (-(-size[0] // reduced), -(-size[1] // reduced))}
        sizes = {np.shape(sample[name])[:2] for name in self._rasters}
        if not sizes <= allowed:
            raise SampleError(f"the rasters of a sample have one height and width, not {sorted(sizes | {size})}")
        warped = warp_sample(
            sample, self._kinds, transform, size=size, reduced=reduced, windowed=True, **(view.rules or {})
        )
        for name in view.images if draws is not None else ():
            for op, numbers in zip(view.color, (draws or ())[len(view.geometry) :], strict=True):
                act: Any = op
                warped[name] = act(warped[name], numbers.anew())
        return warped
