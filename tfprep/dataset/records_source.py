"""A dataset as a source: to encode its samples again, resize them, or derive inputs from them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tfprep import images
from tfprep.codecs import Raw, Zstd, feature_value, from_description
from tfprep.dataset.dataset import open_dataset
from tfprep.errors import RecipeError, SampleError, SourceError
from tfprep.fields import KINDS, RASTER_KINDS, FieldSpec, Kind, Size
from tfprep.records import decode
from tfprep.records.framing import FOOTER_BYTES, HEADER_BYTES, masked_crc
from tfprep.sources.raw import Reference
from tfprep.sources.source import Entry, FieldDecoder, Listing
from tfprep.storage.urls import folder_at

if TYPE_CHECKING:
    from pathlib import Path


_RECORD, _STORED, _CRC = "record", "stored", "crc"
"""The raw parts of a sample: the bytes of its Example, how its fields are stored, and the checksum that the index gives."""
_BATCH_ROWS = 8192


@dataclass(frozen=True)
class Records:
    """The records of a dataset that tfprep built, or of TFRecords that have an index (`tfprep index`): variant 0 of each.

    `--data` names the folder or URL of the dataset. Keys, splits and class names stay. Each record is compared with its checksum:
    one that is damaged is a rejected sample.

    Attributes:
        fields: The kind of each field that is read: `{"image": "image", "mask": "mask", "label": "label"}`.
        splits: The splits that are read; None for all.

    Raises:
        RecipeError: A kind is unknown.
    """

    fields: Mapping[str, Kind]
    splits: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.fields, Mapping) or not self.fields:
            raise RecipeError(
                f"Records: expected fields to give kinds, such as {{'image': 'image'}}; got {self.fields!r}"
            )
        for name, kind in self.fields.items():
            if kind not in KINDS:
                raise RecipeError(f"Records: fields[{name!r}] is one of {', '.join(KINDS)}; got {kind!r}")
        object.__setattr__(self, "fields", dict(self.fields))
        if self.splits is not None:
            object.__setattr__(self, "splits", tuple(self.splits))

    def __getstate__(self) -> dict[str, Any]:
        return {"fields": self.fields, "splits": self.splits}

    def kinds(self) -> dict[str, Kind]:
        """The kind of each field."""
        return dict(self.fields)

    def decoders(self) -> dict[str, FieldDecoder]:
        """Return the decoder of each field."""
        return {name: StoredField(name) for name in self.fields}

    def scan(self, root: Path) -> Listing:
        """List the records of the dataset at `root`; see `Source.scan`."""
        data = open_dataset(str(root))
        object.__setattr__(self, "_opened", data)  # its version stays as long as a recipe reads it
        known = data.manifest.fields
        for name, kind in self.fields.items():
            if name not in known or known[name].spec.kind != kind:
                listed_fields = ", ".join(f"{field} ({info.spec.kind})" for field, info in known.items())
                added = " in its records; fields that a model added are not in them" if data.group_of(name) else ""
                raise SourceError(
                    f"{root}: the dataset has no field {name!r} of kind {kind}{added}; it has {listed_fields}"
                )
        missing = set(self.splits or ()) - set(data.splits)
        if missing:
            raise SourceError(
                f"{root}: the dataset has no split {sorted(missing)[0]!r}; it has {', '.join(data.splits)}"
            )
        classes = {name: names for name, names in data.manifest.classes.items() if name in self.fields}
        infos = {name: known[name] for name in self.fields}
        stored = {  # for the decoders, as plain JSON: codec, kind, shape, dtype, and the feature's name
            name: [dict(info.codec), info.spec.kind, list(info.spec.shape), info.spec.dtype, data.feature(name)]
            for name, info in infos.items()
        }

        # Shards are named below the root, which may be a link to a version; imported ones by an absolute path.
        imported = data.manifest.imported
        top = "" if imported else f"{folder_at(str(root)).absolute()}/"

        def entries() -> Iterator[Entry]:
            names = ["key", "shard", "offset", "size", "payload_crc"]
            for split in self.splits or data.splits:
                data.check_files(split, [0])
                files = [str(data.shard_path(file).absolute()).removeprefix(top) for file in data.split(split).files[0]]
                for batch in data.index(split, 0, names).to_batches(_BATCH_ROWS):
                    columns = (batch[name].to_pylist() for name in names)
                    for key, shard, offset, size, crc in zip(*columns, strict=True):
                        payload = size - HEADER_BYTES - FOOTER_BYTES
                        record = Reference(files[shard], offset + HEADER_BYTES, payload, member=key)
                        yield Entry(key, split, (str(record),), (stored, crc))

        earlier = data.manifest.recipe.get("derive", {})
        derived = tuple(name for name in self.fields if name in earlier)
        fixed = tuple(name for name in self.fields if imported is not None and name in imported.fixed)
        return Listing(self.kinds(), (_RECORD,), (_STORED, _CRC), entries(), classes, derived=derived, fixed=fixed)


@dataclass(frozen=True)
class StoredField:
    """Decodes a field of a record by the codec that stored it."""

    name: str

    def size(self, raw: Mapping[str, Any]) -> Size | None:
        codec, spec, content, shape = self._read(raw)
        if spec.kind not in RASTER_KINDS:
            return None
        if isinstance(codec, Raw | Zstd):
            height, width = (shape or codec.decode(content, spec).shape)[:2]
            return height, width
        return images.image_size(content)

    def decode(self, raw: Mapping[str, Any], size: Size | None) -> Any:
        codec, spec, content, shape = self._read(raw)
        try:
            return codec.decode(content, spec, shape)
        except (ValueError, TypeError) as error:
            raise SampleError(f"the record's {self.name!r} cannot be decoded: {error}") from error

    def _read(self, raw: Mapping[str, Any]) -> tuple[Any, FieldSpec, Any, tuple[int, ...] | None]:
        """The codec, what it stored, the feature as the codec takes it, and the shape where the record holds one."""
        if masked_crc(raw[_RECORD]) != raw[_CRC]:
            raise SampleError("the record is damaged, or another one than the index describes (its checksum differs)")
        described, kind, shape, dtype, feature = raw[_STORED][self.name]
        codec = from_description(described)
        return codec, FieldSpec(kind, tuple(shape), dtype), *feature_value(codec, decode(raw[_RECORD]), feature)
