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
from typing import NamedTuple, TypeVar

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


class _State(NamedTuple):
    """A folder that matches the first `parts` folders of the pattern, with these placeholders."""

    parts: int
    holes: Holes


S = TypeVar("S")


def walk(
    root: Path, pattern: Pattern, tally: Counter[str], done: Callable[[Holes], bool] = lambda holes: False
) -> Iterator[MatchedFile]:
    """Yield every file that fits `pattern`, in order. A folder is not entered if its placeholders are `done`."""
    if not pattern.holes and not can_list(root):
        yield MatchedFile(pattern.text, {})
        return
    if not root.is_dir():
        raise SourceError(f"{root}: expected the folder that holds the raw data; there is no such folder")

    def inside(states: tuple[_State, ...], name: str) -> tuple[_State, ...]:
        after = (state for before in states for state in _step(pattern, before, name))
        return tuple(state for state in after if not done(state.holes))

    first = tuple(state for state in _closure(pattern, _State(0, {})) if not done(state.holes))
    for folder, files, states in _folders(root, first, inside, tally):
        yield from _fitting(folder, files, pattern, states, tally)


def folders_in(root: Path) -> Iterator[tuple[str, list[str]]]:
    """Yield every folder below `root` (relative, "" for the root itself) with the names of its files, in order."""
    for folder, files, _ in _folders(root, True, lambda state, name: True, Counter()):
        yield folder.rstrip("/"), files


def _folders(
    root: Path, first: S, inside: Callable[[S, str], S], tally: Counter[str]
) -> Iterator[tuple[str, list[str], S]]:
    """Yield the folders with the names of their files, in order, and what `inside` makes of what is known of the folder above.

    A folder of which that is empty is not entered.
    """
    pending: list[tuple[str, str, S, tuple[tuple[int, int], ...]]] = [("", "", first, ())]
    while pending:
        folder, name, known, above = pending.pop()
        known = inside(known, name) if name else known  # only now: what is done depends on the files that came before
        if not known:
            continue
        identity = _identity(root, folder)
        if identity in above:  # a loop of links
            tally[f"{LOOP}: {folder.rstrip('/')}"] += 1
            continue
        files, folders = names_in(root, folder, tally)
        yield folder, files, known
        pending += [(f"{folder}{one}/", one, known, (*above, identity)) for one in reversed(folders)]


def names_in(root: Path, folder: str, tally: Counter[str]) -> tuple[list[str], list[str]]:
    """Return the names of the files and of the folders in `root/folder`, sorted. A dangling link counts as a file."""
    try:
        names = names_of(root / folder)
    except OSError as error:
        raise SourceError(f"{root / folder}/: cannot list this folder: {error.strerror}") from error
    if names.others:
        tally[SPECIAL] += names.others
    return _shown(root, folder, names.files, tally), _shown(root, folder, names.folders, tally)


def _shown(root: Path, folder: str, names: list[str], tally: Counter[str]) -> list[str]:
    shown = [name for name in names if not name.startswith(".")]
    if len(shown) < len(names):
        tally[HIDDEN] += len(names) - len(shown)
    return _sorted(root, folder, shown)


def image_suffix(name: str) -> bool:
    return os.path.splitext(name)[1].lower() in IMAGE_SUFFIXES


def _sorted(root: Path, folder: str, names: list[str]) -> list[str]:
    if all(map(str.isascii, names)):
        return sorted(names)
    ordered = sorted(names, key=lambda name: (key_of(name), name))
    for name, following in pairwise(ordered):
        if key_of(name) == key_of(following):
            raise SourceError(
                f"{root / folder}: {name!a} and {following!a} are one name, {key_of(name)!r}, in "
                "two Unicode spellings; rename or remove one of them"
            )
    return ordered


def _fitting(
    folder: str, names: list[str], pattern: Pattern, states: tuple[_State, ...], tally: Counter[str]
) -> Iterator[MatchedFile]:
    state = next((s for s in states if s.parts == len(pattern.folders)), None)
    for name in names:
        holes = None if state is None else pattern.match_file(name, state.holes)
        if holes is not None:
            yield MatchedFile(folder + name, holes)
        else:
            tally[OUTSIDE if image_suffix(name) else NO_IMAGE] += 1


def _step(pattern: Pattern, state: _State, name: str) -> tuple[_State, ...]:
    if state.parts == len(pattern.folders):
        return ()
    part = pattern.folders[state.parts]
    if part.any_depth:
        deeper = state.holes.get("__", "") + name + "/"
        return _closure(pattern, _State(state.parts, {**state.holes, "__": deeper}))
    holes = part.match(name, state.holes)
    return () if holes is None else _closure(pattern, _State(state.parts + 1, holes))


def _closure(pattern: Pattern, state: _State) -> tuple[_State, ...]:
    """The state; if a `**` comes next, also the state in which it stands for no further folder."""
    if state.parts < len(pattern.folders) and pattern.folders[state.parts].any_depth:
        holes = {"__": "", **state.holes}
        return (_State(state.parts, holes), _State(state.parts + 1, holes))
    return (state,)


def _identity(root: Path, folder: str) -> tuple[int, int]:
    """Device and inode, to recognise a loop of links."""
    if is_remote(root):
        return -1, len(folder)  # objects have no links, and the path of every folder is longer than those above
    path = os.path.join(root, folder)
    try:
        status = os.stat(path)
    except OSError as error:
        raise SourceError(f"{path}: cannot list this folder: {error.strerror}") from error
    return status.st_dev, status.st_ino


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
        self._names: Callable[[str], frozenset[str]] = lru_cache(_FOLDERS_CACHED)(
            lambda folder: _folder_names(root, folder)
        )

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


def _folder_names(root: Path, folder: str) -> frozenset[str]:
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
