"""What the sources of annotations share: their files by split, the paths of images, and the listing."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol, TypeAlias

from tfprep.errors import RecipeError, SampleError, SourceError
from tfprep.fields import Kind
from tfprep.sources.annotations.objects import OBJECT_KINDS, Outside, decoders_of, rows_of
from tfprep.sources.cells import path_cell
from tfprep.sources.folder import UNSPLIT, Splits, check_splits
from tfprep.sources.patterns import Pattern, compile_pattern
from tfprep.sources.pixels import Pixels, pixel_decoders
from tfprep.sources.source import Entry, FieldDecoder, Listing, key_of, read_files
from tfprep.sources.splits import Fractions, Row, check_split_name, split_rows
from tfprep.sources.walk import Companions, walk

Unannotated: TypeAlias = Literal["keep", "skip", "reject"]
UNANNOTATED = "image without annotations"
ORPHAN = "annotations without their image"
OTHER_CLASS = "object of a class that is not among the classes"
_HOLE = re.compile(r"(?<!\{)\{([A-Za-z][A-Za-z0-9_]*)\}(?!\})")


class ObjectSource(Protocol):
    """The options that all sources of annotations have."""

    @property
    def fields(self) -> tuple[str, ...]: ...
    @property
    def unannotated(self) -> Unannotated: ...
    @property
    def outside(self) -> Outside: ...
    @property
    def void(self) -> int: ...
    @property
    def splits(self) -> Splits: ...
    @property
    def pixels(self) -> Mapping[str, Pixels]: ...
    def kinds(self) -> dict[str, Kind]: ...


class ObjectFields:
    """What follows from those options in the same way."""

    def kinds(self: ObjectSource) -> dict[str, Kind]:
        """The kind of each field."""
        return {"image": "image", **{name: OBJECT_KINDS[name] for name in self.fields}}

    def decoders(self: ObjectSource) -> dict[str, FieldDecoder]:
        """How the fields are made of the objects, and images become pixels, if not as 8-bit RGB."""
        return decoders_of(self.fields, self.void, self.outside) | pixel_decoders(self.pixels)

    def rows(self: ObjectSource) -> dict[str, tuple[str, ...]]:
        """The fields with rows for each box."""
        return rows_of(self.fields)


def check_common(options: ObjectSource, pattern: Pattern, suffix: str | None) -> Splits:
    """Check the options that all sources of annotations have, and return the splits. Raises RecipeError."""
    where = type(options).__name__
    if suffix is not None and pattern.suffix != suffix:
        raise RecipeError(f"{where}: expected a pattern that ends in {suffix}; got {pattern.text!r}")
    check_choice(f"{where}: unannotated", options.unannotated, ("keep", "skip", "reject"))
    check_choice(f"{where}: outside", options.outside, ("reject", "cut"))
    if isinstance(options.splits, Fractions) and options.splits.stratify is not None:
        raise RecipeError(f"{where}: stratify needs one class a sample; leave it out")
    return check_splits(options.splits, pattern, where)


def check_choice(where: str, value: Any, choices: Sequence[str]) -> None:
    if value not in choices:
        raise RecipeError(f"{where} is one of {', '.join(map(repr, choices))}; got {value!r}")


def checked_size(height: Any, width: Any) -> list[int] | None:
    """Return height and width as annotations give them; None if they give none."""
    return [height, width] if all(isinstance(side, int) and side > 0 for side in (height, width)) else None


def annotation_files(root: Path, text: str, splits: Splits, where: str) -> list[tuple[str, dict[str, str]]]:
    """Return each file that fits a pattern, with its placeholders, `split` among them. SourceError if there is none."""
    pattern = compile_pattern(text, where)
    files = [(found.path, {"split": UNSPLIT, **found.holes}) for found in walk(root, pattern, Counter())]
    if isinstance(splits, tuple):
        files = [(path, holes) for path, holes in files if holes["split"] in splits]
    if not files:
        raise SourceError(
            f"{root}: no file fits {text!r}; say where the annotations lie, or give the right folder with --data"
        )
    for path, holes in files:
        holes["split"] = check_split_name(key_of(holes["split"]), str(root / path))
    return files


class _File(NamedTuple):
    path: str
    key: str


@dataclass(frozen=True)
class ImagePath:
    """A path with placeholders in braces: `{split}/{file_name}`; `{{` and `}}` are braces."""

    parts: tuple[str, ...]
    """Literal text at even positions, names of placeholders at odd ones."""

    @staticmethod
    def parse(text: Any, known: set[str] | frozenset[str] | None, where: str) -> ImagePath:
        if not isinstance(text, str) or not text:
            raise RecipeError(f"{where}: expected a path such as '{{split}}/{{file_name}}'; got {text!r}")
        parts = tuple(_HOLE.split(text))
        unknown = set(parts[1::2]) - known - {"split"} if known is not None else set()
        if unknown:
            raise RecipeError(
                f"{where}: {{{sorted(unknown)[0]}}} in {text!r} stands for nothing; there are {sorted(known or ())}"
            )
        return ImagePath(parts)

    def fill(self, values: Mapping[str, Any], where: str) -> _File:
        """Return the path and the key. SourceError if the path leads out of the root, or a value is no text."""
        text = list(self.parts)
        for place in range(1, len(text), 2):
            value = values[text[place]]
            if not isinstance(value, str) or not value:
                raise SourceError(f"{where}: expected the {text[place]} of an image as text; got {value!r}")
            text[place] = value
        text[::2] = [re.sub(r"([{}])\1", r"\1", part) for part in text[::2]]
        try:
            path = path_cell("".join(text))
        except SourceError as error:
            raise SourceError(f"{where}: {error}") from error
        return _File(path, key_of(path))


class AnnotatedImage(NamedTuple):
    """An image, the file of its annotations, and the files of further fields."""

    path: str
    split: str
    annotations: str
    others: tuple[str, ...] = ()


class WrongAnnotation(Exception):
    """Why an image is rejected; the message names what is wrong with its annotations."""


def read_annotations(root: Path, path: str) -> bytes | None:
    """Return the bytes of a file of annotations; None if there is none. Raises WrongAnnotation if it cannot be read."""
    try:
        return read_files(root, ("annotations",), Entry("", "", (path,)))["annotations"]
    except SampleError as error:
        if isinstance(error.__cause__, FileNotFoundError):
            return None
        raise WrongAnnotation(f"{path}: {error.reason}") from error


def object_rows(
    source: ObjectSource,
    root: Path,
    images: Iterator[AnnotatedImage],
    parse: Callable[[bytes, str], dict[str, Any]],
    tally: Counter[str],
) -> Iterator[Row]:
    """Yield an entry for each image with one file of annotations each. `parse` turns that file's bytes and path into the part
    `objects`; it raises WrongAnnotation."""
    for image in images:
        part = _part(source, root, image, parse)
        if part is None:
            tally[UNANNOTATED] += 1
            continue
        yield Entry(key_of(image.path), image.split, (image.path, *image.others), (part,)), None


def _part(
    source: ObjectSource, root: Path, image: AnnotatedImage, parse: Callable[[bytes, str], dict[str, Any]]
) -> dict[str, Any] | None:
    """The part `objects` of an image; None if it is left out."""
    try:
        data = read_annotations(root, image.annotations)
        part = {"size": None, "objects": []} if data is None else parse(data, image.annotations)
    except WrongAnnotation as fault:
        return {"objects": [], "fault": str(fault)}
    if part["objects"] or source.unannotated == "keep":
        return part
    return None if source.unannotated == "skip" else {**part, "fault": f"no annotations in {image.annotations}"}


def count_orphans(
    root: Path, annotations: Pattern, image: Pattern, companions: Companions, tally: Counter[str]
) -> None:
    """Add the files of annotations that have no image, if their placeholders say which image that would be."""
    if image.holes <= annotations.holes:
        files = walk(root, annotations, Counter())
        orphans = sum(not companions.find(image, file.holes).exists for file in files)
        tally.update({ORPHAN: orphans} if orphans else {})


def object_listing(
    source: ObjectSource,
    names: tuple[str, ...],
    rows: Callable[[Counter[str]], Iterator[Row]],
    files: tuple[str, ...] = ("image",),
) -> Listing:
    """Return the listing of images with the raw part `objects`."""
    tally: Counter[str] = Counter()
    entries = split_rows(rows, tally, source.splits, None)
    classes = {"box_labels": names, "mask": ("background", *names)}
    classes = {name: of_field for name, of_field in classes.items() if name in source.kinds()}
    return Listing(source.kinds(), files, ("objects",), entries, classes, tally)
