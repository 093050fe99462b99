"""Samples listed in a table: CSV, TSV, JSON lines or Parquet, a row a sample."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from tfprep.boxes import BoxFormat, check_box_format
from tfprep.errors import RecipeError, SourceError
from tfprep.fields import KINDS, Array, Kind, field_name_fault
from tfprep.seeding import sample_hash
from tfprep.sources.annotations.objects import TableBoxes, warn_if_relative
from tfprep.sources.cells import (
    FILE_KINDS,
    ColumnNames,
    Columns,
    class_cell,
    columns_of,
    flag_cell,
    is_whole,
    path_columns,
    path_template,
    sorted_classes,
)
from tfprep.sources.folder import UNSPLIT
from tfprep.sources.patterns import Pattern, compile_pattern
from tfprep.sources.pixels import Pixels, check_pixels_option, pixel_decoders
from tfprep.sources.rows import TABLE_SUFFIXES, RowBatch, batches, decimal_comma, declared_classes, latin_1_notes
from tfprep.sources.source import FieldDecoder, Listing, check_classes, constructor_text, key_of
from tfprep.sources.splits import Fractions, Row, check_split_name, is_split_pattern, split_rows
from tfprep.sources.walk import image_places, walk


@dataclass(frozen=True, repr=False)
class Table:
    """The rows of a table. Fields: `image`, `label` if a column is given for it, and those of `fields`.

    The table is read in batches. It is read twice if class names or the type of a scalar must be found first: a scalar is int if
    its whole column is, else float. 8 bytes per row are kept in memory, to find a key that comes twice.

    Attributes:
        table: The file, relative to the root, or a pattern (`tfprep.sources.patterns`): `{split}.csv`, `rows/*.parquet`.
        image: The column with the image's path relative to the root, or a path with columns in braces: `images/{id}.jpg`. Where
            `table` has `{split}`, it stands for the same here: `{split}/{file_name}` beside `{split}/metadata.csv`. `**/{id}.jpg`
            is the image of this name in any folder.
        label: The column with the class, a name or a number; in JSON lines and Parquet also a list of them. A row where it is
            empty is a reject. Or a column for each class, which holds 1 or 0: one class if each row has one, else a list.
        separator: What divides the classes in a cell of `label`, such as " " or "|": each row has a list of them.
        fields: Further fields with kind and column: `{"age": ("scalar", "age_years"), "mask": ("mask", "masks/{id}.png")}`. Files
            (image, mask, map) are given as `image` is. Boxes and points are lists, which CSV cannot hold.
        classes: The names of a label or mask field, in the order of their numbers. Labels that are not named here get the names
            in their column, sorted by code points, or by value if all are whole numbers.
        box_format: How boxes are written, by the names of Keras: `xyxy` (pixels), `xywh`, `center_xywh`, `rel_xyxy`, ... They
            leave as x0, y0, x1, y1 in pixels. A box that covers no pixel rejects its sample.
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
            object.__setattr__(self, "label", check_classes(self.label, "Table: label"))
        if self.separator is not None and not (isinstance(self.separator, str) and isinstance(self.label, str)):
            raise RecipeError(f"Table: separator is text between the classes of one column; got {self.separator!r}")
        for option in ("image", "label", "key"):
            value = getattr(self, option)
            if option == "label" and isinstance(value, tuple):
                continue
            if not (isinstance(value, str) and value) and (option == "image" or value is not None):
                raise RecipeError(f"Table: expected {option} to be the name of a column; got {value!r}")
        pattern = self._pattern()
        if pattern.suffix not in TABLE_SUFFIXES:
            raise RecipeError(f"Table: expected table to end in {', '.join(TABLE_SUFFIXES)}; got {self.table!r}")
        fields = {name: _checked_field(name, value) for name, value in dict(self.fields).items()}
        object.__setattr__(self, "fields", fields)
        classes = {
            name: check_classes(names, f"Table: classes[{name!r}]") for name, names in dict(self.classes).items()
        }
        object.__setattr__(self, "classes", classes)
        for name in classes:
            if self.kinds().get(name) not in ("label", "mask"):
                raise RecipeError(f"Table: classes name the numbers of a label or a mask; {name!r} is neither")
        _check_splits(self.splits, pattern, self.kinds())
        object.__setattr__(self, "pixels", check_pixels_option(self.pixels, self.kinds(), "Table"))
        check_box_format(self.box_format, "Table: box_format")
        if self.outside not in ("reject", "cut"):
            raise RecipeError(f"Table: outside is 'reject' or 'cut'; got {self.outside!r}")

    def scan(self, root: Path) -> Listing:
        """List the rows; see `Source.scan`."""
        tables = self._tables(root)
        survey = _survey(root, tables, self._surveyed(), self.separator)
        classes = {**survey.classes, **self.classes}
        columns = self._columns(root, survey, classes)
        tally = Counter(latin_1_notes(root, [path for path, _ in tables]))
        rows = partial(_rows, root, tables, columns)
        stratify = self.splits.stratify if isinstance(self.splits, Fractions) else None
        label = None if stratify is None else list(columns.values).index(stratify)
        entries = split_rows(rows, tally, self.splits, label)
        if not self.box_format.startswith("rel_"):
            boxes = {n: list(columns.values).index(n) for n, kind in self.kinds().items() if kind == "boxes"}
            entries = warn_if_relative(entries, boxes, self.box_format)
        return Listing(self.kinds(), tuple(columns.files), tuple(columns.values), entries, classes, tally)

    def image_columns(self) -> tuple[str, ...]:
        """Return the columns that the images' paths are made of."""
        return tuple(path_columns(path_template(self.image), self._by_file()))

    def _pattern(self) -> Pattern:
        return compile_pattern(self.table, "Table: table")

    def _by_file(self) -> bool:
        return "split" in self._pattern().holes

    def _sources(self) -> dict[str, tuple[Kind, ColumnNames]]:
        """Every field's kind, and its column or columns, or path with columns in braces."""
        label: dict[str, tuple[Kind, ColumnNames]] = {} if self.label is None else {"label": ("label", self.label)}
        return {"image": ("image", self.image), **label, **self.fields}

    def kinds(self) -> dict[str, Kind]:
        """The kind of each field."""
        return {name: kind for name, (kind, _) in self._sources().items()}

    def decoders(self) -> dict[str, FieldDecoder]:
        """The decoders of boxes, and of images that do not become 8-bit RGB."""
        boxes = [name for name, kind in self.kinds().items() if kind == "boxes"]
        read: dict[str, FieldDecoder] = {name: TableBoxes(name, self.box_format, self.outside) for name in boxes}
        return read | pixel_decoders(self.pixels)

    def _surveyed(self) -> dict[str, tuple[Kind, ColumnNames]]:
        """The fields whose whole column must be read first."""
        return {
            name: (kind, column)
            for name, (kind, column) in self._sources().items()
            if (kind == "label" and name not in self.classes) or kind == "scalar"
        }

    def _columns(self, root: Path, survey: _Survey, classes: Mapping[str, tuple[str, ...]]) -> Columns:
        sources = self._sources().items()
        return Columns(
            files={name: path_template(str(text)) for name, (kind, text) in sources if kind in FILE_KINDS},
            values={name: (kind, column) for name, (kind, column) in sources if kind not in FILE_KINDS},
            numbers={name: {c: n for n, c in enumerate(names)} for name, names in classes.items()},
            whole=survey.whole,
            single=survey.single,
            separator=self.separator,
            places=image_places(root, self.image),
            key=self.key,
            split=self.splits if isinstance(self.splits, str) and not is_split_pattern(self.splits) else None,
            group=str(self.splits.group_by) if isinstance(self.splits, Fractions) and self.splits.by_column else None,
            by_file=self._by_file(),
        )

    def _tables(self, root: Path) -> list[tuple[str, str]]:
        """(path relative to the root, split) of each table file."""
        pattern = self._pattern()
        if not pattern.holes:
            return [(self.table, UNSPLIT)]
        found = [(file.path, key_of(file.holes.get("split", UNSPLIT))) for file in walk(root, pattern, Counter())]
        if isinstance(self.splits, tuple):
            found = [(path, split) for path, split in found if split in self.splits]
        if not found:
            raise SourceError(f"{root}: no table fits {self.table!r}")
        return found

    __repr__ = constructor_text


class _Survey(NamedTuple):
    """Class names by label field, the scalar fields that are whole numbers, and the label fields of several columns of which
    each row has one: facts about whole columns."""

    classes: dict[str, tuple[str, ...]]
    whole: frozenset[str]
    single: frozenset[str]


def _survey(
    root: Path, tables: list[tuple[str, str]], fields: Mapping[str, tuple[Kind, ColumnNames]], separator: str | None
) -> _Survey:
    declared = {name: columns for name, (_, columns) in fields.items() if isinstance(columns, tuple)}
    single = set(declared)
    for name, (kind, column) in fields.items():
        if kind == "label" and isinstance(column, str):
            found = _declared(root, tables, column)
            declared |= {} if found is None else {name: found}
    names: dict[str, set[str]] = {
        name: set() for name, (kind, _) in fields.items() if kind == "label" and name not in declared
    }
    whole = {name for name, (kind, _) in fields.items() if kind == "scalar"}
    for path, _ in tables if names or whole or single else ():
        for batch in batches(root / path, [column for _, columns in fields.values() for column in columns_of(columns)]):
            for name in names:
                divided = separator if name == "label" else None
                names[name] |= _class_names(root / path, batch, str(fields[name][1]), divided)
            whole -= {name for name in whole if not all(map(is_whole, batch.columns[str(fields[name][1])]))}
            single -= {name for name in single if not _one_each(batch, fields[name][1])}
    classes = {name: sorted_classes(found) for name, found in names.items()}
    return _Survey({**classes, **declared}, frozenset(whole), frozenset(single))


def _one_each(batch: RowBatch, columns: ColumnNames) -> bool:
    """Whether each row has one column that says 1; rows with an empty cell, and those that are wrong, do not count."""
    for cells in zip(*(batch.columns[column] for column in columns), strict=True):
        with suppress(SourceError):
            flags = list(map(flag_cell, cells))
            if None not in flags and sum(map(bool, flags)) != 1:
                return False
    return True


def _declared(root: Path, tables: list[tuple[str, str]], column: str) -> tuple[str, ...] | None:
    """The class names of a column as the files give them. Raises SourceError if two files differ."""
    of_files = {path: declared_classes(root / path, column) for path, _ in tables}
    first, *_ = of_files
    for path, names in of_files.items():
        if names != of_files[first]:
            raise SourceError(f"{root / path}: {column!r} has other class names than in {first}")
    return of_files[first]


def _class_names(table: Path, batch: RowBatch, column: str, separator: str | None) -> set[str]:
    names: set[str] = set()
    for row, cell in enumerate(batch.columns[column]):
        if not (isinstance(cell, str) and cell in names):
            try:
                names.update(class_cell(cell, separator) or ())
            except SourceError as error:
                raise SourceError(f"{table}: row {batch.numbers[row]}, {column!r}: {error}") from error
    return names


def _rows(root: Path, tables: Sequence[tuple[str, str]], columns: Columns, tally: Counter[str]) -> Iterator[Row]:
    """Yield one row at a time; SourceError at the end if there was none, or if two rows have one key."""
    del tally  # a table has nothing to pass over
    hashes = array("Q")
    splits: set[str] = set()
    for table, number, (entry, group) in _numbered_rows(root, tables, columns):
        if entry.split not in splits:
            splits.add(check_split_name(entry.split, f"{table}: row {number}"))
        hashes.append(sample_hash(0, entry.key))
        yield entry, group
    if not hashes:
        raise SourceError(f"{root}: no rows in {', '.join(path for path, _ in tables)}")
    _refuse_twins(np.frombuffer(hashes, np.uint64), partial(_numbered_rows, root, tables, columns))


def _numbered_rows(root: Path, tables: Sequence[tuple[str, str]], columns: Columns) -> Iterator[tuple[Path, int, Row]]:
    for path, split in tables:
        table = root / path
        comma = decimal_comma(table)
        for batch in batches(table, columns.needed()):
            for row, number in enumerate(batch.numbers):
                try:
                    read = columns.row(batch.columns, row, split, f"{path}/{number}", comma)
                except SourceError as error:
                    raise SourceError(f"{table}: row {number}, {error}") from error
                yield table, number, read


def _refuse_twins(hashes: Array, rows: Callable[[], Iterator[tuple[Path, int, Row]]]) -> None:
    """Raise SourceError if two rows have one key. The table is read again only if two hashes are equal, to name the rows."""
    values, counts = np.unique(hashes, return_counts=True)
    twice = set(values[counts > 1].tolist())
    first: dict[str, str] = {}
    for table, number, (entry, _) in rows() if twice else ():
        if (
            sample_hash(0, entry.key) in twice
            and first.setdefault(entry.key, position := f"{table}: row {number}") != position
        ):
            raise SourceError(
                f"{position} has the key {entry.key!r} of {first[entry.key]}; a sample is one row: merge them, or give a "
                "column of unique keys (key=)"
            )


def _checked_field(name: str, value: Any) -> tuple[Kind, str]:
    fits = isinstance(value, tuple | list) and len(value) == 2 and value[0] in KINDS and isinstance(value[1], str)
    if not fits or not value[1]:
        raise RecipeError(
            f"Table: expected fields[{name!r}] to be (kind, column) with a kind of {', '.join(KINDS)}, such as "
            f"('scalar', 'age'); got {value!r}"
        )
    if fault := field_name_fault(name):
        raise RecipeError(f"Table: {fault}")
    if name in ("image", "label"):
        raise RecipeError(f"Table: {name!r} is an option of its own: {name}={value[1]!r}")
    return value[0], value[1]


def _check_splits(splits: Any, pattern: Pattern, kinds: Mapping[str, Kind]) -> None:
    if isinstance(splits, tuple) and "split" not in pattern.holes:
        raise RecipeError(
            f"Table: splits={splits!r} names what {{split}} stands for; there is none in {pattern.text!r}"
        )
    if not (splits is None or isinstance(splits, str | Fractions | tuple)):
        raise RecipeError(f"Table: expected splits to be a column, Fractions(...) or a tuple of names; got {splits!r}")
    if is_split_pattern(splits):
        compile_pattern(str(splits), "Table: splits")
    if isinstance(splits, str | Fractions) and "split" in pattern.holes:
        raise RecipeError(f"Table: {{split}} in table={pattern.text!r} already gives the splits; leave out {splits!r}")
    stratify = splits.stratify if isinstance(splits, Fractions) else None
    if stratify is not None and kinds.get(stratify) != "label":
        labels = [name for name, kind in kinds.items() if kind == "label"]
        raise RecipeError(f"Table: stratify={stratify!r} names no label field; those are {labels or 'none'}")
