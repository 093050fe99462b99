"""Kinds of fields: a kind says what a named value of a sample means, and how geometry changes it.

| kind   | array                                   | under geometry                              |
|--------|-----------------------------------------|---------------------------------------------|
| image  | uint8, uint16 or float32 [H, W, C]      | resampled, antialiased                      |
| mask   | uint8 or uint16 [H, W], class numbers   | nearest pixel; never gains a class          |
| map    | any number [H, W] or [H, W, C]          | resampled linearly                          |
| boxes  | float32 [N, 4]: x0, y0, x1, y1          | corners mapped, refitted                    |
| points | float32 [N, 2] or [N, 3]: x, y, visible | mapped as coordinates                       |
| label  | int64 scalar or [K]: class numbers      | untouched                                   |
| scalar | any number or array of numbers          | untouched                                   |
| text   | str                                     | untouched                                   |

An image is RGB of 8 bits unless its source says otherwise (`sources.Pixels`).

Coordinates are continuous, in pixels: x to the right, y down, the image covers [0, W] x [0, H], and the pixel in row r,
column c covers [c, c+1] x [r, r+1], so that its center is (c + 0.5, r + 0.5).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, get_args

import numpy as np
import numpy.typing as npt

Kind: TypeAlias = Literal["image", "mask", "map", "boxes", "points", "label", "scalar", "text"]
KINDS: tuple[Kind, ...] = get_args(Kind)
RASTER_KINDS: frozenset[Kind] = frozenset({"image", "mask", "map"})
"""The kinds that are arrays of pixels: all rasters of one sample have the same height and width."""

EXTRA_FIELDS = ("key", "variant")
"""Fields that the loader adds to those of the dataset."""
_MOST_NAME_CHARACTERS = 100
_FIELD_NAME = re.compile(rf"[A-Za-z_][A-Za-z0-9_]{{0,{_MOST_NAME_CHARACTERS - 1}}}")

Array: TypeAlias = npt.NDArray[Any]
ImageArray: TypeAlias = npt.NDArray[np.uint8]
Sample: TypeAlias = Mapping[str, Any]
"""Field name to value, as in the table above. Never changed in place: a step returns a new mapping."""
Size: TypeAlias = tuple[int, int]
"""(height, width) in pixels."""


@dataclass(frozen=True)
class FieldSpec:
    """Kind, shape and dtype of a stored field, the same for every record of a dataset.

    Attributes:
        kind: The kind, as in the table above.
        shape: The lengths of the axes; None for an axis whose length differs between records.
        dtype: NumPy's name of the dtype, or "string" for text.
    """

    kind: Kind
    shape: tuple[int | None, ...]
    dtype: str


def raster_size(sample: Sample, kinds: Mapping[str, Kind]) -> Size | None:
    """Return the (height, width) of the sample's rasters in pixels; None if it has no raster."""
    for name, kind in kinds.items():
        if kind in RASTER_KINDS and name in sample:
            height, width = np.shape(sample[name])[:2]
            return int(height), int(width)
    return None


def stored_name(name: str) -> str:
    """Return the name of the stored field that a reader's field is, or is a part of: `teacher` of `teacher/indices`."""
    return name.partition("/")[0]


def field_name_fault(name: object) -> str:
    """Return why this cannot be the name of a field; "" if it can be.

    Field names become names of features, of columns, and of files (`FIELD.labels.txt`), so they hold nothing that has a meaning
    there.
    """
    if not isinstance(name, str) or not _FIELD_NAME.fullmatch(name):
        rule = f"a letter or '_', then letters, digits and '_', at most {_MOST_NAME_CHARACTERS} characters"
        return f"the name of a field is {rule}, not {name!r:.120}"
    return f"the loader itself adds the field {name!r}; choose another name" if name in EXTRA_FIELDS else ""
