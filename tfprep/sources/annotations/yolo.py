"""YOLO: a text file for each image with one object on each line, and `data.yaml` with the names of the classes.

The forms are those of Ultralytics (https://docs.ultralytics.com/datasets/): `class x y w h` (detect), `class x1 y1 x2 y2 ...`
(segment), `class x y w h px1 py1 v1 ...` (pose). All coordinates are shares of the image's width and height.
"""

from __future__ import annotations

import math
import posixpath
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from tfprep.errors import RecipeError, SourceError
from tfprep.optional import require_package
from tfprep.sources.annotations.listing import (
    ORPHAN,
    AnnotatedImage,
    ObjectFields,
    Unannotated,
    WrongAnnotation,
    check_common,
    object_listing,
    object_rows,
)
from tfprep.sources.annotations.objects import (
    DRAWN,
    Outside,
    check_drawing,
    check_object_fields,
)
from tfprep.sources.cells import path_cell
from tfprep.sources.labels import class_name_fault
from tfprep.sources.layout import Splits
from tfprep.sources.patterns import IMAGE_SUFFIXES, compile_pattern, literal
from tfprep.sources.pixels import Pixels, check_pixels_option
from tfprep.sources.raw import read_whole
from tfprep.sources.source import Listing, constructor_text
from tfprep.sources.splits import Row
from tfprep.sources.walk import image_suffix, walk

_FIELDS = ("boxes", "box_labels", "box_numbers", "instances", "mask", "points")
_SPLITS = ("train", "val", "test")
_MOST_VALUES = 1_000_000


@dataclass(frozen=True, repr=False)
class Yolo(ObjectFields):
    """Images with YOLO's labels, as `data.yaml` describes them. Fields: `image`, and those of `fields`.

    The labels of `images/train/a.jpg` are in `labels/train/a.txt`. An image without that file, or with an empty one, has no
    objects, unless `unannotated` says otherwise. A text file without an image is counted in the tally. A line that is no object
    of the classes rejects its image, and names the line.

    Attributes:
        data: The YAML file, relative to the root: `names`, and `train`, `val` and `test`, each a folder, a text file with
            paths, or a list of these; `kpt_shape` says that objects have key points.
        fields: What to make of the objects (`tfprep.sources.annotations.objects`). `instances` and `mask` need polygons, `points`
            need `kpt_shape`.
        unannotated: "keep", "skip" or "reject" images without annotations.
        outside: "reject" an image with a box that reaches outside it by more than one pixel, or "cut" the box.
        void: As in `Coco`; there are no void regions, and masks are uint16 if it is above 255.
        splits: The names of the splits to take; by default all that the file has.
        pixels: As in `Folder`, for the field `image`.

    Raises:
        RecipeError: An option is wrong.
    """

    data: str = "data.yaml"
    fields: tuple[str, ...] = ("boxes", "box_labels")
    unannotated: Unannotated = "keep"
    outside: Outside = "reject"
    void: int = 255
    splits: Splits = None
    pixels: Mapping[str, Pixels] = field(default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "fields", check_object_fields(self.fields, _FIELDS, "Yolo"))
        if not isinstance(self.data, str) or not self.data.endswith((".yaml", ".yml")):
            raise RecipeError(f"Yolo: expected data to be a YAML file such as 'data.yaml'; got {self.data!r}")
        object.__setattr__(self, "splits", check_common(self, compile_pattern("{split}.txt", "Yolo"), None))
        object.__setattr__(self, "pixels", check_pixels_option(self.pixels, self.kinds(), "Yolo"))

    def scan(self, root: Path) -> Listing:
        """List the images below `root`; see `Source.scan`."""
        data = DataYaml.read(root, self.data)
        check_drawing(self.fields, len(data.names), self.void, "Yolo")
        if "points" in self.fields and not data.points:
            raise SourceError(f"{root / self.data}: there is no kpt_shape, which points need")
        wanted = self.splits if isinstance(self.splits, tuple) else tuple(data.places)
        if unknown := set(wanted) - set(data.places):
            raise SourceError(
                f"{root / self.data}: there is no split {sorted(unknown)[0]!r}; there are {', '.join(data.places)}"
            )
        return object_listing(self, data.names, partial(self._rows, root, data, wanted))

    def _rows(self, root: Path, data: DataYaml, splits: tuple[str, ...], tally: Counter[str]) -> Iterator[Row]:
        counted: set[str] = set()
        for split in splits:
            for place in data.places[split]:
                listed = [AnnotatedImage(path, split, label_path(path)) for path in _images(root, place, tally)]
                yield from object_rows(self, root, iter(listed), partial(self._objects, data=data), tally)
                if not place.endswith(".txt") and place not in counted:
                    counted.add(place)
                    _count_orphans(root, place, {image.annotations for image in listed}, tally)

    def _objects(self, content: bytes, path: str, data: DataYaml) -> dict[str, Any]:
        try:
            lines = content.decode("utf-8-sig").splitlines()
        except UnicodeDecodeError as error:
            raise WrongAnnotation(f"{path} is not text: {error}") from error
        numbered = ((number, line.split()) for number, line in enumerate(lines, 1))
        objects = [self._object(words, f"{path}, line {number}", data) for number, words in numbered if words]
        return {"size": None, "objects": objects, "relative": True}

    def _object(self, words: list[str], name: str, data: DataYaml) -> dict[str, Any]:
        try:
            label, values = int(float(words[0])), [float(word) for word in words[1:]]
        except (ValueError, OverflowError) as error:
            raise WrongAnnotation(f"{name}: expected a class and numbers; got {' '.join(words)[:60]!r}") from error
        if not (0 <= label < len(data.names)) or label != float(words[0]):
            raise WrongAnnotation(
                f"{name}: class {words[0]} is outside the list of {len(data.names)} names in {self.data}"
            )
        if not all(map(math.isfinite, values)):
            raise WrongAnnotation(f"{name}: coordinates are finite numbers; got {' '.join(words)[:60]!r}")
        made: dict[str, Any] = {"id": name, "label": label}
        if data.points:
            return made | _with_points(values, data, name)
        if len(values) == 4:
            if DRAWN & set(self.fields):
                raise WrongAnnotation(
                    f"{name}: {' and '.join(sorted(DRAWN & set(self.fields)))} need a polygon, this is a box"
                )
            return made | {"box": _corners(values)}
        if len(values) < 6 or len(values) % 2:
            raise WrongAnnotation(
                f"{name}: expected x, y, w and h, or a polygon of three points or more; got {len(values)} numbers"
            )
        return made | {"polygons": [values]}

    __repr__ = constructor_text


@dataclass(frozen=True)
class DataYaml:
    """The content of `data.yaml`: class names, folders or lists of images by split (relative to the root), and key points."""

    names: tuple[str, ...]
    places: dict[str, tuple[str, ...]] = field(default_factory=dict)
    points: tuple[int, int] | None = None
    """Number of key points, and 2 or 3 numbers for each."""

    @staticmethod
    def read(root: Path, path: str) -> DataYaml:
        """Read the file. SourceError if it is not as it should be."""
        content = _yaml(root / path)
        names = content.get("names")
        if isinstance(names, dict) and set(names) == set(range(len(names))):
            names = [names[number] for number in range(len(names))]
        names = [str(name) for name in names] if isinstance(names, list) else []
        fault = next(
            filter(None, map(class_name_fault, names)), "" if names else "names is a list, or numbers from 0 with names"
        )
        if fault or len(set(names)) < len(names):
            raise SourceError(f"{root / path}: {fault or 'two classes have one name'}")
        places = {
            split: tuple(_place(root, path, content, one) for one in _listed(content[split]))
            for split in _SPLITS
            if content.get(split)
        }
        if not places:
            raise SourceError(f"{root / path}: there is neither train nor val nor test")
        return DataYaml(tuple(names), places, _point_shape(root / path, content.get("kpt_shape")))


def _yaml(path: Path) -> dict[Any, Any]:
    require_package("yaml", "Yolo: reading data.yaml")
    import yaml

    try:
        content = yaml.safe_load(read_whole(path))
    except OSError as error:
        raise SourceError(f"{path}: cannot read the file: {error.strerror}") from error
    except (yaml.YAMLError, RecursionError) as error:
        raise SourceError(f"{path} is not YAML: {error}") from error
    if not isinstance(content, dict):
        raise SourceError(f"{path}: expected names and values; got a {type(content).__name__}")
    _check_expanded(path, content)
    return content


def _check_expanded(path: Path, content: Any) -> None:
    """Raise SourceError if aliases make the file larger than any description of data: a few lines can stand for 10^9 values."""
    pending, count = [content], 0
    while pending:
        count += 1
        if count > _MOST_VALUES:
            raise SourceError(f"{path}: its aliases stand for more than {_MOST_VALUES:,} values; write them out")
        value = pending.pop()
        inner = (
            [*value.keys(), *value.values()] if isinstance(value, dict) else value if isinstance(value, list) else []
        )
        pending.extend(inner)


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _point_shape(path: Path, shape: Any) -> tuple[int, int] | None:
    if shape is None:
        return None
    if not (
        isinstance(shape, list)
        and len(shape) == 2
        and isinstance(shape[0], int)
        and shape[0] > 0
        and shape[1] in (2, 3)
    ):
        raise SourceError(f"{path}: kpt_shape is [number of points, 2 or 3]; got {shape!r}")
    return shape[0], shape[1]


def _place(root: Path, yaml: str, content: dict[Any, Any], value: Any) -> str:
    """The folder or list of images that `value` names, relative to the root.

    `path` is relative to where Ultralytics keeps data, and so are Roboflow's `../train/images`: what does not exist is looked for
    beside the YAML file.
    """
    if not isinstance(value, str) or not value:
        raise SourceError(f"{root / yaml}: train, val and test are folders or text files; got {value!r}")
    beside = posixpath.dirname(yaml)
    below = str(content.get("path") or "")
    stripped = value
    while stripped.startswith("../"):
        stripped = stripped[3:]
    for candidate in (posixpath.join(below, value), value, stripped):
        plain = posixpath.normpath(posixpath.join(beside, candidate))
        if not plain.startswith(("/", "..")) and (root / plain).exists():
            return plain
    raise SourceError(f"{root / yaml}: {value!r} is not below {root}; correct it, or give the right folder with --data")


def _images(root: Path, place: str, tally: Counter[str]) -> list[str]:
    if not place.endswith(".txt"):
        pattern = compile_pattern("**" if place == "." else f"{literal(place)}/**", "Yolo")
        found = [file.path for file in walk(root, pattern, tally)]
        if not found:
            raise SourceError(
                f"{root / place}: no image below this folder (files ending in {', '.join(IMAGE_SUFFIXES)})"
            )
        return found
    try:
        lines = read_whole(root / place).decode("utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise SourceError(f"{root / place}: cannot read the list of images: {error}") from error
    folder = posixpath.dirname(place)
    return [path_cell(posixpath.join(folder, line.strip())) for line in lines if line.strip()]


def label_path(image: str) -> str:
    """Where the labels of an image are: `labels` instead of the last folder `images`, and `.txt`."""
    folder, _, name = image.rpartition("/")
    parts = folder.split("/")
    if "images" in parts:
        place = len(parts) - 1 - parts[::-1].index("images")
        parts[place] = "labels"
    return posixpath.join(*parts, f"{posixpath.splitext(name)[0]}.txt")


def _count_orphans(root: Path, place: str, expected: set[str], tally: Counter[str]) -> None:
    folder = posixpath.dirname(label_path(f"{place}/x.jpg"))
    if folder == place or not (root / folder).is_dir():
        return
    pattern = compile_pattern(f"{literal(folder)}/**/*.txt", "Yolo")
    orphans = sum(
        found.path not in expected for found in walk(root, pattern, Counter()) if not image_suffix(found.path)
    )
    tally.update({ORPHAN: orphans} if orphans else {})


def _corners(values: list[float]) -> list[float]:
    x, y, width, height = values
    return [x - width / 2, y - height / 2, x + width / 2, y + height / 2]


def _with_points(values: list[float], data: DataYaml, name: str) -> dict[str, Any]:
    """A box and its key points. Points of two numbers are visible, unless both are 0."""
    assert data.points is not None
    count, numbers = data.points
    if len(values) != 4 + count * numbers:
        raise WrongAnnotation(
            f"{name}: expected 4 numbers of a box and {count} times {numbers} of points; got {len(values)}"
        )
    rows = [values[at : at + numbers] for at in range(4, len(values), numbers)]
    points = [row if numbers == 3 else [*row, 2.0 if any(row) else 0.0] for row in rows]
    return {"box": _corners(values[:4]), "points": points}
