"""The file of COCO's annotations: where its images and annotations stand in its text, and its categories."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tfprep.errors import SourceError
from tfprep.fields import Array
from tfprep.sources.annotations.json_text import JsonText
from tfprep.sources.annotations.listing import WrongAnnotation
from tfprep.sources.labels import class_name_fault

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
    found_categories: tuple[Any, ...]

    @staticmethod
    def read(path: Path) -> CocoFile:
        """Read the file. SourceError if it is no JSON, or not as COCO's format says."""
        text = JsonText(path)
        starts: dict[str, tuple[Array, Array]] = {}
        categories: tuple[Any, ...] = ()
        named: dict[str, int] = {}
        for name, start in text.members():
            if name in ("images", "annotations"):
                starts[name] = _starts(text, start, "id" if name == "images" else "image_id", path, name, named)
            if name == "categories":
                categories = tuple(element.value for element in text.elements(start))
        if missing := {"images", "annotations"} - set(starts):
            raise SourceError(f"{path}: no {' and no '.join(sorted(missing))}; is this a COCO file?")
        (ids, images), (of_image, annotations) = starts["images"], starts["annotations"]
        if len(np.unique(ids)) < len(ids):
            raise SourceError(f"{path}: two images have one id; give each its own")
        order = np.argsort(of_image, kind="stable")
        ordered = of_image[order]
        edges = np.stack([np.searchsorted(ordered, ids, side) for side in ("left", "right")], axis=1)
        return CocoFile(path, text, images, annotations[order], edges, int((~np.isin(of_image, ids)).sum()), categories)

    def images(self) -> Iterator[tuple[dict[str, Any], list[Any]]]:
        """Yield each image with its annotations."""
        for at, (first, last) in zip(self.image_starts.tolist(), self.edges.tolist(), strict=True):
            yield self.text.value(at), [self.text.value(start) for start in self.annotation_starts[first:last].tolist()]

    def categories(self) -> Iterator[tuple[int | str, tuple[str | None, int, bool]]]:
        """Yield the id of each category, its name (None if it has none), its number of key points, and whether it is a thing."""
        for one in self.found_categories:
            if not isinstance(one, dict) or not isinstance(one.get("id"), int | str):
                raise SourceError(f"{self.path}: a category is an object with an id and a name; got {one!r:.80}")
            name = one.get("name")
            known = name if isinstance(name, str) and not class_name_fault(name) and name else None
            yield one["id"], (known, len(one.get("keypoints") or ()), bool(one.get("isthing", 1)))


def image_file_name(value: Any) -> Any:
    """Return the `file_name` of an image with slashes: tools on Windows write backslashes."""
    return value.replace("\\", "/") if isinstance(value, str) else value


def _starts(text: JsonText, start: int, key: str, path: Path, name: str, named: dict[str, int]) -> tuple[Array, Array]:
    """int64 [N] twice: the id of each element, and the character at which it begins.

    An id that is text gets a number above all that tools give, which `named` keeps.
    """
    ids, starts = array("q"), array("q")
    for element in text.elements(start):
        number = element.value.get(key) if isinstance(element.value, dict) else None
        if isinstance(number, str) and number:
            number = named.setdefault(number, (1 << 62) + len(named))
        elif not isinstance(number, int):
            raise SourceError(
                f"{path}: {name}[{len(ids)}] has no {key!r}, a whole number or text; got {element.value!r:.80}"
            )
        ids.append(number)
        starts.append(element.start)
    return np.array(ids, np.int64), np.array(starts, np.int64)


@dataclass(frozen=True)
class CocoCategories:
    """The categories of all files: class names in the order of their numbers, and what each id stands for."""

    names: tuple[str, ...]
    by_id: Mapping[int | str, tuple[str | None, int, bool]]
    """Name (None if the category has none), number of key points, and whether it is a thing, by id."""
    all_of_them: bool
    merged: Mapping[str, str]
    """The names that several categories have, which are one class, and the ids of these categories in words."""

    @staticmethod
    def of(files: Sequence[CocoFile], taken: tuple[str, ...] | None) -> CocoCategories:
        by_id: dict[int | str, tuple[str | None, int, bool]] = {}
        for file in files:
            for number, new in file.categories():
                if by_id.setdefault(number, new) != new:
                    raise SourceError(
                        f"{file.path}: category {number} is {new[0]!r} here and {by_id[number][0]!r} in another file"
                    )
        ids: dict[str, list[str]] = {}
        for number, (name, *_) in sorted(by_id.items(), key=lambda item: (isinstance(item[0], str), item[0])):
            if name:
                ids.setdefault(name, []).append(str(number))
        names = tuple(ids)
        merged = {name: ", ".join(of_name) for name, of_name in ids.items() if len(of_name) > 1}
        for name in taken or ():
            if name not in names:
                raise SourceError(
                    f"{files[0].path}: there is no category {name!r}; there are {', '.join(map(repr, names[:20]))}"
                )
        return CocoCategories(taken or names, by_id, taken is None, merged)

    def number(self, category: Any, annotation: str) -> int | None:
        """The class number of a category; None if its objects are left out."""
        if not isinstance(category, int | str) or category not in self.by_id:
            raise WrongAnnotation(f"{annotation}: there is no category {category!r}")
        name = self.by_id[category][0]
        if name is None:
            raise WrongAnnotation(f"{annotation}: category {category} has no name")
        return self.names.index(name) if self.all_of_them or name in self.names else None

    def is_thing(self, category: Any) -> bool:
        return self.by_id[category][2]

    def points(self, category: int | str) -> int:
        return self.by_id[category][1]
