"""Stored or at load: the rate and the bytes on disk of everything ahead, everything at load, and the cut in between.

    python benchmarks/at_load.py --data data/camvid --photos data/photos [--ffcv PYTHON] [--dali PYTHON] [--json FILE]

All candidates of a task deliver the same fields and sizes by the same ops, without a cache, and with workers="auto" by default.
Each is in a process of its own; in each round all of them deliver batches for some seconds in turn, in another order. Figures are
medians over the rounds, ratios medians of the ratios within a round; "a core" counts the processor time of all threads and
processes of a candidate. FFCV and DALI take part where an interpreter is named
(benchmarks/peers/requirements.txt), and only with photos: neither has an op for distances.

CamVid, batches of 16: a crop of 320 pixels, a flip, colors, and click maps of the mask (Xu et al. 2016).
- ahead: 4 variants of them, stored as JPEG and `Zstd`;
- cut: whole frames, crop, flip and colors at load, which the stored map follows; "clicks" derives it from the cropped mask;
- at load: the PNG files as they are; py_function: the same files in a tf.data pipeline.

Photos, batches of 64: RandomResizedCrop(224) and a flip.
- ahead: 4 variants of them as JPEG;
- cut: JPEG with a shorter side of 256 pixels; "views" makes 8 images of a photo that is decoded once;
- at load: the files as they are; py_function: the same files in a tf.data pipeline.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from statistics import median
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import harness
import numpy as np

import tfprep
from tfprep import Recipe, augment, codecs, derive, sources

BATCH = {"camvid": 16, "photos": 64}
SIZE, SIDE, VIEWS = 224, 256, 8
DRAIN = 12
"""Batches consumed before the clock starts."""

CLICKS = {"clicks": derive.Clicks(mask="mask", target=8, background=None, void=11, truncate_px=255)}
CROP = {
    "geometry": [augment.Flip(p=0.5), augment.Crop(320, 320)],
    "color": [augment.Brightness(0.2), augment.Contrast(0.2)],
}
WINDOW = {"geometry": [augment.RandomResizedCrop(SIZE, SIZE), augment.Flip()]}
PACKED = {"image": codecs.Jpeg(95), "mask": codecs.Zstd()}
JPEG = {"image": codecs.Jpeg(95), "label": codecs.Scalar()}
PAIRS = sources.Paired(image="{split}/*.png", mask="{split}annot/*.png")
STORED = {
    "camvid ahead": Recipe("clicks", PAIRS, {**PACKED, "clicks": codecs.Zstd()}, derive=CLICKS, variants={"train": 4}, **CROP),
    "camvid cut": Recipe("clicks", PAIRS, {**PACKED, "clicks": codecs.Zstd()}, derive=CLICKS),
    "camvid cut, clicks": Recipe("clicks", PAIRS, PACKED),
    "camvid at load": Recipe("clicks", PAIRS, {"image": codecs.Original(), "mask": codecs.Png()}),
    "photos ahead": Recipe("photos", sources.Folder(), JPEG, variants={"train": 4}, **WINDOW),
    "photos cut": Recipe("photos", sources.Folder(), JPEG, geometry=[augment.Resize(shorter=SIDE)]),
    "photos at load": Recipe("photos", sources.Folder(), {"image": codecs.Original(), "label": codecs.Scalar()}),
}  # fmt: skip
"""The recipe of each dataset, by the candidate that reads it."""
LOADED: dict[str, tuple[str, dict[str, Any]]] = {
    "camvid ahead": ("camvid ahead", {}),
    "camvid cut": ("camvid cut", CROP),
    "camvid cut, clicks": ("camvid cut, clicks", {**CROP, "derive": CLICKS}),
    "camvid at load": ("camvid at load", {**CROP, "derive": CLICKS}),
    "photos ahead": ("photos ahead", {}),
    "photos cut": ("photos cut", WINDOW),
    "photos cut, threads": ("photos cut", {**WINDOW, "workers": "threads"}),
    "photos cut, views": ("photos cut", {"views": {"all": (VIEWS, WINDOW)}}),
    "photos at load": ("photos at load", WINDOW),
}
"""The dataset and the options of tfprep's candidates."""
RATIOS = {
    "8 views vs 8 loads, in time": ("photos cut", "photos cut, views"),
    "clicks at load vs stored": ("camvid cut, clicks", "camvid cut"),
    **{
        f"{name} vs {name.partition(' ')[0]} py_function": (name, f"{name.partition(' ')[0]} py_function")
        for name in LOADED
    },
    **{f"photos cut vs {peer}": ("photos cut", f"photos {peer}") for peer in ("ffcv", "dali")},
    "photos cut, threads vs ffcv": ("photos cut, threads", "photos ffcv"),
}


def main() -> None:
    options = harness.arguments(
        __doc__ or "",
        data=(Path("data/camvid"), "Folder of CamVid"), photos=(Path("data/photos"), "Folder of class folders of photos"),
        images=(2000, "Photos, repeated where there are fewer"), rounds=(5, "Rounds"),
        seconds=(3.0, "Seconds that a candidate delivers batches in its turn"), only=("", "Candidates that contain this word"),
        ffcv=(Path, "Interpreter with FFCV"), dali=(Path, "Interpreter with DALI"), serve=([], argparse.SUPPRESS),
    )  # fmt: skip
    if options.serve:
        name, folder = options.serve
        batches = candidate(name, Path(folder))
        next(batches)
        harness.serve(lambda seconds: " ".join(map(str, speed(batches, float(seconds), BATCH[name.partition(" ")[0]]))))
        return
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        write(folder, options)
        result = measured(folder, options)
    print_table(result)
    harness.finish(options, result)


def write(folder: Path, options: argparse.Namespace) -> None:
    """Build the datasets of tfprep's candidates; the photos are linked as often as it takes."""
    (folder / "raw camvid").symlink_to(options.data.resolve())
    files = sorted(path for path in options.photos.rglob("*") if path.is_file())
    if not files:
        sys.exit(f"{options.photos} contains no photos; give a folder of class folders (see data/README.md)")
    for number in range(options.images):
        file = files[number % len(files)]
        link = folder / "raw photos" / file.parent.name / f"{number:06d}{file.suffix}"
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(file.resolve())
    for name, recipe in STORED.items():
        if options.only in name:
            tfprep.build(recipe, folder / name, folder / f"raw {name.partition(' ')[0]}")


# --- the rounds -------------------------------------------------------------------------------------------------------------


def measured(folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    pythons = dict.fromkeys((*LOADED, "camvid py_function", "photos py_function"), sys.executable)
    pythons |= {f"photos {peer}": python for peer in ("ffcv", "dali") if (python := getattr(options, peer))}
    turns, missing = {}, {}
    for name, python in pythons.items():
        if options.only in name:
            try:
                process = harness.Process([python, __file__, "--serve", name, folder])
                turns[name] = functools.partial(turn, process, options.seconds)
            except (RuntimeError, OSError) as error:
                missing[name] = str(error)
    turns_of = harness.in_turns(turns, options.rounds)
    rates, by_core = ({name: [each[at] for each in values] for name, values in turns_of.items()} for at in (0, 1))
    pairs = {name: (ours, theirs) for name, (ours, theirs) in RATIOS.items() if {ours, theirs} <= rates.keys()}
    return {
        "cores": os.cpu_count(),
        "images_per_s": {name: spread(values) for name, values in rates.items()},
        "images_per_core_s": {name: spread(values) for name, values in by_core.items()},
        "bytes_per_sample": {name: stored_bytes(name, folder) for name in rates},
        "ratios": {
            name: spread([a / b for a, b in zip(rates[ours], rates[theirs], strict=True)])
            for name, (ours, theirs) in pairs.items()
        },
        "missing": missing,
    }


def turn(process: harness.Process, seconds: float) -> list[float]:
    process.tell(seconds)
    return [float(value) for value in process.answer().split()]


def speed(batches: Iterator[Any], seconds: float, batch_size: int) -> tuple[float, float]:
    """Images per second, and per second of processor time."""
    spent = harness.cpu_s()
    for _ in range(DRAIN):
        next(batches)
    count, start = 0, time.perf_counter()
    while time.perf_counter() < start + seconds:
        next(batches)
        count += 1
    rate = count / (time.perf_counter() - start)
    harness.rest()  # what is filled ahead now is not filled in the next turn
    return rate * batch_size, (DRAIN + count) * batch_size / (harness.cpu_s() - spent)


def spread(values: list[float]) -> dict[str, float]:
    return {"median": median(values), "least": min(values), "most": max(values)}


def stored_bytes(name: str, folder: Path) -> float:
    """Bytes on disk that a training reads, for each sample of the source."""
    task = name.partition(" ")[0]
    if name in LOADED or name == "photos dali":
        split = tfprep.open(folder / LOADED.get(name, ("photos cut",))[0]).split("train")
        return split.bytes / split.samples
    files = (folder / "ffcv").rglob("*") if name == "photos ffcv" else (folder / f"raw {task}").rglob("*")
    sizes = [file.stat().st_size for file in files if file.is_file() and "val" not in file.parts[-2]]
    return sum(sizes) / tfprep.open(folder / f"{task} cut").split("train").samples


def print_table(result: Mapping[str, Any]) -> None:
    for name, rates in result["images_per_s"].items():
        size = result["bytes_per_sample"][name] / 1000
        core = result["images_per_core_s"][name]["median"]
        print(
            f"{name:25} {rates['median']:9,.0f} images/s ({rates['least']:,.0f} to {rates['most']:,.0f}), {core:,.0f} a core, "
            f"{size:9,.0f} kB each"
        )
    for name, ratios in result["ratios"].items():
        print(f"{name:45} {ratios['median']:8.2f} ({ratios['least']:.2f} to {ratios['most']:.2f})")
    print(json.dumps(result["missing"]))


# --- the candidates: endless iterators of batches ---------------------------------------------------------------------------


def candidate(name: str, folder: Path) -> Iterator[Any]:
    task, _, kind = name.partition(" ")
    if name in LOADED:
        dataset, options = LOADED[name]
        size = BATCH[task] // (VIEWS if "views" in options else 1)
        fields = ["image", "mask", "clicks"] if task == "camvid" else ["image", "label"]
        loader = tfprep.open(folder / dataset).numpy_loader("train", size, fields=fields, cache=False, **options)
        return iter(loader.repeat())
    if kind == "py_function":
        from tfprep.bench.training import on_the_fly

        return iter(on_the_fly(STORED[f"{task} ahead"], folder / f"raw {task}", "train", BATCH[task]))
    return (ffcv if kind == "ffcv" else dali)(folder)


def ffcv(folder: Path) -> Iterator[Any]:
    """`RandomResizedCropRGBImageDecoder` and `RandomHorizontalFlip`; its file has the pixels of the cut."""
    import peer_ffcv

    class Photos:
        samples = tfprep.open(folder / "photos cut").random_access("train", fields=["image", "label"])

        def __len__(self) -> int:
            return len(self.samples)

        def __getitem__(self, number: int) -> tuple[Any, int]:
            sample = self.samples[number]
            return np.asarray(sample["image"]), int(sample["label"])

    peer_ffcv.write(Photos(), folder / "ffcv", "jpeg")
    return iter(peer_ffcv.load(folder / "ffcv", "jpeg", BATCH["photos"], os.cpu_count() or 1, window=SIZE))


def dali(folder: Path) -> Iterator[Any]:
    """`decoders.image_random_crop`, `resize` and `flip` on the CPU, from the records of the cut."""
    import peer_dali

    data = tfprep.open(folder / "photos cut")
    files = [data.path / shard.name for shard in data.split("train").files[0]]
    return peer_dali.batches(files, "jpeg", BATCH["photos"], os.cpu_count() or 1, window=SIZE)


if __name__ == "__main__":
    main()
