"""What every source is: it lists samples without reading a pixel, and hands over the raw parts of one on demand."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from tfprep.fields import Kind


@dataclass(frozen=True, slots=True)
class Entry:
    """One sample as listed: where its raw parts lie, and the values that stand in the listing itself.

    `key` is unique in its dataset and survives a move of the data (a path relative to the root, without its suffix where
    that is still unique); `files` are paths relative to the root, in the order of `Listing.files`; `values` are plain
    numbers, strings, None or (nested) lists of them, in the order of `Listing.values`.
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
    order of their numbers. `entries` may be walked once, and holds nothing but what it has yielded.
    """

    kinds: Mapping[str, Kind]
    files: tuple[str, ...]
    values: tuple[str, ...]
    entries: Iterator[Entry]
    classes: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


class Source(Protocol):
    """A frozen dataclass of options that lists the samples below `root`.

    A label in an entry is already its class number. Raises SourceError, which names the folder or the pattern, where the
    data is not laid out as the options say.
    """

    def scan(self, root: Path) -> Listing: ...


def read_files(root: Path, listing_files: tuple[str, ...], entry: Entry) -> dict[str, bytes]:
    """The raw bytes of every file of `entry`, by field."""
    return {name: (root / path).read_bytes() for name, path in zip(listing_files, entry.files, strict=True)}
