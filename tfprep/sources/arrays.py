"""Images in NumPy's files (https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html): .npy, and .npz with several.

The rows of an array that is stored in C order are one after another, so that each image has its own place in the file. A
compressed array of a .npz has none: a plain copy is made once (`tfprep.sources.raw.staged`). One that is not compressed is
compared once with its checksum.
"""

from __future__ import annotations

import os
import shutil
import zipfile
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tokenize import TokenError
from typing import Any, BinaryIO, NamedTuple

import numpy as np

from tfprep.errors import RecipeError, SampleError, SourceError
from tfprep.fields import Array, Kind, Size
from tfprep.sources.archives import members
from tfprep.sources.cells import label_cell, sorted_classes
from tfprep.sources.folder import UNSPLIT, Splits, check_common
from tfprep.sources.patterns import Holes, compile_pattern, walk
from tfprep.sources.raw import Reference, open_raw, staged
from tfprep.sources.source import Entry, FieldDecoder, Listing, constructor_text, key_of
from tfprep.sources.splits import Row, listing_of

_PIECE_BYTES = 4 << 20
_DTYPES = ("uint8", "uint16", "float32", "float64")


class StoredArray(NamedTuple):
    """An array in a file.

    Attributes:
        name: Its path relative to the root; for one of a .npz with its name after a slash.
        holes: The placeholders of its pattern.
        file: The file that holds its values: the path relative to the root, or that of a copy.
        start: The first byte of the values.
        shape, dtype, fortran: As its header says.
    """

    name: str
    holes: Holes
    file: str
    start: int
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    fortran: bool

    @property
    def split(self) -> str:
        return key_of(self.holes.get("split", UNSPLIT))


@dataclass(frozen=True, repr=False)
class Arrays:
    """The rows of an array [N, H, W] or [N, H, W, C]. Fields: `image`, and `label` if given.

    8-bit images of one channel become RGB; others keep dtype and channels, float64 becomes float32. The key of an image is its
    array and row: `data.npz/x_train/17`.

    Attributes:
        image: The pattern of the files, with `{split}` or without: `{split}_images.npy`. An array of a .npz is named after a
            colon: `data.npz:x_{split}`.
        label: The same for the classes: whole numbers or names [N] or [N, 1]. None if there are none. Images and classes whose
            placeholders are the same belong together: `batch_*.npz:x` and `batch_*.npz:y`.
        channels_first: Whether the arrays are [N, C, H, W].
        classes: The class names in the order of their numbers. By default the numbers or names that occur, sorted.
        splits: As in `Folder`.

    Raises:
        RecipeError: An option is wrong, or two options contradict each other.
    """

    image: str
    label: str | None = None
    channels_first: bool = False
    classes: tuple[str, ...] | None = None
    splits: Splits = None

    def __post_init__(self) -> None:
        for text in (self.image, *([] if self.label is None else [self.label])):
            file, colon, _ = str(text).partition(":")
            if not file.endswith(".npz" if colon else ".npy"):
                raise RecipeError(
                    f"Arrays: expected a file such as 'x.npy', or 'data.npz:x' for one array of it; got {text!r}"
                )
        pattern = compile_pattern(self.image.replace(":", "/"), "Arrays: image")
        check_common(self, pattern, self.label is not None)

    def kinds(self) -> dict[str, Kind]:
        """The kind of each field."""
        return {"image": "image"} if self.label is None else {"image": "image", "label": "label"}

    def decoders(self) -> dict[str, FieldDecoder]:
        """The decoder of images."""
        return {"image": ArrayImage(self.channels_first)}

    def scan(self, root: Path) -> Listing:
        """List the rows of the arrays below `root`; see `Source.scan`."""
        found, tally = [] if self.label is None else stored_arrays(root, self.label), Counter[str]()
        labels = [(array.holes, _labels(root, array)) for array in found]
        pairs: list[tuple[StoredArray, list[str]]] = []
        for one in stored_arrays(root, self.image):
            if isinstance(self.splits, tuple) and one.split not in self.splits:
                tally[f"in no split of {self.splits}"] += int(np.prod(one.shape[:1]))
                continue
            rule = f"{one.name}: expected images [N, H, W] or [N, H, W, C] of {', '.join(_DTYPES)} in C order"
            if one.dtype.hasobject:
                raise SourceError(f"{rule}; the array holds Python objects, which run code when they are read")
            if len(one.shape) not in (3, 4) or one.dtype.name not in _DTYPES or one.fortran or 0 in one.shape[1:]:
                order = " in Fortran order" if one.fortran else ""
                raise SourceError(f"{rule}; got {one.dtype} {list(one.shape)}{order}. Save it as such with numpy.save")
            own = next((of_array for holes, of_array in labels if holes == one.holes), [])
            if self.label is not None and len(own) != one.shape[0]:
                rule = f"{root / one.name} has {one.shape[0]} images"
                raise SourceError(f"{rule}, and {self.label!r} has {len(own)} labels for them")
            pairs.append((one, own))
        occurring = {name for _, own in labels for name in own}
        names = self.classes or sorted_classes(occurring)
        classes = {"label": names} if self.label is not None else {}
        places = {name: number for number, name in enumerate(names)}
        try:
            numbers = {name: label_cell(name, places) for name in occurring}
        except SourceError as error:
            raise SourceError(f"{root}: {self.label!r}: {error}") from error

        def rows(tally: Counter[str]) -> Iterator[Row]:
            for array, own in pairs:
                size = array.dtype.itemsize * int(np.prod(array.shape[1:]))
                form = [array.dtype.str, *array.shape[1:]]
                for row in range(array.shape[0]):
                    member = f"row {row} of {array.name}"
                    reference = Reference(array.file, array.start + row * size, size, member=member)
                    values = (form, numbers[own[row]]) if classes else (form,)
                    yield Entry(f"{key_of(array.name)}/{row}", array.split, (str(reference),), values), None

        return listing_of(self, ("pixels",), ("form", *classes), classes, rows, passed_over=tally)

    __repr__ = constructor_text


def stored_arrays(root: Path, text: str) -> list[StoredArray]:
    """Return the arrays that a text of `Arrays` names. SourceError if there is none, or one cannot be read."""
    file, _, name = text.partition(":")
    inside = compile_pattern(f"{file}/{name}.npy", "Arrays") if name else None
    found = []
    for path, of_file in walk(root, compile_pattern(file, "Arrays"), Counter()):
        if inside is None:
            found.append(_stored(root, path, path, 0, of_file))
            continue
        for member in members(root / path, Counter()):
            holes = inside.match_path(f"{path[: -len('.npz')]}.npz/{member.name}")
            if holes is None:
                continue
            place, start, kind = path, member.start, f".{member.name}".replace("/", "_")
            if member.deflated:
                place, start = str(staged(root / path, kind, partial(_unpack, root / path, member.name))), 0
            else:  # rows are read by their places, without the checksum of the whole
                staged(root / path, f"{kind}.whole", partial(_compare, root / path, member.name))
            found.append(_stored(root, f"{path}/{member.name.removesuffix('.npy')}", place, start, holes))
    if not found:
        raise SourceError(f"{root}: no array fits {text!r}")
    return found


def _unpack(path: Path, name: str, target: BinaryIO) -> None:
    try:
        with open_raw(path) as file, zipfile.ZipFile(file) as archive, archive.open(name) as content:
            shutil.copyfileobj(content, target, _PIECE_BYTES)
    except (zipfile.BadZipFile, zlib.error, EOFError) as error:
        raise SourceError(f"{path}: {name} cannot be read: {error}") from error


def _compare(path: Path, name: str, target: BinaryIO) -> None:
    """Compare an array with its checksum, once for each state of its file, and note it."""
    with open(os.devnull, "wb") as nowhere:
        _unpack(path, name, nowhere)
    target.write(b"whole")


def _stored(root: Path, name: str, file: str, start: int, holes: Holes) -> StoredArray:
    headers = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
    try:
        with open_raw(root / file) as opened:
            opened.seek(start)
            shape, fortran, dtype = headers[np.lib.format.read_magic(opened)](opened)
            return StoredArray(name, holes, file, opened.tell(), shape, dtype, fortran)
    except (OSError, ValueError, KeyError, SyntaxError, TokenError) as error:
        raise SourceError(f"{root / name} is not an array of NumPy that can be read: {error}") from error


def _labels(root: Path, array: StoredArray) -> list[str]:
    if array.dtype.kind not in "iubUf" or int(np.prod(array.shape)) != (array.shape[0] if array.shape else 0):
        raise SourceError(
            f"{root / array.name}: expected whole numbers or names [N] or [N, 1]; got {array.dtype} {list(array.shape)}"
        )
    with open_raw(root / array.file) as file:
        file.seek(array.start)
        content = file.read(array.dtype.itemsize * array.shape[0])
    if len(content) != array.dtype.itemsize * array.shape[0]:
        raise SourceError(f"{root / array.name} is cut short: its header says {array.shape[0]} values")
    values = np.frombuffer(content, array.dtype)
    if array.dtype.kind == "f" and not (values == np.round(values)).all():
        raise SourceError(f"{root / array.name}: classes are whole numbers or names; got {array.dtype} with fractions")
    return [str(value) if array.dtype.kind == "U" else str(int(value)) for value in values]


@dataclass(frozen=True)
class ArrayImage:
    """Makes an image of the bytes of a row, whose dtype and shape are in `form`."""

    channels_first: bool = False

    def size(self, raw: Mapping[str, Any]) -> Size | None:
        shape = raw["form"][1:]
        return (shape[1], shape[2]) if self.channels_first and len(shape) == 3 else (shape[0], shape[1])

    def decode(self, raw: Mapping[str, Any], size: Size | None) -> Array:
        dtype, *shape = raw["form"]
        values = np.frombuffer(raw["pixels"], dtype).reshape(shape)
        if len(shape) == 2:
            values = values[:, :, np.newaxis]
        elif self.channels_first:
            values = values.transpose(1, 2, 0)
        if values.dtype == np.uint8 and values.shape[2] == 1:
            values = np.repeat(values, 3, axis=2)
        if values.dtype.kind != "f":
            return np.ascontiguousarray(values, values.dtype.newbyteorder("="))
        with np.errstate(over="ignore"):
            image = np.ascontiguousarray(values, np.float32)
        if not np.isfinite(image).all():
            raise SampleError("the image holds NaN, infinity or a number that float32 does not hold; repair the array")
        return image
