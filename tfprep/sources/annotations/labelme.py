"""LabelMe: a JSON file beside each image (https://github.com/wkentaro/labelme). CVAT, Label Studio and X-AnyLabeling export it
too."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from tfprep.errors import RecipeError
from tfprep.sources.annotations.listing import (
    AnnotatedSource,
    WrongAnnotation,
    annotated_images,
    checked_size,
    class_of,
    names_in_files,
    object_listing,
    object_rows,
)
from tfprep.sources.annotations.objects import check_drawing
from tfprep.sources.cells import sorted_classes
from tfprep.sources.patterns import check_placeholders, compile_pattern
from tfprep.sources.source import Listing, key_of
from tfprep.sources.splits import Row

_REGIONS = ("polygon", "rectangle", "rotation")
_NO_REGIONS = ("point", "points", "line", "linestrip")


@dataclass(frozen=True, repr=False)
class LabelMe(AnnotatedSource):
    """Images with LabelMe's JSON files beside them. Fields: `image`, and those of `fields`.

    Polygons and rectangles are objects; polygons of one `group_id` and one label are one object. Points and lines are counted in
    the tally; an image with another shape, such as a circle, is rejected. An image without a JSON file is kept, with no boxes,
    unless `unannotated` says otherwise. A JSON file without an image is counted in the tally. An image whose
    file is not JSON, or names another image, is rejected.

    The options of all sources of annotations (`AnnotatedSource`) are given by name.

    Attributes:
        images: The pattern of the images, as `tfprep.sources.patterns` describes.
        annotations: The pattern of the JSON files, with the same placeholders.
        classes: The labels to take, in the order of their numbers; objects of others are left out, and counted in the tally. By
            default all that occur, sorted.

    Raises:
        RecipeError: An option is wrong, or two options contradict each other.
    """

    known_fields = ("boxes", "box_labels", "box_numbers", "instances", "mask")
    images: str = "**"
    annotations: str = "**/*.json"
    classes: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        image = compile_pattern(self.images, "LabelMe: images")
        annotations = compile_pattern(self.annotations, "LabelMe: annotations")
        self.check_options(image)
        check_placeholders("LabelMe", image, {"annotations": annotations})
        if annotations.suffix != ".json":
            raise RecipeError(f"LabelMe: expected annotations to end in .json; got {self.annotations!r}")

    def scan(self, root: Path) -> Listing:
        """List the images below `root`; see `Source.scan`."""
        annotations = compile_pattern(self.annotations, "LabelMe: annotations")

        def labels(data: bytes, path: str) -> Iterator[str]:
            shapes = _content(data, path)["shapes"]
            return (_label(shape) for shape in shapes if shape.get("shape_type") not in _NO_REGIONS)

        classes = self.classes or sorted_classes(names_in_files(root, annotations, labels))
        check_drawing(self.fields, len(classes), self.void, "LabelMe")
        numbers = {name: number for number, name in enumerate(classes)}
        image = compile_pattern(self.images, "LabelMe: images")

        def rows(tally: Counter[str]) -> Iterator[Row]:
            images = (one for one, _ in annotated_images(self, root, image, annotations, tally))
            return object_rows(self, root, images, partial(_objects, self, numbers=numbers, tally=tally), tally)

        return object_listing(self, classes, rows)


def _content(data: bytes, path: str) -> dict[str, Any]:
    try:
        content: dict[str, Any] = json.loads(data.decode("utf-8-sig"))
    except (ValueError, RecursionError) as error:
        raise WrongAnnotation(f"{path} is not whole JSON: {error}") from error
    shapes = content.get("shapes") if isinstance(content, dict) else None
    if not isinstance(shapes, list) or not all(isinstance(shape, dict) for shape in shapes):
        raise WrongAnnotation(f"{path}: no list of shapes; is this a file of LabelMe?")
    return content


def _objects(source: LabelMe, data: bytes, path: str, numbers: dict[str, int], tally: Counter[str]) -> dict[str, Any]:
    content = _content(data, path)
    named = str(content.get("imagePath") or "").replace("\\", "/").rpartition("/")[2].rpartition(".")[0]
    if named and key_of(named) != key_of(path.rpartition("/")[2].rpartition(".")[0]):  # a copied or renamed file
        raise WrongAnnotation(f"{path} is about the image {content['imagePath']!r}; give both one name")
    size = checked_size(content, ("imageHeight", "imageWidth"))
    for place, shape in enumerate(content["shapes"]):
        kind = shape.get("shape_type", "polygon")
        if _label(shape) in numbers and kind not in _REGIONS + _NO_REGIONS:  # its pixels would become background
            raise WrongAnnotation(f"{path}: shape {place}: the type {kind!r} is not read; draw it as a polygon")

    def item_of(numbered: tuple[int, dict[str, Any]]) -> dict[str, Any] | None:
        place, shape = numbered
        name = f"{path}: shape {place}"
        if (kind := shape.get("shape_type", "polygon")) in _NO_REGIONS:
            tally[f"shape of the type {kind!r}, which is not a region"] += 1
            return None
        label = class_of(_label(shape), numbers, tally, name)
        if label is None:
            return None
        corners = _corners_of(shape, kind)
        if not all(math.isfinite(value) for value in corners) or len(corners) < 6:
            raise WrongAnnotation(f"{name}: a polygon is three points or more; it has {len(corners) // 2}")
        return {"id": name, "label": label, "polygons": [corners], "group": shape.get("group_id")}

    part = source.objects_of(enumerate(content["shapes"]), item_of)
    objects: dict[Any, dict[str, Any]] = {}
    for one in part["objects"]:
        group = one.pop("group", None)
        first = objects.setdefault(one["id"] if group is None else (one["label"], group), one)
        if first is not one:
            first["polygons"] += one["polygons"]
    return {**part, "size": size, "objects": list(objects.values())}


def _label(shape: dict[str, Any]) -> str:
    """The class of a shape, without the spaces around it; "" without one."""
    label = shape.get("label")
    return key_of(label.strip()) if isinstance(label, str) else ""


def _corners_of(shape: dict[str, Any], kind: str) -> list[float]:
    """x, y, x, y, ... of a region in pixels; what is not a number is NaN."""
    points = shape.get("points")
    rows = points if isinstance(points, list) else []
    flat = [value for point in rows for value in (point if isinstance(point, list) and len(point) == 2 else [math.nan])]
    numbers = [float(value) if isinstance(value, int | float) else math.nan for value in flat]
    if kind == "rectangle" and len(numbers) == 4:  # newer versions write four corners
        x0, y0, x1, y1 = numbers
        return [x0, y0, x1, y0, x1, y1, x0, y1]
    return numbers
