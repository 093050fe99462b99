"""Splits by fractions: a function of the key and the seed, so that adding files moves no other file to another split.

A sample's position in [0, 1) is `sample_hash(seed, "split\\0" + key) / 2**64`; the fractions divide that range in the
order train, val, test. A group (`group_by`) takes the position of its own name, so all its samples fall together, and
the fractions are then of groups.

With `stratify`, the samples of each class are sorted by that same position and the fractions divide the sorted list: the
i-th of n goes where (i + 0.5) / n falls, so each split's share of each class is exact to within one sample. The price is
that the borders are quantiles of the class: a sample added or removed can move one other sample of its class across each
border, and no more. Without `stratify` nothing ever moves, and the shares are right to within chance.

`Without` and `GroupFile` take results of `tfprep check`: samples to leave out, and samples that belong into one split.
"""

from __future__ import annotations

import re
from array import array
from bisect import bisect_right
from collections import ChainMap, Counter
from collections.abc import Callable, Iterator, Mapping, Set
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import accumulate
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from tfprep.checks import is_number
from tfprep.errors import RecipeError, SourceError
from tfprep.fields import rarest_classes
from tfprep.seeding import sample_hash
from tfprep.sources.patterns import Pattern, compile_pattern
from tfprep.sources.raw import parse_reference
from tfprep.sources.rows import rows_of
from tfprep.sources.source import Entry, Listing, Source, constructor_text, key_of

Row: TypeAlias = tuple[Entry, "str | None"]
"""An entry before its split is known, and the value of its `group_by` column where that is what groups it."""

_WHOLE = 1 << 64
_SPLIT_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]*")
_VARIANT_NAME = re.compile(r".*_v[0-9]+")


@dataclass(frozen=True, kw_only=True, repr=False)
class Fractions:
    """The share of the samples for each split. The shares add up to 1, and a split with share 0 does not exist.

    Attributes:
        train, val, test: Shares from 0 to 1.
        seed: The seed of the assignment.
        stratify: The label field whose classes have the same shares in every split. Not with `group_by`.
        group_by: Keeps samples that belong together in one split: a regular expression with a group, searched in the key
            (`r"^(patient\\d+)_"`), a function from key to group name (None: the sample is on its own), or, for `Table`, the
            name of a column.

    Raises:
        RecipeError: The shares do not add up to 1, or an option is of another type.
    """

    train: float
    val: float = 0.0
    test: float = 0.0
    seed: int = 0
    stratify: str | None = None
    group_by: str | Callable[[str], str | None] | None = None

    def __post_init__(self) -> None:
        shares = (self.train, self.val, self.test)
        if not all(is_number(share) and 0 <= share <= 1 for share in shares) or abs(sum(shares) - 1) > 1e-9:
            raise RecipeError(
                f"Fractions: expected shares from 0 to 1 that add up to 1; got train, val, test = {shares}"
            )
        if self.stratify is not None and not isinstance(self.stratify, str):
            raise RecipeError(
                f"Fractions: stratify is the name of a label field ('label') or None; got {self.stratify!r}"
            )
        if self.stratify is not None and self.group_by is not None:
            rule = (
                "give one of stratify and group_by: a group moves as a whole, so that classes do not keep their shares"
            )
            raise RecipeError(f"Fractions: {rule}. A column of a table may hold splits of your own")
        if isinstance(group_by := self.group_by, str):
            try:
                groups = re.compile(group_by).groups
            except re.error as error:
                raise RecipeError(f"Fractions: group_by={group_by!r} is not a regular expression: {error}") from error
            if "(" in group_by and groups == 0:
                rule = "Fractions: expected a group in group_by, the part that names the group"
                raise RecipeError(f"{rule}; got {group_by!r}")
        elif group_by is not None and not callable(group_by):
            raise RecipeError(f"Fractions: group_by is a regular expression, a column or a function; got {group_by!r}")

    @property
    def by_column(self) -> bool:
        """True if `group_by` names a column of a table: a string that is not a regular expression with a group."""
        return isinstance(self.group_by, str) and "(" not in self.group_by

    def shares(self) -> dict[str, float]:
        """Return the share of each split that exists."""
        return {name: getattr(self, name) for name in ("train", "val", "test") if getattr(self, name) > 0}

    def borders(self) -> tuple[float, ...]:
        """Return the inner borders of the shares in (0, 1): one fewer than there are splits."""
        return tuple(accumulate(self.shares().values()))[:-1]

    __repr__ = constructor_text


def listing_of(
    source: Any,
    files: tuple[str, ...],
    values: tuple[str, ...],
    classes: Mapping[str, tuple[str, ...]],
    rows: Callable[[Counter[str]], Iterator[Row]],
    splits: object = None,
    passed_over: Mapping[str, int] | None = None,
) -> Listing:
    """Return the listing of a source, with splits assigned by its options, or by `splits` in their place.

    `rows` returns the entries with their groups again at each call, and counts what it passes over in the tally that it gets. To
    stratify, `rows` is consumed twice, and 16 bytes per sample are kept in memory in between. `passed_over` is what the tally
    begins with.
    """
    splits = splits or source.splits
    tally = Counter(passed_over)

    def entries() -> Iterator[Entry]:
        split_of: Callable[[int, Entry, str | None], str] | None = None
        checked, group_file = set[str](), splits.group_by if isinstance(splits, Fractions) else None
        if isinstance(group_file, GroupFile):
            group_file = GroupFile(group_file.path)  # which reads the file again for each listing
        if is_split_pattern(splits):
            split_of = partial(_split_of_path, compile_pattern(str(splits), "splits"))
        elif isinstance(splits, Fractions):
            split_of = _drawn_splits(replace(splits, group_by=group_file), values, rows)
        listed = set(group_file.groups if isinstance(group_file, GroupFile) else ())
        not_seen = set(listed)
        for number, (found, column) in enumerate(rows(tally)):
            entry = found
            if split_of is not None:
                entry = Entry(found.key, split_of(number, found, column), found.files, found.values)
            if (name := entry.split) not in checked:  # it is a part of the names of shards
                if not _SPLIT_NAME.fullmatch(name) or _VARIANT_NAME.fullmatch(name):
                    rule = "a letter, then letters, digits and _, and no ending such as _v1, which names a variant"
                    raise SourceError(f"{entry.key}: expected the name of a split: {rule}; got {name!r}")
                checked.add(name)
            not_seen.discard(entry.key)
            yield entry
        if isinstance(group_file, GroupFile):
            tally.update(_not_in_the_data(group_file.path, listed, not_seen))

    return Listing(source.kinds(), files, values, entries(), classes, tally)


def _split_of_path(pattern: Pattern, number: int, entry: Entry, column: str | None) -> str:
    path = entry.files[0]
    if parse_reference(path).member:
        rule = f"{pattern.text!r} is a pattern of the paths of files, and {entry.key!r} is inside of one"
        raise SourceError(f"{rule}; write {{split}} into the pattern that names those files")
    if (holes := pattern.match_path(path)) is None:
        raise SourceError(f"{path!r} does not fit {pattern.text!r}, which gives the splits")
    return key_of(holes["split"])


def _drawn_splits(
    fractions: Fractions, values: tuple[str, ...], rows: Callable[[Counter[str]], Iterator[Row]]
) -> Callable[[int, Entry, str | None], str]:
    """Return the function from a sample's number, its entry and its group's column to its split."""
    unit, names = _unit(fractions), tuple(fractions.shares())
    label = values.index(fractions.stratify) if fractions.stratify else None
    plain = tuple(int(border * _WHOLE) for border in fractions.borders())
    strata, several = _cuts(fractions, label, rows)

    def split_of(number: int, entry: Entry, column: str | None) -> str:
        ends = plain
        if label is not None and (stratum := entry.values[label]) is not None:
            ends = strata.get(several.get(number, stratum), plain)
        return names[bisect_right(ends, sample_hash(fractions.seed, unit(entry.key, column)))]

    return split_of


def is_split_pattern(splits: object) -> bool:
    """Return True if `splits` is a pattern of paths with `{split}`, such as `{split}/**`."""
    return isinstance(splits, str) and "{split}" in splits


def _unit(fractions: Fractions) -> Callable[[str, str | None], str]:
    """Return the function from a sample's key, and its column's value, to the text that is hashed."""
    group_by = fractions.group_by
    if group_by is None:
        return lambda key, column: f"split\0{key}"
    if fractions.by_column:
        return lambda key, column: f"group\0{column}"
    if not isinstance(group_by, str):
        return lambda key, column: f"split\0{key}" if (group := group_by(key)) is None else f"group\0{group}"
    regex = re.compile(group_by)

    def unit(key: str, column: str | None) -> str:
        found = regex.search(key)
        if found is None:
            raise SourceError(f"group_by={group_by!r} finds no group in the key {key!r}; every sample must have one")
        return "\0".join(["group", *(group or "" for group in found.groups())])

    return unit


def _cuts(
    fractions: Fractions, label: int | None, rows: Callable[[Counter[str]], Iterator[Row]]
) -> tuple[dict[int, tuple[int, ...]], dict[int, int]]:
    """Return the 64-bit positions at which splits end, by stratum; and the stratum of samples with several classes, by their
    number among the rows: the class of each that fewest samples have.

    `label` is the index, among an entry's values, of the field to stratify by.
    """
    if label is None:
        return {}, {}
    positions, labels = array("Q"), array("q")
    lists: dict[int, tuple[int, list[int]]] = {}
    for number, (entry, _) in enumerate(rows(Counter())):
        stratum = entry.values[label]
        if stratum is None:  # a rejected sample
            continue
        if isinstance(stratum, list):
            lists[number], stratum = (len(labels), stratum), -1
        positions.append(sample_hash(fractions.seed, f"split\0{entry.key}"))
        labels.append(stratum)
    rarest = rarest_classes([classes for _, classes in lists.values()]).tolist()
    for (place, _), rare in zip(lists.values(), rarest, strict=True):
        labels[place] = rare
    position, of_sample = np.frombuffer(positions, np.uint64), np.frombuffer(labels, np.int64)
    strata = {}
    for rare in np.unique(of_sample):
        own = np.sort(position[of_sample == rare])
        # A sample counts at its middle; a split ends at the first sample after its border.
        ends = np.searchsorted(np.arange(len(own)) + 0.5, np.array(fractions.borders()) * len(own))
        strata[int(rare)] = tuple(int(own[i]) if i < len(own) else _WHOLE for i in ends)
    return strata, dict(zip(lists, rarest, strict=True))


@dataclass(frozen=True, repr=False)
class Without:
    """Another source, without the samples that a file lists.

    Attributes:
        source: The other source.
        path: A CSV file with a column `key`, as `tfprep check --exclude` writes it. A relative path begins at the current folder;
            `Path(__file__).with_name("leaks.csv")` is a file beside the recipe.

    Raises:
        RecipeError: `source` is not a source.
    """

    source: Source
    path: str | Path

    def __post_init__(self) -> None:
        if not hasattr(self.source, "scan"):
            raise RecipeError(f"Without: expected a source, such as sources.Folder(); got {self.source!r}")

    def __getattr__(self, name: str) -> Any:
        """Return what the other source declares (`Source`)."""
        if name not in ("kinds", "decoders", "rows", "voids", "multi_hot"):
            raise AttributeError(name)
        return getattr(self.source, name)

    def scan(self, root: Path) -> Listing:
        """List the samples below `root` that the file does not name; see `Source.scan`."""
        excluded = {key for (key,) in _listed(self.path, "Without", "key")}
        listing, reason = self.source.scan(root), f"listed in {Path(self.path).name}"
        own: dict[str, int] = {}

        def kept() -> Iterator[Entry]:
            missing = set(excluded)
            for entry in listing.entries:
                if entry.key in excluded:
                    missing.discard(entry.key)
                    own[reason] = own.get(reason, 0) + 1
                else:
                    yield entry
            own.update(_not_in_the_data(self.path, excluded, missing))

        # The tally of the other source is complete only once its entries are consumed.
        return replace(listing, entries=kept(), tally=ChainMap(own, listing.tally))  # type: ignore[arg-type]

    __repr__ = constructor_text


@dataclass(frozen=True, repr=False)
class GroupFile:
    """A `group_by` for `Fractions` that keeps duplicates in one split: the groups that a file lists.

    Attributes:
        path: A CSV file with columns `key` and `group`, as `tfprep check --groups` writes it. A sample that it does not name is
            assigned as if there were no groups. Relative paths are as for `Without`.
    """

    path: str | Path

    def __call__(self, key: str) -> str | None:
        """Return the group of a sample; None if it has none. Raises SourceError if the file cannot be read."""
        return self.groups.get(key)

    @cached_property
    def groups(self) -> dict[str, str]:
        """The group of each sample that the file names."""
        groups: dict[str, str] = {}
        for key, group in _listed(self.path, "GroupFile", "key", "group"):
            if groups.setdefault(key, group) != group:
                rule = f"{self.path} has {key!r} in two groups, {groups[key]!r} and {group!r}"
                raise SourceError(f"GroupFile: {rule}; leave one of them, or give both groups one name")
        return groups

    __repr__ = constructor_text


def _not_in_the_data(path: str | Path, keys: Set[str], missing: Set[str]) -> dict[str, int]:
    """Return what a tally says of keys in a file that no sample has. SourceError if all of them are such."""
    if missing and len(missing) == len(keys):
        rule = f"{path} names no sample of this data: its keys, such as {min(missing)!r}, are those of other data"
        raise SourceError(f"{rule}. Write it again with `tfprep check`")
    return {f"listed in {Path(path).name}, but not in the data": len(missing)} if missing else {}


def _listed(path: str | Path, where: str, *names: str) -> list[tuple[str, ...]]:
    """Return the cells of these columns in each row of a CSV file."""
    try:
        rows = [tuple(cells) for _, cells in rows_of(Path(path), names)]
    except SourceError as error:
        rule = "`tfprep check` writes it. A relative path begins at the current folder"
        raise SourceError(f"{where}: {error}; {rule}") from error
    if empty := next((number for number, row in enumerate(rows, 1) if not all(row)), None):
        raise SourceError(f"{where}: {path}, row {empty}: expected a value for {' and '.join(names)}")
    return rows
