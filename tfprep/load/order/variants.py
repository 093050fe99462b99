"""The variant of a sample that an epoch reads.

- "rotate": the variants in turn, from a random one for every sample: each sample shows another variant in each epoch, and
  all V variants in V epochs.
- "random": drawn anew for every epoch.
- "all": every variant of every sample, so that an epoch is V times as long.
- a number: that variant.

Samples that are read together (a block, a shard) form a group and share their variant: their bytes then lie in one file.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np

from tfprep.errors import LoaderError
from tfprep.load.order.permutation import Words, below, mix, seed_key, subkey, words

VariantChoice: TypeAlias = Literal["rotate", "random", "all"] | int


@dataclass(frozen=True)
class Variants:
    choice: VariantChoice
    seed: int = 0

    def __post_init__(self) -> None:
        named = isinstance(self.choice, str) and self.choice in ("rotate", "random", "all")
        if not named and (isinstance(self.choice, bool) or not isinstance(self.choice, int)):
            raise LoaderError(f"variants is 'rotate', 'random', 'all' or a number, not {self.choice!r}")

    def used(self, count: int) -> tuple[int, ...]:
        """The variants out of `count` that are read; LoaderError where the chosen number is not among them."""
        if not isinstance(self.choice, int):
            return tuple(range(count))
        if not 0 <= self.choice < count:
            raise LoaderError(f"the split has variants 0 to {count - 1}; there is no variant {self.choice}")
        return (self.choice,)

    def of(self, group: Any, passes: Any, count: Any) -> Words:
        """The variant that each group, with `count` variants, shows after `passes` earlier ones; not for "all"."""
        group, passes, count = np.broadcast_arrays(words(group), words(passes), words(count))
        if isinstance(self.choice, int):
            return np.full(group.shape, self.choice, np.uint64)
        key = seed_key(self.seed, f"variants/{self.choice}")
        if self.choice == "rotate":
            turn: Words = (below(mix(subkey(key, group)), count) + passes) % count
            return turn
        return below(mix(subkey(subkey(key, passes), group)), count)
