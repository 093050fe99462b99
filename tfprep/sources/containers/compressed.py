"""Tar files that are compressed as a whole: no member has a place of its own, so that a plain copy is made once."""

from __future__ import annotations

import bz2
import gzip
import lzma
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, BinaryIO

from tfprep.errors import SourceError
from tfprep.sources.raw import open_raw
from tfprep.sources.staging import CheckedFile, staged

COMPRESSED_SUFFIXES = (".gz", ".tgz", ".bz2", ".tbz2", ".xz", ".txz", ".zst")
_PIECE_BYTES = 4 << 20
_BOMB_BYTES, _BOMB_RATIO = 1 << 30, 100
"""A file that grows a hundredfold, to more than 1 GiB, is no archive of images: those are compressed already."""


def _zstandard(file: BinaryIO) -> BinaryIO:
    import pyarrow as pa

    return pa.CompressedInputStream(file, "zstd")  # type: ignore[no-any-return]


_OPENERS: Mapping[bytes, Callable[[Any], Any]] = {
    b"\x1f\x8b": gzip.open,
    b"BZh": bz2.open,
    b"\xfd7zXZ": lzma.open,
    b"\x28\xb5\x2f\xfd": _zstandard,
}
"""How compressed files begin, and what reads them."""


def plain_archive(path: Path) -> Path:
    """Return the archive itself, or if it is compressed as a whole, its plain copy.

    Raises:
        SourceError: The archive cannot be read, is cut short, or its copy would fill the disk.
    """
    try:
        with open_raw(path) as file:
            start = file.read(8)
        opener = next((opener for mark, opener in _OPENERS.items() if start.startswith(mark)), None)
        return path if opener is None else staged(path, ".tar", lambda target: _copy(path, opener, target))
    except (EOFError, zlib.error, lzma.LZMAError, gzip.BadGzipFile) as error:
        raise SourceError(f"{path} is not a whole archive: {error}") from error
    except OSError as error:
        raise SourceError(f"{path}: cannot read the archive: {error.strerror or error}") from error


def _copy(path: Path, opener: Callable[[Any], Any], target: CheckedFile) -> None:
    with open_raw(path) as file, opener(file) as content:
        while piece := content.read(_PIECE_BYTES):
            target.write(piece)
            if target.size > _BOMB_BYTES and target.size > _BOMB_RATIO * file.tell():
                raise SourceError(
                    f"{path} grows more than {_BOMB_RATIO} times when it is unpacked, as no archive of images does. If it is "
                    "one all the same, unpack it by hand and name the plain archive"
                )
