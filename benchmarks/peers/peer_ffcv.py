"""FFCV: a `.beton` file that compiled threads decode into the batch.

`SimpleRGBImageDecoder` is its fastest decoder for images of one size: it decodes into the batch, while the decoders of crops
decode into other memory and resize. FFCV stores JPEG only as encoded by its own writer (OpenCV, quality 95).

Its performance guide (https://docs.ffcv.io/performance_guide.html) names three more settings. They were tried, and the fastest
are used: `os_cache=True` (all files fit into memory), `OrderOption.RANDOM` (as fast as QUASI_RANDOM with `os_cache`), and
`batches_ahead` 3 (the default; 1 and 6 are not faster).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from common import QUALITY, Item, forever, prepared

EPOCHS = 50
"""Epochs of the few photos that one epoch of the loader consists of, so that its start is as rare as with a large dataset: 3,000
raw images took 0.034 ms of processor time each with 1 and 0.020 ms with 50, which mixes 50 copies of every photo."""


class Photos:
    """The items as the indexed dataset that FFCV's writer takes."""

    def __init__(self, items: Sequence[Item]) -> None:
        self._items = items

    def __len__(self) -> int:
        return len(self._items)

    def __getitem__(self, number: int) -> tuple[Any, int]:
        path, label = self._items[number]
        return prepared(path), label


def build(items: Sequence[Item], out: Path, form: str) -> None:
    write(Photos(items), out, form)


def write(dataset: Any, out: Path, form: str) -> None:
    """Write the file of an indexed dataset of (image, label)."""
    from ffcv.fields import IntField, RGBImageField
    from ffcv.writer import DatasetWriter

    out.mkdir(parents=True)
    image = RGBImageField(write_mode="jpg" if form == "jpeg" else form, jpeg_quality=QUALITY)
    writer = DatasetWriter(str(out / "photos.beton"), {"image": image, "label": IntField()}, num_workers=2)
    writer.from_indexed_dataset(dataset)


def load(out: Path, form: str, batch_size: int, workers: int, window: int = 0) -> Iterable[Any]:
    """Batches of whole images of one size, or of random windows of `window` pixels, which are flipped at random."""
    from ffcv.fields.basics import IntDecoder
    from ffcv.fields.decoders import RandomResizedCropRGBImageDecoder, SimpleRGBImageDecoder
    from ffcv.loader import Loader, OrderOption
    from ffcv.reader import Reader
    from ffcv.transforms import RandomHorizontalFlip

    file = str(out / "photos.beton")
    image = (
        [RandomResizedCropRGBImageDecoder((window, window)), RandomHorizontalFlip()]
        if window
        else [SimpleRGBImageDecoder()]
    )
    loader = Loader(
        file,
        batch_size=batch_size,
        num_workers=workers,
        order=OrderOption.RANDOM,
        indices=np.tile(np.arange(Reader(file).num_samples, dtype=np.uint64), EPOCHS),
        drop_last=True,
        os_cache=True,
        pipelines={"image": image, "label": [IntDecoder()]},
    )
    return forever(lambda: ((images, np.asarray(labels)[:, 0]) for images, labels in loader))
