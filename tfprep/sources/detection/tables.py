"""Recognizes tables beside images: which columns name the images, their classes, masks and splits, and the objects in them."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np

from tfprep.errors import SampleError, SourceError
from tfprep.fields import BoxFormat, Kind, convert_boxes
from tfprep.images import pixels_size
from tfprep.sources.annotations import ObjectTable
from tfprep.sources.annotations.listing import WrongAnnotation
from tfprep.sources.annotations.object_table import box_cells
from tfprep.sources.annotations.objects import TOLERANCE_PX
from tfprep.sources.cells import CellPath, ColumnNames, flag_cell
from tfprep.sources.detection import BY_CLASS, FRACTIONS, LayoutGuess, Refusal
from tfprep.sources.detection.inventory import NAMES_KEPT, NO_LABELS, Inventory, below
from tfprep.sources.detection.pairs import (
    MASK_WORD,
    NO_IMAGE,
    OF_ONE,
    SPLIT_WORD,
    pairs,
    split_pattern,
    split_words,
    splits_of_paths,
)
from tfprep.sources.folder import Splits
from tfprep.sources.patterns import Template, compile_pattern, image_suffix, literal
from tfprep.sources.raw import read_raw
from tfprep.sources.rows import BATCH_ROWS, TABLE_SUFFIXES, batches, column_names
from tfprep.sources.splits import Fractions
from tfprep.sources.table import Table

_LABELS = (
    "label", "labels", "class", "classes", "classname", "classid", "classlabel", "category", "categoryid", "labelname",
    "species", "target", "y", "diagnosis", "breed", "dx", "tags", "findinglabels", "attributeids", "emotion", "variety",
)  # fmt: skip
_SPLITS = ("split", "subset", "fold", "partition", "set", "datasplit", "dataset")
_TEXTS = ("text", "caption")
_PLURAL = re.compile(r".*(?:labels|classes|tags|ids|categories|attributes|genres?)", re.IGNORECASE)
_SEPARATORS = ("|", ";", ",", " ")
_RUNS_NAME = re.compile(r".*(?:rle|encod|pixels|segment|mask).*", re.IGNORECASE)
_RUNS = re.compile(r"\s*\d+\s+\d+(?:\s+\d+\s+\d+)*\s*")
_BOX_NAME = re.compile(r"(?:bboxe?s?|boxe?s?|boundingbox(?:es)?|rect(?:angle)?)")
_BOX_PREFIX = re.compile(r"^(?:bbox|box|roi|boundingbox|bb)(?=.)")
_BOX_COLUMNS: Mapping[BoxFormat, tuple[str, ...]] = {
    "xyxy": (
        *("xmin ymin xmax ymax", "minx miny maxx maxy", "x0 y0 x1 y1", "x1 y1 x2 y2", "left top right bottom"),
        *("xtl ytl xbr ybr", "xstart ystart xend yend"),
    ),
    "center_xywh": tuple(
        f"{center} {size}"
        for center in ("xcenter ycenter", "centerx centery", "cx cy", "xc yc", "xcentre ycentre")
        for size in ("width height", "w h")
    ),
    "xywh": tuple(
        f"{corner} {size}"
        for corner in ("xmin ymin", "x y", "left top", "x1 y1", "x0 y0", "minx miny")
        for size in ("width height", "w h")
    ),
}
"""Names of the four columns of a box, in lower case and without other characters than letters and digits."""
_OF_ONE = re.compile(rf"{OF_ONE}[ _-]?(?:id|no|number|name)?", re.IGNORECASE)
"""Columns that say what several images show."""
_TRAINING = {"train", "training", "trainval", "train_val"}
_FITS = 0.9


def tables(tree: Inventory) -> Iterator[LayoutGuess | Refusal]:
    """Yield the tables whose rows name images, those of one split each together; those with objects first."""
    paths = [path for path in tree.files(*TABLE_SUFFIXES) if not NO_LABELS.search(path.rpartition("/")[2])]
    own = [path for path in paths if (folder := path.rpartition("/")[0]) in tree.images and folder]
    own = [path for path in own if not SPLIT_WORD.search(path.split("/")[-2])]
    for path in own if len(own) > 1 else ():
        # Tables of folders that are no splits are refused, unless each of them, as in GTSRB, has one class alone.
        try:
            head = _TableHead(tree, path)
            label = head.label() if head.paths else None
            if label is not None and len({str(cell) for cell in head.columns[label]}) > 1:
                rule = f"{tree.root}: {own[0]} and {own[1]} are tables of their own folders"
                raise SourceError(f"{rule}; write one table of all images, with their paths")
        except SourceError as error:
            yield Refusal("table", error)
            return
    if len(own) > 1:
        return
    by_split: dict[str, list[str]] = {}
    for path in paths:
        by_split.setdefault(split_pattern(path), []).append(path)
    guesses: list[tuple[int, LayoutGuess]] = []
    for pattern, of_pattern in by_split.items():
        try:
            heads = {path: head for path in of_pattern if (head := _TableHead(tree, path)).paths}
            guesses += _guess(tree, pattern, heads) if heads else []
        except SourceError as error:
            yield Refusal("table", error)
    ranked = [
        guess for _, guess in sorted(guesses, key=lambda one: (not isinstance(one[1].source, ObjectTable), -one[0]))
    ]
    in_runs = [guess for guess in ranked if getattr(guess.source, "runs", None) is not None]
    yield from (guess for guess in ranked if guess not in in_runs)
    if in_runs:  # files of masks say more: run lengths may be counted along the rows too, as in Carvana
        yield from (guess for guess in pairs(tree) if isinstance(guess, LayoutGuess))
    yield from in_runs


def about_tables(tree: Inventory) -> str:
    """Say which table names images and is not read, and how to read it; "" if there is none."""
    for path in (one for one in tree.files(*TABLE_SUFFIXES) if not NO_LABELS.search(one.rpartition("/")[2])):
        with suppress(SourceError):
            head = _TableHead(tree, path)
            column, image = head.image() if head.paths else ("", "")
            if column and (label := head.label()) is not None:
                return (
                    f"{head.where} has labels of a part of the images alone; write the recipe by hand, with a table of all, or "
                    f"for this part: sources.Table({path!r}, {image!r}, label={label!r})"
                )
            if others := [name for name in head.columns if name not in head.paths and name] if column else []:
                listing = ", ".join(others[:8]) + ", …" * (len(others) > 8)
                return (
                    f"{head.where} names an image in each row, and none of its columns ({listing}) is called like a class; write "
                    f"the recipe by hand, with the column to train on: sources.Table({path!r}, {image!r}, label={others[0]!r})"
                )
    return ""


class _TableHead:
    """A table as its first rows show it. SourceError if it seems to name images and cannot be read.

    Attributes:
        path: Its path relative to the root.
        columns: Its columns, and the values of the first rows in each; none if it is no table.
        paths: The columns whose values name images that exist, and the path with columns in braces.
        several: The same for those whose values name images in several folders: two of these.
        targets: What the table of the test split lacks, which is to be learned; all columns where there is none.
    """

    def __init__(self, tree: Inventory, path: str) -> None:
        self.tree, self.path, self.where = tree, path, tree.root / path
        self.columns: Mapping[str, Sequence[Any]] = {}
        self.paths: dict[str, str] = {}
        self.several: dict[str, Sequence[str]] = {}
        self.targets: set[str] = set()
        try:
            names = column_names(self.where)
            rows = next(batches(self.where, names), None)
        except SourceError:
            if any(image_suffix(word) for word in re.split(r"[,;\t\s\"']+", tree.text(path))):
                raise
            return
        self.columns = {} if rows is None else rows.columns
        self.targets = set(self.columns)
        image_paths = {name: one for name in self.columns if (one := self._image_path(name, self.columns))}
        if image_paths.pop("", None) is not None and not image_paths:
            raise SourceError(f"{self.where}: the column that names the images has no name; write one, such as image")
        files = [name for name in image_paths if all(image_suffix(str(value)) for value in self.few(name))]
        names_first = dict.fromkeys((*files, *image_paths))
        # The numbers of classes may be names of images too (`Meta/0.png`): not beside a column of names of files.
        self.paths = {n: image_paths[n] for n in names_first if n in files or not files or _plain(n) not in _LABELS}
        for name in (one for one in names if any(map(str.isdigit, one)) or image_suffix(one)):
            if self._image_path(name, {name: [name]}):
                rule = f"{self.where}: its first row names the image {name!r}, and is no row of column names"
                raise SourceError(f"{rule}; write one above it, such as image,label")
        if "region_shape_attributes" in names:
            rule = f"{self.where} is a file of VGG Image Annotator, which tfprep does not read"
            raise SourceError(f"{rule}; export COCO from it")
        for name in self.columns if not self.paths else ():
            if (few := self.few(name)) and all(image_suffix(str(value)) for value in few):
                examples = ", ".join(map(str, few[:3]))
                rule = f"{self.where}: no folder holds the images that {name!r} names, such as {examples}"
                raise SourceError(rule + self._without_first_folders([str(value) for value in few]))
        for name in self.columns if not self.paths and self.label() is not None else ():
            self._check_zeros(name, self.few(name))
        if not self.paths and (runs := self.runs()) is not None:
            rule = f"{self.where}: {runs!r} holds masks as run lengths, and no column names images as they are called"
            raise SourceError(f"{rule}; write a column with the name of each image (ImageId)")

    def named(self, names: Sequence[str], without: Sequence[str] = ()) -> str | None:
        """The first column with one of these names that names no images."""
        left_out = {*self.paths, *without}
        plain = {_plain(column): column for column in reversed(list(self.columns)) if column not in left_out}
        exact = {column.strip().lower() for column in self.columns}  # `y`, not `y]` of an unquoted [x,y]
        return next((plain[name] for name in names if name in plain and (len(name) > 1 or name in exact)), None)

    def label(self) -> str | None:
        """A column of classes, by its name; no column of fractions."""
        column = self.named(_LABELS, [column for column in self.columns if _are_fractions(self.few(column))])
        return column if column in self.targets else None

    def few(self, column: str) -> list[Any]:
        """The first values of a column that are not empty."""
        return _few(self.columns[column])

    def runs(self) -> str | None:
        """The column of run lengths."""
        for column in filter(_RUNS_NAME.fullmatch, self.columns):
            few = [str(value) for value in self.few(column) if str(value).strip() != "-1"]
            if few and all(map(_RUNS.fullmatch, few)):
                return column
        return None

    def image(self) -> tuple[str, str]:
        """The column that names the images, not masks, and their path. SourceError if they are in two folders."""
        column = next((name for name in self.paths if not _is_mask(name)), next(iter(self.paths)))
        path = self.paths[column]
        if column in self.several:
            rule = f"{self.where}: the images that {column!r} names are in {'/ and in '.join(self.several[column])}/"
            raise SourceError(f"{rule}; write the recipe by hand: sources.Table({self.path!r}, {path!r}, ...)")
        return column, path

    def split(self) -> str | None:
        """A column of several splits by their names."""
        column = self.named(_SPLITS)
        names = {str(value) for value in self.columns[column]} if column is not None else set()
        return column if names and all(re.fullmatch(r"[A-Za-z]\w*", name) for name in names) else None

    def path_in(self, row: int, image: str) -> str:
        """The path of the image of a row."""
        split = next((word[0] for word in SPLIT_WORD.finditer(self.path)), "")
        template = CellPath.parse(image, True).template
        path = template.fill(lambda name: str(self.columns[name][row] if name in self.columns else split))
        path = path.replace("\\", "/")
        return path if not path.startswith("**/") else _found_at(self.tree, path[3:]) or path[3:]

    def _without_first_folders(self, names: Sequence[str]) -> str:
        """Say how the names have to be changed, where the images are there without the folders that all names begin with."""
        for cut in (match.end() for match in re.finditer(r"[/\\]", names[0])):
            if _existing(self.tree, [name.removeprefix(names[0][:cut]).replace("\\", "/") for name in names]):
                way_out = f"cut {names[0][:cut]!r} off, or run init on a folder in which the images are called so"
                return f"; {names[0][cut:]} is there: {way_out}"
        return ""

    def _check_zeros(self, column: str, few: Sequence[Any]) -> None:
        """SourceError for numbers of images whose names are these numbers with zeros in front."""
        if not few or not all(str(value).isdecimal() for value in few):
            return
        stems = [os.path.splitext(name)[0] for names in self.tree.names.values() for name in names]
        numbers = {int(stem): stem for stem in stems if stem.isdecimal()}
        if 2 * len(set(few)) >= min(NAMES_KEPT, len(stems)) and all(int(value) in numbers for value in few):
            rule = f"{self.where}: {column!r} numbers the images, and {few[0]} stands for {numbers[int(few[0])]}"
            raise SourceError(f"{rule}; write the names of the images as they are")

    def _image_path(self, column: str, columns: Mapping[str, Sequence[Any]]) -> str | None:
        """Return the path of the images that the column's values name, nine in ten at least; None where they name none."""
        tree, values = self.tree, _few(columns[column])
        if not values or not all(isinstance(value, str | int) and not isinstance(value, bool) for value in values):
            return None
        names = [str(value).replace("\\", "/") for value in values]
        in_columns = next(_in_folders_of_a_column(tree, columns, column, names), None)
        if in_columns and len(set(names)) < len(names):
            return in_columns
        own, by_folder = self.path.rpartition("/")[0], dict[str, str]()
        for folder in dict.fromkeys((own, *_folders(tree))):
            for suffix in ("", *(tree.images.get(folder) or tree.suffixes)):
                if folder not in by_folder and _existing(tree, [below(folder, f"{name}{suffix}") for name in names]):
                    by_folder[folder] = (
                        f"{literal(below(folder, ''))}{{{column}}}{suffix}" if folder or suffix else column
                    )
        if by_folder:
            words = split_words(self.path)
            alike = [one for one in by_folder if not NO_IMAGE.fullmatch(one.rpartition("/")[2])] or list(by_folder)
            alike = [one for one in alike if split_words(one) == words] or alike
            if len(alike) > 1 and own not in by_folder:
                self.several[column] = alike[:2]
            return by_folder[own if own in by_folder else alike[0]]
        if in_columns:
            return in_columns
        for suffix in ("", *tree.suffixes):  # names of files, wherever these lie
            if sum(_found_at(tree, f"{name}{suffix}") is not None for name in names) >= _FITS * len(names):
                return f"**/{{{column}}}{suffix}"
        return None


def _guess(tree: Inventory, pattern: str, heads: Mapping[str, _TableHead]) -> list[tuple[int, LayoutGuess]]:
    """The tables of a pattern as a source, with the number of their first rows; nothing where they say nothing about the images.

    Raises:
        SourceError: The tables cannot be read.
    """
    head = next((one for path, one in heads.items() if "train" in path.lower()), next(iter(heads.values())))
    tests = [one for path, one in heads.items() if "test" in split_words(path)]
    if tests and (targets := set(head.columns) - set(tests[0].columns)):
        head.targets = targets
        heads = {path: one for path, one in heads.items() if targets & set(one.columns)}
    column, image = head.image()
    splits: Splits = None
    tables_read, doubts = [head.path], list[str]()
    if "{split}" in pattern and head.split() is None:
        image, tables_read = _joint(pattern, head, column, image, heads)
        compiled = compile_pattern(pattern, "detect")
        files = [path for path in tree.files(compiled.suffix or "") if compiled.match_path(path)]
        if unread := [path for path in files if path not in tables_read]:
            splits = tuple((compiled.match_path(path) or {})["split"] for path in tables_read)
            doubts += [f"this recipe does not read {path}" for path in unread]
    else:
        pattern = literal(head.path)
        rows = range(min(BATCH_ROWS, len(next(iter(head.columns.values())))))
        splits = head.split() or splits_of_paths(head.path_in(row, image) for row in rows)
    if (label := head.label()) is not None and all(isinstance(value, str) for value in head.few(label)):
        _refuse_lists(head, [label], r"\[")
    guess = _objects(pattern, head, image, splits) or _samples(pattern, head, image, splits)
    if guess is not None:
        layout = (
            f"a table beside images: {head.path}"
            if len(tables_read) == 1
            else f"tables, one a split: {', '.join(tables_read)}"
        )
        if columns_left := _columns_left(guess.source, head):
            listing = ", ".join(columns_left[:12]) + (
                f" and {len(columns_left) - 12} more" if len(columns_left) > 12 else ""
            )
            doubts.insert(0, f"this recipe does not read the columns {listing} (label=, fields=)")
        if _is_of_a_test(tree, heads, tables_read, column, image):
            return []  # labels of a test whose training has others, such as folders
        count = sum(len(heads[path].columns[column]) for path in tables_read)
        return [(count, guess._replace(layout=layout, doubts=(*guess.doubts, *doubts)))]
    _refuse_lists(head, head.columns, r"\[\s*[{\[]|\{")
    return []


def _refuse_lists(head: _TableHead, columns: Iterable[str], form: str) -> None:
    """Raise SourceError if all cells of a column begin like this list."""
    for column in columns:
        few = [str(value).strip() for value in head.few(column)]
        if few and all(re.match(form, value) for value in few):
            rule = f"{head.where}: the cells of {column!r} are lists as text, such as {few[0]:.60}"
            raise SourceError(f"{rule}; write a table with a row for each object, or JSON lines")


def _is_of_a_test(
    tree: Inventory, heads: Mapping[str, _TableHead], tables_read: Sequence[str], column: str, image: str
) -> bool:
    """Tell whether tables are called like other splits than the training, whose folders hold none of their images."""
    words = {word for path in tables_read for word in split_words(path)}
    training = [folder for folder in tree.images if _TRAINING & {*split_words(folder)}]
    if not words or not training or words & _TRAINING:
        return False
    rows = ((heads[path], row) for path in tables_read for row in range(len(heads[path].few(column))))
    return not any(head.path_in(row, image).rpartition("/")[0] in training for head, row in rows)


def _plain(column: str) -> str:
    return re.sub(r"[^a-z0-9]", "", column.lower())


def _are_fractions(values: Sequence[Any]) -> bool:
    try:
        numbers = [float(value) for value in values]
    except (TypeError, ValueError):
        return False
    return any(number % 1 > 0 for number in numbers)  # not for NaN


def _few(values: Sequence[Any]) -> list[Any]:
    return [value for value in values if value not in (None, "")][:NAMES_KEPT]


# --- images and splits ------------------------------------------------------------------------------------------------


def _folders(tree: Inventory) -> list[str]:
    """The root, the folders with images, and the folders that these are in."""
    return list(dict.fromkeys(("", *tree.images, *(one.rpartition("/")[0] for one in tree.images))))


def _in_folders_of_a_column(
    tree: Inventory, columns: Mapping[str, Sequence[Any]], column: str, names: Sequence[str]
) -> Iterator[str]:
    """The paths of images that lie in folders which another column names."""
    for other in columns:
        rows = zip(columns[other], columns[column], strict=True)
        parts = [cell for cell, name in rows if name not in (None, "")][: len(names)]
        if other == column or not all(isinstance(part, str | int) and part != "" for part in parts):
            continue
        for folder in _folders(tree):
            for suffix in ("", *tree.suffixes):
                paths = [below(folder, f"{part}/{name}{suffix}") for part, name in zip(parts, names, strict=True)]
                if _existing(tree, paths):
                    yield f"{literal(below(folder, ''))}{{{other}}}/{{{column}}}{suffix}"


def _found_at(tree: Inventory, name: str) -> str | None:
    """The path of the image of this name in any folder."""
    paths = (below(folder, name) for folder in tree.images) if image_suffix(name) else ()
    return next((path for path in paths if os.path.isfile(os.path.join(tree.root, path))), None)


def _existing(tree: Inventory, paths: Sequence[str]) -> bool:
    # `os.path.isfile` answers for any text, `Path.is_file` raises for a name of more than 255 bytes.
    missing = 0
    for path in paths:
        missing += not (image_suffix(path) and os.path.isfile(os.path.join(tree.root, path)))
        if len(paths) - missing < _FITS * len(paths):
            return False
    return True


def _is_mask(column: str) -> bool:
    word = re.sub(r"[_ ]?(?:path|file_?name|file|name)$", "", column, flags=re.IGNORECASE)
    return MASK_WORD.fullmatch(word) is not None or MASK_WORD.fullmatch(re.split(r"[_ ]", word)[-1]) is not None


def _joint(
    pattern: str, head: _TableHead, column: str, image: str, heads: Mapping[str, _TableHead]
) -> tuple[str, list[str]]:
    """The path of the images for the tables of several splits, and the tables that it fits: with the split in it, or without."""
    compiled = compile_pattern(pattern, "detect")
    split_of = {path: (compiled.match_path(path) or {}).get("split", "") for path in heads}
    by_split = _with_split(image, split_of[head.path])
    label, boxes = head.label(), _box_columns(head)[0]
    labels = [label] if label else _flag_columns(head) or ()
    needed = {*CellPath.parse(image, True).columns, *labels, *boxes}
    alike = [path for path, one in heads.items() if needed <= set(one.columns)]
    best: tuple[str, list[str]] = (image, [head.path])
    for template in (image, by_split):
        fits = [path for path in alike if heads[path].paths.get(column) == template.replace("{split}", split_of[path])]
        if head.path in fits and (len(fits), template == by_split) >= (len(best[1]), True):
            best = template, fits
    return best


def _with_split(path: str, split: str) -> str:
    return re.sub(rf"(?<![A-Za-z{{]){re.escape(split)}(?![A-Za-z}}])", "{split}", path)


# --- one row an image -------------------------------------------------------------------------------------------------


def _samples(pattern: str, head: _TableHead, image: str, splits: Splits) -> LayoutGuess | None:
    """The table as a source of one sample a row; None where it says nothing about the images."""

    def is_one(cell: Any) -> bool:
        with suppress(SourceError):
            return bool(flag_cell(cell))
        return False

    fields, form, doubts = _further_fields(head, image)
    options: dict[str, Any] = {} if form is None else {"box_format": form}
    label: ColumnNames | None = head.label()
    label = None if label in {c for _, c in fields.values()} else label
    label = label or (None if {"mask", "boxes"} & set(fields) else _flag_columns(head))
    if label is None and not fields and not doubts:
        kind, other = _only_other(head, image) or ("label", None)
        label = other if kind == "label" else None
        fields |= {kind: (kind, other)} if other and kind != "label" else {}
        doubts += [f"{other!r} is taken for {kind} (fields=)"] if fields else []
    if label is None and not fields:
        return None
    separator = _separator(head, label) if isinstance(label, str) else None
    one_class = label is not None and separator is None
    if isinstance(label, tuple):
        one_class = all(sum(map(is_one, row)) == 1 for row in zip(*(head.columns[c] for c in label), strict=True))
        doubts.append(f"label= of the columns {', '.join(label[:6])}{', …' * (len(label) > 6)}")
    elif label is not None:
        one_class = one_class and not any(isinstance(value, list) for value in head.columns[label])
        doubts.append(f"label={label!r} is a guess from the column's name")
    if separator is not None:
        doubts.append(f"each cell of {label!r} holds several classes, divided by {separator!r} (separator=)")
    if isinstance(splits, str):
        doubts.append(f"splits={splits!r}" + " is a guess from the column's name" * ("{" not in splits))
    if "{split}" not in pattern and splits is None:
        splits = BY_CLASS if one_class else FRACTIONS
    of_one = next((c for c in filter(_OF_ONE.fullmatch, head.columns) if c != label and c not in head.paths), None)
    ones = [value for value in head.columns[of_one] if value not in (None, "")] if of_one else []
    # Two values are classes, as of a scene: indoor, outdoor.
    if isinstance(splits, Fractions) and 2 < len(set(ones)) < len(ones):
        doubts.append(
            f"images share {of_one!r}, and may be in two splits: Fractions(..., group_by={of_one!r}) keeps them together"
        )
    source = Table(pattern, image, label, fields, splits=splits, separator=separator, **options)
    return LayoutGuess("table", source, "", tuple(doubts))


def _further_fields(head: _TableHead, image: str) -> tuple[dict[str, tuple[Kind, str]], BoxFormat | None, list[str]]:
    """Return the texts, masks and boxes of a table of one sample a row, the form of the boxes, and the doubts about it."""
    column, _ = head.image()
    fields: dict[str, tuple[Kind, str]] = {
        c: ("text", c) for c in head.columns if c.lower() in _TEXTS and c not in head.paths
    }
    images = set(head.columns[column])  # numbers of annotations may be the numbers of images too
    masks = [c for c in head.paths if c != column and _is_mask(c) and images.isdisjoint(head.columns[c])]
    if masks and (empty := sum(value in (None, "") for value in head.columns[masks[0]])):
        return (
            fields,
            None,
            [f"{masks[0]!r} is empty in {empty} rows, and is not read: no sample may be without its mask"],
        )
    if masks:
        path = head.paths[masks[0]]
        split = next((word[0] for word in SPLIT_WORD.finditer(head.path)), "")
        fields["mask"] = "mask", _with_split(path, split) if "{split}" in image else path
    for boxes in head.columns:
        # Boxes that stand as a list of rows in one cell.
        rows = [(row, value) for row, value in enumerate(head.columns[boxes]) if isinstance(value, list) and value]
        if rows and all(isinstance(one, list) and len(one) == 4 for _, value in rows for one in value):
            of_rows = [(row, one) for row, value in rows for one in value]
            form = _form(head, image, of_rows, ("xywh", "xyxy"), boxes)
            fields["boxes"] = "boxes", boxes
            names = [c for c in head.columns if c != boxes and c.rpartition(".")[0] == boxes.rpartition(".")[0]]
            of_boxes = [c for c in names if _plain(c.rpartition(".")[2]) in _LABELS or "categor" in c.lower()]
            fields |= {"box_labels": ("label", of_boxes[0])} if of_boxes else {}
            return fields, form, [f"boxes={boxes!r} are taken for {form} (box_format=)"]
    return fields, None, []


def _flag_columns(head: _TableHead) -> tuple[str, ...] | None:
    """The columns of single classes, which hold 1 or 0 (or -1)."""
    flag_columns = []
    for column, values in head.columns.items():
        distinct = {str(value).strip().lower().removesuffix(".0") for value in values if value not in (None, "")}
        flags = any(distinct <= pair for pair in ({"0", "1"}, {"-1", "1"}, {"true", "false"}))
        if column not in head.paths and column in head.targets and distinct and flags:
            flag_columns.append(column)
    return tuple(flag_columns) if len(flag_columns) > 1 else None


def _only_other(head: _TableHead, image: str) -> tuple[Kind, str] | None:
    """The only column beside the images', or that of fractions called like a class, and what it may hold.

    That is classes, numbers, or text where all cells differ.
    """
    names = [column for column in head.columns if column and _plain(column) not in ("key", "index")]
    known = {*CellPath.parse(image, True).columns, *head.paths, head.split()}
    others = [column for column in names if column not in known and column in head.targets]
    parts = [
        set(re.split(r"[/_.-]", head.path_in(row, image))) for row in range(len(next(iter(head.columns.values()))))
    ]
    others = [c for c in others if not all(str(v) in of_row for v, of_row in zip(head.columns[c], parts, strict=True))]
    if (target := head.named(_LABELS)) in others:
        others = [target]
    values = [value for value in head.columns[others[0]] if value not in (None, "")] if len(others) == 1 else []
    distinct = len({str(value) for value in values})
    if distinct < 2:
        return None
    try:
        whole = all(float(value).is_integer() for value in values)
    except (TypeError, ValueError):
        return ("text" if distinct == len(values) > 2 else "label"), others[0]
    few = distinct <= max(20, len(values) / 2) and distinct < len(values)
    return ("label" if whole and few else "scalar"), others[0]


def _separator(head: _TableHead, column: str) -> str | None:
    """Return what divides the classes in the cells of a column; None where each holds one."""
    values = {value.strip() for value in head.columns[column] if isinstance(value, str) and value.strip()}
    for separator in _SEPARATORS:
        parts = {value: [part.strip() for part in value.split(separator) if part.strip()] for value in values}
        names = {part for of_value in parts.values() for part in of_value}
        several = [value for value, of_value in parts.items() if len(of_value) > 1]
        alone = all(any(part in values for part in parts[value]) for value in several)
        certain = separator == "|" or (separator == " " and all(part.isdecimal() for part in names))
        if several and (certain or (len(names) < len(values) and (alone or _PLURAL.fullmatch(column)))):
            return separator
    return None


# --- several rows an image --------------------------------------------------------------------------------------------


def _objects(pattern: str, head: _TableHead, image: str, splits: Splits) -> LayoutGuess | None:
    """The table as a source of an object a row; None where its rows are samples."""
    boxes, forms = _box_columns(head)
    runs, label = head.runs(), head.label()
    keys = Counter(zip(*(head.columns[column] for column in CellPath.parse(image, True).columns), strict=True))
    several = max(keys.values(), default=0) > 1
    if not boxes and runs is None and (not several or label is None or any(map(_is_mask, head.paths))):
        return None
    options: dict[str, Any] = {}
    doubts: list[str] = []
    fields = ["box_labels"]
    if boxes:
        form = _form(head, image, _box_rows(head, boxes), forms, ", ".join(boxes))
        options = {"boxes": boxes if len(boxes) == 4 else boxes[0], "box_format": form}
        fields = ["boxes", "box_labels"]
        doubts.append(f"the boxes are taken for {form} of {', '.join(boxes)} (box_format=)")
    if runs is not None:
        options["runs"] = runs
        fields += ["box_numbers", "instances", "mask"]
        doubts.append(f"the run lengths of {runs!r} are taken to be counted from 1, down the columns")
    if not boxes and runs is None:
        doubts.append("several rows name one image: box_labels are the classes of an image")
    if label is not None:
        doubts.append(f"label={label!r} is a guess from the column's name")
    if isinstance(splits, str) and "{" not in splits:
        options["split"], splits = splits, None
    elif "{split}" not in pattern and splits is None:
        splits = FRACTIONS
    source = ObjectTable(pattern, image, label, fields=tuple(fields), splits=splits, **options)
    return LayoutGuess("table", source, "", tuple(doubts))


def _box_columns(head: _TableHead) -> tuple[tuple[str, ...], tuple[BoxFormat, ...]]:
    """The columns of a box, four or one, and the forms that it may have. SourceError for corners of quadrangles."""
    named = [column for column in reversed(list(head.columns)) if column not in head.paths]
    plain = {_BOX_PREFIX.sub("", _plain(column)): column for column in named}
    for form, of_form in _BOX_COLUMNS.items():
        for names in map(str.split, of_form):
            if not plain.keys() >= set(names):
                continue
            if {"x3", "y3"} <= set(plain):
                rule = "the columns x1, y1, x2, y2, x3, y3 are points or corners, which tfprep reads from COCO alone"
                raise SourceError(f"{head.where}: {rule}; write them as COCO's keypoints or polygons")
            columns = tuple(plain[name] for name in names)
            if _box_rows(head, columns):
                return columns, (form,) if form != "xywh" else ("xywh", "center_xywh")
    for column in head.columns:
        if _BOX_NAME.fullmatch(_plain(column)) and _box_rows(head, (column,)):
            return (column,), ("xywh", "xyxy", "center_xywh")
    return (), ()


def _box_rows(head: _TableHead, columns: tuple[str, ...]) -> list[tuple[int, list[float]]]:
    """The number of each row with a box, and its four numbers; nothing if rows hold something else."""
    rows = []
    for row, cells in enumerate(zip(*(head.columns[column] for column in columns), strict=True)):
        try:
            values = box_cells(columns, dict(zip(columns, cells, strict=True)), comma=True)
        except (SourceError, WrongAnnotation):
            return []
        if values is not None:
            rows.append((row, values))
    return rows


def _form(
    head: _TableHead, image: str, rows: Sequence[tuple[int, list[float]]], forms: Sequence[BoxFormat], columns: str
) -> BoxFormat:
    """The first form in which the boxes lie in their images. SourceError if there is none."""
    few = rows[:NAMES_KEPT]
    relative = all(-0.01 <= value <= 1.01 for _, values in few for value in values)
    tolerance = 0.01 if relative else TOLERANCE_PX
    sizes: dict[int, Any] = {}
    for row, _ in few:
        with suppress(SampleError):  # a reject of the build
            sizes[row] = (1, 1) if relative else pixels_size(read_raw(head.tree.root, head.path_in(row, image)))
    sized_rows = [(values, sizes[row]) for row, values in few if row in sizes]
    for form in forms:
        fits = 0
        for values, (height, width) in sized_rows:
            x0, y0, x1, y1 = convert_boxes(np.array(values), "xyxy", source=form).tolist()
            inside = min(x0, y0) >= -tolerance and x1 <= width + tolerance and y1 <= height + tolerance
            fits += bool(inside and x0 < x1 and y0 < y1)
        if fits >= _FITS * len(sized_rows):
            return f"rel_{form}" if relative else form  # type: ignore[return-value]
    raise SourceError(
        f"{head.where}: the boxes of {columns} do not lie in their images as {' or '.join(forms)}, such as row "
        f"{few[0][0] + 1}: {few[0][1]}"
    )


def _columns_left(source: Any, head: _TableHead) -> list[str]:
    """Return the columns that the source does not read."""
    options = [getattr(source, name, None) for name in ("label", "boxes", "runs", "split", "splits")]
    named = {one for option in options for one in (option if isinstance(option, tuple) else (option,))}
    fields = source.fields.values() if isinstance(source, Table) else ()
    for text in (source.image, *(text for _, text in fields)):
        named |= {text, *Template.parse(text).holes}
    names = [name for name in named if isinstance(name, str)]
    return [
        c
        for c in filter(None, head.columns)
        if not any(c == n or c.startswith(f"{n}.") or n.startswith(f"{c}.") for n in names)
    ]
