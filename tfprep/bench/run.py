"""`tfprep bench` as a call of the library."""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tfprep.bench.loaders import loader_candidate
from tfprep.bench.machine import Machine, cached_share, this_machine
from tfprep.bench.measure import Budget, Rounds, compare
from tfprep.load import open as open_data

LOADER = "tfprep"


@dataclass(frozen=True)
class Bench:
    """What was measured of one split. `cached` is the share of its files that lay in the file cache at the start, None
    where the system does not say."""

    folder: Path
    split: str
    batch_size: int
    budget: Budget
    machine: Machine
    cached: float | None
    rounds: Rounds

    def as_json(self) -> dict[str, Any]:
        return {
            "dataset": str(self.folder),
            "split": self.split,
            "batch_size": self.batch_size,
            "budget": asdict(self.budget),
            "machine": asdict(self.machine),
            "cached_share": self.cached,
            "other_programs": self.rounds.others,
            "loader": self.rounds.as_json()[LOADER],
        }

    def lines(self) -> list[str]:
        """For people."""
        rate, volume = self.rounds.images_per_s(LOADER), self.rounds.bytes_per_s(LOADER)
        first, cpu, cores = (getattr(self.rounds, of)(LOADER) for of in ("first_batch_s", "cpu_ms", "cores"))
        told = [
            f"{self.folder}, {self.split}, batches of {self.batch_size}: median of {self.budget.rounds} rounds of "
            f"{self.budget.seconds:g} s (least to greatest)",
            f"  {rate.median:,.0f} images/s ({rate.least:,.0f} to {rate.greatest:,.0f}), {volume.median / 1e6:,.0f} MB/s",
            f"  first batch after {first.median:.2f} s ({first.least:.2f} to {first.greatest:.2f})",
            f"  {cpu.median:.3g} ms of CPU an image, {cores.median:.1f} of {self.machine.cores} cores at work",
            f"  on {self.machine.processor}, {self.machine.key}; {self._cache()}",
        ]
        return [*told, f"  note: {self.rounds.busy}"] if self.rounds.busy else told

    def _cache(self) -> str:
        return "file cache: not known" if self.cached is None else f"{self.cached:.0%} of the files in the file cache"


def bench(
    folder: str | os.PathLike[str],
    split: str | None = None,
    *,
    batch_size: int = 32,
    rounds: int = 5,
    seconds: float = 2.0,
    **options: Any,
) -> Bench:
    """Measure the loader over the dataset in `folder`; `options` go to the loader. Imports TensorFlow."""
    data = open_data(folder)
    name = split or next(iter(data.splits))
    files = [data.path / file.name for files in data.split(name).files for file in files]
    cached = cached_share(files)
    budget = Budget(rounds, seconds)
    measured = compare([loader_candidate(data, name, batch_size, name=LOADER, **options)], budget)
    return Bench(data.path, name, batch_size, budget, this_machine(data.path), cached, measured)
