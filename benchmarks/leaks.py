"""Leaks that `tfprep check` finds of those that are planted, the speed of its comparison, and the cost of the hashes.

    python benchmarks/leaks.py recall --data FOLDER [--json FILE]
    python benchmarks/leaks.py speed [--count 1000000] [--json FILE]
    python benchmarks/leaks.py cost --data FOLDER [--rounds 7] [--json FILE]

`recall` changes every picture of a folder in five ways, and compares its hash with those of all other pictures: the share of the
changed pictures that are found, by distance, and the number of pairs of different pictures that are mistaken for duplicates.
Pictures whose names are equal before the last number are frames of one video. Their pairs are counted apart: they are alike.
`cost` builds the folder with and without hashes in turn, in this process, and gives the ratio of the medians of processor time.
"""

from __future__ import annotations

import argparse
import json
import re
import resource
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from PIL import Image

from tfprep import Recipe, augment, codecs, sources
from tfprep.builder import BuildOptions, build
from tfprep.images import decode_image, perceptual_hash
from tfprep.inspect.fingerprints import near_pairs

DISTANCES = (0, 2, 4, 6, 8, 10, 12)
SIZE = 224


def jpeg(pixels: np.ndarray, quality: int) -> np.ndarray:
    _, data = cv2.imencode(".jpg", pixels[:, :, ::-1], [cv2.IMWRITE_JPEG_QUALITY, quality])
    return decode_image(data.tobytes())


def crop(pixels: np.ndarray, share: float) -> np.ndarray:
    """Cut `share` off in all: half of it from each of two sides, in both directions."""
    y, x = (round(side * share / 2) for side in pixels.shape[:2])
    return pixels[y : pixels.shape[0] - y, x : pixels.shape[1] - x]


CHANGES: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "copy": lambda pixels: pixels,
    "resized to 50 %": lambda pixels: np.asarray(
        Image.fromarray(pixels).resize((pixels.shape[1] // 2, pixels.shape[0] // 2))
    ),
    "JPEG of quality 50": lambda pixels: jpeg(pixels, 50),
    "cropped by 5 %": lambda pixels: crop(pixels, 0.05),
    "brightened by 20 %": lambda pixels: cv2.convertScaleAbs(pixels, alpha=1.2),
}


def pictures(folder: Path) -> Iterator[tuple[str, np.ndarray]]:
    for path in sorted(folder.rglob("*")):
        if path.suffix.lower() in (".png", ".jpg", ".jpeg") and "annot" not in path.parent.name:
            yield path.name, decode_image(path.read_bytes())


def recall(arguments: argparse.Namespace) -> dict[str, Any]:
    names, hashes, changed = [], [], {name: [] for name in CHANGES}
    for name, pixels in pictures(arguments.data):
        names.append(re.match(r"(.*?)[_. -]*\d*\.\w+$", name)[1])
        hashes.append(perceptual_hash(pixels))
        for change, function in CHANGES.items():
            changed[change].append(perceptual_hash(np.ascontiguousarray(function(pixels))))
    own = np.array(hashes, np.uint64)
    bits = {change: np.bitwise_count(own ^ np.array(others, np.uint64)) for change, others in changed.items()}
    apart = np.bitwise_count(own[:, None] ^ own[None])
    same = np.array(names)[:, None] == np.array(names)[None]
    upper = np.triu(np.ones_like(same), 1)
    print(f"{len(own)} pictures of {arguments.data}")
    print(f"{'share found, by distance':30}", *(f"{d:>7}" for d in DISTANCES))
    for change, of_change in bits.items():
        print(f"{change:30}", *(f"{np.mean(of_change <= d):7.1%}" for d in DISTANCES))
    rows = {"pairs of other pictures": apart[upper & ~same], "pairs of one video": apart[upper & same]}
    for what, of_pairs in rows.items():
        print(f"{what + f' ({len(of_pairs):,})':30}", *(f"{int((of_pairs <= d).sum()):7}" for d in DISTANCES))
    return {
        "pictures": len(own),
        "recall": {change: {d: float(np.mean(of <= d)) for d in DISTANCES} for change, of in bits.items()},
        "pairs": {what: {"of": len(of), **{d: int((of <= d).sum()) for d in DISTANCES}} for what, of in rows.items()},
    }


def speed(arguments: argparse.Namespace) -> dict[str, Any]:
    rng, results = np.random.default_rng(0), {}
    for kind in ("random", "skewed"):
        shares = np.full(64, 0.5) if kind == "random" else np.linspace(0.95, 0.05, 64)
        hashes = np.zeros(arguments.count, np.uint64)
        for bit, share in enumerate(shares):
            hashes |= (rng.random(arguments.count) < share).astype(np.uint64) << np.uint64(bit)
        half = arguments.count // 1000
        for n in range(half):  # the first thousandth differs from the second in four bits
            flips = np.bitwise_xor.reduce(np.uint64(1) << rng.choice(64, 4, replace=False).astype(np.uint64))
            hashes[n] = hashes[n + half] ^ flips
        started, found, pairs = time.perf_counter(), 0, 0
        for first, second, _ in near_pairs(hashes, 4):
            low, high = np.minimum(first, second), np.maximum(first, second)
            found += int(((low < half) & (high == low + half)).sum())
            pairs += len(first)
        seconds = time.perf_counter() - started
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        print(f"{kind}: {arguments.count:,} hashes in {seconds:.1f} s, {pairs:,} pairs, peak {peak:,} bytes")
        print(f"  {found} of {half} planted pairs found")
        results[kind] = {"seconds": seconds, "pairs": pairs, "planted": half, "found": found, "peak_bytes": peak}
    return results


def cost(arguments: argparse.Namespace) -> dict[str, Any]:
    recipes = {
        "resized": {"store": {"image": codecs.Jpeg(95)}, "geometry": [augment.Resize(SIZE, SIZE)]},
        "own bytes": {"store": {"image": codecs.Original()}},
    }
    results = {}
    for name, options in recipes.items():
        recipe = Recipe(name="cost", source=sources.Folder("**"), **options)
        seconds: dict[bool, list[float]] = {True: [], False: []}
        for number in range(2 * arguments.rounds + 2):
            with_hash = bool(number % 2)
            out = Path(tempfile.mkdtemp())
            started = time.process_time()
            summary = build(recipe, out / "built", arguments.data, options=BuildOptions(workers=0, hash=with_hash))
            if number >= 2:  # the first of each warms the cache
                seconds[with_hash].append(time.process_time() - started)
            shutil.rmtree(out)
        plain, hashed = (statistics.median(seconds[key]) for key in (False, True))
        each_us = (hashed - plain) / summary.samples * 1e6
        print(
            f"{name}: {hashed / plain:.3f} times the processor time of a build without hashes, {each_us:.0f} us an image"
        )
        results[name] = {"ratio": hashed / plain, "us_an_image": each_us, "samples": summary.samples}
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("recall", "speed", "cost"))
    parser.add_argument("--data", type=Path, help="folder of images")
    parser.add_argument("--count", type=int, default=10**6)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    if arguments.what != "speed" and arguments.data is None:
        parser.error("--data is needed")
    result = {"recall": recall, "speed": speed, "cost": cost}[arguments.what](arguments)
    if arguments.json:
        arguments.json.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
