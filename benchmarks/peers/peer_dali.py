"""NVIDIA DALI on the CPU: TFRecord files with their indexes, read, decoded and shuffled (buffer of 1,000) by its threads.

The guide (https://docs.nvidia.com/deeplearning/dali/user-guide/docs/advanced_topics_performance_tuning.html) is about memory,
thread affinity and readers. The dynamic executor is used, and arrays over DALI's memory instead of copies (`as_array`).

Raw, processor time of an image: 0.053 ms. Tried and slower: the default executor, 0.061 ms; without memory maps
(`dont_use_mmap`), 0.08 ms; `readers.numpy` on a file for each image, 0.094 ms, and 0.106 ms with copies.
JPEG: 0.334 ms, and the same (0.32 to 0.36 ms) with `readers.file`, copies and `experimental.decoders.image`. `use_fast_idct` is
not used, since its pixels differ from those of the other peers.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from common import CROP, Item, encoded, in_shards

from tfprep import records

SHUFFLE = 1000


def build(items: Sequence[Item], out: Path, form: str) -> None:
    in_shards(_shard, items, out, "tfrecord", form)


def _shard(items: Sequence[Item], path: Path, form: str) -> None:
    frames = []
    with path.open("wb") as file:
        for photo, label in items:
            payload, _ = records.encode({"image": encoded(photo, form), "label": np.array([label], np.int64)})
            framed = records.frame(payload)
            frames.append(records.Frame(file.tell(), len(framed)))
            file.write(framed)
    Path(f"{path}.idx").write_text(records.format_index(frames))


def load(out: Path, form: str, batch_size: int, workers: int) -> Iterable[Any]:
    return batches(sorted(out.glob("*.tfrecord")), form, batch_size, workers)


def batches(files: Sequence[Path], form: str, batch_size: int, workers: int, window: int = 0) -> Iterator[Any]:
    """Arrays over DALI's own memory, which are valid until the next batch.

    Whole images of one size, or random windows of `window` pixels, which are flipped at random. A file's index is beside it.
    """
    from nvidia.dali import fn, pipeline_def, tfrecord, types

    features = {
        "image": tfrecord.FixedLenFeature((), tfrecord.string, ""),
        "label": tfrecord.FixedLenFeature([1], tfrecord.int64, -1),
    }

    @pipeline_def(batch_size=batch_size, num_threads=workers, device_id=None, seed=0, exec_dynamic=True)  # type: ignore[misc]
    def images() -> Any:
        record = fn.readers.tfrecord(
            path=[str(path) for path in files],
            index_path=[f"{path}.idx" for path in files],
            features=features,
            random_shuffle=True,
            initial_fill=SHUFFLE,
        )
        if form == "raw":
            return fn.reinterpret(record["image"], shape=[CROP, CROP, 3]), record["label"]
        if not window:
            return fn.decoders.image(record["image"], device="cpu", adjust_orientation=False), record["label"]
        drawn = {"random_area": (0.08, 1.0), "random_aspect_ratio": (3 / 4, 4 / 3)}
        pixels = fn.decoders.image_random_crop(record["image"], device="cpu", adjust_orientation=False, **drawn)
        pixels = fn.resize(pixels, resize_x=window, resize_y=window, interp_type=types.INTERP_LINEAR, antialias=True)
        return fn.flip(pixels, horizontal=fn.random.coin_flip()), record["label"]

    pipeline = images()
    pipeline.build()
    while True:
        yield tuple(np.asarray(part.as_tensor()) for part in pipeline.run())
