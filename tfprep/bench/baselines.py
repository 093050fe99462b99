"""Baselines: other ways to load the same images, in batches of the same size and pixels.

- `on-the-fly`: the recipe in a tf.data pipeline with `tf.py_function`, which computes every sample in every epoch.
- `keras-directory`: `keras.utils.image_dataset_from_directory` over the dataset's images as files in class folders.
- `image-data-generator`: Keras's `ImageDataGenerator.flow_from_directory` over the same files.
- `tfds`: `tensorflow_datasets.builder_from_directory`, shuffled, batched and prefetched.
- `tf-guide`: the TFRecords as in TensorFlow's guide: interleave, shuffle buffer, parallel parsing, batch, prefetch.

The two baselines of Keras read variant 0 only, since files have no variants. All others read what the loader reads in an epoch.
"""

from __future__ import annotations

import contextlib
import io
import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np

from tfprep.bench.rounds import Candidate
from tfprep.bench.trial import RawSamples
from tfprep.codecs import Png
from tfprep.errors import LoaderError
from tfprep.export.stored import stored_samples
from tfprep.fields import FieldSpec
from tfprep.load import Data
from tfprep.optional import require_package
from tfprep.recipe import Recipe

SHUFFLE = 1000
"""Records in a shuffle buffer, as in the guides of TensorFlow and TFDS."""


@dataclass(frozen=True)
class Work:
    """The data that all baselines load. Only `on-the-fly` needs `recipe` and `root`, the folder of its raw data.

    Images are written as files to the folder `scratch`.
    """

    dataset: Data
    split: str
    batch_size: int
    scratch: Path
    recipe: Recipe | None = None
    root: Path | None = None


def baseline(name: str, work: Work) -> Candidate:
    """The baseline of this name as a candidate.

    Raises:
        LoaderError: If there is no such baseline, or the dataset lacks what it needs.
        MissingDependencyError: If a package of the baseline is not installed.
    """
    if name not in BASELINES:
        raise LoaderError(f"there is no baseline {name!r}; available: {', '.join(BASELINES)}")
    return Candidate(name, BASELINES[name](work))


# --- the recipe itself


def _on_the_fly(work: Work) -> Callable[[], Iterator[Any]]:
    if work.recipe is None or work.root is None:
        raise LoaderError("on-the-fly computes the recipe from the raw files: give both --recipe and --data")
    recipe, root = work.recipe, work.root
    return lambda: iter(on_the_fly(recipe, root, work.split, work.batch_size))


def on_the_fly(recipe: Recipe, root: Path, split: str = "train", batch_size: int = 32, seed: int = 0) -> Any:
    """An endless `tf.data.Dataset` of dicts of the stored fields, [B, ...] each. Every epoch shows another variant.

    The functions are tfprep's own, so the pixels equal those of a build; only the time of their computation differs.

    Raises:
        SourceError: If the split has no sample.
        LoaderError: If the images of a batch differ in size.
    """
    import tensorflow as tf

    samples = RawSamples.of(recipe, root, split)
    specs = _specs(samples)
    variants = recipe.variants_of(split)
    dtypes = [tf.dtypes.as_dtype(spec.dtype) for spec in specs.values()]

    def compute(count: Any, number: Any) -> list[Any]:
        index = int(number)
        made = samples.stored(index, (int(count) // len(samples) + index) % variants)
        return [made[name] if isinstance(made[name], str) else np.asarray(made[name], order="C") for name in specs]

    def map_one(count: Any, number: Any) -> dict[str, Any]:
        values = tf.py_function(compute, [count, number], dtypes)
        return {
            name: tf.ensure_shape(value, spec.shape) for (name, spec), value in zip(specs.items(), values, strict=True)
        }

    numbers = tf.data.Dataset.range(len(samples)).shuffle(len(samples), seed=seed).repeat().enumerate()
    plain = tf.autograph.experimental.do_not_convert(map_one)
    mapped = numbers.map(plain, num_parallel_calls=tf.data.AUTOTUNE)
    return mapped.batch(batch_size, drop_remainder=True).prefetch(tf.data.AUTOTUNE)


def _specs(samples: RawSamples) -> Mapping[str, FieldSpec]:
    """The specs of the stored fields, from the first two samples."""
    specs: dict[str, FieldSpec] = {}
    for number in range(min(2, len(samples))):
        made = samples.made(number, 0)
        for name in samples.recipe.store:
            spec = samples.spec(name, made[name])
            if specs.setdefault(name, spec).shape != spec.shape:
                raise LoaderError(
                    f"'{name}' has shape {spec.shape} in one sample and {specs[name].shape} in another: they cannot "
                    "be batched; add a Resize or a Crop to the recipe's geometry"
                )
    return specs


# --- TFRecords in plain TensorFlow ----------------------------------------------------------------------------------


def _tf_guide(work: Work) -> Callable[[], Iterator[Any]]:
    """https://www.tensorflow.org/guide/data_performance"""
    options: dict[str, Any] = {"training": True, "shuffle_buffer": SHUFFLE, "variants": "all"}
    return lambda: iter(work.dataset.tf_dataset(work.split, work.batch_size, **options).repeat())


def _tfds(work: Work) -> Callable[[], Iterator[Any]]:
    require_package("tensorflow_datasets", "the baseline tfds")
    import tensorflow_datasets as tfds

    logging.getLogger("absl").setLevel(logging.ERROR)  # TFDS logs a deprecation of its own code for every shard
    variants = work.dataset.split(work.split).variants
    splits = "+".join(work.split if n == 0 else f"{work.split}_v{n}" for n in range(variants))

    def begin() -> Iterator[Any]:
        import tensorflow as tf

        builder = tfds.builder_from_directory(str(work.dataset.path))
        data = builder.as_dataset(split=splits, shuffle_files=True).repeat().shuffle(SHUFFLE)
        return iter(data.batch(work.batch_size, drop_remainder=True).prefetch(tf.data.AUTOTUNE))

    return begin


# --- image files in class folders -----------------------------------------------------------------------------------


def _keras_directory(work: Work) -> Callable[[], Iterator[Any]]:
    folder, size = export_images(work)

    def begin() -> Iterator[Any]:
        import keras
        import tensorflow as tf

        data = keras.utils.image_dataset_from_directory(
            str(folder), image_size=size, batch_size=work.batch_size, shuffle=True, verbose=False
        )
        return iter(data.repeat().prefetch(tf.data.AUTOTUNE))

    return begin


def _image_data_generator(work: Work) -> Callable[[], Iterator[Any]]:
    folder, size = export_images(work)

    def begin() -> Iterator[Any]:
        from keras.src.legacy.preprocessing.image import ImageDataGenerator

        with contextlib.redirect_stdout(io.StringIO()):  # Keras prints how many images it found
            return iter(
                ImageDataGenerator().flow_from_directory(str(folder), target_size=size, batch_size=work.batch_size)
            )

    return begin


def export_images(work: Work) -> tuple[Path, tuple[int, int]]:
    """Write the first image field of variant 0 as files in class folders, as it is encoded in the dataset (PNG if it is raw).

    Returns:
        The folder, and (height, width) of the images.

    Raises:
        LoaderError: If the dataset has no image field of one size.
    """
    fields = work.dataset.fields
    image = next((name for name, spec in fields.items() if spec.kind == "image"), None)
    label = next((name for name, spec in fields.items() if spec.kind == "label" and spec.shape == ()), None)
    if image is None or None in fields[image].shape:
        raise LoaderError("Keras reads folders of images, but the dataset has no image field of one size")
    height, width = fields[image].shape[:2]
    assert height is not None
    assert width is not None
    folder = work.scratch / f"{work.split}-files"
    if not folder.exists():
        for number, sample in enumerate(stored_samples(work.dataset, work.split, 0)):
            content, suffix = sample.files.get(image) or (Png().encode(sample.values[image])[""], "png")
            below = folder / (f"class_{int(sample.values[label]):05d}" if label else "all")
            below.mkdir(parents=True, exist_ok=True)
            (below / f"{number:08d}.{suffix}").write_bytes(cast(bytes, content))
    return folder, (height, width)


BASELINES: Mapping[str, Callable[[Work], Callable[[], Iterator[Any]]]] = {
    "on-the-fly": _on_the_fly,
    "keras-directory": _keras_directory,
    "image-data-generator": _image_data_generator,
    "tfds": _tfds,
    "tf-guide": _tf_guide,
}
