"""What augmentation at load costs: crops and flips, smaller crops, several views of a sample, and click maps.

    python benchmarks/at_load.py --photos data/photos [--rounds 5] [--json FILE]

The photos are stored as JPEG of quality 95, their short side 256 pixels, with a mask of two classes. Every candidate is a
`numpy_loader` in a process of its own. In each round all of them deliver some seconds of samples in turn, in another order, in
batches of 64, on all cores. Figures are medians over the rounds, ratios medians of the ratios within a round.

- threads, processes: decode, RandomResizedCrop(224) and a flip; "threads 128" the same at 128 pixels;
- views: 8 views of 224 pixels from one decode, to be compared with 8 loads, that is with an eighth of the rate of one view;
- clicks: Crop(224), with click maps that are derived from the cropped mask at load; "stored clicks" has stored ones, which it
  cuts. `benchmarks/peers` compares loaders.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

import harness

BATCH, SIZE, SMALL, VIEWS, SIDE = 64, 224, 128, 8, 256
DRAIN = 12
"""Batches consumed before the clock starts."""


def main() -> None:
    options = harness.arguments(
        __doc__ or "",
        photos=(Path("data/photos"), "Folder of class folders"),
        images=(4000, "Images, repeated where there are fewer photos"), rounds=(5, "Rounds"),
        turn=(6000, "Images that a candidate delivers in its turn: in half a second, processes have hardly begun"),
        serve=([], argparse.SUPPRESS),
    )  # fmt: skip
    if options.serve:
        batches = SERVED[options.serve[0]](Path(options.serve[1]))
        next(batches)
        harness.serve(lambda images: rate(batches, int(images)))
        return
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / "built"
        write(folder, options.photos, options.images)
        result = measured(options, folder)
    print(json.dumps(result, indent=1))
    harness.finish(options, result)


def write(folder: Path, photos: Path, count: int) -> None:
    """Build the photos, linked as often as it takes, each with the mask of an ellipse."""
    import cv2
    import numpy as np

    import tfprep
    from tfprep import Recipe, augment, codecs, derive, sources

    files = sorted(path for path in photos.rglob("*") if path.is_file())
    if not files:
        sys.exit(f"{photos} contains no photos; give a folder of class folders (see data/README.md)")
    with tempfile.TemporaryDirectory() as name:
        raw = Path(name)
        for kind in ("images", "masks"):
            (raw / kind).mkdir()
        for number, file in enumerate(files):
            height, width = cv2.imread(str(file)).shape[:2]
            mask = cv2.ellipse(
                np.zeros((height, width), np.uint8), ((width / 2, height / 2), (width / 2, height / 2), 30), 1, -1
            )
            cv2.imwrite(str(raw / "masks" / f"{number:06d}.png"), mask)
        for number in range(count):
            file = files[number % len(files)]
            (raw / "images" / f"{number:06d}{file.suffix}").symlink_to(file.resolve())
            if number >= len(files):
                (raw / "masks" / f"{number:06d}.png").symlink_to(raw / "masks" / f"{number % len(files):06d}.png")
        recipe = Recipe(
            name="photos",
            source=sources.Paired(image="images/*", mask="masks/*.png"),
            geometry=[augment.Resize(shorter=SIDE)],
            derive={"clicks": derive.Clicks(mask="mask", target=1)},
            store={"image": codecs.Jpeg(95), "mask": codecs.Zstd(), "clicks": codecs.Zstd()},
            shards={"train": 4},
        )
        tfprep.build(recipe, folder, raw)


# --- the rounds -------------------------------------------------------------------------------------------------------------


def measured(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    turns = {}
    for name in SERVED:
        process = harness.Process([sys.executable, __file__, "--serve", name, folder])
        turns[name] = functools.partial(turn, process, options.turn // (VIEWS if name == "views" else 1))
    rates = harness.in_turns(turns, options.rounds)
    pairs = {
        "128 pixels / 224 pixels": (rates["threads 128"], rates["threads"]),
        "8 loads / 8 views, in time": ([VIEWS * rate for rate in rates["views"]], rates["threads"]),
        "clicks at load / stored clicks": (rates["clicks"], rates["stored clicks"]),
    }
    return {
        "cores": os.cpu_count(),
        "samples_per_s": {name: spread(values) for name, values in rates.items()},
        "ratios": {
            name: spread([a / b for a, b in zip(ours, theirs, strict=True)]) for name, (ours, theirs) in pairs.items()
        },
    }


def turn(process: harness.Process, images: int) -> float:
    process.tell(images)
    return float(process.answer())


def spread(values: list[float]) -> dict[str, float]:
    return {"median": median(values), "least": min(values), "most": max(values)}


def rate(batches: Iterator[int], images: int) -> float:
    """Samples a second."""
    for _ in range(DRAIN):
        next(batches)
    done, start = 0, time.perf_counter()
    while done < images:
        done += next(batches)
    result = done / (time.perf_counter() - start)
    time.sleep(0.3)  # until what goes on filling its buffers is done
    return result


# --- the candidates: endless iterators of the sizes of batches ------------------------------------------------------------


def _crops(folder: Path, size: int = SIZE, workers: str = "threads", views: int = 1) -> Iterator[int]:
    from tfprep import augment

    ops = {"geometry": [augment.RandomResizedCrop(size, size), augment.Flip()]}
    options: dict[str, Any] = ops if views == 1 else {"views": {"all": (views, ops)}}
    return _batches(folder, BATCH // views, fields=["image", "key"], workers=workers, **options)


def _clicks(folder: Path, *, stored: bool) -> Iterator[int]:
    from tfprep import augment, derive

    derived = {} if stored else {"derive": {"clicks": derive.Clicks(mask="mask", target=1)}}
    crop = [augment.Crop(SIZE, SIZE)]
    return _batches(folder, BATCH, fields=["image", "clicks", "key"], geometry=crop, workers="threads", **derived)


def _batches(folder: Path, batch_size: int, **options: Any) -> Iterator[int]:
    import tfprep

    loader = tfprep.open(folder).numpy_loader("train", batch_size, **options)
    return (len(batch["key"]) for batch in loader.repeat())


SERVED: dict[str, Any] = {
    "threads": _crops,
    "processes": lambda folder: _crops(folder, workers="processes"),
    "threads 128": lambda folder: _crops(folder, SMALL),
    "views": lambda folder: _crops(folder, views=VIEWS),
    "clicks": lambda folder: _clicks(folder, stored=False),
    "stored clicks": lambda folder: _clicks(folder, stored=True),
}

if __name__ == "__main__":
    main()
