"""Augmentation at load compared with FFCV, DALI and torchvision on the same photos: decode, RandomResizedCrop(224), flip.

    python benchmarks/at_load.py --photos data/photos [--peers peers/bin/python] [--ffcv PYTHON] [--rounds 12] [--json FILE]

The photos are stored as JPEG of quality 95, their short side 256 pixels. FFCV writes its own file of the
same pixels. Every candidate has a process of its own. In each round all of them deliver some seconds of images in turn, in
another order, uint8 in batches of 64, on all cores. Figures are medians over the rounds, ratios medians of the ratios within a
round.

- tfprep: `numpy_loader` with threads and with worker processes, at 224 and at 128 pixels; 8 views of 224 pixels from one decode,
  to be compared with 8 loads, that is with an eighth of the samples/s of one view.
- FFCV: `RandomResizedCropRGBImageDecoder` and `RandomHorizontalFlip`, which decode with libjpeg-turbo's fast DCT.
- DALI on the CPU: `decoders.image_random_crop`, `resize` and `flip`.
- torchvision: `RandomResizedCrop` (antialiased), `RandomHorizontalFlip` and `PILToTensor` in a `DataLoader` with a worker a core.

A peer whose interpreter is not named, or lacks it, is said to be missing. benchmarks/peers/requirements.txt says how to install
them (torchvision in addition to PyTorch).
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
        peers=(Path, "Interpreter with DALI, PyTorch and torchvision"), ffcv=(Path, "Interpreter with FFCV"),
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
    """Build the photos, linked as often as it takes."""
    import tfprep
    from tfprep import Recipe, augment, codecs, sources

    files = sorted(path for path in photos.rglob("*") if path.is_file())
    with tempfile.TemporaryDirectory() as raw:
        for number in range(count):
            file = files[number % len(files)]
            below = Path(raw) / file.parent.name
            below.mkdir(exist_ok=True)
            (below / f"{number:06d}{file.suffix}").symlink_to(file.resolve())
        store = {"image": codecs.Jpeg(95), "label": codecs.Scalar()}
        geometry = [augment.Resize(shorter=SIDE)]
        tfprep.build(
            Recipe("photos", sources.Folder(), store, geometry=geometry, shards={"train": 4}), folder, Path(raw)
        )


# --- the rounds -------------------------------------------------------------------------------------------------------------


def measured(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    pythons = dict.fromkeys(("threads", "processes", "threads 128", "views"), sys.executable)
    pythons |= {"ffcv": options.ffcv} | dict.fromkeys(("dali", "torchvision"), options.peers)
    missing: dict[str, str] = {}
    turns = {}
    for name, python in pythons.items():
        try:
            if python is None:
                raise RuntimeError("no interpreter is named")
            process = harness.Process([python, __file__, "--serve", name, folder])
            turns[name] = functools.partial(turn, process, options.turn // (VIEWS if name == "views" else 1))
        except (RuntimeError, OSError) as error:
            missing[name] = str(error)
            print(f"{name} is missing: {error}", file=sys.stderr)
    rates = harness.in_turns(turns, options.rounds)
    best = max((rates["threads"], rates["processes"]), key=median)
    pairs = {
        **{f"threads or processes / {peer}": (best, rates.get(peer)) for peer in ("ffcv", "dali", "torchvision")},
        "128 pixels / 224 pixels": (rates["threads 128"], rates["threads"]),
        "8 loads / 8 views, in time": ([VIEWS * rate for rate in rates["views"]], rates["threads"]),
    }
    return {
        "cores": os.cpu_count(),
        "samples_per_s": {name: spread(values) for name, values in rates.items()},
        "ratios": {
            name: spread([a / b for a, b in zip(ours, theirs, strict=True)])
            for name, (ours, theirs) in pairs.items()
            if theirs
        },
        "missing": missing,
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


def _tfprep(folder: Path, size: int = SIZE, workers: str = "threads", views: int = 1) -> Iterator[int]:
    import tfprep
    from tfprep import augment

    ops = {"geometry": [augment.RandomResizedCrop(size, size), augment.Flip()]}
    batch = BATCH // views
    options: dict[str, Any] = ops if views == 1 else {"views": {"all": (views, ops)}}
    loader = tfprep.open(folder).numpy_loader("train", batch, fields=["image", "label"], workers=workers, **options)
    return (len(batch["label"]) for batch in loader.repeat())


def _ffcv(folder: Path) -> Iterator[int]:
    import numpy as np
    from ffcv.fields.basics import IntDecoder
    from ffcv.fields.decoders import RandomResizedCropRGBImageDecoder
    from ffcv.loader import Loader, OrderOption
    from ffcv.transforms import RandomHorizontalFlip
    from peer_ffcv import write as write_beton

    import tfprep

    class Photos:
        samples = tfprep.open(folder).random_access("train", fields=["image", "label"])

        def __len__(self) -> int:
            return len(self.samples)

        def __getitem__(self, number: int) -> tuple[Any, int]:
            sample = self.samples[number]
            return np.asarray(sample["image"]), int(sample["label"])

    write_beton(Photos(), folder.parent / "ffcv", "jpeg")
    image = [RandomResizedCropRGBImageDecoder((SIZE, SIZE)), RandomHorizontalFlip()]
    loader = Loader(
        str(folder.parent / "ffcv/photos.beton"), batch_size=BATCH, num_workers=os.cpu_count(), order=OrderOption.RANDOM,
        drop_last=True, os_cache=True,
        pipelines={"image": image, "label": [IntDecoder()]},
    )  # fmt: skip
    while True:
        for images, _ in loader:
            yield len(images)


def _dali(folder: Path) -> Iterator[int]:
    from nvidia.dali import fn, pipeline_def, tfrecord, types

    import tfprep

    shards = tfprep.open(folder).path.glob("*.tfrecord-*-of-*")
    files = sorted(str(path) for path in shards if path.suffix != ".idx")
    features = {
        "image": tfrecord.FixedLenFeature((), tfrecord.string, ""),
        "label": tfrecord.FixedLenFeature([1], tfrecord.int64, -1),
    }

    @pipeline_def(batch_size=BATCH, num_threads=os.cpu_count(), device_id=None, seed=0, exec_dynamic=True)  # type: ignore[misc]
    def photos() -> Any:
        indexes = [f"{path}.idx" for path in files]
        record = fn.readers.tfrecord(
            path=files, index_path=indexes, features=features, random_shuffle=True, initial_fill=1000
        )
        pixels = fn.decoders.image_random_crop(
            record["image"],
            device="cpu",
            random_area=(0.08, 1.0),
            random_aspect_ratio=(3 / 4, 4 / 3),
            adjust_orientation=False,
        )
        pixels = fn.resize(pixels, resize_x=SIZE, resize_y=SIZE, interp_type=types.INTERP_LINEAR, antialias=True)
        return fn.flip(pixels, horizontal=fn.random.coin_flip()), record["label"]

    pipeline = photos()
    pipeline.build()
    while True:
        pixels, _ = pipeline.run()
        yield len(pixels)


def _torchvision(folder: Path) -> Iterator[int]:
    import io

    import torch
    from PIL import Image
    from torch.utils.data import DataLoader, Dataset

    try:
        import torchvision  # noqa: F401
    except RuntimeError:  # its wheel is for a CUDA build; beside a CPU build it lacks operators that no transform uses
        library = torch.library.Library("torchvision", "DEF")
        for name in ("nms", "qnms"):
            library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    from torchvision.transforms import v2

    import tfprep

    dataset = tfprep.open(folder)
    index = dataset.index("train", 0, ["shard", "image_offset", "image_size", "label"]).to_pydict()
    shards = [(folder / file.name).read_bytes() for file in dataset.split("train").files[0]]
    change = v2.Compose([v2.RandomResizedCrop(SIZE, antialias=True), v2.RandomHorizontalFlip(), v2.PILToTensor()])

    class Photos(Dataset):  # type: ignore[type-arg, misc]
        def __len__(self) -> int:
            return len(index["label"])

        def __getitem__(self, number: int) -> tuple[Any, int]:
            start = index["image_offset"][number]
            content = shards[index["shard"][number]][start : start + index["image_size"][number]]
            return change(Image.open(io.BytesIO(content)).convert("RGB")), index["label"][number]

    torch.set_num_threads(1)
    loader = DataLoader(
        Photos(), BATCH, shuffle=True, num_workers=os.cpu_count() or 1, drop_last=True, persistent_workers=True
    )
    while True:
        for images, _ in loader:
            yield len(images)


SERVED: dict[str, Any] = {
    "threads": _tfprep,
    "processes": lambda folder: _tfprep(folder, workers="processes"),
    "threads 128": lambda folder: _tfprep(folder, SMALL),
    "views": lambda folder: _tfprep(folder, views=VIEWS),
    "ffcv": _ffcv,
    "dali": _dali,
    "torchvision": _torchvision,
}

if __name__ == "__main__":
    main()
