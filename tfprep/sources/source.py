"""What every source is: it lists samples without reading a pixel, and hands over the raw parts of one on demand."""

from __future__ import annotations

import os
import stat
import unicodedata
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Protocol

from tfprep.errors import SampleError
from tfprep.fields import Kind


@dataclass(frozen=True, slots=True)
class Entry:
    """One sample as listed: where its raw parts lie, and the values that stand in the listing itself.

    `key` is unique in its dataset and survives a move of the data (see `key_of`); `files` are paths relative to the root,
    spelled as the file system spells them, in the order of `Listing.files`; `values` are plain numbers, strings, None or
    (nested) lists of them, in the order of `Listing.values`. A file that is missing is listed where it was expected:
    reading it rejects this sample and no other.
    """

    key: str
    split: str
    files: tuple[str, ...] = ()
    values: tuple[Any, ...] = ()


@dataclass(frozen=True)
class Listing:
    """The samples below one root.

    `kinds` maps every field to its kind; `files` names the fields whose raw form is a file, `values` those that stand in
    the entry; together they are the keys of `kinds`. `classes` holds the class names of a label or mask field, in the
    order of their numbers. `entries` may be walked once, and holds nothing but what it has yielded; its order depends on
    names alone, not on the file system. `tally` counts what was met besides (files passed over, masks missing), by
    reason; it is complete once `entries` has been walked.
    """

    kinds: Mapping[str, Kind]
    files: tuple[str, ...]
    values: tuple[str, ...]
    entries: Iterator[Entry]
    classes: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    tally: Mapping[str, int] = field(default_factory=dict)


class Source(Protocol):
    """A frozen dataclass of options that lists the samples below `root`.

    A label in an entry is already its class number. Raises SourceError, which names the folder, the pattern or the row,
    where the data is not laid out as the options say: from `scan`, or while its entries are walked. Its `repr` is Python
    that rebuilds it, given `from tfprep import sources`.
    """

    def scan(self, root: Path) -> Listing: ...


def read_files(root: Path, listing_files: tuple[str, ...], entry: Entry) -> dict[str, bytes]:
    """The raw bytes of every file of `entry`, by field. Raises SampleError (stage `read`) for one that cannot be read."""
    return {name: _read(root, name, path) for name, path in zip(listing_files, entry.files, strict=True)}


def key_of(path: str) -> str:
    """The key of a sample whose first file is `path`: the path itself, suffix and all, in Unicode's composed form (NFC).

    The suffix stays because nothing else keeps keys both unique and still when `a.png` is added beside `a.jpg`. NFC gives
    a name copied through a Mac (NFD) the key it had before. Bytes that are not UTF-8 appear as `\\xff`, so that a key can
    always be stored and printed.
    """
    if path.isascii():
        return path
    return unicodedata.normalize("NFC", path.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace"))


def constructor_text(options: Any) -> str:
    """Python that rebuilds a dataclass of this package: the options that are not at their default, by name.

    A function is spelled by its module and name, so a lambda cannot be rebuilt.
    """
    default = {f.name: f.default_factory() if callable(f.default_factory) else f.default for f in fields(options)}
    given = {f.name: getattr(options, f.name) for f in fields(options)}
    spelled = [f"{name}={_spell(value)}" for name, value in given.items() if value != default[name]]
    return f"sources.{type(options).__name__}({', '.join(spelled)})"


def _spell(value: Any) -> str:
    return f"{value.__module__}.{value.__qualname__}" if callable(value) else repr(value)


def _read(root: Path, name: str, path: str) -> bytes:
    try:
        # O_NONBLOCK: opening a pipe that nobody writes to would wait for ever.
        descriptor = os.open(os.path.join(root, path), os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(descriptor, "rb") as file:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise SampleError("not a regular file", stage="read", field=name, path=path)
            return file.read()
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise SampleError(f"cannot read the file: {reason}", stage="read", field=name, path=path) from error
