"""Formats of amounts, and text that is safe to print."""

from __future__ import annotations

import pytest

from tfprep.units import printable


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain, é, 漢\tand\n", "plain, é, 漢\tand\n"),
        ("\x1b[31mred\x1b[0m", "\\x1b[31mred\\x1b[0m"),
        ("bell\x07 back\x08 null\x00 \r", "bell\\x07 back\\x08 null\\x00 \\x0d"),
        ("\x9b2J", "\\x9b2J"),  # The one-byte form of ESC [.
        ("photo\u202egpj.exe", "photo\\u202egpj.exe"),
        ("bad \udcff name", "bad \\udcff name"),
    ],
)
def test_printable(text, shown):
    assert printable(text) == shown
    printable(text).encode("utf-8")
