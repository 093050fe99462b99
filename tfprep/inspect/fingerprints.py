"""What samples are compared by: digest and perceptual hash of every image of a dataset, from its index, or from the records where
the index has no hash; the details of thumbnails; and the names of files.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import comb
from pathlib import PurePosixPath
from typing import Literal, NamedTuple

import numpy as np
import pyarrow as pa

from tfprep.dataset import Dataset
from tfprep.errors import RecordError
from tfprep.fields import Array
from tfprep.images import HASH_BITS, perceptual_hash
from tfprep.optional import cv2

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


# --- thumbnails --------------------------------------------------------------------------------------------------------
# In any orientation, crop or size that is nearly the same. A perceptual hash says that two pictures are alike at a large
# scale: of many, some are so by chance. What a thumbnail shows beyond that is compared here: its high frequencies, at the
# shift and scale at which both fit best. Of 300 photos that were cropped by 5 %, 95 % correlate by 0.65 or more; of 40
# million pairs of disjoint pieces of photos, 3 whose hashes are alike do.


_SIDE = 64
_CENTER = 44
"""Side of the part that is looked for in the other thumbnail, in pixels of a thumbnail."""
_SHIFT = 5
_SCALES = (0.9, 0.95, 1.0, 1.05, 1.11)
_BLUR = 2.0
"""Standard deviation of the Gaussian whose result is taken away, in pixels: a hash knows what it leaves."""
LEAST_CORRELATION = 0.65
_LEAST_DETAIL = 0.25
"""Share of a thumbnail that has detail. A lone edge before a plain sky fits any other one; 2 % of photos are below."""
_SIMPLE_BITS, _SIMPLE_CORRELATION = 4, 0.9
"""Bits of the hash and correlation of two pictures of little detail that are called alike, in one orientation."""


class Thumbnail(NamedTuple):
    """uint8 [64, 64], whatever the proportions of the picture; and the share of its center that has detail, 0 (plain) to 1."""

    gray: Array
    detail: float


def read_thumbnails(
    data: Dataset, prints: Fingerprints, rows: Iterable[int], on_record: OnRecord | None = None
) -> dict[int, Thumbnail]:
    """Read the pictures of variant 0 of some samples; those without an image, or whose record is damaged, are left out."""
    field = next((name for name, spec in data.fields.items() if spec.kind == "image"), None)
    ordered = sorted(rows)
    thumbnails: dict[int, Thumbnail] = {}
    if field is None:
        return thumbnails
    for done, row in enumerate(ordered, 1):
        try:
            split, position = prints.name_of_split(row), int(prints.position[row])
            (sample,) = data.samples(split, positions=[position], fields=[field])
            thumbnails[row] = thumbnail(sample[field])
        except RecordError:  # `tfprep verify` names damaged records
            continue
        finally:
            if on_record:
                on_record(done, len(ordered))
    return thumbnails


def thumbnail(image: Array) -> Thumbnail:
    """Return the thumbnail of a picture, numbers [H, W, C]."""
    pixels = image if image.dtype == np.uint8 else _bytes_of(image)
    gray = cv2.cvtColor(pixels, cv2.COLOR_RGB2GRAY) if pixels.shape[2] == 3 else np.ascontiguousarray(pixels[:, :, 0])
    small = np.asarray(cv2.resize(gray, (_SIDE, _SIDE), interpolation=cv2.INTER_AREA))
    edge = (_SIDE - _CENTER) // 2
    high = _details(small)[edge : edge + _CENTER, edge : edge + _CENTER]
    return Thumbnail(small, float(np.abs(high).mean() ** 2 / (np.square(high).mean() + 1)))


def alike(one: Thumbnail, other: Thumbnail, bits: Sequence[int]) -> tuple[int, float] | None:
    """Return the orientation of the second in which both are one picture, and their correlation; None if they are not.

    Args:
        one: A thumbnail.
        other: Another one.
        bits: By orientation of the second, how many bits of the hashes differ; more than 64 where it is out of question.
    """
    simple = min(one.detail, other.detail) < _LEAST_DETAIL
    allowed = [n for n, count in enumerate(bits) if (n == 0 and count <= _SIMPLE_BITS if simple else count <= 64)]
    if not allowed:
        return None
    if not one.detail and not other.detail:
        return 0, 1.0  # two plain pictures, whose hashes are nearly equal
    scores = [(_correlation(one.gray, oriented(other.gray, n)), -n) for n in allowed]
    best, orientation = max(scores)
    return (-orientation, best) if best >= (_SIMPLE_CORRELATION if simple else LEAST_CORRELATION) else None


def _correlation(one: Array, other: Array) -> float:
    """Return the highest correlation of the center of `other` with `one`, over scales and shifts."""
    edge = (_SIDE - _CENTER) // 2
    center = _details(other)[edge : edge + _CENTER, edge : edge + _CENTER]
    best = -1.0
    for scale in _SCALES:
        side = round(_SIDE * scale)
        scaled = cv2.resize(one, (side, side), interpolation=cv2.INTER_AREA if scale < 1 else cv2.INTER_LINEAR)
        start = max((side - _CENTER) // 2 - _SHIFT, 0)
        part = _details(scaled)[start : side - start, start : side - start]
        best = max(best, float(cv2.matchTemplate(part, center, cv2.TM_CCOEFF_NORMED).max()))
    return best


def _details(gray: Array) -> Array:
    values = gray.astype(np.float32)
    return np.asarray(values - cv2.GaussianBlur(values, (0, 0), _BLUR))


def _bytes_of(image: Array) -> Array:
    """Return numbers of any range as bytes: only their order counts."""
    values = np.nan_to_num(image.astype(np.float32))
    low, high = float(values.min()), float(values.max())
    return ((values - low) * (255 / (high - low) if high > low else 0)).astype(np.uint8)


# --- groups ------------------------------------------------------------------------------------------------------------
# Samples that seem to belong together and are in several splits are a suspicion. They are grouped by the folder of their key,
# and by the prefix of their file name before its last number (frames of one video). A split's own folder does not count, and
# neither does a folder or prefix that is a class.


GroupKind = Literal["folder", "prefix"]

_PREFIX = r"([^/]*?)[_. -]*\d+\.\w+$"
_GROUP_BY: Mapping[GroupKind, str] = {"folder": r"^(.*)/", "prefix": _PREFIX}


@dataclass(frozen=True)
class Suspicion:
    """Groups of one kind that have members in several splits.

    Attributes:
        kind: How samples were grouped.
        groups: Number of groups of two samples or more.
        straddling: How many of them have members in several splits.
        samples: Number of samples in those.
        examples: The largest of those, with the number of members by split.
        group_by: What a recipe's `Fractions` could take to keep them together; empty if it does not fit all keys.
    """

    kind: GroupKind
    groups: int
    straddling: int
    samples: int
    examples: Mapping[str, Mapping[str, int]]
    group_by: str


def suspected_groups(data: Dataset, prints: Fingerprints) -> list[Suspicion]:
    """Return the kinds of groups that straddle splits."""
    if len(prints.splits) < 2:
        return []
    keys = prints.keys.to_pylist()
    classes = {"", *(name for names in data.manifest.classes.values() for name in names)}
    names_by_kind: dict[GroupKind, list[str | None]] = {"folder": [], "prefix": []}
    for row, key in enumerate(keys):
        *folders, name = key.split("/")
        plain = PurePosixPath(*(part for part in folders if part != prints.name_of_split(row)), name)
        names_by_kind["folder"].append(None if plain.parent.name in classes else str(plain.parent))
        match = re.search(_PREFIX, str(plain))
        names_by_kind["prefix"].append(None if match is None or match[1] in classes else match[1])
    found = [_suspicion(kind, names, keys, prints) for kind, names in names_by_kind.items()]
    return [suspicion for suspicion in found if suspicion is not None]


def _suspicion(
    kind: GroupKind, names: Sequence[str | None], keys: Sequence[str], prints: Fingerprints
) -> Suspicion | None:
    members: dict[str, list[int]] = defaultdict(list)
    for row, name in enumerate(names):
        if name is not None:
            members[name].append(row)
    groups = {name: rows for name, rows in members.items() if len(rows) > 1}
    splits = prints.split.tolist()
    straddling = {name: rows for name, rows in groups.items() if len({splits[row] for row in rows}) > 1}
    # One folder that holds everything says nothing.
    if not straddling or (len(members) == 1 and None not in names):
        return None
    largest = sorted(straddling, key=lambda name: (-len(straddling[name]), name))[:5]
    fits = None not in names and all(re.search(_GROUP_BY[kind], key) for key in keys)
    return Suspicion(
        kind=kind,
        groups=len(groups),
        straddling=len(straddling),
        samples=sum(map(len, straddling.values())),
        examples={name: dict(Counter(prints.name_of_split(row) for row in straddling[name])) for name in largest},
        group_by=_GROUP_BY[kind] if fits else "",
    )
