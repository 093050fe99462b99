"""The parser and the checks of `tfprep.json`: it turns bytes into a `Manifest`, and opens and executes nothing.

A dataset may come from a stranger. Every entry is checked for its type and range, so that code which uses a `Manifest` may
trust it: names are plain names inside the dataset's folder, counts fit into 63 bits, numbers are finite, every variant has as
many shards and records as variant 0, codecs are known and can hold their fields. Each error names the file, the entry and the
rule.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from tfprep.codecs import from_description
from tfprep.dataset.manifest import (
    FORMAT_VERSION,
    NOT_SEALED,
    FieldInfo,
    FileDigest,
    FileInfo,
    Imported,
    Manifest,
    SplitInfo,
    Statistics,
    is_sealed,
)
from tfprep.dataset.names import check_file_name, check_name
from tfprep.errors import DatasetError, RecipeError
from tfprep.fields import KINDS, FieldSpec, field_name_fault
from tfprep.plain_json import from_json
from tfprep.records.framing import FRAME_BYTES
from tfprep.units import printable

MOST_BYTES = 128 << 20
"""Half a million shard files need as much; JSON takes about ten times its size in memory."""
_MOST_DEPTH = 64
_MOST_DIMENSIONS = 8
_MOST_VALUE_BYTES = (
    1 << 31
)  # images.py decodes up to 0.5 GB; a stack of float64 maps of such an image takes four times that
_MOST_COUNT = 2**63 - 1
_SHOWN_CHARACTERS = 60
_MOST_REASON = 300
_SHA256 = re.compile(r"[0-9a-f]{64}\Z")

T = TypeVar("T")


def parse_manifest(content: bytes, path: Path, *, sealed: bool = True) -> Manifest:
    """Check the content of `tfprep.json` and return what it says.

    Args:
        content: The bytes of the file.
        path: The file, for messages.
        sealed: Whether a wrong checksum of the file itself is an error.

    Raises:
        DatasetError: It is damaged, was written by another version, or breaks a rule of the format.
    """
    if len(content) > MOST_BYTES:
        raise DatasetError(f"{path} has {len(content)} bytes; a manifest has at most {MOST_BYTES}")
    try:
        raw = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise DatasetError(f"{path} is damaged ({error}); run the build again, it writes it anew") from error
    is_object = isinstance(raw, dict)
    _check_version(raw.get("format_version") if is_object else None, path)
    way_out = "run the build again, it writes it anew"
    if is_object and "imported" in raw:
        way_out = "delete it, then run tfprep index again"
    if sealed and not is_sealed(content):
        raise DatasetError(f"{path} {NOT_SEALED}; {way_out}")
    try:
        return _manifest(_Entry(raw, ""))
    except DatasetError as error:
        raise DatasetError(f"{path} is damaged: {printable(str(error))[:_MOST_REASON]}; {way_out}") from error


def _check_version(version: Any, path: Path) -> None:
    if not isinstance(version, int) or isinstance(version, bool) or version != FORMAT_VERSION:
        newer = isinstance(version, int) and version > FORMAT_VERSION
        advice = "upgrade tfprep" if newer else "build it again with this version"
        raise DatasetError(f"{path}: format version {_shown(version)}, this tfprep reads {FORMAT_VERSION}; {advice}")


# --- entries --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Entry:
    """A value of the document, and the way to it for messages, as `splits.train.samples`."""

    value: Any
    way: str

    def wrong(self, rule: str) -> DatasetError:
        return DatasetError(f"{self.way or 'the document'} {rule}, not {_shown(self.value)}")

    def __getitem__(self, name: str) -> _Entry:
        if not isinstance(self.value, dict):
            raise self.wrong("is an object")
        if name not in self.value:
            raise DatasetError(f"{self._way_to(name)} is missing")
        return _Entry(self.value[name], self._way_to(name))

    def items(self) -> Iterator[tuple[str, _Entry]]:
        """The entries of an object."""
        if not isinstance(self.value, dict):
            raise self.wrong("is an object")
        for name, value in self.value.items():
            yield name, _Entry(value, self._way_to(name))

    def entries(self, convert: Callable[[_Entry], T]) -> dict[str, T]:
        """An object with every value converted."""
        return {name: convert(entry) for name, entry in self.items()}

    def list(self, convert: Callable[[_Entry], T]) -> tuple[T, ...]:
        """A list with every element converted."""
        if not isinstance(self.value, list):
            raise self.wrong("is a list")
        return tuple(convert(_Entry(value, f"{self.way}[{n}]")) for n, value in enumerate(self.value))

    def text(self) -> str:
        if not isinstance(self.value, str):
            raise self.wrong("is text")
        _check_encodes(self.value, self)
        return self.value

    def count(self) -> int:
        if not isinstance(self.value, int) or isinstance(self.value, bool) or not 0 <= self.value <= _MOST_COUNT:
            raise self.wrong("is a whole number from 0 on")
        return self.value

    def counts(self) -> tuple[int, ...]:
        """A list of counts; only if something is wrong they are checked one by one."""
        if isinstance(self.value, list) and all(type(one) is int and 0 <= one <= _MOST_COUNT for one in self.value):
            return tuple(self.value)
        return self.list(_Entry.count)

    def number(self) -> float:
        if not isinstance(self.value, int | float) or isinstance(self.value, bool) or not math.isfinite(self.value):
            raise self.wrong("is a finite number")
        return float(self.value)

    def digest(self) -> str:
        if not isinstance(self.value, str) or not _SHA256.match(self.value):
            raise self.wrong("is a SHA-256 of 64 hexadecimal digits")
        return self.value

    def plain(self) -> Mapping[str, Any]:
        """An object of any plain JSON, not nested without end."""
        if not isinstance(self.value, dict):
            raise self.wrong("is an object")
        _check_plain(self)
        return self.value

    def _way_to(self, name: str) -> str:
        return f"{self.way}.{printable(name)[:_SHOWN_CHARACTERS]}".removeprefix(".")


def _shown(value: Any) -> str:
    text = type(value).__name__ if isinstance(value, dict | list) else printable(repr(value))
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}..."


def _check_encodes(text: str, entry: _Entry) -> None:
    """Names of files that are not UTF-8 come as half surrogates; what no file name gives is refused."""
    try:
        text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        raise entry.wrong("is text that can be written as UTF-8") from None


def _check_plain(entry: _Entry) -> None:
    """Walk through plain JSON without recursion: finite numbers, bounded depth."""
    waiting: list[tuple[Any, int]] = [(entry.value, 0)]
    while waiting:
        value, depth = waiting.pop()
        if depth > _MOST_DEPTH:
            raise DatasetError(f"{entry.way} is nested more than {_MOST_DEPTH} deep")
        if isinstance(value, float) and not math.isfinite(value):
            raise DatasetError(f"{entry.way} holds {value}; its numbers are finite")
        if isinstance(value, str):
            _check_encodes(value, entry)
        elif isinstance(value, dict):
            waiting += [(inner, depth + 1) for pair in value.items() for inner in pair]
        elif isinstance(value, list):
            waiting += [(inner, depth + 1) for inner in value]


# --- the manifest ---------------------------------------------------------------------------------------------------


def _manifest(raw: _Entry) -> Manifest:
    name = raw["name"].text()
    check_name("the name of a dataset", name)
    fields = {name: _field(name, entry) for name, entry in raw["fields"].items()}
    if not fields or not raw["splits"].value:
        raise DatasetError("there is at least one field and one split")
    imported = _imported(raw["imported"]) if "imported" in raw.value else None
    manifest = Manifest(
        name=name,
        fingerprint=raw["fingerprint"].text(),
        recipe=_recipe(raw["recipe"]),
        fields=fields,
        splits={name: _split(name, entry, imported) for name, entry in raw["splits"].items()},
        classes=raw["classes"].entries(lambda names: names.list(_Entry.text)),
        class_counts=raw["class_counts"].entries(lambda splits: splits.entries(_Entry.counts)),
        statistics=raw["statistics"].entries(_statistics),
        versions=raw["versions"].entries(_Entry.text),
        rejects=raw["rejects"].count(),
        files=raw["files"].entries(_file_digest),
        imported=imported,
    )
    _check_together(manifest)
    return manifest


def _recipe(raw: _Entry) -> Mapping[str, Any]:
    """Any plain JSON; loaders look up derived inputs and stacks in it."""
    recipe = raw.plain()
    if "derive" in recipe:
        raw["derive"].entries(_Entry.plain)
    if "stack" in recipe:
        raw["stack"].entries(lambda fields: fields.list(_Entry.text))
    return recipe


def _field(name: str, raw: _Entry) -> FieldInfo:
    if fault := field_name_fault(name):
        raise DatasetError(f"{raw.way}: {fault}")
    spec, description = _spec(raw["spec"]), raw["codec"].plain()
    try:
        from_description(description).check(name, spec.kind)
    except (RecipeError, TypeError, ValueError) as error:
        raise DatasetError(f"{raw.way}.codec is not one that tfprep writes: {printable(str(error))}") from error
    return FieldInfo(spec, description)


def _spec(raw: _Entry) -> FieldSpec:
    kind = raw["kind"]
    if kind.value not in KINDS:
        raise DatasetError(f"{raw.way}: unknown kind of field {_shown(kind.value)}; known are {', '.join(KINDS)}")
    shape = raw["shape"].list(lambda size: None if size.value is None else size.count())
    dtype = raw["dtype"].text()
    _check_array(raw, shape, dtype)
    return FieldSpec(kind.value, shape, dtype)


def _check_array(raw: _Entry, shape: tuple[int | None, ...], dtype: str) -> None:
    if (dtype == "string") != (raw["kind"].value == "text"):
        raise raw["dtype"].wrong("is 'string' for text and for nothing else")
    try:
        item_bytes = 1 if dtype == "string" else np.dtype(dtype).itemsize
    except TypeError:
        raise raw["dtype"].wrong("is a type of NumPy's") from None
    if dtype != "string" and (np.dtype(dtype).kind not in "biufc" or np.dtype(dtype).name != dtype):
        raise raw["dtype"].wrong("is the plain name of a type of numbers")
    if len(shape) > _MOST_DIMENSIONS:
        raise raw["shape"].wrong(f"has at most {_MOST_DIMENSIONS} dimensions")
    if math.prod(size for size in shape if size is not None) * item_bytes > _MOST_VALUE_BYTES:
        raise DatasetError(f"{raw.way}.shape is that of a value of more than {_MOST_VALUE_BYTES} bytes")


def _imported(raw: _Entry) -> Imported:
    try:
        return from_json(Imported, raw.value)
    except ValueError as error:
        raise DatasetError(f"{raw.way}: {error}") from error


def _split(name: str, raw: _Entry, imported: Imported | None) -> SplitInfo:
    check_name("the name of a split", name)
    files = raw["files"].list(_shards if imported is None else lambda shards: shards.list(_imported_shard))
    if not files or not files[0]:
        raise DatasetError(f"{raw.way}.files names no shard")
    split = SplitInfo(raw["samples"].count(), files, raw["rows_crc32c"].list(_Entry.counts))
    if [len(crcs) for crcs in split.rows_crc32c] != [len(shards) for shards in files]:
        raise DatasetError(f"{raw.way}.rows_crc32c has not one number for each shard of each variant")
    if imported is not None and [len(imported.versions.get(name, ()))] != [len(shards) for shards in files]:
        raise DatasetError(f"imported.versions has not one text for each shard of {name}, which has one variant")
    if imported is not None and name not in imported.commands:
        raise DatasetError(f"imported.commands.{name} is missing")
    return split


def _shards(raw: _Entry) -> tuple[FileInfo, ...]:
    """All shards of a variant. A large dataset has 100,000: only if something is wrong they are checked entry by entry."""
    if isinstance(raw.value, list) and all(map(_is_shard, raw.value)):
        return tuple(FileInfo(one["name"], one["records"], one["bytes"], one["sha256"]) for one in raw.value)
    return raw.list(_shard)


def _is_shard(value: Any) -> bool:
    if type(value) is not dict:
        return False
    name, records, size, sha256 = value.get("name"), value.get("records"), value.get("bytes"), value.get("sha256")
    if type(name) is not str or type(records) is not int or type(size) is not int or type(sha256) is not str:
        return False
    fits = 0 <= records * FRAME_BYTES <= size <= _MOST_COUNT
    return fits and name.isascii() and _SHA256.match(sha256) is not None


def _shard(raw: _Entry) -> FileInfo:
    return replace(_imported_shard(raw), sha256=raw["sha256"].digest())


def _imported_shard(raw: _Entry) -> FileInfo:
    info = FileInfo(raw["name"].text(), raw["records"].count(), raw["bytes"].count())
    if info.bytes < info.records * FRAME_BYTES:
        raise DatasetError(f"{raw.way}: {info.records} records do not fit into {info.bytes} bytes")
    return info


def _file_digest(raw: _Entry) -> FileDigest:
    return FileDigest(raw["bytes"].count(), raw["crc32c"].count(), raw["sha256"].digest())


def _statistics(raw: _Entry) -> Statistics:
    mean, std = raw["mean"].list(_Entry.number), raw["std"].list(_Entry.number)
    if len(mean) != len(std) or not mean or min(std) < 0:
        raise DatasetError(f"{raw.way}: mean and std have one number each a channel, and std is not negative")
    return Statistics(mean, std)


def _check_together(manifest: Manifest) -> None:
    """The rules between entries."""
    for name in (manifest.index, manifest.locations):
        if name not in manifest.files:
            raise DatasetError(f"files does not name {name}")
    if manifest.imported is not None and manifest.imported.features.keys() != manifest.fields.keys():
        raise DatasetError("imported.features has not one name for each field")
    for name in manifest.files:
        check_file_name(name)
    names = [file.name for file in manifest.shard_files()]
    if len(set(names)) < len(names) or set(names) & manifest.files.keys():
        raise DatasetError("splits names a file twice")
    for name, counts in manifest.class_counts.items():
        if name not in manifest.fields or name not in manifest.classes:
            raise DatasetError(f"class_counts.{name} is of no field with classes")
        if not counts.keys() <= manifest.splits.keys():
            raise DatasetError(f"class_counts.{name} names a split that is not there")
        if any(len(of_split) != len(manifest.classes[name]) for of_split in counts.values()):
            raise DatasetError(
                f"class_counts.{name} has not one count for each of {len(manifest.classes[name])} classes"
            )
    for name, statistics in manifest.statistics.items():
        shape = manifest.fields[name].spec.shape if name in manifest.fields else ()
        if len(shape) != 3 or shape[2] not in (None, len(statistics.mean)):
            raise DatasetError(f"statistics.{name} has not one mean a channel of an image field")
