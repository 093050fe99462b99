"""Finds the mask of an image: the file that a pattern names, as the file system spells it."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Iterator
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from tfprep.errors import SourceError
from tfprep.sources.patterns import IMAGE_SUFFIXES, Holes, Pattern
from tfprep.sources.raw import names_of

_FOLDERS_CACHED = 4
"""Number of folders whose names are cached: images come folder by folder, and so do their masks."""


class ExpectedFile(NamedTuple):
    """A path relative to the root, and whether the file exists."""

    path: str
    exists: bool


class Companions:
    """Looks up files by pattern below one root. It lists each folder once, which is faster than asking for every file."""

    def __init__(self, root: Path) -> None:
        self._names: Callable[[str], frozenset[str]] = lru_cache(_FOLDERS_CACHED)(lambda folder: _names(root, folder))

    def find(self, pattern: Pattern, holes: Holes) -> ExpectedFile:
        """Return the file of `pattern` with these placeholders, whatever the case of its suffix and its Unicode form.

        If there is none, its path is the one where it is expected. Raises SourceError if two files fit.
        """
        folder, slash, stem = pattern.fill(holes).rpartition("/")
        names = self._names(folder)
        if pattern.suffix is not None and stem + pattern.suffix in names:
            return ExpectedFile(folder + slash + stem + pattern.suffix, True)
        fitting = [name for name in _spellings(stem, pattern.suffix) if name in names]
        if len(fitting) > 1:
            raise SourceError(
                f"{folder + slash}: {' and '.join(map(repr, fitting))} both fit {pattern.text!r} for one image; keep one, or "
                "give the pattern a suffix"
            )
        return ExpectedFile(
            folder + slash + (fitting[0] if fitting else stem + (pattern.suffix or ".*")), bool(fitting)
        )


def spelled(root: Path, path: str) -> str:
    """Return the path as the file system spells it, in one of Unicode's forms; the path itself if there is no such file."""
    if path.isascii() or (root / path).exists():
        return path
    forms = (unicodedata.normalize(form, path) for form in ("NFC", "NFD"))
    return next((form for form in forms if (root / form).exists()), path)


def _names(root: Path, folder: str) -> frozenset[str]:
    try:
        names = names_of(root / folder)
        return frozenset((*names.files, *names.folders))
    except (FileNotFoundError, NotADirectoryError):
        return frozenset()
    except OSError as error:
        raise SourceError(f"{root / folder}: cannot list this folder: {error.strerror}") from error


def _spellings(stem: str, suffix: str | None) -> Iterator[str]:
    forms = dict.fromkeys((stem, *(unicodedata.normalize(form, stem) for form in ("NFC", "NFD"))))
    for form in forms:
        for ending in IMAGE_SUFFIXES if suffix is None else (suffix,):
            yield from (form + ending, form + ending.upper(), form + ending.title())
