"""Click maps computed in the input pipeline, compared with a dataset that is built once.

Run: python benchmarks/story.py --data data/camvid [--json FILE]

One pipeline reads CamVid's PNG files, warps them, draws clicks and computes their distance maps in `tf.py_function`, in every
epoch. The other is tfprep's loader over the dataset that the same recipe built. Both deliver the same fields with the same dtypes
and batch size, as tensors in an eager loop. They take turns; the result is the median of the ratio within a round.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

import tfprep
from tfprep.bench.machine import this_machine
from tfprep.bench.rounds import Budget, Candidate, Measurement, compare
from tfprep.bench.trial import on_the_fly
from tfprep.cli.quiet import start_tensorflow
from tfprep.recipe.file import load_recipe

RECIPE = Path(__file__).parent.parent / "pipelines" / "camvid_clicks.py"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="Folder of CamVid")
    parser.add_argument("--recipe", type=Path, default=RECIPE, help="Recipe file")
    parser.add_argument("--built", type=Path, help="Dataset that the recipe has built; it is built if this is missing")
    parser.add_argument("--batch-size", type=int, default=16, help="Batch size")
    parser.add_argument("--rounds", type=int, default=7, help="Measured rounds")
    parser.add_argument("--seconds", type=float, default=4.0, help="Measured seconds per candidate and round")
    parser.add_argument("--json", type=Path, help="File for the results")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        built = options.built or tfprep.build(options.recipe, Path(folder) / "built", options.data).out
        result = measured(options, built)
    if options.json:
        options.json.write_text(json.dumps(result, indent=1))


def measured(options: argparse.Namespace, built: Path) -> dict[str, Any]:
    start_tensorflow()
    recipe, batch = load_recipe(options.recipe), options.batch_size
    candidates = [
        Candidate("py_function", lambda: iter(on_the_fly(recipe, options.data, "train", batch))),
        Candidate("tfprep", lambda: iter(loader(built, batch))),
    ]
    budget = Budget(options.rounds, options.seconds)
    rounds = compare(candidates, budget, on_measurement=print_measurement)
    ratio = rounds.ratio("tfprep", "py_function")
    print(f"tfprep / py_function: {ratio}")
    if rounds.busy:
        print(f"note: {rounds.busy}")
    return {
        "story_vs_py_function": ratio.median,
        "spread": vars(ratio),
        "batch_size": batch,
        "candidates": rounds.as_json(),
        "others": rounds.others,
        "machine": vars(this_machine(built)),
    }


def loader(built: Path, batch_size: int) -> Any:
    return tfprep.open(built).loader("train", batch_size=batch_size, seed=0).repeat()


def print_measurement(name: str, measurement: Measurement) -> None:
    print(
        f"{name:12} {measurement.images_per_s:9.1f} images/s {measurement.bytes_per_s / 1e6:8.0f} MB/s "
        f"{measurement.cpu_ms:7.2f} ms CPU per image, first batch {measurement.first_batch_s:.2f} s",
        flush=True,
    )


if __name__ == "__main__":
    main()
