"""The fields that are made of the objects in an image, whatever format they were annotated in.

The raw part `objects` of a sample is plain JSON:

    {"size": [height, width] or null,      what the annotations say about the image, in pixels
     "objects": [{"id": "annotation 7",    how a message names the object
                  "label": 3,              class number
                  "box": [x0, y0, x1, y1],
                  "polygons": [[x, y, x, y, ...], ...], or "rle": {"counts": ..., "size": [height, width]},
                      or "runs": [first pixel, pixels, ...], counted from 1 down the columns,
                  "points": [[x, y, visible], ...],
                  "number": 2,             its number in a mask of instances, if that is not its place among the objects
                  "void": true,            a region that counts neither as an object nor as background
                  "flags": {"difficult": 1}}, ...],
     "relative": true,                     coordinates are shares of the image's width and height
     "text": "...",
     "fault": "..."}                       why the whole sample is rejected

| field         | kind   | value                                                                                              |
|---------------|--------|----------------------------------------------------------------------------------------------------|
| `boxes`       | boxes  | float32 [N, 4]: x0, y0, x1, y1 in pixels                                                            |
| `box_labels`  | label  | int64 [N]: class numbers                                                                            |
| `box_numbers` | label  | int64 [N]: the number that each object has in `instances`                                            |
| `instances`   | mask   | [H, W]: 0 is background, objects are 1, 2, ... in the order of the boxes                              |
| `mask`        | mask   | [H, W]: 0 is background, class c is c + 1                                                           |
| `points`      | points | float32 [N * K, 3]: x, y, visible; the K points of one object after those of another                |
| `difficult`, `crowd` | label | int64 [N]: 1 or 0                                                                             |
| `text`        | text   | captions, one on each line                                                                         |

Masks are drawn by pycocotools, larger objects first, so that a small object in front of a large one is seen. They are uint8 if
`void` is at most 255, else uint16.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np

from tfprep.errors import RecipeError, SampleError
from tfprep.fields import Array, BoxFormat, Kind, Size, convert_boxes
from tfprep.images import file_orientation
from tfprep.optional import require_package
from tfprep.sources.pixels import TURNED
from tfprep.sources.source import Entry, FieldDecoder

Objects: TypeAlias = Mapping[str, Any]
Outside: TypeAlias = Literal["reject", "cut"]

OBJECT_KINDS: Mapping[str, Kind] = {
    "boxes": "boxes",
    "box_labels": "label",
    "box_numbers": "label",
    "instances": "mask",
    "mask": "mask",
    "points": "points",
    "difficult": "label",
    "crowd": "label",
    "text": "text",
}
"""Every field that a format of annotations may have, with its kind."""
DRAWN = frozenset({"instances", "mask"})
ROWS = ("box_labels", "box_numbers", "points", "difficult", "crowd")
"""The fields with rows for each box."""


@dataclass(frozen=True)
class ObjectField:
    """Makes one field of the objects of an image."""

    field: str
    void: int = 255
    outside: Outside = "reject"

    def size(self, raw: Mapping[str, Any]) -> Size | None:
        return None  # that of the image, with which the annotations' own is compared

    def decode(self, raw: Mapping[str, Any], size: Size | None) -> Any:
        part = raw["objects"]
        if part.get("fault"):
            raise SampleError(part["fault"])
        if self.field == "text":
            return part["text"]
        if size is None:
            raise SampleError("annotations need an image, whose size is not known")
        declared = part.get("size")
        if declared is not None and tuple(declared) != tuple(size):
            swapped = tuple(declared) == tuple(size)[::-1]
            turned = swapped and isinstance(raw.get("image"), bytes) and file_orientation(raw["image"]) > 1
            hint = f"; {TURNED.format(name='image')}" if turned else ""
            raise SampleError(
                f"the annotations are for an image of {declared[1]} x {declared[0]}, this one is {size[1]} x {size[0]}{hint}"
            )
        objects = part["objects"]
        if part.get("relative"):
            numbers = "box", "polygons", "points"
            objects = [{**one, **{name: _times(one[name], size) for name in numbers if name in one}} for one in objects]
        counted = [one for one in objects if not one.get("void")]
        if self.field == "boxes":
            boxes = np.array([_box_of(one) for one in counted], np.float64).reshape(-1, 4)
            return check_boxes(boxes, size, [one["id"] for one in counted], self.outside)
        if self.field == "points":
            points = [(point, one["id"]) for one in counted for point in one.get("points") or []]
            rows = [check_point(point, size, name, self.outside) for point, name in points]
            return np.array(rows, np.float32).reshape(-1, 3)
        if self.field in DRAWN:
            return self._drawn(objects, len(counted), size)
        if self.field == "box_labels":
            column = [one["label"] for one in counted]
        elif self.field == "box_numbers":
            column = [one.get("number", place) for place, one in enumerate(counted, 1)]
        else:
            column = [one.get("flags", {}).get(self.field, 0) for one in counted]
        return np.array(column, np.int64)

    def _drawn(self, objects: Sequence[Objects], counted: int, size: Size) -> Array:
        """Draw the regions in descending order of their area; a void region lies below all objects."""
        if self.field == "instances" and counted >= self.void:
            raise SampleError(f"{counted} objects reach void={self.void}; give void=65535")
        numbers = iter(range(1, len(objects) + 1))
        regions = []
        for one in objects:
            number = self.void if one.get("void") else one["label"] + 1 if self.field == "mask" else next(numbers)
            regions.append((number, region_of(one, size)))
        canvas = np.zeros(size, np.uint8 if self.void <= 255 else np.uint16)
        for number, region in sorted(regions, key=lambda pair: (pair[0] != self.void, -int(pair[1].sum()))):
            canvas[region] = number
        return canvas


def decoders_of(fields: Sequence[str], void: int, outside: Outside) -> dict[str, FieldDecoder]:
    """Return the decoder of each field that is made of objects."""
    return {name: ObjectField(name, void, outside) for name in fields if name in OBJECT_KINDS}


def check_drawing(fields: Sequence[str], classes: int, void: int, where: str) -> None:
    """Raise RecipeError if class numbers and the number of void regions meet, MissingDependencyError without pycocotools."""
    if not DRAWN & set(fields):
        return
    require_package("pycocotools", f"{where}: drawing {' and '.join(sorted(DRAWN & set(fields)))}")
    if not (isinstance(void, int) and 0 < void <= 65535):
        raise RecipeError(f"{where}: void is a number from 1 to 65535; got {void!r}")
    if "mask" in fields and classes >= void:
        raise RecipeError(f"{where}: {classes} classes and background reach void={void}; give void=65535")


# --- the way from objects to fields ---------------------------------------------------------------------------------


def _times(value: Any, size: Size) -> Any:
    """Shares of width and height, alternating, as pixels; a third column of points is visibility."""
    if value and isinstance(value[0], list):
        return [_times(row, size) for row in value]
    scaled = [number * size[1 - place % 2] for place, number in enumerate(value)]
    return [*scaled[:2], value[2]] if len(value) == 3 else scaled


def _box_of(one: Objects) -> Sequence[float]:
    """The annotated box, or the one around the polygons."""
    if one.get("box") is not None:
        return list(one["box"])
    if not one.get("polygons"):
        raise SampleError(f"{one['id']} has neither a box nor a polygon")
    xy = np.concatenate([np.reshape(polygon, (-1, 2)) for polygon in one["polygons"]])
    return [*xy.min(0).tolist(), *xy.max(0).tolist()]


def region_of(one: Objects, size: Size) -> Array:
    """The pixels of an object as bool [H, W], by pycocotools. Raises SampleError."""
    from pycocotools import mask as masks

    height, width = size
    if one.get("rle") is not None:
        region = masks.decode(_checked_rle(one, size))
        return np.asarray(region, bool)
    if one.get("runs") is not None:
        starts, lengths = np.array(one["runs"], np.int64).reshape(-1, 2).T
        ends, pixels = starts - 1 + lengths, height * width
        if starts.min() < 1 or lengths.min() < 1 or ends.max() > pixels or (starts[1:] <= ends[:-1]).any():
            rule = f"{one['id']}: run lengths are in order, from 1 to {pixels}"
            raise SampleError(f"{rule}, the pixels of {width} x {height}")
        edges = np.zeros(pixels + 1, np.int8)
        np.add.at(edges, starts - 1, 1)
        np.add.at(edges, ends, -1)
        return np.cumsum(edges[:-1]).reshape(width, height).T.astype(bool)
    polygons = one.get("polygons") or []
    if not polygons:
        raise SampleError(f"{one['id']} has no polygon and no RLE, so it cannot be drawn")
    for polygon in polygons:
        if len(polygon) < 6 or len(polygon) % 2 or not np.isfinite(polygon).all():
            raise SampleError(
                f"{one['id']}: a polygon is three points or more, x and y each; it has {len(polygon)} numbers"
            )
    # pycocotools writes outside its memory for some corners that lie far outside the image.
    within = [np.clip(np.reshape(one, (-1, 2)), 0, [float(width), float(height)]).ravel().tolist() for one in polygons]
    return np.asarray(masks.decode(masks.merge(masks.frPyObjects(within, height, width))), bool)


def _checked_rle(one: Objects, size: Size) -> dict[str, Any]:
    from pycocotools import mask as masks

    rle = one["rle"]
    if tuple(rle.get("size", ())) != tuple(size):
        raise SampleError(
            f"{one['id']}: its RLE is of size {rle.get('size')}, the image's is {list(size)} (height, width)"
        )
    counts = rle.get("counts")
    if isinstance(counts, list):
        if sum(counts) != size[0] * size[1] or min(counts, default=-1) < 0:
            raise SampleError(f"{one['id']}: its RLE has {sum(counts)} pixels, the image {size[0] * size[1]}")
        compressed: dict[str, Any] = masks.frPyObjects({"counts": counts, "size": list(size)}, *size)
        return compressed
    if not isinstance(counts, str):
        raise SampleError(f"{one['id']}: an RLE's counts are a list or text, not {type(counts).__name__}")
    if sum(runs := rle_runs(counts, one["id"])) != size[0] * size[1] or min(runs, default=-1) < 0:
        raise SampleError(f"{one['id']}: its RLE has {sum(runs)} pixels, the image {size[0] * size[1]}")
    return {"counts": counts.encode(), "size": list(size)}


def rle_runs(text: str, name: str) -> list[int]:
    """The run lengths of COCO's compressed RLE: groups of 5 bits from character 48 on, differences to the run before the last
    one.

    pycocotools does not check its input: wrong runs make it write outside its memory. The form is that of `rleFrString`
    (https://github.com/cocodataset/cocoapi/blob/master/common/maskApi.c).
    """
    runs: list[int] = []
    number = shift = 0
    for character in text:
        group = ord(character) - 48
        if not 0 <= group < 64:
            raise SampleError(f"{name}: {character!r} is no character of an RLE")
        number |= (group & 0x1F) << shift
        shift += 5
        if not group & 0x20:
            number -= (1 << shift) if group & 0x10 else 0
            runs.append(number + runs[-2] if len(runs) > 2 else number)
            number = shift = 0
    if shift:
        raise SampleError(f"{name}: its RLE ends in the middle of a number")
    return runs


TOLERANCE_PX = 1.0
"""Pixels by which a box may reach outside its image by rounding; what reaches outside is cut off. Pascal VOC counts pixels
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
            raise SampleError(f"{name}: its box {_box_text(row)} holds NaN or infinity")
        if row[2] <= row[0] or row[3] <= row[1]:
            raise SampleError(
                f"{name}: its box {_box_text(row)} covers no pixel; a box is x0, y0, x1, y1 with x0 < x1 and y0 < y1. "
                "If these are x, y, width and height, say so (box_format='xywh')"
            )
        further = max(abs(a - b) for a, b in zip(row, inside, strict=True))
        if inside[2] <= inside[0] or inside[3] <= inside[1] or (outside == "reject" and further > TOLERANCE_PX):
            raise SampleError(f"{name}: its box {_box_text(row)} reaches outside the image of {size[1]} x {size[0]}")
    return cut.astype(np.float32)


def check_point(point: Sequence[float], size: Size, name: str, outside: Literal["reject", "cut"]) -> list[float]:
    """Return a point x, y, visible in pixels. Raises SampleError if a labeled point lies outside and `outside` is "reject"."""
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


def _box_text(row: Sequence[float]) -> str:
    return "[" + ", ".join(f"{value:g}" for value in row) + "]"
