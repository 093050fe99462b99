"""Random chains of geometry, derived inputs and color: what a build stores equals, bit for bit, what a loader makes at load.

    python benchmarks/fuzz_stages.py [--chains 300] [--seed 0]

Each chain takes some of all ops, policies and derived inputs (tests/load/test_ahead_or_at_load.py tries them one by one). A
loader applies it in training to samples of one size and of different sizes, and a build of the same samples gets the same draws.
Prints the first difference of each chain that fails.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import harness
import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import tfprep
from tests.conftest import write_dataset
from tests.load import test_ahead_or_at_load as both


def main() -> None:
    options = harness.arguments(__doc__ or "", chains=(300, "Random chains"), seed=(0, "Seed of the first chain"))
    failures = []
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        datasets = []
        for name, first in (("one size", 0), ("different sizes", 100)):
            made = write_dataset(
                Path(folder) / name,
                samples={"train": 8},
                fields=tuple(both.KINDS),
                make=lambda rng, number, first=first: both.scene(rng, first + number),
                kinds=both.KINDS,
                codec=both.CODEC,
            )
            made.seal(lambda document: document.update(recipe=both.RULES))
            datasets.append((name, made, tfprep.open(made.path)))
        for number in range(options.seed, options.seed + options.chains):
            chain = both.chain(np.random.default_rng(number))
            for name, made, data in datasets:
                try:
                    both.check_equal(made, data, patch, 4, **chain)
                except Exception as error:
                    failures.append(number)
                    print(f"chain {number}, {name}: {chain}\n{error}"[:2000], flush=True)
    print(f"{len(set(failures))} of {options.chains} chains differ")
    harness.finish(options, {"chains": options.chains, "failed": sorted(set(failures))}, failed=bool(failures))


if __name__ == "__main__":
    main()
