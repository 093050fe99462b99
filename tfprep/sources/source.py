"""The interface of sources: a source lists samples without reading a pixel, and reads the raw files of one on demand."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Protocol

from tfprep.errors import RecipeError, SampleError
from tfprep.fields import Kind, Size, field_name_fault
from tfprep.sources.raw import read_raw


@dataclass(frozen=True, slots=True)
class Entry:
    """One listed sample: the paths of its raw files, and the values that the listing itself holds.

    A missing file is listed at the path where it is expected, so that only this sample is rejected.

    Attributes:
        key: Unique in the dataset; it stays the same when the data is moved (see `key_of`).
        split: The name of the split.
        files: References (`tfprep.sources.raw`) in the order of `Listing.files`: paths relative to the root, spelled as the
            file system spells them, URLs, and parts of files.
        values: Values that JSON can hold, in the order of `Listing.values`.
    """

    key: str
    split: str
    files: tuple[str, ...] = ()
    values: tuple[Any, ...] = ()


@dataclass(frozen=True)
class Listing:
    """The samples below one root.

    Attributes:
        kinds: Kind of every field.
        files: What is read from files.
        values: What the entries hold as values. `files` and `values` are fields, or raw parts that the source's `decoders()` make
            fields of: several fields may come from one part.
        entries: The samples; the iterator can be consumed once. Their order depends on names only, not on the file system.
        classes: Class names of label and mask fields, in the order of their numbers.
        tally: Number of files passed over or missing, by reason; complete once `entries` is consumed.
        derived: The fields that an earlier recipe derived: geometry moves their pixels, and leaves their numbers as they are.
        fixed: The fields whose numbers are places in the image in a form that is not known: a recipe with geometry refuses them.
    """

    kinds: Mapping[str, Kind]
    files: tuple[str, ...]
    values: tuple[str, ...]
    entries: Iterator[Entry]
    classes: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    tally: Mapping[str, int] = field(default_factory=dict)
    derived: tuple[str, ...] = ()
    fixed: tuple[str, ...] = ()


class FieldDecoder(Protocol):
    """Makes a field of a sample's raw parts, where that is not the way of its kind. A frozen dataclass of options.

    `raw` holds the bytes of files and the values of the entry, by the names of `Listing.files` and `Listing.values`.
    """

    def size(self, raw: Mapping[str, Any]) -> Size | None:
        """Return (height, width) of a raster in pixels; None if the field has the size of the sample's other rasters."""
        ...

    def decode(self, raw: Mapping[str, Any], size: Size | None) -> Any:
        """Return the field's value. `size` is (height, width) of the sample. Raises SampleError."""
        ...


class Source(Protocol):
    """A frozen dataclass of options. Its `repr` is Python code that rebuilds it, given `from tfprep import sources`.

    A source may also have these methods, which follow from its options only:

    - `kinds()` returns the kind of each field as far as the options say. The fields that a recipe names are then checked when the
      recipe is loaded.
    - `decoders()` returns a `FieldDecoder` by field, for fields that are not decoded in the way of their kind.
    - `rows()` returns, by the name of a field of boxes, the fields that have rows for each of the boxes, and masks whose numbers
      are the places of the boxes, from 1.
    - `multi_hot()` returns the labels whose lists of classes become vectors, float32 [classes].
    - `voids()` returns, by the name of a mask, the number of its void pixels.
    """

    def scan(self, root: Path) -> Listing:
        """List the samples below `root`. A label in an entry is its class number.

        Args:
            root: A folder; for `tfprep.dataset.Records` also a URL, as `tfprep.storage.urls.folder_at` returns it.

        Raises:
            SourceError: The data is not laid out as the options say; the message names the folder, the pattern or the row. It is
                raised by this call or while the entries are consumed.
        """
        ...


def read_files(root: Path, listing_files: tuple[str, ...], entry: Entry) -> dict[str, bytes]:
    """Read the raw files of a listed sample.

    Args:
        root: The folder of the raw data.
        listing_files: The field of each file of an entry (`Listing.files`).
        entry: The sample.

    Returns:
        The bytes of each file, by field.

    Raises:
        SampleError: A file cannot be read, or is larger than `tfprep.images.MAX_FILE_BYTES` (stage `read`).
        StorageError: An object store cannot be reached, or refuses.
    """
    data = {}
    for name, path in zip(listing_files, entry.files, strict=True):
        try:
            data[name] = read_raw(root, path)
        except SampleError as error:
            raise error.located(stage="read", field=name, path=path) from error.__cause__
    return data


def key_of(path: str) -> str:
    """Return the key of a sample whose first file is `path`: the path with its suffix, in Unicode's composed form (NFC).

    The suffix is kept because keys must stay unique, and the same, when `a.png` is added next to `a.jpg`. With NFC, a name that
    was copied through a Mac (NFD) keeps its key. Bytes that are not UTF-8 appear as `\\xff`, so that a key can always be stored
    and printed.
    """
    if path.isascii():
        return path
    try:
        data = path.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:  # text of a table may hold half a surrogate pair, which no file name does
        data = path.encode("utf-8", "surrogatepass")
    return unicodedata.normalize("NFC", data.decode("utf-8", "backslashreplace"))


def constructor_text(options: Any) -> str:
    """Return Python code that rebuilds a dataclass of this package: its name and the options that are not at their default.

    Functions are written as module and name, so a lambda cannot be rebuilt.
    """
    spelled = []
    for f in sorted(fields(options), key=lambda option: option.kw_only is True):
        value = getattr(options, f.name)
        if value != (f.default_factory() if callable(f.default_factory) else f.default):
            text = f"{value.__module__}.{value.__qualname__}" if hasattr(value, "__qualname__") else repr(value)
            spelled.append(f"{f.name}={text}")
    return f"sources.{type(options).__name__}({', '.join(spelled)})"


def check_classes(classes: Any, where: str) -> tuple[str, ...]:
    """Return `classes` as a tuple, composed as keys are; RecipeError unless it is a list of different names."""
    if not isinstance(classes, tuple | list) or not all(isinstance(name, str) and name for name in classes):
        raise RecipeError(f"{where}: expected a tuple of class names; got {classes!r}")
    names = tuple(map(key_of, classes))
    if fault := next(filter(None, map(class_name_fault, names)), ""):
        raise RecipeError(f"{where}: {fault}")
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise RecipeError(f"{where}: expected each class once; {', '.join(map(repr, twice))} comes twice")
    return names


def check_fields(
    fields: Any, kinds: tuple[Kind, ...], own: tuple[str, ...], where: str, example: str
) -> dict[str, tuple[Kind, str]]:
    """Return further fields, each with its kind and where it comes from. RecipeError unless they are that.

    Args:
        fields: The option.
        kinds: The kinds that are allowed.
        own: The fields that have options of their own.
        where: The name of the source.
        example: What a message gives for an example of a kind and text.
    """
    checked: dict[str, tuple[Kind, str]] = {}
    for name, value in dict(fields).items():
        pair = isinstance(value, tuple | list) and len(value) == 2 and isinstance(value[1], str)
        if not pair or value[0] not in kinds or not value[1]:
            rule = f"{where}: expected fields[{name!r}] to be (kind, text) with a kind of {', '.join(kinds)}"
            raise RecipeError(f"{rule}, such as {example}; got {value!r}")
        if fault := field_name_fault(name):
            raise RecipeError(f"{where}: {fault}")
        if name in own:
            raise RecipeError(f"{where}: {name!r} is an option of its own: {name}={value[1]!r}")
        checked[name] = value[0], value[1]
    return checked


def class_name_fault(name: str) -> str:
    """Say why this cannot be the name of a class; "" where it can be.

    TensorFlow Datasets keeps class names in a text file, one on each line, and drops the spaces around them.
    """
    if name == name.strip() and name.isprintable():
        return ""
    return f"a class name has no spaces around it, no line breaks and no control characters; got {name!r}"
