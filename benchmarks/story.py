"""Click maps computed in the input pipeline, compared with a dataset that is built once.

Run: python benchmarks/story.py --data data/camvid [--json FILE]

One pipeline reads CamVid's PNG files, warps them, draws clicks and computes their distance maps in `tf.py_function`, in every
epoch. The others are tfprep's loader over the dataset that the same recipe built, as it says (raw) and with all rasters as
`Zstd`, with the default options and with `cache=False`. All deliver the same fields with the same dtypes and batch size, as
tensors in an eager loop. They take turns; the results are medians of the ratios within a round.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any

import harness

import tfprep
from tfprep.bench.forms import forms_of
from tfprep.bench.machine import this_machine
from tfprep.bench.rounds import Budget, Candidate, Measurement, compare
from tfprep.bench.training import on_the_fly
from tfprep.cli.text import start_tensorflow
from tfprep.recipe.file import load_recipe

RECIPE = Path(__file__).parent.parent / "pipelines" / "camvid_clicks.py"


def main() -> None:
    options = harness.arguments(
        __doc__ or "", data=(Path("data/camvid"), "Folder of CamVid"), batch_size=(16, "Batch size"),
        rounds=(7, "Measured rounds"), seconds=(4.0, "Measured seconds per candidate and round"),
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        built, packed = Path(folder) / "built", Path(folder) / "zstd"
        tfprep.build(RECIPE, built, options.data)
        tfprep.build(as_zstd(RECIPE, options.data), packed, options.data)
        result = measured(options, built, packed)
    harness.finish(options, result)


def as_zstd(path: Path, data: Path) -> tfprep.Recipe:
    """A recipe with all rasters as `Zstd`."""
    recipe = load_recipe(path)
    kinds = {**recipe.source.scan(data).kinds, **recipe.derived_kinds()}
    return next(one.recipe for one in forms_of(recipe, kinds) if one.name == "all as Zstd")


def measured(options: argparse.Namespace, built: Path, packed: Path) -> dict[str, Any]:
    start_tensorflow()
    recipe, batch = load_recipe(RECIPE), options.batch_size
    candidates = [
        Candidate("py_function", lambda: iter(on_the_fly(recipe, options.data, "train", batch))),
        Candidate("tfprep", lambda: iter(loader(built, batch))),
        Candidate("Zstd", lambda: iter(loader(packed, batch))),
        Candidate("raw, no cache", lambda: iter(loader(built, batch, cache=False))),
        Candidate("Zstd, no cache", lambda: iter(loader(packed, batch, cache=False))),
    ]
    budget = Budget(options.rounds, options.seconds)
    rounds = compare(candidates, budget)
    for name, of_one in rounds.measurements.items():
        for measurement in of_one:
            print_measurement(name, measurement)
    ratio = rounds.ratio("tfprep", "py_function")
    of_raw = rounds.ratio("Zstd", "tfprep"), rounds.ratio("Zstd, no cache", "raw, no cache")
    share = stored_bytes(packed) / stored_bytes(built)
    print(f"tfprep / py_function: {ratio}")
    print(f"Zstd / raw: {of_raw[0]}, without a cache {of_raw[1]}, {share:.2f} of the bytes")
    if rounds.busy:
        print(f"note: {rounds.busy}")
    return {
        "story_vs_py_function": ratio.median,
        "spread": vars(ratio),
        "zstd_vs_raw": of_raw[0].median,
        "zstd_vs_raw_no_cache": of_raw[1].median,
        "zstd_bytes_vs_raw": share,
        "batch_size": batch,
        "candidates": rounds.as_json(),
        "others": rounds.others,
        "machine": vars(this_machine(built)),
    }


def loader(built: Path, batch_size: int, **options: Any) -> Any:
    return tfprep.open(built).loader("train", batch_size=batch_size, seed=0, **options).repeat()


def stored_bytes(built: Path) -> int:
    return sum(info.bytes for info in tfprep.open(built).splits.values())


def print_measurement(name: str, measurement: Measurement) -> None:
    print(
        f"{name:15} {measurement.images_per_s:9.1f} images/s {measurement.bytes_per_s / 1e6:8.0f} MB/s "
        f"{measurement.cpu_ms:7.2f} ms CPU per image, first batch {measurement.first_batch_s:.2f} s",
        flush=True,
    )


if __name__ == "__main__":
    main()
