"""The story tfprep comes from: click maps computed in the input pipeline, against a dataset built once.

Run: python benchmarks/story.py --data data/camvid [--json FILE]

One pipeline reads CamVid's PNG files, warps them, draws clicks and computes their distance maps in `tf.py_function`, in
every epoch. The other is tfprep's loader over the dataset that the same recipe built. Same fields, same dtypes, same batch;
both as tensors in an eager loop; interleaved, medians of the ratio inside a round.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

import tfprep
from tfprep.bench.machine import this_machine
from tfprep.bench.measure import Budget, Candidate, Stretch, compare
from tfprep.bench.on_the_fly import on_the_fly
from tfprep.cli.quiet import start_tensorflow
from tfprep.recipe_file import load_recipe

RECIPE = Path(__file__).parent.parent / "pipelines" / "camvid_clicks.py"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="CamVid's folder")
    parser.add_argument("--recipe", type=Path, default=RECIPE)
    parser.add_argument("--built", type=Path, help="the dataset, where it is built already")
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        built = options.built or tfprep.build.build(options.recipe, Path(folder) / "built", options.data).out
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
    rounds = compare(candidates, budget, on_stretch=told)
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
    return tfprep.open(built).loader("train", batch_size=batch_size, seed=0)


def told(name: str, stretch: Stretch) -> None:
    print(
        f"{name:12} {stretch.images_per_s:9.1f} images/s {stretch.bytes_per_s / 1e6:8.0f} MB/s "
        f"{stretch.cpu_ms:7.2f} ms CPU an image, first batch {stretch.first_batch_s:.2f} s",
        flush=True,
    )


if __name__ == "__main__":
    main()
