"""Images in folders: one folder for each class, with or without a folder for each split above; or images without classes.

`listed_images` finds images that fit a pattern, each with its split and class, for other sources too.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from tfprep.errors import RecipeError, SampleError, SourceError
from tfprep.fields import Kind
from tfprep.images import header_text
from tfprep.sources.patterns import IMAGE_SUFFIXES, Holes, Pattern, compile_pattern, walk
from tfprep.sources.pixels import Pixels, check_pixels_option, pixel_decoders
from tfprep.sources.raw import names_of, read_whole
from tfprep.sources.source import (
    Entry,
    FieldDecoder,
    Listing,
    check_classes,
    class_name_fault,
    constructor_text,
    key_of,
)
from tfprep.sources.splits import Fractions, Row, is_split_pattern, listing_of


@dataclass(frozen=True, repr=False)
class Folder:
    """Images in class folders. Fields: `image`, and `label` if the pattern has `{label}`.

    Attributes:
        image: A pattern as `tfprep.sources.patterns` describes. `{label}/**` (the default) takes every folder below the root as a
            class, with all images below it; `{split}/{label}/**` reads `train/cat/1.jpg`; `**` has no classes.
        splits: `Fractions`, or the names to take of those that `{split}` finds, or a pattern of the images' paths with `{split}`.
            With none of these, all samples are `train`.
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
        if self.classes is not None and "label" not in pattern.holes:
            raise RecipeError(f"Folder: classes need {{label}} in the pattern; got image={self.image!r}")
        check_common(self, pattern)

    def kinds(self) -> dict[str, Kind]:
        """The kind of each field."""
        label: dict[str, Kind] = {"label": "label"} if "label" in self._pattern().holes else {}
        return {"image": "image", **label}

    def decoders(self) -> dict[str, FieldDecoder]:
        """The decoders of images that do not become 8-bit RGB."""
        return pixel_decoders(self.pixels)

    def scan(self, root: Path) -> Listing:
        """List the images below `root`; see `Source.scan`."""
        pattern = self._pattern()
        classes: dict[str, tuple[str, ...]] = {}
        if "label" in pattern.holes:
            classes["label"] = self.classes or class_names(root, pattern)
        rows = partial(self._rows, root, pattern, classes.get("label"))
        return listing_of(self, ("image",), tuple(classes), classes, rows)

    def _pattern(self) -> Pattern:
        return compile_pattern(self.image, "Folder: image")

    def _rows(
        self, root: Path, pattern: Pattern, classes: tuple[str, ...] | None, tally: Counter[str]
    ) -> Iterator[Row]:
        for image in listed_images(root, pattern, splits=self.splits, classes=classes, tally=tally):
            group = dicom_group(self.splits, root, image.path)
            yield Entry(key_of(image.path), image.split, (image.path,), image.values), group

    __repr__ = constructor_text


Splits: TypeAlias = "Fractions | str | tuple[str, ...] | None"
"""Fractions; or the names to take of the folders that `{split}` stands for; or None for all of them; or a pattern of the samples'
paths with `{split}`."""

DICOM_GROUPS = ("PatientID", "StudyInstanceUID", "SeriesInstanceUID")
"""Elements of DICOM's header that `Fractions(group_by=...)` takes: all images of one patient, study or series are in one
split."""
_OF_HEADERS = ("Folder", "Paired")
"""The sources that read headers for these groups."""

UNSPLIT = "train"
"""The split of all samples if nothing splits them."""


class ListedImage(NamedTuple):
    """A file that fits the image pattern. `values` is its class number, or empty without classes."""

    path: str
    holes: Holes
    split: str
    values: tuple[int, ...]


def check_common(source: Any, pattern: Pattern, labeled: bool | None = None) -> None:
    """Check `splits`, and `classes` and `pixels` where a source has them; lists become tuples. Raises RecipeError.

    Args:
        source: The source, a frozen dataclass.
        pattern: The pattern that may give the splits.
        labeled: Whether samples have a label; by default whether the pattern has `{label}`.
    """
    where = type(source).__name__
    labeled = "label" in pattern.holes if labeled is None else labeled
    object.__setattr__(source, "splits", check_splits(source.splits, pattern, where, ("label",) if labeled else ()))
    if getattr(source, "classes", None) is not None:
        object.__setattr__(source, "classes", check_classes(source.classes, f"{where}: classes"))
    if hasattr(source, "pixels"):
        object.__setattr__(source, "pixels", check_pixels_option(source.pixels, source.kinds(), where))


def split_files(root: Path, text: str, splits: Any, what: str, tally: Counter[str]) -> list[tuple[str, dict[str, str]]]:
    """Return each file that fits a pattern, with its placeholders, `split` among them. SourceError if there is none.

    The tally counts the files of splits that are not taken.
    """
    pattern = compile_pattern(text, what)
    found = walk(root, pattern, Counter())
    files = [(path, {**holes, "split": key_of(holes.get("split", UNSPLIT))}) for path, holes in found]
    if isinstance(splits, tuple) and "split" in pattern.holes:
        taken = [(path, holes) for path, holes in files if holes["split"] in splits]
        if len(taken) < len(files):
            tally[f"{what} of a split that is not in {splits}"] += len(files) - len(taken)
        files = taken
    if not files:
        raise SourceError(f"{root}: no {what} fits {text!r}; say where it is, or give the right folder with --data")
    return files


def dicom_group(splits: Splits, root: Path, path: str) -> str | None:
    """The patient, study or series that a DICOM file belongs to; None if the splits do not ask for it.

    A damaged .dcm is a group by itself: it is rejected when it is read. SourceError for an image that does not say its group.
    """
    if not (isinstance(splits, Fractions) and splits.by_column):
        return None
    try:
        value = header_text(read_whole(root / path), str(splits.group_by))
    except (OSError, SampleError):
        value = path if path.lower().endswith(".dcm") else ""
    if not value:
        raise SourceError(f"{root / path} has no {splits.group_by}: group by another element, or by a part of the path")
    return value


def fitting(
    root: Path,
    pattern: Pattern,
    rivals: Collection[Pattern],
    tally: Counter[str],
    done: Callable[[Holes], bool] = lambda holes: False,
) -> Iterator[tuple[str, Holes]]:
    """The files of `pattern`. One that also fits a pattern of `rivals` with more literal text belongs to that one.

    A file of `rivals` whose name says its image is not in the tally: the callers count those without one.
    """
    stronger = [rival for rival in rivals if rival.literal_length > pattern.literal_length]
    for path, holes in walk(root, pattern, tally, done, [rival for rival in rivals if pattern.holes <= rival.holes]):
        if all(rival.match_path(path) is None for rival in stronger):
            yield path, holes


def class_names(root: Path, pattern: Pattern, rivals: Collection[Pattern] = ()) -> tuple[str, ...]:
    """The names that `{label}` stands for, sorted by code points: those with at least one image."""
    in_folder = any("label" in part.holes for part in pattern.folders)
    seen: set[str] = set()
    for _, holes in fitting(
        root, pattern, rivals, Counter(), lambda holes_of_path: in_folder and holes_of_path.get("label") in seen
    ):
        seen.add(holes["label"])
    names = tuple(sorted({key_of(name) for name in seen}))
    if fault := next(filter(None, map(class_name_fault, names)), ""):
        raise SourceError(f"{root}: {fault}; rename the folder or file")
    return names


def listed_images(
    root: Path,
    pattern: Pattern,
    *,
    splits: Splits,
    classes: tuple[str, ...] | None,
    tally: Counter[str],
    rivals: Collection[Pattern] = (),
) -> Iterator[ListedImage]:
    """Yield every image, in order. SourceError if there was none."""
    numbers = None if classes is None else {name: number for number, name in enumerate(classes)}
    path = None
    for path, holes in fitting(root, pattern, rivals, tally):
        split = key_of(holes.get("split", UNSPLIT))
        if isinstance(splits, tuple) and split not in splits:
            tally[f"in no split of {splits}"] += 1
            continue
        values: tuple[int, ...] = ()
        if numbers is not None:
            name = key_of(holes["label"])
            if name not in numbers:
                known = ", ".join(map(repr, list(numbers)[:20]))
                raise SourceError(f"{root / path}: {name!r} is none of the {len(numbers)} classes: {known}")
            values = (numbers[name],)
        yield ListedImage(path, holes, split, values)
    if path is None:
        files, folders = names_of(root)
        entries = sorted((*files, *(f"{name}/" for name in folders)))
        listed = ", ".join(map(repr, entries[:12])) + (", …" if len(entries) > 12 else "") if entries else "nothing"
        suffixes = "" if pattern.suffix else f" (files ending in {', '.join(IMAGE_SUFFIXES)})"
        fix = "say where the files are with --data, or change the pattern to fit"
        raise SourceError(f"{root}: no file fits {pattern.text!r}{suffixes}; this folder holds {listed}: {fix}")


def check_splits(splits: Any, pattern: Pattern, where: str, labels: Sequence[str], columns: bool = False) -> Splits:
    """Return `splits`, with a list of names made a tuple. Raises RecipeError unless it agrees with the other options.

    Args:
        splits: The option.
        pattern: The pattern that may give the splits.
        where: The name of the source.
        labels: The fields by which it can be stratified.
        columns: True for a table, whose columns may give splits and groups.
    """
    by_folder = "split" in pattern.holes
    if isinstance(splits, Fractions):
        if not columns and splits.by_column and not (splits.group_by in DICOM_GROUPS and where in _OF_HEADERS):
            raise RecipeError(
                f"{where}: group_by={splits.group_by!r} would be a column, which only a Table has; give a regular expression "
                f"with a group, such as r'^(.*)_', a function of the key, or for DICOM one of {', '.join(DICOM_GROUPS)} in a "
                f"{' or '.join(_OF_HEADERS)}"
            )
        if splits.stratify is not None and splits.stratify not in labels:
            known = ", ".join(labels) or "none; a Folder has one with {label} in its pattern"
            raise RecipeError(f"{where}: stratify={splits.stratify!r} names no label field; those are {known}")
    if is_split_pattern(splits):
        compile_pattern(splits, f"{where}: splits")
    if by_folder and isinstance(splits, Fractions | str):
        rule = f"{where}: {{split}} in {pattern.text!r} already gives the splits"
        raise RecipeError(f"{rule}; leave out {splits!r} or {{split}}")
    if (
        splits is None
        or isinstance(splits, Fractions)
        or is_split_pattern(splits)
        or (columns and isinstance(splits, str))
    ):
        return splits  # type: ignore[no-any-return]
    if not isinstance(splits, tuple | list) or not all(isinstance(name, str) for name in splits):
        column = "a column, " if columns else ""
        raise RecipeError(f"{where}: expected splits to be {column}Fractions(...) or a tuple of names; got {splits!r}")
    if not by_folder:
        raise RecipeError(f"{where}: splits={tuple(splits)!r} names folders, but {pattern.text!r} has no {{split}}")
    return tuple(splits)
