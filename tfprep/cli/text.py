"""How numbers are told to people, the same in every command."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import click


def size(count: float) -> str:
    """Bytes with a decimal unit: 12.7 MB."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" or count >= 100 else f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} TB"


def duration(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min" if hours else f"{minutes} min {rest:02d} s"


def number(count: int, one: str, many: str = "") -> str:
    """`1 image`, `1,200 images`."""
    return f"{count:,} {one if count == 1 else many or one + 's'}"


def table(rows: Sequence[Sequence[Any]], indent: str = "  ") -> str:
    """Columns aligned: text to the left, numbers to the right."""
    cells = [[f"{cell:,}" if isinstance(cell, int) else str(cell) for cell in row] for row in rows]
    widths = [max(len(row[column]) for row in cells) for column in range(len(cells[0]))] if cells else []
    right = [any(isinstance(row[column], int) for row in rows) for column in range(len(widths))]
    lines = [
        "  ".join(cell.rjust(w) if r else cell.ljust(w) for cell, w, r in zip(row, widths, right, strict=True)).rstrip()
        for row in cells
    ]
    return "\n".join(indent + line for line in lines)


def print_json(value: Any) -> None:
    click.echo(json.dumps(value, indent=1, ensure_ascii=False, default=str))
