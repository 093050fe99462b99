"""Leaks: the same picture, or nearly the same, in more than one split; and pictures that occur twice within a split.

Exact duplicates have one file digest. Near duplicates have perceptual hashes (`tfprep.images.perceptual_hash`) that differ in a
few bits, as they are or mirrored or rotated, and thumbnails whose details fit on each other. Pictures of one hash are handled as
one, so that a thousand black frames cost one comparison and not half a million.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from tfprep.dataset import Dataset
from tfprep.dataset.names import is_training_split
from tfprep.errors import NothingToCompareError
from tfprep.fields import Array
from tfprep.inspect.fingerprints import (
    MOST_PAIRS,
    ORIENTATIONS,
    Fingerprints,
    OnRecord,
    alike,
    linked,
    near_pairs,
    orientations,
    read_fingerprints,
    read_thumbnails,
)
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
        leaking: By split, then by other split, how many of its samples have a duplicate there, directly or over others.
        pairs: Pairs that connect all samples that are alike, those that straddle first, then by distance; not more than were
            asked for. Of many equal pictures each is listed with the first.
        two_labels: Those of them under two labels; not more than were asked for.
        two_labels_count: Number of samples that are linked to a pair of two labels, directly or over others.
        excluded: The rows of `fingerprints` whose removal leaves no pair across splits.
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
    if search.candidates > MOST_PAIRS:
        text += "There are more, which were not looked for: leave out those that are found, and check again. "
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
        most_pairs: The number of pairs to list. Counts and exclusions cover all.
        from_records: Whether to read pictures: to compare thumbnails, and to compute hashes that the index does not hold. Else
            digests count, and hashes that differ in at most 4 bits upright.
        on_record: Called after each picture that was read.

    Raises:
        NothingToCompareError: No image has a digest or a hash.
        DatasetError: The index or a record cannot be read.
    """
    prints = read_fingerprints(data, on_record, from_records=from_records)
    distance = DISTANCE if len(prints) <= MANY else DISTANCE_OF_MANY
    if from_records and len(prints) and not (prints.hashed.any() or (prints.digests >= 0).any()):
        raise NothingToCompareError(
            f"{data.path}: no image has a digest or a hash, and no image is stored from which one could be computed; "
            "build the dataset again with this version"
        )
    alike = _Grouping(np.flatnonzero(prints.hashed), prints.hashes, prints)
    exact = _Grouping(np.flatnonzero(prints.digests >= 0), prints.digests, prints)
    links, search = _find_links(data, prints, alike, distance, on_record, from_records and HAS_OPENCV)
    one, other, link = _edges(exact, alike, links)
    groups = linked(len(prints), one, other)
    straddles = prints.split[one] != prints.split[other]
    bits = np.where(link < 0, 0, np.append(links.bits, 0)[link])
    listed = np.lexsort((bits, ~straddles))[:most_pairs].tolist()
    two_labels = np.flatnonzero(_differ(prints.labels[one], prints.labels[other]))

    def pair(edge: int) -> Pair:
        return _pair(data, prints, links, int(one[edge]), int(other[edge]), int(link[edge]))

    leaking, excluded = _across_splits(prints, groups)
    return Leaks(
        samples={name: split.samples for name, split in data.splits.items()},
        distance=distance,
        search=search,
        unhashed=int((~prints.hashed).sum()),
        undigested=int((prints.digests < 0).sum()),
        counts=_count_pairs(exact, alike, links),
        leaking=leaking,
        pairs=[pair(edge) for edge in listed],
        two_labels=[pair(edge) for edge in two_labels[:most_pairs].tolist()],
        two_labels_count=int(np.isin(groups, groups[one[two_labels]]).sum()),
        excluded=excluded,
        groups=groups,
        fingerprints=prints,
    )


def _count_pairs(exact: _Grouping, alike: _Grouping, links: _Links) -> PairCounts:
    a, b = alike.members[links.first], alike.members[links.second]
    within = int((a * b).sum())
    across = int((a.sum(axis=1) * b.sum(axis=1)).sum()) - within
    (exact_across, exact_within), (alike_across, alike_within) = exact.pairs(), alike.pairs()
    return PairCounts(exact_across, exact_within, alike_across + across, alike_within + within)


def _across_splits(prints: Fingerprints, groups: Array) -> tuple[dict[str, dict[str, int]], list[int]]:
    """Return how many samples of each split have a duplicate in each other one, and the rows to leave out."""
    occurs = np.zeros((len(prints), len(prints.splits)), bool)  # by group and split
    occurs[groups, prints.split] = True
    near, leaking = occurs[groups], dict[str, dict[str, int]]()
    for number, split in enumerate(prints.splits):
        counts = zip(prints.splits, near[prints.split == number].sum(axis=0).tolist(), strict=True)
        leaking[split] = {name: count for name, count in counts if count and name != split}
    # Train gives way to all other splits, and these to test: of two samples, that of the lower rank goes.
    order = sorted(prints.splits, key=lambda name: (not is_training_split(name), name.lower().startswith("test"), name))
    ranks = np.array([order.index(name) for name in prints.splits])
    highest = np.where(near, ranks, -1).max(axis=1, initial=-1)
    return leaking, np.flatnonzero(ranks[prints.split] < highest).tolist()


def _edges(exact: _Grouping, alike: _Grouping, links: _Links) -> tuple[Array, Array, Array]:
    """Return pairs that connect all samples that are alike, int64 [n] each: two rows, the smaller first, and their link or -1.

    Each sample is paired with the first of its file and with the first of its hash, and of two hashes that are linked the first
    samples are.
    """
    one = np.concatenate([*(of.first[of.of_row] for of in (exact, alike)), alike.first[links.first]])
    other = np.concatenate([exact.rows, alike.rows, alike.first[links.second]])
    link = np.full(len(one), -1)
    link[len(one) - len(links.first) :] = np.arange(len(links.first))
    one, other = np.minimum(one, other), np.maximum(one, other)
    once = np.unique(np.stack([one, other]), axis=1, return_index=True)[1]
    once = np.sort(once[one[once] != other[once]])
    return one[once], other[once], link[once]


def _pair(data: Dataset, prints: Fingerprints, links: _Links, first: int, second: int, link: int) -> Pair:
    exact = bool(prints.digests[first] == prints.digests[second] >= 0)
    linked = link >= 0 and not exact
    same_hash = bool(prints.hashed[first] and prints.hashed[second])
    correlation = float(links.correlation[link]) if linked else np.nan
    differ = bool(_differ(prints.labels[first], prints.labels[second]))
    return Pair(
        first=prints.key(first),
        second=prints.key(second),
        first_split=prints.name_of_split(first),
        second_split=prints.name_of_split(second),
        distance=int(links.bits[link]) if linked else 0 if same_hash else None,
        exact=exact,
        orientation=ORIENTATIONS[links.orientation[link]] if linked else "",
        correlation=None if np.isnan(correlation) else round(correlation, 3),
        labels=(_label(data, prints, first), _label(data, prints, second)) if differ else None,
        rows=(first, second),
    )


def _label(data: Dataset, prints: Fingerprints, row: int) -> str:
    """Return the name of a sample's class, or the label itself where classes have no names."""
    value = prints.label_values[int(prints.labels[row])]
    field = next((name for name, spec in data.fields.items() if spec.kind == "label"), "")
    classes = data.manifest.classes.get(field, ())
    return str(classes[value] if isinstance(value, int) and 0 <= value < len(classes) else value)


def _differ(one: Array, other: Array) -> Array:
    return np.asarray((one != other) & (one >= 0) & (other >= 0))


class _Links(NamedTuple):
    """Pairs of groups of equal hashes whose pictures are alike, arrays [n].

    `orientation` is an index of `ORIENTATIONS`, the second group against the first, in which the hashes differ in `bits`;
    `correlation`, of the thumbnails, is NaN where they were not compared.
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
        first: int64 [G], the first sample of each group.
        members: int64 [G, splits], the number of samples by group and split.
    """

    def __init__(self, rows: Array, values: Array, prints: Fingerprints) -> None:
        self.rows, splits = rows, len(prints.splits)
        self.values, first, self.of_row = np.unique(values[rows], return_index=True, return_inverse=True)
        self.first = rows[first]
        cells = np.bincount(self.of_row * splits + prints.split[rows], minlength=len(self.values) * splits)
        self.members = cells.reshape(len(self.values), splits)

    def pairs(self) -> tuple[int, int]:
        """Return how many pairs of samples share a value: across splits, and within one."""
        within = (self.members * (self.members - 1) // 2).sum()
        total = self.members.sum(axis=1)
        return int((total * (total - 1) // 2).sum() - within), int(within)


def _write_csv(path: Path, heads: Sequence[str], rows: Iterable[Sequence[str]]) -> int:
    text, listed = io.StringIO(), list(rows)
    writer = csv.writer(text, lineterminator="\n", quoting=csv.QUOTE_ALL)  # also a key that begins with a space
    writer.writerows([heads, *listed])
    durable_write(path, text.getvalue())
    return len(listed)
