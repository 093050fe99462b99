"""Which variant of a sample an epoch reads.

- "rotate": the variants in turn, every sample beginning with another one: each sample another variant in each epoch,
  and all V over V epochs.
- "random": drawn anew for every epoch.
- "all": every variant of every sample, so that an epoch is V times as long.
- a number: that one.

A group of samples that are read together (a block, a shard) takes one variant together: its bytes then lie in one file.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np

from tfprep.errors import LoaderError
from tfprep.read.permute import Words, below, mix, seed_key, subkey, words

VariantChoice: TypeAlias = Literal["rotate", "random", "all"] | int


@dataclass(frozen=True)
class Variants:
    """`count` is how many variants the split has."""

    choice: VariantChoice
    count: int
    seed: int = 0

    def __post_init__(self) -> None:
        if isinstance(self.choice, bool) or not isinstance(self.choice, int | str):
            raise LoaderError(f"variants is 'rotate', 'random', 'all' or a number, not {self.choice!r}")
        if isinstance(self.choice, str) and self.choice not in ("rotate", "random", "all"):
            raise LoaderError(f"variants is 'rotate', 'random', 'all' or a number, not {self.choice!r}")
        if isinstance(self.choice, int) and not 0 <= self.choice < self.count:
            raise LoaderError(f"the split has variants 0 to {self.count - 1}; there is no variant {self.choice}")

    @property
    def times(self) -> int:
        """How many items of an epoch one sample gives."""
        return self.count if self.choice == "all" else 1

    @property
    def used(self) -> tuple[int, ...]:
        return (self.choice,) if isinstance(self.choice, int) else tuple(range(self.count))

    def of(self, group: Any, visit: Any) -> Words:
        """The variant that each group of samples shows at its `visit`-th epoch; not for "all"."""
        group, visit = np.broadcast_arrays(words(group), words(visit))
        if isinstance(self.choice, int) or self.count == 1:
            return np.full(group.shape, self.choice if isinstance(self.choice, int) else 0, np.uint64)
        count = words(self.count)
        key = seed_key(self.seed, f"variants/{self.choice}")
        if self.choice == "rotate":
            turn: Words = (below(mix(subkey(key, group)), count) + visit) % count
            return turn
        return below(mix(subkey(subkey(key, visit), group)), count)
