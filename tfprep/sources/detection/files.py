"""Lists the files of a folder that may hold samples or annotations, and finds files whose names correspond."""

from __future__ import annotations

import os
import posixpath
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import cached_property
from itertools import islice, product
from pathlib import Path
from typing import NamedTuple

from tfprep.errors import SourceError
from tfprep.sources.patterns import IMAGE_SUFFIXES, compile_pattern, folders_in, literal, split_form, split_words
from tfprep.sources.raw import open_raw
from tfprep.sources.splits import Fractions

FRACTIONS = Fractions(train=0.8, val=0.2)
"""Shares of data that comes without splits."""
FEW = 64
"""Number of names, lines or rows that decide what a file holds."""
_HEAD_BYTES = 1 << 16
_MOST_FOLDERS, _NAMES_SEEN = 100, 5000
"""Up to this number of folders of images, each is compared with every other; the number of names that show their words."""
_NO_DATA = frozenset((
    *(".md", ".rst", ".pdf", ".doc", ".docx", ".rtf", ".odt", ".html", ".htm", ".bib", ".tex", ".ppt", ".pptx"),
    *(".py", ".pyc", ".ipynb", ".m", ".sh", ".bat", ".cpp", ".c", ".h", ".java", ".js", ".css", ".toml", ".cfg", ".ini"),
    *(".ds_store", ".log", ".lock", ".url", ".lnk", ".md5", ".sha256", ".torrent", ".bak", ".tmp", ".cache"),
))  # fmt: skip
"""The suffixes of text for people, of programs, and of files that file managers and trainers write."""
_NOTES = re.compile(
    r"(?:.*readme|(?:licen[cs]e|copying|changelog|requirements|citation|attribution|authors|notice)\b).*|tfprep\.json|thumbs\.db",
    re.IGNORECASE,
)
ANSWERS = re.compile(r"(?:.*/)?[^/]*submission[^/]*\.csv", re.IGNORECASE)
"""Tables of Kaggle that show the form of an answer."""


@dataclass(frozen=True)
class Files:
    """The data files below a folder: all but hidden files, those with a suffix of `_NO_DATA`, and `_NOTES`."""

    root: Path
    names: Mapping[str, list[str]]  # the sorted names of the files in each folder with any; "" is the root
    ignored: Sequence[str] = ()  # the paths of the files that were left out
    image_suffixes: tuple[str, ...] = IMAGE_SUFFIXES  # of what is an image here: in a folder of videos, a video

    @staticmethod
    def of(root: Path, ignore: Sequence[str] = ()) -> Files:
        """List the files, without those whose path fits a pattern of `fnmatch`. SourceError if a folder cannot be listed."""
        names: dict[str, list[str]] = {}
        ignored: list[str] = []
        for folder, of_folder in folders_in(root):
            data = [name for name in of_folder if may_hold_data(name)]
            kept = [name for name in data if not any(fnmatchcase(below(folder, name), pattern) for pattern in ignore)]
            names |= {folder: kept} if kept else {}
            ignored += [below(folder, name) for name in {*data}.difference(kept)] if ignore else []
        return Files(root, names, ignored)

    @cached_property
    def images(self) -> dict[str, list[str]]:
        """The names of the images in each folder with any."""
        images = {
            folder: [name for name in names if os.path.splitext(name)[1].lower() in self.image_suffixes]
            for folder, names in self.names.items()
        }
        return {folder: names for folder, names in images.items() if names}

    @cached_property
    def image_folders(self) -> dict[str, tuple[str, ...]]:
        """The folders of the images of each name."""
        folders: dict[str, tuple[str, ...]] = {}
        for folder, names in self.images.items():
            own = (folder,)
            for name in names:
                folders[name] = folders[name] + own if name in folders else own
        return folders

    @cached_property
    def pairs(self) -> list[Pair]:
        """The images whose names correspond to those of others, as those of masks do."""
        return corresponding(self.images, self.images)

    @cached_property
    def hashes(self) -> frozenset[int]:
        """The `hash` of the path of each file, those that were left out among them."""
        return frozenset(map(hash, (*self.every, *self.ignored)))

    @cached_property
    def suffixes(self) -> frozenset[str]:
        """The last suffixes of all files, in lower case."""
        return frozenset(os.path.splitext(name)[1].lower() for names in self.names.values() for name in names)

    @cached_property
    def every(self) -> list[str]:
        """The paths of all files, those nearer to the root first."""
        folders = sorted(self.names, key=lambda folder: (folder.count("/") + bool(folder), folder))
        return [below(folder, name) for folder in folders for name in self.names[folder]]

    def paths(self, *suffixes: str) -> list[str]:
        """Return the paths of the files with one of these suffixes."""
        if self.suffixes.isdisjoint(f".{suffix.rpartition('.')[2]}" for suffix in suffixes):
            return []
        return [path for path in self.every if path.lower().endswith(suffixes)]

    def head(self, path: str) -> bytes:
        """Return the beginning and the end of a file; b"" if it cannot be read."""
        try:
            with open_raw(self.root / path) as file:
                start = file.read(_HEAD_BYTES)
                file.seek(max(len(start), os.fstat(file.fileno()).st_size - _HEAD_BYTES))
                return start + file.read(_HEAD_BYTES)
        except OSError:
            return b""

    def lines(self, path: str) -> list[str]:
        """Return the first lines of a text file that are not empty; [] if it cannot be read."""
        data = self.head(path)
        text = data.decode("utf-16" if data[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8-sig", "replace")
        return [line.strip() for line in text.splitlines() if line.strip()]


def may_hold_data(name: str) -> bool:
    """Return True if a file may hold samples or annotations, by its name."""
    return os.path.splitext(name)[1].lower() not in _NO_DATA and not _NOTES.fullmatch(name)


def below(folder: str, name: str) -> str:
    """Return the path of a file in a folder, relative to the root."""
    return f"{folder}/{name}" if folder else name


def splits_for(pattern: str, labeled: bool = False) -> Fractions | None:
    """Return the option `splits` of a source: None if its pattern gives the splits, else shares, of each class if it has some."""
    if "{split}" in pattern:
        return None
    return replace(FRACTIONS, stratify="label") if labeled else FRACTIONS


def splits_of(
    files: Files, pattern: str, paths: Iterable[str], images: Iterable[str]
) -> Fractions | str | tuple[str, ...] | None:
    """Return the splits of these files, by the `{split}` of their pattern, else by the folders of their images, else fractions.

    None if they are all splits of the pattern's files: the source then reads a split that comes later.
    """
    if "{split}" in pattern:
        compiled = compile_pattern(pattern, "init")
        taken, there = (
            {holes["split"] for path in some if (holes := compiled.match_path(path)) is not None}
            for some in (paths, (*files.every, *files.ignored))
        )
        return None if taken == there else tuple(sorted(taken))
    folders = {split_form(image.rpartition("/")[0]) for image in images}
    return f"{folders.pop()}/**" if len(folders) == 1 and "{split}" in min(folders) else FRACTIONS


def image_place(files: Files, names: Sequence[str], path: str, what: str) -> str:
    """Return the folder in which nine in ten of the images with these names are.

    Of several it is that of `path`, or the one with the same words for splits, or the nearest to the root.

    Raises:
        SourceError: There is none; the message names images that `what` and that are missing.
    """
    few = [posixpath.normpath(name.replace("\\", "/")) for name in names[:FEW]]
    found: dict[str, list[str]] = {}
    for name in few:
        inner, _, last = f"/{name}".rpartition("/")
        of_name = (f"/{folder}" if folder else "" for folder in files.image_folders.get(last, ()))
        for place in (folder.removesuffix(inner).strip("/") for folder in of_name if folder.endswith(inner)):
            found.setdefault(place, []).append(name)
    own, words = path.rpartition("/")[0], split_words(path)
    places = [place for place, there in found.items() if 10 * len(there) >= 9 * len(few)]
    if places:
        return min(places, key=lambda one: (one != own, split_words(one) != words, one.count("/"), one))
    missing = sorted({*few}.difference(*sorted(found.values(), key=len)[-1:]))
    rule = f"{len(missing)} of the first {len(few)} images that {what} are missing"
    raise SourceError(f"{path}: {rule}: {', '.join(missing[:3])}")


# --- files whose names correspond -----------------------------------------------------------------------------------


class Pair(NamedTuple):
    """Images, and other files whose names say which image they belong to."""

    image: str  # the pattern of the images
    other: str  # the pattern of the other files
    names: tuple[str, str]  # the patterns of both names without suffix: `*` and `*_mask`
    files: list[tuple[str, str]]  # the paths of some images, each with that of its other file


def beside(files: Files, notes: Sequence[str]) -> tuple[str, str] | None:
    """Return the patterns of images, and of files of annotations that have their names; None if they do not fit together."""
    by_folder: dict[str, list[str]] = {}
    for note in notes:
        folder, _, name = note.rpartition("/")
        by_folder.setdefault(folder, []).append(name)
    pairs = corresponding(files.images, by_folder) if notes else []
    found = {(re.sub(r"\.\w+$", "", pair.image), pair.other) for pair in pairs}
    return found.pop() if len(found) == 1 else None


def corresponding(images: Mapping[str, Sequence[str]], others: Mapping[str, Sequence[str]]) -> list[Pair]:
    """Return the patterns of images and of other files, given by folder, whose names correspond.

    The files are in one folder, or in two of one split whose paths differ in one name. A pattern has the files of all splits.
    """
    series = {folder: _series(names) for folder, names in images.items()}
    of_others = series if images is others else {folder: _series(names) for folder, names in others.items()}
    found: dict[tuple[str, str, str, str], list[tuple[str, str]]] = {}
    for other in of_others:
        compared = images if len(images) <= _MOST_FOLDERS else dict.fromkeys([next(iter(images)), other])
        for image in compared:
            differing = {*image.split("/")}.difference(other.split("/"))
            if image not in images or len(differing) > 1 or split_words(image) != split_words(other):
                continue
            done = set[tuple[int, int]]()
            for own, further in product(series[image], of_others[other]):
                groups = id(own.names), id(further.names)
                within = own.names is further.names
                if groups in done:
                    continue
                few = [*islice(further.parts(), FEW)]
                names = [(own.names.get(own.filled(part)), further.names[further.filled(part)]) for part in few]
                both = [(below(image, name), below(other, of_other)) for name, of_other in names if name]
                one, two = own.filled("*"), further.filled("*")
                if not both or 3 * len(both) < len(few) or (within and two in (one, "*")):
                    continue
                patterns = (
                    below(split_form(image), literal(one) + own.suffix),
                    below(split_form(other), literal(two) + further.suffix),
                )
                found.setdefault((*patterns, one, two), []).extend(both)
                done |= set() if within else {groups}
    return [Pair(image, other, (one, two), both) for (image, other, one, two), both in found.items()]


@dataclass(frozen=True)
class _Series:
    """Names of a folder by their stems, and the beginning and the end that some of them have."""

    names: Mapping[str, str]
    start: str = ""
    end: str = ""

    def filled(self, part: str) -> str:
        """Return the stem in which this part differs from others."""
        return f"{self.start}{part}{self.end}"

    def parts(self) -> Iterator[str]:
        """Yield what differs in the stems with this beginning and end."""
        for stem in self.names:
            if stem.startswith(self.start) and stem.endswith(self.end) and len(stem) > len(self.start + self.end):
                yield stem[len(self.start) : len(stem) - len(self.end)]

    @cached_property
    def suffix(self) -> str:
        """The suffix of these files, if it is the same, else ""."""
        suffixes = {os.path.splitext(self.names[self.filled(part)])[1].lower() for part in self.parts()}
        return suffixes.pop() if len(suffixes) == 1 else ""


_ENDS = (
    *(re.compile(rf"(?:[ _.@-](?=\d*[A-Za-z])[A-Za-z\d]{{1,16}}){{{count}}}$") for count in (3, 2, 1)),
    re.compile(r"[ _.-]?[A-Za-z][A-Za-z\d]*$"),
)
_START = re.compile(r"^[A-Za-z]{2,}[ _.-]?")
"""Words at the end and at the beginning of names."""


def _series(names: Sequence[str]) -> list[_Series]:
    """Return all names of a folder, and those with a beginning or end that a third of them have; by suffix if stems repeat."""
    stems = {os.path.splitext(name)[0]: name for name in names}
    if 5 * len(stems) < 4 * len(names):  # such as `1.jpg` and its mask `1.png`
        ends = dict.fromkeys(os.path.splitext(name)[1] for name in names)
        return [one for end in ends for one in _series([name for name in names if os.path.splitext(name)[1] == end])]
    some = [*islice(stems, 0, None, 1 + len(stems) // _NAMES_SEEN)]
    affixes = [("", "")]
    for regex in (*_ENDS, _START):
        words = Counter(word[0] for stem in some if (word := regex.search(stem)) and word[0] != stem)
        frequent = [word for word, count in words.items() if 3 * count >= len(some)]
        affixes += [(word, "") if regex is _START else ("", word) for word in frequent]
    return [_Series(stems, *affix) for affix in dict.fromkeys(affixes)]
