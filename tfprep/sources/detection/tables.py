"""Rules for tables: a column names the images, and others say their classes, their splits, or the boxes in them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import numpy as np

from tfprep.errors import SampleError, SourceError
from tfprep.fields import BoxFormat, Kind, convert_boxes
from tfprep.images import pixels_size
from tfprep.sources.annotations import ObjectTable
from tfprep.sources.annotations.listing import WrongAnnotation
from tfprep.sources.annotations.object_table import box_cells
from tfprep.sources.annotations.objects import TOLERANCE_PX
from tfprep.sources.cells import ColumnNames
from tfprep.sources.detection import BY_CLASS, FRACTIONS, Proposal
from tfprep.sources.detection.annotated import image_place, without_place
from tfprep.sources.detection.files import FEW, Files, below
from tfprep.sources.patterns import Template, by_form, image_suffix, is_test, literal, split_form, split_words
from tfprep.sources.raw import read_raw
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
_SHOWN = 3


class _Head(NamedTuple):
    """The first rows of a table: its path, its columns, and the path of an image with columns in braces ("" without images)."""

    path: str
    columns: Mapping[str, Sequence[Any]]
    image: str = ""

    def few(self, column: str) -> list[Any]:
        """Return the first values of a column that are not empty."""
        return [value for value in self.columns[column] if value not in (None, "")][:FEW]

    @property
    def of_image(self) -> list[str]:
        """The columns that make the path of an image."""
        return Template.parse(self.image).holes if "{" in self.image else [self.image]

    @property
    def images(self) -> list[str]:
        """The path of the image of each row."""
        template = Template.parse(self.image if "{" in self.image else f"{{{self.image}}}")
        count = len(self.columns[self.of_image[0]])
        paths = (template.fill(lambda name, row=row: str(self.columns[name][row])) for row in range(count))  # type: ignore[misc]
        return [path.replace("\\", "/") for path in paths]


def _plain(column: str) -> str:
    return re.sub(r"[^a-z0-9]", "", column.lower())


def tables(files: Files) -> Iterator[Proposal]:
    """Yield the sources of tables whose rows name images, those of one split each together.

    Raises:
        SourceError: A table names images and cannot be read.
    """
    stored = [path for path in files.others(".parquet") if file_columns(files.root / path)]
    if stored:
        yield from _of_stored_images(files, stored)
    paths = [path for path in files.others(*TABLE_SUFFIXES) if path not in stored]
    answers = [path for path in paths if _ANSWERS.search(path.rpartition("/")[2])]
    for pattern, of_form in by_form(path for path in paths if path not in answers).items():
        heads = [_head(files, path) for path in of_form]
        if any(head.image for head in heads):
            yield from _proposals(files, pattern, heads, answers)


def _head(files: Files, path: str) -> _Head:
    """Return the first rows of a table, and where the images are that one of its columns names.

    Raises:
        SourceError: A column holds names of images, and they are nowhere.
    """
    where = files.root / path
    try:
        rows = next(batches(where, column_names(where)), None)
    except SourceError:
        if any(map(image_suffix, re.split(r"[,;\t\s\"']+", " ".join(files.lines(path))))):
            raise
        return _Head(path, {})
    columns = {} if rows is None else rows.columns
    found: dict[str, bool] = {}
    for column, values in columns.items():
        texts = [
            str(value).replace("\\", "/") for value in values if isinstance(value, str | int) and value is not True
        ]
        names = list(filter(None, texts))[:FEW] if column else []
        are_files = bool(names) and all(map(image_suffix, names))
        for suffix in ("", *files.suffixes) if names else ():
            spelled = [f"{name}{suffix}" for name in names]
            place = image_place(files, spelled, path)
            place = "**" if place is None and files.image_names.issuperset(spelled) else place
            if place is not None:
                hole = f"{{{column}}}" if place or suffix else column
                found.setdefault(below("**" if place == "**" else literal(place), f"{hole}{suffix}"), are_files)
        unknown = column not in found and f"{{{column}}}" not in str(found)
        if unknown and are_files and files.images and "mask" not in column.lower():
            raise without_place(files, names, path, f"{column!r} names")
    return _Head(path, columns, max(found, key=found.__getitem__, default=""))


def _proposals(files: Files, pattern: str, heads: Sequence[_Head], answers: Sequence[str]) -> Iterator[Proposal]:
    """Yield the source of the tables of one pattern, or one for each column that may be the label."""
    named = [head for head in heads if head.image]
    head = next((one for one in named if "train" in split_words(one.path)), named[0])
    needed = {c for c in head.columns if _plain(c) in _LABELS and c not in head.of_image} or set(head.columns)
    kept = [one for one in named if needed <= set(one.columns)]
    others = [one for one in heads if one not in kept]
    strange = [
        f"{one.path} names images, and has other columns" for one in others if one.image and not is_test(one.path)
    ]
    images = {one.image for one in kept}
    if len(images) > 1:
        images = {split_form(one, True) for one in images}
    if len(images) != 1:
        raise SourceError(
            f"{kept[0].path} and {kept[1].path} name images in folders that differ in more than the split"
        )
    of_split = [c for c in head.columns if _plain(c) in _SPLITS]
    column = next(
        (c for c in of_split if head.few(c) and all(split_form(str(v)) == "{split}" for v in head.few(c))), None
    )
    splits: Any = column or FRACTIONS
    if column is None and "{split}" in pattern:
        splits = files.splits_of(pattern, [one.path for one in kept])
    elif column is None and len(forms := {split_form(path.rpartition("/")[0]) for path in head.images}) == 1:
        splits = f"{form}/**" if "{split}" in (form := forms.pop()) else FRACTIONS
    targets = [
        c
        for c in head.columns
        if c not in head.of_image and c != column and all(c not in one.columns for one in others if one.image)
    ]
    unlabeled = frozenset(path for one in others if one.image for path in one.images)
    declared = (pattern, *map(literal, (*answers, *(one.path for one in others))))
    for source, checks, doubts in _sources(
        files, pattern if column is None else literal(head.path), head, images.pop(), splits, targets
    ):
        folds = [f"{head.path}: the column {c!r} may say the splits, and this recipe draws new ones" for c in of_split]
        drawn = folds if source.splits in (FRACTIONS, BY_CLASS) else []
        yield Proposal("table", source, declared, tuple(checks), (*doubts, *drawn, *strange), unlabeled)


def _sources(
    files: Files, table: str, head: _Head, image: str, splits: Any, targets: Sequence[str]
) -> Iterator[tuple[Any, list[str], list[str]]]:
    """Yield sources with checks and doubts: with boxes, texts or masks, or with each column that may be the label."""
    varied = [c for c in targets if c and len({*map(str, head.columns[c])}) > 1]
    named = [c for c in targets if _plain(c) in _LABELS and (len(_plain(c)) > 1 or len(c) == 1)]
    labels = [c for c in named if c in varied] or named
    candidates: list[ColumnNames] = [*_without_twins(head, labels)]
    doubts: list[str] = []
    if not labels:
        flags = tuple(c for c in targets if _are_flags(head.few(c)))
        candidates = [flags] if len(flags) > 1 and set(varied) <= set(flags) else [*varied]
    if len(candidates) > 1:
        unnamed = "" if labels else ", and none has the name of one"
        doubts = [f"{head.path}: several columns may be the label ({', '.join(map(str, candidates[:6]))}){unnamed}"]
    boxes, form, nested = _boxes(files, head, targets)
    check = f"the boxes of {', '.join(boxes)} are taken for {form} (box_format=)"
    masks = [
        c
        for c in targets
        if "mask" in c.lower() and image_place(files, [*map(str, head.few(c))], head.path) is not None
    ]
    fields: dict[str, tuple[Kind, str]] = {c: ("text", c) for c in targets if c.lower() in ("text", "caption")}
    if nested:  # lists of boxes, as Hugging Face writes them
        names = [c for c in targets if c != boxes[0] and re.search("categor|label", c.lower())]
        fields = {"boxes": ("boxes", boxes[0])}
        if names:
            fields["box_labels"] = "label", names[0]
        yield Table(table, image, fields=fields, box_format=form or "xywh", splits=splits), [check], []
    elif boxes or len(set(head.images)) < len(head.images):
        options: dict[str, Any] = (
            {"split": splits} if isinstance(splits, str) and "{" not in splits else {"splits": splits}
        )
        options |= (
            {"boxes": boxes if len(boxes) == 4 else boxes[0], "box_format": form}
            if boxes
            else {"fields": ("box_labels",)}
        )
        alone = (
            [] if boxes else [f"{head.path}: several rows name one image: box_labels are then the classes of an image"]
        )
        for label in _without_twins(head, labels)[:_SHOWN] or (None,):
            yield (
                ObjectTable(table, image, label, **options),
                [check] if boxes else [],
                [*(doubts if labels else ()), *alone],
            )
    elif masks and not labels:
        place = str(image_place(files, [*map(str, head.few(masks[0]))], head.path))
        path = below(split_form(place) if "{split}" in table else literal(place), f"{{{masks[0]}}}")
        yield Table(table, image, fields={"mask": ("mask", path)}, splits=splits), [], []
    elif fields and not labels:
        yield Table(table, image, fields=fields, splits=splits), [], []
    else:
        yield from (_of_label(head, table, image, splits, label, doubts) for label in candidates[:_SHOWN])


def _of_label(
    head: _Head, table: str, image: str, splits: Any, label: ColumnNames, doubts: Sequence[str]
) -> tuple[Table, list[str], list[str]]:
    """Return the source with a column, or several of 1 and 0, as the label."""
    by_class = BY_CLASS if splits is FRACTIONS else splits
    if isinstance(label, tuple):
        rows = zip(*(head.columns[column] for column in label), strict=True)
        one = all(sum(str(cell).strip().lower() in ("1", "1.0", "true") for cell in row) == 1 for row in rows)
        checks = [f"each of the columns {', '.join(label[:6])}{', …' * (len(label) > 6)} is a class (label=)"]
        return Table(table, image, label, splits=by_class if one else splits), checks, [*doubts]
    values = head.few(label)
    checks = [] if _plain(label) in ("label", "labels", "class") else [f"the label is the column {label!r} (label=)"]
    with suppress(TypeError, ValueError):
        if any(float(value) % 1 > 0 for value in values):
            source = Table(table, image, fields={"scalar": ("scalar", label)}, splits=splits)
            return source, [f"{label!r} holds fractions, and is taken for a number (fields=)"], [*doubts]
    separator, certain = _separator(label, values)
    several = separator is not None or any(isinstance(value, list) for value in values)
    if separator is not None:
        cells = [value for value in values if separator in value.strip()][:_SHOWN]
        shown = "; ".join(f"{v!r} is {[one.strip() for one in v.split(separator) if one.strip()]}" for v in cells)
        checks.append(f"cells of {label!r} hold several classes: {shown} (separator=)")
    further = (
        [] if certain else [f"{head.path}: {separator!r} in {label!r} may divide classes, or be part of their names"]
    )
    if any(isinstance(value, str) and re.match(r"\s*[\[{]", value) for value in values):
        further.append(
            f"{head.path}: cells of {label!r} are lists as text, such as {values[0]!s:.40}: write JSON lines"
        )
    if not several and (len({*map(str, values)}) == len(values) > 2 or len({*map(str, values)}) < 2):
        further.append(f"{head.path}: the values of {label!r} are all different or all the same, not like classes")
    return (
        Table(table, image, label, splits=splits if several else by_class, separator=separator),
        checks,
        [*doubts, *further],
    )


def _without_twins(head: _Head, labels: Sequence[str]) -> list[str]:
    """Return the columns of classes without those that number the classes of another."""
    kept: list[str] = []
    for label in sorted(labels, key=lambda one: all(str(v).isdecimal() for v in head.few(one))):
        values = [*map(str, head.columns[label])]
        pairs = (set(zip(values, map(str, head.columns[one]), strict=True)) for one in kept)
        kept += [] if any(len(twins) == len(set(values)) for twins in pairs) else [label]
    return kept


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


def _boxes(files: Files, head: _Head, targets: Sequence[str]) -> tuple[tuple[str, ...], BoxFormat | None, bool]:
    """Return the columns of boxes, four or one, their form, and True if a cell holds a list of boxes; () without boxes.

    Raises:
        SourceError: The boxes are not inside of their images, or are corners of quadrangles.
    """
    plain = {re.sub(r"^(?:bbox|box|roi|bb)(?=.)", "", _plain(c.rpartition(".")[2])): c for c in reversed(targets)}
    plain |= {_plain(c.rpartition(".")[2]): c for c in reversed(targets)}
    if {"x3", "y3"} <= set(plain):
        raise SourceError(
            f"{head.path}: the columns x1, y1, x2, y2, x3, y3 are points or corners: write them as COCO's keypoints"
        )
    for forms, of_forms in _BOXES:
        for names in (one.split() for one in of_forms.split(", ")):
            columns = tuple(plain[name] for name in names if name in plain)
            nested = len(columns) == 1 and any(
                isinstance(v, list) and v and isinstance(v[0], list) for v in head.few(columns[0])
            )
            if len(columns) == len(names) and (rows := _box_rows(head, columns, nested)):
                return columns, _form(files, head, rows, forms, ", ".join(columns)), nested
    return (), None, False


def _box_rows(head: _Head, columns: tuple[str, ...], nested: bool) -> list[tuple[int, list[float]]]:
    """Return the number of each row with a box, and its four numbers; nothing if rows hold something else."""
    rows = []
    with suppress(SourceError, WrongAnnotation, TypeError):
        for row, cells in enumerate(zip(*(head.columns[column] for column in columns), strict=True)):
            for of_one in zip(cells[0]) if nested else [cells]:
                values = box_cells(columns, dict(zip(columns, of_one, strict=True)), comma=True)
                rows += [] if values is None else [(row, values)]
        return rows
    return []


def _form(
    files: Files, head: _Head, rows: Sequence[tuple[int, list[float]]], forms: Sequence[BoxFormat], columns: str
) -> BoxFormat:
    """Return the first form in which nine in ten of the boxes are inside of their images. SourceError if there is none."""
    few, images = rows[:FEW], head.images
    relative = all(-0.01 <= value <= 1.01 for _, values in few for value in values)
    most = 0.01 if relative else TOLERANCE_PX
    sized: list[tuple[list[float], Any]] = []
    for row, values in few:
        with suppress(SampleError):  # the build rejects it
            sized.append((values, (1, 1) if relative else pixels_size(read_raw(files.root, images[row]))))
    for form in forms:
        corners = ((*convert_boxes(np.array(box), "xyxy", source=form).tolist(), *size) for box, size in sized)
        inside = [-most <= x0 < x1 <= w + most and -most <= y0 < y1 <= h + most for x0, y0, x1, y1, h, w in corners]
        if inside and 10 * sum(inside) >= 9 * len(inside):
            return f"rel_{form}" if relative else form  # type: ignore[return-value]
    rule = f"{head.path}: the boxes of {columns} are not inside of their images as {' or '.join(forms)}"
    raise SourceError(f"{rule}, such as row {few[0][0] + 1}: {few[0][1]}")


# --- images in the table itself -------------------------------------------------------------------------------------


def _of_stored_images(files: Files, paths: Sequence[str]) -> Iterator[Proposal]:
    """Yield the source of Parquet files that hold the images, as Hugging Face writes them."""
    first = files.root / paths[0]
    stored, columns = file_columns(first), column_names(first)
    image = "image" if "image" in stored else stored[0]
    masks = [name for name in stored if name != image]
    labels = [c for c in columns if "." not in c and declared_classes(first, c) is not None]
    labels = labels or [c for c in columns if _plain(c) in _LABELS and c not in stored]
    fields: dict[str, tuple[Kind, str]] = {"mask": ("mask", masks[0])} if masks else {}
    fields |= {c: ("text", c) for c in columns if c in ("text", "caption")}
    options: dict[str, Any] = {}
    if boxes := next((name for name in ("objects.bbox", "objects.bboxes", "boxes") if name in columns), None):
        fields["boxes"] = ("boxes", boxes)
        of_boxes = [c for c in columns if c == "box_labels" or re.fullmatch(r"objects\.(?:categor|label).*", c)]
        fields |= {"box_labels": ("label", of_boxes[0])} if of_boxes else {}
        labels = [name for name in labels if name not in of_boxes]
        options = {} if f"{boxes}_shape" in columns else {"box_format": "xywh"}  # our own exports have shapes
    checks = ("boxes are taken for x, y, width and height (box_format=), as in COCO",) if options else ()
    known = {image, *masks, *labels, "key", *(column for _, column in fields.values())}
    others = [
        c
        for c in columns
        if c not in known and c.partition(".")[0] not in (*stored, "objects") and not c.endswith("_shape")
    ]
    doubts = [f"{paths[0]}: several columns may be the label ({', '.join(labels)})"] if len(labels) > 1 else []
    if others and not labels and not fields:
        labels, doubts = (
            others,
            [f"{paths[0]}: the columns {', '.join(others[:6])} may be the label, and none has the name of one"],
        )
    doubts += [f"{paths[0]}: several columns hold images ({', '.join(stored)})"] if len(masks) > 1 else []
    forms = {re.sub(r"\d+(?=-of-|\.parquet)|(?<=-of-)\d+", "*", form) for form in by_form(paths)}
    pattern = forms.pop() if len(forms) == 1 else "**/*.parquet"
    for label in labels[:_SHOWN] or (None,):
        splits = None if "{split}" in pattern else BY_CLASS if label else FRACTIONS
        source = Table(pattern, image, label, fields, splits=splits, **options)
        yield Proposal("table", source, (pattern,), checks, tuple(doubts))
