"""Samples of a recipe, computed one at a time without a build."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tfprep.builder.shards.make_sample import SampleMaker
from tfprep.errors import SourceError
from tfprep.fields import Array, FieldSpec, Kind
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

    def raw(self, number: int) -> dict[str, Any]:
        """The raw fields of sample `number`: the bytes of a file, or a value. Raises SampleError."""
        entry = self.entries[number]
        return {**read_files(self.root, self.files, entry), **dict(zip(self.values, entry.values, strict=True))}

    def made(self, number: int, variant: int) -> Mapping[str, Any]:
        """All fields of one variant of sample `number`, before encoding. Raises SampleError."""
        return next(self.maker.made(self.entries[number].key, self.raw(number), [variant]))

    def stored(self, number: int, variant: int) -> dict[str, Any]:
        """The stored fields of one variant as a loader would deliver them, with the shape and dtype on disk."""
        made = self.made(number, variant)
        return {name: _as_stored(made[name], self.spec(name, made[name])) for name in self.recipe.store}

    def spec(self, name: str, value: Any) -> FieldSpec:
        return self.recipe.store[name].spec(self.kind(name), value)

    def kind(self, name: str) -> Kind:
        return {**self.maker.kinds, **self.recipe.derived_kinds()}[name]


def _as_stored(value: Any, spec: FieldSpec) -> Array | str:
    return value if spec.dtype == "string" else np.asarray(value, spec.dtype)
