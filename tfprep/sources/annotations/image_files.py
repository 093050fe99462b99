"""Pascal VOC and LabelMe: a file of annotations for each image.

VOC has XML files, lists of images by split, and masks with palettes (Everingham et al., 'The Pascal Visual Object Classes (VOC)
Challenge', IJCV 2010; http://host.robots.ox.ac.uk/pascal/VOC/voc2012/). LabelMe has JSON files beside the images
(https://github.com/wkentaro/labelme); CVAT, Label Studio and X-AnyLabeling export them too.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from tfprep.errors import RecipeError, SourceError
from tfprep.sources.annotations.listing import (
    AnnotatedImage,
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
from tfprep.sources.cells import path_cell, sorted_classes
from tfprep.sources.folder import split_files
from tfprep.sources.patterns import Companions, Holes, Pattern, check_placeholders, compile_pattern
from tfprep.sources.raw import text_lines
from tfprep.sources.source import Listing, key_of
from tfprep.sources.splits import Row

VOC_CLASSES = (
    "aeroplane", "bicycle", "bird", "boat", "bottle", "bus", "car", "cat", "chair", "cow", "diningtable", "dog", "horse",
    "motorbike", "person", "pottedplant", "sheep", "sofa", "train", "tvmonitor",
)  # fmt: skip
"""The 20 classes in the order of the numbers in `SegmentationClass`, which begin with 1."""
_MASKS = {"mask": "masks", "instances": "instance_masks"}
"""The option that says where the file of a field is."""


@dataclass(frozen=True, repr=False)
class Voc(AnnotatedSource):
    """Images with Pascal VOC's annotations. Fields: `image`, and those of `fields`.

    Boxes leave as x0, y0, x1, y1 in continuous pixels: VOC counts pixels from 1 and includes the last one, so 1 is taken from
    `xmin` and `ymin`. `mask` and `instances` are the files of `SegmentationClass` and `SegmentationObject`: 0 is background,
    255 the border of objects; instance i is the i-th object of the XML file, whose boxes say so by `box_numbers`.

    An image without an XML file is kept, with no boxes, unless `unannotated` says otherwise. An XML file without an image is
    counted in the tally. An image whose file is not XML is rejected.

    The options of all sources of annotations (`AnnotatedSource`) are given by name.

    Attributes:
        images: The pattern of the images, as `tfprep.sources.patterns` describes.
        annotations: The pattern of the XML files, with the same placeholders.
        sets: The pattern of the lists of images by split, such as `ImageSets/Main/{split}.txt`; each line is the name of an
            image, which stands for `*`. With None all images are taken.
        masks: The pattern of the masks of classes, if `mask` is one of the fields.
        instance_masks: The pattern of the masks of instances, if `instances` is one of the fields.
        first_pixel: The number of the first pixel: 1 in VOC, 0 in files of some tools.
        classes: The names of the classes in the order of their numbers; objects of others are left out, and counted in the
            tally. By default the names that occur, sorted; with `mask` VOC's 20, whose numbers the masks have.

    Raises:
        RecipeError: An option is wrong, or two options contradict each other.
    """

    known_fields = ("boxes", "box_labels", "box_numbers", "difficult", "instances", "mask")
    in_files = _MASKS
    images: str = "JPEGImages/*"
    annotations: str = "Annotations/*.xml"
    sets: str | None = None
    masks: str = "SegmentationClass/*.png"
    instance_masks: str = "SegmentationObject/*.png"
    first_pixel: int = 1
    classes: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        image = compile_pattern(self.images, "Voc: images")
        by_split = image if self.sets is None else compile_pattern(self.sets, "Voc: sets")
        self.check_options(by_split, None if self.sets is None else ".txt")
        if self.sets is not None and "_1" not in image.holes:
            raise RecipeError(f"Voc: sets name images, which stand for '*' in images={self.images!r}")
        if {"boxes", "instances"} <= set(self.fields) and "box_numbers" not in self.fields:
            raise RecipeError(
                "Voc: boxes may be left out, and instances keep their numbers: add 'box_numbers' to fields"
            )
        if self.first_pixel not in (0, 1):
            raise RecipeError(f"Voc: first_pixel is 0 or 1; got {self.first_pixel!r}")
        names = ("annotations", *(_MASKS[mask] for mask in _MASKS if mask in self.fields))
        check_placeholders("Voc", image, {name: compile_pattern(getattr(self, name), f"Voc: {name}") for name in names})

    def scan(self, root: Path) -> Listing:
        """List the images below `root`; see `Source.scan`."""
        classes = self.classes
        if classes is None:
            annotations = compile_pattern(self.annotations, "Voc: annotations")
            names = names_in_files(
                root, annotations, lambda data, path: (_text(one, "name") for one in _tree(data, path).iter("object"))
            )
            if "mask" in self.fields and (further := sorted(names.difference(VOC_CLASSES))):
                rule = "nothing says which numbers the masks have for them; give classes in the order of the numbers"
                raise SourceError(f"{root}: {', '.join(further[:3])} are not among VOC's 20 classes, and {rule}")
            classes = VOC_CLASSES if "mask" in self.fields else sorted_classes(names)
        numbers = {name: number for number, name in enumerate(classes)}

        def rows(tally: Counter[str]) -> Iterator[Row]:
            parse = partial(self._objects, numbers=numbers, tally=tally)
            return object_rows(self, root, self._images(root, tally), parse, tally)

        return object_listing(self, classes, rows, ("image", *(name for name in self.fields if name in _MASKS)))

    def _images(self, root: Path, tally: Counter[str]) -> Iterator[AnnotatedImage]:
        image, annotations = (compile_pattern(text, "Voc") for text in (self.images, self.annotations))
        masks = [compile_pattern(getattr(self, _MASKS[name]), name) for name in self.fields if name in _MASKS]
        companions = Companions(root)
        if self.sets is None:
            listed = annotated_images(self, root, image, annotations, tally)
        else:
            listed = self._listed(root, image, annotations, companions, tally)
        for one, holes in listed:
            yield one._replace(others=tuple(companions.find(mask, holes)[0] for mask in masks))

    def _listed(
        self, root: Path, image: Pattern, annotations: Pattern, companions: Companions, tally: Counter[str]
    ) -> Iterator[tuple[AnnotatedImage, Holes]]:
        for path, placeholders in split_files(root, self.sets or "", self.splits, "list", tally):
            for line in filter(None, text_lines(root / path, "list of images")):
                try:
                    holes = {**placeholders, "_1": path_cell(line)}
                except SourceError as error:
                    raise SourceError(f"{root / path}: {error}") from error
                found, own = (companions.find(pattern, holes)[0] for pattern in (image, annotations))
                yield AnnotatedImage(found, placeholders["split"], own), holes

    def _objects(self, data: bytes, path: str, numbers: dict[str, int], tally: Counter[str]) -> dict[str, Any]:
        def item_of(numbered: tuple[int, ElementTree.Element]) -> dict[str, Any] | None:
            place, one = numbered
            where = f"{path}: object {place}"
            label = class_of(_text(one, "name"), numbers, tally, where)
            if label is None:
                return None
            if (difficult := _text(one, "difficult") or "0") not in ("0", "1") and "difficult" in self.fields:
                raise WrongAnnotation(f"{where}: difficult is 0 or 1; got {difficult!r:.60}")
            flags = {"difficult": int(difficult == "1")}
            box = one.find("bndbox")
            try:
                x0, y0, x1, y1 = (float(_text(box, side)) for side in ("xmin", "ymin", "xmax", "ymax"))
            except ValueError:
                rule = f"{where} has no bndbox with xmin, ymin, xmax and ymax as numbers"
                raise WrongAnnotation(rule) from None
            corners = [x0 - self.first_pixel, y0 - self.first_pixel, x1, y1]
            return {"id": where, "label": label, "box": corners, "number": place, "flags": flags}

        tree = _tree(data, path)
        sides = [_text(tree.find("size"), side) for side in ("height", "width")]
        known = all(side.isdecimal() and int(side) for side in sides)  # some tools write none, or 0
        size = [int(side) for side in sides] if known else None
        return {"size": size, **self.objects_of(enumerate(tree.iter("object"), 1), item_of)}


def _tree(data: bytes, path: str) -> ElementTree.Element:
    try:
        return ElementTree.fromstring(data)
    except (ElementTree.ParseError, ValueError, LookupError) as error:
        raise WrongAnnotation(f"{path} is not whole XML: {error}") from error


def _text(element: ElementTree.Element | None, name: str) -> str:
    child = None if element is None else element.find(name)
    return "" if child is None or child.text is None else key_of(child.text.strip())


# --- LabelMe ----------------------------------------------------------------------------------------------------------

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
        if not isinstance(group := shape.get("group_id"), int | float | str | None):
            raise WrongAnnotation(f"{name}: a group_id is a number or null; got {group!r:.60}")
        return {"id": name, "label": label, "polygons": [corners], "group": group}

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
