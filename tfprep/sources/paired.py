"""Images with masks, maps or further images beside them, found by patterns that name the same placeholders."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from tfprep.errors import RecipeError, SourceError
from tfprep.fields import Kind
from tfprep.sources.companions import Companions
from tfprep.sources.labels import check_classes
from tfprep.sources.layout import Splits, check_splits, class_names, fitting, images, stratified_by
from tfprep.sources.patterns import Pattern, compile_pattern
from tfprep.sources.source import Entry, Listing, constructor_text, key_of
from tfprep.sources.splits import Row, split_rows
from tfprep.sources.walk import walk

FILE_KINDS: tuple[Kind, ...] = ("image", "mask", "map")
"""The kinds of field that a file of their own can hold."""


@dataclass(frozen=True, repr=False)
class Paired:
    """Fields `image`, `mask` and those of `fields`, and `label` where the image's pattern has `{label}`.

    `image` and `mask` are patterns as `tfprep.sources.patterns` says; `fields` gives further ones as
    `{"depth": ("map", "{split}/depth/*.png")}`. The image's placeholders fill in the others, and `*` and `**` belong
    together by their order. A file that fits another field's pattern is never an image: `{split}/*.png` and
    `{split}annot/*.png` read CamVid. `classes` names the mask's class numbers; `splits` are as in `Folder`.

    An image whose mask is missing is listed with the path where the mask should be, so that reading rejects it by name;
    the listing's tally counts these, and masks without an image. Where no image at all has its mask, SourceError says
    what was expected and what is there.
    """

    image: str
    mask: str | None = None
    fields: Mapping[str, tuple[Kind, str]] = field(default_factory=dict)
    classes: tuple[str, ...] = ()
    splits: Splits = None

    def __post_init__(self) -> None:
        image = compile_pattern(self.image, "Paired: image")
        fields = {name: _checked_field(name, value) for name, value in dict(self.fields).items()}
        object.__setattr__(self, "fields", fields)
        object.__setattr__(self, "splits", check_splits(self.splits, image, "Paired"))
        object.__setattr__(self, "classes", check_classes(self.classes, "Paired: classes"))
        if self.classes and self.mask is None:
            raise RecipeError("Paired: classes name the numbers of the mask; there is no mask")
        if not self._others():
            raise RecipeError("Paired: expected a mask or fields beside the image; images alone are a Folder")
        for name, pattern in self._others().items():
            _check_holes(name, pattern, image)

    def scan(self, root: Path) -> Listing:
        image = compile_pattern(self.image, "Paired: image")
        kinds: dict[str, Kind] = {"image": "image"}
        kinds |= {} if self.mask is None else {"mask": "mask"}
        kinds |= {name: kind for name, (kind, _) in self.fields.items()}
        files = tuple(kinds)
        classes = {"mask": self.classes} if self.classes else {}
        if "label" in image.holes:
            kinds["label"] = "label"
            classes["label"] = class_names(root, image, self._others().values())
        tally: Counter[str] = Counter()
        rows = partial(self._rows, root, classes.get("label"))
        entries = split_rows(rows, tally, self.splits, stratified_by(self.splits))
        return Listing(kinds, files, ("label",) if "label" in kinds else (), entries, classes, tally)

    def _others(self) -> dict[str, Pattern]:
        """The patterns besides the image's, by field, in the order of the listing's files."""
        texts = {} if self.mask is None else {"mask": self.mask}
        texts |= {name: text for name, (_, text) in self.fields.items()}
        return {name: compile_pattern(text, f"Paired: {name}") for name, text in texts.items()}

    def _rows(self, root: Path, classes: tuple[str, ...] | None, tally: Counter[str]) -> Iterator[Row]:
        pattern, others = compile_pattern(self.image, "Paired: image"), self._others()
        companions, with_field = Companions(root), Counter[str]()
        first = None
        for image in images(root, pattern, splits=self.splits, classes=classes, tally=tally, rivals=others.values()):
            first = first or image
            places = {name: companions.find(other, image.found.holes) for name, other in others.items()}
            with_field.update(name for name, place in places.items() if place.there)
            tally.update(f"image without its {name}" for name, place in places.items() if not place.there)
            files = (image.found.path, *(place.path for place in places.values()))
            yield Entry(key_of(files[0]), image.split, files, image.values), None
        for name, other in others.items():
            if first is not None and not with_field[name]:
                expected = companions.find(other, first.found.holes).path
                raise SourceError(_none_paired(root, name, other, first.found.path, expected))
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
    """How many files of `other` have no image, as far as its placeholders say which image that would be."""
    if not image.holes <= other.holes:
        return 0
    found = fitting(root, other, [image], Counter())
    return sum(not companions.find(image, file.holes).there for file in found)
