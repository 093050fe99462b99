"""What differs between two datasets, by keys and digests only: no shard is read.

A sample has changed in its raw data if its `source_digest` differs. If that is equal and the bytes of its record differ (size or
CRC-32C of any variant), only the recipe, the classes or the versions of the libraries have changed. Of TFRecords that another
tool wrote nothing but the records is known: a record that differs is a sample whose raw data has changed.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tfprep.dataset import Dataset
from tfprep.errors import DatasetError
from tfprep.fields import Array
from tfprep.recipe.describe import what_changed


@dataclass(frozen=True)
class KeyList:
    """Samples of one kind: how many there are, and the first keys in the order of their dataset."""

    count: int
    keys: tuple[str, ...]


@dataclass(frozen=True)
class Difference:
    """Differences of a second dataset from a first.

    Attributes:
        added, removed: Samples that only the second or only the first has.
        moved: Samples in another split, by `old -> new`.
        raw_changed: Samples whose files or values differ.
        recipe_changed: Samples of equal files and values whose records differ.
        samples: By split, the number of samples of the first and of the second dataset; 0 where there is no such split.
        variants: By split that both have, the numbers of variants where they differ.
        fields: By field, what it was and what it is, where that differs; None where there is no such field.
        recipe: What changed in the recipe, as names of options.
        versions: By library, both versions where they differ.
        rejected: Both numbers of rejected inputs.
    """

    added: KeyList
    removed: KeyList
    moved: Mapping[str, KeyList]
    raw_changed: KeyList
    recipe_changed: KeyList
    samples: Mapping[str, tuple[int, int]]
    variants: Mapping[str, tuple[int, int]]
    fields: Mapping[str, tuple[str | None, str | None]]
    recipe: tuple[str, ...]
    versions: Mapping[str, tuple[str | None, str | None]]
    rejected: tuple[int, int]

    @property
    def equal(self) -> bool:
        """True if both hold the same samples, in the same splits, with the same fields and equal records."""
        counts = [self.added, self.removed, self.raw_changed, self.recipe_changed, *self.moved.values()]
        return not (any(count.count for count in counts) or self.fields or self.variants)


_MOST_KEYS = 1000


def compare(old: Dataset, new: Dataset) -> Difference:
    """Compare two datasets; of each kind of difference the first 1,000 keys are listed, and all counted.

    Raises:
        DatasetError: An index cannot be read, or one dataset is built and the other imported.
    """
    if (old.manifest.imported is None) != (new.manifest.imported is None):
        imported, built = (old, new) if old.manifest.imported else (new, old)
        raise DatasetError(
            f"{imported.path} refers to TFRecords of another tool, and {built.path} was built by tfprep: their records are "
            "never equal. Two imported datasets can be compared, and so can two that were built"
        )
    a, b = _Samples(old), _Samples(new)
    # The row of `a` with the key of each row of `b`; -1 if there is none.
    place = np.asarray(pc.fill_null(pc.index_in(b.keys, value_set=a.keys), -1).to_numpy(), np.int64)
    both = np.flatnonzero(place >= 0)
    added = np.flatnonzero(place < 0)
    removed = np.setdiff1d(np.arange(len(a.keys)), place[both])
    raw = both[~_equal(a.sources, place[both], b.sources, both)]
    same = np.setdiff1d(both, raw)
    recipe = same[a.record[place[same]] != b.record[same]]
    sizes = [{name: split.samples for name, split in data.splits.items()} for data in (old, new)]
    return Difference(
        added=_listed(b.keys, added),
        removed=_listed(a.keys, removed),
        moved=dict(_moved(a, b, place, both)),
        raw_changed=_listed(b.keys, raw),
        recipe_changed=_listed(b.keys, recipe),
        samples={n: (sizes[0].get(n, 0), sizes[1].get(n, 0)) for n in dict.fromkeys([*old.splits, *new.splits])},
        variants=_unequal({n: s.variants for n, s in old.splits.items()}, {n: s.variants for n, s in new.splits.items()}, 0),
        fields=_unequal(_field_texts(old), _field_texts(new), None),
        recipe=tuple(what_changed(old.manifest.recipe, new.manifest.recipe)),
        versions=_unequal(old.manifest.versions, new.manifest.versions, None),
        rejected=(old.manifest.rejected, new.manifest.rejected),
    )  # fmt: skip


class _Samples:
    """All N samples of a dataset.

    Attributes:
        keys: string [N].
        sources: Digests [N].
        splits: string [N].
        record: uint64 [N], a number that differs if size or checksum of any variant's record differ.
    """

    def __init__(self, data: Dataset) -> None:
        columns = ["key", "split", "source_digest", "size", "payload_crc"]
        table = pa.concat_tables([data.index(split, 0, columns) for split in data.splits]).combine_chunks()
        self.keys, self.splits = table["key"].cast(pa.string()), table["split"].cast(pa.string())
        records = []
        for split, info in data.splits.items():  # variants of one sample stand at one position
            mixed = np.zeros(info.samples, np.uint64)
            for variant in range(info.variants):
                rows = data.index(split, variant, ["size", "payload_crc"])
                size, crc = (rows[name].to_numpy().astype(np.uint64) for name in ("size", "payload_crc"))
                # Multiplying by an odd number (2^64 / golden ratio, Knuth) loses nothing, and the order of variants counts.
                mixed = (mixed * np.uint64(0x9E3779B97F4A7C15)) ^ (size << np.uint64(32) | crc)
            records.append(mixed)
        self.record = np.concatenate(records)
        self.sources = table["source_digest"] if data.manifest.imported is None else pa.chunked_array([self.record])


def _equal(a: pa.ChunkedArray, rows_a: Array, b: pa.ChunkedArray, rows_b: Array) -> Array:
    return np.asarray(pc.equal(a.take(pa.array(rows_a)), b.take(pa.array(rows_b))).to_numpy(), bool)


def _listed(keys: pa.ChunkedArray, rows: Array) -> KeyList:
    return KeyList(len(rows), tuple(keys.take(pa.array(rows[:_MOST_KEYS])).to_pylist()))


def _moved(a: _Samples, b: _Samples, place: Array, both: Array) -> Iterator[tuple[str, KeyList]]:
    rows = both[~_equal(a.splits, place[both], b.splits, both)]
    names = [f"{a.splits[int(place[row])]} -> {b.splits[row]}" for row in rows.tolist()]
    for name in dict.fromkeys(names):
        yield name, _listed(b.keys, rows[[other == name for other in names]])


def _unequal(old: Mapping[str, Any], new: Mapping[str, Any], absent: Any) -> dict[str, tuple[Any, Any]]:
    pairs = {name: (old.get(name, absent), new.get(name, absent)) for name in dict.fromkeys([*old, *new])}
    return {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}


def _field_texts(data: Dataset) -> dict[str, str]:
    """What each field is, with a digest of its class names; of fields that a model computed also one of their values."""
    added, texts = data.manifest.groups, {name: f"{info}" for name, info in data.infos.items()}
    for name in data.classes.keys() & texts.keys():
        texts[name] += f", classes named as {sha256(json.dumps(data.classes[name]).encode()).hexdigest()[:12]}"
    for entry in added.values():
        texts |= {name: f"{texts[name]}, computed as {entry.sha256[:12]}" for name in entry.fields}
    return texts
