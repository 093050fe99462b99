"""The recipe as a usual tf.data pipeline, which computes every sample in Python in every epoch.

list → shuffle → map(tf.py_function) → batch → prefetch. The function is tfprep's own, so the pixels equal those of a build; only
the time of their computation differs.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from tfprep.bench.advise.samples import RawSamples
from tfprep.errors import LoaderError
from tfprep.fields import FieldSpec
from tfprep.recipe import Recipe


def on_the_fly(recipe: Recipe, root: Path, split: str = "train", batch_size: int = 32, seed: int = 0) -> Any:
    """An endless `tf.data.Dataset` of dicts of the stored fields, [B, ...] each. Every epoch shows another variant.

    Raises:
        SourceError: If the split has no sample.
        LoaderError: If the images of a batch differ in size.
    """
    import tensorflow as tf

    samples = RawSamples.of(recipe, root, split)
    specs = _specs(samples)
    numbers = tf.data.Dataset.range(len(samples)).shuffle(len(samples), seed=seed).repeat().enumerate()
    samples_made = numbers.map(_maker(samples, specs), num_parallel_calls=tf.data.AUTOTUNE)
    return samples_made.batch(batch_size, drop_remainder=True).prefetch(tf.data.AUTOTUNE)


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


def _maker(samples: RawSamples, specs: Mapping[str, FieldSpec]) -> Any:
    import tensorflow as tf

    variants = samples.recipe.variants_of(samples.split)
    dtypes = [tf.dtypes.as_dtype(spec.dtype) for spec in specs.values()]

    def compute(count: Any, number: Any) -> list[Any]:
        index = int(number)
        variant = (int(count) // len(samples) + index) % variants
        made = samples.stored(index, variant)
        return [made[name] if isinstance(made[name], str) else np.asarray(made[name], order="C") for name in specs]

    def map_one(count: Any, number: Any) -> dict[str, Any]:
        values = tf.py_function(compute, [count, number], dtypes)
        return {
            name: tf.ensure_shape(value, spec.shape) for (name, spec), value in zip(specs.items(), values, strict=True)
        }

    return tf.autograph.experimental.do_not_convert(map_one)
