"""Tar and zip files in the convention of WebDataset: members that share a key are one sample.

https://github.com/webdataset/webdataset: the key of `cat/0001.seg.png` is `cat/0001`, its ending is `seg.png`. Headers are read
for the place of each member, contents are not. In a tar that is compressed as a whole (.tar.gz) no member has a place of its own.
"""

from __future__ import annotations

import json
import re
import struct
import tarfile
import zipfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property, partial
from itertools import groupby
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from tfprep.errors import RecipeError, SampleError, SourceError
from tfprep.fields import KINDS, BoxFormat, Kind, check_box_format
from tfprep.sources.annotations.objects import table_boxes
from tfprep.sources.cells import FILE_KINDS, class_cell, is_whole, path_cell, sorted_classes, value_cell
from tfprep.sources.folder import Splits, check_common, split_files
from tfprep.sources.patterns import HIDDEN, IMAGE_SUFFIXES, NOT_SHOWN, Holes, Pattern, compile_pattern
from tfprep.sources.pixels import Pixels, pixel_decoders
from tfprep.sources.raw import Reference, open_raw, read_raw
from tfprep.sources.source import Entry, FieldDecoder, Listing, check_fields, constructor_text, key_of
from tfprep.sources.splits import Row, listing_of

_MOST_CLASSES = 100_000
"""A label above this is not a class number."""


@dataclass(frozen=True, repr=False)
class Archives:
    """Samples in tar or zip files. Fields: `image`, `label` if given, and those of `fields`.

    Members next to each other whose names have one key are one sample: the key is the path up to the first dot of the name, the
    rest is the ending. Members are read by their place in the file; nothing is unpacked. Zip files may be deflated; unpack tars
    that are compressed as a whole, such as .tar.gz. A tar in a tar is a folder of its name, as in ImageNet's training images.

    A sample without the member of a field is rejected. A sample without an image, members that no field names, and hidden
    members, such as those that a Mac adds, are counted in the tally.

    Attributes:
        archives: The pattern of the archives: `{split}/*.tar`, `shards/*.zip`.
        image: The endings of images, in order of preference; by default those of all image formats.
        label: The ending of the member with the class, a name or a number: "cls"; or "json:KEY" for a value in a JSON member.
        members: The pattern of the images' names inside the archives, where folders there give classes or splits:
            `{split}/{label}/**`. Images that do not fit are left out, and counted in the tally.
        fields: Further fields with kind and ending: `{"mask": ("mask", "seg.png"), "text": ("text", "txt"), "age": ("scalar",
            "json:age")}`. A scalar is int if it is in all samples, else float, as in `Table`.
        classes: The class names in the order of their numbers. By default the names that occur, sorted; if all are whole numbers,
            these are the class numbers.
        splits: As in `Folder`.
        pixels: As in `Folder`.
        box_format: How boxes are written, as in `Table`.

    Raises:
        RecipeError: An option is wrong, or two options contradict each other.
    """

    archives: str = "*.tar"
    image: tuple[str, ...] = tuple(suffix[1:] for suffix in IMAGE_SUFFIXES)
    label: str | None = None
    members: str | None = None
    fields: Mapping[str, tuple[Kind, str]] = field(default_factory=dict)
    classes: tuple[str, ...] | None = None
    splits: Splits = None
    pixels: Mapping[str, Pixels] = field(default_factory=dict)
    box_format: BoxFormat = "xyxy"

    def __post_init__(self) -> None:
        pattern = compile_pattern(self.archives, "Archives: archives")
        inside = self._inside.holes if self._inside else frozenset()
        if self.label is not None and "label" in inside:
            raise RecipeError(
                f"Archives: the class is {self.label!r}, or {{label}} of {self.members!r}; give one of them"
            )
        if "split" in inside and "split" in pattern.holes:
            raise RecipeError(
                f"Archives: {{split}} is in {self.archives!r} and in {self.members!r}; leave one of them out"
            )
        if pattern.suffix not in ARCHIVE_SUFFIXES:
            raise RecipeError(
                f"Archives: expected archives to end in {' or '.join(ARCHIVE_SUFFIXES)}; got {self.archives!r}"
            )
        if not isinstance(self.image, tuple) or not all(isinstance(ending, str) for ending in self.image):
            raise RecipeError(
                f"Archives: expected image to be a tuple of endings, such as ('jpg', 'png'); got {self.image!r}"
            )
        object.__setattr__(self, "image", tuple(ending.lower().lstrip(".") for ending in self.image))
        fields = check_fields(self.fields, KINDS, ("image", "label"), "Archives", "('mask', 'seg.png')")
        object.__setattr__(self, "fields", {name: (kind, text.lstrip(".")) for name, (kind, text) in fields.items()})
        by_split = self._inside if self._inside and "split" in inside else pattern
        check_common(self, by_split, "label" in self.kinds())
        check_box_format(self.box_format, "Archives: box_format")

    @cached_property
    def _inside(self) -> Pattern | None:
        return None if self.members is None else compile_pattern(self.members, "Archives: members")

    def kinds(self) -> dict[str, Kind]:
        """The kind of each field."""
        of_folder = self._inside and "label" in self._inside.holes
        label: dict[str, Kind] = {"label": "label"} if self.label or of_folder else {}
        return {"image": "image", **label, **{name: kind for name, (kind, _) in self.fields.items()}}

    def multi_hot(self) -> tuple[str, ...]:
        """The label, if its classes are those of the image and not of each of its boxes."""
        return () if "boxes" in self.kinds().values() else ("label",)

    def decoders(self) -> dict[str, FieldDecoder]:
        """The decoders of boxes, and of images that do not become 8-bit RGB."""
        return table_boxes(self.kinds(), self.box_format) | pixel_decoders(self.pixels)

    def scan(self, root: Path) -> Listing:
        """List the samples of all archives below `root`; see `Source.scan`."""
        tally = Counter[str]()
        found = split_files(root, self.archives, self.splits, "archive", tally)
        archives = [(path, holes["split"]) for path, holes in found]
        classes = {"label": self.classes or self._found_classes(root, archives)} if "label" in self.kinds() else {}
        files = ("image", *(name for name, (kind, _) in self.fields.items() if kind in FILE_KINDS))
        values = tuple(name for name in self.kinds() if name not in files)
        whole = {name for name in values if self.kinds()[name] == "scalar"}
        for sample in self._all(root, archives) if whole else ():
            whole -= {name for name in whole if not sample.converted(root, self.fields[name][1], {}, is_whole)}
        rows = partial(self._rows, root, archives, files, values, classes.get("label", ()), whole)
        return listing_of(self, files, values, classes, rows, passed_over=tally)

    def _rows(
        self, root: Path, archives: list[tuple[str, str]], files: tuple[str, ...], values: tuple[str, ...],
        names: tuple[str, ...], whole: set[str], tally: Counter[str],
    ) -> Iterator[Row]:  # fmt: skip
        numbers, kinds = {name: number for number, name in enumerate(names)}, self.kinds()
        endings = {"label": self.label or "", **{name: ending for name, (_, ending) in self.fields.items()}}
        named = {ending.partition(":")[0].lower() for ending in endings.values()}
        for path, split in archives:
            for sample in _samples(root, path, self.image, tally):
                holes = self._holes(sample)
                if holes is None:
                    tally[f"image that does not fit {self.members!r}"] += 1
                    continue
                if isinstance(self.splits, tuple) and holes.get("split", split) not in self.splits:
                    tally[f"in no split of {self.splits}"] += 1
                    continue
                unread = len(sample.members.keys() - named - {sample.image})
                tally.update({"member that no field names": unread} if unread else {})
                of_sample = key_of(holes["split"]) if "split" in holes else split
                refs = tuple(str(sample.reference(endings.get(name, sample.image))) for name in files)
                made = tuple(
                    sample.converted(root, endings[name], holes, value_cell, kinds[name], numbers, None, name in whole)
                    for name in values
                )
                yield Entry(f"{key_of(path)}/{key_of(sample.key)}.{sample.image}", of_sample, refs, made), None

    def _holes(self, sample: _Sample) -> Holes | None:
        """Return the values of the placeholders of `members`; None if the image's name does not fit."""
        name = sample.members[sample.image].name.removeprefix("./")
        return self._inside.match_path(name) if self._inside else {}

    def _all(self, root: Path, archives: list[tuple[str, str]]) -> Iterator[_Sample]:
        return (sample for path, _ in archives for sample in _samples(root, path, self.image, Counter()))

    def _found_classes(self, root: Path, archives: list[tuple[str, str]]) -> tuple[str, ...]:
        classes: set[str] = set()
        for sample in self._all(root, archives):
            if (holes := self._holes(sample)) is not None:
                classes.update(sample.converted(root, self.label or "", holes, class_cell) or ())
        if self.label is None:
            return tuple(sorted(classes))
        if classes and all(name.isdecimal() and int(name) < _MOST_CLASSES for name in classes):
            return tuple(map(str, range(max(map(int, classes)) + 1)))
        return sorted_classes(classes)

    __repr__ = constructor_text


class _Sample(NamedTuple):
    """The members of one key, by ending."""

    archive: str
    key: str
    members: dict[str, Member]
    image: str
    """The ending of its image."""

    def reference(self, ending: str) -> Reference:
        member = self.members.get(ending.lower())
        if member is None:
            return Reference(self.archive, member=f"{self.key}.{ending}", missing=True)
        place = member.start, member.bytes, member.deflated
        return Reference(self.archive, *place, path_cell(member.name), crc=member.crc)

    def converted(self, root: Path, ending: str, holes: Holes, convert: Callable[..., Any], *options: Any) -> Any:
        """Return the value of the text of a member, of a value in a JSON member, or without an ending of the folder's label."""
        ending, _, key = ending.partition(":")
        reference = self.reference(ending)
        try:
            if not ending:
                return convert(holes["label"], *options)
            if reference.missing:
                return convert(None, *options)
            text = read_raw(root, str(reference)).decode("utf-8-sig")
            return convert(json.loads(text).get(key) if key else text.strip(), *options)
        except (SourceError, ValueError, AttributeError, RecursionError, SampleError) as error:
            raise SourceError(f"{root / self.archive}: {self.key}{ending and '.'}{ending}: {error}") from error


def _samples(root: Path, path: str, images: tuple[str, ...], tally: Counter[str]) -> Iterator[_Sample]:
    """Yield the samples of an archive that have an image."""
    at_last = not any(split_name(member.name)[1].lower() in images for member in members(root / path, Counter()))
    for key, group in groupby(members(root / path, tally), key=lambda member: split_name(member.name, at_last)[0]):
        by_ending: dict[str, Member] = {}
        for member in group:
            other = by_ending.setdefault(split_name(member.name, at_last)[1].lower(), member)
            if other is not member:
                raise SourceError(
                    f"{root / path}: {other.name!r} and {member.name!r} are one part of the sample {key!r}; rename one, or "
                    "leave it out of the archive"
                )
        if key.rpartition("/")[2].startswith("__"):  # WebDataset's own notes, such as __index__.txt
            continue
        if image := next((ending for ending in images if ending in by_ending), ""):
            yield _Sample(path, key, by_ending, image)
        else:
            tally["sample without an image"] += 1


def split_name(name: str, at_last: bool = False) -> tuple[str, str]:
    """Return key and ending: the name up to its first dot, as in WebDataset, and what follows.

    With `at_last` the last dot counts: in archives where no image would have an ending at the first, such as `1.3.png`.
    """
    folder, slash, base = name.removeprefix("./").rpartition("/")
    stem, dot, ending = base.rpartition(".") if at_last else base.partition(".")
    return f"{folder}{slash}{stem if dot else base}", ending if dot else ""


ARCHIVE_SUFFIXES = (".tar", ".zip")
_LOCAL_HEADER = struct.Struct("<4s22xHH")
"""The fields of a zip member's own header (APPNOTE.TXT 4.3.7) that say where its data begins: the mark, and the lengths of name
and extra field."""
_ENCRYPTED = 1
_HIDDEN_MEMBER = re.compile(rf"(?:^|/)(?:{NOT_SHOWN.pattern})")


class Member(NamedTuple):
    """A file in an archive: its name, where its bytes are, whether they are deflated, and the CRC-32 of its content in a zip."""

    name: str
    start: int
    bytes: int
    deflated: bool
    crc: int | None = None


def members(path: Path, tally: Counter[str]) -> Iterator[Member]:
    """Yield the files in an archive, in its order. SourceError if it cannot be read, or its members have no place of their
    own."""
    try:
        with open_raw(path) as file:
            # By its suffix: Python takes a tar whose last member is a zip, such as a .npz, for a zip.
            for member in _tar_members(file, tally) if path.suffix.lower() == ".tar" else _zip_members(file, tally):
                if _HIDDEN_MEMBER.search(member.name):  # a Mac adds ._1.jpg to 1.jpg, also in __MACOSX
                    tally[HIDDEN] += 1
                else:
                    yield member
    except (tarfile.TarError, zipfile.BadZipFile, struct.error, EOFError, NotImplementedError) as error:
        raise SourceError(f"{path} is not a whole archive: {error}") from error
    except OSError as error:
        raise SourceError(f"{path}: cannot read the archive: {error.strerror or error}") from error


def _tar_members(file: BinaryIO, tally: Counter[str], start: int = 0) -> Iterator[Member]:
    """Yield the members of the tar that begins at a byte, and those of tars in it: `n01440764.tar` is a folder."""
    file.seek(start)
    with tarfile.open(fileobj=file, mode="r:") as archive:
        for info in archive:
            archive.members = []  # type: ignore[attr-defined]  # a tar of a million members would hold a million headers
            if info.isreg() and not info.issparse() and info.name.lower().endswith(".tar") and start == 0:
                for member in _tar_members(file, tally, info.offset_data):
                    yield member._replace(name=f"{info.name[:-4]}/{member.name.removeprefix('./')}")
            elif info.isreg() and not info.issparse():
                yield Member(info.name, info.offset_data, info.size, False)
            elif not info.isdir():
                tally["member that is a link, a device or sparse"] += 1
        file.seek(archive.offset)
        mark = file.read(tarfile.BLOCKSIZE)
        if len(mark) < tarfile.BLOCKSIZE:
            raise tarfile.ReadError("the mark of its end is missing: it was cut short, or its writer was not closed")
        if any(mark):  # tarfile takes a header that it cannot read for the end
            raise tarfile.ReadError(f"the header of the member at byte {archive.offset:,} is damaged")
        while start == 0 and (rest := file.read(tarfile.RECORDSIZE)):
            if any(rest):
                raise tarfile.ReadError("there are bytes after the mark of its end; join tars with `tar --concatenate`")


def _zip_members(file: BinaryIO, tally: Counter[str]) -> Iterator[Member]:
    with zipfile.ZipFile(file) as archive:
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
            is_deflated = info.compress_type == zipfile.ZIP_DEFLATED
            yield Member(info.filename, start, info.compress_size, is_deflated, info.CRC)
