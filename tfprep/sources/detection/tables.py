"""Rules for tables: a column names the images, and others say their classes, their splits, or the boxes in them."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import islice
from typing import Any

from tfprep.errors import SourceError
from tfprep.fields import BoxFormat, Kind
from tfprep.sources.annotations import ObjectTable
from tfprep.sources.detection.facts import Reading, Remark
from tfprep.sources.detection.files import ANSWERS, FEW, FRACTIONS, Files, below, image_place, splits_for, splits_of
from tfprep.sources.detection.pictures import GROUP, are_groups, says_masks
from tfprep.sources.patterns import Template, columns_of, image_suffix, is_test, literal, split_form, split_words
from tfprep.sources.rows import BATCH_ROWS, TABLE_SUFFIXES, column_names, declared_classes, file_columns, rows_of
from tfprep.sources.splits import Fractions
from tfprep.sources.table import Table

_LABELS = {
    *("label", "labels", "class", "classes", "classname", "classid", "classlabel", "category", "categoryid", "labelname"),
    *("species", "target", "diagnosis", "breed", "dx", "tags", "findinglabels", "attributeids", "emotion", "variety"),
}  # fmt: skip
_SPLITS = {"split", "subset", "partition", "set", "datasplit", "dataset", "usage", "fold", "kfold", "isvalid"}
_ONE = "bbox, bboxes, box, boxes, boundingbox"
_BOXES: tuple[tuple[BoxFormat, str], ...] = (
    (
        "xyxy",
        "xmin ymin xmax ymax, minx miny maxx maxy, x0 y0 x1 y1, x1 y1 x2 y2, left top right bottom, xtl ytl xbr ybr",
    ),
    ("center_xywh", "xcenter ycenter width height, cx cy width height, cx cy w h, xcenter ycenter w h"),
    ("xywh", f"xmin ymin width height, x y width height, x y w h, left top width height, x1 y1 width height, {_ONE}"),
    ("xyxy", _ONE),
    ("center_xywh", f"x y width height, x y w h, {_ONE}"),
)
"""Names of the columns of boxes, in lower case and without other characters, and the form in which their numbers may be."""
_NUMBER = re.compile(r"-?\d+(?:[.]\d*)?(?:e-?\d+)?")
_SHOWN = 6
_FLAGS = ({"0", "1"}, {"-1", "1"}, {"true", "false"})


@dataclass
class _Head:
    """The first rows of a table, and what is found out about it."""

    path: str
    columns: Mapping[str, Sequence[Any]]  # without those that hold files
    image: str = ""  # the path of an image with columns in braces, or the column that holds it; "" without images
    stored: Sequence[str] = ()  # the columns that hold files
    remarks: list[Remark] = field(default_factory=list)

    def check(self, text: str) -> None:
        self.remarks.append((0, text))

    def doubt(self, reason: str) -> None:
        self.remarks.append((1, f"{self.path}: {reason}"))

    def check_unread(self, columns: Sequence[str]) -> None:
        cells = " / ".join(str(cell) for column in columns for cell in self.columns.get(column, ()))
        has_masks = re.search(r"\d[\d.]*([\[\](), ]+\d[\d.]*){2}", cells) is not None  # as runs or corners
        such = f"{', '.join(columns[:_SHOWN])}{', …' * (len(columns) > _SHOWN)}{', which may hold masks' * has_masks}"
        self.remarks += [(int(has_masks), f"not read: {such} (label=, fields=)")] if columns else []

    def filled(self, column: str) -> list[Any]:
        """Return the values of a column that are not empty."""
        return [value for value in self.columns[column] if value not in (None, "")]

    @cached_property
    def template(self) -> Template:
        """The path of an image, with a placeholder for each column that it is made of."""
        return Template.parse(self.image if "{" in self.image else f"{{{self.image}}}")

    @cached_property
    def images(self) -> list[str]:
        """The path of the image of each row; [] if the table itself holds them."""
        holes = self.template.holes
        rows = [] if self.stored else zip(*(map(str, self.columns[name]) for name in holes), strict=True)
        return [self.template.fill(dict(zip(holes, row, strict=True)).__getitem__).replace("\\", "/") for row in rows]


def _plain(column: str) -> str:
    return re.sub(r"[^a-z0-9]", "", column.lower())


def tables(files: Files) -> Iterator[Reading]:
    """Yield the sources of tables whose rows name images, those of one split each together. SourceError if one cannot be read."""
    grouped: dict[str, list[_Head]] = {}
    of_shards: dict[str, _Head] = {}
    for path in (path for path in files.paths(*TABLE_SUFFIXES) if not ANSWERS.fullmatch(path)):
        shards = re.sub(r"\d+(?=-of-|\.parquet)|(?<=-of-)\d+", "*", path)  # of one split, with the same columns
        if shards not in of_shards or not of_shards[shards].stored:
            of_shards[shards] = _head(files, path)
        grouped.setdefault(split_form(shards), []).append(replace(of_shards[shards], path=path))
    for pattern, heads in grouped.items():
        if any(head.image for head in heads):
            yield from _proposals(files, pattern, heads)


def _head(files: Files, path: str) -> _Head:
    """Return the first rows of a table, and where the images are that a column names. SourceError if they are nowhere."""
    stored = file_columns(files.root / path) if path.lower().endswith(".parquet") else []
    names = [name for name in column_names(files.root / path) if name.partition(".")[0] not in stored]
    if image := next(filter(image_suffix, names), ""):
        rule = "write a line with the names of the columns above it"
        raise SourceError(f"{path}: the first line names {image!r}: {rule}")
    rows = [cells for _, cells in islice(rows_of(files.root / path, names), BATCH_ROWS)]
    columns: Mapping[str, Sequence[Any]] = dict(zip(names, zip(*rows, strict=True), strict=True)) if rows else {}
    if stored:
        return _Head(path, columns, "image" if "image" in stored else stored[0], stored)
    found: dict[str, bool] = {}
    suffixes = sorted({name[name.rindex(".") :] for name in files.image_folders})
    for column in filter(None, columns):
        cells = [value for value in columns[column] if isinstance(value, str | int) and value is not True]
        names = [str(cell).replace("\\", "/") for cell in cells if cell != ""][:FEW]
        are_files = bool(names) and all(map(image_suffix, names))
        for suffix in ("", *suffixes) if names else ():
            spelled = [f"{name}{suffix}" for name in names]
            try:
                place = image_place(files, spelled, path, f"{column!r} names")
                image = below(literal(place), f"{{{column}}}{suffix}") if place or suffix else column
                found.setdefault(image, are_files)
            except SourceError:
                if files.image_folders.keys() >= {*spelled}:
                    found.setdefault(f"**/{{{column}}}{suffix}", are_files)
                elif are_files and not suffix and files.images and "mask" not in column.lower():
                    raise
    heads = [_Head(path, columns, image) for image in sorted(found, key=found.__getitem__, reverse=True)]
    for other in (one for one in heads[1:] if "mask" not in one.image.lower()):
        is_name = found[other.image] or len({*other.images}) == len(other.images)
        if is_name and other.images[:FEW] != heads[0].images[:FEW]:
            heads[0].doubt(f"{heads[0].image} and {other.image} name different images, such as two views")
    return heads[0] if heads else _Head(path, columns)


def _proposals(files: Files, pattern: str, heads: Sequence[_Head]) -> Iterator[Reading]:
    """Yield the source of the tables of one pattern, if they hold something about their images."""
    named = [one for one in heads if one.image]
    head = next((one for one in named if "train" in "".join(split_words(one.path))), named[0])
    needed = {c for c in head.columns if _plain(c) in _LABELS and c not in head.template.holes} or {*head.columns}
    needed |= {*head.stored}
    kept = [one for one in named if needed <= {*one.columns, *one.stored}]
    others = [one for one in named if not needed <= {*one.columns, *one.stored}]
    images = {one.image for one in kept}
    images = images if len(images) == 1 else {split_form(image, True) for image in images}
    if len(images) != 1:
        rule = "name images in folders that differ in more than the split"
        raise SourceError(f"{kept[0].path} and {kept[1].path} {rule}")
    no_labels = [c for c in head.columns if _plain(c) not in _LABELS]
    said = {c: {split_form(text) == "{split}" for text in {*map(str, head.filled(c))}} for c in no_labels}
    by_column = [c for c, are_splits in said.items() if are_splits == {True}]
    of_split = [c for c in head.columns if _plain(c) in _SPLITS or split_words(c) or True in said.get(c, ())]
    paths = [one.path for one in kept]
    table, splits = pattern, splits_of(files, pattern, paths, head.images)
    if by_column and len(named) == 1:
        table, splits = literal(head.path), by_column[0]
    known = {*head.template.holes, *(column for one in others for column in one.columns), str(splits)}
    known |= {name.rpartition(".")[0] for name in head.columns} | ({"key"} if head.stored else set())
    targets = [c for c in head.columns if c not in known and not c.endswith("_shape")]
    if sources := _sources(files, head, table, images.pop(), splits, targets):
        for column in of_split if isinstance(sources[0].splits, Fractions) else []:
            head.doubt(f"the column {column!r} may say the splits, and this recipe draws new ones")
        unlabeled = [path for one in others for path in one.images]
        if others:
            head.check(f"images of {', '.join(one.path for one in others)} have no labels, and are left out")
        declared = (*(one.path for one in heads if one.path in paths or is_test(one.path)), *unlabeled)
        yield Reading("table", sources[0], declared, head.remarks, sources[1:])


def _sources(files: Files, head: _Head, table: str, image: str, splits: Any, targets: Sequence[str]) -> list[Any]:
    """Return the source of a table with boxes, with labels, or with masks and texts; of boxes, one for each form of numbers."""
    boxes = _boxes(head, targets)
    targets = [c for c in targets if not any(c in columns for columns, _ in boxes)]
    (column, *further), _ = boxes[0] if boxes else (("",), "")
    cells = head.filled(column) if boxes and not further else []
    nested = any(isinstance(cell, list) and isinstance([*cell, 0][0], list) for cell in cells)
    nested |= f"{column}_shape" in head.columns  # of our own exports
    of_boxes = [c for c in targets if nested and re.search("categor|box_label|objects.label", c.lower())]
    targets = [c for c in targets if c not in of_boxes]
    declared = [c for c in targets if "." not in c and declared_classes(files.root / head.path, c) is not None]
    labels = _one_of_several(head, declared or [c for c in targets if _plain(c) in _LABELS or c == "y"])
    varied = [c for c in targets if len(set(map(str, head.columns[c]))) > 1]
    if not nested and (boxes or len({*head.images}) < len(head.images)):
        split = "split" if isinstance(splits, str) and "{" not in splits else "splits"
        of_rows: Any = partial(ObjectTable, table, image, label=next(iter(labels), None), **{split: splits})
        if boxes:
            head.check_unread([c for c in varied if c not in labels])
            return [of_rows(boxes=c if len(c) == 4 else c[0], box_format=form) for c, form in boxes]
        head.doubt("several rows name one image: box_labels are then the classes of an image")
        return [of_rows(fields=("box_labels",))]
    masks = _masks(files, table, head, targets)
    fields: dict[str, tuple[Kind, str]] = {"mask": ("mask", masks[0])} if masks else {}
    fields |= {c: ("text", c) for c in targets if c.lower() in ("text", "caption")}
    fields |= {"boxes": ("boxes", column)} if nested else {}
    fields |= {"box_labels": ("label", of_boxes[0])} if of_boxes else {}
    label: Any = labels[0] if labels else None if fields else _unnamed_label(head, targets, varied)
    separator = _separator(head, label, bool(declared)) if isinstance(label, str) else None
    if label is None and not fields and not head.stored:
        return []
    read = {*label} if isinstance(label, tuple) else {label, *(text for _, text in fields.values())}
    unread = [c for c in varied if c not in read and f"{{{c}}}" not in "".join(masks)]
    if label is None and any(not form for form, _ in columns_of([os.path.dirname(one) for one in head.images]) or ()):
        unread.append(f"the folders, such as that of {head.images[0]}")
    head.check_unread(unread)
    splits = splits_for(table, label is not None) if splits is FRACTIONS else splits
    make: Any = partial(Table, table, image, label, fields, splits=splits, separator=separator)
    return [make(box_format=form) for _, form in boxes] or [make()]


def _masks(files: Files, table: str, head: _Head, targets: Sequence[str]) -> list[str]:
    """Return the columns that hold masks, and the paths of masks that columns name."""
    masks = [name for name in head.stored if name != head.image]
    if not all(map(says_masks, masks)):
        head.doubt(f"the images of {', '.join(map(repr, masks))} may be masks, or depths, edges and other pictures")
    for column in (c for c in targets if "mask" in c.lower()):
        with suppress(SourceError):
            place = image_place(files, [*map(str, head.filled(column))], head.path, f"{column!r} names")
            masks.append(below(split_form(place) if "{split}" in table else literal(place), f"{{{column}}}"))
    if len(masks) > 1:
        head.doubt(f"several columns may be the mask ({', '.join(masks)})")
    return masks


def _one_of_several(head: _Head, labels: list[str]) -> list[str]:
    """Return one of several columns if they say the same, such as a number and a name of each class, names first."""
    together = {*zip(*(map(str, head.columns[c]) for c in labels), strict=True)}
    if any(len({*map(str, head.columns[c])}) < len(together) for c in labels):
        head.doubt(f"several columns may be the label ({', '.join(labels[:_SHOWN])})")
        return labels
    return sorted(labels, key=lambda c: all(map(_NUMBER.fullmatch, map(str, head.filled(c)))))[:1]


def _unnamed_label(head: _Head, targets: Sequence[str], varied: Sequence[str]) -> str | tuple[str, ...] | None:
    """Return the label of a table that no column names so: a column of classes, or a column of 1 and 0 for each class."""
    cells = {c: {str(cell).strip().lower().removesuffix(".0") for cell in head.filled(c)} for c in targets}
    flags = [c for c, of_column in cells.items() if of_column and any(of_column <= pair for pair in _FLAGS)]
    if len(varied) > 1 and {*varied} <= {*flags}:
        head.check(f"each of {', '.join(flags[:_SHOWN])}{', …' * (len(flags) > _SHOWN)} is a class (label=)")
        return tuple(flags)
    for label in varied[:1]:
        different = {*map(str, head.filled(label))}
        # Not numbers with gaps, patients, dates or run lengths.
        numbers = {*map(int, filter(str.isdecimal, different))}
        are_texts = not all(re.fullmatch(r"[-.\d\s,;]+", cell) for cell in different)
        of_groups = GROUP.fullmatch(f"{_plain(label).removesuffix('id')}1") or are_groups(different)
        are_classes = are_texts or numbers in ({*range(len(different))}, {*range(1, len(different) + 1)})
        if len(varied) > 1 or 2 * len(different) > len(head.filled(label)) or of_groups or not are_classes:
            head.doubt(f"no column has the name of a label, and it may be {', '.join(varied[:_SHOWN])} (label=)")
        return label
    return None


def _separator(head: _Head, label: str, declared: bool) -> str | None:
    """Return what divides the classes in the cells of a label, None if nothing does; add what is to be said about the label."""
    values = head.filled(label)
    cells = dict.fromkeys(value.strip() for value in values if isinstance(value, str))
    plain = _plain(label)
    if plain not in ("label", "labels", "class"):
        head.check(f"the label is the column {label!r} (label=)")
    if any(re.match(r"[\[{]", cell) for cell in cells):
        head.doubt(f"cells of {label!r} are lists as text, such as {values[0]!s:.40}: write JSON lines")
    plural = re.fullmatch(r".*(?:labels|classes|tags|ids|categories|attributes|genres)", plain) is not None
    for separator in ("|", ";", ",", " "):
        several = [cell for cell in cells if separator in cell]
        parts = {part.strip() for cell in several for part in cell.split(separator)}
        certain = separator == "|" or parts <= cells.keys() or (plural and not parts.isdisjoint(cells))
        if several and (certain or (separator != " " and "(" not in "".join(several))):
            shown = "; ".join(f"{cell!r} is {cell.split(separator)}" for cell in several[:3])
            head.check(f"cells of {label!r} hold several classes: {shown} (separator=)")
            if not certain:
                head.doubt(f"{separator!r} in {label!r} may divide classes, or be part of their names")
            return separator
    as_number = f" (a number to predict is read by fields={{{label!r}: ('scalar', {label!r})}})"
    if fractions := [value for value in values if re.fullmatch(r"-?\d*[.]\d*[1-9]\d*", str(value))]:
        head.doubt(f"{fractions[0]!r} and others in {label!r} are numbers with fractions, not classes{as_number}")
    certain = declared or any(isinstance(value, list) for value in values)
    if not certain and not 1 < len({*map(str, values)}) < max(3, len(values)):
        head.doubt(f"the values of {label!r} are all different or all the same, not like classes{as_number}")
    words = Counter(word for cell in cells for word in {*cell.split()})
    if joined := [cell for cell in cells if any(words[word] > 1 for word in cell.split()[1:])]:
        rule = f"{min(joined)!r} is taken for one class; separator=' ' would divide it"
        head.doubt(rule) if plural else head.check(rule)
    return None


# --- boxes ----------------------------------------------------------------------------------------------------------


def _boxes(head: _Head, targets: Sequence[str]) -> list[tuple[tuple[str, ...], str]]:
    """Return what may be boxes, the likely columns and forms first."""
    plain = {re.sub(r"^(?:bbox|box|roi|bb)(?=.)", "", _plain(c.rpartition(".")[2])): c for c in reversed(targets)}
    plain |= {_plain(c.rpartition(".")[2]): c for c in reversed(targets)}
    if {"x3", "y3"} <= set(plain):
        rule = "the columns x1, y1, x2, y2, x3, y3 are points or corners: write them as COCO's keypoints"
        raise SourceError(f"{head.path}: {rule}")
    found: list[tuple[tuple[str, ...], str]] = []
    for form, of_form in _BOXES:
        for names in (one.split() for one in of_form.split(", ")):
            columns = tuple(plain[name] for name in names if name in plain)
            cells = [map(str, head.filled(column)) for column in columns if len(columns) == len(names)]
            numbers = [[float(n) for cell in of_column for n in _NUMBER.findall(cell)] for of_column in cells]
            if numbers and all(numbers):
                if f"{columns[0]}_shape" in head.columns:  # of our own exports
                    return [(columns, "xyxy")]
                relative = all(-0.01 <= value <= 1.01 for of_column in numbers for value in of_column)
                found.append((columns, f"rel_{form}" if relative else form))
    return found
