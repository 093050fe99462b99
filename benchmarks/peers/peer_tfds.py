"""TensorFlow Datasets: written by a `GeneratorBasedBuilder` and read with `as_dataset`, as in its guide."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from common import CROP, Item, encoded, main, prepared


def builder(items: Sequence[Item], out: Path, form: str) -> Any:
    from tfprep.cli.quiet import start_tensorflow

    start_tensorflow()
    import tensorflow_datasets as tfds

    logging.getLogger("absl").setLevel(logging.ERROR)
    tfds.disable_progress_bar()
    shape = (CROP, CROP, 3)
    image = tfds.features.Tensor(shape=shape, dtype=np.uint8) if form == "raw" else tfds.features.Image(shape=shape)

    class Photos(tfds.core.GeneratorBasedBuilder):  # type: ignore[misc]
        VERSION = tfds.core.Version("1.0.0")
        pkg_dir_path = Path(__file__).parent

        def _info(self) -> Any:
            classes = tfds.features.ClassLabel(num_classes=1000)
            return self.dataset_info_from_configs(
                features=tfds.features.FeaturesDict({"image": image, "label": classes})
            )

        def _split_generators(self, manager: Any) -> Any:
            return {"train": self._generate_examples()}

        def _generate_examples(self) -> Iterator[Any]:
            for number, (path, label) in enumerate(items):
                value = prepared(path) if form == "raw" else io_bytes(encoded(path, form))
                yield number, {"image": value, "label": label}

    return Photos(data_dir=str(out))


def io_bytes(content: bytes) -> Any:
    """The content as a file object, which TFDS stores without encoding it again."""
    import io

    return io.BytesIO(content)


def build(items: Sequence[Item], out: Path, form: str) -> None:
    builder(items, out, form).download_and_prepare()


def load(out: Path, form: str, batch_size: int, workers: int) -> Iterable[Any]:
    import tensorflow as tf
    import tensorflow_datasets as tfds

    uncached = tfds.ReadConfig(try_autocache=False)  # TFDS caches small datasets in memory, the other peers do not
    data = (
        builder([], out, form)
        .as_dataset(split="train", shuffle_files=True, read_config=uncached)
        .repeat()
        .shuffle(1000)
    )
    return data.batch(batch_size).prefetch(tf.data.AUTOTUNE)


if __name__ == "__main__":
    main(build, load)
