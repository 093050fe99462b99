"""COCO: instances, key points and captions (https://cocodataset.org/#format-data)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal

from tfprep.errors import RecipeError
from tfprep.sources.annotations.coco_file import UNKNOWN_IMAGE, CocoCategories, CocoFile, image_file_name
from tfprep.sources.annotations.listing import (
    OTHER_CLASS,
    UNANNOTATED,
    ImagePath,
    ObjectFields,
    Unannotated,
    WrongAnnotation,
    annotation_files,
    check_choice,
    check_common,
    checked_size,
    object_listing,
)
from tfprep.sources.annotations.objects import (
    DRAWN,
    Outside,
    check_drawing,
    check_object_fields,
)
from tfprep.sources.labels import check_classes
from tfprep.sources.layout import Splits
from tfprep.sources.patterns import compile_pattern
from tfprep.sources.pixels import Pixels, check_pixels_option
from tfprep.sources.source import Entry, Listing, constructor_text
from tfprep.sources.splits import Row

Crowds = Literal["void", "skip", "keep"]
_FIELDS = ("boxes", "box_labels", "box_numbers", "instances", "mask", "points", "crowd", "text")


@dataclass(frozen=True, repr=False)
class Coco(ObjectFields):
    """Images with the annotations of a COCO file. Fields: `image`, and those of `fields`.

    Classes are the categories in the order of their ids, numbered from 0 (`box_labels`); in `mask` 0 is background. Boxes leave
    as x0, y0, x1, y1 in pixels. Key points are pixel indices in COCO: half a pixel is added to a labelled one. The text of the
    file is in memory while it is listed, its annotations are not.

    An image without annotations is kept, with no boxes, unless `unannotated` says otherwise. An annotation of an image that the
    file does not list is counted in the tally. An annotation that is wrong by itself (a category without a name, a polygon of
    two points, a box of no width) rejects its image, and names the annotation.

    Attributes:
        annotations: The file, relative to the root, or a pattern with `{split}`: `annotations/instances_{split}.json`.
        images: Where an image lies: `{file_name}` is that of the annotations, `{split}` that of the pattern.
        fields: What to make of the objects (`tfprep.sources.annotations.objects` lists the fields). `points` need a file of key
            points, `text` one of captions.
        crowds: "void" draws regions of crowds as `void` in masks, without boxes. "skip" leaves them out. "keep" takes them for
            objects.
        unannotated: "keep", "skip" or "reject" images without annotations.
        outside: "reject" an image with a box that reaches outside it by more than one pixel, or "cut" the box.
        void: The number of void regions in masks. Masks are uint8 if it is at most 255, else uint16.
        classes: The names of the categories to take, in the order of their numbers; objects of others are left out. By default
            all.
        splits: As in `Folder`.
        pixels: As in `Folder`, for the field `image`.

    Raises:
        RecipeError: An option is wrong, or two options contradict each other.
    """

    annotations: str = "annotations/instances_{split}.json"
    images: str = "{split}/{file_name}"
    fields: tuple[str, ...] = ("boxes", "box_labels")
    crowds: Crowds = "void"
    unannotated: Unannotated = "keep"
    outside: Outside = "reject"
    void: int = 255
    classes: tuple[str, ...] | None = None
    splits: Splits = None
    pixels: Mapping[str, Pixels] = field(default_factory=dict)

    def __post_init__(self) -> None:
        pattern = compile_pattern(self.annotations, "Coco: annotations")
        object.__setattr__(self, "fields", check_object_fields(self.fields, _FIELDS, "Coco"))
        object.__setattr__(self, "splits", check_common(self, pattern, ".json"))
        object.__setattr__(self, "pixels", check_pixels_option(self.pixels, self.kinds(), "Coco"))
        check_choice("Coco: crowds", self.crowds, ("void", "skip", "keep"))
        if self.classes is not None:
            object.__setattr__(self, "classes", check_classes(self.classes, "Coco: classes"))
        if "text" in self.fields and len(self.fields) > 1:
            raise RecipeError("Coco: captions are in a file of their own; fields=('text',) alone reads one")
        ImagePath.parse(self.images, {"file_name"} | pattern.holes, "Coco: images")

    def scan(self, root: Path) -> Listing:
        """List the images of all annotation files below `root`; see `Source.scan`."""
        found = annotation_files(root, self.annotations, self.splits, "Coco: annotations")
        files = [(CocoFile.read(root / path), holes) for path, holes in found]
        categories = CocoCategories.of([file for file, _ in files], self.classes)
        check_drawing(self.fields, len(categories.names), self.void, "Coco")
        return object_listing(self, categories.names, partial(self._rows, files, categories))

    def _rows(
        self, files: list[tuple[CocoFile, dict[str, str]]], categories: CocoCategories, tally: Counter[str]
    ) -> Iterator[Row]:
        path = ImagePath.parse(self.images, None, "Coco: images")
        for name, ids in categories.merged.items():
            tally[f"class {name!r} is that of several categories: {ids}"] += 1
        for file, holes in files:
            tally.update({UNKNOWN_IMAGE: file.unlisted} if file.unlisted else {})
            tally.update({f"{file.path.name} {file.text.note}": 1} if file.text.note else {})
            for image, found in file.images():
                if not found and self.unannotated == "skip":
                    tally[UNANNOTATED] += 1
                    continue
                of_image = path.fill({**holes, "file_name": image_file_name(image.get("file_name"))}, str(file.path))
                part = self._objects(image, found, categories, tally)
                yield Entry(of_image.key, holes["split"], (of_image.path,), (part,)), None

    def _objects(
        self, image: Mapping[str, Any], annotations: list[Any], categories: CocoCategories, tally: Counter[str]
    ) -> dict[str, Any]:
        part: dict[str, Any] = {"size": image_size_of(image), "objects": []}
        if not annotations and self.unannotated == "reject":
            return {**part, "fault": "the image has no annotations"}
        try:
            if "text" in self.fields:
                return {**part, "text": "\n".join(_caption(one) for one in annotations)}
            part["objects"] = [
                made for one in annotations if (made := self._object(one, categories, tally)) is not None
            ]
        except WrongAnnotation as fault:
            part["fault"] = str(fault)
        return part

    def _object(self, one: Any, categories: CocoCategories, tally: Counter[str]) -> dict[str, Any] | None:
        """One annotation as an object; None if it is left out."""
        name = f"annotation {one.get('id')}" if isinstance(one, dict) else "an annotation"
        if not isinstance(one, dict):
            raise WrongAnnotation(f"{name} is {one!r:.60}, not an object")
        label = categories.number(one.get("category_id"), name)
        crowd = bool(one.get("iscrowd"))
        if label is None or (crowd and self.crowds == "skip"):
            tally[OTHER_CLASS if label is None else "region of a crowd"] += 1
            return None
        made = {"id": name, "label": label, "box": box_corners(one.get("bbox"), name)}
        if crowd:
            made |= {"void": True} if self.crowds == "void" else {"flags": {"crowd": 1}}
        if DRAWN & set(self.fields):
            made |= _shape(one.get("segmentation"), name)
        if "points" in self.fields:
            made["points"] = _points(one.get("keypoints"), categories.points(one["category_id"]), name)
        return made

    __repr__ = constructor_text


def image_size_of(image: Mapping[str, Any]) -> list[int] | None:
    return checked_size(image.get("height"), image.get("width"))


def _caption(one: Any) -> str:
    if not isinstance(one, dict) or not isinstance(one.get("caption"), str):
        raise WrongAnnotation(f"expected a caption; got {one!r:.60}")
    return " ".join(one["caption"].split())


def box_corners(box: Any, name: str) -> list[float]:
    """x, y, width and height as x0, y0, x1, y1."""
    if not _numbers(box) or len(box) != 4:
        raise WrongAnnotation(f"{name}: a bbox is x, y, width and height; got {box!r:.60}")
    return [box[0], box[1], box[0] + box[2], box[1] + box[3]]


def _shape(segmentation: Any, name: str) -> dict[str, Any]:
    if isinstance(segmentation, dict):
        return {"rle": segmentation}
    if isinstance(segmentation, list) and segmentation and all(map(_numbers, segmentation)):
        return {"polygons": segmentation}
    raise WrongAnnotation(f"{name}: a segmentation is a list of polygons, or an RLE; got {segmentation!r:.60}")


def _points(flat: Any, count: int, name: str) -> list[list[float]]:
    """Key points as rows; an object without any has `count` points that are not labelled."""
    flat = [0] * (3 * count) if flat is None else flat
    if not _numbers(flat) or len(flat) != 3 * count:
        raise WrongAnnotation(
            f"{name}: its category has {count} key points of 3 numbers; got {len(flat) if isinstance(flat, list) else flat!r}"
        )
    return [[x + 0.5, y + 0.5, v] if v else [x, y, v] for x, y, v in zip(*(flat[i::3] for i in range(3)), strict=True)]


def _numbers(values: Any) -> bool:
    return isinstance(values, list) and all(
        isinstance(value, int | float) and not isinstance(value, bool) for value in values
    )
