"""References to raw bytes, as the entries of a listing hold them: a file, or a part of one.

A reference is text. `cat/1.jpg` is a file below the root, `s3://bucket/cat/1.jpg` one at a URL of its own. A part of a file has
the first byte, the number of bytes (with `z` if they are deflated), and the name of the member, as in
`shards/a.tar//1536+20480//cat/1.jpg`. Paths of sources never hold two slashes in a row, so that no file has such a name.
"""

from __future__ import annotations

import re
import zlib
from typing import NamedTuple

from tfprep.errors import SampleError
from tfprep.images import MAX_FILE_BYTES, check_file_size

_MARK = "//"
_MISSING = "missing"
_SCHEME = re.compile(r"[a-z][a-z0-9]*://")


class Reference(NamedTuple):
    """Where raw bytes are.

    Attributes:
        file: The path of a file relative to the root, or its URL.
        start: The first byte of the part.
        bytes: The number of bytes of the part; None for the whole file.
        deflated: Whether the part is deflated, as members of zip files are.
        member: The name of the member of an archive; "" for a whole file.
        missing: Whether the member is expected and not there: reading it rejects its sample.
    """

    file: str
    start: int = 0
    bytes: int | None = None
    deflated: bool = False
    member: str = ""
    missing: bool = False

    def __str__(self) -> str:
        if self.missing:
            return f"{self.file}{_MARK}{_MISSING}{_MARK}{self.member}"
        if self.bytes is None:
            return self.file
        return f"{self.file}{_MARK}{self.start}+{self.bytes}{'z' * self.deflated}{_MARK}{self.member}"


def parse_reference(text: str) -> Reference:
    """Return what the text of a reference says."""
    scheme = _SCHEME.match(text)
    first = scheme.end() if scheme else 0
    end = text.find(_MARK, first)
    if end < 0:
        return Reference(text)
    place, _, member = text[end + len(_MARK) :].partition(_MARK)
    if place == _MISSING:
        return Reference(text[:end], member=member, missing=True)
    start, _, size = place.removesuffix("z").partition("+")
    return Reference(text[:end], int(start), int(size), place.endswith("z"), member)


def content_of(reference: Reference, data: bytes, most_bytes: int = MAX_FILE_BYTES) -> bytes:
    """Return the content of a part whose bytes in the file are `data`. Raises SampleError, also beyond `most_bytes`."""
    if len(data) != reference.bytes:
        raise SampleError(
            f"the container ends {(reference.bytes or 0) - len(data)} bytes before the member does; it was cut short"
        )
    if not reference.deflated:
        return data
    inflate = zlib.decompressobj(-zlib.MAX_WBITS)
    try:
        content = inflate.decompress(data, most_bytes + 1)
    except zlib.error as error:
        raise SampleError(f"the member is damaged: {error}") from error
    check_file_size(len(content), most_bytes)
    if not inflate.eof:
        raise SampleError("the member is damaged: its compressed data has no end")
    return content
