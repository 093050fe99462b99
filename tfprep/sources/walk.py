"""Lists the files below a root that fit a pattern, in an order that depends on their names alone.

The files of a folder come first, then its subfolders, each sorted by code points of the name's key form (`key_of`). Links to
files and folders are followed, except for a link to a folder above itself, which has no end: it is passed over, and the tally
names it. Names that begin with a dot are passed over. No file is opened, and only the names of one folder at a time are kept in
memory.
"""

from __future__ import annotations

import os
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterator
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from tfprep.errors import SourceError
from tfprep.sources.patterns import IMAGE_SUFFIXES, Holes, Pattern, compile_pattern
from tfprep.sources.raw import can_list, names_of
from tfprep.sources.source import key_of
from tfprep.storage.urls import is_remote

HIDDEN = "hidden (the name begins with a dot)"
SPECIAL = "neither a file nor a folder"
NO_IMAGE = "not an image by its suffix"
OUTSIDE = "outside the pattern"
LOOP = "a link to a folder above itself"


class MatchedFile(NamedTuple):
    """A file: its path relative to the root, and what the pattern's placeholders stand for in it."""

    path: str
    holes: Holes


def walk(
    root: Path, pattern: Pattern, tally: Counter[str], done: Callable[[Holes], bool] = lambda holes: False
) -> Iterator[MatchedFile]:
    """Yield every file that fits `pattern`, in order. A folder is not entered if its placeholders are `done`."""
    if not pattern.holes and not can_list(root):
        yield MatchedFile(pattern.text, {})
        return
    if not root.is_dir():
        raise SourceError(f"{root}: expected the folder that holds the raw data; there is no such folder")

    def enters(folder: str) -> bool:
        holes = pattern.match_first_folders(folder.split("/"))
        return holes is not None and not done(holes)

    for folder, files in _folders(root, enters, tally):
        known = pattern.match_folders(folder.split("/") if folder else [])
        if known is not None and done(known):
            known = None
        for name in files:
            holes = None if known is None else pattern.match_file(name, known)
            if holes is not None:
                yield MatchedFile(f"{folder}/{name}" if folder else name, holes)
            else:
                tally[OUTSIDE if image_suffix(name) else NO_IMAGE] += 1


def folders_in(root: Path) -> Iterator[tuple[str, list[str]]]:
    """Yield every folder below `root` (relative, "" for the root itself) with the names of its files, in order."""
    return _folders(root, lambda folder: True, Counter())


def _folders(root: Path, enters: Callable[[str], bool], tally: Counter[str]) -> Iterator[tuple[str, list[str]]]:
    """Yield the root, and the folders below it that `enters` says yes to, with the names of their files, in order."""
    pending: list[tuple[str, tuple[tuple[int, int], ...]]] = [("", ())]
    while pending:
        folder, above = pending.pop()
        if folder and not enters(folder):  # only now: the answer may depend on the files that came before
            continue
        try:
            if is_remote(root):  # objects have no links, and the path of every folder is longer than those above
                identity = -1, len(folder)
            else:
                status = os.stat(os.path.join(root, folder))
                identity = status.st_dev, status.st_ino
            if identity in above:  # a loop of links
                tally[f"{LOOP}: {folder}"] += 1
                continue
            names = names_of(root / folder)
        except OSError as error:
            raise SourceError(f"{root / folder}/: cannot list this folder: {error.strerror}") from error
        tally.update({SPECIAL: names.others} if names.others else {})
        yield folder, _shown(root, folder, names.files, tally)
        start = f"{folder}/" if folder else ""
        inner = reversed(_shown(root, folder, names.folders, tally))
        pending += [(start + one, (*above, identity)) for one in inner]


def _shown(root: Path, folder: str, names: list[str], tally: Counter[str]) -> list[str]:
    """Return the names that are not hidden, sorted. SourceError if two are one name in Unicode."""
    shown = [name for name in names if not name.startswith(".")]
    if len(shown) < len(names):
        tally[HIDDEN] += len(names) - len(shown)
    if all(map(str.isascii, shown)):
        return sorted(shown)
    ordered = sorted(shown, key=lambda name: (key_of(name), name))
    for name, following in pairwise(ordered):
        if key_of(name) == key_of(following):
            raise SourceError(
                f"{root / folder}: {name!a} and {following!a} are one name, {key_of(name)!r}, in "
                "two Unicode spellings; rename or remove one of them"
            )
    return ordered


def image_suffix(name: str) -> bool:
    return os.path.splitext(name)[1].lower() in IMAGE_SUFFIXES


_FOLDERS_CACHED = 4
"""Number of folders whose names are cached: images come folder by folder, and so do their masks."""


def image_places(root: Path, path: str) -> dict[str, str]:
    """Return the path of each image below `root` by its name, if `path` begins with `**/`. SourceError for two of one name."""
    places: dict[str, str] = {}
    for found in walk(root, compile_pattern("**", "image"), Counter()) if path.startswith("**/") else ():
        name = key_of(found.path.rpartition("/")[2])
        if places.setdefault(name, found.path) != found.path:
            raise SourceError(f"{root}: {path!r} may be {places[name]} or {found.path}; rename one, or name the folder")
    return places


class ExpectedFile(NamedTuple):
    """A path relative to the root, and whether the file exists."""

    path: str
    exists: bool


class Companions:
    """Looks up files by pattern below one root. It lists each folder once, which is faster than asking for every file."""

    def __init__(self, root: Path) -> None:
        @lru_cache(_FOLDERS_CACHED)
        def names_in(folder: str) -> frozenset[str]:
            try:
                names = names_of(root / folder)
            except (FileNotFoundError, NotADirectoryError):
                return frozenset()
            except OSError as error:
                raise SourceError(f"{root / folder}: cannot list this folder: {error.strerror}") from error
            return frozenset((*names.files, *names.folders))

        self._names = names_in

    def find(self, pattern: Pattern, holes: Holes) -> ExpectedFile:
        """Return the file of `pattern` with these placeholders, whatever the case of its suffix and its Unicode form.

        If there is none, its path is the one where it is expected. Raises SourceError if two files fit.
        """
        folder, slash, stem = pattern.fill(holes).rpartition("/")
        names = self._names(folder)
        if pattern.suffix is not None and stem + pattern.suffix in names:
            return ExpectedFile(folder + slash + stem + pattern.suffix, True)
        forms = dict.fromkeys((stem, *(unicodedata.normalize(form, stem) for form in ("NFC", "NFD"))))
        endings = IMAGE_SUFFIXES if pattern.suffix is None else (pattern.suffix,)
        spelled = (form + one for form in forms for end in endings for one in (end, end.upper(), end.title()))
        fitting = [name for name in spelled if name in names]
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
