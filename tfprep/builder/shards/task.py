"""The task that a worker gets for one shard."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal


@dataclass(frozen=True)
class ShardTask:
    """One shard to build, or some of its samples to try.

    Attributes:
      split, shard, shards: Which shard of how many.
      fingerprint: Digest of everything that decides how a sample becomes bytes, except the sample itself.
      signature: Digest of `fingerprint` and of what the listing says about each sample.
      identity: As in `Receipt`.
      samples: (key, files, values, stat, identity) of each sample, in the order of the records.
      skip: By position, why a sample is rejected without a try.
      expected: By field, the form (`tfprep.builder.shards.forms`) that its value must have, where records of the dataset differ.
      purpose: "build" writes the shard. "probe" makes the samples at `positions` and writes nothing, to see whether one of
        them crashes.
      positions: The samples that a probe makes.
    """

    split: str
    shard: int
    shards: int
    fingerprint: str
    signature: str
    identity: str
    samples: Sequence[tuple[str, Sequence[str], Sequence[Any], str, int]]
    skip: Mapping[int, str] = field(default_factory=dict)
    expected: Mapping[str, str] = field(default_factory=dict)
    purpose: Literal["build", "probe"] = "build"
    positions: Sequence[int] = ()
