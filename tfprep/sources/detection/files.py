"""Lists the files of a folder that may hold samples or annotations, and what the names of folders and files say."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cached_property
from itertools import islice, permutations, product
from pathlib import Path
from typing import NamedTuple

from tfprep.errors import SourceError
from tfprep.sources.patterns import compile_pattern, folders_in, image_suffix, joint, literal, split_form, split_words
from tfprep.sources.raw import open_raw

FEW = 64
"""Number of names, lines or rows that decide what a file holds."""
_HEAD_BYTES = 1 << 16
_MOST_FOLDERS, _MOST_NAMES = 100, 2000
"""Up to this number of folders of images each is compared with every other; words are looked for in this number of names."""
_WORDS = (re.compile(r"[ _.-]?[A-Za-z][A-Za-z\d]*$"), "*{}"), (re.compile(r"^[A-Za-z]{2,}[ _.-]?"), "{}*")
"""Words at the end and at the beginning of names, and the patterns of these."""
_NO_DATA = frozenset((
    *(".md", ".rst", ".pdf", ".doc", ".docx", ".rtf", ".odt", ".html", ".htm", ".bib", ".tex", ".ppt", ".pptx"),
    *(".py", ".pyc", ".ipynb", ".m", ".sh", ".bat", ".cpp", ".c", ".h", ".java", ".js", ".css", ".toml", ".cfg", ".ini"),
    *(".db", ".ds_store", ".log", ".lock", ".url", ".lnk", ".md5", ".sha256", ".torrent", ".bak", ".tmp", ".cache"),
))  # fmt: skip
"""The suffixes of text for people, of programs, and of files that file managers and trainers write."""
_NOTES = re.compile(
    r"(?:readme|licen[cs]e|copying|changelog|requirements|citation|authors|notice)\b.*|tfprep\.json", re.IGNORECASE
)


@dataclass(frozen=True)
class Files:
    """The data files below a folder: all but hidden files, those with a suffix of `_NO_DATA`, and notes such as README.

    Attributes:
        root: The folder.
        names: The sorted names of the files in each folder with any; "" is the root.
        ignored: The number of files that were left out.
    """

    root: Path
    names: Mapping[str, list[str]]
    ignored: int = 0

    @staticmethod
    def of(root: Path, ignore: Sequence[str] = ()) -> Files:
        """List the files, without those whose path fits a pattern of `fnmatch`. SourceError if a folder cannot be listed."""
        names: dict[str, list[str]] = {}
        ignored = 0
        for folder, of_folder in folders_in(root):
            data = [name for name in of_folder if may_hold_data(name)]
            kept = [name for name in data if not any(fnmatchcase(below(folder, name), one) for one in ignore)]
            names |= {folder: kept} if kept else {}
            ignored += len(data) - len(kept)
        return Files(root, names, ignored)

    @cached_property
    def images(self) -> dict[str, list[str]]:
        """The names of the images in each folder with any."""
        images = {folder: [name for name in names if image_suffix(name)] for folder, names in self.names.items()}
        return {folder: names for folder, names in images.items() if names}

    @cached_property
    def image_names(self) -> frozenset[str]:
        """The names of all images, without their folders."""
        return frozenset(name for names in self.images.values() for name in names)

    @cached_property
    def suffixes(self) -> list[str]:
        """The suffixes of images, as they are spelled."""
        return sorted({os.path.splitext(name)[1] for name in self.image_names})

    def others(self, *suffixes: str) -> list[str]:
        """Return the paths of the files with one of these suffixes, those nearer to the root first."""
        folders = sorted(self.names, key=lambda one: (one.count("/") + bool(one), one))
        return [below(one, name) for one in folders for name in self.names[one] if name.lower().endswith(suffixes)]

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

    def has(self, path: str) -> bool:
        """Return True if there is an image with this path."""
        return image_suffix(path) and os.path.isfile(os.path.join(self.root, path))

    def holds(self, path: str) -> bool:
        """Return True if a file is among these."""
        folder, _, name = path.rpartition("/")
        return name in self.names.get(folder, ())

    def splits_of(self, pattern: str, paths: Sequence[str]) -> tuple[str, ...] | None:
        """Return the splits of the files of a pattern; None if no other file fits the pattern."""
        compiled = compile_pattern(pattern, "init")
        there = [path for path in self.others(compiled.suffix or "") if compiled.match_path(path) is not None]
        if set(there) <= set(paths) or "split" not in compiled.holes:
            return None
        return tuple(sorted({holes["split"] for path in paths if (holes := compiled.match_path(path))}))


def may_hold_data(name: str) -> bool:
    """Return True if a file may hold samples or annotations, by its name."""
    return os.path.splitext(name)[1].lower() not in _NO_DATA and not _NOTES.fullmatch(name)


def below(folder: str, name: str) -> str:
    """Return the path of a file in a folder, relative to the root."""
    return f"{folder}/{name}" if folder else name


def image_place(files: Files, names: Sequence[str], path: str) -> str | None:
    """Return the folder in which nine in ten of the images with these names are; None if there is none.

    Of several it is that of `path`, or the one with the same words for splits, or the nearest to the root.
    """
    few = [name.replace("\\", "/") for name in names[:FEW]]
    above = {folder[: m.start()] for folder in files.images for m in re.finditer("/", folder)}
    own, words = path.rpartition("/")[0], split_words(path)
    ranked = sorted(
        {"", own, *files.images, *above}, key=lambda one: (one != own, split_words(one) != words, one.count("/"), one)
    )
    for place in ranked if few else ():
        missing = 0
        for name in few:
            missing += not files.has(below(place, name))
            if 10 * missing > len(few):
                break
        else:
            return place
    return None


def without_place(files: Files, names: Sequence[str], path: str, what: str) -> SourceError:
    """Return the error for names of images that `image_place` does not find: which are missing beside `path` or at the root."""
    few = [name.replace("\\", "/") for name in names[:FEW]]
    places = (path.rpartition("/")[0], "")
    missing = min(([name for name in few if not files.has(below(place, name))] for place in places), key=len)
    if len(missing) == len(few):
        return SourceError(f"{path}: no folder holds the images that {what}, such as {', '.join(missing[:3])}")
    return SourceError(
        f"{path}: {len(missing)} of the first {len(few)} images that {what} are missing: {', '.join(missing[:3])}"
    )


# --- files whose names correspond -----------------------------------------------------------------------------------


class Series(NamedTuple):
    """Files of one folder whose names differ in one part only.

    Attributes:
        folder: The folder.
        names: The pattern of their names without suffix: `*`, `*_mask`, `img_*`.
        parts: What stands for `*` in each, in the order of the names.
        suffixes: Their suffixes in lower case.
    """

    folder: str
    names: str
    parts: dict[str, None]
    suffixes: set[str]


def beside(files: Files, notes: Sequence[str]) -> tuple[str, str] | None:
    """Return the patterns of images, and of files of annotations that have their names; None if they do not fit together."""
    by_folder: dict[str, list[str]] = {}
    for note in notes:
        folder, _, name = note.rpartition("/")
        by_folder.setdefault(folder, []).append(name)
    found = [(image, other) for image, others in corresponding(files.images, by_folder).items() for other in others]
    return (re.sub(r"\.\w+$", "", found[0][0]), found[0][1]) if len(found) == 1 else None


def corresponding(images: Mapping[str, Sequence[str]], others: Mapping[str, Sequence[str]]) -> dict[str, list[str]]:
    """Return the patterns of files whose names correspond to those of images, by the pattern of the images.

    Args:
        images: The names of images by folder.
        others: Those of the other files.
    """
    grouped: dict[tuple[object, ...], list[tuple[Series, Series]]] = {}
    for image, other in corresponding_series(images, others):
        own, further = (
            "/".join(name for name in one.split("/") if name not in two.split("/"))
            for one, two in permutations((image.folder, other.folder))
        )
        begins = bool(own) and "/" not in further and further.startswith(own)  # trainannot of train
        form = ("", further.removeprefix(own)) if begins else (split_form(own), split_form(further))
        key = (*form, image.folder.count("/"), image.names, other.names)
        grouped.setdefault(key, []).append((image, other))
    patterns: dict[str, list[str]] = {}
    for pairs in grouped.values():
        if (folders := joint([(image.folder, other.folder) for image, other in pairs])) is not None:
            of_image = below(folders[0], pairs[0][0].names + _suffix([image for image, _ in pairs]))
            of_other = below(folders[1], pairs[0][1].names + _suffix([other for _, other in pairs]))
            patterns.setdefault(of_image, []).append(of_other)
    return patterns


def corresponding_series(
    images: Mapping[str, Sequence[str]], others: Mapping[str, Sequence[str]]
) -> Iterator[tuple[Series, Series]]:
    """Yield images, and other files of the nearest folder, or of their own, whose names correspond to them."""
    if len(images) > _MOST_FOLDERS and images is others:
        return
    series_of = {folder: _series(folder, names, len(images)) for folder, names in images.items()}
    for folder, names in others.items():
        of_other = series_of[folder] if images is others else _series(folder, names, len(others))
        nearest: tuple[bool, int] | None = None
        for distance, image in sorted((_apart(image, folder), image) for image in images):
            if nearest is not None and distance > nearest:
                break
            same = images is others and image == folder
            fitting = (pair for pair in product(series_of[image], of_other) if _correspond(*pair, same))
            found = list(fitting if same else islice(fitting, 1))
            nearest = distance if found and not same else nearest
            yield from found


def _apart(folder: str, other: str) -> tuple[bool, int]:
    """Return how far two folders are apart: whether they name different splits, and how many names are in one path only."""
    own, others = (
        [name for name in one.split("/") if name not in two.split("/")] for one, two in permutations((folder, other))
    )
    begins = len(own) == len(others) == 1 and others[0].startswith(own[0])  # trainannot of train
    return split_words(folder) != split_words(other) and not begins, 0 if folder == other else len(own) + len(others)


def _series(folder: str, names: Sequence[str], folders: int) -> list[Series]:
    """Return all files of a folder as one series, and those that share a word at the end or at the beginning of their names."""
    stems = [*map(os.path.splitext, names)]
    series = [Series(folder, "*", {stem: None for stem, _ in stems}, {suffix.lower() for _, suffix in stems})]
    few = stems[:: 1 + len(stems) // _MOST_NAMES]
    whole = len(names) <= 3 < folders  # case_1/image.png and case_1/label.png
    for regex, spelled in _WORDS:
        words = Counter(match[0] for stem, _ in few if (match := regex.search(stem)) and (whole or match[0] != stem))
        for word in (word for word, count in words.items() if 3 * count >= len(few)):
            of_word = Series(folder, spelled.format(literal(word)), {}, set())
            for stem, suffix in stems:
                if (match := regex.search(stem)) and match[0] == word and (whole or word != stem):
                    of_word.parts[stem[: match.start()] + stem[match.end() :]] = None
                    of_word.suffixes.add(suffix.lower())
            series.append(of_word._replace(names=literal(word)) if [*of_word.parts] == [""] else of_word)
    return series


def _correspond(image: Series, other: Series, same: bool) -> bool:
    """Return True if nine in ten of the names of other files say which image they belong to.

    Args:
        image: The images.
        other: The other files.
        same: True for images of one folder, where all of them are among themselves.
    """
    if same and other.names in (image.names, "*"):
        return False
    few = list(islice(other.parts, FEW))
    return 10 * sum(part in image.parts for part in few) >= 9 * len(few) and (same or few != [""])


def _suffix(series: Sequence[Series]) -> str:
    """Return the suffix of files that have the same one, else ""."""
    suffixes = set[str]().union(*(one.suffixes for one in series))
    return next(iter(suffixes)) if len(suffixes) == 1 else ""
