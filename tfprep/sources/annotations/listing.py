"""Options, annotation files, paths of images and listings, which all sources of annotations share."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple, TypeAlias, TypeVar

from tfprep.errors import RecipeError, SampleError, SourceError
from tfprep.fields import Kind
from tfprep.sources.annotations.objects import OBJECT_KINDS, ROWS, BadAnnotations, ObjectField, Outside
from tfprep.sources.folder import Splits, check_common, listed_images
from tfprep.sources.patterns import Companions, Holes, Pattern, walk
from tfprep.sources.pixels import Pixels, pixel_decoders
from tfprep.sources.raw import read_raw
from tfprep.sources.source import Entry, FieldDecoder, Listing, class_name_fault, constructor_text, key_of
from tfprep.sources.splits import Row, listing_of

T = TypeVar("T")
Unannotated: TypeAlias = Literal["keep", "skip"]
UNANNOTATED = "image without annotations"
ORPHAN = "annotations without their image"
NO_FILE = "image without a file of annotations, kept as one without objects"
OTHER_CLASS = "object of a class that is not among the classes"


@dataclass(frozen=True, repr=False, kw_only=True)
class AnnotatedSource:
    """The options that all sources of annotations have, given by name.

    Attributes:
        fields: What to make of the objects (`tfprep.sources.annotations.objects`).
        unannotated: "keep" or "skip" images without annotations.
        outside: "reject" an image with a box that reaches outside it by more than one pixel, or "cut" the box.
        bad_annotations: "drop" an annotation that is wrong by itself, such as a box of no width, a polygon of two points, a class
            without a name or an object that is there twice, with a warning in the report, or "reject" its image. An image is
            rejected if all its annotations are wrong.
        void: The number of void regions in masks. Masks are uint8 if it is at most 255, else uint16.
        splits: As in `Folder`; the names of the lists in `Voc(sets=...)`, and of the splits in the YAML file of `Yolo`.
        pixels: As in `Folder`, for the field `image`.
    """

    known_fields: ClassVar[Sequence[str]]
    """The fields that the format has."""
    in_files: ClassVar[Collection[str]] = ()
    """Fields that are files of their own, and not made of the objects."""
    fields: tuple[str, ...] = ("boxes", "box_labels")
    unannotated: Unannotated = "keep"
    outside: Outside = "reject"
    bad_annotations: BadAnnotations = "drop"
    void: int = 255
    splits: Splits = None
    pixels: Mapping[str, Pixels] = field(default_factory=dict)

    def check_options(self, pattern: Pattern, suffix: str | None = None) -> None:
        """Check these options, and `classes` where the source has it; lists become tuples. Raises RecipeError.

        Args:
            pattern: The pattern that may give the splits.
            suffix: The suffix that this pattern must have.
        """
        where, allowed = type(self).__name__, self.known_fields
        names = tuple(self.fields) if isinstance(self.fields, tuple | list) else ()
        if not names or len(set(names)) < len(names) or not set(names) <= set(allowed):
            raise RecipeError(f"{where}: expected fields to be a tuple of {', '.join(allowed)}; got {self.fields!r}")
        object.__setattr__(self, "fields", names)
        if suffix is not None and pattern.suffix != suffix:
            raise RecipeError(f"{where}: expected a pattern that ends in {suffix}; got {pattern.text!r}")
        choices = {"unannotated": ("keep", "skip"), "outside": ("reject", "cut"), "bad_annotations": ("drop", "reject")}
        for option, values in choices.items():
            if (value := getattr(self, option)) not in values:
                raise RecipeError(f"{where}: {option} is one of {', '.join(map(repr, values))}; got {value!r}")
        check_common(self, pattern, labeled=False)

    def kinds(self) -> dict[str, Kind]:
        """The kind of each field."""
        return {"image": "image", **{name: OBJECT_KINDS[name] for name in self.fields}}

    def decoders(self) -> dict[str, FieldDecoder]:
        """The decoders of fields that are made of objects, and of images that do not become 8-bit RGB."""
        made = [name for name in self.fields if name not in self.in_files]
        rules = self.void, self.outside, self.bad_annotations
        return {name: ObjectField(name, *rules) for name in made} | pixel_decoders(self.pixels)

    def objects_of(self, annotations: Iterable[T], make: Callable[[T], dict[str, Any] | None]) -> dict[str, Any]:
        """Return the parts `objects` and `dropped` of an image.

        Args:
            annotations: The annotations of the image.
            make: Makes an object of one; None if it is left out. Raises WrongAnnotation.
        """
        objects, dropped = [], []
        for annotation in annotations:
            try:
                made = make(annotation)
            except WrongAnnotation as fault:
                dropped.append(str(fault))
            else:
                objects += [] if made is None else [made]
        return {"objects": objects, "dropped": dropped} if dropped else {"objects": objects}

    def rows(self) -> dict[str, tuple[str, ...]]:
        """The fields with rows for each box, and a mask that is numbered by the places of the boxes."""
        rows = ROWS if "box_numbers" in self.fields else (*ROWS, "instances")
        return {"boxes": tuple(name for name in rows if name in self.fields)} if "boxes" in self.fields else {}

    def voids(self) -> dict[str, int]:
        """The number of void pixels by mask."""
        return {name: self.void for name in self.fields if OBJECT_KINDS[name] == "mask"}

    __repr__ = constructor_text


def checked_size(image: Mapping[str, Any], names: Sequence[str] = ("height", "width")) -> list[float] | None:
    """Return height and width as annotations give them; None if they give none."""
    sides = [side for name in names if isinstance(side := image.get(name), int | float) and side > 0]
    return sides if len(sides) == 2 else None


class AnnotatedImage(NamedTuple):
    """An image, the file of its annotations, and the files of further fields."""

    path: str
    split: str
    annotations: str
    others: tuple[str, ...] = ()


class WrongAnnotation(Exception):
    """An annotation is dropped, or its image is rejected; the message names the fault."""


def class_of(name: str, numbers: Mapping[str, int], tally: Counter[str], where: str) -> int | None:
    """Return the class number of an object; None for a class that is not taken, which is counted. Raises WrongAnnotation."""
    if not name:
        raise WrongAnnotation(f"{where} has no class")
    if fault := class_name_fault(name):
        raise WrongAnnotation(f"{where}: {fault}")
    number = numbers.get(name)
    tally.update({OTHER_CLASS: 1} if number is None else {})
    return number


def read_annotations(root: Path, path: str) -> bytes | None:
    """Return the bytes of a file of annotations; None if there is none. Raises WrongAnnotation if it cannot be read."""
    try:
        return read_raw(root, path)
    except SampleError as error:
        if isinstance(error.__cause__, FileNotFoundError):
            return None
        raise WrongAnnotation(f"{path}: {error.reason}") from error


def object_rows(
    source: AnnotatedSource,
    root: Path,
    images: Iterator[AnnotatedImage],
    parse: Callable[[bytes, str], dict[str, Any]],
    tally: Counter[str],
) -> Iterator[Row]:
    """Yield an entry for each image with one file of annotations each. SourceError at the end if no image of a split has that
    file, as in test splits whose annotations are not public: all of them would be images without objects.

    `parse` turns the file's bytes and path into the part `objects`; it raises WrongAnnotation.
    """
    firsts: dict[str, AnnotatedImage] = {}
    annotated = set[str]()
    for image in images:
        firsts.setdefault(image.split, image)
        try:
            data = read_annotations(root, image.annotations)
            annotated.update([] if data is None else [image.split])
            part = {"size": None, "objects": []} if data is None else parse(data, image.annotations)
            if source.unannotated == "skip" and not part["objects"] and not part.get("dropped"):
                tally[UNANNOTATED] += 1
                continue
            tally.update({NO_FILE: 1} if data is None else {})
        except WrongAnnotation as fault:
            annotated.add(image.split)
            part = {"objects": [], "fault": str(fault)}
        yield Entry(key_of(image.path), image.split, (image.path, *image.others), (part,)), None
    for split, first in firsts.items():
        if split not in annotated and (source.unannotated == "keep" or not annotated):
            of_split = f" of {split}" if len(firsts) > 1 else ""
            rule = f"no image{of_split} has a file of annotations: {first.path!r} should have {first.annotations!r}"
            fix = "take other splits (splits=), leave such images out (unannotated='skip'), or read them as a Folder"
            raise SourceError(f"{root}: {rule}; {fix}")


def annotated_images(
    source: AnnotatedSource, root: Path, image: Pattern, annotations: Pattern, tally: Counter[str], names: str = ""
) -> Iterator[tuple[AnnotatedImage, Holes]]:
    """Yield the images of a pattern, each with the file of its annotations and its placeholders. `names` is another file."""
    companions = Companions(root)
    for one in listed_images(root, image, splits=source.splits, classes=None, tally=tally, rivals=(annotations,)):
        yield AnnotatedImage(one.path, one.split, companions.find(annotations, one.holes)[0]), one.holes
    if image.holes <= annotations.holes:  # a file of annotations says which image would be its own
        files = walk(root, annotations, Counter())
        orphans = sum(path != names and not companions.find(image, holes)[1] for path, holes in files)
        tally.update({ORPHAN: orphans} if orphans else {})


def names_in_files(root: Path, annotations: Pattern, names: Callable[[bytes, str], Iterator[str]]) -> set[str]:
    """Return the names of classes in files of annotations. The image of a wrong file is rejected when it is listed."""
    class_names: set[str] = set()
    for path, _ in walk(root, annotations, Counter()):
        with suppress(WrongAnnotation):
            of_file = names(read_annotations(root, path) or b"", path)
            class_names |= {name for name in of_file if name and not class_name_fault(name)}
    return class_names


def object_listing(
    source: AnnotatedSource,
    names: tuple[str, ...],
    rows: Callable[[Counter[str]], Iterator[Row]],
    files: tuple[str, ...] = ("image",),
    passed_over: Mapping[str, int] | None = None,
) -> Listing:
    """Return the listing of images with the raw part `objects`."""
    classes = {"box_labels": names, "mask": ("background", *names)}
    classes = {name: of_field for name, of_field in classes.items() if name in source.kinds()}
    return listing_of(source, files, ("objects",), classes, rows, passed_over=passed_over)
