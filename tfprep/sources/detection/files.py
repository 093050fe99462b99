"""Lists the files of a folder that may hold samples or annotations, and finds files whose names correspond."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cached_property
from itertools import islice, permutations, product
from pathlib import Path
from typing import NamedTuple, TypeAlias

from tfprep.errors import SampleError, SourceError
from tfprep.sources.patterns import (
    IMAGE_SUFFIXES,
    columns_of,
    compile_pattern,
    folders_in,
    image_suffix,
    literal,
    split_form,
    split_words,
)
from tfprep.sources.raw import open_raw, read_raw

FEW = 64
"""Number of names, lines or rows that decide what a file holds."""
_HEAD_BYTES = 1 << 16
_MOST_FOLDERS, _EXAMPLES = 100, 3
"""Up to this number of folders of images each is compared with every other."""
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
        image_suffixes: The suffixes of what is an image here: in a folder of videos, a video.
    """

    root: Path
    names: Mapping[str, list[str]]
    ignored: int = 0
    image_suffixes: tuple[str, ...] = IMAGE_SUFFIXES

    @staticmethod
    def of(root: Path, ignore: Sequence[str] = ()) -> Files:
        """List the files, without those whose path fits a pattern of `fnmatch`. SourceError if a folder cannot be listed."""
        names: dict[str, list[str]] = {}
        ignored = 0
        for folder, of_folder in folders_in(root):
            data = [name for name in of_folder if may_hold_data(name)]
            kept = [name for name in data if not any(fnmatchcase(below(folder, name), pattern) for pattern in ignore)]
            names |= {folder: kept} if kept else {}
            ignored += len(data) - len(kept)
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
    def image_names(self) -> frozenset[str]:
        """The names of all images, without their folders."""
        return frozenset(name for names in self.images.values() for name in names)

    @cached_property
    def suffixes(self) -> list[str]:
        """The suffixes of images, as they are spelled."""
        return sorted({os.path.splitext(name)[1] for name in self.image_names})

    @cached_property
    def pairs(self) -> list[Correspondence]:
        """The images whose names correspond to those of others, as those of masks do."""
        return corresponding(self.images, self.images)

    def paths(self, *suffixes: str) -> list[str]:
        """Return the paths of the files with one of these suffixes, or of all; those nearer to the root first."""
        folders = sorted(self.names, key=lambda one: (one.count("/") + bool(one), one))
        return [
            below(folder, name)
            for folder in folders
            for name in self.names[folder]
            if not suffixes or name.lower().endswith(suffixes)
        ]

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

    def image(self, path: str) -> bytes:
        """Return the bytes of an image. Raises SampleError if it cannot be read."""
        if not image_suffix(path):
            raise SampleError(f"{path} is not an image by its suffix")
        return read_raw(self.root, path)

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
        fitting = {path: holes for path in self.paths() if (holes := compiled.match_path(path)) is not None}
        if fitting.keys() <= set(paths) or "split" not in compiled.holes:
            return None
        return tuple(sorted({fitting[path]["split"] for path in paths if path in fitting}))


def may_hold_data(name: str) -> bool:
    """Return True if a file may hold samples or annotations, by its name."""
    return os.path.splitext(name)[1].lower() not in _NO_DATA and not _NOTES.fullmatch(name)


def below(folder: str, name: str) -> str:
    """Return the path of a file in a folder, relative to the root."""
    return f"{folder}/{name}" if folder else name


def image_place(files: Files, names: Sequence[str], path: str, what: str) -> str:
    """Return the folder in which nine in ten of the images with these names are.

    Of several it is that of `path`, or the one with the same words for splits, or the nearest to the root.

    Raises:
        SourceError: There is none; the message names images that `what` and that are missing.
    """
    few = [name.replace("\\", "/") for name in names[:FEW]]
    above = {folder[: m.start()] for folder in files.images for m in re.finditer("/", folder)}
    own, words = path.rpartition("/")[0], split_words(path)
    places = {"", own, *files.images, *above}
    fewest = few
    for place in sorted(places, key=lambda one: (one != own, split_words(one) != words, one.count("/"), one)):
        missing = [name for name in few if not files.has(below(place, name))]
        if few and 10 * len(missing) <= len(few):
            return place
        fewest = min(fewest, missing, key=len)
    if len(fewest) == len(few):
        raise SourceError(f"{path}: no folder holds the images that {what}, such as {', '.join(fewest[:3])}")
    rule = f"{len(fewest)} of the first {len(few)} images that {what} are missing"
    raise SourceError(f"{path}: {rule}: {', '.join(fewest[:3])}")


# --- files whose names correspond -----------------------------------------------------------------------------------


class Correspondence(NamedTuple):
    """Images, and other files whose names say which image they belong to.

    Attributes:
        image, other: The patterns of both.
        names: The patterns of the names without suffix: `*` and `*_mask`.
        folders: The pairs of folders in which they are.
        examples: The paths of a few images, each with that of its other file.
    """

    image: str
    other: str
    names: tuple[str, str]
    folders: list[tuple[str, str]]
    examples: list[tuple[str, str]]


def beside(files: Files, notes: Sequence[str]) -> tuple[str, str] | None:
    """Return the patterns of images, and of files of annotations that have their names; None if they do not fit together."""
    by_folder: dict[str, list[str]] = {}
    for note in notes:
        folder, _, name = note.rpartition("/")
        by_folder.setdefault(folder, []).append(name)
    found = corresponding(files.images, by_folder)
    return (re.sub(r"\.\w+$", "", found[0].image), found[0].other) if len(found) == 1 else None


Series: TypeAlias = Mapping[str, Mapping[str, str]]
"""The names of a folder's files by what differs in them, for each pattern that many of these names fit."""


def corresponding(images: Mapping[str, Sequence[str]], others: Mapping[str, Sequence[str]]) -> list[Correspondence]:
    """Return the patterns of images and of other files whose names correspond.

    The files are in one folder, or in two of one split whose paths differ in one level of the images' path.

    Args:
        images: The names of images by folder.
        others: Those of the other files.
    """
    same = images is others
    series = {folder: _series(names, len(images)) for folder, names in images.items()}
    of_others = series if same else {folder: _series(names, len(others)) for folder, names in others.items()}
    every = images if len(images) <= _MOST_FOLDERS else {}
    grouped: dict[tuple[tuple[str, str, int], str, str], list[tuple[str, str]]] = {}
    for image, other in ((one, two) for two in others for one in (every or images.keys() & {two})):
        if (form := _difference(image, other)) is not None:
            within = same and image == other
            pairs = [
                (one, two)
                for one, two in product(series[image], of_others[other])
                if not (within and two in (one, "*")) and _correspond(series[image][one], of_others[other][two], within)
            ]
            for names in pairs if within else pairs[:1]:
                grouped.setdefault((form, *names), []).append((image, other))
    found = []
    for (_, one, two), folders in grouped.items():
        if (patterns := _joint(folders)) is not None:
            of_images = [(folder, series[folder][one]) for folder, _ in folders]
            of_both = [(folder, of_others[folder][two]) for _, folder in folders]
            examples = [
                (below(folder, own[part]), below(other, name))
                for (folder, own), (other, names) in zip(of_images, of_both, strict=True)
                for part, name in islice(names.items(), FEW)
                if part in own
            ]
            spelled = (below(patterns[0], one + _suffix(of_images)), below(patterns[1], two + _suffix(of_both)))
            found.append(Correspondence(*spelled, (one, two), folders, examples[:_EXAMPLES]))
    return found


def _series(names: Sequence[str], folders: int) -> Series:
    """Return all names of a folder as `*`, and those that share a word at the end or at the beginning.

    Names that are a word only count where each of many folders holds a few files: case_1/image.png and case_1/label.png.
    """
    stems = {os.path.splitext(name)[0]: name for name in names}
    whole = len(names) <= 3 < folders
    series: dict[str, dict[str, str]] = {"*": stems}
    for regex, spelled in _WORDS:
        by_word: dict[str, dict[str, str]] = {}
        for stem, name in stems.items():
            if (word := regex.search(stem)) and (whole or word[0] != stem):
                by_word.setdefault(word[0], {})[stem[: word.start()] + stem[word.end() :]] = name
        for common, parts in by_word.items():
            if 3 * len(parts) >= len(stems):
                series[literal(common) if [*parts] == [""] else spelled.format(literal(common))] = parts
    return series


def _correspond(images: Mapping[str, str], others: Mapping[str, str], within: bool) -> bool:
    """Return True if nine in ten of the names of other files say which image they belong to."""
    few = [*islice(others, FEW)]
    return 10 * sum(part in images for part in few) >= 9 * len(few) and (within or few != [""])


def _difference(image: str, other: str) -> tuple[str, str, int] | None:
    """Return how the path of a folder differs from that of images, and their depth; None if it differs in too much."""
    own, further = (
        [name for name in one.split("/") if name not in two.split("/")] for one, two in permutations((image, other))
    )
    if len(own) > 1 or split_words(image) != split_words(other):
        return None
    return split_form("/".join(own)), split_form("/".join(further)), image.count("/")


def _joint(pairs: Sequence[tuple[str, str]]) -> tuple[str, str] | None:
    """Return patterns of folders of images, and of folders of what belongs to them; None if no pattern fits all pairs.

    Levels in which the images' folders differ, other than by the split, become placeholders `{part1}`, `{part2}`, ...
    """
    images, others = (columns_of(folders) for folders in zip(*pairs, strict=True))
    if images is None or others is None:
        return None
    forms = [form or f"{{part{place}}}" for place, (form, _) in enumerate(images, 1)]
    spelled = []
    for form, names in others:
        alike = [own for own, (_, of_image) in zip(forms, images, strict=True) if names == of_image]
        spelled.append(form or "".join(alike[:1]))
    return ("/".join(forms), "/".join(spelled)) if all(spelled) else None


def _suffix(series: Sequence[tuple[str, Mapping[str, str]]]) -> str:
    """Return the suffix of files that have the same one, else ""."""
    suffixes = {os.path.splitext(name)[1].lower() for _, names in series for name in names.values()}
    return suffixes.pop() if len(suffixes) == 1 else ""
