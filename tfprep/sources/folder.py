"""Images in folders: one folder for each class, with or without a folder for each split above; or images without classes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from tfprep.errors import RecipeError
from tfprep.fields import Kind
from tfprep.sources.labels import check_classes
from tfprep.sources.layout import Splits, check_splits, class_names, dicom_group, images, stratified_by
from tfprep.sources.patterns import Pattern, compile_pattern
from tfprep.sources.pixels import Pixels, check_pixels_option, pixel_decoders
from tfprep.sources.source import Entry, FieldDecoder, Listing, constructor_text, key_of
from tfprep.sources.splits import Row, split_rows


@dataclass(frozen=True, repr=False)
class Folder:
    """Images in class folders. Fields: `image`, and `label` if the pattern has `{label}`.

    Attributes:
        image: A pattern as `tfprep.sources.patterns` describes. `{label}/**` (the default) takes every folder below the root as a
            class, with all images below it; `{split}/{label}/**` reads `train/cat/1.jpg`; `**` has no classes.
        splits: `Fractions`, or the names to take of those that `{split}` finds. With neither, all samples are `train`.
        classes: The class names in the order of their numbers. By default they are the folders that hold images, sorted by code
            points, so "10" comes before "2", as in Keras.
        pixels: How images become pixels, if not as 8-bit RGB: `{"image": sources.Pixels()}` keeps 16 bits, floats and all bands.

    Raises:
        RecipeError: An option is wrong, or two options contradict each other.
    """

    image: str = "{label}/**"
    splits: Splits = None
    classes: tuple[str, ...] | None = None
    pixels: Mapping[str, Pixels] = field(default_factory=dict)

    def __post_init__(self) -> None:
        pattern = self._pattern()
        object.__setattr__(self, "splits", check_splits(self.splits, pattern, "Folder"))
        object.__setattr__(self, "pixels", check_pixels_option(self.pixels, self.kinds(), "Folder"))
        if self.classes is not None:
            if "label" not in pattern.holes:
                raise RecipeError(f"Folder: classes need {{label}} in the pattern; got image={self.image!r}")
            object.__setattr__(self, "classes", check_classes(self.classes, "Folder: classes"))

    def kinds(self) -> dict[str, Kind]:
        """The kind of each field."""
        label: dict[str, Kind] = {"label": "label"} if "label" in self._pattern().holes else {}
        return {"image": "image", **label}

    def decoders(self) -> dict[str, FieldDecoder]:
        """How images become pixels, if not as 8-bit RGB."""
        return pixel_decoders(self.pixels)

    def scan(self, root: Path) -> Listing:
        """List the images below `root`; see `Source.scan`."""
        pattern = self._pattern()
        classes: dict[str, tuple[str, ...]] = {}
        if "label" in pattern.holes:
            classes["label"] = self.classes or class_names(root, pattern)
        tally: Counter[str] = Counter()
        rows = partial(_rows, root, pattern, self.splits, classes.get("label"))
        entries = split_rows(rows, tally, self.splits, stratified_by(self.splits))
        return Listing(self.kinds(), ("image",), tuple(classes), entries, classes, tally)

    def _pattern(self) -> Pattern:
        return compile_pattern(self.image, "Folder: image")

    __repr__ = constructor_text


def _rows(
    root: Path, pattern: Pattern, splits: Splits, classes: tuple[str, ...] | None, tally: Counter[str]
) -> Iterator[Row]:
    for image in images(root, pattern, splits=splits, classes=classes, tally=tally):
        path = image.file.path
        yield Entry(key_of(path), image.split, (path,), image.values), dicom_group(splits, root, path)
