"""Which source fits a folder: annotations, a table beside images, images with masks, class folders, or images alone."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeAlias

from tfprep.errors import SourceError
from tfprep.sources.annotations import Coco, CocoPanoptic, LabelMe, Voc, Yolo
from tfprep.sources.containers import Archives
from tfprep.sources.detection.annotated import FRACTIONS, LayoutGuess, annotated
from tfprep.sources.detection.archived import archives
from tfprep.sources.detection.bundled import parquet_images, videos
from tfprep.sources.detection.facts import PAGES, Facts, look
from tfprep.sources.detection.pairs import SPLIT_NAMES, mask_patterns
from tfprep.sources.detection.palettes import colours_of, palette_of
from tfprep.sources.folder import Folder
from tfprep.sources.paired import Paired
from tfprep.sources.patterns import IMAGE_SUFFIXES, compile_pattern, literal
from tfprep.sources.pixels import Pixels
from tfprep.sources.rows import TABLE_SUFFIXES, batches, column_names
from tfprep.sources.source import Source
from tfprep.sources.splits import Fractions
from tfprep.sources.table import Table
from tfprep.sources.walk import image_suffix, walk

BY_CLASS = Fractions(train=0.8, val=0.2, stratify="label")
"""What splits data that comes without splits; with classes, each of them has its share in every split."""
NAMES_TRIED = 64
"""How many names of a folder or rows of a table decide whether files belong together."""


_OfPixels: TypeAlias = Folder | Paired | Table | Archives | Coco | CocoPanoptic | Voc | Yolo | LabelMe
"""The sources with the option `pixels`."""


@dataclass(frozen=True)
class Detected:
    """A source with its options, what kind of layout that is in words, what it holds, and what is not certain."""

    source: Source
    layout: str
    facts: Facts
    doubts: tuple[str, ...] = ()

    def lines(self) -> list[str]:
        return [self.layout, *self.facts.lines(), *(f"unsure: {doubt}" for doubt in self.doubts)]


def detect(folder: Path) -> Detected:
    """The source that fits `folder`. Raises SourceError where there is no image in it.

    The whole tree is listed once to find the layout and once by the source; a few files are opened.
    """
    tree = _tree(folder)
    for bundled in () if tree.images else (archives, parquet_images, videos):
        if (guess := bundled(folder)) is not None:
            return looked(guess, folder)
    if not tree.images:
        raise SourceError(f"{folder}: no image below this folder (files ending in {', '.join(IMAGE_SUFFIXES)})")
    for candidate in (*annotated(folder, tree.images), *_tables(folder, tree), *_pairs(tree), _folders(tree)):
        try:
            return looked(candidate, folder)
        except SourceError:
            if isinstance(candidate.source, Folder):
                raise
    raise AssertionError("class folders or images alone are always tried last")


def looked(candidate: LayoutGuess, folder: Path) -> Detected:
    """Return the source with what its samples are like. Raises SourceError if it does not fit the folder."""
    source, layout, doubts = candidate
    facts = look(source, folder)
    if isinstance(source, Paired) and facts.no_mask_opened:
        source, named = _with_palette(source, folder, facts)
        facts, doubts = look(source, folder), (*doubts, *named)
    if facts.deep and isinstance(source, _OfPixels):
        source, named = _with_pixels(source, facts)
        facts, doubts = look(source, folder), (*doubts, *named)
    elif isinstance(source, _OfPixels):
        if facts.transparent:
            source = replace(source, pixels={"image": Pixels(background=(255, 255, 255))})
            doubts = (*doubts, "transparent pixels are laid over white (background=)")
        if facts.not_plain:
            few = ", ".join(facts.not_plain)
            doubts = (
                *doubts,
                f"images that are no 8-bit RGB ({few}) are rejects, unless Pixels(to=, channels=) is given",
            )
    if facts.small:
        doubts = (*doubts, facts.small)
    return Detected(source, layout, facts, doubts)


def _with_pixels(source: _OfPixels, facts: Facts) -> tuple[_OfPixels, tuple[str, ...]]:
    """The source that keeps the images' own dtype and channels, and the slices of a patient in one split."""
    paged = any(PAGES in form for form in facts.forms)
    source = replace(source, pixels={"image": Pixels(page=0 if paged else None)})
    doubts = ["only the first page or frame of each file is taken (page=0)"] if paged else []
    if len(facts.forms) > 1:
        doubts.append(
            "images differ in dtype or channels: the less common ones are rejects, unless Pixels(to=, channels=) is given"
        )
    if ".dcm" in facts.suffixes and isinstance(source.splits, Fractions):
        source = replace(source, splits=replace(source.splits, stratify=None, group_by="PatientID"))
    return source, tuple(doubts)


def _with_palette(source: Paired, folder: Path, facts: Facts) -> tuple[Paired, tuple[str, ...]]:
    """The source with class numbers for the colours of its masks. SourceError if they are no masks."""
    found = colours_of(source, folder)
    if found is None:
        raise SourceError(f"{folder}: the files of {source.mask!r} are no masks: {facts.problems[0]}")
    colours, opened = found
    palette, classes = palette_of(colours)
    doubt = f"the masks are pictures of {len(colours)} colours ({opened} opened); another colour is a reject"
    order = (
        "the classes are CamVid's" if classes else "their numbers follow the colours' order, and want names (classes=)"
    )
    return replace(source, palette=palette, classes=classes), (doubt, order)


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


def _tables(folder: Path, tree: _Tree) -> Iterator[LayoutGuess]:
    splits = [name for name in tree.tables if Path(name).stem.lower() in SPLIT_NAMES]
    if len(splits) > 1 and len({Path(name).suffix for name in splits}) == 1:
        made = _table(folder, tree, splits[0], "{split}" + Path(splits[0]).suffix)
        if made is not None:
            yield LayoutGuess(made, f"tables, one a split: {', '.join(splits)}", _doubts(made))
            return
    for name in tree.tables:
        made = _table(folder, tree, name, literal(name))
        if made is not None:
            yield LayoutGuess(made, f"a table beside images: {name}", _doubts(made))


def _doubts(table: Table) -> tuple[str, ...]:
    guessed = {"label": table.label, "splits": table.splits if isinstance(table.splits, str) else None}
    return tuple(
        f"{option}={column!r} is a guess from the column's name" for option, column in guessed.items() if column
    )


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
            # `os.path.isfile` answers for any text, `Path.is_file` raises for a name of more than 255 bytes.
            paths = (os.path.join(folder, f"{prefix}{v}{suffix}") for v in values if image_suffix(f"{v}{suffix}"))
            if sum(map(os.path.isfile, paths)) >= 0.9 * len(values):
                return f"{literal(prefix)}{{{column}}}{suffix}" if prefix or suffix else column
    return None


# --- images with masks, class folders, images alone ------------------------------------------------------------------


def _pairs(tree: _Tree) -> Iterator[LayoutGuess]:
    for image, mask in mask_patterns(tree.names):
        layout = f"images {image} with masks {mask}"
        if "{split}" not in image:
            yield LayoutGuess(Paired(image=image, mask=mask, splits=FRACTIONS), layout)
            continue
        with_masks, splits = (_splits(tree, pattern) for pattern in (mask, image))
        both = sorted(splits & with_masks)
        if len(both) == 1 and splits != with_masks:
            of_one = [pattern.replace("{split}", literal(both[0])) for pattern in (image, mask)]
            source = Paired(image=of_one[0], mask=of_one[1], splits=FRACTIONS)
            yield LayoutGuess(source, layout, (f"only {both[0]!r} has masks; it is split by shares",))
        elif splits - with_masks:
            doubt = f"{', '.join(sorted(splits - with_masks))} have no masks, and are left out"
            yield LayoutGuess(Paired(image=image, mask=mask, splits=tuple(both)), layout, (doubt,))
        else:
            yield LayoutGuess(Paired(image=image, mask=mask), layout)


def _splits(tree: _Tree, pattern: str) -> set[str]:
    """What `{split}` stands for in the names of the tree."""
    compiled = compile_pattern(pattern, "detect")
    paths = (f"{folder}/{name}" if folder else name for folder, names in tree.names.items() for name in names)
    return {holes["split"] for holes in map(compiled.match_path, paths) if holes} & {
        part for folder in tree.names for part in folder.split("/") if part.lower() in SPLIT_NAMES
    }


def _folders(tree: _Tree) -> LayoutGuess:
    prefix, folders = _unwrapped(sorted(tree.images))
    prefix = literal(prefix)
    heads = {folder.split("/")[0] for folder in folders if folder}
    if heads and heads <= {head for head in heads if head.lower() in SPLIT_NAMES} and "" not in folders:
        below = [folder for folder in folders if "/" in folder]
        pattern, layout = (
            ("{split}/{label}/**", "class folders below split folders") if below else ("{split}/**", "split folders")
        )
        return LayoutGuess(Folder(image=prefix + pattern), layout)
    if len(heads) > 1:
        return LayoutGuess(Folder(image=f"{prefix}{{label}}/**", splits=BY_CLASS), "class folders")
    return LayoutGuess(Folder(image=f"{prefix}**", splits=FRACTIONS), "images without classes")


def _unwrapped(folders: Sequence[str]) -> tuple[str, list[str]]:
    """The folders that hold everything, as a prefix, and the folders of images below them."""
    prefix = ""
    heads = {folder.split("/")[0] for folder in folders}
    while len(heads) == 1 and "" not in heads and not (heads & SPLIT_NAMES):
        (head,) = heads
        prefix, folders = f"{prefix}{head}/", [folder[len(head) + 1 :] for folder in folders]
        heads = {folder.split("/")[0] for folder in folders}
    return prefix, list(folders)
