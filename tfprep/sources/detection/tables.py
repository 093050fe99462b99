"""Recognises tables beside images: which columns name the images, their classes, masks and splits, and the objects in them."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from tfprep.boxes import BoxFormat, convert_boxes
from tfprep.errors import SampleError, SourceError
from tfprep.fields import Kind
from tfprep.images import pixels_size
from tfprep.sources.annotations import ObjectTable
from tfprep.sources.annotations.objects import TOLERANCE_PX
from tfprep.sources.cells import ColumnNames, flag_cell, path_columns, path_template
from tfprep.sources.detection.guess import BY_CLASS, FRACTIONS, LayoutGuess, Refusal
from tfprep.sources.detection.inventory import NAMES_KEPT, Inventory, below
from tfprep.sources.detection.pairs import MASK_WORD, SPLIT_WORD, split_pattern, splits_of_paths
from tfprep.sources.patterns import compile_pattern, literal
from tfprep.sources.raw import open_raw, read_raw
from tfprep.sources.rows import BATCH_ROWS, TABLE_SUFFIXES, batches, column_names
from tfprep.sources.splits import Fractions
from tfprep.sources.table import Table
from tfprep.sources.walk import image_suffix

_LABELS = (
    "label", "labels", "class", "classes", "classname", "classid", "classlabel", "category", "categoryid", "labelname",
    "species", "target", "y", "diagnosis", "breed", "dx", "tags", "findinglabels", "attributeids", "emotion", "variety",
)  # fmt: skip
_SPLITS = ("split", "subset", "fold", "partition", "set", "datasplit", "dataset")
_TEXTS = ("text", "caption")
_NO_LABELS = re.compile(r"sample_?submission|submission", re.IGNORECASE)
"""Tables of Kaggle that show the form of an answer: their labels are not those of the images."""
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
        f"{centre} {size}"
        for centre in ("xcenter ycenter", "centerx centery", "cx cy", "xc yc", "xcentre ycentre")
        for size in ("width height", "w h")
    ),
    "xywh": tuple(
        f"{corner} {size}"
        for corner in ("xmin ymin", "x y", "left top", "x1 y1", "x0 y0", "minx miny")
        for size in ("width height", "w h")
    ),
}
"""Names of the four columns of a box, in lower case and without other characters than letters and digits."""
_FITS = 0.9


@dataclass(frozen=True)
class _Seen:
    """A table as its first rows show it.

    Attributes:
        path: Its path relative to the root.
        columns: Its columns, and the values of the first rows in each.
        paths: The columns whose values name images that exist, and the path with columns in braces.
    """

    path: str
    columns: Mapping[str, Sequence[Any]]
    paths: Mapping[str, str] = field(default_factory=dict)

    def named(self, names: Sequence[str]) -> str | None:
        """The first column with one of these names that names no images."""
        plain = {_plain(column): column for column in reversed(list(self.columns)) if column not in self.paths}
        return next((plain[name] for name in names if name in plain), None)

    def few(self, column: str) -> list[Any]:
        """The first values of a column that are not empty."""
        return [value for value in self.columns[column] if value not in (None, "")][:NAMES_KEPT]


def tables(tree: Inventory) -> Iterator[LayoutGuess | Refusal]:
    """Yield the tables whose rows name images, those of one split each together; those with objects first."""
    paths = [path for path in tree.files(*TABLE_SUFFIXES) if not _NO_LABELS.search(path.rpartition("/")[2])]
    by_split: dict[str, list[str]] = {}
    for path in paths:
        by_split.setdefault(split_pattern(path), []).append(path)
    found: list[LayoutGuess] = []
    if (several := _tables_of_folders(tree, paths)) is not None:
        yield from several
        return
    for pattern, of_pattern in by_split.items():
        try:
            guess = _guess(tree, pattern, of_pattern)
        except SourceError as error:
            yield Refusal("table", error)
            continue
        found += [] if guess is None else [guess]
    yield from sorted(found, key=lambda guess: not isinstance(guess.source, ObjectTable))


def _tables_of_folders(tree: Inventory, paths: Sequence[str]) -> list[Refusal] | None:
    """None, but where folders that are no splits have a table each: a refusal, or nothing where each of these, as in GTSRB, has
    one class alone."""
    own = [path for path in paths if (folder := path.rpartition("/")[0]) in tree.images and folder]
    own = [path for path in own if not SPLIT_WORD.search(path.split("/")[-2])]
    if len(own) < 2:
        return None
    for path in own:
        try:
            seen = _seen(tree, path)
        except SourceError as error:
            return [Refusal("table", error)]
        label = None if seen is None or not seen.paths else seen.named(_LABELS)
        if seen is not None and label is not None and len({str(cell) for cell in seen.columns[label]}) > 1:
            rule = f"{tree.root}: {own[0]} and {own[1]} are tables of their own folders"
            return [Refusal("table", SourceError(f"{rule}; write one table of all images, with their paths"))]
    return []


def _guess(tree: Inventory, pattern: str, paths: Sequence[str]) -> LayoutGuess | None:
    """The table as a source; None where no column names images, or none says anything about them. SourceError if it names images
    and cannot be read."""
    looked = {path: seen for path in paths if (seen := _seen(tree, path)) is not None and seen.paths}
    if not looked:
        return None
    seen = next((one for path, one in looked.items() if "train" in path.lower()), next(iter(looked.values())))
    column, image = _image_column(seen)
    splits: Fractions | str | tuple[str, ...] | None = None
    taken, doubts = [seen.path], list[str]()
    if "{split}" in pattern and _split_column(seen) is None:
        image, taken = _joint(pattern, seen, column, image, looked)
        compiled = compile_pattern(pattern, "detect")
        files = [path for path in tree.files(compiled.suffix or "") if compiled.match_path(path)]
        if unread := [path for path in files if path not in taken]:
            splits = tuple((compiled.match_path(path) or {})["split"] for path in taken)
            doubts += [f"this recipe does not read {path}" for path in unread]
    else:
        pattern = literal(seen.path)
        splits = _split_column(seen) or _split_of_path(tree, seen, image)
    guess = _objects(tree, pattern, seen, image, splits) or _samples(tree, pattern, seen, image, splits)
    if guess is None:
        _refuse_text(tree, seen)
        return None
    layout = f"a table beside images: {seen.path}" if len(taken) == 1 else f"tables, one a split: {', '.join(taken)}"
    return guess._replace(layout=layout, doubts=(*guess.doubts, *_left_out(guess.source, seen), *doubts))


def _seen(tree: Inventory, path: str) -> _Seen | None:
    """A table and the images that it names; None if it is none. SourceError if it seems to name images and cannot be read."""
    try:
        columns = column_names(tree.root / path)
        rows = next(batches(tree.root / path, columns), None)
    except SourceError:
        if any(image_suffix(word) for word in _words(tree, path)):
            raise
        return None
    seen = _Seen(path, {} if rows is None else rows.columns)
    found = {column: template for column in seen.columns if (template := _image_template(tree, seen, column))}
    names = [column for column in columns if any(map(str.isdigit, column)) or image_suffix(column)]
    if first := next(
        (column for column in names if _image_template(tree, _Seen(path, {column: [column]}), column)), None
    ):
        rule = f"{tree.root / path}: its first row names the image {first!r}, and is no row of column names"
        raise SourceError(f"{rule}; write one above it, such as image,label")
    if "region_shape_attributes" in columns:
        rule = f"{tree.root / path} is a file of VGG Image Annotator, which tfprep does not read"
        raise SourceError(f"{rule}; export COCO from it")
    if rows is not None and not found:
        lost = next(
            (c for c in columns if (few := seen.few(c)) and all(image_suffix(str(value)) for value in few)), None
        )
        runs = next((c for c in columns if _are_runs(seen, c)), None)
        if lost is not None:
            said = ", ".join(map(str, seen.few(lost)[:3]))
            raise SourceError(f"{tree.root / path}: no folder holds the images that {lost!r} names, such as {said}")
        if runs is not None:
            rule = f"{tree.root / path}: {runs!r} holds masks as run lengths, and no column names images as they are called"
            raise SourceError(f"{rule}; write a column with the name of each image (ImageId)")
    return replace(seen, paths=found)


def _refuse_text(tree: Inventory, seen: _Seen) -> None:
    """Raise SourceError if cells are objects as text of Python or JSON."""
    for column in seen.columns:
        few = [str(value).strip() for value in seen.few(column)]
        if few and all(re.match(r"\[\s*[{\[]|\{", value) for value in few):
            rule = f"{tree.root / seen.path}: the cells of {column!r} are lists as text, such as {few[0]:.60}"
            raise SourceError(f"{rule}; write a table with a row for each object, or JSON lines")


def _words(tree: Inventory, path: str) -> list[str]:
    try:
        with open_raw(tree.root / path) as file:
            return re.split(r"[,;\t\s\"']+", file.read(1 << 14).decode("utf-8", "replace"))
    except OSError:
        return []


def _plain(column: str) -> str:
    return re.sub(r"[^a-z0-9]", "", column.lower())


# --- images and splits ------------------------------------------------------------------------------------------------


def _image_template(tree: Inventory, seen: _Seen, column: str) -> str | None:
    """How the column's values become paths of images that exist, nine in ten at least; None where they do not."""
    values = seen.few(column)
    if not values or not all(isinstance(value, str | int) and not isinstance(value, bool) for value in values):
        return None
    names = [str(value).replace("\\", "/") for value in values]
    in_columns = _in_folders_of_a_column(tree, seen, column, names)
    if in_columns and len(set(names)) < len(names):
        return in_columns
    for folder in dict.fromkeys((seen.path.rpartition("/")[0], *_folders(tree))):
        prefix = f"{folder}/" if folder else ""
        for suffix in ("", *tree.images.get(folder, ())):
            if _existing(tree, [below(folder, f"{name}{suffix}") for name in names]):
                return f"{literal(prefix)}{{{column}}}{suffix}" if prefix or suffix else column
    if in_columns:
        return in_columns
    for suffix in ("", *_suffixes(tree)):  # names of files, wherever these lie
        paths = [_found_at(tree, f"{name}{suffix}") for name in names]
        if sum(path is not None for path in paths) >= _FITS * len(names):
            return f"**/{{{column}}}{suffix}"
    return None


def _folders(tree: Inventory) -> list[str]:
    """The root, the folders with images, and the folders that these are in."""
    return list(dict.fromkeys(("", *tree.images, *(one.rpartition("/")[0] for one in tree.images))))


def _suffixes(tree: Inventory) -> list[str]:
    return list(dict.fromkeys(suffix for of_folder in tree.images.values() for suffix in of_folder))


def _in_folders_of_a_column(tree: Inventory, seen: _Seen, column: str, names: Sequence[str]) -> str | None:
    """The path of images that lie in folders which another column names."""
    for other in seen.columns:
        rows = zip(seen.columns[other], seen.columns[column], strict=True)
        parts = [cell for cell, name in rows if name not in (None, "")][: len(names)]
        if other == column or not all(isinstance(part, str | int) and part != "" for part in parts):
            continue
        for folder in _folders(tree):
            for suffix in ("", *_suffixes(tree)):
                paths = [below(folder, f"{part}/{name}{suffix}") for part, name in zip(parts, names, strict=True)]
                if _existing(tree, paths):
                    return f"{literal(f'{folder}/' if folder else '')}{{{other}}}/{{{column}}}{suffix}"
    return None


def _found_at(tree: Inventory, name: str) -> str | None:
    """The path of the image of this name in any folder."""
    paths = (below(folder, name) for folder in tree.images) if image_suffix(name) else ()
    return next((path for path in paths if os.path.isfile(os.path.join(tree.root, path))), None)


def _existing(tree: Inventory, paths: Sequence[str]) -> bool:
    # `os.path.isfile` answers for any text, `Path.is_file` raises for a name of more than 255 bytes.
    found = sum(image_suffix(path) and os.path.isfile(os.path.join(tree.root, path)) for path in paths)
    return found >= _FITS * len(paths)


def _is_mask(column: str) -> bool:
    return (
        MASK_WORD.fullmatch(re.sub(r"[_ ]?(?:path|file_?name|file|name)$", "", column, flags=re.IGNORECASE)) is not None
    )


def _image_column(seen: _Seen) -> tuple[str, str]:
    """The column that names the images, and their path: the first one that does not name masks."""
    return next((one for one in seen.paths.items() if not _is_mask(one[0])), next(iter(seen.paths.items())))


def _split_column(seen: _Seen) -> str | None:
    """A column of several splits by their names."""
    column = seen.named(_SPLITS)
    names = {str(value) for value in seen.columns[column]} if column is not None else set()
    return column if names and all(re.fullmatch(r"[A-Za-z]\w*", name) for name in names) else None


def _path(tree: Inventory, seen: _Seen, image: str, row: int) -> str:
    """The path of the image of a row."""
    split = next((word[0] for word in SPLIT_WORD.finditer(seen.path)), "")
    path = path_template(image).fill(lambda name: str(seen.columns[name][row] if name in seen.columns else split))
    path = path.replace("\\", "/")
    return path if not path.startswith("**/") else _found_at(tree, path[3:]) or path[3:]


def _split_of_path(tree: Inventory, seen: _Seen, image: str) -> str | None:
    rows = range(min(BATCH_ROWS, len(next(iter(seen.columns.values())))))
    return splits_of_paths(_path(tree, seen, image, row) for row in rows)


def _joint(pattern: str, seen: _Seen, column: str, image: str, looked: Mapping[str, _Seen]) -> tuple[str, list[str]]:
    """The path of the images for the tables of several splits, and the tables that it fits: with the split in it, or without."""
    compiled = compile_pattern(pattern, "detect")
    split_of = {path: (compiled.match_path(path) or {}).get("split", "") for path in looked}
    by_split = re.sub(_word(split_of[seen.path]), "{split}", image)
    alike = [path for path, one in looked.items() if set(_needed(seen)) <= set(one.columns)]
    best: tuple[str, list[str]] = (image, [seen.path])
    for template in (image, by_split):
        fits = [path for path in alike if looked[path].paths.get(column) == template.replace("{split}", split_of[path])]
        if seen.path in fits and (len(fits), template == by_split) >= (len(best[1]), True):
            best = template, fits
    return best


def _word(split: str) -> str:
    return rf"(?<![A-Za-z{{]){re.escape(split)}(?![A-Za-z}}])"


def _needed(seen: _Seen) -> list[str]:
    """The columns that a table of another split must have too."""
    _, image = _image_column(seen)
    label = seen.named(_LABELS)
    boxes, _ = _box_columns(seen)
    return [*path_columns(path_template(image), by_file=True), *([label] if label else []), *boxes]


# --- one row an image -------------------------------------------------------------------------------------------------


def _samples(
    tree: Inventory, pattern: str, seen: _Seen, image: str, splits: Fractions | str | tuple[str, ...] | None
) -> LayoutGuess | None:
    """The table as a source of one sample a row; None where it says nothing about the images."""
    column, _ = _image_column(seen)
    fields: dict[str, tuple[Kind, str]] = {
        c: ("text", c) for c in seen.columns if c.lower() in _TEXTS and c not in seen.paths
    }
    masks = [c for c in seen.paths if c != column and _is_mask(c)]
    if masks:
        path = seen.paths[masks[0]]
        split = next((word[0] for word in SPLIT_WORD.finditer(seen.path)), "")
        by_split = "{split}" in image and re.sub(_word(split), "{split}", path)
        fields["mask"] = ("mask", by_split or path)
    boxes, format = next(((c, f) for c in seen.columns if (f := _nested_boxes(tree, seen, image, c))), ("", None))
    doubts = []
    if format is not None:
        fields["boxes"] = ("boxes", boxes)
        doubts.append(f"boxes={boxes!r} are taken for {format} (box_format=)")
        names = [c for c in seen.columns if c != boxes and c.rpartition(".")[0] == boxes.rpartition(".")[0]]
        of_boxes = next((c for c in names if _plain(c.rpartition(".")[2]) in _LABELS or "categor" in c.lower()), None)
        fields |= {"box_labels": ("label", of_boxes)} if of_boxes else {}
    label: ColumnNames | None = seen.named(_LABELS)
    label = None if label in {c for _, c in fields.values()} else label
    label = label or (None if masks or boxes else _flag_columns(seen))
    if label is None and not fields:
        kind, other = _only_other(seen, image) or ("label", None)
        label = other if kind == "label" else None
        fields |= {kind: (kind, other)} if other and kind != "label" else {}
        doubts += [f"{other!r} is taken for {kind} (fields=)"] if fields else []
    if label is None and not fields:
        return None
    separator = _separator(seen, label) if isinstance(label, str) else None
    several = isinstance(label, str) and any(isinstance(value, list) for value in seen.columns[label])
    flags = zip(*(seen.columns[column] for column in label), strict=True) if isinstance(label, tuple) else ()
    single = all(sum(map(_is_one, row)) == 1 for row in flags)
    stratified = label is not None and not several and separator is None and single
    if isinstance(label, tuple):
        doubts.append(f"label= of the columns {', '.join(label[:6])}{', …' * (len(label) > 6)}")
    elif label is not None:
        doubts.append(f"label={label!r} is a guess from the column's name")
    if separator is not None:
        doubts.append(f"each cell of {label!r} holds several classes, divided by {separator!r} (separator=)")
    if isinstance(splits, str):
        doubts.append(
            f"splits={splits!r} is a guess from the column's name" if "{" not in splits else f"splits={splits!r}"
        )
    if "{split}" not in pattern and splits is None:
        splits = BY_CLASS if stratified else FRACTIONS
    options: dict[str, Any] = {"box_format": format} if format else {}
    source = Table(pattern, image, label, fields, splits=splits, separator=separator, **options)
    return LayoutGuess("table", source, "", tuple(doubts))


def _is_one(cell: Any) -> bool:
    try:
        return bool(flag_cell(cell))
    except SourceError:
        return False


def _flag_columns(seen: _Seen) -> tuple[str, ...] | None:
    """The columns of single classes, which hold 1 or 0 (or -1)."""
    found = []
    for column, values in seen.columns.items():
        said = {str(value).strip().lower().removesuffix(".0") for value in values if value not in (None, "")}
        if (
            column not in seen.paths
            and said
            and (said <= {"0", "1"} or said <= {"-1", "1"} or said <= {"true", "false"})
        ):
            found.append(column)
    return tuple(found) if len(found) > 1 and all(column == column.strip() for column in found) else None


def _only_other(seen: _Seen, image: str) -> tuple[Kind, str] | None:
    """The only column beside the images', and what it may hold: classes, numbers, or text where all cells differ."""
    of_image = path_columns(path_template(image), by_file=True)
    names = [column for column in seen.columns if column and _plain(column) not in ("key", "index")]
    others = [column for column in names if column not in of_image and column not in seen.paths]
    values = [value for value in seen.columns[others[0]] if value not in (None, "")] if len(others) == 1 else []
    distinct = len({str(value) for value in values})
    if distinct < 2:
        return None
    try:
        whole = all(float(value).is_integer() for value in values)
    except (TypeError, ValueError):
        return ("text" if distinct == len(values) > 2 else "label"), others[0]
    few = distinct <= max(20, len(values) / 2) and distinct < len(values)
    return ("label" if whole and few else "scalar"), others[0]


def _separator(seen: _Seen, column: str) -> str | None:
    """What divides the classes in the cells of a column; None where each holds one."""
    values = {value.strip() for value in seen.columns[column] if isinstance(value, str) and value.strip()}
    for separator in _SEPARATORS:
        parts = {value: [part.strip() for part in value.split(separator) if part.strip()] for value in values}
        names = {part for of_value in parts.values() for part in of_value}
        several = [value for value, of_value in parts.items() if len(of_value) > 1]
        alone = all(any(part in values for part in parts[value]) for value in several)
        numbers = separator == " " and all(part.isdecimal() for part in names)
        if several and (
            separator == "|" or numbers or (len(names) < len(values) and (alone or _PLURAL.fullmatch(column)))
        ):
            return separator
    return None


def _nested_boxes(tree: Inventory, seen: _Seen, image: str, column: str) -> BoxFormat | None:
    """The form of boxes that stand as a list of rows in one cell."""
    rows = [(row, value) for row, value in enumerate(seen.columns[column]) if isinstance(value, list) and value]
    if not rows or not all(isinstance(one, list) and len(one) == 4 for _, value in rows for one in value):
        return None
    flat = [(row, one) for row, value in rows for one in value]
    return _form(tree, seen, image, flat, ("xywh", "xyxy"), column)


# --- several rows an image --------------------------------------------------------------------------------------------


def _objects(
    tree: Inventory, pattern: str, seen: _Seen, image: str, splits: Fractions | str | tuple[str, ...] | None
) -> LayoutGuess | None:
    """The table as a source of an object a row; None where its rows are samples."""
    names, forms = _box_columns(seen)
    runs = next((column for column in seen.columns if _are_runs(seen, column)), None)
    of_image = path_columns(path_template(image), by_file=True)
    keys = Counter(zip(*(seen.columns[column] for column in of_image), strict=True))
    several = max(keys.values(), default=0) > 1
    label = seen.named(_LABELS)
    if not names and runs is None and (not several or label is None or any(map(_is_mask, seen.paths))):
        return None
    options: dict[str, Any] = {}
    doubts: list[str] = []
    if names:
        rows = _box_rows(seen, names)
        form = _form(tree, seen, image, rows, forms, ", ".join(names))
        options = {"boxes": names if len(names) == 4 else names[0], "box_format": form}
        doubts.append(f"the boxes are taken for {form} of {', '.join(names)} (box_format=)")
    if runs is not None:
        options["runs"] = runs
        doubts.append(f"the run lengths of {runs!r} are taken to be counted from 1, down the columns")
    if not names and runs is None:
        doubts.append("several rows name one image: box_labels are the classes of an image")
    fields = ["boxes", "box_labels"] if names else ["box_labels"]
    fields += ["box_numbers", "instances", "mask"] if runs is not None else []
    if label is not None:
        doubts.append(f"label={label!r} is a guess from the column's name")
    if isinstance(splits, str) and "{" not in splits:
        options["split"], splits = splits, None
    elif "{split}" not in pattern and splits is None:
        splits = FRACTIONS
    source = ObjectTable(pattern, image, label, fields=tuple(fields), splits=splits, **options)
    return LayoutGuess("table", source, "", tuple(doubts))


def _are_runs(seen: _Seen, column: str) -> bool:
    few = [str(value) for value in seen.few(column) if str(value).strip() != "-1"]
    return bool(few) and bool(_RUNS_NAME.fullmatch(column)) and all(map(_RUNS.fullmatch, few))


def _box_columns(seen: _Seen) -> tuple[tuple[str, ...], tuple[BoxFormat, ...]]:
    """The columns of a box, four or one, and the forms that it may have. SourceError for corners of quadrangles."""
    plain = {
        _BOX_PREFIX.sub("", _plain(column)): column
        for column in reversed(list(seen.columns))
        if column not in seen.paths
    }
    for form, of_form in _BOX_COLUMNS.items():
        for names in of_form:
            if all(name in plain for name in names.split()):
                if {"x3", "y3"} <= set(plain):
                    raise SourceError(
                        f"{seen.path}: the columns are corners of quadrangles, which tfprep does not read"
                    )
                columns = tuple(plain[name] for name in names.split())
                if _box_rows(seen, columns):
                    return columns, (form,) if form != "xywh" else ("xywh", "center_xywh")
    for column in seen.columns:
        if _BOX_NAME.fullmatch(_plain(column)) and _box_rows(seen, (column,)):
            return (column,), ("xywh", "xyxy", "center_xywh")
    return (), ()


def _box_rows(seen: _Seen, columns: Sequence[str]) -> list[tuple[int, list[float]]]:
    """The number of each row with a box, and its four numbers; nothing if rows hold something else."""
    rows = []
    for row, cells in enumerate(zip(*(seen.columns[column] for column in columns), strict=True)):
        values: Any = cells
        if len(cells) == 1:
            values = re.split(r"[\s,]+", cells[0].strip("[](){} ")) if isinstance(cells[0], str) else cells[0]
        if values is None or all(value is None or str(value).strip().lower() in ("", "nan") for value in values):
            continue
        try:
            numbers = [float(str(value).replace(",", ".")) for value in values]
        except (TypeError, ValueError):
            return []
        if len(numbers) != 4:
            return []
        rows.append((row, numbers))
    return rows


def _form(
    tree: Inventory,
    seen: _Seen,
    image: str,
    rows: Sequence[tuple[int, list[float]]],
    forms: Sequence[BoxFormat],
    said: str,
) -> BoxFormat:
    """The first form in which the boxes lie in their images. SourceError if there is none."""
    few = rows[:NAMES_KEPT]
    relative = all(-0.01 <= value <= 1.01 for _, values in few for value in values)
    sizes: dict[int, Any] = {}
    for row, _ in few:
        with suppress(SampleError):  # a reject of the build
            sizes[row] = (1, 1) if relative else pixels_size(read_raw(tree.root, _path(tree, seen, image, row)))
    for form in forms:
        spelled: BoxFormat = f"rel_{form}" if relative else form  # type: ignore[assignment]
        fits = [
            _fits(values, form, sizes[row], 0.01 if relative else TOLERANCE_PX) for row, values in few if row in sizes
        ]
        if sum(fits) >= _FITS * len(fits):
            return spelled
    raise SourceError(
        f"{tree.root / seen.path}: the boxes of {said} do not lie in their images as {' or '.join(forms)}, such as row "
        f"{few[0][0] + 1}: {few[0][1]}"
    )


def _fits(values: list[float], form: BoxFormat, size: tuple[int, int], tolerance: float) -> bool:
    x0, y0, x1, y1 = convert_boxes(np.array(values), "xyxy", source=form).tolist()
    inside = min(x0, y0) >= -tolerance and x1 <= size[1] + tolerance and y1 <= size[0] + tolerance
    return bool(inside and x0 < x1 and y0 < y1)


def _left_out(source: Any, seen: _Seen) -> tuple[str, ...]:
    options = [getattr(source, name, None) for name in ("label", "boxes", "runs", "split", "splits", "image")]
    named = {column for one in options for column in (one if isinstance(one, tuple) else (one,))}
    if isinstance(source, Table):
        named |= {
            column for _, text in source.fields.values() for column in path_columns(path_template(text), by_file=True)
        }
        named |= {column for _, column in source.fields.values()}
    named |= set(path_columns(path_template(source.image), by_file=True))
    left = [
        column for column in seen.columns if column not in named and not any(column.startswith(f"{n}.") for n in named)
    ]
    left = [column for column in left if not any(str(n).startswith(f"{column}.") for n in named)]
    said = ", ".join(left[:12]) + (f" and {len(left) - 12} more" if len(left) > 12 else "")
    return (f"this recipe does not read the columns {said} (label=, fields=)",) if left else ()
