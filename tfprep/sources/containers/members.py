"""The members of tar and zip files, with the place of each: headers are read, contents are not."""

from __future__ import annotations

import struct
import tarfile
import zipfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from tfprep.errors import SourceError
from tfprep.sources.containers.compressed import COMPRESSED_SUFFIXES
from tfprep.sources.raw import open_raw

ARCHIVE_SUFFIXES = (".tar", ".zip", *COMPRESSED_SUFFIXES)
_LOCAL_HEADER = struct.Struct("<4s22xHH")
"""The fields of a zip member's own header (APPNOTE.TXT 4.3.7) that say where its data begins: the mark, and the lengths of name
and extra field."""
_ENCRYPTED = 1


class Member(NamedTuple):
    """A file in an archive: its name, where its bytes are, and whether they are deflated."""

    name: str
    start: int
    bytes: int
    deflated: bool


def members(path: Path, tally: Counter[str]) -> Iterator[Member]:
    """Yield the files in an archive, in its order. SourceError if it cannot be read, or its members have no place of their
    own."""
    try:
        with open_raw(path) as file:
            is_zip = zipfile.is_zipfile(file)
        yield from _zip_members(path, tally) if is_zip else _tar_members(path, tally)
    except (tarfile.TarError, zipfile.BadZipFile, struct.error, EOFError, NotImplementedError) as error:
        raise SourceError(f"{path} is not a whole archive: {error}") from error
    except OSError as error:
        raise SourceError(f"{path}: cannot read the archive: {error.strerror or error}") from error


def _tar_members(path: Path, tally: Counter[str]) -> Iterator[Member]:
    with open_raw(path) as file, tarfile.open(fileobj=file, mode="r:") as archive:
        for info in archive:
            archive.members = []  # type: ignore[attr-defined]  # a tar of a million members would hold a million headers
            if info.isreg() and not info.issparse():
                yield Member(info.name, info.offset_data, info.size, False)
            elif not info.isdir():
                tally["member that is a link, a device or sparse"] += 1
        file.seek(archive.offset)
        if len(file.read(tarfile.BLOCKSIZE)) < tarfile.BLOCKSIZE:
            raise tarfile.ReadError("the mark of its end is missing: it was cut short, or its writer was not closed")


def _zip_members(path: Path, tally: Counter[str]) -> Iterator[Member]:
    with open_raw(path) as file, zipfile.ZipFile(file) as archive:
        for info in archive.infolist():
            if info.is_dir():
                continue
            if info.flag_bits & _ENCRYPTED or info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
                tally["member that is encrypted, or compressed in another way than deflate"] += 1
                continue
            file.seek(info.header_offset)
            mark, name, extra = _LOCAL_HEADER.unpack(file.read(_LOCAL_HEADER.size))
            if mark != b"PK\x03\x04":
                raise zipfile.BadZipFile(f"{info.filename!r} has no header of its own")
            start = info.header_offset + _LOCAL_HEADER.size + name + extra
            yield Member(info.filename, start, info.compress_size, info.compress_type == zipfile.ZIP_DEFLATED)
