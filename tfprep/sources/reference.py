"""References to a part of a file, among the paths of an entry: `shards/a.tar//1536+20480//cat/1.jpg`.

A reference holds the container's path, the part's first byte and number of bytes (with `z` if they are deflated), and the name
of the member. Paths of sources never hold two slashes in a row, so that no file has such a name.
"""

from __future__ import annotations

import zlib
from typing import NamedTuple

from tfprep.errors import SampleError
from tfprep.images import MAX_FILE_BYTES, check_file_size

_MARK = "//"
_MISSING = "missing"


class FilePart(NamedTuple):
    """A part of a file; without `bytes` the member is missing."""

    container: str
    start: int
    bytes: int | None
    deflated: bool
    member: str


def reference(container: str, start: int, size: int, member: str, *, deflated: bool = False) -> str:
    return f"{container}{_MARK}{start}+{size}{'z' * deflated}{_MARK}{member}"


def missing_member(container: str, member: str) -> str:
    """Return the reference to a member that is expected and not there: reading it rejects its sample."""
    return f"{container}{_MARK}{_MISSING}{_MARK}{member}"


def part_of(path: str) -> FilePart | None:
    """Return what a path refers to; None if it is the path of a whole file."""
    container, mark, rest = path.partition(_MARK)
    if not mark:
        return None
    place, _, member = rest.partition(_MARK)
    if place == _MISSING:
        return FilePart(container, 0, None, False, member)
    start, _, size = place.removesuffix("z").partition("+")
    return FilePart(container, int(start), int(size), place.endswith("z"), member)


def content_of(part: FilePart, data: bytes) -> bytes:
    """Return the member whose bytes in the container are `data`. Raises SampleError."""
    if len(data) != part.bytes:
        raise SampleError(
            f"the container ends {(part.bytes or 0) - len(data)} bytes before the member does; it was cut short"
        )
    if not part.deflated:
        return data
    inflate = zlib.decompressobj(-zlib.MAX_WBITS)
    try:
        content = inflate.decompress(data, MAX_FILE_BYTES + 1)
    except zlib.error as error:
        raise SampleError(f"the member is damaged: {error}") from error
    check_file_size(len(content))
    if not inflate.eof:
        raise SampleError("the member is damaged: its compressed data has no end")
    return content
