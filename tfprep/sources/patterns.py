"""Patterns of paths: `{split}/{label}/**`, `{split}annot/*.png`, `images/{scene}_{frame}.jpg`, and the files that fit them.

- `{name}` stands for a part of one folder or file name: at least one character, never a slash. `{split}` gives the sample's split
  and `{label}` its class. Any other name only connects the patterns of several fields.
- `*` is such a part without a name: the first `*` of one pattern corresponds to the first `*` of another.
- `**` stands for any number of nested folders, including none; at the end it means all files below.
- `{{` and `}}` stand for braces.
- If the last name has no suffix (`images/*`), it matches the files with a suffix of `IMAGE_SUFFIXES`.

The case of suffixes does not matter; the case of all other text does. If a name can be divided in several ways, the leftmost
placeholder takes as much as it can: `{a}_{b}` divides `x_y_z` into `x_y` and `z`.
"""

from __future__ import annotations

import itertools
import os
import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import TypeAlias

from tfprep.errors import RecipeError, SourceError
from tfprep.sources.raw import check_local, names_of
from tfprep.sources.source import key_of

IMAGE_SUFFIXES: tuple[str, ...] = (
    *(".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".bmp", ".dib", ".gif", ".tif", ".tiff"),
    *(".webp", ".avif", ".jp2", ".ppm", ".pgm", ".pbm", ".pnm", ".dcm"),
)
"""The suffixes of images, in lower case, for a pattern that names no suffix."""

Holes: TypeAlias = Mapping[str, str]
"""Values of placeholders; `*` and `**` go by `_1`, `_2`, … and `__`."""

_BRACES = re.compile(r"\{\{|\}\}|\{([^{}]+)\}|[^{}]+|[{}]")
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]*")
_STARS = re.compile(r"(\*\*|\*)")
_DEEP = "__"


@dataclass(frozen=True)
class Template:
    """Text with placeholders: one folder of a pattern or its file name without suffix, or a whole path (`images/{id}.jpg`)."""

    tokens: tuple[tuple[bool, str], ...]
    """(is a placeholder, its name or the literal text)"""

    @staticmethod
    def parse(text: str) -> Template:
        """Divide text at its placeholders in braces; `{{` and `}}` stand for braces, and so do braces without a partner."""
        tokens: list[tuple[bool, str]] = []
        for brace in _BRACES.finditer(text):
            if brace[1] is not None:
                tokens.append((True, brace[1]))
                continue
            piece = brace[0][0] if brace[0] in ("{{", "}}") else brace[0]
            if tokens and not tokens[-1][0]:
                piece = tokens.pop()[1] + piece
            tokens.append((False, piece))
        return Template(tuple(tokens))

    @cached_property
    def holes(self) -> list[str]:
        """The names of the placeholders."""
        return [text for hole, text in self.tokens if hole]

    @cached_property
    def any_depth(self) -> bool:
        return self.holes == [_DEEP]

    @cached_property
    def _regex(self) -> re.Pattern[str]:
        seen: set[str] = set()
        parts = []
        for hole, text in self.tokens:
            parts.append(re.escape(text) if not hole else f"(?P={text})" if text in seen else f"(?P<{text}>[^/]+)")
            seen.update([text] if hole else [])
        return re.compile("".join(parts), re.DOTALL)

    def fill(self, value: Callable[[str], str]) -> str:
        """Return the text with the value of each placeholder in its place."""
        return "".join([value(text) if hole else text for hole, text in self.tokens])

    def match(self, name: str, known: Holes) -> Holes | None:
        """Return `known` with what `name` adds to it; None if it does not fit."""
        matched = self._regex.fullmatch(name)
        if matched is None:
            return None
        new = matched.groupdict()
        if not new:
            return known
        holes = {**known, **new}
        return holes if known.items() <= holes.items() else None  # None: a placeholder stands for two names


@dataclass(frozen=True)
class Pattern:
    """A checked pattern: the folders in order, the file's name, and its suffix in lower case (None: any image)."""

    text: str
    folders: tuple[Template, ...]
    stem: Template
    suffix: str | None

    @cached_property
    def holes(self) -> frozenset[str]:
        return frozenset(hole for part in (*self.folders, self.stem) for hole in part.holes)

    @cached_property
    def literal_length(self) -> int:
        """Number of literal characters: of two patterns that a file fits, the one with more applies."""
        parts = (*self.folders, self.stem)
        return len(self.folders) + sum(len(text) for part in parts for hole, text in part.tokens if not hole)

    def match_file(self, name: str, known: Holes) -> Holes | None:
        """The placeholders of a file called `name`, given those of its folders."""
        stem, dot, suffix = name.rpartition(".")
        ending = dot + suffix.lower()
        if not (ending in _IMAGE_ENDINGS if self.suffix is None else ending == self.suffix):
            return None
        return self.stem.match(stem, known)

    def match_path(self, path: str) -> Holes | None:
        """The placeholders of a whole relative path."""
        *folders, name = path.split("/")
        known = self.match_folders(folders)
        return None if known is None else self.match_file(name, known)

    def match_folders(self, names: list[str]) -> Holes | None:
        """The placeholders of all folders of a path; None if no file in the last one fits."""
        known: Holes = {}
        if self._deep_at is not None and len(names) >= len(self._fixed_folders):
            end = self._deep_at + len(names) - len(self._fixed_folders)
            known = {_DEEP: "".join(f"{folder}/" for folder in names[self._deep_at : end])}
            names = names[: self._deep_at] + names[end:]
        return _match_each(self._fixed_folders, names, known) if len(names) == len(self._fixed_folders) else None

    def match_first_folders(self, names: list[str]) -> Holes | None:
        """The placeholders of the folders before `**` that these are; None if no file below the last one fits."""
        too_deep = self._deep_at is None and len(names) > len(self.folders)
        return None if too_deep else _match_each(self.folders[: self._deep_at], names, {})

    def fill(self, holes: Holes) -> str:
        """The path without its suffix."""
        return self._path.fill(holes.__getitem__)

    @cached_property
    def _path(self) -> Template:
        tokens: list[tuple[bool, str]] = []
        for part in self.folders:
            tokens += [*part.tokens, (False, "" if part.any_depth else "/")]  # `**` ends in its own slash
        return Template((*tokens, *self.stem.tokens))

    @cached_property
    def _deep_at(self) -> int | None:
        """The place of `**` among the folders."""
        return next((i for i, part in enumerate(self.folders) if part.any_depth), None)

    @cached_property
    def _fixed_folders(self) -> tuple[Template, ...]:
        return tuple(part for part in self.folders if not part.any_depth)


def _match_each(parts: Sequence[Template], names: Sequence[str], known: Holes) -> Holes | None:
    """`known` with the placeholders of names, each with its part, as far as there are both; None if one does not fit."""
    for part, name in zip(parts, names, strict=False):
        holes = part.match(name, known)
        if holes is None:
            return None
        known = holes
    return known


def compile_pattern(text: str, rule: str) -> Pattern:
    """Parse a pattern. `rule` names the option in the RecipeError that a mistake raises."""
    names = text.split("/") if isinstance(text, str) else []
    if not names or text.startswith("/") or "\\" in text or "\0" in text or {"", ".", ".."} & set(names):
        raise RecipeError(
            f"{rule}: expected a path relative to the data's root with single slashes, such as "
            f"'{{split}}/{{label}}/**' or 'images/*.png'; got {text!r}"
        )
    if names[-1] == "**":
        names.append("*")
    if names.count("**") > 1:
        raise RecipeError(
            f"{rule}: expected at most one '**', since two can divide one path in several ways; got {text!r}"
        )
    stars = itertools.count(1)
    *folders, last = (_part(name, stars, text, rule) for name in names)
    *before, (hole, end) = last.tokens
    stem, dot, suffix = end.rpartition(".")
    if hole or not dot or not suffix or not (stem or before):
        return Pattern(text, tuple(folders), last, None)
    return Pattern(text, tuple(folders), Template((*before, *(((False, stem),) if stem else ()))), f".{suffix.lower()}")


def check_placeholders(where: str, image: Pattern, others: Mapping[str, Pattern]) -> None:
    """Raise RecipeError if a pattern has placeholders that the pattern of the images does not have."""
    for name, pattern in others.items():
        if unknown := sorted(pattern.holes - image.holes):
            spelled = ("'**'" if hole == _DEEP else "'*'" if hole[0] == "_" else f"{{{hole}}}" for hole in unknown)
            rule = f"{', '.join(spelled)} in {name}={pattern.text!r} has no counterpart in {image.text!r}"
            raise RecipeError(f"{where}: {rule}; an image must say where its {name} is")


def literal(name: str) -> str:
    """Return a pattern for this path and hardly any other: braces are doubled, and `*` stands for itself among others."""
    return name.replace("{", "{{").replace("}", "}}")


_IMAGE_ENDINGS = frozenset(IMAGE_SUFFIXES)


def _part(name: str, stars: Iterator[int], text: str, rule: str) -> Template:
    """One name of a pattern, in which stars are placeholders too."""
    if name == "**":
        return Template(((True, _DEEP),))
    template = Template.parse(name)
    unpaired = any(found[0] in ("{", "}") for found in _BRACES.finditer(name))
    if unpaired or not all(map(_NAME.fullmatch, template.holes)):
        raise RecipeError(f"{rule}: expected placeholders like '{{split}}': letters, digits and _; got {text!r}")
    tokens: list[tuple[bool, str]] = []
    for hole, piece in template.tokens:
        for piece_of_text in [piece] if hole else filter(None, _STARS.split(piece)):
            if piece_of_text == "**" and not hole:
                raise RecipeError(f"{rule}: expected '**' to be a folder of its own ('a/**/b.png'); got {text!r}")
            star = piece_of_text == "*" and not hole
            if (star or hole) and tokens and tokens[-1][0]:
                raise RecipeError(f"{rule}: expected some text between two placeholders of one name; got {text!r}")
            tokens.append((True, f"_{next(stars)}") if star else (hole, piece_of_text))
    return Template(tuple(tokens))


HIDDEN = "hidden (the name begins with a dot, or is that of a trash or of a NAS's thumbnails)"
NOT_SHOWN = re.compile(r"\.(?!\.?(?:/|$))|(?:@eaDir|#recycle|\$RECYCLE\.BIN)(?:/|$)")
"""What the name of a hidden file or folder begins with. Copies of photos in such a folder would be samples of its class."""
NO_IMAGE = "not an image by its suffix"
OUTSIDE = "outside the pattern"
DRAWN = "a picture that tfprep show or init drew"
LOOP = "a link to a folder above itself"


def walk(
    root: Path,
    pattern: Pattern,
    tally: Counter[str],
    done: Callable[[Holes], bool] = lambda holes: False,
    others: Collection[Pattern] = (),
) -> Iterator[tuple[str, Holes]]:
    """Yield the path of every file that fits `pattern`, in order, and what the placeholders stand for in it.

    A folder is not entered if its placeholders are `done`. The files of a folder come first, then its subfolders, each sorted by
    code points of the name's key form (`key_of`), so that the order depends on names only. Links are followed, except for a
    link to a folder above itself, which has no end: it is passed over, and the tally names it. Hidden files and folders are
    passed over; files of `others` are not in the tally. No file is opened, and the names of one folder only are in memory.
    """
    check_local(root)
    if not root.is_dir():
        raise SourceError(f"{root}: expected the folder that holds the raw data; there is no such folder")

    def enters(folder: str) -> bool:
        holes = pattern.match_first_folders(folder.split("/"))
        return holes is not None and not done(holes)

    for folder, files in folders_in(root, tally, enters):
        known = pattern.match_folders(folder.split("/") if folder else [])
        if known is not None and done(known):
            known = None
        for name in files:
            holes = None if known is None else pattern.match_file(name, known)
            path = f"{folder}/{name}" if folder else name
            if holes is not None:
                yield path, holes
            elif all(other.match_path(path) is None for other in others):
                tally[OUTSIDE if image_suffix(name) else NO_IMAGE] += 1


def folders_in(
    root: Path, tally: Counter[str], enters: Callable[[str], bool] = lambda folder: True
) -> Iterator[tuple[str, list[str]]]:
    """Yield the root (""), and the folders below it that `enters` says yes to, with the names of their files, in order."""
    pending: list[tuple[str, tuple[tuple[int, int], ...]]] = [("", ())]
    while pending:
        folder, above = pending.pop()
        if folder and not enters(folder):  # only now: the answer may depend on the files that came before
            continue
        try:
            status = os.stat(os.path.join(root, folder))
            identity = status.st_dev, status.st_ino
            if identity in above:  # a loop of links
                tally[f"{LOOP}: {folder}"] += 1
                continue
            names = names_of(root / folder)
        except OSError as error:
            raise SourceError(f"{root / folder}/: cannot list this folder: {error.strerror}") from error
        files, inner = (_shown(root, folder, found, tally) for found in names)
        # Beside a dataset and beside a recipe. As raw files they would be samples, and `out/x-sheet.png` of a class `out`.
        drawn = {f"{name}-sheet.png" for name in inner}
        drawn |= {f"{name[:-3]}-preview.png" for name in files if name.endswith(".py")}
        tally.update({DRAWN: len(own)} if (own := drawn.intersection(files)) else {})
        yield folder, [name for name in files if name not in own]
        start = f"{folder}/" if folder else ""
        pending += [(start + name, (*above, identity)) for name in reversed(inner)]


def _shown(root: Path, folder: str, names: list[str], tally: Counter[str]) -> list[str]:
    """Return the names that are not hidden, sorted. SourceError if two are one name in Unicode."""
    shown = [name for name in names if not NOT_SHOWN.match(name)]
    if len(shown) < len(names):
        tally[HIDDEN] += len(names) - len(shown)
    if all(map(str.isascii, shown)):
        return sorted(shown)
    ordered = sorted(shown, key=lambda name: (key_of(name), name))
    for name, following in itertools.pairwise(ordered):
        if key_of(name) == key_of(following):
            raise SourceError(
                f"{root / folder}: {name!a} and {following!a} are one name, {key_of(name)!r}, in "
                "two Unicode spellings; rename or remove one of them"
            )
    return ordered


def image_suffix(name: str) -> bool:
    return os.path.splitext(name)[1].lower() in IMAGE_SUFFIXES


def image_places(root: Path, path: str) -> dict[str, str]:
    """Return the path of each image below `root` by its name, if `path` begins with `**/`. SourceError for two of one name."""
    places: dict[str, str] = {}
    for image, _ in walk(root, compile_pattern("**", "image"), Counter()) if path.startswith("**/") else ():
        name = key_of(image.rpartition("/")[2])
        if places.setdefault(name, image) != image:
            raise SourceError(f"{root}: {path!r} may be {places[name]} or {image}; rename one, or name the folder")
    return places


class Companions:
    """Looks up files by pattern below one root. It lists each folder once, which is faster than asking for every file."""

    def __init__(self, root: Path) -> None:
        @lru_cache(4)  # images come folder by folder, and so do their masks
        def names_in(folder: str) -> frozenset[str]:
            try:
                names = names_of(root / folder)
            except (FileNotFoundError, NotADirectoryError):
                return frozenset()
            except OSError as error:
                raise SourceError(f"{root / folder}: cannot list this folder: {error.strerror}") from error
            return frozenset(itertools.chain(*names))

        self._names = names_in

    def find(self, pattern: Pattern, holes: Holes) -> tuple[str, bool]:
        """Return the path of the file of `pattern` with these placeholders, and whether there is one.

        The case of its suffix and its Unicode form do not matter. If there is none, its path is the one where it is expected.
        Raises SourceError if two files fit.
        """
        folder, slash, stem = pattern.fill(holes).rpartition("/")
        names = self._names(folder)
        if pattern.suffix is not None and stem + pattern.suffix in names:
            return folder + slash + stem + pattern.suffix, True
        forms = dict.fromkeys((stem, *(unicodedata.normalize(form, stem) for form in ("NFC", "NFD"))))
        endings = IMAGE_SUFFIXES if pattern.suffix is None else (pattern.suffix,)
        spelled = (form + ending for form in forms for end in endings for ending in (end, end.upper(), end.title()))
        fitting = [name for name in spelled if name in names]
        if len(fitting) > 1:
            raise SourceError(
                f"{folder + slash}: {' and '.join(map(repr, fitting))} both fit {pattern.text!r} for one image; keep one, or "
                "give the pattern a suffix"
            )
        return folder + slash + (fitting[0] if fitting else stem + (pattern.suffix or ".*")), bool(fitting)


def spelled(root: Path, path: str) -> str:
    """Return the path as the file system spells it, in one of Unicode's forms; the path itself if there is no such file."""
    if path.isascii() or (root / path).exists():
        return path
    forms = (unicodedata.normalize(form, path) for form in ("NFC", "NFD"))
    return next((form for form in forms if (root / form).exists()), path)


# --- patterns that fit given paths ---------------------------------------------------------------------------------

_SPLIT = re.compile(
    r"(?<![A-Za-z])(train[ _-]?val|train(?:ing)?|val(?:id(?:ation)?)?|dev|test(?:ing)?|eval(?:uation)?|holdout)"
    r"(?=(?:data(?:set)?|set|crops?|annot(?:ation)?s?|masks?|labels?)?(?![A-Za-z])|(?<=(?-i:[a-z]))(?-i:[A-Z]))",
    re.IGNORECASE,
)
"""The name of a split as a word: as in `train2017`, `traindata`, `trainannot`, `trainLabels`, `seg_train`, not in `trainee`."""
_TEST = re.compile(r"test(?:ing)?|eval(?:uation)?|holdout", re.IGNORECASE)


def split_words(path: str) -> list[str]:
    """Return the words of a path that name splits, in lower case."""
    return [word.lower() for word in _SPLIT.findall(path)]


def is_test(path: str) -> bool:
    """Return True if a path has words that name splits, and all of them name a test split."""
    return all(map(_TEST.fullmatch, words)) if (words := split_words(path)) else False


def split_form(path: str, is_pattern: bool = False) -> str:
    """Return a pattern for a path, with `{split}` for the word in each name of it that names a split: `seg_{split}/x`."""
    names = (path if is_pattern else literal(path)).split("/")
    return "/".join(_SPLIT.sub("{split}", name, count=1) for name in names)


def columns_of(folders: Sequence[str]) -> list[tuple[str, list[str]]] | None:
    """Return the form of each level of folders, and its name in each folder; None if they are not of one depth.

    The form is the name if all are the same, a pattern with `{split}` if they differ in the split only, else "".
    """
    parts = [folder.split("/") if folder else [] for folder in folders]
    if len({len(part) for part in parts}) != 1:
        return None
    columns = [list(names) for names in zip(*parts, strict=True)]
    return [(forms.pop() if len(forms := set(map(split_form, names))) == 1 else "", names) for names in columns]
