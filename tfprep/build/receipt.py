"""Receipts: what became of a shard, written when all of its files are whole. A build continues from them.

A receipt holds two digests of the plan for its shard. `digest` covers the recipe's fingerprint and, for each sample, its key and
its sources' content: equal digests mean equal bytes. `signature` covers size and time of each source instead of its
content, and so is compared without reading a file: where it is equal the shard is up to date; where it is not, the
content decides.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from tfprep.build.layout import Layout
from tfprep.dataset.manifest import FileInfo
from tfprep.fields import FieldSpec


@dataclass(frozen=True)
class Moments:
    """Exact sums over the pixels of an image field, by channel: whole numbers, so the order of adding does not matter."""

    pixels: int = 0
    sums: tuple[int, ...] = ()
    squares: tuple[int, ...] = ()

    def plus(self, other: Moments) -> Moments:
        if not self.pixels or not other.pixels:
            return self if self.pixels else other
        sums = tuple(a + b for a, b in zip(self.sums, other.sums, strict=True))
        squares = tuple(a + b for a, b in zip(self.squares, other.squares, strict=True))
        return Moments(self.pixels + other.pixels, sums, squares)


@dataclass(frozen=True)
class Reject:
    """An input that was left out: which, where it failed, and why."""

    key: str
    split: str
    stage: str
    field: str
    error: str
    file: str


@dataclass(frozen=True)
class Receipt:
    """What one shard holds. `files` by variant; `specs`, `moments` and `class_counts` by field; `stats` by key is what
    `signature` was made of."""

    split: str
    shard: int
    shards: int
    signature: str
    digest: str
    files: tuple[FileInfo, ...]
    specs: Mapping[str, FieldSpec]
    moments: Mapping[str, Moments]
    class_counts: Mapping[str, tuple[int, ...]]
    rejects: tuple[Reject, ...]
    stats: Mapping[str, str]
    seconds: Mapping[str, float]

    @property
    def records(self) -> int:
        return self.files[0].records

    def to_json(self) -> str:
        return json.dumps(asdict(self))


def read_receipt(layout: Layout, split: str, shard: int) -> Receipt | None:
    """The shard's receipt, None where there is none, it cannot be read, or a file it names is gone or of another size."""
    try:
        receipt = _parse(json.loads(layout.receipt(split, shard).read_bytes()))
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return receipt if all(_is_there(layout, file) for file in receipt.files) else None


def _is_there(layout: Layout, file: FileInfo) -> bool:
    found = layout.find(file.name)
    return found is not None and found.stat().st_size == file.bytes and layout.find(f"{file.name}.idx") is not None


def _parse(raw: Any) -> Receipt:
    return Receipt(
        split=raw["split"],
        shard=raw["shard"],
        shards=raw["shards"],
        signature=raw["signature"],
        digest=raw["digest"],
        files=tuple(FileInfo(**file) for file in raw["files"]),
        specs={name: FieldSpec(s["kind"], tuple(s["shape"]), s["dtype"]) for name, s in raw["specs"].items()},
        moments={
            name: Moments(m["pixels"], tuple(m["sums"]), tuple(m["squares"])) for name, m in raw["moments"].items()
        },
        class_counts={name: tuple(counts) for name, counts in raw["class_counts"].items()},
        rejects=tuple(Reject(**reject) for reject in raw["rejects"]),
        stats=raw["stats"],
        seconds=raw["seconds"],
    )
