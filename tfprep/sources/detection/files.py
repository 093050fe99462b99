"""Lists the files of a folder that may hold samples or annotations, and finds files whose names correspond."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cached_property
from itertools import chain
from pathlib import Path
from posixpath import join, normpath
from typing import TypeAlias

from tfprep.errors import SourceError
from tfprep.sources.patterns import IMAGE_SUFFIXES, compile_pattern, folders_in, literal, split_form, split_words
from tfprep.sources.raw import open_raw
from tfprep.sources.splits import Fractions

FEW = 64
"""Number of names, lines or rows that decide what a file holds."""
_HEAD_BYTES = 1 << 20
_MOST_FOLDERS, _MOST_PLACES = 500, 8
"""Number of folders whose names are compared with others, and of others with the same name."""
_NO_DATA = frozenset((
    *(".md", ".rst", ".pdf", ".doc", ".docx", ".rtf", ".odt", ".html", ".htm", ".bib", ".tex", ".ppt", ".pptx"),
    *(".py", ".pyc", ".ipynb", ".m", ".sh", ".bat", ".cpp", ".c", ".h", ".java", ".js", ".css", ".toml", ".cfg", ".ini"),
    *(".ds_store", ".log", ".lock", ".url", ".lnk", ".md5", ".sha256", ".torrent", ".bak", ".tmp", ".cache"),
))  # fmt: skip
"""The suffixes of text for people, of programs, and of files that file managers and trainers write."""
_NOTES = re.compile(
    r"(?:.*readme|(?:licen[cs]e|copying|changelog|requirements|citation|attribution|authors|notice)\b).*|tfprep\.json|thumbs\.db"
    r"|[^/]*submission[^/]*\.csv",
    re.IGNORECASE,
)
"""Further names of such files, among them Kaggle's tables that show the form of an answer."""

_ENDING = re.compile(r"(?:\D.*[A-Za-z].*|[A-Za-z].*)?")
"""What the name of a mask may have after that of its image."""

Group: TypeAlias = tuple[str, str]
"""A folder and a suffix, for the files that have both."""
Pairs: TypeAlias = list[tuple[str, str, list[tuple[str, str]]]]
"""Patterns of images, those of other files named after them, and the paths of some images, each with that of its other file."""


@dataclass(frozen=True)
class Files:
    """The data files below a folder: all but hidden files, those with a suffix of `_NO_DATA`, and `_NOTES`."""

    root: Path
    every: Sequence[str]  # the paths of the files, those nearer to the root first
    ignored: Sequence[str] = ()  # the paths of the files that were left out
    image_suffixes: tuple[str, ...] = IMAGE_SUFFIXES  # of what is an image here: in a folder of videos, a video

    @staticmethod
    def of(root: Path, ignore: Sequence[str] = ()) -> Files:
        """List the files, without those whose path fits a pattern of `fnmatch`. SourceError if a folder cannot be listed."""
        every, ignored = list[str](), list[str]()
        for folder, names in folders_in(root, Counter()):
            for path in (join(folder, name) for name in names if may_hold_data(name)):
                (ignored if any(fnmatchcase(path, pattern) for pattern in ignore) else every).append(path)
        return Files(root, sorted(every, key=lambda path: path.count("/")), ignored)

    @cached_property
    def by_suffix(self) -> dict[str, list[str]]:
        """The paths of the files with each suffix, in lower case."""
        paths: dict[str, list[str]] = {}
        for path in self.every:
            paths.setdefault(os.path.splitext(path)[1].lower(), []).append(path)
        return paths

    def paths(self, *suffixes: str) -> list[str]:
        """Return the paths of the files with one of these suffixes."""
        return [path for suffix in suffixes for path in self.by_suffix.get(suffix, ())]

    @cached_property
    def hashes(self) -> frozenset[int]:
        """The `hash` of the path of each file, those that were left out among them."""
        return frozenset(map(hash, (*self.every, *self.ignored)))

    @cached_property
    def images(self) -> dict[Group, list[str]]:
        """The stems of the images in each folder with each suffix."""
        return _groups(self.paths(*self.image_suffixes))

    @cached_property
    def places(self) -> dict[str, tuple[Group, ...]]:
        """Where there are images, by their stems."""
        places: dict[str, tuple[Group, ...]] = {}
        for group, stems in self.images.items():
            own = (group,)
            for stem in stems:
                places[stem] = places[stem] + own if stem in places else own
        return places

    def folders_above(self, name: str) -> list[str]:
        """Return the folders below which there is an image of this path."""
        inner, _, last = f"/{name}".rpartition("/")
        stem, suffix = os.path.splitext(last)
        folders = [f"/{folder}".rstrip("/") for folder, of_image in self.places.get(stem, ()) if of_image == suffix]
        return [folder.removesuffix(inner).strip("/") for folder in folders if folder.endswith(inner)]

    @cached_property
    def pairs(self) -> Pairs:
        """The images that have the names of others, or with one ending more, as masks have."""
        return self._named_after_images(self.images, endings=True)

    def beside(self, notes: Iterable[str]) -> tuple[str, str] | None:
        """Return the patterns of images, and of files that have their names; None if there is not one such pattern of each."""
        pairs = self._named_after_images(_groups(notes), endings=False)
        found = {(os.path.splitext(image)[0], note) for image, note, _ in pairs}
        return found.pop() if len(found) == 1 else None

    def _named_after_images(self, others: Mapping[Group, Sequence[str]], endings: bool) -> Pairs:
        """Return other files with their images, in one folder or in two of one split whose paths differ in one name."""
        found: dict[tuple[str, str], list[tuple[str, str]]] = {}
        for other in [*others][:: 1 + len(others) // _MOST_FOLDERS]:
            some = others[other][:: 1 + len(others[other]) // FEW]
            fitting: dict[tuple[Group, str], list[tuple[str, str]]] = {}
            for name in some:
                for at in range(len(name), 0 if endings else len(name) - 1, -1):
                    places = self.places.get(name[:at], ()) if _ENDING.fullmatch(name[at:]) else ()
                    for image in places[:_MOST_PLACES]:
                        paths = join(image[0], name[:at] + image[1]), join(other[0], name + other[1])
                        fitting.setdefault((image, name[at:]), []).append(paths)
            for (image, end), both in fitting.items():
                apart = {*image[0].split("/")}.difference(other[0].split("/"))
                belong = len(apart) <= 1 and split_words(image[0]) == split_words(other[0])
                if belong and (end or image != other) and 3 * len(both) >= len(some):
                    suffix = image[1].lower() if image[0] == other[0] else ""  # else images may have several
                    form = join(split_form(image[0]), f"*{suffix}")
                    of_other = join(split_form(other[0]), f"*{literal(end)}{other[1].lower()}")
                    found.setdefault((form, of_other), []).extend(both)
        return [(*patterns, both) for patterns, both in found.items()]

    def head(self, path: str) -> bytes:
        """Return the beginning of a file; b"" if it cannot be read."""
        try:
            with open_raw(self.root / path) as file:
                return file.read(_HEAD_BYTES)
        except OSError:
            return b""

    def lines(self, path: str) -> list[str]:
        """Return the first lines of a text file that are not empty; [] if it cannot be read."""
        text = self.head(path).decode("utf-8-sig", "replace")
        return [line.strip() for line in text.splitlines() if line.strip()]

    def image_place(self, names: Sequence[str], path: str, what: str) -> str:
        """Return the folder with nine in ten of the images of these names: that of `path`, or the one with the same words for
        splits, or the nearest to the root. SourceError if there is none; it names images that `what` and that are missing."""
        few = [normpath(name.replace("\\", "/")) for name in names[:FEW]]
        found = [self.folders_above(name) for name in few]
        own, words = path.rpartition("/")[0], split_words(path)
        if places := [place for place, count in Counter(chain(*found)).items() if 10 * count >= 9 * len(few)]:
            return min(places, key=lambda one: (one != own, split_words(one) != words, one.count("/"), one))
        missing = [name for name, folders in zip(few, found, strict=True) if not folders] or few
        rule = f"{len(missing)} of the first {len(few)} images that {what} are missing"
        raise SourceError(f"{path}: {rule}: {', '.join(missing[:3])}")


def may_hold_data(name: str) -> bool:
    """Return True if a file may hold samples or annotations, by its name."""
    return os.path.splitext(name)[1].lower() not in _NO_DATA and not _NOTES.fullmatch(name)


def splits_for(pattern: str, labeled: bool = False, images: Iterable[str] = ()) -> Fractions | str | None:
    """Return the option `splits` of a source: None if its pattern has `{split}`, else a pattern if the folders of the images
    differ in the split only, else shares, of each class if it has some."""
    folders = {split_form(image.rpartition("/")[0]) for image in images}
    if "{split}" in pattern:
        return None
    if len(folders) == 1 and "{split}" in min(folders):
        return f"{folders.pop()}/**"
    return Fractions(train=0.8, val=0.2, stratify="label" if labeled else None)


def splits_of(pattern: str, paths: Iterable[str]) -> tuple[str, ...] | None:
    """Return the splits of files that fit a pattern with `{split}`, which others may fit too; None for other patterns."""
    compiled = compile_pattern(pattern, "init")
    found = (compiled.match_path(path) for path in paths)
    return tuple(sorted({holes["split"] for holes in found if holes})) if "split" in compiled.holes else None


def _groups(paths: Iterable[str]) -> dict[Group, list[str]]:
    """Return the stems of the names in each folder with each suffix."""
    groups: dict[Group, list[str]] = {}
    for path in paths:
        folder, _, name = path.rpartition("/")
        stem, suffix = os.path.splitext(name)
        groups.setdefault((folder, suffix), []).append(stem)
    return groups
