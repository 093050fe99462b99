"""Output of the commands: text that is safe for terminals, tables and JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import click

from tfprep.units import duration, number, printable, size

__all__ = ["duration", "echo", "number", "print_json", "size", "table"]


def echo(text: str, *, err: bool = False) -> None:
    """Print text that may hold names from files: control characters are escaped."""
    click.echo(printable(text), err=err)


def table(rows: Sequence[Sequence[Any]], indent: str = "  ") -> str:
    """Rows as aligned columns: text to the left, numbers to the right."""
    cells = [[f"{cell:,}" if isinstance(cell, int) else str(cell) for cell in row] for row in rows]
    widths = [max(len(row[column]) for row in cells) for column in range(len(cells[0]))] if cells else []
    right = [any(isinstance(row[column], int) for row in rows) for column in range(len(widths))]
    lines = [
        "  ".join(cell.rjust(w) if r else cell.ljust(w) for cell, w, r in zip(row, widths, right, strict=True)).rstrip()
        for row in cells
    ]
    return "\n".join(indent + line for line in lines)


def print_json(value: Any) -> None:
    """Print a value as JSON. Control characters are escaped as JSON demands; lone surrogates as `\\udcff`."""
    echo(json.dumps(value, indent=1, ensure_ascii=False, default=str))
