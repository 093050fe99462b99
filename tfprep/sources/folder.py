"""Images in folders: one folder a class, with or without one a split above it; or images without classes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from tfprep.errors import RecipeError
from tfprep.fields import Kind
from tfprep.sources.labels import check_classes
from tfprep.sources.layout import Splits, check_splits, class_names, images, stratified_by
from tfprep.sources.patterns import Pattern, compile_pattern
from tfprep.sources.source import Entry, Listing, constructor_text, key_of
from tfprep.sources.splits import Row, split_rows


@dataclass(frozen=True, repr=False)
class Folder:
    """Fields `image` and, where the pattern has `{label}`, `label`.

    `image` is a pattern as `tfprep.sources.patterns` says: `{label}/**` (the default) takes every folder below the root as
    a class, with all images below it; `{split}/{label}/**` reads train/cat/1.jpg; `**` has no classes. `classes` gives
    the class names in the order of their numbers; without it they are the folders with an image in them, sorted by code
    points (so "10" comes before "2", as Keras has it). `splits` are `Fractions`, or the names to take of those that
    `{split}` finds; with neither, all samples are `train`.
    """

    image: str = "{label}/**"
    splits: Splits = None
    classes: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        pattern = self._pattern()
        object.__setattr__(self, "splits", check_splits(self.splits, pattern, "Folder"))
        if self.classes is not None:
            if "label" not in pattern.holes:
                raise RecipeError(f"Folder: classes need {{label}} in the pattern; got image={self.image!r}")
            object.__setattr__(self, "classes", check_classes(self.classes, "Folder: classes"))

    def scan(self, root: Path) -> Listing:
        pattern = self._pattern()
        kinds: dict[str, Kind] = {"image": "image"}
        classes: dict[str, tuple[str, ...]] = {}
        if "label" in pattern.holes:
            kinds["label"] = "label"
            classes["label"] = self.classes or class_names(root, pattern)
        tally: Counter[str] = Counter()
        rows = partial(_rows, root, pattern, self.splits, classes.get("label"))
        entries = split_rows(rows, tally, self.splits, stratified_by(self.splits))
        return Listing(kinds, ("image",), tuple(classes), entries, classes, tally)

    def _pattern(self) -> Pattern:
        return compile_pattern(self.image, "Folder: image")

    __repr__ = constructor_text


def _rows(
    root: Path, pattern: Pattern, splits: Splits, classes: tuple[str, ...] | None, tally: Counter[str]
) -> Iterator[Row]:
    for image in images(root, pattern, splits=splits, classes=classes, tally=tally):
        path = image.found.path
        yield Entry(key_of(path), image.split, (path,), image.values), None
