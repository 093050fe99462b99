"""What a worker is told about one shard."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal


@dataclass(frozen=True)
class ShardTask:
    """One shard. `samples` holds (key, files, values, stat) each.

    - `skip`: why samples are left out without a try, by position.
    - `expected`: the form (`tfprep.build.forms`) that a field must have, where records of the dataset differ in it.
    - `purpose`: "build"; "probe" makes the samples at `positions` and writes nothing, to see whether one of them crashes;
      "measure" does the same to see how many bytes they become.
    """

    split: str
    shard: int
    shards: int
    fingerprint: str
    signature: str
    samples: Sequence[tuple[str, Sequence[str], Sequence[Any], str]]
    skip: Mapping[str, str] = field(default_factory=dict)
    expected: Mapping[str, str] = field(default_factory=dict)
    purpose: Literal["build", "probe", "measure"] = "build"
    positions: Sequence[int] = ()
