"""`manifest.json`: what a version of a dataset is, as plain JSON that reading never executes.

The file ends with the SHA-256 of all bytes before it, in one exact form (`seal`), so that a change of any byte is found.

A dataset may come from a stranger. The parser checks every entry for its type and range, so that code which uses a `Manifest` may
trust it: names are plain names inside the dataset's folder, counts fit into 63 bits, numbers are finite, every variant has the
number of shards and records of variant 0, codecs are known and can hold their fields. Errors name the file, entry and rule.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import numpy as np

from tfprep.codecs import from_description
from tfprep.codecs.raw import RAW_DTYPES, require_bfloat16
from tfprep.dataset.names import INDEX, LOCATIONS, MANIFEST, check_file_name, check_name
from tfprep.dataset.plain_json import WrongJsonError, from_json, indented, wrong
from tfprep.errors import DatasetError, RecipeError
from tfprep.fields import EFFECTS, FieldSpec, field_name_fault
from tfprep.records.framing import FRAME_BYTES
from tfprep.storage.urls import file_size, open_file, read_file
from tfprep.units import printable

FORMAT_VERSION = 4


@dataclass(frozen=True)
class FileInfo:
    """One shard of one variant: its name, how many records and bytes it holds, and their SHA-256 in hexadecimal.

    The SHA-256 of imported shards is not known: "".
    """

    name: str
    records: int
    bytes: int
    sha256: str = ""

    def __post_init__(self) -> None:
        check_file_name(self.name)
        if not 0 <= self.records * FRAME_BYTES <= self.bytes:
            raise DatasetError(f"{self.name}: {self.records} records do not fit into {self.bytes} bytes")


@dataclass(frozen=True)
class SplitInfo:
    """One split: how many samples, and its files by variant and shard (`files[variant][shard]`).

    `rows_crc32c[variant][shard]` is the CRC-32C of the shard's rows in `locations.bin`; it is empty until that file is written.
    """

    samples: int
    files: tuple[tuple[FileInfo, ...], ...]
    rows_crc32c: tuple[tuple[int, ...], ...] = ()

    def __post_init__(self) -> None:
        for variant, files in enumerate(self.files):
            records = [file.records for file in files]
            if records != [file.records for file in self.files[0]] or sum(records) != self.samples:
                raise DatasetError(
                    f"variant {variant} holds {sum(records)} records in {len(records)} shards, or others in the shards than "
                    f"variant 0; {self.samples} samples are listed"
                )

    @property
    def variants(self) -> int:
        return len(self.files)

    @property
    def shards(self) -> int:
        return len(self.files[0]) if self.files else 0

    @property
    def bytes(self) -> int:
        return sum(file.bytes for files in self.files for file in files)


@dataclass(frozen=True)
class FieldInfo:
    """One stored field: what it is, its codec as `Codec.describe` gives it, and what it follows when geometry moves it at load (a
    part of `tfprep.fields.EFFECTS`; all of them where it does not depend on pixels)."""

    spec: FieldSpec
    codec: Mapping[str, Any]
    follows: tuple[str, ...] = tuple(sorted(EFFECTS))

    def __str__(self) -> str:
        """The field for people, such as `image of uint8 [? x ? x 3], jpeg (quality 95, subsampling 420)`."""
        options = ", ".join(
            f"{key} {value}" for key, value in self.codec.items() if key != "codec" and value is not None
        )
        codec = f"{self.codec['codec']} ({options})" if options else self.codec["codec"]
        return f"{self.spec.kind} of {self.spec.dtype} [{self.spec.sides}], {codec}"


@dataclass(frozen=True)
class Statistics:
    """Per-channel mean and standard deviation (population) of an image field over variant 0 of the training split."""

    mean: tuple[float, ...]
    std: tuple[float, ...]


@dataclass(frozen=True)
class Imported:
    """More of a dataset of TFRecords that other tools wrote, which `tfprep index` made.

    Attributes:
        root: The folder that all shards are in or below: relative to that of `manifest.json`, absolute, or a URL.
        features: The name that each field has in the Examples.
        left_out: The features that are not fields, and why.
        versions: By split, for each shard a text that changes when the file is written.
        fixed: The fields whose numbers are places in the image in a form that is not known: they cannot follow geometry.
    """

    root: str
    features: Mapping[str, str]
    left_out: Mapping[str, str]
    versions: Mapping[str, tuple[str, ...]]
    fixed: tuple[str, ...] = ()


@dataclass(frozen=True)
class AddedFields:
    """Fields that a model computed. They are in a dataset of their own, whose records follow those of this one.

    Attributes:
        folder: The name of its folder, inside that of this dataset.
        sha256: The SHA-256 of its `manifest.json`, in hexadecimal.
        fields: What it stores.
        variants: By split, the number of variants that have these fields: the first ones. A split that is not named has none.
        pixels: Whether the values belong to the pixels of the stored variant, so that they do not follow an op at load.
        within: The folder, beside that of the version, that `folder` is in; "" for the version's own.
    """

    folder: str
    sha256: str
    fields: Mapping[str, FieldInfo]
    variants: Mapping[str, int]
    pixels: bool
    within: str = ""


@dataclass(frozen=True)
class Manifest:
    """All that `manifest.json` holds.

    `classes` and `class_counts` are by field; counts are of variant 0, by split. `files` holds the digests of the published files
    that are not shards, by name: the index, `locations.bin`, the files for TensorFlow Datasets, the rejected samples.
    `within` is the folder of the shards, beside that of the version, such as `shards` at a store; "" for the version's own.
    `inputs` is the SHA-256 of the keys and contents of all raw files, and of what was rejected; "" where it is not of a build.
    `imported` is None for a built dataset; where it is not, there is no recipe. `added` holds the fields that models computed, by
    the name that `tfprep fields add` gave them together; None without any.
    """

    name: str
    fingerprint: str
    recipe: Mapping[str, Any]
    fields: Mapping[str, FieldInfo]
    splits: Mapping[str, SplitInfo]
    classes: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    class_counts: Mapping[str, Mapping[str, tuple[int, ...]]] = field(default_factory=dict)
    statistics: Mapping[str, Statistics] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)
    rejected: int = 0
    files: Mapping[str, FileDigest] = field(default_factory=dict)
    imported: Imported | None = None
    added: Mapping[str, AddedFields] | None = None
    within: str = ""
    inputs: str = ""

    @property
    def groups(self) -> Mapping[str, AddedFields]:
        """The fields that models added, by the name that they have together."""
        return self.added or {}

    def shard_files(self) -> Iterator[FileInfo]:
        """Yield the files of all shards, by split, variant and shard."""
        for split in self.splits.values():
            for files in split.files:
                yield from files

    @property
    def fix(self) -> str:
        """The command that mends what is wrong with the dataset's files, for messages."""
        if "model_fields" in self.recipe:
            return "run tfprep fields add --verify again, which writes it"
        return "run tfprep index again" if self.imported else "run the build again with --verify, which writes it"

    def staying_in(self, folder: str) -> Manifest:
        """Return the manifest of a version at a store whose own shards and added fields stay in `folder`, where they are."""
        added = {name: replace(entry, within=entry.within or folder) for name, entry in self.groups.items()}
        return replace(self, within=self.within or folder, added=added or None)

    def to_json(self) -> str:
        """The text of `manifest.json`, with its own checksum at the end."""
        return seal(
            {"format_version": FORMAT_VERSION, **{entry.name: getattr(self, entry.name) for entry in fields(self)}}
        )


def kept_fields(before: Manifest | None, now: Manifest) -> dict[str, AddedFields] | None:
    """Return the added fields of a manifest that still fit one that takes its place: their main shards are the same ones, and
    are read as before: a model reads any field."""

    def shards(manifest: Manifest, split: str, variants: int) -> list[list[Any]]:
        info = manifest.splits.get(split)
        if manifest.imported is not None and info is not None:
            return [[*info.files[0]], [*manifest.imported.versions[split]], [*info.rows_crc32c]]
        of_variants = info.files[:variants] if info else ()
        return [[(file.records, file.bytes, file.sha256) for file in files] for files in of_variants]

    if before is None or any(now.fields.get(name) != info for name, info in before.fields.items()):
        return None
    if before.imported and now.imported and before.imported.features != now.imported.features:
        return None
    kept = {
        group: entry
        for group, entry in before.groups.items()
        if all(shards(before, split, count) == shards(now, split, count) for split, count in entry.variants.items())
        and not entry.fields.keys() & now.fields.keys()
    }
    return kept or None


def seal(document: Mapping[str, Any]) -> str:
    """Return the document as JSON text whose last entry, `sha256`, is the SHA-256 of all bytes before that entry."""
    text = indented(document, ensure_ascii=False).removesuffix("\n}")
    try:
        ending = _ending(text.encode())
    except UnicodeEncodeError:  # names of files that are not UTF-8
        text = indented(document).removesuffix("\n}")
        ending = _ending(text.encode())
    return text + ending


def _ending(text: bytes) -> str:
    return f',\n "sha256": "{hashlib.sha256(text).hexdigest()}"\n}}\n'


# --- reading ----------------------------------------------------------------------------------------------------------


MOST_BYTES = 128 << 20
"""Half a million shard files need as much; JSON takes about ten times its size in memory."""
_MOST_DEPTH = 64
_MOST_DIMENSIONS = 8
_MOST_VALUE_BYTES = 1 << 31  # a stack of float64 maps takes four times the 0.5 GB of the largest image
_SHOWN_CHARACTERS = 60
_MOST_REASON = 300
_SHA256 = re.compile(r"[0-9a-f]{64}\Z")
_AROUND = ("format_version", "sha256")
"""Entries that are of the file and not of the dataset."""


def parse_manifest(content: bytes, path: Path) -> Manifest:
    """Check the content of `manifest.json` and return what it says.

    Args:
        content: The bytes of the file.
        path: The file, for messages.

    Raises:
        DatasetError: It is damaged, was written by another version, or breaks a rule of the format.
    """
    if len(content) > MOST_BYTES:
        raise DatasetError(f"{path} has {len(content)} bytes; a manifest has at most {MOST_BYTES}")
    try:
        raw = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise DatasetError(f"{path} is damaged ({error}); run the build again, which writes it") from error
    version: Any = raw.get("format_version") if isinstance(raw, dict) else None
    if type(version) is not int or version != FORMAT_VERSION:
        is_newer = type(version) is int and version > FORMAT_VERSION
        advice = "upgrade tfprep" if is_newer else "build it again with this version"
        raise DatasetError(
            f"{path}: format version {printable(repr(version))[:_SHOWN_CHARACTERS]}, this tfprep reads {FORMAT_VERSION}; {advice}"
        )
    is_imported = raw.get("imported") is not None
    fix = "delete it, then run tfprep index again" if is_imported else "run the build again, which writes it"
    length = len(_ending(b""))
    if content[-length:] != _ending(content[:-length]).encode():
        raise DatasetError(f"{path} was changed after it was written: its own checksum is wrong; {fix}")
    try:
        of_dataset = {name: value for name, value in raw.items() if name not in _AROUND}
        _check_plain(of_dataset)
        manifest = from_json(Manifest, of_dataset)
        _check(manifest)
    except (WrongJsonError, DatasetError) as error:
        raise DatasetError(f"{path} is damaged: {printable(str(error))[:_MOST_REASON]}; {fix}") from error
    return manifest


def read_manifest(folder: Path) -> Manifest:
    """Read and check a manifest.

    Args:
        folder: The folder of a version.

    Returns:
        What its `manifest.json` says.

    Raises:
        DatasetError: There is none, or something is wrong with it; the message says what to do.
    """
    return parse_manifest(read_file(folder / MANIFEST, MOST_BYTES + 1), folder / MANIFEST)


# --- rules between entries --------------------------------------------------------------------------------------------


def _check(manifest: Manifest) -> None:
    """Check what the types of the entries do not say. Raises DatasetError or WrongJsonError."""
    check_name("the name of a dataset", manifest.name)
    if not manifest.fields or not manifest.splits:
        raise DatasetError("there is at least one field and one split")
    if "derive" in manifest.recipe:  # where loaders look up derived inputs
        described: Any = Mapping[str, Mapping[str, Any]]
        try:
            from_json(described, manifest.recipe["derive"])
        except WrongJsonError as error:
            raise error.below("recipe.derive") from None
    for name, info in manifest.fields.items():
        _check_field(name, info)
    for name, split in manifest.splits.items():
        _check_split(name, split, manifest)
    _check_files(manifest)
    _check_counts(manifest)
    _check_added(manifest)


def _check_plain(document: Mapping[str, Any]) -> None:
    """Check plain JSON: bounded depth, finite numbers, and texts that can be written as UTF-8, in which bytes of other names of
    files are half surrogates."""
    level: list[Any] = [document]
    for _ in range(_MOST_DEPTH):
        inner = (value.values() if isinstance(value, dict) else value for value in level)
        level = [value for values in inner for value in values if isinstance(value, dict | list)]
    if level:
        raise DatasetError(f"the document is nested more than {_MOST_DEPTH} deep")
    try:
        json.dumps(document, ensure_ascii=False, allow_nan=False).encode("utf-8", "surrogateescape")
    except ValueError as error:
        raise DatasetError(f"its numbers are finite, and its texts can be written as UTF-8 ({error})") from error


def _check_field(name: str, info: FieldInfo) -> None:
    way = f"fields.{printable(name)[:_SHOWN_CHARACTERS]}"
    if fault := field_name_fault(name):
        raise DatasetError(f"{way}: {fault}")
    if not EFFECTS.issuperset(info.follows):
        raise wrong(f"holds names of {', '.join(sorted(EFFECTS))}", list(info.follows)).below(f"{way}.follows")
    _check_array(info.spec, f"{way}.spec")
    try:
        from_description(info.codec).check(name, info.spec.kind)
    except (RecipeError, TypeError, ValueError) as error:
        raise DatasetError(f"{way}.codec is not one that tfprep writes: {printable(str(error))}") from error


def _check_array(spec: FieldSpec, way: str) -> None:
    dtype, is_text = spec.dtype, spec.dtype == "string"
    if is_text != (spec.kind == "text"):
        raise wrong("is 'string' for text and for nothing else", dtype).below(f"{way}.dtype")
    if dtype == "bfloat16":
        require_bfloat16()
    if not is_text and dtype not in RAW_DTYPES:
        raise wrong("is the plain name of a type of numbers", dtype).below(f"{way}.dtype")
    item_bytes = 1 if is_text else np.dtype(dtype).itemsize
    if len(spec.shape) > _MOST_DIMENSIONS:
        raise wrong(f"has at most {_MOST_DIMENSIONS} dimensions", list(spec.shape)).below(f"{way}.shape")
    if math.prod(size for size in spec.shape if size is not None) * item_bytes > _MOST_VALUE_BYTES:
        raise DatasetError(f"{way}.shape is that of a value of more than {_MOST_VALUE_BYTES} bytes")


def _check_split(name: str, split: SplitInfo, manifest: Manifest) -> None:
    check_name("the name of a split", name)
    if not split.files or not split.files[0]:
        raise DatasetError(f"splits.{name}.files names no shard")
    counts = [len(shards) for shards in split.files]
    if [len(crcs) for crcs in split.rows_crc32c] != counts:
        raise DatasetError(f"splits.{name}.rows_crc32c does not have one number for each shard of each variant")
    if manifest.imported is None:
        for file in itertools.chain.from_iterable(split.files):
            _check_sha256(file.name, file.sha256)
    elif [len(manifest.imported.versions.get(name, ()))] != counts:
        raise DatasetError(f"imported.versions does not have one text for each shard of {name}, which has one variant")


def _check_sha256(way: str, value: str) -> None:
    if not _SHA256.match(value):
        raise wrong("is a SHA-256 of 64 hexadecimal digits", value).below(f"{way}: sha256")


def _check_files(manifest: Manifest) -> None:
    for name in (INDEX, LOCATIONS):
        if name not in manifest.files:
            raise DatasetError(f"files does not name {name}")
    for folder in (manifest.within, *(entry.within for entry in manifest.groups.values())):
        if folder:
            check_file_name(folder)
    for name, digest in manifest.files.items():
        check_file_name(name)
        _check_sha256(name, digest.sha256)
    names = [file.name for file in manifest.shard_files()]
    if len(set(names)) < len(names) or set(names) & manifest.files.keys():
        raise DatasetError("splits names a file twice")
    if manifest.imported is not None and "\0" in unquote("/".join((manifest.imported.root, *names))):
        raise DatasetError("imported.root or the path of a shard holds the character NUL")
    if manifest.imported is not None and manifest.imported.features.keys() != manifest.fields.keys():
        raise DatasetError("imported.features does not have one name for each field")


def _check_counts(manifest: Manifest) -> None:
    for name, counts in manifest.class_counts.items():
        if name not in manifest.fields or name not in manifest.classes:
            raise DatasetError(f"class_counts.{name} is of no field with classes")
        if not counts.keys() <= manifest.splits.keys():
            raise DatasetError(f"class_counts.{name} names a split that is not there")
        if any(len(of_split) != len(manifest.classes[name]) for of_split in counts.values()):
            raise DatasetError(
                f"class_counts.{name} does not have one count for each of {len(manifest.classes[name])} classes"
            )
    for name, statistics in manifest.statistics.items():
        if len(statistics.mean) != len(statistics.std) or not statistics.mean or min(statistics.std) < 0:
            raise DatasetError(f"statistics.{name}: mean and std have one number per channel, and std is not negative")
        shape = manifest.fields[name].spec.shape if name in manifest.fields else ()
        if len(shape) != 3 or shape[2] not in (None, len(statistics.mean)):
            raise DatasetError(f"statistics.{name} does not have one mean per channel of an image field")


def _check_added(manifest: Manifest) -> None:
    names = list(manifest.fields)
    for group, added in manifest.groups.items():
        check_name("the name of added fields", group)
        check_file_name(added.folder)
        _check_sha256(f"added.{group}", added.sha256)
        for name, info in added.fields.items():
            _check_field(name, info)
        for split, variants in added.variants.items():
            if split not in manifest.splits or not 1 <= variants <= manifest.splits[split].variants:
                raise DatasetError(f"added.{group}.variants names {variants} variants of {split}, which are not there")
        names += added.fields
    if len(set(names)) < len(names):
        raise DatasetError("a field is stored twice, and added once more")


# --- digests of files --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class FileDigest:
    """Size in bytes and SHA-256 (hexadecimal) of one file."""

    bytes: int
    sha256: str


def digest_of(path: Path) -> FileDigest:
    """Read a file once and return its digest."""
    with open_file(path) as file:
        sha256 = hashlib.file_digest(file, "sha256").hexdigest()
        return FileDigest(file.tell(), sha256)


def matches(path: Path, digest: FileDigest) -> bool:
    """Return True if the file exists with the size and SHA-256 of the digest."""
    try:
        return file_size(path) == digest.bytes and digest_of(path) == digest
    except DatasetError:
        return False
