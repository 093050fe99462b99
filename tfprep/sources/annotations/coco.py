"""COCO: instances and key points (https://cocodataset.org/#format-data).

The text of an annotation file is in memory, its objects are not: a file of a million annotations takes gigabytes as Python
objects. `JsonText` reads one element of an array at a time.
"""

from __future__ import annotations

import json
import re
from array import array
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from tfprep.errors import RecipeError, SourceError
from tfprep.fields import Array
from tfprep.sources.annotations.listing import (
    OTHER_CLASS,
    UNANNOTATED,
    AnnotatedSource,
    WrongAnnotation,
    checked_size,
    object_listing,
)
from tfprep.sources.annotations.objects import DRAWN, check_drawing
from tfprep.sources.cells import path_cell
from tfprep.sources.folder import split_files
from tfprep.sources.patterns import Template, compile_pattern, spelled
from tfprep.sources.raw import read_whole
from tfprep.sources.source import Entry, Listing, class_name_fault, key_of
from tfprep.sources.splits import Row


@dataclass(frozen=True, repr=False)
class Coco(AnnotatedSource):
    """Images with the annotations of a COCO file. Fields: `image`, and those of `fields`.

    Classes are the categories in the order of their ids, numbered from 0 (`box_labels`); in `mask` 0 is background. Boxes leave
    as x0, y0, x1, y1 in pixels. Key points are pixel indices in COCO: half a pixel is added to a labeled one. Regions of crowds
    are `void` in masks and have no box. The text of the file is in memory while it is listed, its annotations are not.

    An image without annotations is kept, with no boxes, unless `unannotated` says otherwise. An annotation of an image that the
    file does not list is counted in the tally.

    The options of all sources of annotations (`AnnotatedSource`) are given by name.

    Attributes:
        annotations: The file, relative to the root, or a pattern with `{split}`: `annotations/instances_{split}.json`.
        images: Where an image is: `{file_name}` is that of the annotations (in LVIS the end of `coco_url`, such as
            `train2017/000000391895.jpg`), `{split}` that of the pattern.
        fields: What to make of the objects (`tfprep.sources.annotations.objects` lists the fields). `points` need a file of key
            points. `box_labels` without `boxes` are the classes of an image.
        classes: The names of the categories to take, in the order of their numbers; objects of others are left out. By default
            all.

    Raises:
        RecipeError: An option is wrong, or two options contradict each other.
    """

    known_fields = ("boxes", "box_labels", "box_numbers", "instances", "mask", "points")
    annotations: str = "annotations/instances_{split}.json"
    images: str = "{split}/{file_name}"
    classes: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        pattern = compile_pattern(self.annotations, "Coco: annotations")
        self.check_options(pattern, ".json")
        known = {"file_name", "split", *pattern.holes}
        if not isinstance(self.images, str) or (unknown := set(Template.parse(self.images).holes) - known):
            what = f"{{{min(unknown)}}} stands for nothing" if isinstance(self.images, str) else "expected a path"
            raise RecipeError(f"Coco: images={self.images!r}: {what}; there are {sorted(known)}")

    def scan(self, root: Path) -> Listing:
        """List the images of all annotation files below `root`; see `Source.scan`."""
        files = CocoFiles(self, root)
        check_drawing(self.fields, len(files.names), self.void, "Coco")
        return object_listing(self, files.names, partial(self._rows, root, files), passed_over=files.passed_over)

    def _rows(self, root: Path, files: CocoFiles, tally: Counter[str]) -> Iterator[Row]:
        template = Template.parse(self.images)
        for image, of_image, holes, file in files.images(tally):
            name = image_file_name(image)
            try:
                if not isinstance(name, str) or not name:
                    raise SourceError(f"expected the file_name of an image as text; got {name!r}")
                path = spelled(root, path_cell(template.fill({**holes, "file_name": name}.__getitem__)))
            except SourceError as error:
                raise SourceError(f"{file}: {error}") from error
            objects = self.objects_of(of_image, lambda one: self._object(one, files, tally))
            yield Entry(key_of(path), holes["split"], (path,), ({"size": checked_size(image), **objects},)), None

    def _object(self, annotation: dict[str, Any], files: CocoFiles, tally: Counter[str]) -> dict[str, Any] | None:
        """One annotation as an object; None if it is left out."""
        name = f"annotation {annotation.get('id')}"
        label = files.number(annotation.get("category_id"), name)
        if label is None:
            tally[OTHER_CLASS] += 1
            return None
        item: dict[str, Any] = {"id": name, "label": label}
        if "bbox" not in annotation and isinstance(annotation.get("segmentation"), list) and annotation["segmentation"]:
            item |= _shape(annotation["segmentation"], name)  # the box is that around the polygons
        elif "bbox" in annotation or self.fields != ("box_labels",):
            box: Any = annotation.get("bbox")
            if not _numbers(box) or len(box) != 4:
                raise WrongAnnotation(f"{name}: a bbox is x, y, width and height; got {box!r:.60}")
            item["box"] = [box[0], box[1], box[0] + box[2], box[1] + box[3]]
        if (crowd := annotation.get("iscrowd") or 0) not in (0, 1):  # text such as "0" is true in Python
            raise WrongAnnotation(f"{name}: iscrowd is 0 or 1; got {crowd!r:.60}")
        item |= {"void": True} if crowd else {}
        if DRAWN & set(self.fields):
            item |= _shape(annotation.get("segmentation"), name)
        if "points" in self.fields:
            item["points"] = _points(annotation.get("keypoints"), files.key_points, name)
        return item


def _shape(segmentation: Any, name: str) -> dict[str, Any]:
    if isinstance(segmentation, dict):
        return {"rle": segmentation}
    if isinstance(segmentation, list) and segmentation and all(map(_numbers, segmentation)):
        return {"polygons": segmentation}
    raise WrongAnnotation(f"{name}: a segmentation is a list of polygons, or an RLE; got {segmentation!r:.60}")


def _points(flat: Any, count: int, name: str) -> list[list[float]]:
    """Key points as rows; an object without any has `count` points that are not labeled."""
    flat = [0] * (3 * count) if flat is None or flat == [] else flat
    if not _numbers(flat) or len(flat) != 3 * count:
        raise WrongAnnotation(
            f"{name}: its category has {count} key points of 3 numbers; got {len(flat) if isinstance(flat, list) else flat!r}"
        )
    return [[x + 0.5, y + 0.5, v] if v else [x, y, v] for x, y, v in zip(*(flat[i::3] for i in range(3)), strict=True)]


def _numbers(values: Any) -> bool:
    return isinstance(values, list) and all(
        isinstance(value, int | float) and not isinstance(value, bool) for value in values
    )


UNKNOWN_IMAGE = "annotation of an image that the file does not list"


@dataclass(frozen=True)
class CocoFile:
    """An annotation file: its text, and where the images and the annotations of each begin in it."""

    path: Path
    text: JsonText
    image_starts: Array
    annotation_starts: Array
    """In the order of the images, then of the file."""
    edges: Array
    """int64 [images, 2]: the annotations of each image."""
    unlisted: int
    categories: Sequence[tuple[float | str, tuple[str | None, int]]]
    """The id of each category, with its name (None if it has none) and its number of key points."""

    @staticmethod
    def read(path: Path) -> CocoFile:
        """Read the file. SourceError if it is not JSON, or not as COCO's format says."""
        text, keys = JsonText(path), {"images": "id", "annotations": "image_id"}
        found: dict[str, tuple[array[int], array[int]]] = {}
        categories: list[tuple[float | str, tuple[str | None, int]]] = []
        for name, place, start, value in text.members(keys):
            if name == "categories" and isinstance(value, list):
                categories = [_category(path, category) for category in value]
            elif name in keys and place < 0:
                found[name] = array("q"), array("q")
            elif name in keys:
                found[name][0].append(_id(value, keys[name], f"{path}: {name}[{place}]"))
                found[name][1].append(start)
        if missing := keys.keys() - found.keys():
            raise SourceError(f"{path}: no {' and no '.join(sorted(missing))}; is this a COCO file?")
        (ids, images), (of_image, annotations) = (map(np.array, found[name]) for name in keys)
        if len(np.unique(ids)) < len(ids):
            raise SourceError(f"{path}: two images have one id; give each its own")
        first = text.value(int(annotations[0])) if len(annotations) else {}
        if other := {"caption", "segments_info"} & set(first):
            rule = "captions and segments of panoptic segmentation are not read (docs/sources.md)"
            raise SourceError(f"{path} is not a file of objects: its annotations have {other.pop()!r}; {rule}")
        order = np.argsort(of_image, kind="stable")
        ordered = of_image[order]
        edges = np.stack([np.searchsorted(ordered, ids, side) for side in ("left", "right")], axis=1)
        return CocoFile(path, text, images, annotations[order], edges, int((~np.isin(of_image, ids)).sum()), categories)

    def images(self) -> Iterator[tuple[dict[str, Any], list[Any]]]:
        """Yield each image with its annotations."""
        for at, (first, last) in zip(self.image_starts.tolist(), self.edges.tolist(), strict=True):
            yield self.text.value(at), [self.text.value(start) for start in self.annotation_starts[first:last].tolist()]


def _category(path: Path, category: Any) -> tuple[float | str, tuple[str | None, int]]:
    points = category.get("keypoints") or [] if isinstance(category, dict) else None
    if not isinstance(points, list) or not isinstance(category.get("id"), int | float | str):
        rule = "a category is an object with an id and a name, and its keypoints are a list"
        raise SourceError(f"{path}: {rule}; got {category!r:.80}")
    name = category.get("name")
    known = key_of(name.strip()) if isinstance(name, str) else ""
    return category["id"], (known if known and not class_name_fault(known) else None, len(points))


class CocoFiles:
    """All annotation files of a source with their placeholders, and their categories.

    Attributes:
        names: Class names in the order of their numbers.
        key_points: The number of key points of each object.
        passed_over: Number of files of splits that are not taken, by reason.
    """

    def __init__(self, source: Coco, root: Path) -> None:
        """Read the files of a source. SourceError if there is none, or one is not a COCO file."""
        self.passed_over = Counter[str]()
        found = split_files(root, source.annotations, source.splits, "file", self.passed_over)
        self._files = [(CocoFile.read(root / path), holes) for path, holes in found]
        self._unannotated = source.unannotated
        self._by_id: dict[float | str, tuple[str | None, int]] = {}
        for file, _ in self._files:
            for number, new in file.categories:
                if (known := self._by_id.setdefault(number, new)) != new:
                    raise SourceError(
                        f"{file.path}: category {number} is {new[0]!r} here and {known[0]!r} in another file"
                    )
        self._ids: dict[str, list[str]] = {}
        for number, (name, _) in sorted(self._by_id.items(), key=lambda item: (isinstance(item[0], str), item[0])):
            if name:
                self._ids.setdefault(name, []).append(str(number))
        self.names = source.classes or tuple(self._ids)
        self._numbers = {name: number for number, name in enumerate(self.names)}
        if unknown := [name for name in self.names if name not in self._ids]:
            known_ids = ", ".join(map(repr, list(self._ids)[:20]))
            raise SourceError(f"{self._files[0][0].path}: there is no category {unknown[0]!r}; there are {known_ids}")
        counts = {count for name, count in self._by_id.values() if count and name in self.names}
        self.key_points = max(counts, default=0)
        if "points" in source.fields and len(counts) != 1:  # those of an object are found by its place
            rule = f"points need classes of one number of key points; these have {', '.join(map(str, sorted(counts))) or 'none'}"
            raise SourceError(f"{self._files[0][0].path}: {rule}. Take some with classes=")

    def images(self, tally: Counter[str]) -> Iterator[tuple[dict[str, Any], list[Any], dict[str, str], Path]]:
        """Yield each image with its annotations, the placeholders of its file and the file."""
        for name, ids in self._ids.items():
            if len(ids) > 1:
                tally[f"class {name!r} is that of several categories: {', '.join(ids)}"] += 1
        for file, holes in self._files:
            tally.update({UNKNOWN_IMAGE: file.unlisted} if file.unlisted else {})
            for image, of_image in file.images():
                if not of_image and self._unannotated == "skip":
                    tally[UNANNOTATED] += 1
                else:
                    yield image, of_image, holes, file.path

    def number(self, category: Any, annotation: str) -> int | None:
        """Return the class number of a category; None if its objects are left out."""
        if not isinstance(category, int | float | str) or category not in self._by_id:
            raise WrongAnnotation(f"{annotation}: there is no category {category!r}")
        name = self._by_id[category][0]
        if name is None:
            raise WrongAnnotation(f"{annotation}: category {category} has no name")
        return self._numbers.get(name)


def image_file_name(image: Mapping[str, Any]) -> Any:
    """Return the `file_name` of an image with slashes: tools on Windows write backslashes.

    Images of LVIS have none, but `coco_url`, whose last folder and name are those of COCO's images.
    """
    name, url = image.get("file_name"), image.get("coco_url")
    if name is None and isinstance(url, str):
        return "/".join(url.split("/")[-2:])
    return name.replace("\\", "/") if isinstance(name, str) else name


def _id(value: Any, key: str, place: str) -> int:
    number = value.get(key) if isinstance(value, dict) else None
    if isinstance(number, float) and number.is_integer():
        number = int(number)
    if not isinstance(number, int) or abs(number) > np.iinfo(np.int64).max:
        raise SourceError(f"{place} has no {key!r}, a whole number of 64 bits; got {value!r:.80}")
    return number


_DECODER = json.JSONDecoder()
_SPACE = re.compile(r"[ \t\r\n]*")


class JsonText:
    """The text of a JSON file whose outermost value is an object.

    Raises:
        SourceError: The file cannot be read, or is not JSON; the message names file, line and column.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            self._text = read_whole(path).decode("utf-8-sig")
        except OSError as error:
            raise SourceError(f"{path}: cannot read the annotations: {error.strerror}") from error
        except UnicodeDecodeError as error:
            raise SourceError(f"{path} is not UTF-8: save it as UTF-8 ({error})") from error

    def value(self, start: int) -> Any:
        """Return the value that begins at a character."""
        return self._decoded(start)[0]

    def members(self, arrays: Collection[str]) -> Iterator[tuple[str, int, int, Any]]:
        """Yield name, -1, first character and value of each member of the outermost object. The value of `arrays` is None; after
        them follow their elements, each with its place from 0."""
        at, is_first = self._expect(0, "{"), True
        while self._text[at : at + 1] != "}":
            name, at = self._decoded(at if is_first else self._expect(at, ","))
            at, is_first = self._expect(at, ":"), False
            if name not in arrays:
                value, end = self._decoded(at)
                yield name, -1, at, value
                at = self._skip(end)
                continue
            yield name, -1, at, None
            at, place = self._expect(at, "["), 0
            while self._text[at : at + 1] != "]":
                at = self._expect(at, ",") if place else at
                value, end = self._decoded(at)
                yield name, place, at, value
                at, place = self._skip(end), place + 1
            at = self._skip(at + 1)
        if (end := self._skip(at + 1)) < len(self._text):
            raise self._error("there is more after its end", end)

    def _decoded(self, at: int) -> tuple[Any, int]:
        try:
            return _DECODER.raw_decode(self._text, at)
        except json.JSONDecodeError as error:
            raise self._error(error.msg, error.pos) from error
        except RecursionError as error:
            raise self._error("brackets are nested too deeply", at) from error

    def _skip(self, at: int) -> int:
        space = _SPACE.match(self._text, at)
        return space.end() if space else at

    def _expect(self, at: int, character: str) -> int:
        at = self._skip(at)
        if self._text[at : at + 1] != character:
            raise self._error(f"expected {character!r}", at)
        return self._skip(at + 1)

    def _error(self, what: str, at: int) -> SourceError:
        line, column = self._text.count("\n", 0, at) + 1, at - self._text.rfind("\n", 0, at)
        return SourceError(f"{self._path}, line {line}, column {column}: the annotations are not whole JSON: {what}")
