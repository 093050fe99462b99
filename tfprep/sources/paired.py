"""Images with masks, maps or further images, which belong together by patterns with the same placeholders."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from tfprep.errors import RecipeError, SourceError
from tfprep.fields import Kind, field_name_fault
from tfprep.sources.companions import Companions
from tfprep.sources.labels import check_classes
from tfprep.sources.layout import Splits, check_splits, class_names, dicom_group, fitting, images, stratified_by
from tfprep.sources.mask_numbers import MappedMask, check_numbers
from tfprep.sources.patterns import Pattern, compile_pattern
from tfprep.sources.pixels import Pixels, check_pixels_option, pixel_decoders
from tfprep.sources.source import Entry, FieldDecoder, Listing, constructor_text, key_of
from tfprep.sources.splits import Row, split_rows
from tfprep.sources.walk import walk

FILE_KINDS: tuple[Kind, ...] = ("image", "mask", "map")
"""The kinds of field that are read from files."""


@dataclass(frozen=True, repr=False)
class Paired:
    """Images with masks or other files. Fields: `image`, `mask`, those of `fields`, and `label` if `image` has `{label}`.

    The placeholders of `image` fill in the other patterns; `*` and `**` correspond by their order. A file that fits the pattern
    of another field is never an image, so `{split}/*.png` and `{split}annot/*.png` read CamVid.

    An image without a mask is listed with the path where the mask is expected, and reading it rejects the sample. The listing's
    tally counts these images, and masks without an image.

    Attributes:
        image: The pattern of the images, as `tfprep.sources.patterns` describes.
        mask: The pattern of the masks.
        fields: Further fields with kind and pattern: `{"depth": ("map", "{split}/depth/*.png")}`.
        classes: The names of the mask's class numbers.
        numbers: The class number of each number in the masks' files: `{0: 255, 1: 0, 2: 1}`. A number that is not named rejects
            the sample, unless `numbers` has a key `None` for all others.
        palette: The class number of each colour, where masks are RGB pictures: `{(128, 64, 128): 3}`. A colour that is not named
            rejects the sample.
        splits: As in `Folder`.
        pixels: How images and maps become pixels, if images are not 8-bit RGB: `{"image": sources.Pixels()}`.

    Raises:
        RecipeError: An option is wrong, or two options contradict each other.
    """

    image: str
    mask: str | None = None
    fields: Mapping[str, tuple[Kind, str]] = field(default_factory=dict)
    classes: tuple[str, ...] = ()
    numbers: Mapping[int | None, int] = field(default_factory=dict)
    palette: Mapping[tuple[int, int, int], int] = field(default_factory=dict)
    splits: Splits = None
    pixels: Mapping[str, Pixels] = field(default_factory=dict)

    def __post_init__(self) -> None:
        image = compile_pattern(self.image, "Paired: image")
        fields = {name: _checked_field(name, value) for name, value in dict(self.fields).items()}
        object.__setattr__(self, "fields", fields)
        object.__setattr__(self, "splits", check_splits(self.splits, image, "Paired"))
        object.__setattr__(self, "classes", check_classes(self.classes, "Paired: classes"))
        if self.classes and self.mask is None:
            raise RecipeError("Paired: classes name the numbers of the mask; there is no mask")
        if (self.numbers or self.palette) and self.mask is None:
            raise RecipeError("Paired: numbers and palette are about the mask; there is no mask")
        check_numbers(self.numbers, self.palette, "Paired")
        object.__setattr__(self, "pixels", check_pixels_option(self.pixels, self.kinds(), "Paired"))
        if not self._others():
            raise RecipeError("Paired: expected a mask or fields beside the image; images alone are a Folder")
        for name, pattern in self._others().items():
            _check_holes(name, pattern, image)

    def kinds(self) -> dict[str, Kind]:
        """The kind of each field: those with a file, then the label."""
        kinds: dict[str, Kind] = {"image": "image"}
        kinds |= {} if self.mask is None else {"mask": "mask"}
        kinds |= {name: kind for name, (kind, _) in self.fields.items()}
        return kinds | ({"label": "label"} if "label" in compile_pattern(self.image, "Paired: image").holes else {})

    def decoders(self) -> dict[str, FieldDecoder]:
        """How masks of other numbers or colours become class numbers, and images become pixels, if not as 8-bit RGB."""
        decoders = pixel_decoders(self.pixels)
        if self.numbers or self.palette:
            decoders["mask"] = MappedMask("mask", tuple(self.numbers.items()), tuple(self.palette.items()))
        return decoders

    def scan(self, root: Path) -> Listing:
        """List the images below `root`; see `Source.scan`. SourceError if no image at all has its mask."""
        image, kinds = compile_pattern(self.image, "Paired: image"), self.kinds()
        files = tuple(name for name, kind in kinds.items() if kind != "label")
        classes = {"mask": self.classes} if self.classes else {}
        if "label" in kinds:
            classes["label"] = class_names(root, image, self._others().values())
        tally: Counter[str] = Counter()
        rows = partial(self._rows, root, classes.get("label"))
        entries = split_rows(rows, tally, self.splits, stratified_by(self.splits))
        return Listing(kinds, files, ("label",) if "label" in kinds else (), entries, classes, tally)

    def _others(self) -> dict[str, Pattern]:
        """The patterns of all fields but the image, in the order of the listing's files."""
        texts = {} if self.mask is None else {"mask": self.mask}
        texts |= {name: text for name, (_, text) in self.fields.items()}
        return {name: compile_pattern(text, f"Paired: {name}") for name, text in texts.items()}

    def _rows(self, root: Path, classes: tuple[str, ...] | None, tally: Counter[str]) -> Iterator[Row]:
        pattern, others = compile_pattern(self.image, "Paired: image"), self._others()
        companions, with_field = Companions(root), Counter[str]()
        first = None
        for image in images(root, pattern, splits=self.splits, classes=classes, tally=tally, rivals=others.values()):
            first = first or image
            expected = {name: companions.find(other, image.file.holes) for name, other in others.items()}
            with_field.update(name for name, file in expected.items() if file.exists)
            tally.update(f"image without its {name}" for name, file in expected.items() if not file.exists)
            files = (image.file.path, *(file.path for file in expected.values()))
            yield Entry(key_of(files[0]), image.split, files, image.values), dicom_group(self.splits, root, files[0])
        for name, other in others.items():
            if first is not None and not with_field[name]:
                path = companions.find(other, first.file.holes).path
                raise SourceError(_none_paired(root, name, other, first.file.path, path))
            if orphans := _orphans(root, other, pattern, companions):
                tally[f"{name} without its image"] = orphans

    __repr__ = constructor_text


def _checked_field(name: str, value: object) -> tuple[Kind, str]:
    if not (
        isinstance(value, (tuple, list)) and len(value) == 2 and value[0] in FILE_KINDS and isinstance(value[1], str)
    ):
        raise RecipeError(
            f"Paired: expected fields[{name!r}] to be (kind, pattern) with a kind of {', '.join(FILE_KINDS)}, such as "
            f"('map', 'depth/*.png'); got {value!r}"
        )
    if fault := field_name_fault(name):
        raise RecipeError(f"Paired: {fault}")
    if name in ("image", "mask", "label"):
        raise RecipeError(f"Paired: {name!r} is a field of its own, not one of fields; got fields[{name!r}]={value!r}")
    return value[0], value[1]


def _check_holes(name: str, pattern: Pattern, image: Pattern) -> None:
    if pattern == image:
        raise RecipeError(
            f"Paired: the patterns of image and {name} are one, {image.text!r}; each image would be its own {name}"
        )
    unknown = sorted(pattern.holes - image.holes)
    if unknown:
        spelled = ", ".join("'**'" if hole == "__" else "'*'" if hole[0] == "_" else f"{{{hole}}}" for hole in unknown)
        raise RecipeError(
            f"Paired: {spelled} in {name}={pattern.text!r} has no counterpart in image={image.text!r}; an image must say "
            f"where its {name} lies"
        )


def _none_paired(root: Path, name: str, pattern: Pattern, image: str, expected: str) -> str:
    there = next(walk(root, pattern, Counter()), None)
    seen = f"the first file of {pattern.text!r} is {there.path!r}" if there else f"no file fits {pattern.text!r}"
    return f"{root}: no image has its {name}: {image!r} should have {expected!r}, and {seen}"


def _orphans(root: Path, other: Pattern, image: Pattern, companions: Companions) -> int:
    """Number of files of `other` without an image, if its placeholders say which image that would be."""
    if not image.holes <= other.holes:
        return 0
    files = fitting(root, other, [image], Counter())
    return sum(not companions.find(image, file.holes).exists for file in files)
