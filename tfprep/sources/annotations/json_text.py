"""Large JSON files, one element of an array at a time.

The text of the file is in memory, its objects are not: a file of a million annotations takes gigabytes as Python objects.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from tfprep.errors import SourceError
from tfprep.sources.raw import read_whole

_DECODER = json.JSONDecoder()
_SPACE = re.compile(r"[ \t\r\n]*")


class Element(NamedTuple):
    """An element of an array: its value and the character at which it begins."""

    value: Any
    start: int


class JsonText:
    """The text of a JSON file whose outermost value is an object.

    Raises:
        SourceError: The file cannot be read, or is not JSON; the message names file, line and column.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self.note = ""
        """What is unusual about the file, as the end of a sentence."""
        try:
            data = read_whole(path)
        except OSError as error:
            raise SourceError(f"{path}: cannot read the annotations: {error.strerror}") from error
        try:
            self._text = data.decode("utf-8-sig")
        except UnicodeDecodeError:
            self._text, self.note = data.decode("latin-1"), "is not UTF-8, and was read as Latin-1"
        self._ends: dict[int, int] = {}
        """Where the array that was read last ends, so that it is not read again to find the next name."""

    def value(self, start: int) -> Any:
        """Return the value that begins at a character."""
        return self._decoded(start)[0]

    def members(self) -> Iterator[tuple[str, int]]:
        """Yield each name of the outermost object and the character at which its value begins. A caller reads the values that it
        needs with `value` or `elements`; all others are read over."""
        at = self._expect(0, "{")
        if self._text[at : at + 1] == "}":
            return
        while True:
            name, at = self._decoded(at)
            if not isinstance(name, str):
                raise self._error("expected a name", at)
            start = self._expect(at, ":")
            yield name, start
            at = self._skip(self._past(start))
            if self._text[at : at + 1] == "}":
                return
            at = self._expect(at, ",")

    def elements(self, start: int) -> Iterator[Element]:
        """Yield the elements of the array that begins at a character."""
        at = self._expect(start, "[")
        if self._text[at : at + 1] == "]":
            self._ends = {start: at + 1}
            return
        while True:
            value, end = self._decoded(at)
            yield Element(value, at)
            at = self._skip(end)
            if self._text[at : at + 1] == "]":
                self._ends = {start: at + 1}
                return
            at = self._expect(at, ",")

    def _past(self, start: int) -> int:
        if self._text[start : start + 1] != "[":
            return self._decoded(start)[1]
        if start not in self._ends:
            for _ in self.elements(start):  # an array that the caller does not need is not held as a whole either
                pass
        return self._ends[start]

    def _decoded(self, at: int) -> tuple[Any, int]:
        try:
            return _DECODER.raw_decode(self._text, at)
        except json.JSONDecodeError as error:
            raise self._error(error.msg, error.pos) from error
        except RecursionError as error:
            raise self._error("brackets are nested too deeply", at) from error

    def _skip(self, at: int) -> int:
        found = _SPACE.match(self._text, at)
        return found.end() if found else at

    def _expect(self, at: int, character: str) -> int:
        at = self._skip(at)
        if self._text[at : at + 1] != character:
            raise self._error(f"expected {character!r}", at)
        return self._skip(at + 1)

    def _error(self, what: str, at: int) -> SourceError:
        line, column = self._text.count("\n", 0, at) + 1, at - self._text.rfind("\n", 0, at)
        return SourceError(f"{self._path}, line {line}, column {column}: the annotations are not whole JSON: {what}")
