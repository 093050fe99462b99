"""Digest and perceptual hash of every image of a dataset: from its index, or from the records where the index has no hash."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import comb

import numpy as np
import pyarrow as pa

from tfprep.dataset import Dataset
from tfprep.fields import Array
from tfprep.images import HASH_BITS, perceptual_hash

OnRecord = Callable[[int, int], None]
"""Called with the number of records read so far, and with how many are to be read."""


@dataclass(frozen=True)
class Fingerprints:
    """All N samples of a dataset, split after split.

    Attributes:
        splits: The splits' names.
        keys: Keys, string [N].
        split: int16 [N], an index into `splits`.
        position: int64 [N], the row of a sample in the index of its split.
        digests: What tells equal image files, int64 [N]: equal numbers for equal digests; -1 where there is no digest.
        hashes: Perceptual hashes, uint64 [N]; 0 where there is none.
        hashed: Which samples have a hash, bool [N].
        labels: Equal numbers for equal values of the index's column `label`, int64 [N]; -1 where there is none.
        label_values: The values of those numbers: an integer, a list of them, or a text.
    """

    splits: tuple[str, ...]
    keys: pa.ChunkedArray
    split: Array
    position: Array
    digests: Array
    hashes: Array
    hashed: Array
    labels: Array
    label_values: Sequence[object]

    def __len__(self) -> int:
        return len(self.split)

    def key(self, row: int) -> str:
        return str(self.keys[row].as_py())

    def name_of_split(self, row: int) -> str:
        return self.splits[int(self.split[row])]


def read_fingerprints(data: Dataset, on_record: OnRecord | None = None, *, from_records: bool = True) -> Fingerprints:
    """Read the fingerprints of all samples; `from_records`: compute hashes that the index does not hold from the images.

    Raises:
        DatasetError: The index or a record cannot be read.
    """
    names = tuple(data.splits)
    tables = [data.index(name, 0, ["key", "image_digest", "image_hash", "label"]) for name in names]
    counts = [len(table) for table in tables]
    hashes = [_column(table, "image_hash", pa.uint64()) for table in tables]
    hashed = [np.array(column.is_valid().to_numpy()) for column in hashes]
    values = [np.array(column.fill_null(0).to_numpy()) for column in hashes]
    field = next((name for name, spec in data.fields.items() if spec.kind == "image"), "")
    missing = [np.flatnonzero(~column).tolist() if from_records and field else [] for column in hashed]
    total, done = sum(map(len, missing)), 0
    for number, split in enumerate(names):
        samples = data.samples(split, positions=missing[number], fields=[field]) if missing[number] else ()
        for position, sample in zip(missing[number], samples, strict=True):
            values[number][position], hashed[number][position] = perceptual_hash(sample[field]), True
            done += 1
            if on_record:
                on_record(done, total)
    labels, label_values = _numbered([_column(table, "label", pa.null()) for table in tables])
    return Fingerprints(
        splits=names,
        keys=pa.chunked_array(
            [chunk for table in tables for chunk in table["key"].cast(pa.string()).chunks], pa.string()
        ),
        split=np.repeat(np.arange(len(names), dtype=np.int16), counts),
        position=np.concatenate([np.arange(count) for count in counts]),
        digests=_numbered([_column(table, "image_digest", pa.binary(16)) for table in tables])[0],
        hashes=np.concatenate(values),
        hashed=np.concatenate(hashed),
        labels=labels,
        label_values=label_values,
    )


def _column(table: pa.Table, name: str, kind: pa.DataType) -> pa.ChunkedArray:
    """Return a column that an index of an earlier version does not have."""
    return table[name] if name in table.column_names else pa.chunked_array([pa.nulls(len(table), kind)])


def _numbered(columns: Sequence[pa.ChunkedArray]) -> tuple[Array, Sequence[object]]:
    """Return a number for each value, int64: equal ones for equal values, -1 for none; and the values in the order of numbers."""
    chunks = [chunk for column in columns for chunk in column.chunks]
    if any(pa.types.is_list(chunk.type) for chunk in chunks):
        texts = [None if value is None else tuple(value) for chunk in chunks for value in chunk.to_pylist()]
        values = [value for value in dict.fromkeys(texts) if value is not None]
        numbers = {value: number for number, value in enumerate(values)}
        return np.array([-1 if value is None else numbers[value] for value in texts], np.int64), values
    encoded = pa.chunked_array(chunks, columns[0].type).combine_chunks().dictionary_encode()
    return encoded.indices.fill_null(-1).to_numpy().astype(np.int64), encoded.dictionary.to_pylist()


# --- near pairs --------------------------------------------------------------------------------------------------------

MOST_DISTANCE = 12
"""Beyond it, unrelated pictures fall together: of 10^6 random hashes, 110,000 pairs differ in 12 bits or fewer as they are."""
ORIENTATIONS = (
    "", "mirrored", "mirrored top to bottom", "rotated by 180°",
    "mirrored at a diagonal", "rotated by 90°", "rotated by 90°", "mirrored at a diagonal",
)  # fmt: skip
"""Names of the eight orientations, in the order of `orientations` and `oriented`; 90° is to either side."""
_RECALL = 0.9
"""Share of the pairs of exactly the largest distance that are found; of nearer pairs more are."""
_MOST_TABLES = 128
_MOST_BITS = 24
"""Bits of a choice, at most: where hashes agree in most bits, those that tell few of them apart do not make a choice better."""
MOST_PAIRS = 5_000_000


def orientations(hashes: Array) -> Array:
    """Return the hashes that the pictures have in each of the eight orientations, uint64 [8, N].

    A mirrored picture has the same frequencies, every other one with the opposite sign, and a transposed picture has the
    transposed frequencies. A bit is a frequency above the median, which is near 0, so that the opposite sign is the opposite bit
    but for frequencies next to 0: of 300 mirrored photos, 98 % have a true hash that is at most 8 bits from the derived one.
    """
    versions = []
    for upright in (hashes, _transposed(hashes)):
        versions += [upright, upright ^ _ODD_COLUMNS, upright ^ _ODD_ROWS, upright ^ _ODD_COLUMNS ^ _ODD_ROWS]
    return np.stack(versions)


def oriented(picture: Array, orientation: int) -> Array:
    """Return a picture [H, W] in an orientation: transposed from 4 on, then upside down or mirrored."""
    picture = picture.T if orientation & 4 else picture
    picture = picture[::-1] if orientation & 2 else picture
    return np.ascontiguousarray(picture[:, ::-1] if orientation & 1 else picture)


def _transposed(hashes: Array) -> Array:
    """Transpose each hash as an 8 x 8 matrix of bits (Warren, Hacker's Delight, 7-3)."""
    for shift, mask in ((7, 0x00AA00AA00AA00AA), (14, 0x0000CCCC0000CCCC), (28, 0x00000000F0F0F0F0)):
        swapped = (hashes ^ (hashes >> np.uint64(shift))) & np.uint64(mask)
        hashes = hashes ^ swapped ^ (swapped << np.uint64(shift))
    return hashes


_ODD_COLUMNS, _ODD_ROWS = np.uint64(0x5555555555555555), np.uint64(0x00FF00FF00FF00FF)
_SYMMETRIC = [
    [8 * row + column, 8 * column + row][: 1 + (row != column)] for row in range(8) for column in range(row, 8)
]
"""Bits that a transposition maps to each other."""


def near_pairs(hashes: Array, distance: int) -> tuple[Array, Array]:
    """Find the pairs of hashes that differ in at most `distance` bits in one of the eight orientations.

    The search compares hashes that are equal in some of their bits, for several random choices of bits: 90 % of the pairs of
    exactly `distance` bits are found, and more of those that are nearer. Each hash is compared in the orientation in which the
    chosen bits are the smallest number, so that one sort serves all eight.

    Args:
        hashes: uint64 [N], all different: equal ones would be N * N / 2 pairs.
        distance: Number of bits, from 0 to `MOST_DISTANCE`.

    Returns:
        int64 [n] positions in `hashes` of the first and of the second hash of n pairs, each pair once, the first below the
        second. Of more than 5,000,000 pairs, some are missing: this bounds memory to some 250 MB and a few arrays of N.
    """
    count = len(hashes)
    codes = np.zeros(0, np.int64)
    for mask in _tables(hashes, distance):
        found: list[Array] = []
        for low, high in _equal_in(hashes, mask, distance):
            found.append(low * count + high)
            if sum(map(len, found)) > MOST_PAIRS:
                break
        if found:
            # A stable sort merges two sorted arrays in linear time, while `np.unique` hashes all again.
            both = np.sort(np.concatenate([codes, np.sort(np.concatenate(found))]), kind="stable")
            codes = np.asarray(both[np.diff(both, prepend=-1) != 0])
        if len(codes) > MOST_PAIRS:
            break
    return codes // max(count, 1), codes % max(count, 1)


def _tables(hashes: Array, distance: int) -> Iterator[np.uint64]:
    """Yield choices of bits, until a pair at the distance is missed by all with a chance of 1 - `_RECALL` at most.

    A choice holds enough bits that equal bits are about as rare as one hash of all: then each is compared with about eight.
    """
    if not distance or len(hashes) < 2:
        return
    draws, missed, tables = np.random.default_rng(0), 1.0, 0
    some = hashes[:: max(1, len(hashes) // 5000)]
    shares = np.array([np.mean((some >> np.uint64(bit)) & np.uint64(1)) for bit in range(HASH_BITS)])
    rarity = -np.log2(shares**2 + (1 - shares) ** 2)
    while missed > 1 - _RECALL and tables < _MOST_TABLES:
        chosen: list[int] = []
        for number in draws.permutation(len(_SYMMETRIC)).tolist():
            if rarity[chosen].sum() >= np.log2(len(hashes)) or len(chosen) >= _MOST_BITS:
                break
            chosen += _SYMMETRIC[number]
        missed *= 1 - comb(HASH_BITS - len(chosen), distance) / comb(HASH_BITS, distance)
        tables += 1
        yield np.uint64(sum(1 << bit for bit in chosen))


def _equal_in(hashes: Array, mask: np.uint64, distance: int) -> Iterator[tuple[Array, Array]]:
    """Yield pairs that are equal in the bits of `mask` in some orientation, and within the distance in the same one."""
    keys, turned = np.empty_like(hashes), np.empty_like(hashes)
    for start in range(0, len(hashes), _ROWS):
        part = slice(start, start + _ROWS)
        versions = orientations(hashes[part])
        masked = versions & mask
        keys[part], turned[part] = masked[0], versions[0]
        for orientation in range(1, len(versions)):
            less = masked[orientation] < keys[part]
            np.copyto(keys[part], masked[orientation], where=less)
            np.copyto(turned[part], versions[orientation], where=less)
    order = np.argsort(keys)
    ranked, turned = keys[order], turned[order]
    first, step = np.flatnonzero(ranked[1:] == ranked[:-1]), 1
    while len(first):
        hits = first[np.bitwise_count(turned[first] ^ turned[first + step]) <= distance]
        one, other = order[hits], order[hits + step]
        yield np.minimum(one, other), np.maximum(one, other)
        step += 1
        first = first[first + step < len(ranked)]
        first = first[ranked[first + step] == ranked[first]]


_ROWS = 1 << 15
"""Hashes whose eight orientations fit a processor's cache."""


def linked(count: int, first: Array, second: Array) -> Array:
    """Return the group of each of `count` things, of which `first[i]` and `second[i]` belong together: int64 [count], the number
    of its first member."""
    groups = np.arange(count)  # of each thing one of its group with a smaller number, or itself
    while not np.array_equal(groups[first], groups[second]):
        ends = groups[first], groups[second]
        for end in ends:
            np.minimum.at(groups, end, np.minimum(*ends))
        while not np.array_equal(groups, groups[groups]):
            groups = groups[groups]
    return groups
