"""Lists the files of a folder of raw data, and says which of them a source does not read."""

from __future__ import annotations

import os
import re
from array import array
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import numpy as np

from tfprep.fields import Array
from tfprep.sources.patterns import IMAGE_SUFFIXES, Pattern, folders_in, image_suffix
from tfprep.sources.raw import open_raw

NAMES_KEPT = 64
"""Number of names of a folder that decide which files belong together."""
_NO_ANNOTATIONS = frozenset((
    *(".md", ".rst", ".pdf", ".doc", ".docx", ".rtf", ".odt", ".html", ".htm", ".bib", ".tex", ".ppt", ".pptx"),
    *(".py", ".pyc", ".ipynb", ".m", ".sh", ".bat", ".cpp", ".c", ".h", ".java", ".js", ".css", ".toml", ".cfg", ".ini"),
    *(".db", ".ds_store", ".log", ".lock", ".url", ".lnk", ".md5", ".sha256", ".torrent", ".bak", ".tmp"),
))  # fmt: skip
"""The suffixes of text for people, of programs and of the files of file managers. All others may hold labels or samples."""
NO_LABELS = re.compile(r"sample_?submission|submission", re.IGNORECASE)
"""Tables of Kaggle that show the form of an answer: their labels are not those of the images."""
_NOTES = re.compile(r"(?:readme|licen[cs]e|copying|changelog|requirements|citation|authors|notice)\b.*", re.IGNORECASE)
_NUMBERED = re.compile(r"(?:\d+[ ._-]+)?(.*?[^\W\d_])[ ._-]*(?:\(?\d+\)?)?")
"""Names such as `cat.0.jpg`, `dog 1.jpg` and `7_frog.png`."""
_LINES = {
    "KITTI": re.compile(r"[A-Za-z_]+ -?[\d.]+ -?\d+(?: -?[\d.]+){8,13}"),
    "DOTA": re.compile(r"(?:-?[\d.]+ ){8}[A-Za-z]\S* \d"),
    "WIDER FACE": re.compile(r"(?:\d+ ){9}\d+"),
    "VisDrone": re.compile(r"\d+,\d+,\d+,\d+,[01],\d+,-?\d+,-?\d+,?"),
}
"""An object in the labels of these, by the papers' development kits."""
_MOST_LINES, _FEW = 12, 3
_TEXTS = frozenset((".json", ".jsonl", ".ndjson", ".xml", ".txt", ".csv", ".tsv", ".lst", ".geojson", ""))
_IMAGE_NAME = re.compile(rf"[^\s\"',;:<>]+(?:{'|'.join(map(re.escape, IMAGE_SUFFIXES))})\b", re.IGNORECASE)


@dataclass(frozen=True)
class Inventory:
    """The files below a folder. Folders are relative to it; "" is the folder itself.

    Attributes:
        root: The folder.
        images: Each folder with images, and the number of its images by suffix.
        names: Each folder with images, and its first `NAMES_KEPT` images, sorted.
        others: Each folder with files that may hold annotations, and the first `NAMES_KEPT` of them by suffix, sorted.
        words: Each folder all of whose images are called by a word and a number, and how many images have each word.
    """

    root: Path
    images: Mapping[str, Counter[str]]
    names: Mapping[str, list[str]]
    others: Mapping[str, Mapping[str, list[str]]]
    words: Mapping[str, Counter[str]] = field(default_factory=dict)

    @staticmethod
    def of(root: Path) -> Inventory:
        """List the files. SourceError if a folder cannot be listed."""
        images: dict[str, Counter[str]] = {}
        names: dict[str, list[str]] = {}
        words: dict[str, Counter[str]] = {}
        others: dict[str, dict[str, list[str]]] = {}
        for folder, files in folders_in(root):
            pictures = [name for name in files if image_suffix(name)]
            if pictures:
                images[folder] = Counter(map(suffix_of, pictures))
                names[folder] = pictures[:NAMES_KEPT]
                numbered = [_NUMBERED.fullmatch(os.path.splitext(name)[0]) for name in pictures]
                words[folder] = Counter() if None in numbered else Counter(match[1] for match in numbered if match)
            for name in files:
                if may_annotate(name):
                    few = others.setdefault(folder, {}).setdefault(suffix_of(name), [])
                    if len(few) < NAMES_KEPT:
                        few.append(name)
        return Inventory(root, images, names, others, words)

    def files(self, *suffixes: str) -> Iterator[str]:
        """Yield paths of the files that are kept by name, with one of these suffixes, those nearer to the root first."""
        for folder in sorted(self.others, key=lambda one: (one.count("/") + bool(one), one)):
            for suffix in suffixes:
                yield from (below(folder, name) for name in self.others[folder].get(suffix, ()))

    @cached_property
    def suffixes(self) -> list[str]:
        """The suffixes of images."""
        return list(dict.fromkeys(suffix for of_folder in self.images.values() for suffix in of_folder))

    def about_images(self, beside: bool = False) -> str:
        """Say which files name images, or are called like them, though no source reads them; "" if there are none.

        Args:
            beside: Look only for files that are called like the images in their own folder.
        """
        stems = {os.path.splitext(name)[0] for names in self.names.values() for name in names}
        for folder, by_suffix in self.others.items():
            if beside:
                stems = {os.path.splitext(name)[0] for name in self.names.get(folder, ())}
            for suffix, names in by_suffix.items():
                of_images = [name for name in names if _called_like(name, stems)]
                named = of_images if 2 * len(of_images) > len(names) else [
                    name
                    for name in names[: 0 if beside else _MOST_LINES]
                    if suffix in _TEXTS and not NO_LABELS.search(name) and self._names_images(below(folder, name))
                ]  # fmt: skip
                if named:
                    path = below(folder, named[0])
                    lines = [line.strip() for line in self.text(path).splitlines()][:_MOST_LINES]
                    known = (name for name, form in _LINES.items() if any(map(form.fullmatch, lines)))
                    form = next((f"the format of {name}" for name in known), "their format")
                    what = "are called like images" if named is of_images else "name images"
                    return (
                        f"{self.root}: files such as {path} {what}, and tfprep does not read {form}; "
                        "convert boxes to COCO (the package labelformat reads many formats), and labels to a CSV file with a row "
                        "for each image"
                    )
        return ""

    def text(self, path: str) -> str:
        """The beginning of a file; "" if it cannot be read."""
        try:
            with open_raw(self.root / path) as file:
                data = file.read(1 << 14)
        except OSError:
            return ""
        return data.decode("utf-16" if data[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8", "replace")

    def _names_images(self, path: str) -> bool:
        """Tell whether half of the first lines or file names in a text are names of images that exist."""
        text = self.text(path).replace("\\", "/")
        image_names = [one.rpartition("/")[2] for one in _IMAGE_NAME.findall(text)][:_MOST_LINES]
        words = [
            re.split(r"[\s,;]", line.strip())[0].rpartition("/")[2] for line in text.splitlines()[1 : _MOST_LINES + 1]
        ]
        stems = {
            form: {os.path.splitext(n)[0] if form else n for f in self.names.values() for n in f} for form in (0, 1)
        }
        folders = list(self.images)[:NAMES_KEPT]
        there = [
            name in stems[0] or any(os.path.isfile(os.path.join(self.root, below(folder, name))) for folder in folders)
            for name in image_names
        ]
        begun = {re.split("[_.-]", stem)[0] for stem in stems[1]}  # 1abc_red.png
        there = there or [word in stems[1] or word in begun for word in words if len(word) > 2]
        return bool(there) and 2 * sum(there) >= len(there)

    def unread(self, used: Array, annotations: Sequence[Pattern]) -> list[str]:
        """Say which files the recipe does not read, one line a folder and suffix.

        Args:
            used: What `path_hash` returns for each file that a sample is made of, int64, sorted.
            annotations: The patterns of further files that the source reads.
        """
        lines = []
        for folder, files in folders_in(self.root):
            paths = [below(folder, name) for name in files if image_suffix(name) or may_annotate(name)]
            hashes = np.array(array("q", map(path_hash, paths)), np.int64)
            places = np.searchsorted(used, hashes)
            read = np.append(used, 0)[places] == hashes if len(used) else np.zeros(len(paths), bool)
            left = [
                path
                for path, known in zip(paths, read.tolist(), strict=True)
                if not known and all(pattern.match_path(path) is None for pattern in annotations)
            ]
            for suffix, count in sorted(Counter(map(suffix_of, left)).items()):
                first = next(path for path in left if suffix_of(path) == suffix)
                kind = f"{suffix} files" if suffix else "files without a suffix"
                several = f"{folder or '.'}/ holds {count} {kind} that this recipe does not read"
                few = f"this recipe does not read {', '.join(path for path in left if suffix_of(path) == suffix)}"
                lines.append(few if count == 1 or (count <= _FEW and not image_suffix(first)) else several)
        more = len(lines) - _MOST_LINES
        return [
            *lines[:_MOST_LINES],
            *([f"{more} more folders hold files that this recipe does not read"] if more > 0 else []),
        ]


def _called_like(name: str, stems: Set[str]) -> bool:
    """Tell whether a file has the name of an image: `1.txt`, `gt_1.txt`, `1.jpg.cat`."""
    stem = re.sub("^gt_", "", os.path.splitext(name)[0], flags=re.IGNORECASE)
    return stem in stems or bool(image_suffix(stem) and os.path.splitext(stem)[0] in stems)


def below(folder: str, name: str) -> str:
    """Return the path of a file in a folder that is relative to the root."""
    return f"{folder}/{name}" if folder else name


def suffix_of(name: str) -> str:
    """Return the suffix in lower case, with its dot."""
    return os.path.splitext(name)[1].lower()


def may_annotate(name: str) -> bool:
    """Tell whether a file that is no image may hold annotations or samples, by its name."""
    return not image_suffix(name) and suffix_of(name) not in _NO_ANNOTATIONS and not _NOTES.fullmatch(name)


def path_hash(path: str) -> int:
    """Return 64 bits that stand for a path in this process."""
    return hash(path)
