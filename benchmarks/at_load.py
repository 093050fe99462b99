"""What flip, crop, MixUp and CutMix cost in the loader: CPU time an image, and images/s against the loader without them.

Run: python benchmarks/at_load.py --data data/photos [--json FILE]

Photos at 224 x 224, batches of 64, uint8, from JPEG (quality 95) and raw, nothing cached, in turns. CPU time counts all
threads; it is what to compare on a machine that does other things as well.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

import tfprep
from tfprep import Recipe, augment, codecs, sources
from tfprep.bench.machine import this_machine
from tfprep.bench.measure import Budget, Candidate, Rounds, compare
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
    parser.add_argument("--data", type=Path, required=True, help="a folder of class folders")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    budget = Budget(options.rounds, options.seconds, warm_up_s=0.3)
    results = {}
    with tempfile.TemporaryDirectory() as folder:
        for name in CODECS:
            built = Path(folder) / name
            tfprep.build.build(recipe(name), built, options.data)
            rounds = compare([Candidate(ops, opened(built, ops)) for ops in OPS], budget)
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


def opened(built: Path, ops: str) -> Any:
    """An opener of the NumPy loader with these ops."""
    return lambda: iter(tfprep.open(built).numpy_loader("train", 64, at_load=OPS[ops], cache=False))


def table(codec: str, rounds: Rounds) -> str:
    """CPU milliseconds an image, more than without, and images/s against the loader without."""
    plain = rounds.cpu_ms("none").median
    lines = [f"| {codec} | CPU ms an image | more than none | images/s, none = 1 |", "|---|---|---|---|"]
    for name in OPS:
        cpu = rounds.cpu_ms(name)
        lines.append(f"| {name} | {cpu} | {cpu.median - plain:+.3f} | {rounds.ratio(name, 'none')} |")
    return "\n".join([*lines, rounds.busy])


if __name__ == "__main__":
    main()
