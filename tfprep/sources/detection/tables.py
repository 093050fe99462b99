"""Recognises tables beside images: which column names the images, the classes and the splits."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from tfprep.errors import SourceError
from tfprep.fields import Kind
from tfprep.sources.cells import path_columns, path_template
from tfprep.sources.detection.guess import BY_CLASS, FRACTIONS, LayoutGuess, Refusal
from tfprep.sources.detection.inventory import NAMES_KEPT, Inventory, below
from tfprep.sources.detection.pairs import SPLIT_NAMES
from tfprep.sources.patterns import compile_pattern, literal
from tfprep.sources.raw import open_raw
from tfprep.sources.rows import TABLE_SUFFIXES, batches, column_names
from tfprep.sources.table import Table
from tfprep.sources.walk import image_suffix

_LABELS = ("label", "labels", "class", "class_name", "category", "species", "target", "y", "diagnosis", "breed")
_SPLITS = ("split", "subset", "fold", "partition", "set")
_TEXTS = ("text", "caption")
_NO_LABELS = re.compile(r"sample_?submission|submission", re.IGNORECASE)
"""Tables of Kaggle that show the form of an answer: their labels are not those of the images."""


def tables(tree: Inventory) -> Iterator[LayoutGuess | Refusal]:
    """Yield the tables whose rows name images, those of one split each together; those nearer to the root first."""
    paths = [path for path in tree.files(*TABLE_SUFFIXES) if not _NO_LABELS.search(path.rpartition("/")[2])]
    by_split: dict[str, list[str]] = {}
    for path in paths:
        by_split.setdefault(_split_pattern(path), []).append(path)
    for pattern, of_pattern in by_split.items():
        try:
            guess = _guess(tree, pattern, of_pattern)
        except SourceError as error:
            yield Refusal("table", error)
            continue
        if guess is not None:
            yield guess


def _split_pattern(path: str) -> str:
    """The path with `{split}` in place of the split's name: `train/metadata.csv`, `labels/val.csv`."""
    parts = path.split("/")
    for place, part in enumerate(parts):
        stem, suffix = os.path.splitext(part) if place == len(parts) - 1 else (part, "")
        if stem.lower() in SPLIT_NAMES:
            return "/".join((*map(literal, parts[:place]), "{split}" + suffix, *map(literal, parts[place + 1 :])))
    return literal(path)


def _guess(tree: Inventory, pattern: str, paths: Sequence[str]) -> LayoutGuess | None:
    """The table as a source; None where no column names images. SourceError if it names images and cannot be read."""
    path = next((one for one in paths if "train" in one.lower()), paths[0])
    try:
        columns = column_names(tree.root / path)
        rows = next(batches(tree.root / path, columns), None)
    except SourceError:
        if any(image_suffix(word) for word in _words(tree.root / path)):
            raise
        return None
    few = {c: [v for v in rows.columns[c][:NAMES_KEPT] if v not in (None, "")] for c in columns} if rows else {}
    found = {column: _image_template(tree, path, column, values) for column, values in few.items()}
    image = next((template for template in found.values() if template), None)
    if image is None:
        return None
    label = next((c for c in few if c.lower() in _LABELS and not found[c]), None)
    texts: dict[str, tuple[Kind, str]] = {c: ("text", c) for c in few if c.lower() in _TEXTS and not found[c]}
    if "{split}" not in pattern:
        split = next((c for c in few if c.lower() in _SPLITS and not found[c]), None)
        shares = BY_CLASS if label else FRACTIONS
        source = Table(pattern, image, label, texts, splits=split or shares)
        return LayoutGuess(
            "table", source, f"a table beside images: {path}", (*_doubts(source), *_left_out(source, columns))
        )
    compiled = compile_pattern(pattern, "detect")
    if pattern.split("{split}")[1].startswith("/"):
        holes = compiled.match_path(path) or {}
        image = "/".join("{split}" if part == holes.get("split") else part for part in image.split("/"))
    needed = {*path_columns(path_template(image), by_file=True), *([label] if label else []), *texts}
    taken = [one for one in paths if one == path or needed <= set(column_names(tree.root / one))]
    names = tuple((compiled.match_path(one) or {})["split"] for one in taken)
    others = [one for one in tree.files(compiled.suffix or "") if compiled.match_path(one) and one not in taken]
    source = Table(pattern, image, label, texts, splits=names if others else None)
    doubts = (*_doubts(source), *_left_out(source, columns), *(f"this recipe does not read {one}" for one in others))
    return LayoutGuess("table", source, f"tables, one a split: {', '.join(taken)}", doubts)


def _words(path: Path) -> list[str]:
    try:
        with open_raw(path) as file:
            return re.split(r"[,;\t\s\"']+", file.read(1 << 14).decode("utf-8", "replace"))
    except OSError:
        return []


def _doubts(table: Table) -> tuple[str, ...]:
    guessed = {"label": table.label, "splits": table.splits if isinstance(table.splits, str) else None}
    return tuple(
        f"{option}={column!r} is a guess from the column's name" for option, column in guessed.items() if column
    )


def _left_out(table: Table, columns: Sequence[str]) -> tuple[str, ...]:
    named = {
        table.label,
        table.splits if isinstance(table.splits, str) else None,
        *(c for _, c in table.fields.values()),
    }
    left = [column for column in columns if column not in named and column not in table.image_columns()]
    said = ", ".join(left[:12]) + (f" and {len(left) - 12} more" if len(left) > 12 else "")
    return (f"this recipe does not read the columns {said} (label=, fields=)",) if left else ()


def _image_template(tree: Inventory, table: str, column: str, values: list[object]) -> str | None:
    """How the column's values become paths of images that exist, nine in ten at least; None where they do not."""
    if not values or not all(isinstance(value, str | int) and not isinstance(value, bool) for value in values):
        return None
    parent = table.rpartition("/")[0]
    for folder in dict.fromkeys((parent, "", *tree.images)):
        prefix = f"{folder}/" if folder else ""
        for suffix in ("", *tree.images.get(folder, ())):
            # `os.path.isfile` answers for any text, `Path.is_file` raises for a name of more than 255 bytes.
            paths = (
                os.path.join(tree.root, below(folder, f"{v}{suffix}")) for v in values if image_suffix(f"{v}{suffix}")
            )
            if sum(map(os.path.isfile, paths)) >= 0.9 * len(values):
                return f"{literal(prefix)}{{{column}}}{suffix}" if prefix or suffix else column
    return None
