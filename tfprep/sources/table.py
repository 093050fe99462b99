"""Samples listed in a table: CSV, TSV, JSON lines or Parquet, one row for each sample."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from tfprep.errors import RecipeError, SourceError
from tfprep.fields import KINDS, BoxFormat, Kind, check_box_format
from tfprep.sources.annotations.objects import table_boxes
from tfprep.sources.cells import (
    FILE_KINDS,
    CellPath,
    ColumnNames,
    class_cell,
    flag_cell,
    is_whole,
    name_cell,
    read_cell,
    sorted_classes,
    value_cell,
)
from tfprep.sources.folder import UNSPLIT, check_splits, split_files
from tfprep.sources.patterns import Pattern, compile_pattern, image_places
from tfprep.sources.pixels import Pixels, check_pixels_option, pixel_decoders
from tfprep.sources.raw import check_local, parse_reference
from tfprep.sources.rows import TABLE_SUFFIXES, TableRow, declared_classes, table_rows
from tfprep.sources.source import Entry, FieldDecoder, Listing, check_classes, check_fields, constructor_text, key_of
from tfprep.sources.splits import Fractions, Row, is_split_pattern, listing_of


@dataclass(frozen=True, repr=False)
class Table:
    """The rows of a table. Fields: `image`, `label` if a column is given for it, and those of `fields`.

    The table is read twice if class names or the type of a scalar must be found first: a scalar is int if
    its whole column is, else float. Two rows of one image are an error of the build, unless `key` tells them apart.

    Attributes:
        table: The file, relative to the root, or a pattern (`tfprep.sources.patterns`): `{split}.csv`, `rows/*.parquet`.
        image: The column with the image's path relative to the root, or a path with columns in braces: `images/{id}.jpg`. Where
            `table` has `{split}`, it stands for the same here: `{split}/{file_name}` beside `{split}/metadata.csv`. `**/{id}.jpg`
            is the image of this name in any folder.
        label: The column with the class, a name or a number; in JSON lines and Parquet also a list of them. A row where it is
            empty is rejected. Or a column for each class, which holds 1 or 0; the names of the classes are those of the columns,
            without spaces at the ends. Several classes of an image become a vector, float32 [classes], with 1 for each of them;
            with boxes among `fields` they are int64 [N], one for each box.
        separator: What divides the classes in a cell of `label`, such as " " or "|": each row has several of them.
        fields: Further fields with kind and column: `{"age": ("scalar", "age_years"), "mask": ("mask", "masks/{id}.png")}`. Files
            (image, mask, map) are given as `image` is. Boxes and points are lists, which CSV cannot hold.
        classes: The names of a label or mask field, in the order of their numbers. Labels that are not named here get the names
            in their column, sorted by code points, or by value if all are whole numbers.
        box_format: How boxes are written, by the names of Keras: `xyxy` (pixels), `xywh`, `center_xywh`, `rel_xyxy`, ... They
            leave as x0, y0, x1, y1 in pixels. A sample with a box that covers no pixel is rejected.
        outside: "reject" a sample with a box that reaches outside its image by more than one pixel, or "cut" the box.
        pixels: As in `Paired`.
        splits: The column with the split; a pattern of the images' paths with `{split}`, such as `{split}/**`; `Fractions`; or
            the names to take of those that `{split}` in `table` stands for. With none of these, and no `{split}` in `table`, all
            samples are `train`.
        key: The column with a unique key; by default the image's path is the key.

    Raises:
        RecipeError: An option is wrong, or two options contradict each other.
    """

    table: str
    image: str
    label: ColumnNames | None = None
    fields: Mapping[str, tuple[Kind, str]] = field(default_factory=dict)
    classes: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    splits: Fractions | str | tuple[str, ...] | None = None
    key: str | None = None
    box_format: BoxFormat = "xyxy"
    outside: Literal["reject", "cut"] = "reject"
    pixels: Mapping[str, Pixels] = field(default_factory=dict)
    separator: str | None = None

    def __post_init__(self) -> None:
        if isinstance(self.label, list | tuple):
            check_classes([one.strip() if isinstance(one, str) else one for one in self.label], "Table: label")
            object.__setattr__(self, "label", tuple(self.label))
        if self.separator is not None and not (isinstance(self.separator, str) and isinstance(self.label, str)):
            raise RecipeError(f"Table: separator is text between the classes of one column; got {self.separator!r}")
        label = None if isinstance(self.label, tuple) else self.label
        for option, value in {"image": self.image, "label": label, "key": self.key}.items():
            if not (isinstance(value, str) and value) and (option == "image" or value is not None):
                raise RecipeError(f"Table: expected {option} to be the name of a column; got {value!r}")
        pattern = self._pattern()
        if pattern.suffix not in TABLE_SUFFIXES:
            raise RecipeError(f"Table: expected table to end in {', '.join(TABLE_SUFFIXES)}; got {self.table!r}")
        fields = check_fields(self.fields, KINDS, ("image", "label"), "Table", "('scalar', 'age')")
        object.__setattr__(self, "fields", fields)
        if not isinstance(self.classes, Mapping):
            raise RecipeError(f"Table: classes are by field, {{'label': ('cat', 'dog')}}; got {self.classes!r}")
        classes = {name: check_classes(names, f"Table: classes[{name!r}]") for name, names in self.classes.items()}
        object.__setattr__(self, "classes", classes)
        if "label" in classes and isinstance(self.label, tuple):
            raise RecipeError("Table: the columns of label are the names of its classes; leave out classes['label']")
        for name in classes:
            if self.kinds().get(name) not in ("label", "mask"):
                raise RecipeError(f"Table: classes name the numbers of a label or a mask; {name!r} is neither")
        labels = [name for name, kind in self.kinds().items() if kind == "label"]
        object.__setattr__(self, "splits", check_splits(self.splits, pattern, "Table", labels, columns=True))
        object.__setattr__(self, "pixels", check_pixels_option(self.pixels, self.kinds(), "Table"))
        check_box_format(self.box_format, "Table: box_format")
        if self.outside not in ("reject", "cut"):
            raise RecipeError(f"Table: outside is 'reject' or 'cut'; got {self.outside!r}")

    def scan(self, root: Path) -> Listing:
        """List the rows; see `Source.scan`."""
        check_local(root)
        files, tally = [(self.table, {"split": UNSPLIT})], Counter[str]()
        if self._pattern().holes:
            files = split_files(root, self.table, self.splits, "table", tally)
        rows = _Rows(self, root, [(path, holes["split"]) for path, holes in files])
        listing = listing_of(self, tuple(rows.files), tuple(rows.values), rows.classes, rows.all, passed_over=tally)
        is_drawn = self.key is not None and isinstance(self.splits, Fractions)
        return replace(listing, entries=_in_one_split(listing.entries)) if is_drawn else listing

    def _pattern(self) -> Pattern:
        return compile_pattern(self.table, "Table: table")

    def sources(self) -> dict[str, tuple[Kind, ColumnNames]]:
        """Every field's kind, and its column or columns, or path with columns in braces."""
        label: dict[str, tuple[Kind, ColumnNames]] = {} if self.label is None else {"label": ("label", self.label)}
        return {"image": ("image", self.image), **label, **self.fields}

    def kinds(self) -> dict[str, Kind]:
        """The kind of each field."""
        return {name: kind for name, (kind, _) in self.sources().items()}

    def decoders(self) -> dict[str, FieldDecoder]:
        """The decoders of boxes, and of images that do not become 8-bit RGB."""
        return table_boxes(self.kinds(), self.box_format, self.outside) | pixel_decoders(self.pixels)

    def multi_hot(self) -> tuple[str, ...]:
        """The label, if its classes are those of the image and not of each of its boxes."""
        return () if self.label is None or "boxes" in self.kinds().values() else ("label",)

    __repr__ = constructor_text


def _in_one_split(entries: Iterator[Entry]) -> Iterator[Entry]:
    """Yield the entries. SourceError if an image of several rows is in two splits."""
    splits: dict[int, str] = {}
    for entry in entries:
        other = splits.setdefault(hash(entry.files[0]), entry.split)
        if other != entry.split:
            rule = f"rows of {entry.files[0]} would be in {other} and in {entry.split}"
            raise SourceError(f"{rule}; keep the rows of an image together with Fractions(group_by=...), a column")
        yield entry


class _Rows:
    """The rows of the tables as entries, each table with its split."""

    def __init__(self, options: Table, root: Path, tables: list[tuple[str, str]]) -> None:
        self._options, self._root, self._tables = options, root, tables
        places, by_file = image_places(root, options.image), "split" in compile_pattern(options.table, "Table").holes
        self.files: dict[str, CellPath] = {}
        self.values: dict[str, tuple[Kind, tuple[str, ...]]] = {}
        for name, (kind, column) in options.sources().items():
            if kind in FILE_KINDS:
                self.files[name] = CellPath.parse(root, str(column), by_file, places)
            else:
                self.values[name] = kind, (column,) if isinstance(column, str) else column
        splits = options.splits
        self._split = splits if isinstance(splits, str) and not is_split_pattern(splits) else None
        self._group = str(splits.group_by) if isinstance(splits, Fractions) and splits.by_column else None
        of_files = [column for path in self.files.values() for column in path.columns]
        of_values = [column for _, columns in self.values.values() for column in columns]
        self._columns = [*of_files, *of_values, *filter(None, (options.key, self._split, self._group))]
        self._survey(options, root, tables)

    def _survey(self, options: Table, root: Path, tables: list[tuple[str, str]]) -> None:
        """Find what only whole columns say: class names, scalars that are whole numbers, and labels of one class per row."""
        labels = [name for name, (kind, _) in self.values.items() if kind == "label" and name not in options.classes]
        flags = self.values["label"][1] if isinstance(options.label, tuple) else ()
        declared: dict[str, tuple[str, ...]] = {"label": tuple(map(str.strip, flags))} if flags else {}
        for name in [name for name in labels if name not in declared]:
            column = self.values[name][1][0]
            of_files = {path: declared_classes(root / path, column) for path, _ in tables}
            (first, names), *_ = of_files.items()
            for path, columns_of_path in of_files.items():
                if columns_of_path != names:
                    raise SourceError(f"{root / path}: {column!r} has other class names than in {first}")
            declared |= {} if names is None else {name: names}
        found: dict[str, set[str]] = {name: set() for name in labels if name not in declared}
        self._single, spelled = bool(flags), set[str]()
        self._whole = {name for name, (kind, _) in self.values.items() if kind == "scalar"}
        surveyed = [column for name in (*found, *self._whole) for column in self.values[name][1]]
        for row in table_rows(root, tables, [*surveyed, *flags]) if surveyed or flags else ():
            for name, classes in found.items():
                column, separator = self.values[name][1][0], options.separator if name == "label" else None
                if not (isinstance(cell := row.cells[column], str) and cell in classes):
                    try:
                        classes.update(read_cell(row.cells, column, class_cell, separator) or ())
                    except SourceError as error:
                        raise SourceError(f"{row.place()}, {error}") from error
            self._whole -= {name for name in self._whole if not is_whole(row.cells[self.values[name][1][0]])}
            if not flags:
                continue
            with suppress(SourceError):  # rows that are wrong, or have an empty cell, do not count
                said = [flag_cell(row.cells[column]) for column in flags]
                self._single &= None in said or sum(map(bool, said)) == 1
                spelled.update(str(row.cells[column]).strip().removesuffix(".0") for column in flags)
        if {"0", "-1"} <= spelled:
            rule = "the columns of label hold 0 and -1, which may mean no and unknown; write 1 or 0"
            raise SourceError(f"{root / tables[0][0]}: {rule}")
        self.classes = {name: sorted_classes(names) for name, names in found.items()} | declared | dict(options.classes)
        self._numbers = {name: {c: number for number, c in enumerate(names)} for name, names in self.classes.items()}

    def all(self, tally: Counter[str]) -> Iterator[Row]:
        """Yield one row at a time; SourceError at the end if there was none."""
        options, row = self._options, None
        for row in table_rows(self._root, self._tables, self._columns):
            cells, split = row.cells, row.split
            try:
                files = tuple([path.fill(cells, split, name) for name, path in self.files.items()])
                values = tuple([self._value(name, kind, columns, row) for name, (kind, columns) in self.values.items()])
                key = key_of(f"{row.path}/{row.number}" if parse_reference(files[0]).member else files[0])
                if options.key is not None:
                    key = read_cell(cells, options.key, name_cell)
                if self._split is not None:
                    split = read_cell(cells, self._split, name_cell)
                group = None if self._group is None else read_cell(cells, self._group, name_cell)
            except SourceError as error:  # it names the column, or the field of a file
                raise SourceError(f"{row.place()}, {error}") from error
            yield Entry(key, split, files, values), group
        if row is None:
            raise SourceError(f"{self._root}: no rows in {', '.join(path for path, _ in self._tables)}")

    def _value(self, name: str, kind: Kind, columns: tuple[str, ...], row: TableRow) -> Any:
        numbers, separator = self._numbers.get(name, {}), self._options.separator if name == "label" else None
        if not isinstance(self._options.label, tuple) or name != "label":
            options = numbers, separator, name in self._whole
            return read_cell(row.cells, columns[0], value_cell, kind, *options)
        flags = [read_cell(row.cells, column, flag_cell) for column in columns]
        if None in flags:
            return None
        found = [numbers[column.strip()] for column, flag in zip(columns, flags, strict=True) if flag]
        return found[0] if self._single else found
