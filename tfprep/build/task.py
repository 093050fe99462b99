"""What a worker is told about one shard."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class ShardTask:
    """One shard. `samples` holds (key, files, values, stat) each; `skip` says why samples are left out, by position."""

    split: str
    shard: int
    shards: int
    fingerprint: str
    signature: str
    samples: Sequence[tuple[str, Sequence[str], Sequence[Any], str]]
    skip: Mapping[str, str] = field(default_factory=dict)
    only: int | None = None
