"""Which source fits a folder: a table beside images, images with masks in parallel folders, class folders, or images alone."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tfprep.errors import SourceError
from tfprep.sources.facts import Facts, look
from tfprep.sources.folder import Folder
from tfprep.sources.paired import Paired
from tfprep.sources.pairs import SPLIT_NAMES, mask_patterns
from tfprep.sources.patterns import IMAGE_SUFFIXES, compile_pattern
from tfprep.sources.rows import TABLE_SUFFIXES, batches, column_names
from tfprep.sources.splits import Fractions
from tfprep.sources.table import Table
from tfprep.sources.walk import image_suffix, walk

FRACTIONS = Fractions(train=0.8, val=0.2)
BY_CLASS = Fractions(train=0.8, val=0.2, stratify="label")
"""What splits data that comes without splits; with classes, each of them has its share in every split."""
NAMES_TRIED = 64
"""How many names of a folder or rows of a table decide whether files belong together."""


@dataclass(frozen=True)
class Detected:
    """A source with its options, what kind of layout that is in words, and what it holds."""

    source: Folder | Paired | Table
    layout: str
    facts: Facts

    def lines(self) -> list[str]:
        return [self.layout, *self.facts.lines()]


def detect(folder: Path) -> Detected:
    """The source that fits `folder`. Raises SourceError where there is no image in it.

    The whole tree is listed once to find the layout and once by the source; a few files are opened.
    """
    tree = _tree(folder)
    if not tree.images:
        raise SourceError(f"{folder}: no image below this folder (files ending in {', '.join(IMAGE_SUFFIXES)})")
    candidates: tuple[tuple[Folder | Paired | Table, str], ...] = (
        *_tables(folder, tree),
        *_pairs(tree),
        _folders(tree),
    )
    for source, layout in candidates:
        try:
            return Detected(source, layout, look(source, folder))
        except SourceError:
            if isinstance(source, Folder):
                raise
    raise AssertionError("class folders or images alone are always tried last")


@dataclass(frozen=True)
class _Tree:
    """The folders with images in them (relative, "" the root), and the tables at the root."""

    images: dict[str, Counter[str]]
    """Folder to the number of its images by suffix."""
    names: dict[str, list[str]]
    """Folder to the first few of its images' names, sorted."""
    tables: list[str]


def _tree(folder: Path) -> _Tree:
    images: dict[str, Counter[str]] = {}
    names: dict[str, list[str]] = {}
    for found in walk(folder, compile_pattern("**", "detect"), Counter()):
        parent, _, name = found.path.rpartition("/")
        images.setdefault(parent, Counter())[os.path.splitext(name)[1].lower()] += 1
        if len(few := names.setdefault(parent, [])) < NAMES_TRIED:
            few.append(name)
    tables = [
        p.name for p in sorted(folder.iterdir()) if p.suffix.lower() in TABLE_SUFFIXES and not p.name.startswith(".")
    ]
    return _Tree(images, names, tables)


# --- tables ---------------------------------------------------------------------------------------------------------


def _tables(folder: Path, tree: _Tree) -> Iterator[tuple[Table, str]]:
    splits = [name for name in tree.tables if Path(name).stem.lower() in SPLIT_NAMES]
    if len(splits) > 1 and len({Path(name).suffix for name in splits}) == 1:
        made = _table(folder, tree, splits[0], "{split}" + Path(splits[0]).suffix)
        if made is not None:
            yield made, f"tables, one a split: {', '.join(splits)}"
            return
    for name in tree.tables:
        made = _table(folder, tree, name, name)
        if made is not None:
            yield made, f"a table beside images: {name}"


def _table(folder: Path, tree: _Tree, name: str, pattern: str) -> Table | None:
    """The table as a source; None where no column names images."""
    try:
        columns = column_names(folder / name)
        rows = next(batches(folder / name, columns), None)
    except SourceError:
        return None
    few = {c: [v for v in rows.columns[c][:NAMES_TRIED] if v not in (None, "")] for c in columns} if rows else {}
    paths = {column: _image_template(folder, tree, column, values) for column, values in few.items()}
    image = next((template for template in paths.values() if template), None)
    if image is None:
        return None
    label = next((c for c in few if c.lower() in _LABEL_COLUMNS and not paths[c]), None)
    split = next((c for c in few if c.lower() in _SPLIT_COLUMNS and not paths[c]), None)
    by_file = "{split}" in pattern
    fractions = BY_CLASS if label else FRACTIONS
    return Table(table=pattern, image=image, label=label, splits=None if by_file else split or fractions)


_LABEL_COLUMNS = ("label", "class", "class_name", "category", "species", "target", "y", "diagnosis", "breed")
_SPLIT_COLUMNS = ("split", "subset", "fold", "partition", "set")


def _image_template(folder: Path, tree: _Tree, column: str, values: list[object]) -> str | None:
    """How the column's values become paths of images that exist, nine in ten at least; None where they do not."""
    if not values or not all(isinstance(value, str) for value in values):
        return None
    for parent in ("", *tree.images):
        prefix = f"{parent}/" if parent else ""
        for suffix in ("", *tree.images.get(parent, ())):
            there = sum(image_suffix(f"{v}{suffix}") and (folder / f"{prefix}{v}{suffix}").is_file() for v in values)
            if there >= 0.9 * len(values):
                return f"{prefix}{{{column}}}{suffix}" if prefix or suffix else column
    return None


# --- images with masks, class folders, images alone ------------------------------------------------------------------


def _pairs(tree: _Tree) -> Iterator[tuple[Paired, str]]:
    for image, mask in mask_patterns(tree.names):
        splits = None if "{split}" in image else FRACTIONS
        yield Paired(image=image, mask=mask, splits=splits), f"images {image} with masks {mask}"


def _folders(tree: _Tree) -> tuple[Folder, str]:
    prefix, folders = _unwrapped(sorted(tree.images))
    heads = {folder.split("/")[0] for folder in folders if folder}
    if heads and heads <= {head for head in heads if head.lower() in SPLIT_NAMES} and "" not in folders:
        below = [folder for folder in folders if "/" in folder]
        pattern, layout = (
            ("{split}/{label}/**", "class folders below split folders") if below else ("{split}/**", "split folders")
        )
        return Folder(image=prefix + pattern), layout
    if len(heads) > 1:
        return Folder(image=f"{prefix}{{label}}/**", splits=BY_CLASS), "class folders"
    return Folder(image=f"{prefix}**", splits=FRACTIONS), "images without classes"


def _unwrapped(folders: Sequence[str]) -> tuple[str, list[str]]:
    """The folders that hold everything, as a prefix, and the folders of images below them."""
    prefix = ""
    heads = {folder.split("/")[0] for folder in folders}
    while len(heads) == 1 and "" not in heads and not (heads & SPLIT_NAMES):
        (head,) = heads
        prefix, folders = f"{prefix}{head}/", [folder[len(head) + 1 :] for folder in folders]
        heads = {folder.split("/")[0] for folder in folders}
    return prefix, list(folders)
