"""Keras: files in class folders, read with `image_dataset_from_directory`, which has no raw form.

The order is shuffled once, and every epoch through a buffer of 1,024. `interpolation="nearest"` leaves images of the right
size as they are, uint8; with the default, "bilinear", each is resized to itself and becomes float32. Its decoder,
`tf.image.decode_image`, has no option for the accurate DCT, and its pixels differ from those of the other peers. The records
are batched after `repeat`, since a batch must not be partial.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from common import CROP, Item, encoded, in_class_folders


def build(items: Sequence[Item], out: Path, form: str) -> None:
    in_class_folders(_write, items, out, form)


def _write(item: Item, number: int, out: Path, form: str) -> None:
    path, label = item
    (out / f"{label:05d}" / f"{number:06d}.jpg").write_bytes(encoded(path, form))


def load(out: Path, form: str, batch_size: int, workers: int) -> Iterable[Any]:
    from tfprep.cli.text import start_tensorflow

    start_tensorflow()
    import keras
    import tensorflow as tf

    data = keras.utils.image_dataset_from_directory(
        str(out), image_size=(CROP, CROP), interpolation="nearest", batch_size=None, shuffle=True, verbose=False
    )
    return data.repeat().batch(batch_size).prefetch(tf.data.AUTOTUNE)
