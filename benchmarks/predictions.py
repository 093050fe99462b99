"""Comparison of the predictions of `tfprep bench` and `tfprep advise` with measurements.

Run: python benchmarks/predictions.py steps DATASET [--json FILE]
     python benchmarks/predictions.py advise RECIPE --data DATA [--samples 100] [--strategy NAME ...] [--json FILE]

`steps` compares the predicted with the measured share of the time that a step waits, for step times around the loader's time per
batch. The target is a difference of at most 10 percentage points.
`advise` builds every strategy (or those with a given name) in full, loads it, and compares it with the prediction from a sample.
The target is 20 %. The speed of the machine may change between the two; therefore the sample is loaded again, in turns with the
full dataset, and that ratio is shown as `same minute`.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

from tfprep.bench.advise.advise import Prediction, advise
from tfprep.bench.advise.strategies import strategies
from tfprep.bench.measure.loaders import loader_candidate, opened
from tfprep.bench.measure.measure import Budget, Rounds, compare, measure
from tfprep.bench.measure.step import compare_with_step
from tfprep.builder import BuildSummary, build
from tfprep.cli.quiet import start_tensorflow
from tfprep.recipe.file import load_recipe

FACTORS = (0.25, 0.5, 0.8, 1.0, 1.25, 2.0, 4.0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["steps", "advise"], help="Predictions to check")
    parser.add_argument("path", type=Path, help="Dataset (steps) or recipe file (advise)")
    parser.add_argument("--data", type=Path, help="Folder of the recipe's raw data (advise)")
    parser.add_argument("--batch-size", type=int, default=64, help="Batch size (steps)")
    parser.add_argument("--seconds", type=float, default=3.0, help="Measured seconds per step time (steps)")
    parser.add_argument("--samples", type=int, default=100, help="Samples from which to predict (advise)")
    parser.add_argument("--strategy", nargs="+", default=(), help="Names of the strategies to check (advise)")
    parser.add_argument("--json", type=Path, help="File for the results")
    options = parser.parse_args()
    start_tensorflow()
    rows = compare_steps(options) if options.what == "steps" else compare_strategies(options)
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1))


def compare_steps(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Measures each step time directly after the loader's rate, since the speed of the machine may change over minutes."""
    data = opened(options.path)
    split = next(iter(data.splits))
    loader = loader_candidate(data, split, options.batch_size, cache=False)
    rows = []
    for factor in FACTORS:
        batch_s = options.batch_size / measure(loader, Budget(1, options.seconds, 1.0)).images_per_s
        step = compare_with_step(loader, factor * batch_s, batch_s, seconds=options.seconds)
        row = {"step_ms": 1000 * step.step_s, "batch_ms": 1000 * batch_s, "predicted": step.predicted}
        rows.append({**row, "measured": step.share, "limit": step.limit})
        print(
            f"step {1000 * step.step_s:7.2f} ms, batch {1000 * batch_s:6.2f} ms: waits {step.predicted:6.1%} predicted, "
            f"{step.share:6.1%} measured, limit: {step.limit}",
            flush=True,
        )
    print(f"largest difference: {max(abs(row['predicted'] - row['measured']) for row in rows):.1%}")
    return rows


def compare_strategies(options: argparse.Namespace) -> list[dict[str, Any]]:
    recipe = load_recipe(options.path)
    listing = recipe.source.scan(options.data)
    all_strategies = strategies(recipe, {**listing.kinds, **recipe.derived_kinds()})
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder)
        advice = advise(recipe, options.data, scratch / "advise", samples=options.samples, only=options.strategy)
        predictions = {one.strategy: one for one in advice.predictions if not one.estimated}
        chosen = [one for one in all_strategies if not options.strategy or one.name in options.strategy]
        real = {number: one for number, one in enumerate(chosen) if one.name in predictions}
        built = {n: build(one.recipe, scratch / f"real{n}", options.data) for n, one in real.items()}
        candidates = [
            loader_candidate(
                opened(path), "train", 32, name=f"{what} {n}", cache=False, tuning=False, geometry=one.load_geometry
            )
            for n, one in real.items()
            for what, path in (("real", built[n].out), ("sample", scratch / "advise" / f"strategy{n}"))
        ]
        rounds = compare(candidates, Budget(3, 1.0, 0.5))
    for note in {rounds.busy, advice.busy} - {""}:
        print(f"note: {note}")
    return [_compared(predictions[one.name], built[n], rounds, n) for n, one in real.items()]


def _compared(predicted: Prediction, built: BuildSummary, rounds: Rounds, number: int) -> dict[str, Any]:
    rate = rounds.images_per_s(f"real {number}").median
    ratios = {
        "images_per_s": predicted.images_per_s / rate,
        "same minute": rounds.ratio(f"sample {number}", f"real {number}").median,
        "disk": predicted.disk_bytes / built.bytes,
        "build": predicted.build_s / built.seconds,
    }
    print(
        f"{predicted.strategy:20} {rate:8,.0f} images/s, {built.bytes / 1e6:7.1f} MB, {built.seconds:5.1f} s; predicted / real: "
        + ", ".join(f"{name} {ratio:.2f}" for name, ratio in ratios.items()),
        flush=True,
    )
    real = {"images_per_s": rate, "disk": built.bytes, "build_s": built.seconds}
    return {"strategy": predicted.strategy, **real, "predicted_over_real": ratios}


if __name__ == "__main__":
    main()
