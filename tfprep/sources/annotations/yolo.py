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
    AnnotatedSource,
    WrongAnnotation,
    annotated_images,
    object_listing,
    object_rows,
)
from tfprep.sources.annotations.objects import DRAWN, check_drawing
from tfprep.sources.cells import path_cell
from tfprep.sources.patterns import IMAGE_SUFFIXES, check_placeholders, compile_pattern, literal, spelled, walk
from tfprep.sources.raw import read_whole, text_lines
from tfprep.sources.source import Listing, class_name_fault, key_of
from tfprep.sources.splits import Row

_SPLITS = ("train", "val", "valid", "validation", "test")


@dataclass(frozen=True, repr=False)
class Yolo(AnnotatedSource):
    """Images with YOLO's labels, as `data.yaml` describes them. Fields: `image`, and those of `fields`.

    The labels of `images/train/a.jpg` are in `labels/train/a.txt`. An image without that file, or with an empty one, has no
    objects, unless `unannotated` says otherwise. A text file without an image is counted in the tally.

    The options of all sources of annotations (`AnnotatedSource`) are given by name.

    Attributes:
        data: The YAML file, relative to the root: `names`, and `train`, `val` and `test`, each a folder, a text file with
            paths, or a list of these; `kpt_shape` says that objects have key points. With `images`, a text file with the name of
            a class on each line (`classes.txt`, `obj.names`, `_darknet.labels`).
        images: The pattern of the images, as `tfprep.sources.patterns` describes, where no YAML file names them.
        labels: The pattern of the labels of `images`, with the same placeholders.
        fields: What to make of the objects (`tfprep.sources.annotations.objects`). `instances` and `mask` need polygons, `points`
            need `kpt_shape`, `corners` need oriented boxes: four corners for each object.

    Raises:
        RecipeError: An option is wrong.
    """

    known_fields = ("boxes", "box_labels", "box_numbers", "instances", "mask", "points", "corners")
    data: str = "data.yaml"
    images: str | None = None
    labels: str | None = None

    def __post_init__(self) -> None:
        if (self.images is None) != (self.labels is None):
            raise RecipeError("Yolo: images and labels are given together, or neither of them")
        endings = (".yaml", ".yml") if self.images is None else (".txt", ".names", ".labels")
        if not isinstance(self.data, str) or not self.data.endswith(endings):
            what = (
                "a YAML file such as 'data.yaml'" if self.images is None else "a list of classes such as 'classes.txt'"
            )
            raise RecipeError(f"Yolo: expected data to be {what}; got {self.data!r}")
        by_split = compile_pattern("{split}.txt" if self.images is None else self.images, "Yolo: images")
        if self.labels is not None:
            check_placeholders("Yolo", by_split, {"labels": compile_pattern(self.labels, "Yolo: labels")})
        self.check_options(by_split)

    def scan(self, root: Path) -> Listing:
        """List the images below `root`; see `Source.scan`."""
        if self.images is None:
            data = DataYaml.read(root, self.data)
        else:
            lines = text_lines(root / self.data, "names of the classes")
            while lines and not lines[-1]:
                lines.pop()
            data = DataYaml(_names(root / self.data, lines))
        check_drawing(self.fields, len(data.names), self.void, "Yolo")
        if "points" in self.fields and not data.points:
            raise SourceError(f"{root / self.data}: there is no kpt_shape, which points need")
        if self.images is not None:
            return object_listing(self, data.names, partial(self._rows, root, data, ()))
        own = [split for split in data.places if split not in data.twins]
        wanted = self.splits if isinstance(self.splits, tuple) else (*own, *data.missing)
        for split in wanted:
            if split in data.missing:
                raise SourceError(
                    f"{root / self.data}: {split}: {data.missing[split]!r} is not below {root}; correct it, take other splits "
                    "with splits=, or give the right folder with --data"
                )
            if split not in data.places:
                raise SourceError(
                    f"{root / self.data}: there is no split {split!r}; there are {', '.join(data.places)}"
                )
        return object_listing(self, data.names, partial(self._rows, root, data, wanted))

    def _rows(self, root: Path, data: DataYaml, splits: tuple[str, ...], tally: Counter[str]) -> Iterator[Row]:
        images = self._images(root, data, splits, tally)
        if self.images is not None:
            image, labels = (compile_pattern(str(text), "Yolo") for text in (self.images, self.labels))
            images = (one for one, _ in annotated_images(self, root, image, labels, tally, self.data))
        return object_rows(self, root, images, partial(self._objects, data=data), tally)

    def _images(
        self, root: Path, data: DataYaml, splits: tuple[str, ...], tally: Counter[str]
    ) -> Iterator[AnnotatedImage]:
        taken = {place for one in splits for place in data.places[one]}
        if unread := {place for of_split in data.places.values() for place in of_split} - taken:
            tally[f"folder or list of a split that is not in {splits}"] += len(unread)
        of_split: dict[str, str] = {}
        for split, place in [(one, place) for one in splits for place in data.places[one]]:
            paths = images_in(root, place, tally)
            for path in paths:
                if (other := of_split.setdefault(path, split)) != split:
                    raise SourceError(
                        f"{root / self.data}: {split} has images of {other} too, such as {path}, and would say little about "
                        f"other images; correct it, or take one of them with splits=({other!r},)"
                    )
            listed = [AnnotatedImage(path, split, spelled(root, label_path(path))) for path in paths]
            yield from listed
            folder = posixpath.dirname(label_path(f"{place}/x.jpg"))
            if folder != place and not place.endswith(".txt") and (root / folder).is_dir():
                expected = {image.annotations for image in listed}
                files = walk(root, compile_pattern(f"{literal(folder)}/**/*.txt", "Yolo"), Counter())
                orphans = sum(file not in expected for file, _ in files)
                tally.update({ORPHAN: orphans} if orphans else {})

    def _objects(self, content: bytes, path: str, data: DataYaml) -> dict[str, Any]:
        try:
            lines = content.decode("utf-8-sig").splitlines()
        except UnicodeDecodeError as error:
            raise WrongAnnotation(f"{path} is not text: {error}") from error
        numbered = ((number, line.split()) for number, line in enumerate(lines, 1))
        objects = self.objects_of(
            ((number, words) for number, words in numbered if words),
            lambda line: self._object(line[1], f"{path}, line {line[0]}", data),
        )
        return {"size": None, "relative": True, **objects}

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
        item: dict[str, Any] = {"id": name, "label": label}
        if data.points:
            count, numbers = data.points
            if len(values) != 4 + count * numbers:
                rule = f"{name}: expected 4 numbers of a box and {count} times {numbers} of points"
                raise WrongAnnotation(f"{rule}; got {len(values)}")
            rows = [values[at : at + numbers] for at in range(4, len(values), numbers)]
            # Points of two numbers are visible, unless both are 0.
            points = [row if numbers == 3 else [*row, 2.0 if any(row) else 0.0] for row in rows]
            return item | {"box": _corners(values[:4]), "points": points}
        if "corners" in self.fields:
            if len(values) != 8:
                raise WrongAnnotation(f"{name}: an oriented box has four corners, 8 numbers; got {len(values)}")
            return item | {"polygons": [values], "corners": [values[at : at + 2] for at in range(0, 8, 2)]}
        if len(values) == 4:
            if DRAWN & set(self.fields):
                raise WrongAnnotation(
                    f"{name}: {' and '.join(sorted(DRAWN & set(self.fields)))} need a polygon, this is a box"
                )
            return item | {"box": _corners(values)}
        if len(values) < 6 or len(values) % 2:
            raise WrongAnnotation(
                f"{name}: expected x, y, w and h, or a polygon of three points or more; got {len(values)} numbers"
            )
        return item | {"polygons": [values]}


@dataclass(frozen=True)
class DataYaml:
    """The content of `data.yaml`.

    Attributes:
        names: Class names in the order of their numbers.
        places: Folders or lists of images by split, relative to the root.
        points: Number of key points, and 2 or 3 numbers for each.
        missing: The splits whose images are not below the root, and what the file says of each.
        twins: The splits that name the images of another split, as `val` does in coco128, and that other one.
    """

    names: tuple[str, ...]
    places: dict[str, tuple[str, ...]] = field(default_factory=dict)
    points: tuple[int, int] | None = None
    missing: dict[str, str] = field(default_factory=dict)
    twins: Mapping[str, str] = field(default_factory=dict)

    @staticmethod
    def read(root: Path, path: str) -> DataYaml:
        """Read the file. SourceError if it is not as it should be, or none of its splits is below the root."""
        content = _yaml(root / path)
        names = _names(root / path, content.get("names"))
        if (count := content.get("nc", "")) not in _NOTHING and count != str(len(names)):
            raise SourceError(f"{root / path}: nc is {count}, and there are {len(names)} names: correct one of them")
        places: dict[str, tuple[str, ...]] = {}
        missing: dict[str, str] = {}
        twins: dict[str, str] = {}
        for split in _SPLITS:
            if not content.get(split) or content[split] in _NOTHING:
                continue
            written = content[split] if isinstance(content[split], list) else [content[split]]
            found: dict[str, str] = {}
            for name in map(str, written):
                if (place := _place(root, path, content, name)) is None:
                    missing.setdefault(split, name)
                else:
                    found[name] = place
            if split not in missing:
                of_split = tuple(found.values())
                same = [other for other, of_other in places.items() if of_other == of_split]
                twins |= {split: same[0]} if same else {}
                places[split] = of_split
        if not places:
            for split, where in missing.items():
                raise SourceError(
                    f"{root / path}: {split}: {where!r} is not below {root}; correct it, or give the right folder with --data"
                )
            raise SourceError(f"{root / path}: there is neither train nor val nor test")
        match content.get("kpt_shape", ""):
            case str(text) if text in _NOTHING:
                points = None
            case [str(count), ("2" | "3") as numbers] if count.isdecimal() and int(count):
                points = int(count), int(numbers)
            case shape:
                raise SourceError(f"{root / path}: kpt_shape is [number of points, 2 or 3]; got {shape!r}")
        return DataYaml(names, places, points, missing, twins)


def _names(path: Path, names: Any) -> tuple[str, ...]:
    """The class names of a YAML file in the order of their numbers."""
    if isinstance(names, dict):
        names = [names.get(str(number)) for number in range(len(names))]
    if not names or not isinstance(names, list) or not all(isinstance(name, str) and name for name in names):
        raise SourceError(f"{path}: names is a list, or all numbers from 0 with names")
    found = tuple(map(key_of, names))
    fault = next(filter(None, map(class_name_fault, found)), "")
    if fault or len(set(found)) < len(found):
        raise SourceError(f"{path}: {fault or 'two classes have one name'}")
    return found


_NOTHING = "", "~", "null", "Null", "NULL"
"""How YAML spells a value that is not there."""


def _yaml(path: Path) -> dict[Any, Any]:
    """The content of a YAML file, each value as the text that is written: `no`, `010` and `1.10` are names of classes."""
    require_package("yaml", "Yolo: reading data.yaml")
    import yaml

    try:
        text = read_whole(path)
        # A few lines can stand for 10^9 values.
        if any(isinstance(token, yaml.AliasToken) for token in yaml.scan(text)):
            raise SourceError(f"{path} has aliases, such as *name: write out what they stand for")
        content = yaml.load(text, yaml.BaseLoader)
    except OSError as error:
        raise SourceError(f"{path}: cannot read the file: {error.strerror}") from error
    except (yaml.YAMLError, RecursionError) as error:
        raise SourceError(f"{path} is not YAML: {error}") from error
    if not isinstance(content, dict):
        raise SourceError(f"{path}: expected names and values; got a {type(content).__name__}")
    return content


def _place(root: Path, yaml: str, content: dict[Any, Any], value: str) -> str | None:
    """The folder or list of images that `value` names, relative to the root; None if there is none.

    `path` is relative to where Ultralytics keeps data, and so are Roboflow's `../train/images`; paths may be absolute, also those
    of Windows. What does not exist as it is written is looked for by the ends of its path, the longest first.
    """
    beside = posixpath.dirname(yaml)
    below, value = (text.replace("\\", "/") for text in (str(content.get("path") or ""), value))
    parts = [
        part for part in posixpath.join(below, value).split("/") if part not in ("", ".", "..") and ":" not in part
    ]
    written = [posixpath.join(below, value), value]
    for candidate in (*written, *("/".join(parts[start:]) for start in range(len(parts)))):
        for folder in dict.fromkeys((beside, "")):
            plain = posixpath.normpath(posixpath.join(folder, candidate))
            if not plain.startswith(("/", "..")) and (root / plain).exists():
                return plain
    return None


def images_in(root: Path, place: str, tally: Counter[str]) -> list[str]:
    """Return the paths of the images in a folder, or of those that a list names. SourceError if it cannot be read."""
    if not place.endswith(".txt"):
        below = walk(root / place, compile_pattern("**", "Yolo"), tally)
        found = [posixpath.normpath(posixpath.join(place, path)) for path, _ in below]
        if not found:
            raise SourceError(f"{root / place}: no image below this folder: {', '.join(IMAGE_SUFFIXES)}")
        return found
    lines = filter(None, text_lines(root / place, "list of images"))
    beside = posixpath.dirname(place)
    # Paths may be absolute, also those of another machine; `_place` finds what of them is below the root.
    return [path_cell(_place(root, place, {}, line) or posixpath.join(beside, line)) for line in lines]


def label_path(image: str) -> str:
    """The path of an image's labels: `labels` instead of the last folder `images`, and `.txt`."""
    folder, _, name = image.rpartition("/")
    parts = folder.split("/")
    if "images" in parts:
        place = len(parts) - 1 - parts[::-1].index("images")
        parts[place] = "labels"
    return posixpath.join(*parts, f"{posixpath.splitext(name)[0]}.txt")


def _corners(values: list[float]) -> list[float]:
    x, y, width, height = values
    return [x - width / 2, y - height / 2, x + width / 2, y + height / 2]
