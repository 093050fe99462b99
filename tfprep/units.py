"""Amounts and names in text for people: on the command line, in messages and in reports."""

from __future__ import annotations

from collections.abc import Sequence

_REVERSING = (*range(0x202A, 0x202F), *range(0x2066, 0x206A))
"""Marks that reverse the direction of writing: `photo<U+202E>gpj.exe` shows as `photoexe.jpg`."""
_CONTROL = {code: f"\\x{code:02x}" for code in (*range(0x20), *range(0x7F, 0xA0)) if chr(code) not in "\t\n"}
_ESCAPED = {**_CONTROL, **{code: f"\\u{code:04x}" for code in _REVERSING}}


def size(count: float) -> str:
    """Return a number of bytes with a decimal unit: `12.7 MB`."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" or count >= 100 else f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} TB"


def duration(seconds: float) -> str:
    """Return a time as `8.2 s`, `3 min 05 s` or `2 h 10 min`."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min" if hours else f"{minutes} min {rest:02d} s"


def number(count: int, one: str, many: str = "") -> str:
    """Return a count with its noun: `1 image`, `1,200 images`."""
    return f"{count:,} {one if count == 1 else many or one + 's'}"


def printable(text: str) -> str:
    """Return the text with control characters as `\\x1b`, so that names of files and classes cannot act on a terminal.

    Tabs and line ends stay. Marks that reverse the direction of writing become `\\u202e`, and lone surrogates, which stand for
    bytes of a file name that are not UTF-8, `\\udcff`.
    """
    return text.translate(_ESCAPED).encode("utf-8", "backslashreplace").decode("utf-8")


def aligned(rows: Sequence[Sequence[str]], right: Sequence[bool] = ()) -> list[str]:
    """Return rows as lines of aligned columns: those of `right` to the right, by default all but the first."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    pads = [str.rjust if to_right else str.ljust for to_right in right or [number > 0 for number in range(len(widths))]]
    lines = ([pad(cell, width) for pad, cell, width in zip(pads, row, widths, strict=True)] for row in rows)
    return ["  ".join(cells).rstrip() for cells in lines]
