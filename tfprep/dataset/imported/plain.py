"""Plain copies of TFRecords that are compressed as a whole, in which every record has a place of its own."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import BinaryIO

from tfprep.dataset.imported.scan import compression_of
from tfprep.dataset.imported.shards import Shard, current
from tfprep.errors import DatasetError
from tfprep.storage.local import whole_file, writing
from tfprep.storage.urls import is_remote, open_file

_PIECE_BYTES = 4 << 20


def plain_copies(shards: Sequence[Shard], folder: Path) -> list[Shard]:
    """Write shards without compression to a folder, in a stream, and return the copies. One that is as new as its shard is kept.

    Raises:
        DatasetError: Two shards have one name, or one cannot be unpacked.
    """
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
    copies: dict[Path, Shard] = {}
    for shard in shards:
        target = folder / shard.path.name.removesuffix(".gz")
        if target in copies:
            raise DatasetError(
                f"{copies[target].path} and {shard.path} would have one copy, {target}; index them one by one"
            )
        copies[target] = shard
        if is_remote(shard.path) or not target.exists() or target.stat().st_mtime < shard.path.stat().st_mtime:
            with open_file(shard.path) as file, whole_file(target) as out:
                for piece in _plain(file, shard):
                    out.write(piece)
    return [current(target) for target in copies]


def _plain(file: BinaryIO, shard: Shard) -> Iterator[bytes]:
    start = file.read(64)
    file.seek(0)
    kind = compression_of(start)
    try:
        if kind == "ZLIB":
            inflate = zlib.decompressobj()
            while piece := file.read(_PIECE_BYTES):
                yield inflate.decompress(piece)
            yield inflate.flush()
            if not inflate.eof:
                raise EOFError("it ends too early")
            return
        plain = gzip.GzipFile(fileobj=file) if kind else file
        while piece := plain.read(_PIECE_BYTES):
            yield piece
    except (OSError, EOFError, zlib.error) as error:
        raise DatasetError(f"{shard.path} cannot be unpacked ({kind or 'plain'}): {error}") from error
