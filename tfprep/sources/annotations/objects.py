"""The fields that are made of the objects in an image, whatever format they were annotated in.

The raw part `objects` of a sample is plain JSON:

    {"size": [height, width] or null,      what the annotations say about the image, in pixels
     "objects": [{"id": "annotation 7",    how a message names the object
                  "label": 3,              class number
                  "box": [x0, y0, x1, y1],
                  "polygons": [[x, y, x, y, ...], ...], or "rle": {"counts": ..., "size": [height, width]},
                  "points": [[x, y, visible], ...],
                  "corners": [[x, y], ...],  of an oriented box
                  "number": 2,             its number in a mask of instances, if that is not its place among the objects
                  "void": true,            a region that counts neither as an object nor as background
                  "flags": {"difficult": 1}}, ...],
     "dropped": ["annotation 8: ..."],     why annotations are left out
     "relative": true,                     coordinates are shares of the image's width and height
     "fault": "..."}                       why the whole sample is rejected

- `boxes` (boxes): float32 [N, 4]: x0, y0, x1, y1 in pixels
- `box_labels` (label): int64 [N]: class numbers
- `box_numbers` (label): int64 [N]: the number that each object has in `instances`
- `instances` (mask): [H, W]: 0 is background, objects are 1, 2, ... in the order of the boxes
- `mask` (mask): [H, W]: 0 is background, class c is c + 1
- `points` (points): float32 [N * K, 3]: x, y, visible; the K points of one object after those of another
- `corners` (points): float32 [N, 4, 2]: x, y of the corners of oriented boxes
- `difficult` (label): int64 [N]: 1 or 0

Polygons are drawn by pycocotools, larger objects first, so that a small object in front of a large one is seen. They are uint8 if
`void` is at most 255, else uint16.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np

from tfprep import images
from tfprep.errors import RecipeError, SampleError
from tfprep.fields import Array, BoxFormat, Kind, Size, convert_boxes
from tfprep.optional import require_package
from tfprep.sources.pixels import TURNED
from tfprep.sources.source import FieldDecoder

Objects: TypeAlias = Mapping[str, Any]
Outside: TypeAlias = Literal["reject", "cut"]
BadAnnotations: TypeAlias = Literal["drop", "reject"]

OBJECT_KINDS: Mapping[str, Kind] = {
    "boxes": "boxes",
    "box_labels": "label",
    "box_numbers": "label",
    "instances": "mask",
    "mask": "mask",
    "points": "points",
    "corners": "points",
    "difficult": "label",
}
"""Every field that a format of annotations may have, with its kind."""
DRAWN = frozenset({"instances", "mask"})
ROWS = ("box_labels", "box_numbers", "points", "corners", "difficult")
"""The fields with rows for each box."""


@dataclass(frozen=True)
class ObjectField:
    """Makes one field of the objects of an image."""

    field: str
    void: int = 255
    outside: Outside = "reject"
    bad_annotations: BadAnnotations = "drop"

    def size(self, raw: Mapping[str, Any]) -> Size | None:
        return None  # that of the image, with which the annotations' own is compared

    def decode(self, raw: Mapping[str, Any], size: Size | None) -> Any:
        part = raw["objects"]
        if part.get("fault"):
            raise SampleError(part["fault"])
        assert size is not None  # these sources always have an image
        declared = part.get("size")
        if declared is not None and tuple(declared) != tuple(size):
            swapped = tuple(declared) == tuple(size)[::-1]
            turned = swapped and isinstance(raw.get("image"), bytes) and images.file_orientation(raw["image"]) > 1
            hint = f"; {TURNED.format(name='image')}" if turned else ""
            raise SampleError(
                f"the annotations are for an image of {declared[1]} x {declared[0]}, this one is {size[1]} x {size[0]}{hint}"
            )
        objects = self._whole_objects(part, size)
        counted = [annotation for annotation in objects if not annotation.get("void")]
        if self.field == "boxes":
            return np.array([annotation["box"] for annotation in counted], np.float32).reshape(-1, 4)
        if self.field == "points":
            return np.array(
                [row for annotation in counted for row in annotation.get("points") or []], np.float32
            ).reshape(-1, 3)
        if self.field == "corners":
            return np.array([annotation["corners"] for annotation in counted], np.float32).reshape(-1, 4, 2)
        if self.field in DRAWN:
            return self._drawn(objects, len(counted), size)
        if self.field == "box_labels":
            column = [annotation["label"] for annotation in counted]
        elif self.field == "box_numbers":
            column = [annotation.get("number", place) for place, annotation in enumerate(counted, 1)]
        else:
            column = [annotation.get("flags", {}).get(self.field, 0) for annotation in counted]
        return np.array(column, np.int64)

    def _whole_objects(self, part: Objects, size: Size) -> Sequence[Objects]:
        """Return the objects, in pixels, that are right by themselves: the same ones for each field of a sample.

        Those that are wrong are dropped with a warning, or reject the image: always if no other is left.
        """
        objects = part["objects"]
        if part.get("relative"):
            numbers = "box", "polygons", "points", "corners"
            objects = [
                {**annotation, **{name: _times(annotation[name], size) for name in numbers if name in annotation}}
                for annotation in objects
            ]
        counted = [annotation for annotation in objects if not annotation.get("void")]
        outlines = [(annotation.get("box"), *(annotation.get("polygons") or ())) for annotation in counted]
        check_not_shares([outline for of_one in outlines for outline in of_one if outline is not None], objects)
        whole, by_place, faults = [], defaultdict[str, list[Any]](list), list(part.get("dropped", ()))
        for one in objects:
            try:
                made = _whole(one, size)
            except SampleError as fault:
                faults.append(fault.reason)
                continue
            content = {name: value for name, value in made.items() if name not in ("id", "number")}
            others = by_place[repr((made.get("box"), made.get("corners"), made.get("points")))]
            if content in others:
                faults.append(f"{made['id']} repeats another object of the image")
                continue
            others.append(content)
            whole.append(made)
        if faults and (self.bad_annotations == "reject" or not whole):
            raise SampleError(faults[0])
        for reason in faults:
            images.warn(f"{reason}; the annotation was dropped")
        far = next((annotation for annotation in whole if annotation["far"]), None)
        if far is not None and self.outside == "reject" and self.field in ("boxes", "points", "corners"):
            rule = f"{far['id']}: {far['far']} reaches outside the image of {size[1]} x {size[0]}"
            raise SampleError(f"{rule}; is it the one that was annotated? outside='cut' cuts boxes")
        return whole

    def _drawn(self, objects: Sequence[Objects], counted: int, size: Size) -> Array:
        """Draw the regions in descending order of their area; a void region is below all objects."""
        from pycocotools import mask as masks

        if self.field == "instances" and counted >= self.void:
            raise SampleError(f"{counted} objects reach void={self.void}; give void=65535")
        numbers = iter(range(1, len(objects) + 1))
        regions = []
        for annotation in objects:
            number = self.void
            if not annotation.get("void"):
                number = annotation["label"] + 1 if self.field == "mask" else next(numbers)
            regions.append((number, region_of(annotation, size)))
        canvas = np.zeros(size, np.uint8 if self.void <= 255 else np.uint16)
        for number, region in sorted(regions, key=lambda pair: (pair[0] != self.void, -int(masks.area(pair[1])))):
            canvas[masks.decode(region) > 0] = number
        return canvas


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


def _whole(annotation: Objects, size: Size) -> dict[str, Any]:
    """Return an object with its box cut at the image's edges, and in words what of it is `far` outside of the image.

    Raises SampleError if a shape is none: a polygon of two points, a box that covers no pixel, a wrong RLE.
    """
    polygons, box = annotation.get("polygons") or [], annotation.get("box")
    for polygon in polygons:
        if len(polygon) < 6 or len(polygon) % 2 or not np.isfinite(polygon).all():
            raise SampleError(
                f"{annotation['id']}: a polygon is three points or more, x and y each; it has {len(polygon)} numbers"
            )
    if annotation.get("rle") is not None:
        _rle_runs(annotation, size)
    points = annotation.get("points") or []
    if not np.isfinite(np.array(points, np.float64)).all():
        raise SampleError(f"{annotation['id']}: a point of {points} holds NaN or infinity")
    outside = [point for point in points if point[2] and _further_outside(point[:2], size)]
    far = f"its point ({outside[0][0]:g}, {outside[0][1]:g})" if outside else ""
    if box is None and polygons:  # that around the polygons
        xy = np.concatenate([np.reshape(polygon, (-1, 2)) for polygon in polygons])
        box = [*xy.min(0).tolist(), *xy.max(0).tolist()]
    if box is None or annotation.get("void"):
        return {**annotation, "far": far}
    far = f"its box {_box_text(box)}" if _further_outside(box, size) else far
    (cut,) = check_boxes(np.array([box], np.float64), size, [annotation["id"]], "cut").tolist()
    return {**annotation, "box": cut, "far": far}


def _further_outside(values: Sequence[float], size: Size) -> bool:
    """Return True if any of x, y, x, y, ... is further outside of the image than by rounding."""
    return any(not -TOLERANCE_PX <= value <= size[1 - place % 2] + TOLERANCE_PX for place, value in enumerate(values))


def region_of(annotation: Objects, size: Size) -> Any:
    """The pixels of an object that `_whole` has checked, in the form of pycocotools. Raises SampleError."""
    from pycocotools import mask as masks

    if annotation.get("rle") is not None:
        return masks.frPyObjects({"size": list(size), "counts": _rle_runs(annotation, size)}, *size)
    polygons = annotation.get("polygons") or []
    if not polygons:
        raise SampleError(f"{annotation['id']} has no polygon and no RLE, so it cannot be drawn")
    near = [part for polygon in polygons if (part := _near(polygon, size))]
    return masks.merge(masks.frPyObjects(near or [[0.0] * 6], *size))


def _near(polygon: Sequence[float], size: Size) -> list[float]:
    """Return the part of a polygon that is at most the image's width and height outside of it, cut at one edge after another
    (Sutherland and Hodgman, 'Reentrant polygon clipping', CACM 1974).

    pycocotools writes outside its memory for some corners that are further outside.
    """
    points = np.reshape(np.clip(polygon, -1e9, 1e9), (-1, 2))  # the differences of the largest floats overflow
    for axis, side in enumerate(reversed(size)):
        for edge, inwards in ((-side, 1), (2 * side, -1)):
            depths = (points[:, axis] - edge) * inwards
            if (depths >= 0).all():
                continue
            before, depths_before = np.roll(points, 1, axis=0), np.roll(depths, 1)
            crosses = (depths < 0) != (depths_before < 0)
            shares = depths_before / np.where(crosses, depths_before - depths, 1)
            met = before + (points - before) * shares[:, np.newaxis]
            points = np.stack([met, points], axis=1)[np.stack([crosses, depths >= 0], axis=1)]
    return list(points.ravel().tolist())


def _rle_runs(annotation: Objects, size: Size) -> list[int]:
    """The run lengths of an RLE, which add up to the pixels of the image. Raises SampleError."""
    rle = annotation["rle"]
    if rle.get("size") != list(size):
        raise SampleError(
            f"{annotation['id']}: its RLE is of size {rle.get('size')}, the image's is {list(size)} (height, width)"
        )
    runs = rle.get("counts")
    if isinstance(runs, str):
        runs = decoded_rle(runs, annotation["id"])
    if not isinstance(runs, list) or not all(isinstance(run, int) for run in runs):
        raise SampleError(f"{annotation['id']}: an RLE's counts are a list or text, not {type(runs).__name__}")
    if sum(runs) != size[0] * size[1] or min(runs, default=-1) < 0:
        raise SampleError(f"{annotation['id']}: its RLE has {sum(runs)} pixels, the image {size[0] * size[1]}")
    return runs


def decoded_rle(text: str, name: str) -> list[int]:
    """The run lengths of COCO's compressed RLE: groups of 5 bits from character 48 on, differences to the run before the last
    one.

    The form is that of `rleFrString` (https://github.com/cocodataset/cocoapi/blob/master/common/maskApi.c).
    """
    runs: list[int] = []
    number = shift = 0
    for character in text:
        group = ord(character) - 48
        if not 0 <= group < 64:
            raise SampleError(f"{name}: {character!r} is not a character of an RLE")
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
ROUNDED_SHARE = 0.01
"""By which shares of width and height may exceed 1 by rounding."""


def check_boxes(rows: Array, size: Size, names: Sequence[str], outside: Outside, hint: str = "") -> Array:
    """Return boxes x0, y0, x1, y1 [N, 4] in pixels as float32, cut at the image's edges. Raises SampleError.

    Args:
        rows: The boxes.
        size: (height, width) of the image in pixels.
        names: How a message names each box.
        outside: "cut" accepts boxes that reach further outside than by rounding.
        hint: What a message about a box without area adds.
    """
    edges = np.array([size[1], size[0]] * 2, np.float64)
    cut = np.clip(rows, 0, edges)
    for row, inside, name in zip(rows.tolist(), cut.tolist(), names, strict=True):
        if not np.isfinite(row).all():
            raise SampleError(f"{name}: its box {_box_text(row)} holds NaN or infinity")
        if row[2] <= row[0] or row[3] <= row[1]:
            rule = "a box is x0, y0, x1, y1 with x0 < x1 and y0 < y1"
            raise SampleError(f"{name}: its box {_box_text(row)} covers no pixel; {rule}{hint}")
        further = max(abs(a - b) for a, b in zip(row, inside, strict=True))
        if inside[2] <= inside[0] or inside[3] <= inside[1] or (outside == "reject" and further > TOLERANCE_PX):
            raise SampleError(f"{name}: its box {_box_text(row)} reaches outside the image of {size[1]} x {size[0]}")
    return cut.astype(np.float32)


@dataclass(frozen=True)
class TableBoxes:
    """Boxes of a table's column in the form that its option names. A list in `labels` has a class for each of them."""

    field: str
    format: BoxFormat = "xyxy"
    outside: Literal["reject", "cut"] = "reject"
    labels: str = ""

    def size(self, raw: Mapping[str, Any]) -> Size | None:
        return None

    def decode(self, raw: Mapping[str, Any], size: Size | None) -> Array:
        value = raw[self.field]
        if value is None:
            raise SampleError("it has no value: a cell is empty, or an archive has no such member beside the image")
        rows = np.asarray(value, np.float64)
        if rows.size % 4 or (rows.ndim > 1 and rows.size and rows.shape[-1] != 4):
            raise SampleError(f"a box is a row of four numbers; got an array {list(rows.shape)}")
        assert size is not None  # these sources always have an image
        rows = rows.reshape(-1, 4)
        if isinstance(classes := raw.get(self.labels), list) and len(classes) != len(rows):
            raise SampleError(f"{self.labels!r} has a class for each box: {len(classes)} classes, {len(rows)} boxes")
        corners = convert_boxes(rows, "xyxy", source=self.format, size=size)
        names = [f"box {number}" for number in range(len(rows))]
        check_not_shares(corners.tolist())
        hint = ". If these are x, y, width and height, say so (box_format='xywh')"
        return check_boxes(corners, size, names, self.outside, hint)


def table_boxes(kinds: Mapping[str, Kind], form: BoxFormat, outside: Outside = "reject") -> dict[str, FieldDecoder]:
    """Return the decoder of each field of boxes."""
    boxes = [name for name, kind in kinds.items() if kind == "boxes"]
    return {name: TableBoxes(name, form, outside, "label" if len(boxes) == 1 else "") for name in boxes}


def check_not_shares(outlines: Sequence[Sequence[float]], objects: Sequence[Any] = ()) -> None:
    """Raise SampleError where all boxes and polygons of an image are inside of its first pixel, but for rounding.

    They are shares of width and height that nobody declared. The boxes of some would be dropped, and others kept as pixels.
    """
    numbers = [number for outline in outlines for number in outline if np.isfinite(number)]
    if numbers and 0 < max(numbers) <= 1 + ROUNDED_SHARE:
        name = f"{objects[0]['id']}: " if objects else ""
        raise SampleError(
            f"{name}all boxes of the image, such as {_box_text(outlines[0])}, are inside of its first pixel: are these shares of "
            "width and height (in tables: box_format='rel_xyxy')?"
        )


def _box_text(row: Sequence[float]) -> str:
    return "[" + ", ".join(f"{value:g}" for value in row) + "]"
