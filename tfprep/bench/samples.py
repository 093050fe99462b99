"""A recipe as a pipeline that computes its samples in every epoch, without a build: what a dataset is compared with."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from tfprep.builder.make_sample import SampleMaker
from tfprep.codecs import Raw
from tfprep.errors import SourceError
from tfprep.fields import FieldSpec
from tfprep.recipe import Recipe
from tfprep.sources.source import read_files


def on_the_fly(recipe: Recipe, root: Path, split: str = "train", batch_size: int = 32, seed: int = 0) -> Any:
    """An endless `tf.data.Dataset` of dicts of the stored fields, [B, ...] each. Every epoch shows another variant.

    The functions are tfprep's own, so the pixels equal those of a build; only the time of their computation differs.

    Raises:
        SourceError: If the split has no sample. TensorFlow raises where images of a batch differ in size.
    """
    import tensorflow as tf

    listing = recipe.source.scan(root)
    recipe.check_fields(listing)
    every = list(listing.entries)
    entries = [entry for entry in every if entry.split == split]
    if not entries:
        available = ", ".join(sorted({entry.split for entry in every})) or "no sample at all"
        raise SourceError(f"{root}: split {split!r} has no sample; available: {available}")
    maker = SampleMaker(recipe, listing.kinds, dict(listing.classes))

    def made(index: int, variant: int) -> dict[str, Any]:
        entry = entries[index]
        values = dict(zip(listing.values, entry.values, strict=True))
        sample = next(maker.made(entry.key, {**read_files(root, listing.files, entry), **values}, [variant]))
        return {name: sample[name] for name in recipe.store}

    kinds = {**maker.kinds, **recipe.derived_kinds()}
    first = made(0, 0)
    specs = {name: codec.spec(kinds[name], first[name]) for name, codec in recipe.store.items()}
    variants = recipe.variants_of(split)
    dtypes = [tf.dtypes.as_dtype(spec.dtype) for spec in specs.values()]

    def compute(count: Any, number: Any) -> list[Any]:
        sample = made(int(number), (int(count) // len(entries) + int(number)) % variants)
        return [_as_stored(sample[name], spec) for name, spec in specs.items()]

    def map_one(count: Any, number: Any) -> dict[str, Any]:
        values = tf.py_function(compute, [count, number], dtypes)
        return {
            name: tf.ensure_shape(value, spec.shape) for (name, spec), value in zip(specs.items(), values, strict=True)
        }

    numbers = tf.data.Dataset.range(len(entries)).shuffle(len(entries), seed=seed).repeat().enumerate()
    plain = tf.autograph.experimental.do_not_convert(map_one)
    mapped = numbers.map(plain, num_parallel_calls=tf.data.AUTOTUNE)
    return mapped.batch(batch_size, drop_remainder=True).prefetch(tf.data.AUTOTUNE)


def _as_stored(value: Any, spec: FieldSpec) -> Any:
    """Return a value with the dtype on disk: without a copy where it has it, which would count against the recipe."""
    if spec.dtype == "string" or np.asarray(value).dtype.name == spec.dtype:
        return value if isinstance(value, str) else np.asarray(value, order="C")
    raw = Raw(spec.dtype)  # rounds, and refuses what does not fit
    return raw.decode(raw.encode(value)[""], spec)
