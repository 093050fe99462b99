"""Samples that seem to belong together and are in several splits: a suspicion.

Samples are grouped by the folder of their key, and by the prefix of their file name before its last number (frames of one video).
A split's own folder does not count, and neither does a folder or prefix that is a class.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Literal

from tfprep.dataset import Dataset
from tfprep.inspect.fingerprints import Fingerprints

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
