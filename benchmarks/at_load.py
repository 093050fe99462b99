"""The cost of flip, crop, MixUp and CutMix in the loader: CPU time per image, and the rate as a share of the rate without ops.

Run: python benchmarks/at_load.py --data data/photos [--workers processes] [--json FILE]

The images are photos at 224 x 224 as uint8, in batches of 64, stored as JPEG (quality 95) and raw. Nothing is cached. The
candidates take turns. CPU time counts all threads; it is the figure to compare on a machine that runs other programs.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

import tfprep
from tfprep import Recipe, augment, codecs, sources
from tfprep.bench.measure.machine import this_machine
from tfprep.bench.measure.measure import Budget, Candidate, Rounds, compare
from tfprep.load import CutMix, MixUp, RandomCrop, RandomFlip

OPS: dict[str, list[Any]] = {
    "none": [],
    "flip": [RandomFlip()],
    "crop": [RandomCrop(200, 200)],
    "flip, crop": [RandomFlip(), RandomCrop(200, 200)],
    "MixUp": [MixUp(0.2)],
    "CutMix": [CutMix()],
}
CODECS: dict[str, codecs.Codec] = {"jpeg": codecs.Jpeg(95), "raw": codecs.Raw()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="Folder of class folders")
    parser.add_argument("--rounds", type=int, default=7, help="Measured rounds")
    parser.add_argument("--seconds", type=float, default=1.0, help="Measured seconds per candidate and round")
    parser.add_argument("--workers", choices=["auto", "threads", "processes"], default="auto", help="Who fills batches")
    parser.add_argument("--json", type=Path, help="File for the results")
    options = parser.parse_args()
    budget = Budget(options.rounds, options.seconds, warm_up_s=0.3)
    results = {}
    with tempfile.TemporaryDirectory() as folder:
        for name in CODECS:
            built = Path(folder) / name
            tfprep.build(recipe(name), built, options.data)
            rounds = compare([Candidate(ops, loader_with(built, ops, options.workers)) for ops in OPS], budget)
            print(table(name, rounds), flush=True)
            results[name] = {"candidates": rounds.as_json(), "others": rounds.others}
        results["machine"] = vars(this_machine(Path(folder)))
    if options.json:
        options.json.write_text(json.dumps(results, indent=1))


def recipe(codec: str) -> Recipe:
    return Recipe(
        name="photos",
        source=sources.Folder(),
        geometry=[augment.RandomResizedCrop(224, 224)],
        store={"image": CODECS[codec], "label": codecs.Scalar()},
    )


def loader_with(built: Path, ops: str, workers: str) -> Any:
    """Returns a function that starts the NumPy loader with these ops."""
    options = {"at_load": OPS[ops], "workers": workers, "cache": False}
    return lambda: iter(tfprep.open(built).numpy_loader("train", 64, **options).repeat())


def table(codec: str, rounds: Rounds) -> str:
    """A Markdown table: CPU milliseconds per image, the difference to no ops, and the rate as a multiple of that without ops."""
    plain = rounds.cpu_ms("none").median
    lines = [f"| {codec} | CPU ms per image | additional | images/s, none = 1 |", "|---|---|---|---|"]
    for name in OPS:
        cpu = rounds.cpu_ms(name)
        lines.append(f"| {name} | {cpu} | {cpu.median - plain:+.3f} | {rounds.ratio(name, 'none')} |")
    return "\n".join([*lines, rounds.busy])


if __name__ == "__main__":
    main()
