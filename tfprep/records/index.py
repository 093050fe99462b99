"""The text index of a TFRecord file, as NVIDIA DALI's `tfrecord2idx` writes it: a line `<offset> <size>` for each record."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from tfprep.errors import DatasetError
from tfprep.records.framing import Frame


def format_index(frames: Iterable[Frame]) -> str:
    """Return the content of an `.idx` file."""
    return "".join(f"{frame.offset} {frame.size}\n" for frame in frames)


def read_index(path: Path) -> list[Frame]:
    """Return the frames that an `.idx` file lists; DatasetError names the line that is not two whole numbers."""
    return [_parse(path, number, line) for number, line in enumerate(path.read_text().splitlines(), 1)]


def _parse(path: Path, number: int, line: str) -> Frame:
    words = line.split()
    if len(words) != 2 or not all(word.isdecimal() for word in words):
        raise DatasetError(f"{path}, line {number}: expected '<offset> <size>', found {line!r}")
    return Frame(int(words[0]), int(words[1]))
