"""Samples of a recipe without a build: for comparisons, and as a pipeline that computes them in every epoch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tfprep.builder.shards.make_sample import SampleMaker
from tfprep.codecs import Raw
from tfprep.errors import LoaderError, SourceError
from tfprep.fields import FieldSpec
from tfprep.recipe import Recipe
from tfprep.seeding import sample_hash
from tfprep.sources.source import Entry, read_files


@dataclass(frozen=True)
class RawSamples:
    """The samples of one split in the order of their hashes, so that the first n are a random sample."""

    recipe: Recipe
    root: Path
    split: str
    entries: tuple[Entry, ...]
    maker: SampleMaker
    files: tuple[str, ...]
    values: tuple[str, ...]

    @classmethod
    def of(cls, recipe: Recipe, root: Path, split: str = "train") -> RawSamples:
        """List the source. Raises SourceError if the split has no sample."""
        listing = recipe.source.scan(root)
        recipe.check_fields(listing)
        entries = list(listing.entries)
        of_split = [entry for entry in entries if entry.split == split]
        if not of_split:
            there = ", ".join(sorted({entry.split for entry in entries})) or "no sample at all"
            raise SourceError(f"{root}: split {split!r} has no sample; available: {there}")
        of_split.sort(key=lambda entry: sample_hash(recipe.seed, entry.key))
        maker = SampleMaker(recipe, listing.kinds, dict(listing.classes))
        return cls(recipe, root, split, tuple(of_split), maker, listing.files, listing.values)

    def __len__(self) -> int:
        return len(self.entries)

    def made(self, number: int, variant: int) -> Mapping[str, Any]:
        """All fields of one variant of sample `number`, before encoding. Raises SampleError."""
        entry = self.entries[number]
        raw = {**read_files(self.root, self.files, entry), **dict(zip(self.values, entry.values, strict=True))}
        return next(self.maker.made(entry.key, raw, [variant]))

    def stored(self, number: int, variant: int) -> dict[str, Any]:
        """The stored fields of one variant as a loader would deliver them, with the shape and dtype on disk."""
        fields = self.made(number, variant)
        specs = {name: self.spec(name, fields[name]) for name in self.recipe.store}
        return {
            name: fields[name] if spec.dtype == "string" else _cast_as_stored(fields[name], spec)
            for name, spec in specs.items()
        }

    def spec(self, name: str, value: Any) -> FieldSpec:
        kinds = {**self.maker.kinds, **self.recipe.derived_kinds()}
        return self.recipe.store[name].spec(kinds[name], value)


def _cast_as_stored(value: Any, spec: FieldSpec) -> Any:
    array = np.asarray(value)
    if array.dtype.name == spec.dtype:  # without copies, which would count against the recipe
        return array
    raw = Raw(spec.dtype)  # rounds, and refuses what does not fit
    return raw.decode(raw.encode(value)[""], spec)


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
        fields = samples.stored(index, (int(count) // len(samples) + index) % variants)
        return [
            fields[name] if isinstance(fields[name], str) else np.asarray(fields[name], order="C") for name in specs
        ]

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
        fields = samples.made(number, 0)
        for name in samples.recipe.store:
            spec = samples.spec(name, fields[name])
            if specs.setdefault(name, spec).shape != spec.shape:
                raise LoaderError(
                    f"'{name}' has shape {spec.shape} in one sample and {specs[name].shape} in another: they cannot "
                    "be batched; add a Resize or a Crop to the recipe's geometry"
                )
    return specs
