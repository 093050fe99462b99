"""Whether what `tfprep bench` and `tfprep advise` predict comes true.

Run: python benchmarks/predictions.py steps DATASET [--json FILE]
     python benchmarks/predictions.py advise RECIPE --data DATA [--samples 100] [--json FILE]

`steps`: for a sweep of step times around the loader's own time for a batch, the share of the time that a step waits, as
predicted from the loader's rate and as measured. The target is a difference of at most 10 percentage points.
`advise`: every strategy built in full and loaded, beside what was predicted from a sample. The target is 20 %.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

from tfprep.bench.advise import advise
from tfprep.bench.loaders import loader_candidate, opened
from tfprep.bench.measure import Budget, compare, measure
from tfprep.bench.step import against_step
from tfprep.bench.strategies import strategies
from tfprep.build import build
from tfprep.cli.quiet import start_tensorflow
from tfprep.recipe_file import load_recipe

FACTORS = (0.25, 0.5, 0.8, 1.0, 1.25, 2.0, 4.0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["steps", "advise"])
    parser.add_argument("path", type=Path)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--samples", type=int, default=100)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    start_tensorflow()
    found = steps(options) if options.what == "steps" else advised(options)
    if options.json:
        options.json.write_text(json.dumps(found, indent=1))


def steps(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Each step time is measured right after the loader's own rate: the machine may change over minutes."""
    data = opened(options.path)
    split = next(iter(data.splits))
    loader = loader_candidate(data, split, options.batch_size, cache=False)
    rows = []
    for factor in FACTORS:
        batch_s = options.batch_size / measure(loader, Budget(1, options.seconds, 1.0)).images_per_s
        found = against_step(loader, factor * batch_s, batch_s, seconds=options.seconds)
        row = {"step_ms": 1000 * found.step_s, "batch_ms": 1000 * batch_s, "predicted": found.predicted}
        rows.append({**row, "measured": found.share, "limit": found.limit})
        print(
            f"step {1000 * found.step_s:7.2f} ms, batch {1000 * batch_s:6.2f} ms: waits {found.predicted:6.1%} predicted, "
            f"{found.share:6.1%} measured, limit: {found.limit}",
            flush=True,
        )
    print(f"largest difference: {max(abs(row['predicted'] - row['measured']) for row in rows):.1%}")
    return rows


def advised(options: argparse.Namespace) -> list[dict[str, Any]]:
    recipe = load_recipe(options.path)
    listing = recipe.source.scan(options.data)
    kinds = {**listing.kinds, **recipe.derived_kinds()}
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder)
        found = advise(recipe, options.data, scratch / "advise", samples=options.samples)
        told = {one.strategy: one for one in found.predictions if not one.estimated}
        real = [strategy for strategy in strategies(recipe, kinds) if strategy.name in told]
        built = {one.name: build(one.recipe, scratch / f"real{n}", options.data) for n, one in enumerate(real)}
        candidates = [
            loader_candidate(
                opened(built[one.name].out), "train", 32, name=one.name, cache=False, geometry=one.load_geometry
            )
            for one in real
        ]
        rounds = compare(candidates, Budget(3, 1.0, 0.5))
        rows = [
            _beside(
                told[one.name], rounds.images_per_s(one.name).median, built[one.name].bytes, built[one.name].seconds
            )
            for one in real
        ]
    if rounds.busy:
        print(f"note: {rounds.busy}")
    return rows


def _beside(told: Any, rate: float, disk: int, seconds: float) -> dict[str, Any]:
    ratios = {
        "images_per_s": told.images_per_s / rate,
        "disk": told.disk_bytes / disk,
        "build": told.build_s / seconds,
    }
    print(f"{told.strategy:40} predicted / real: " + ", ".join(f"{name} {ratio:.2f}" for name, ratio in ratios.items()))
    return {"strategy": told.strategy, "rate": rate, "disk": disk, "build_s": seconds, "predicted_over_real": ratios}


if __name__ == "__main__":
    main()
