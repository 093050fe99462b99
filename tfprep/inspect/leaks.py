"""Leaks: the same picture, or nearly the same, in more than one split; and pictures that occur twice within a split.

Exact duplicates have one file digest. Near duplicates have perceptual hashes (`tfprep.images.perceptual_hash`) that differ in a
few bits, as they are or mirrored or rotated, and thumbnails whose details fit on each other. Pictures of one hash are handled as
one, so that a thousand black frames cost one comparison and not half a million.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, combinations, product
from pathlib import Path

import numpy as np

from tfprep.dataset import Dataset
from tfprep.errors import NothingToCompareError
from tfprep.fields import Array
from tfprep.inspect.fingerprints import (
    ORIENTATIONS,
    Fingerprints,
    Forest,
    OnRecord,
    near_pairs,
    orientations,
    read_fingerprints,
)
from tfprep.inspect.thumbnails import alike, read_thumbnails
from tfprep.optional import HAS_OPENCV
from tfprep.storage.urls import durable_write

DISTANCE, DISTANCE_OF_MANY, MANY = 10, 8, 200_000
"""Largest distance of candidates, and that of more than `MANY` samples: of 10^6 random hashes, 40,000 pairs differ in 10 bits or
fewer in one of eight orientations, and 1,900 in 8."""
_BY_HASH = 4
"""Bits in which the hashes of pictures that cannot be compared may differ, upright."""
_MEASURED = "https://github.com/tfprep/tfprep/blob/main/docs/inspect.md"
_MOST_COMPARED = 20_000
"""Pairs whose thumbnails are compared, the nearest first: a millisecond each, and the time to read two pictures."""


@dataclass(frozen=True)
class Pair:
    """Two samples with the same or nearly the same picture.

    Attributes:
        first, second: Their keys.
        first_split, second_split: Their splits, in the order of the dataset's splits.
        distance: Number of bits in which their perceptual hashes differ in the orientation; None if one has no hash.
        exact: Whether their image files are equal.
        orientation: The second against the first: "" if it is upright, or such as "mirrored".
        correlation: Correlation of the thumbnails' details; None where they were not compared.
        labels: Their labels, where these differ.
        rows: Their rows in `Leaks.fingerprints`.
    """

    first: str
    second: str
    first_split: str
    second_split: str
    distance: int | None
    exact: bool
    orientation: str = ""
    correlation: float | None = None
    labels: tuple[str, str] | None = None
    rows: tuple[int, int] = (0, 0)

    @property
    def straddles(self) -> bool:
        """True if the two are in different splits."""
        return self.first_split != self.second_split


@dataclass(frozen=True)
class PairCounts:
    """Numbers of pairs across splits and within one: of equal files, and of pictures that are alike, equal files included."""

    exact_across: int
    exact_within: int
    near_across: int
    near_within: int


@dataclass(frozen=True)
class SearchCounts:
    """Pairs of different hashes that the search for near duplicates came upon.

    Attributes:
        candidates: Pairs of hashes within the distance, in one of eight orientations.
        compared: Those of them whose thumbnails were compared.
        by_hash: Those that were not, and count because their hashes differ in at most 4 bits, upright.
        left: Those that were not, and do not count.
    """

    candidates: int
    compared: int
    by_hash: int
    left: int


@dataclass(frozen=True)
class Leaks:
    """Result of `find_leaks`.

    Attributes:
        samples: Number of samples by split.
        distance: The largest distance of the hashes of near duplicates.
        search: How many candidates were compared.
        unhashed: Samples without a perceptual hash, compared by their digest only.
        undigested: Samples without a digest, compared by their hash only.
        counts: Numbers of pairs.
        leaking: By split, then by other split, how many of its samples have a duplicate there.
        pairs: Pairs, those that straddle first, then by distance; not more than were asked for.
        two_labels: Pairs of one picture under two labels; not more than were asked for.
        two_labels_count: Number of pictures that have another label than one that they equal or resemble.
        excluded: The rows of `fingerprints` whose removal leaves no pair across splits, with a row in another split that each
            resembles.
        groups: int64 [N], a number that is equal for samples linked by pairs, directly or over others.
        fingerprints: All samples.
    """

    samples: dict[str, int]
    distance: int
    search: SearchCounts
    unhashed: int
    undigested: int
    counts: PairCounts
    leaking: dict[str, dict[str, int]]
    pairs: list[Pair]
    two_labels: list[Pair]
    two_labels_count: int
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


def likeness(pair: Pair) -> str:
    """Return in words how two samples are alike."""
    if pair.exact:
        return "equal files"
    texts = [pair.orientation, f"{pair.distance} bits" if pair.distance is not None else ""]
    texts.append(f"correlation {pair.correlation:.2f}" if pair.correlation is not None else "")
    return ", ".join(text for text in texts if text)


def searched_for(leaks: Leaks) -> str:
    """Return in words what was searched for, and how much of it is found."""
    search = leaks.search
    text = (
        f"equal files, and hashes that differ in at most {leaks.distance} of 64 bits, upright, mirrored or rotated by 90°, "
        f"180° or 270°: {search.candidates:,} candidates, {search.compared:,} of them compared by thumbnails. "
    )
    if search.by_hash:
        text += f"{search.by_hash:,} that were not compared count, since at most {_BY_HASH} bits differ upright. "
    if search.left:
        text += f"{search.left:,} that were not compared do not count. "
    return f"{text}How much this finds was measured on our own test photos: {_MEASURED}"


def find_leaks(
    data: Dataset,
    *,
    most_pairs: int = 1000,
    from_records: bool = True,
    on_record: OnRecord | None = None,
) -> Leaks:
    """Find exact and near duplicates, within splits and across them.

    Args:
        data: The dataset.
        most_pairs: The number of pairs to list. Counts and exclusions cover all of them.
        from_records: Whether to read pictures: to compare thumbnails, and to compute hashes that the index does not hold. Else
            digests count, and hashes that differ in at most 4 bits upright.
        on_record: Called after each picture that was read.

    Raises:
        NothingToCompareError: No image has a digest or a hash.
        DatasetError: The index or a record cannot be read.
    """
    samples = sum(split.samples for split in data.splits.values())
    distance = DISTANCE if samples <= MANY else DISTANCE_OF_MANY
    prints = read_fingerprints(data, on_record, from_records=from_records)
    if from_records and len(prints) and not (prints.hashed.any() or (prints.digests >= 0).any()):
        raise NothingToCompareError(
            f"{data.path}: no image has a digest or a hash, and no image is stored from which one could be computed; "
            "build the dataset again with this version"
        )
    return _LeakSearch(data, prints, distance, on_record, from_records and HAS_OPENCV).leaks(most_pairs)


class _LeakSearch:
    """Samples grouped by perceptual hash, the links between hashes, and what follows from them.

    A boolean matrix [hashes, splits] says in which splits a picture like this one occurs. All that is exact for any number of
    pairs follows from it and from counts; pairs themselves are made only for the list.
    """

    def __init__(
        self, data: Dataset, prints: Fingerprints, distance: int, on_record: OnRecord | None, pictures: bool
    ) -> None:
        self._data, self._prints, self._distance = data, prints, distance
        self._alike = _Grouping(np.flatnonzero(prints.hashed), prints.hashes, prints.split, len(prints.splits))
        self._exact = _Grouping(np.flatnonzero(prints.digests >= 0), prints.digests, prints.split, len(prints.splits))
        self._links, self._search = _find_links(data, prints, self._alike, distance, on_record, pictures)

    def leaks(self, most_pairs: int) -> Leaks:
        prints, members, links = self._prints, self._alike.members, self._links
        a, b = links.first, links.second
        same = (members[a] * members[b]).sum(axis=1)
        across = members[a].sum(axis=1) * members[b].sum(axis=1) - same
        near = self._near_splits()
        other_pairs = near.copy()
        other_pairs[np.arange(len(prints)), prints.split] = False
        # Train gives way to all other splits, and these to test: of two samples, that of the lower rank goes.
        order = sorted(prints.splits, key=lambda name: (name != "train", name == "test", name))
        ranks = np.array([order.index(name) for name in prints.splits])
        highest = np.where(near, ranks, -1).max(axis=1, initial=-1)
        exact_across, exact_within = self._exact.pairs()
        alike_across, alike_within = self._alike.pairs()
        labeled, disputed = self._two_labels()
        counts = {
            name: dict(zip(prints.splits, other_pairs[prints.split == number].sum(axis=0).tolist(), strict=True))
            for number, name in enumerate(prints.splits)
        }
        forest, first = Forest(len(self._prints)), self._alike.first
        for grouping in (self._alike, self._exact):
            forest.join(grouping.rows, grouping.first[grouping.of_row])
        forest.join(first[self._links.first], first[self._links.second])
        return Leaks(
            samples={name: int((prints.split == number).sum()) for number, name in enumerate(prints.splits)},
            distance=self._distance,
            search=self._search,
            unhashed=int((~prints.hashed).sum()),
            undigested=int((prints.digests < 0).sum()),
            counts=PairCounts(
                exact_across, exact_within, alike_across + int(across.sum()), alike_within + int(same.sum())
            ),
            leaking={name: {other: count for other, count in row.items() if count} for name, row in counts.items()},
            pairs=self._pairs(most_pairs, across > 0, same > 0),
            two_labels=[self._pair(*rows, link) for rows, link in list(labeled.items())[:most_pairs]],
            two_labels_count=len(disputed),
            excluded=np.flatnonzero(ranks[prints.split] < highest).tolist(),
            groups=forest.groups(),
            fingerprints=prints,
        )

    def _near_splits(self) -> Array:
        """Return for each sample the splits that hold the same or nearly the same picture, bool [N, splits]."""
        members, linked = self._alike.members > 0, self._alike.members > 0
        a, b = self._links.first, self._links.second
        for split in range(members.shape[1]):
            linked[a[members[b, split]], split] = True
            linked[b[members[a, split]], split] = True
        near = np.zeros((len(self._prints), len(self._prints.splits)), bool)
        near[self._alike.rows] |= linked[self._alike.of_row]
        near[self._exact.rows] |= (self._exact.members > 0)[self._exact.of_row]
        return near

    def _two_labels(self) -> tuple[dict[tuple[int, int], int | None], set[int]]:
        """Return pairs of samples of one picture under two labels, with their link, and all samples of such pictures.

        Of equal pictures, each is compared with the first.
        """
        labels, first = self._prints.labels, self._alike.first
        links: dict[tuple[int, int], int | None] = {}
        disputed: set[int] = set()
        for grouping in (self._exact, self._alike):
            other = grouping.first[grouping.of_row]
            rows = np.flatnonzero(_differ(labels[grouping.rows], labels[other]))
            disputed.update(grouping.rows[np.isin(grouping.of_row, grouping.of_row[rows])].tolist())
            for row in rows.tolist():
                links.setdefault((int(other[row]), int(grouping.rows[row])), None)
        a, b = first[self._links.first], first[self._links.second]
        for link in np.flatnonzero(_differ(labels[a], labels[b])).tolist():
            links.setdefault((min(int(a[link]), int(b[link])), max(int(a[link]), int(b[link]))), link)
            disputed |= {int(a[link]), int(b[link])}
        return links, disputed

    def _pairs(self, most: int, across: Array, within: Array) -> list[Pair]:
        """List pairs across splits by distance, then those within a split."""
        nearest = np.argsort(self._links.bits, kind="stable")
        listed: dict[tuple[int, int], int | None] = {}
        for straddling, chosen in ((True, across), (False, within)):
            links = nearest[chosen[nearest]][:most].tolist()
            equal = chain(self._exact.repeated(straddling), self._alike.repeated(straddling))
            linked = (
                (rows, link)
                for link in links
                for rows in self._alike.between(int(self._links.first[link]), int(self._links.second[link]), straddling)
            )
            for rows, link in chain(((rows, None) for rows in equal), linked):
                if len(listed) >= most:
                    break
                listed.setdefault(rows, link)
        return [self._pair(*rows, link) for rows, link in listed.items()]

    def _pair(self, first: int, second: int, link: int | None) -> Pair:
        prints = self._prints
        exact = bool(prints.digests[first] == prints.digests[second] >= 0)
        differ = bool(_differ(prints.labels[first], prints.labels[second]))
        linked = link is not None and not exact
        same_hash = bool(prints.hashed[first] and prints.hashed[second])
        correlation = float(self._links.correlation[link]) if linked else np.nan
        return Pair(
            first=prints.key(first),
            second=prints.key(second),
            first_split=prints.name_of_split(first),
            second_split=prints.name_of_split(second),
            distance=int(self._links.bits[link]) if linked else 0 if same_hash else None,
            exact=exact,
            orientation=ORIENTATIONS[self._links.orientation[link]] if linked else "",
            correlation=None if np.isnan(correlation) else round(correlation, 3),
            labels=(self._label(first), self._label(second)) if differ else None,
            rows=(first, second),
        )

    def _label(self, row: int) -> str:
        """Return the name of a sample's class, or the label itself where classes have no names."""
        value = self._prints.label_values[int(self._prints.labels[row])]
        field = next((name for name, spec in self._data.fields.items() if spec.kind == "label"), "")
        classes = self._data.manifest.classes.get(field, ())
        return str(classes[value] if isinstance(value, int) and 0 <= value < len(classes) else value)


def _differ(one: Array, other: Array) -> Array:
    return np.asarray((one != other) & (one >= 0) & (other >= 0))


@dataclass(frozen=True)
class _Links:
    """Pairs of groups of equal hashes whose pictures are alike; arrays [n].

    Attributes:
        first, second: The groups.
        bits: In how many bits the hashes differ in the orientation.
        orientation: Index of `ORIENTATIONS`: the second group against the first.
        correlation: Of the thumbnails; NaN where they were not compared.
    """

    first: Array
    second: Array
    bits: Array
    orientation: Array
    correlation: Array


def _find_links(
    data: Dataset, prints: Fingerprints, hashes: _Grouping, distance: int, on_record: OnRecord | None, pictures: bool
) -> tuple[_Links, SearchCounts]:
    """Find hashes that are near each other, and compare the thumbnails of the first sample of each."""
    first, second = near_pairs(hashes.values, distance)
    bits = np.bitwise_count(orientations(hashes.values[second]) ^ hashes.values[first])
    nearest = np.argsort(bits.min(axis=0, initial=64), kind="stable")
    first, second, bits = first[nearest], second[nearest], bits[:, nearest]
    tried = slice(0, _MOST_COMPARED if pictures else 0)
    rows = hashes.first[np.unique(np.concatenate([first[tried], second[tried]]))].tolist()
    thumbnails = read_thumbnails(data, prints, rows, on_record)
    kept, orientation = bits[0] <= min(_BY_HASH, distance), np.zeros(len(first), np.int8)
    correlation = np.full(len(first), np.nan)
    compared = np.zeros(len(first), bool)
    for link in range(*tried.indices(len(first))):
        one, other = (thumbnails.get(int(hashes.first[group[link]])) for group in (first, second))
        if one is None or other is None:
            continue
        match = alike(one, other, [int(count) if count <= distance else 65 for count in bits[:, link]])
        compared[link], kept[link] = True, match is not None
        if match:
            orientation[link], correlation[link] = match
    counts = SearchCounts(
        len(first), int(compared.sum()), int((kept & ~compared).sum()), int((~kept & ~compared).sum())
    )
    bits_of_links = bits[orientation[kept], np.flatnonzero(kept)]
    return _Links(first[kept], second[kept], bits_of_links, orientation[kept], correlation[kept]), counts


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
        self._order = np.argsort(self.of_row, kind="stable")
        self._edges = np.concatenate([[0], np.cumsum(self.members.sum(axis=1))])

    def pairs(self) -> tuple[int, int]:
        """Return how many pairs of samples share a value: across splits, and within one."""
        within = (self.members * (self.members - 1) // 2).sum()
        total = self.members.sum(axis=1)
        return int((total * (total - 1) // 2).sum() - within), int(within)

    def repeated(self, straddling: bool) -> Iterator[tuple[int, int]]:
        """Yield pairs of samples that share a value, in different splits or in one."""
        has_pairs = (self.members > 0).sum(axis=1) > 1 if straddling else (self.members > 1).any(axis=1)
        for group in np.flatnonzero(has_pairs).tolist():
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


def _write_csv(path: Path, heads: Sequence[str], rows: Iterable[Sequence[str]]) -> int:
    text, listed = io.StringIO(), list(rows)
    writer = csv.writer(text, lineterminator="\n")
    writer.writerows([heads, *listed])
    durable_write(path, text.getvalue())
    return len(listed)
