"""RGB and two click maps as one array [B, 360, 480, 5], stored as one or stacked at load, against the same fields one by one.

Run: python benchmarks/stacked.py [--samples 256] [--rounds 7] [--seconds 1.5] [--json FILE]

The loaders read the same pixels without a cache, in turns. `stacked_vs_plain` (stored as one array, `Recipe(stack=...)`) and
`load_stacked_vs_plain` (stacked while loading) are medians over the rounds of ratios of rates; `images_per_s` and `cpu_ms` (per
image) are medians.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import cv2
import numpy as np

import tfprep
from tfprep import Recipe, codecs, derive, sources
from tfprep.bench.measure.loaders import loader_candidate
from tfprep.bench.measure.measure import Budget, compare
from tfprep.builder import BuildOptions
from tfprep.cli.quiet import start_tensorflow

HEIGHT, WIDTH, BATCH = 360, 480, 32
PLAIN = Recipe(
    name="plain",
    source=sources.Paired(image="image/*.png", mask="mask/*.png"),
    derive={"clicks": derive.Clicks(mask="mask", target=1)},
    store={"image": codecs.Raw(), "clicks": codecs.Raw()},
)
STACKED = replace(PLAIN, name="stacked", stack={"x": ("image", "clicks")}, store={"x": codecs.Raw()})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", type=int, default=256, help="number of records")
    parser.add_argument("--rounds", type=int, default=7, help="number of rounds")
    parser.add_argument("--seconds", type=float, default=1.5, help="measured seconds per loader and round")
    parser.add_argument("--json", type=Path, help="file for the results")
    options = parser.parse_args()
    start_tensorflow()
    with tempfile.TemporaryDirectory() as folder:
        plain, stacked = build(Path(folder), options.samples)
        result = measured(plain, stacked, options)
    print(json.dumps(result, indent=1))
    if options.json:
        options.json.write_text(json.dumps(result, indent=1))


def build(folder: Path, samples: int) -> tuple[Path, Path]:
    """Two datasets of the same smooth images with one square object each: field by field, and stacked."""
    rng = np.random.default_rng(0)
    for name in ("image", "mask"):
        (folder / "raw" / name).mkdir(parents=True)
    for number in range(samples):
        coarse = rng.integers(0, 256, (9, 12, 3), np.uint8)
        mask = np.zeros((HEIGHT, WIDTH), np.uint8)
        top, left = rng.integers(20, 200, 2)
        mask[top : top + 100, left : left + 100] = 1
        cv2.imwrite(str(folder / "raw" / "image" / f"{number:04d}.png"), cv2.resize(coarse, (WIDTH, HEIGHT)))
        cv2.imwrite(str(folder / "raw" / "mask" / f"{number:04d}.png"), mask)
    plain, stacked = (
        tfprep.build(recipe, folder / recipe.name, folder / "raw", options=BuildOptions(workers=0)).out
        for recipe in (PLAIN, STACKED)
    )
    return plain, stacked


def measured(plain: Path, stacked: Path, options: argparse.Namespace) -> dict[str, Any]:
    fields, one = tfprep.open(plain), tfprep.open(stacked)
    split = next(iter(fields.splits))
    shared: dict[str, Any] = {"cache": False, "tuning": False}
    candidates = [
        loader_candidate(one, split, BATCH, name="stacked", inputs="x", **shared),
        loader_candidate(fields, split, BATCH, name="load_stacked", inputs=["image", "clicks"], **shared),
        loader_candidate(fields, split, BATCH, name="plain", fields=["image", "clicks"], **shared),
    ]
    rounds = compare(candidates, Budget(options.rounds, options.seconds, 0.5))
    return {
        "stacked_vs_plain": rounds.ratio("stacked", "plain").median,
        "load_stacked_vs_plain": rounds.ratio("load_stacked", "plain").median,
        "images_per_s": {name: rounds.images_per_s(name).median for name in rounds.measurements},
        "cpu_ms": {name: rounds.cpu_ms(name).median for name in rounds.measurements},
    }


if __name__ == "__main__":
    main()
