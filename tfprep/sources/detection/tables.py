"""Rules for tables: a column names the images, and others say their classes, their splits, or the boxes in them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any

from tfprep.errors import SourceError
from tfprep.fields import BoxFormat, Kind
from tfprep.sources.annotations import ObjectTable
from tfprep.sources.cells import ColumnNames
from tfprep.sources.detection import BY_CLASS, FRACTIONS, Proposal
from tfprep.sources.detection.facts import look
from tfprep.sources.detection.files import FEW, Files, below, image_place
from tfprep.sources.patterns import Template, image_suffix, is_test, literal, split_form, split_words
from tfprep.sources.rows import TABLE_SUFFIXES, batches, column_names, declared_classes, file_columns
from tfprep.sources.table import Table

_LABELS = frozenset((
    *("label", "labels", "class", "classes", "classname", "classid", "classlabel", "category", "categoryid", "labelname"),
    *("species", "target", "diagnosis", "breed", "dx", "tags", "findinglabels", "attributeids", "emotion", "variety", "y"),
))  # fmt: skip
_SPLITS = frozenset(
    ("split", "subset", "partition", "set", "datasplit", "dataset", "usage", "fold", "folds", "isvalid")
)
_ANSWERS = re.compile(r"sample_?submission|submission", re.IGNORECASE)
"""Tables of Kaggle that show the form of an answer."""
_BOXES: Sequence[tuple[tuple[BoxFormat, ...], str]] = (
    (
        ("xyxy",),
        "xmin ymin xmax ymax, minx miny maxx maxy, x0 y0 x1 y1, x1 y1 x2 y2, left top right bottom, xtl ytl xbr ybr",
    ),
    (("center_xywh",), "xcenter ycenter width height, cx cy width height, cx cy w h, xcenter ycenter w h"),
    (
        ("xywh", "center_xywh"),
        "xmin ymin width height, x y width height, x y w h, left top width height, x1 y1 width height",
    ),
    (("xywh", "xyxy", "center_xywh"), "bbox, bboxes, box, boxes, boundingbox"),
)
"""Forms that a box may have, and the names of its columns, in lower case and without other characters."""
_NUMBER = re.compile(r"-?\d+(?:[.]\d*)?(?:e-?\d+)?")
_SHOWN = 3


@dataclass
class _Head:
    """The first rows of a table, and what is found out about it.

    Attributes:
        path: Its path.
        columns: Its columns, without those that hold files.
        image: The path of an image with columns in braces, or the column that holds it; "" without images.
        stored: The columns that hold files.
        checks, doubts: As in `Proposal`.
    """

    path: str
    columns: Mapping[str, Sequence[Any]]
    image: str = ""
    stored: tuple[str, ...] = ()
    checks: list[str] = field(default_factory=list)
    doubts: list[str] = field(default_factory=list)

    def doubt(self, reason: str) -> None:
        """Add a doubt."""
        self.doubts.append(f"{self.path}: {reason}")

    def few(self, column: str) -> list[Any]:
        """Return the first values of a column that are not empty."""
        return [value for value in self.columns[column] if value not in (None, "")][:FEW]

    def numbers(self, column: str) -> list[float]:
        """Return the numbers in the first cells of a column, also in lists and in text."""
        cells = (re.sub(r"^(-?\d+),(\d+)$", r"\1.\2", str(value).strip()) for value in self.few(column))
        return [float(number) for cell in cells for number in _NUMBER.findall(cell)]

    @cached_property
    def path_of_image(self) -> Template:
        """The path of an image, with a placeholder for each column that it is made of."""
        return Template.parse(self.image if "{" in self.image else f"{{{self.image}}}")

    @cached_property
    def images(self) -> list[str]:
        """The path of the image of each row; [] if the table itself holds them."""
        holes = self.path_of_image.holes
        rows = [] if self.stored else zip(*(self.columns[name] for name in holes), strict=True)
        cells = (dict(zip(holes, map(str, row), strict=True)) for row in rows)
        return [self.path_of_image.fill(of_row.__getitem__).replace("\\", "/") for of_row in cells]


def _plain(column: str) -> str:
    return re.sub(r"[^a-z0-9]", "", column.lower())


def tables(files: Files) -> Iterator[Proposal]:
    """Yield the sources of tables whose rows name images, those of one split each together.

    Raises:
        SourceError: A table names images and cannot be read.
    """
    paths = files.paths(*TABLE_SUFFIXES)
    answers = [path for path in paths if _ANSWERS.search(path.rpartition("/")[2])]
    grouped: dict[str, list[_Head]] = {}
    for path in (path for path in paths if path not in answers):
        pattern = re.sub(r"\d+(?=-of-|\.parquet)|(?<=-of-)\d+", "*", split_form(path))
        first = next(iter(grouped.get(pattern, ())), None)
        head = replace(first, path=path) if first is not None and first.stored else _head(files, path)
        grouped.setdefault(pattern, []).append(head)
    for pattern, heads in grouped.items():
        if any(head.image for head in heads) and (proposal := _proposal(files, pattern, heads, answers)) is not None:
            yield proposal


def _head(files: Files, path: str) -> _Head:
    """Return the first rows of a table, and where the images are that one of its columns names.

    Raises:
        SourceError: A column holds names of images, and they are nowhere.
    """
    stored: list[str] = []
    try:
        stored = file_columns(files.root / path) if path.lower().endswith(".parquet") else []
        names = [name for name in column_names(files.root / path) if name.partition(".")[0] not in stored]
        rows = next(batches(files.root / path, names), None)
    except SourceError:
        if any(map(image_suffix, re.split(r"[,;\t\s\"']+", " ".join(files.lines(path))))):
            raise
        rows = None
    columns = {} if rows is None else rows.columns
    if stored:
        return _Head(path, columns, "image" if "image" in stored else stored[0], tuple(stored))
    found: dict[str, bool] = {}
    for column, values in columns.items():
        texts = (
            str(value).replace("\\", "/") for value in values if isinstance(value, str | int) and value is not True
        )
        names = list(filter(None, texts))[:FEW] if column else []
        are_files = bool(names) and all(map(image_suffix, names))
        for suffix in ("", *files.suffixes) if names else ():
            spelled = [f"{name}{suffix}" for name in names]
            try:
                place = image_place(files, spelled, path, f"{column!r} names")
                image = below(literal(place), f"{{{column}}}{suffix}") if place or suffix else column
            except SourceError:
                if not files.image_names.issuperset(spelled):
                    if are_files and not suffix and files.images and "mask" not in column.lower():
                        raise
                    continue
                image = f"**/{{{column}}}{suffix}"
            found.setdefault(image, are_files)
    return _Head(path, columns, max(found, key=found.__getitem__, default=""))


def _proposal(files: Files, pattern: str, heads: Sequence[_Head], answers: Sequence[str]) -> Proposal | None:
    """Return the source of the tables of one pattern; None if they hold nothing about their images."""
    named = [head for head in heads if head.image]
    head = next((table for table in named if "train" in split_words(table.path)), named[0])
    of_image = head.path_of_image.holes
    needed = {c for c in head.columns if _plain(c) in _LABELS and c not in of_image} or set(head.columns)
    kept = [table for table in named if needed <= set(table.columns)]
    without_labels = [table for table in named if table not in kept]
    images = {table.image for table in kept}
    images = images if len(images) == 1 else {split_form(image, True) for image in images}
    if len(images) != 1:
        rule = "name images in folders that differ in more than the split"
        raise SourceError(f"{kept[0].path} and {kept[1].path} {rule}")
    of_split = [c for c in head.columns if _plain(c) in _SPLITS]
    by_column = (c for c in of_split if head.few(c) and all(split_form(str(v)) == "{split}" for v in head.few(c)))
    splits: Any = next(by_column, None)
    table = pattern if splits is None else literal(head.path)
    folders = {split_form(image.rpartition("/")[0]) for image in head.images}
    if splits is None and "{split}" in pattern:
        splits = files.splits_of(pattern, [table.path for table in kept])
    elif splits is None:
        folder = folders.pop() if len(folders) == 1 else ""
        splits = f"{folder}/**" if "{split}" in folder else FRACTIONS
    known = {*of_image, *(name.rpartition(".")[0] for name in head.columns), *(["key"] if head.stored else [])}
    known |= {column for without_label in without_labels for column in without_label.columns} | {str(splits)}
    targets = [c for c in head.columns if c not in known and not c.endswith("_shape")]
    source = _source(files, head, table, images.pop(), splits, targets)
    if source is None:
        return None
    for one in without_labels:
        if not is_test(one.path):
            one.doubt("names images, and has other columns")
    for column in of_split if source.splits in (FRACTIONS, BY_CLASS) else []:
        head.doubt(f"the column {column!r} may say the splits, and this recipe draws new ones")
    declared = (pattern, *map(literal, (*answers, *(table.path for table in heads if table not in kept))))
    doubts = tuple(doubt for one in (head, *without_labels) for doubt in one.doubts)
    unlabeled = frozenset(path for without_label in without_labels for path in without_label.images)
    return Proposal("table", source, declared, tuple(head.checks), doubts, unlabeled)


def _source(
    files: Files, head: _Head, table: str, image: str, splits: Any, targets: Sequence[str]
) -> Table | ObjectTable | None:
    """Return the source of a table with boxes, with labels, or with masks and texts."""
    columns, forms = _box_columns(head, targets)
    targets = [c for c in targets if c not in columns]
    labels = [c for c in targets if "." not in c and declared_classes(files.root / head.path, c) is not None]
    named = [c for c in targets if _plain(c) in _LABELS and (len(_plain(c)) > 1 or len(c) == 1)]
    labels = labels or _without_codes(head, named)
    cells = head.few(columns[0]) if columns else []
    exported = bool(columns) and f"{columns[0]}_shape" in head.columns
    nested = exported or any(isinstance(cell[0], list) for cell in cells if isinstance(cell, list) and cell)
    if not nested and (columns or len(set(head.images)) < len(head.images)):
        return _of_rows_for_objects(files, head, partial(ObjectTable, table, image), splits, labels, columns, forms)
    fields = _masks_and_texts(files, table, head, targets)
    make = partial(Table, table, image, fields=fields, splits=splits)
    if nested:
        of_boxes = [c for c in targets if re.search("categor|box_label|objects.label", c.lower())]
        fields |= {"boxes": ("boxes", columns[0])}
        fields |= {"box_labels": ("label", of_boxes[0])} if of_boxes else {}
        make = partial(make, box_format=_box_form(files, head, columns, forms, make))
        labels = [c for c in labels if c not in of_boxes]
    varied = [c for c in targets if len(set(map(str, head.columns[c]))) > 1]
    flags = tuple(c for c in targets if _are_flags(head.few(c)))
    candidates: Sequence[ColumnNames] = labels
    if not labels and not fields:
        candidates = [flags] if len(flags) > 1 and set(varied) <= set(flags) else varied
    if not candidates:
        return make() if fields or head.stored else None
    _doubt_labels(head, candidates, labels)
    return _with_label(head, make, splits, candidates[0])


def _without_codes(head: _Head, labels: Sequence[str]) -> list[str]:
    """Return the columns of labels without those that number the classes of another."""
    texts = {column: [*map(str, head.columns[column])] for column in labels}
    numbers = {column for column in labels if all(text.isdecimal() for text in texts[column])}

    def is_code(column: str, other: str) -> bool:
        both = {*zip(texts[column], texts[other], strict=True)}
        return len(both) == len({*texts[column]}) == len({*texts[other]})

    return [
        c for c in labels if c not in numbers or not any(is_code(c, label) for label in labels if label not in numbers)
    ]


def _doubt_labels(head: _Head, candidates: Sequence[ColumnNames], labels: Sequence[str]) -> None:
    columns = ", ".join(map(str, candidates[:6]))
    if not labels and not isinstance(candidates[0], tuple):
        head.doubt(f"no column has the name of a label, and it may be {columns} (label=)")
    elif len(candidates) > 1:
        head.doubt(f"several columns may be the label ({columns})")


def _masks_and_texts(files: Files, table: str, head: _Head, targets: Sequence[str]) -> dict[str, tuple[Kind, str]]:
    """Return the fields of masks and texts."""
    masks = [name for name in head.stored if name != head.image]
    for column in (c for c in targets if "mask" in c.lower()):
        with suppress(SourceError):
            place = image_place(files, [*map(str, head.few(column))], head.path, f"{column!r} names")
            masks.append(below(split_form(place) if "{split}" in table else literal(place), f"{{{column}}}"))
    if len(masks) > 1:
        head.doubt(f"several columns may be the mask ({', '.join(masks)})")
    fields: dict[str, tuple[Kind, str]] = {"mask": ("mask", masks[0])} if masks else {}
    return fields | {c: ("text", c) for c in targets if c.lower() in ("text", "caption")}


def _of_rows_for_objects(
    files: Files, head: _Head, make: Callable[..., ObjectTable], splits: Any, labels: Sequence[str],
    columns: tuple[str, ...], forms: Sequence[BoxFormat],
) -> ObjectTable:  # fmt: skip
    """Return the source of a table with a row for each object, or for each class of an image."""
    by_column = isinstance(splits, str) and "{" not in splits
    make = partial(make, label=next(iter(labels), None), **{"split" if by_column else "splits": splits})
    if labels:
        _doubt_labels(head, labels, labels)
    if not columns:
        head.doubt("several rows name one image: box_labels are then the classes of an image")
        return make(fields=("box_labels",))
    make = partial(make, boxes=columns if len(columns) == 4 else columns[0])
    return make(box_format=_box_form(files, head, columns, forms, partial(make, bad_annotations="reject")))


def _with_label(head: _Head, make: Callable[..., Table], splits: Any, label: ColumnNames) -> Table:
    """Return the source with a column, or several of 1 and 0, as the label."""
    by_class = BY_CLASS if splits is FRACTIONS else splits
    if isinstance(label, tuple):
        rows = zip(*(head.columns[column] for column in label), strict=True)
        one_flag_per_row = all(
            sum(str(cell).strip().lower() in ("1", "1.0", "true") for cell in row) == 1 for row in rows
        )
        head.checks.append(f"each of the columns {', '.join(label[:6])}{', …' * (len(label) > 6)} is a class (label=)")
        return make(label=label, splits=by_class if one_flag_per_row else splits)
    values = head.few(label)
    if _plain(label) not in ("label", "labels", "class"):
        head.checks.append(f"the label is the column {label!r} (label=)")
    separator, certain = _separator(label, values)
    several = separator is not None or any(isinstance(value, list) for value in values)
    if separator is not None:
        cells = [value for value in values if separator in value.strip()][:_SHOWN]
        shown = "; ".join(
            f"{v!r} is {[one_flag_per_row.strip() for one_flag_per_row in v.split(separator) if one_flag_per_row.strip()]}"
            for v in cells
        )
        head.checks.append(f"cells of {label!r} hold several classes: {shown} (separator=)")
    if not certain:
        head.doubt(f"{separator!r} in {label!r} may divide classes, or be part of their names")
    if any(isinstance(value, str) and re.match(r"\s*[\[{]", value) for value in values):
        head.doubt(f"cells of {label!r} are lists as text, such as {values[0]!s:.40}: write JSON lines")
    different = len({*map(str, values)})
    if not several and (different == len(values) > 2 or different < 2):
        head.doubt(f"the values of {label!r} are all different or all the same, not like classes")
    return make(label=label, splits=splits if several else by_class, separator=separator)


def _separator(column: str, values: Sequence[Any]) -> tuple[str | None, bool]:
    """Return what divides the classes in cells, None where each holds one; and whether that is certain."""
    cells = {value.strip() for value in values if isinstance(value, str) and value.strip()}
    plural = re.fullmatch(r".*(?:labels|classes|tags|ids|categories|attributes|genres)", _plain(column)) is not None
    for separator in ("|", ";", ",", " "):
        several = [cell for cell in cells if separator in cell]
        parts = {part.strip() for cell in several for part in cell.split(separator)}
        if several and (separator == "|" or (plural and parts & cells) or parts <= cells):
            return separator, True
        if several and separator != " " and "(" not in "".join(several):
            return separator, False
    return None, True


def _are_flags(values: Sequence[Any]) -> bool:
    found = {str(value).strip().lower().removesuffix(".0") for value in values}
    return bool(found) and any(found <= pair for pair in ({"0", "1"}, {"-1", "1"}, {"true", "false"}))


# --- boxes ----------------------------------------------------------------------------------------------------------


def _box_columns(head: _Head, targets: Sequence[str]) -> tuple[tuple[str, ...], tuple[BoxFormat, ...]]:
    """Return the columns of boxes, four or one, and the forms that these may have; () without boxes."""
    plain = {re.sub(r"^(?:bbox|box|roi|bb)(?=.)", "", _plain(c.rpartition(".")[2])): c for c in reversed(targets)}
    plain |= {_plain(c.rpartition(".")[2]): c for c in reversed(targets)}
    if {"x3", "y3"} <= set(plain):
        rule = "the columns x1, y1, x2, y2, x3, y3 are points or corners: write them as COCO's keypoints"
        raise SourceError(f"{head.path}: {rule}")
    for forms, of_forms in _BOXES:
        for names in (one.split() for one in of_forms.split(", ")):
            columns = tuple(plain[name] for name in names if name in plain)
            if columns and f"{columns[0]}_shape" in head.columns:  # of our own exports
                return columns, ("xyxy",)
            if len(columns) == len(names) and all(map(head.numbers, columns)):
                return columns, forms
    return (), ()


def _box_form(
    files: Files, head: _Head, columns: tuple[str, ...], forms: Sequence[BoxFormat], make: Callable[..., Any]
) -> str:
    """Return the first form in which nine in ten images have their boxes inside. SourceError if there is none."""
    relative = all(-0.01 <= value <= 1.01 for column in columns for value in head.numbers(column))
    problems: list[str] = []
    for form in (f"rel_{form}" if relative else form for form in forms):
        facts = look(make(box_format=form), files.root)
        problems += facts.problems[:1]
        if facts.opened and 10 * len(facts.problems) <= facts.opened:
            head.checks.append(f"the boxes of {', '.join(columns)} are taken for {form} (box_format=)")
            return form
    rule = f"the boxes of {', '.join(columns)} are not inside of their images as {' or '.join(forms)}"
    raise SourceError(f"{head.path}: {rule}, such as {''.join(problems[:1])}")
