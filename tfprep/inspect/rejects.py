"""Rejected inputs of a dataset, grouped by reason."""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from tfprep.dataset import Dataset
from tfprep.dataset.names import REJECTS
from tfprep.errors import DatasetError
from tfprep.storage.urls import open_file

_MOST_BYTES = 64 << 20
_MOST_KEYS = 8
_VARYING = re.compile(r"\d+|'[^']*'|b'[^']*'")
"""Parts of a reason that differ from file to file."""


class _Reject(NamedTuple):
    """An input that was left out: its key, the stage and field that failed, the reason, and the file or else the key."""

    key: str
    stage: str
    field: str
    error: str
    file: str


@dataclass(frozen=True)
class RejectGroup:
    """Rejects of one stage, field and reason; numbers and quoted parts of the reason do not count.

    Attributes:
        count: How many.
        stage: The stage that failed, such as "decode".
        field: The field that it failed for; "" if none.
        error: The reason of the first.
        keys: The keys of the first.
        files: Their files, or their keys where a sample has no file.
    """

    count: int
    stage: str
    field: str
    error: str
    keys: tuple[str, ...]
    files: tuple[str, ...]


def reject_groups(data: Dataset) -> list[RejectGroup]:
    """Return the rejects of a dataset by reason, the largest group first; those of the first 64 MiB of `rejects.jsonl`.

    Raises:
        DatasetError: The file cannot be read.
    """
    counts: Counter[tuple[str, str, str]] = Counter()
    first: dict[tuple[str, str, str], list[_Reject]] = defaultdict(list)
    for reject in _rejects(data):
        group = reject.stage, reject.field, _VARYING.sub("…", reject.error)
        counts[group] += 1
        if len(first[group]) < _MOST_KEYS:
            first[group].append(reject)
    return [
        RejectGroup(
            count, group[0], group[1], first[group][0].error,
            keys=tuple(one.key for one in first[group]), files=tuple(one.file for one in first[group]),
        )
        for group, count in counts.most_common()
    ]  # fmt: skip


def _rejects(data: Dataset) -> Iterator[_Reject]:
    if not data.manifest.rejects:
        return
    path = data.path / REJECTS
    try:
        with open_file(path) as file:
            content = file.read(_MOST_BYTES + 1)
        whole = content if len(content) <= _MOST_BYTES else content[: content.rfind(b"\n")]
        for line in whole.splitlines():
            yield _reject(json.loads(line))
    except (ValueError, KeyError, TypeError, AttributeError, OSError) as error:
        raise DatasetError(f"{path} is damaged ({error}); tfprep repair mends it") from error


def _reject(line: Any) -> _Reject:
    """A line of a build; a line of an index, which names a record of a shard, not a sample."""
    if "record" in line:
        place = f"{line['shard']}#{line['record']}"
        return _Reject(place, "read", "", str(line["reason"]), place)
    key, stage, field, error, file = (str(line.get(name, "")) for name in ("key", "stage", "field", "error", "file"))
    return _Reject(key, stage, field, error, file or key)
