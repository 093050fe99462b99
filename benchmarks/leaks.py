"""Leaks that `tfprep check` finds of those that are planted, the speed of its comparison, and the cost of the hashes.

    python benchmarks/leaks.py recall --data FOLDER [--json FILE]
    python benchmarks/leaks.py speed [--count 1000000] [--json FILE]
    python benchmarks/leaks.py cost --data FOLDER [--rounds 7] [--json FILE]

`recall` plants a copy of every picture of a folder, changed by Pillow in one of several ways, in a second split, and builds a
dataset of both: the share of the copies that `find_leaks` finds, and the pairs of other pictures that it takes for copies. Ten
pictures are planted under two labels as well. Pictures whose names are equal before the last number are frames of one video, and
their pairs do not count. `false` cuts pictures into pieces, and counts the pairs of pieces of different pictures that are called
alike. `cost` builds the folder with and without hashes in turn, in this process, and gives the ratio of the medians of processor
time.
"""

from __future__ import annotations

import argparse
import re
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import harness
import numpy as np
from PIL import Image, ImageDraw, ImageFont, ImageOps

from tfprep import Recipe, augment, codecs, sources
from tfprep.builder import BuildOptions, build
from tfprep.dataset import open_dataset
from tfprep.inspect import find_leaks
from tfprep.inspect.fingerprints import near_pairs

SIZE = 224
TWO_LABELS = 10
Picture = Image.Image


def cropped(picture: Picture, share: float) -> Picture:
    """Cut `share` of each side off, half of it at either end."""
    x, y = (round(side * share / 2) for side in picture.size)
    return picture.crop((x, y, picture.width - x, picture.height - y))


def marked(picture: Picture) -> Picture:
    copy = picture.copy()
    font = ImageFont.load_default(size=max(8, picture.height // 10))
    place = (picture.width * 0.08, picture.height * 0.45)
    ImageDraw.Draw(copy, "RGBA").text(place, "(c) SAMPLE PHOTO", fill=(255, 255, 255, 150), font=font)
    return copy


def framed(picture: Picture) -> Picture:
    return ImageOps.expand(picture, border=picture.width // 20, fill=(0, 0, 0))


CHANGES: dict[str, Callable[[Picture], Picture]] = {
    "equal pixels": lambda picture: picture,
    "JPEG of quality 50": lambda picture: picture,
    "resized to 50 %": lambda picture: picture.resize((picture.width // 2, picture.height // 2)),
    "gray": lambda picture: picture.convert("L").convert("RGB"),
    "brighter by 20 %": lambda picture: picture.point(lambda value: min(255, round(value * 1.2))),
    "mirrored": ImageOps.mirror,
    "rotated by 90°": lambda picture: picture.transpose(Image.Transpose.ROTATE_90),
    "rotated by 180°": lambda picture: picture.transpose(Image.Transpose.ROTATE_180),
    "cropped by 5 %": lambda picture: cropped(picture, 0.05),
    "watermark": marked,
    "border of 5 %": framed,
}


def pictures(folder: Path) -> list[Path]:
    found = (path for path in sorted(folder.rglob("*")) if path.suffix.lower() in (".png", ".jpg", ".jpeg"))
    return [path for path in found if "annot" not in path.parent.name]


def video(name: str) -> str:
    return re.match(r"(.*?)[_. -]*\d*\.\w+$", Path(name).name)[1]


def found_in(raw: Path, out: Path) -> tuple[Any, set[tuple[str, str]]]:
    """Build `raw/{split}/{label}/` and return the leaks with the pairs of names across splits."""
    recipe = Recipe(
        name="leaks",
        source=sources.Folder("{split}/{label}/**"),
        geometry=[augment.Resize(SIZE, SIZE)],
        store={"image": codecs.Jpeg(90), "label": codecs.Scalar()},
    )
    build(recipe, out, raw, options=BuildOptions(workers=0))
    leaks = find_leaks(open_dataset(str(out)), most_pairs=10**6)
    return leaks, {tuple(sorted((Path(pair.first).stem, Path(pair.second).stem))) for pair in leaks.pairs}


def recall(arguments: argparse.Namespace) -> dict[str, Any]:
    paths = pictures(arguments.data)
    results: dict[str, Any] = {"pictures": len(paths), "found": {}, "others": {}, "seconds": {}}
    for change, function in CHANGES.items():
        with tempfile.TemporaryDirectory() as folder:
            raw = Path(folder, "raw")
            for label in ("train/a", "val/a", "val/b"):
                (raw / label).mkdir(parents=True)
            for number, path in enumerate(paths):
                picture = Image.open(path).convert("RGB")
                picture.save(raw / "train" / "a" / f"{number}.png", compress_level=1)
                name, quality = ("jpg", 50) if "quality" in change else ("png", 0)
                label = "b" if number < TWO_LABELS else "a"
                function(picture).save(raw / "val" / label / f"{number}c.{name}", compress_level=1, quality=quality)
            leaks, pairs = found_in(raw, Path(folder, "out"))
        planted = {tuple(sorted((str(number), f"{number}c"))) for number in range(len(paths))}
        videos = [video(path.name) for path in paths]
        others = [pair for pair in pairs - planted if not same_video(pair, videos)]
        results["found"][change] = len(pairs & planted) / len(paths)
        results["others"][change] = len(others)
        found = len(pairs & planted)
        print(
            f"{change:22} {found:5} of {len(paths)} found ({found / len(paths):6.1%}), {len(others)} pairs of other "
            f"pictures, {leaks.two_labels_count} samples under two labels of {2 * TWO_LABELS}, "
            f"{leaks.search.candidates} candidates",
            flush=True,
        )
    return results


def same_video(pair: tuple[str, str], videos: list[str]) -> bool:
    one, other = (videos[int(name.rstrip("c"))] for name in pair)
    return bool(one) and one == other


def false(arguments: argparse.Namespace) -> dict[str, Any]:
    """Pieces of pictures in grids of 1 to 4 a side: pieces of one picture do not count, since those of two grids overlap."""
    with tempfile.TemporaryDirectory() as folder:
        raw, count = Path(folder, "raw"), 0
        for split in ("train", "val"):
            (raw / split / "a").mkdir(parents=True)
        for number, path in enumerate(pictures(arguments.data)):
            picture = Image.open(path).convert("RGB")
            for side in (1, 2, 3, 4):
                width, height = picture.width // side, picture.height // side
                for x in range(0, width * side, width):
                    for y in range(0, height * side, height):
                        piece = picture.crop((x, y, x + width, y + height)).resize((96, 96))
                        piece.save(raw / ("train", "val")[count % 2] / "a" / f"{number}-{count}.png", compress_level=1)
                        count += 1
        started = time.perf_counter()
        leaks, _ = found_in(raw, Path(folder, "out"))
        seconds = time.perf_counter() - started
    wrong = [
        pair for pair in leaks.pairs if Path(pair.first).stem.split("-")[0] != Path(pair.second).stem.split("-")[0]
    ]
    plain = sum(not pair.distance for pair in wrong)
    print(
        f"{count} pieces, {leaks.search.candidates} candidates, {len(wrong)} pairs of pieces of different pictures, {plain} of "
        f"them of equal hashes (plain pieces), {seconds:.1f} s with the build"
    )
    listed = [(pair.first, pair.second, pair.distance, pair.orientation, pair.correlation) for pair in wrong]
    return {"pieces": count, "candidates": leaks.search.candidates, "pairs": listed}


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
        started = time.perf_counter()
        low, high = near_pairs(hashes, arguments.distance)
        seconds, pairs = time.perf_counter() - started, len(low)
        found = int(((low < half) & (high == low + half)).sum())
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        print(f"{kind}: {arguments.count:,} hashes in {seconds:.1f} s, {pairs:,} pairs, peak {peak:,} bytes")
        print(f"  {found} of {half} planted pairs found")
        results[kind] = {"seconds": seconds, "pairs": pairs, "planted": half, "found": found, "peak_bytes": peak}
    return results


def cpu_s(recipe: Recipe, data: Path, with_hash: bool) -> tuple[float, int]:
    """Processor time of a build in this process, and its samples."""
    with tempfile.TemporaryDirectory() as out:
        started = time.process_time()
        summary = build(recipe, Path(out, "built"), data, options=BuildOptions(workers=0, hash=with_hash))
        return time.process_time() - started, summary.samples


def cost(arguments: argparse.Namespace) -> dict[str, Any]:
    recipes = {
        "resized": {"store": {"image": codecs.Jpeg(95)}, "geometry": [augment.Resize(SIZE, SIZE)]},
        "own bytes": {"store": {"image": codecs.Original()}},
    }
    results = {}
    for name, options in recipes.items():
        recipe = Recipe(name="cost", source=sources.Folder("**"), **options)
        turns = {str(with_hash): partial(cpu_s, recipe, arguments.data, with_hash) for with_hash in (True, False)}
        seconds = harness.in_turns(turns, arguments.rounds, warm_up=1)  # the first of each warms the cache
        plain, hashed = (statistics.median(taken for taken, _ in seconds[key]) for key in ("False", "True"))
        samples = seconds["True"][0][1]
        each_us = (hashed - plain) / samples * 1e6
        print(
            f"{name}: {hashed / plain:.3f} times the processor time of a build without hashes, {each_us:.0f} us an image"
        )
        results[name] = {"ratio": hashed / plain, "us_an_image": each_us, "samples": samples}
    return results


def main() -> None:
    kinds = {"recall": recall, "false": false, "speed": speed, "cost": cost}

    def more(parser: argparse.ArgumentParser) -> None:
        parser.add_argument("what", choices=kinds)
        parser.add_argument("--data", type=Path, help="Folder of images")

    numbers = {"count": (10**6, "Hashes, for speed"), "distance": (8, "Bits, for speed"), "rounds": (7, "For cost")}
    options = harness.arguments(__doc__, more, **numbers)
    if options.what != "speed" and options.data is None:
        sys.exit("--data is needed")
    harness.finish(options, kinds[options.what](options))


if __name__ == "__main__":
    main()
