"""Tables with a row for each object, as Kaggle and Open Images publish them: boxes, or classes only."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from tfprep.errors import RecipeError, SourceError
from tfprep.fields import BoxFormat, check_box_format, convert_boxes
from tfprep.sources.annotations.listing import (
    OTHER_CLASS,
    AnnotatedSource,
    WrongAnnotation,
    object_listing,
)
from tfprep.sources.cells import CellPath, class_cell, name_cell, number_cell, read_cell, sorted_classes
from tfprep.sources.folder import split_files
from tfprep.sources.patterns import compile_pattern, image_places
from tfprep.sources.rows import TABLE_SUFFIXES, table_rows
from tfprep.sources.source import Entry, Listing, key_of
from tfprep.sources.splits import Row

_DECIMAL_COMMA = re.compile(r"\s*[+-]?\d+,\d+\s*")
_ONE_CLASS = "object"


@dataclass
class _Image:
    """The rows of one image: the name of the class of each object, the object, those that are wrong, and the first fault."""

    split: str
    objects: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    dropped: list[str] = field(default_factory=list)
    fault: str = ""


@dataclass(frozen=True, repr=False)
class ObjectTable(AnnotatedSource):
    """Images with a table that has a row for each object. Fields: `image`, and those of `fields`.

    The rows are in memory while they are listed: about 1 kB each. A row without a box says that its image has no object. Images
    that no row names are not samples. Without `boxes`, `box_labels` are the classes of the image, each once.

    The options of all sources of annotations (`AnnotatedSource`) are given by name.

    Attributes:
        table: The file, relative to the root, or a pattern with `{split}`: CSV, TSV, JSON lines or Parquet.
        image: The column with the image's path relative to the root, or a path with columns in braces: `images/{ImageID}.jpg`.
            `{split}` is that of the table, and `**/{ImageID}.jpg` the image of this name in any folder.
        label: The column with the class; None if all objects are of one class, which is called "object".
        boxes: The columns of four numbers, or the column that holds them as a list or as text such as "[1, 2, 3, 4]".
        box_format: The order and meaning of these numbers, by the names of Keras: `xyxy`, `xywh`, `rel_xyxy`, ...
        split: The column with the split, where the table has no `{split}`.
        classes: The classes to take, in the order of their numbers; objects of others are left out. By default all, sorted.

    Raises:
        RecipeError: An option is wrong, or two options contradict each other.
    """

    known_fields = ("boxes", "box_labels")
    table: str
    image: str
    label: str | None = None
    boxes: str | tuple[str, str, str, str] | None = None
    box_format: BoxFormat = "xyxy"
    split: str | None = None
    classes: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        pattern = compile_pattern(self.table, "ObjectTable: table")
        if pattern.suffix not in TABLE_SUFFIXES:
            raise RecipeError(f"ObjectTable: expected table to end in {', '.join(TABLE_SUFFIXES)}; got {self.table!r}")
        self.check_options(pattern)
        columns = self.boxes if isinstance(self.boxes, tuple | list) else (self.boxes,) * 4
        if len(columns) != 4 or not all(column is None or isinstance(column, str) for column in columns):
            raise RecipeError(f"ObjectTable: boxes are one column or four; got {self.boxes!r}")
        check_box_format(self.box_format, "ObjectTable: box_format")
        if "boxes" in self.fields and self.boxes is None:
            raise RecipeError("ObjectTable: boxes need columns (boxes=)")
        if self.split is not None and (self.splits is not None or "split" in pattern.holes):
            raise RecipeError(f"ObjectTable: the column {self.split!r} gives the splits; leave out the others")

    def scan(self, root: Path) -> Listing:
        """List the images that the tables name; see `Source.scan`."""
        tally = Counter[str]()
        files = split_files(root, self.table, self.splits, "table", tally)
        tables = [(path, holes["split"]) for path, holes in files]
        images = self._images(root, tables)
        names = self.classes or sorted_classes({name for image in images.values() for name, _ in image.objects})
        return object_listing(self, names, partial(self._rows, images, names), passed_over=tally)

    def _rows(self, images: Mapping[str, _Image], names: tuple[str, ...], tally: Counter[str]) -> Iterator[Row]:
        numbers = {name: number for number, name in enumerate(names)}
        relative = self.box_format.startswith("rel_")
        for path, image in images.items():
            objects = [{"label": numbers[name], **annotation} for name, annotation in image.objects if name in numbers]
            tally.update({OTHER_CLASS: len(image.objects) - len(objects)} if len(objects) < len(image.objects) else {})
            if self.boxes is None:
                objects = list({annotation["label"]: annotation for annotation in objects}.values())
            part: dict[str, Any] = {"size": None, "objects": objects, "dropped": image.dropped, "relative": relative}
            if image.fault:
                part["fault"] = image.fault
            if objects or image.dropped or image.fault or self.unannotated == "keep":
                yield Entry(key_of(path), image.split, (path,), (part,)), None

    def _images(self, root: Path, tables: list[tuple[str, str]]) -> dict[str, _Image]:
        images: dict[str, _Image] = {}
        place = CellPath.parse(root, self.image, True, image_places(root, self.image))
        of_box = (self.boxes,) if isinstance(self.boxes, str) else self.boxes or ()
        columns = [*place.columns, *of_box, *filter(None, (self.label, self.split))]
        for row in table_rows(root, tables, columns):
            try:
                path = place.fill(row.cells, row.split, "image")
                split = row.split if self.split is None else read_cell(row.cells, self.split, name_cell)
            except SourceError as error:
                raise SourceError(f"{row.place()}: {error}") from error
            where = row.place()
            image = images.setdefault(path, _Image(split))
            if image.split != split:
                rule = f"{where} is in {split}, other rows of the image are in {image.split}"
                image.fault = image.fault or rule
            for column in self.boxes if isinstance(self.boxes, tuple) else ():
                if _DECIMAL_COMMA.fullmatch(str(row.cells[column])):  # whole numbers of the table would be read
                    rule = "decimal commas are not read; write decimal points"
                    raise SourceError(f"{where}: {column!r} is {row.cells[column]!r}: {rule}")
            try:
                if (found := self._object(row.cells, where)) is not None:
                    image.objects.append(found)
            except (WrongAnnotation, SourceError) as fault:
                message = str(fault)
                image.dropped.append(message if message.startswith(where) else f"{where}: {message}")
        if not images:
            raise SourceError(f"{root}: no rows in {', '.join(path for path, _ in tables)}")
        boxed = [item for image in images.values() for _, item in image.objects if "box" in item]
        boxes = np.array([item["box"] for item in boxed]).reshape(-1, 4)
        corners: BoxFormat = "rel_xyxy" if self.box_format.startswith("rel_") else "xyxy"
        for item, box in zip(boxed, convert_boxes(boxes, corners, source=self.box_format).tolist(), strict=True):
            item["box"] = box
        return images

    def _object(self, cells: Mapping[str, Any], where: str) -> tuple[str, dict[str, Any]] | None:
        """The class and the object of a row, its box as the table has it; None if it says that there is none."""
        annotation: dict[str, Any] = {"id": where}
        if self.boxes is not None:
            columns = (self.boxes,) if isinstance(self.boxes, str) else self.boxes
            if (values := box_cells(columns, cells)) is None:
                return None
            annotation["box"] = values
        names = [_ONE_CLASS] if self.label is None else class_cell(cells[self.label]) or []
        if len(names) != 1:
            what = f"holds {len(names)} classes, expected one" if names else "is empty"
            raise WrongAnnotation(f"{where}: {self.label!r} {what}")
        return names[0], annotation


def _empty(value: Any) -> bool:
    return value is None or str(value).strip().lower() in ("", "nan")


def box_cells(columns: tuple[str, ...], cells: Mapping[str, Any]) -> list[float] | None:
    """Return the four numbers of a box in the cells of four columns, or of one; None where they are empty.

    Those of one cell are a list, or text of one with commas or spaces. Raises SourceError or WrongAnnotation.
    """
    cell = cells[columns[0]] if len(columns) == 1 else [cells[name] for name in columns]
    if isinstance(cell, str) and not _empty(cell):
        cell = cell.strip().strip("[](){}").replace(",", " ").split()
    if _empty(cell):
        return None
    if not isinstance(cell, list | tuple) or len(cell) != 4:
        raise WrongAnnotation(f"{columns[0]!r}: expected the four numbers of a box; got {cells[columns[0]]!r:.60}")
    if all(map(_empty, cell)):
        return None
    values = [number_cell(value, False) for value in cell]
    if not all(isinstance(value, float) for value in values):  # None where it is empty, a list where it is nested
        raise WrongAnnotation(f"expected the four numbers of a box; got {values}")
    return values
