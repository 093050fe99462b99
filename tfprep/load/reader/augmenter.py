"""Filling rows by way of `tfprep.recipe.sample`: the fields of a sample are decoded, go through the stages of each view, and are
written into their row.

A JPEG is decoded at 1/2, 1/4 or 1/8 where the window of every view is so large that nothing is lost. All fields keep their
geometry: the stages count in pixels of the whole image.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tfprep import images
from tfprep.augment.warp import reduction_for
from tfprep.codecs import Raw
from tfprep.errors import BuildError, LoaderError, SampleError
from tfprep.fields import RASTER_KINDS, Array, Sample, Size
from tfprep.load.augmentation import Augmentation
from tfprep.load.reader.parts import FieldPart
from tfprep.load.threads import ThreadState


class Augmenter:
    """Fills rows from the bytes of their fields. Called by many threads at once, each with a state of its own."""

    def __init__(self, parts: Sequence[FieldPart], placed: Sequence[FieldPart], augmentation: Augmentation) -> None:
        """`parts` are the fields that are read, `placed` the read and the derived ones that fill outputs."""
        self._augmentation = augmentation
        self._fields = {part.name: part for part in parts}
        self._placed = [part for part in placed if part.name in self._fields or part.name in augmentation.derived]
        self._rasters = [part for part in self._fields.values() if part.spec.kind in RASTER_KINDS]

    def store(
        self,
        contents: Mapping[str, Any],
        values: Mapping[str, Any],
        row: int,
        form: int,
        position: int,
        state: ThreadState,
    ) -> None:
        """Fill a row from the bytes of its fields, or of the whole Example as "".

        Args:
            contents: The bytes by field.
            values: The batch, by output.
            row: The row.
            form: The number of the batch's size.
            position: The position of the sample in the run.
            state: That of the thread.

        Raises:
            SampleError: They cannot be decoded, or a stage cannot work on them.
            LoaderError: A function imports a module that is not installed.
        """
        augmentation = self._augmentation
        bytes_of = {name: contents["" if part.whole_example else part.field] for name, part in self._fields.items()}
        sample: dict[str, Any] = {}
        size = self._size(bytes_of, sample, state)
        views = [(view.forms[form], augmentation.draws(view, position)) for view in augmentation.views]
        try:
            transforms = [stages.transform(draws, size) for stages, draws in views]
            reduced = 1
            if any(part.is_jpeg(bytes_of[part.name]) for part in self._rasters):
                reduced = min(1 if transform is None else reduction_for(transform) for transform in transforms)
            self._decode(bytes_of, sample, size, reduced, state)
            for number, ((stages, draws), transform) in enumerate(zip(views, transforms, strict=True)):
                made = stages.make(sample, draws, size=size, transform=transform, reduced=reduced)
                for part in self._placed:
                    if part.output.view == number:
                        part.place(self._stored(part, made), values, row)
        except BuildError as error:
            raise LoaderError(str(error)) from error

    def _size(self, bytes_of: Mapping[str, Any], sample: dict[str, Any], state: ThreadState) -> Size | None:
        """The size of the sample's rasters: by the spec, by a JPEG's header, or of the first one, decoded into `sample`."""
        if not self._rasters:
            return None
        part = self._rasters[0]
        height, width = part.spec.shape[:2]
        if height is not None and width is not None:
            return height, width
        if part.is_jpeg(bytes_of[part.name]):
            return images.stored_size(bytes_of[part.name].tobytes())
        sample[part.name] = part.decode(bytes_of[part.name], state)
        height, width = sample[part.name].shape[:2]
        return int(height), int(width)

    def _decode(
        self, bytes_of: Mapping[str, Any], sample: dict[str, Any], size: Size | None, reduced: int, state: ThreadState
    ) -> None:
        for name, part in self._fields.items():
            if name in sample:
                continue
            if size is not None and reduced > 1 and part.is_jpeg(bytes_of[name]):
                sample[name] = part.decode_jpeg(bytes_of[name], size, reduced, state)
            else:
                sample[name] = part.decode(bytes_of[name], state)
            if isinstance(sample[name], bytes):
                sample[name] = sample[name].decode("utf-8", "surrogateescape")
        if size is not None:
            allowed = {size, (-(-size[0] // reduced), -(-size[1] // reduced))}
            sizes = {np.shape(sample[part.name])[:2] for part in self._rasters}
            if not sizes <= allowed:
                raise SampleError(f"the rasters of a sample have one height and width, not {sorted(sizes | {size})}")

    def _stored(self, part: FieldPart, made: Sample) -> Any:
        """The value of an output; derived ones in the dtype that their codec would store."""
        value = made[part.name]
        if isinstance(value, str):
            return value.encode("utf-8", "surrogateescape")
        if part.name in self._augmentation.derived:
            return value if np.asarray(value).dtype == part.spec.dtype else _cast(np.asarray(value), part)
        if part.spec.kind in RASTER_KINDS and value.dtype != part.spec.dtype:
            raise SampleError(f"a function in geometry made '{part.name}' {value.dtype}; it stays {part.spec.dtype}")
        return value


def _cast(value: Array, part: FieldPart) -> Array:
    """Return the value in the dtype of its output; SampleError if that does not hold it."""
    stored = Raw(part.spec.dtype)
    try:
        return stored.decode(stored.encode(value)[""], stored.spec(part.spec.kind, value))
    except SampleError as error:
        raise error.located(stage="derive", field=part.name) from error
