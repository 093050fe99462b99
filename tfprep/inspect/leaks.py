"""Leaks: the same picture, or nearly the same, in more than one split; and pictures that occur twice within a split.

Exact duplicates have one file digest. Near duplicates have perceptual hashes (`tfprep.images.perceptual_hash`) that differ in a
few bits. Pictures of one hash are handled as one, so that a thousand black frames cost one comparison and not half a million.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, combinations, product
from pathlib import Path

import numpy as np

from tfprep.dataset import Dataset
from tfprep.errors import DatasetError
from tfprep.fields import Array
from tfprep.inspect.fingerprints import MOST_DISTANCE, Fingerprints, Forest, OnRecord, near_pairs, read_fingerprints
from tfprep.storage.local import write_whole

DISTANCE = 4
_MOST_LINKS = 100_000
"""Pairs of different hashes that are kept for the list of pairs; counts, exclusions and groups cover all of them."""


@dataclass(frozen=True)
class Pair:
    """Two samples with the same or nearly the same picture.

    Attributes:
        first, second: Their keys.
        first_split, second_split: Their splits, in the order of the dataset's splits.
        distance: Number of bits in which their perceptual hashes differ; None if one has no hash.
        exact: Whether their image files are equal.
    """

    first: str
    second: str
    first_split: str
    second_split: str
    distance: int | None
    exact: bool

    @property
    def straddles(self) -> bool:
        """True if the two are in different splits."""
        return self.first_split != self.second_split


@dataclass(frozen=True)
class PairCounts:
    """Numbers of pairs across splits and within one: of equal files, and of hashes within the distance, equal files included."""

    exact_across: int
    exact_within: int
    near_across: int
    near_within: int


@dataclass(frozen=True)
class Leaks:
    """Result of `find_leaks`.

    Attributes:
        samples: Number of samples by split.
        distance: The largest distance of near duplicates.
        unhashed: Samples without a perceptual hash, compared by their digest alone.
        undigested: Samples without a digest, compared by their hash alone.
        counts: Numbers of pairs.
        leaking: By split, then by other split, how many of its samples have a duplicate there.
        pairs: Pairs, those that straddle first, then by distance; not more than were asked for.
        excluded: The rows of `fingerprints` whose removal leaves no pair across splits, with a row in another split that each
            resembles.
        groups: int64 [N], a number that samples share that are linked by pairs, however many steps apart.
        fingerprints: All samples.
    """

    samples: dict[str, int]
    distance: int
    unhashed: int
    undigested: int
    counts: PairCounts
    leaking: dict[str, dict[str, int]]
    pairs: list[Pair]
    excluded: list[int]
    groups: Array
    fingerprints: Fingerprints

    @property
    def straddle(self) -> bool:
        """True if any pair is in two splits."""
        return bool(self.counts.exact_across or self.counts.near_across)

    def write_excluded(self, path: Path) -> int:
        """Write the keys of `excluded` as a CSV file that `sources.Without` reads; return their number."""
        rows = ((self.fingerprints.key(row), self.fingerprints.name_of_split(row)) for row in self.excluded)
        return _write_csv(path, ("key", "split"), rows)

    def write_groups(self, path: Path) -> int:
        """Write the samples that are linked to others, with their groups, as a CSV file that `sources.GroupFile` reads."""
        counts = np.bincount(self.groups, minlength=len(self.groups))
        rows = np.flatnonzero(counts[self.groups] > 1).tolist()
        key = self.fingerprints.key
        return _write_csv(path, ("key", "group"), ((key(row), key(int(self.groups[row]))) for row in rows))


def find_leaks(
    data: Dataset,
    *,
    distance: int = DISTANCE,
    most_pairs: int = 1000,
    from_records: bool = True,
    on_record: OnRecord | None = None,
) -> Leaks:
    """Find exact and near duplicates, within splits and across them.

    Args:
        data: The dataset.
        distance: Bits in which the perceptual hashes of near duplicates may differ, from 0 to `near.MOST_DISTANCE`.
        most_pairs: The number of pairs to list. Counts and exclusions cover all of them.
        from_records: Whether to compute hashes that the index does not hold from the records; else the digests alone count there.
        on_record: Called while hashes that the index does not hold are computed from the records.

    Raises:
        DatasetError: The index or a record cannot be read, no image has a digest or a hash, or `distance` is out of range.
    """
    if not 0 <= distance <= MOST_DISTANCE:
        raise DatasetError(f"distance is a number of bits from 0 to {MOST_DISTANCE}, not {distance}")
    prints = read_fingerprints(data, on_record, from_records=from_records)
    if from_records and len(prints) and not (prints.hashed.any() or (prints.digests >= 0).any()):
        raise DatasetError(
            f"{data.path}: no image has a digest or a hash, and no image is stored from which one could be computed; "
            "build the dataset again with this version"
        )
    return _LeakSearch(prints, distance).leaks(most_pairs)


class _LeakSearch:
    """Samples grouped by perceptual hash, the links between hashes, and what follows from them.

    A boolean matrix [hashes, splits] says in which splits a picture like this one occurs. All that is exact for any number of
    pairs follows from it and from counts; pairs themselves are made only for the list.
    """

    def __init__(self, prints: Fingerprints, distance: int) -> None:
        self._prints, self._distance = prints, distance
        self._alike = _Grouping(np.flatnonzero(prints.hashed), prints.hashes, prints.split, len(prints.splits))
        self._exact = _Grouping(np.flatnonzero(prints.digests >= 0), prints.digests, prints.split, len(prints.splits))
        self._near = self._alike.members > 0
        self._links: list[tuple[int, int, int]] = []
        self._across, self._within = self._alike.pairs()

    def leaks(self, most_pairs: int) -> Leaks:
        prints = self._prints
        forest = self._linked()
        near = self._near_splits()
        others = near.copy()
        others[np.arange(len(prints)), prints.split] = False
        ranks = _ranks(prints.splits)
        highest = np.where(near, ranks, -1).max(axis=1, initial=-1)
        exact_across, exact_within = self._exact.pairs()
        return Leaks(
            samples={name: int((prints.split == number).sum()) for number, name in enumerate(prints.splits)},
            distance=self._distance,
            unhashed=int((~prints.hashed).sum()),
            undigested=int((prints.digests < 0).sum()),
            counts=PairCounts(exact_across, exact_within, self._across, self._within),
            leaking=_leaking(others, prints),
            pairs=self._pairs(most_pairs),
            excluded=np.flatnonzero(ranks[prints.split] < highest).tolist(),
            groups=forest.groups(),
            fingerprints=prints,
        )

    def _linked(self) -> Forest:
        """Go through all links once: note splits, counts and groups, and keep some links for the list."""
        forest, members = Forest(len(self._prints)), self._alike.members
        for grouping in (self._alike, self._exact):
            forest.join(grouping.rows, grouping.first[grouping.of_row])
        for a, b, bits in near_pairs(self._alike.values, self._distance):
            forest.join(self._alike.first[a], self._alike.first[b])
            for split in range(members.shape[1]):
                self._near[a[members[b, split] > 0], split] = True
                self._near[b[members[a, split] > 0], split] = True
            same = (members[a] * members[b]).sum(axis=1)
            across = members[a].sum(axis=1) * members[b].sum(axis=1) - same
            self._across, self._within = self._across + int(across.sum()), self._within + int(same.sum())
            self._keep(a, b, bits, across > 0)
        return forest

    def _keep(self, a: Array, b: Array, bits: Array, straddle: Array) -> None:
        """Keep links for the list; those that straddle come first when there is no room for all."""
        room = _MOST_LINKS - len(self._links)
        chosen = np.argsort(~straddle, kind="stable")[: max(room, 0)]
        self._links += zip(a[chosen].tolist(), b[chosen].tolist(), bits[chosen].tolist(), strict=True)

    def _near_splits(self) -> Array:
        """Return for each sample the splits that hold the same or nearly the same picture, bool [N, splits]."""
        near = np.zeros((len(self._prints), len(self._prints.splits)), bool)
        near[self._alike.rows] |= self._near[self._alike.of_row]
        near[self._exact.rows] |= (self._exact.members > 0)[self._exact.of_row]
        return near

    def _pairs(self, most: int) -> list[Pair]:
        """List pairs across splits by distance, then those within a split."""
        links = sorted(self._links, key=lambda link: link[2])
        listed: dict[tuple[int, int], Pair] = {}
        for straddling in (True, False):
            for rows in chain(
                self._exact.repeated(straddling),
                self._alike.repeated(straddling),
                *(self._alike.between(a, b, straddling) for a, b, _ in links),
            ):
                if len(listed) >= most:
                    return list(listed.values())
                listed.setdefault(rows, self._pair(*rows))
        return list(listed.values())

    def _pair(self, first: int, second: int) -> Pair:
        prints = self._prints
        both = prints.hashed[first] and prints.hashed[second]
        return Pair(
            first=prints.key(first),
            second=prints.key(second),
            first_split=prints.name_of_split(first),
            second_split=prints.name_of_split(second),
            distance=int(np.bitwise_count(prints.hashes[first] ^ prints.hashes[second])) if both else None,
            exact=bool(prints.digests[first] == prints.digests[second] >= 0),
        )


class _Grouping:
    """Samples grouped by a value: a digest or a hash.

    Attributes:
        rows: int64 [n], the samples that have a value, in order.
        values: [G], the different values.
        of_row: int64 [n], the group of each of `rows`.
        members: int64 [G, splits], the number of samples by group and split.
        first: int64 [G], the first sample of each group.
    """

    def __init__(self, rows: Array, values: Array, split: Array, splits: int) -> None:
        self.rows, self._split = rows, split
        self.values, first, self.of_row = np.unique(values[rows], return_index=True, return_inverse=True)
        self.first = rows[first]
        cells = np.bincount(self.of_row * splits + split[rows], minlength=len(self.values) * splits)
        self.members = cells.reshape(len(self.values), splits)

    def pairs(self) -> tuple[int, int]:
        """Return how many pairs of samples share a value: across splits, and within one."""
        within = (self.members * (self.members - 1) // 2).sum()
        total = self.members.sum(axis=1)
        return int((total * (total - 1) // 2).sum() - within), int(within)

    def repeated(self, straddling: bool) -> Iterator[tuple[int, int]]:
        """Yield pairs of samples that share a value, in different splits or in one."""
        for group in np.flatnonzero(self.members.sum(axis=1) > 1).tolist():
            yield from self._chosen(combinations(self._samples(group), 2), straddling)

    def between(self, a: int, b: int, straddling: bool) -> Iterator[tuple[int, int]]:
        """Yield pairs of samples of two groups, in different splits or in one."""
        yield from self._chosen(product(self._samples(a), self._samples(b)), straddling)

    def _chosen(self, pairs: Iterable[tuple[int, int]], straddling: bool) -> Iterator[tuple[int, int]]:
        for one, other in pairs:
            if (self._split[one] != self._split[other]) == straddling:
                yield min(one, other), max(one, other)

    def _samples(self, group: int) -> list[int]:
        start, stop = self._edges[group], self._edges[group + 1]
        samples: list[int] = self.rows[self._order[start:stop]].tolist()
        return samples

    @cached_property
    def _order(self) -> Array:
        return np.argsort(self.of_row, kind="stable")

    @cached_property
    def _edges(self) -> Array:
        return np.concatenate([[0], np.cumsum(self.members.sum(axis=1))])


def _ranks(splits: Sequence[str]) -> Array:
    """Return which split gives way: train to all others, and the others to test. Of two samples, that of the lower rank goes."""
    order = sorted(splits, key=lambda name: (name != "train", name == "test", name))
    return np.array([order.index(name) for name in splits])


def _leaking(others: Array, prints: Fingerprints) -> dict[str, dict[str, int]]:
    counts = {
        name: dict(zip(prints.splits, others[prints.split == number].sum(axis=0).tolist(), strict=True))
        for number, name in enumerate(prints.splits)
    }
    return {name: {other: count for other, count in row.items() if count} for name, row in counts.items()}


def _write_csv(path: Path, heads: Sequence[str], rows: Iterable[Sequence[str]]) -> int:
    text, listed = io.StringIO(), list(rows)
    writer = csv.writer(text, lineterminator="\n")
    writer.writerows([heads, *listed])
    write_whole(path, text.getvalue())
    return len(listed)
