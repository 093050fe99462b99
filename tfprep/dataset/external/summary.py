"""What is known of a feature after its records were read: enough to decide its shape, its type and its codec.

Summaries of blocks make that of a shard, and those of shards that of a dataset: `merged` adds two up.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from tfprep.errors import DatasetError

LONGEST_VALUE = 256
"""Bytes of a string that the index keeps for `where` and `balance`: names of classes and files, no captions."""
START_BYTES = 16
"""Bytes of the first value that are kept, to say what an unknown feature looks like."""


@dataclass(frozen=True)
class FeatureSummary:
    """One feature over some records.

    Attributes:
        records: The number of records that have it.
        kinds: The number of records by kind of list: "bytes", "float", "int64", and "none" where there is no list.
        counts: The least and the greatest number of values in a record that has the feature.
        sizes: The least and the greatest number of bytes of a value (of all numbers of a record).
        images: The number of records by what the header of the image says: "jpeg 3 8" for three channels of 8 bits.
        heights: The least and the greatest height of the images, in pixels; `widths` the same of their width.
        utf8: Whether all values that were looked at are UTF-8.
        start: The first bytes of one value, in hexadecimal.
    """

    records: int = 0
    kinds: Mapping[str, int] = field(default_factory=dict)
    counts: tuple[int, int] | None = None
    sizes: tuple[int, int] | None = None
    images: Mapping[str, int] = field(default_factory=dict)
    heights: tuple[int, int] | None = None
    widths: tuple[int, int] | None = None
    utf8: bool = True
    start: str = ""

    def merged(self, other: FeatureSummary) -> FeatureSummary:
        """Both together."""
        return FeatureSummary(
            self.records + other.records,
            _added(self.kinds, other.kinds),
            _range(self.counts, other.counts),
            _range(self.sizes, other.sizes),
            _added(self.images, other.images),
            _range(self.heights, other.heights),
            _range(self.widths, other.widths),
            self.utf8 and other.utf8,
            self.start or other.start,
        )

    @property
    def kind(self) -> str:
        """The only kind of list that has values; "" where there is none, or where there are several."""
        kinds = [kind for kind in self.kinds if kind != "none"]
        return kinds[0] if len(kinds) == 1 else ""

    def to_json(self) -> dict[str, Any]:
        """As plain JSON, without what has its default."""
        return {name: value for name, value in asdict(self).items() if value != _DEFAULTS[name]}


_DEFAULTS = asdict(FeatureSummary())


def summary_from(raw: Any) -> FeatureSummary:
    """The summary that `to_json` wrote; DatasetError where it is none."""
    known = {item.name for item in fields(FeatureSummary)}
    if not isinstance(raw, dict) or not raw.keys() <= known:
        raise DatasetError("a summary of a feature has entries that this version does not know")
    values: dict[str, Any] = {name: tuple(value) if isinstance(value, list) else value for name, value in raw.items()}
    for name, value in values.items():
        if not _fits(name, value):
            raise DatasetError(f"a summary of a feature says {name} = {str(value)[:60]!r}")
    return FeatureSummary(**values)


def merge(first: Mapping[str, FeatureSummary], second: Mapping[str, FeatureSummary]) -> dict[str, FeatureSummary]:
    """The summaries of all features of both."""
    merged = dict(first)
    for name, summary in second.items():
        merged[name] = merged[name].merged(summary) if name in merged else summary
    return merged


def _fits(name: str, value: Any) -> bool:
    if name in ("kinds", "images"):
        return isinstance(value, dict) and all(isinstance(count, int) for count in value.values())
    if name == "records":
        return isinstance(value, int)
    if name in ("utf8", "start"):
        return isinstance(value, bool if name == "utf8" else str)
    return isinstance(value, tuple) and len(value) == 2 and all(isinstance(number, int) for number in value)


def _added(one: Mapping[str, int], other: Mapping[str, int]) -> dict[str, int]:
    return {name: one.get(name, 0) + other.get(name, 0) for name in sorted({*one, *other})}


def _range(one: tuple[int, int] | None, other: tuple[int, int] | None) -> tuple[int, int] | None:
    if one is None or other is None:
        return one or other
    return min(one[0], other[0]), max(one[1], other[1])


# --- what an unknown feature looks like -------------------------------------------------------------------------------

_SIGNATURES = {
    b"GIF8": "a GIF image",
    b"BM": "a BMP image",
    b"II*\0": "a TIFF image",
    b"MM\0*": "a TIFF image",
    b"\x93NUMPY": "a NumPy file (.npy)",
    b"PK\x03\x04": "a ZIP archive, perhaps a NumPy file (.npz)",
    b"\x1f\x8b": "bytes compressed with GZIP",
    b"\x78\x9c": "bytes compressed with ZLIB",
    b"\x28\xb5\x2f\xfd": "bytes compressed with Zstandard",
    b"fLaC": "FLAC audio",
    b"OggS": "Ogg audio or video",
    b"ID3": "MP3 audio",
    b"\x1aE\xdf\xa3": "Matroska or WebM video",
    b"\x80\x04\x95": "a Python pickle",
    b"\x80\x05\x95": "a Python pickle",
}
_TENSOR_PROTO = b"\x08"
_FEATURES = b"\x12"


def looks(summary: FeatureSummary) -> str:
    """Say what the values may be, and what would make a field of them."""
    start = bytes.fromhex(summary.start)
    least, greatest = summary.sizes or (0, 0)
    size = f"{least:,} bytes in every record" if least == greatest else f"{least:,} to {greatest:,} bytes"
    if summary.counts and summary.counts[1] > 1:
        return f"lists of up to {summary.counts[1]:,} byte strings that are no text"
    kind = _known(start)
    if kind:
        return f"looks like {kind} ({size}); only JPEG and PNG are decoded"
    if least == greatest and least:
        return f"{size}, no text: raw numbers? Declare their dtype and shape with --features"
    return f"{size}, no text, beginning with {start[:8]!r}"


def _known(start: bytes) -> str:
    if start[:4] == b"RIFF":
        return {b"WEBP": "a WebP image", b"WAVE": "WAV audio"}.get(start[8:12], "")
    if start[4:8] == b"ftyp":
        return "an AVIF image" if start[8:12] == b"avif" else "MP4 video"
    if start[:1] == _TENSOR_PROTO and start[2:3] == _FEATURES and start[1:2] < b"\x80":
        return "a tensor of tf.io.serialize_tensor"
    return next((kind for signature, kind in _SIGNATURES.items() if start.startswith(signature)), "")
