"""How much memory a loader may use, and what for."""

from __future__ import annotations

import re
from dataclasses import dataclass

from tfprep.errors import LoaderError
from tfprep.memory import available_memory

DEFAULT_SHARE = 0.25
"""Of the memory that is free when the loader is made."""
AHEAD = 8
"""Batches ahead of the consumer where the budget allows: more hides no longer delays than the disk's, and costs cache lines."""
HELD_ELSEWHERE = 4
"""Batches that TensorFlow prefetches and the consumer works on."""

_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}


@dataclass(frozen=True)
class MemoryPlan:
    """In bytes: the `budget`, what one batch takes, and what is left for a cache when `ahead` batches are kept ready."""

    budget: int
    batch_bytes: int
    ahead: int

    @property
    def batches_bytes(self) -> int:
        return self.batch_bytes * (self.ahead + HELD_ELSEWHERE)

    @property
    def cache_bytes(self) -> int:
        return max(0, self.budget - self.batches_bytes)


def plan_memory(budget: int | str | None, batch_bytes: int, ahead: int | None, most: int | None = None) -> MemoryPlan:
    """How far ahead to work: as far as asked, else `most` (`AHEAD`) batches, but within half the budget.

    LoaderError where that, or not even one batch ahead, fits.
    """
    total = parse_bytes(budget) if budget is not None else int(available_memory() * DEFAULT_SHARE)
    least = batch_bytes * (1 + HELD_ELSEWHERE)
    if least > total:
        raise LoaderError(
            f"memory_budget={total:,} bytes cannot hold {1 + HELD_ELSEWHERE} batches of {batch_bytes:,}; a batch is made, one "
            "waits, and TensorFlow and the trainer hold the others. Allow more, or make batch_size smaller"
        )
    fits = max(1, total // 2 // max(batch_bytes, 1) - HELD_ELSEWHERE)
    plan = MemoryPlan(total, batch_bytes, ahead or min(most or AHEAD, fits))
    if plan.batches_bytes > total:
        raise LoaderError(
            f"ahead={ahead} takes {plan.batches_bytes:,} bytes with the {HELD_ELSEWHERE} batches that TensorFlow and the trainer "
            f"hold, memory_budget is {total:,}; ahead={total // batch_bytes - HELD_ELSEWHERE} fits, or allow more"
        )
    return plan


def parse_bytes(value: int | str) -> int:
    """A number of bytes, or text such as "800M", "2GB" or "1.5 GiB" (units of 1,024)."""
    if isinstance(value, int) and not isinstance(value, bool) and value > 0:
        return value
    match = re.fullmatch(r"\s*([0-9.]+)\s*([kmgt]?)i?b?\s*", str(value).lower())
    try:
        amount = float(match[1]) * _UNITS[match[2]] if match else 0
    except ValueError:
        amount = 0
    if amount < 1:
        raise LoaderError(f"memory_budget is a number of bytes or text such as '2GB', not {value!r}")
    return int(amount)
