"""Raw samples of a recipe, made one at a time as values: for what is measured before, or without, a build."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tfprep.errors import SourceError
from tfprep.fields import Array, FieldSpec, Kind
from tfprep.recipe import Recipe
from tfprep.sample import SampleMaker
from tfprep.seeding import sample_hash
from tfprep.sources.source import Entry, read_files


@dataclass(frozen=True)
class RawSamples:
    """The samples of one split as a recipe lists them, those of the smallest hashes first: the first n are a fair sample."""

    recipe: Recipe
    root: Path
    split: str
    entries: tuple[Entry, ...]
    maker: SampleMaker
    files: tuple[str, ...]
    values: tuple[str, ...]

    @classmethod
    def of(cls, recipe: Recipe, root: Path, split: str = "train") -> RawSamples:
        """Lists the source; SourceError where the split has no sample."""
        listing = recipe.source.scan(root)
        recipe.check_fields(listing)
        entries = list(listing.entries)
        wanted = [entry for entry in entries if entry.split == split]
        if not wanted:
            there = ", ".join(sorted({entry.split for entry in entries})) or "no sample at all"
            raise SourceError(f"{root}: split {split!r} has no sample; there is {there}")
        wanted.sort(key=lambda entry: sample_hash(recipe.seed, entry.key))
        maker = SampleMaker(recipe, listing.kinds, dict(listing.classes))
        return cls(recipe, root, split, tuple(wanted), maker, listing.files, listing.values)

    def __len__(self) -> int:
        return len(self.entries)

    def raw(self, number: int) -> dict[str, Any]:
        """The raw parts of sample `number` by field: a file's bytes, or a value. Raises SampleError."""
        entry = self.entries[number]
        return {**read_files(self.root, self.files, entry), **dict(zip(self.values, entry.values, strict=True))}

    def made(self, number: int, variant: int) -> Mapping[str, Any]:
        """One variant of sample `number`: every field, before it is encoded. Raises SampleError."""
        return next(self.maker.made(self.entries[number].key, self.raw(number), [variant]))

    def stored(self, number: int, variant: int) -> dict[str, Any]:
        """What a loader would give for it: the stored fields, with the shape and dtype that they have on disk."""
        made = self.made(number, variant)
        return {name: _as_stored(made[name], self.spec(name, made[name])) for name in self.recipe.store}

    def spec(self, name: str, value: Any) -> FieldSpec:
        return self.recipe.store[name].spec(self.kind(name), value)

    def kind(self, name: str) -> Kind:
        return {**self.maker.kinds, **self.recipe.derived_kinds()}[name]


def _as_stored(value: Any, spec: FieldSpec) -> Array | str:
    return value if spec.dtype == "string" else np.asarray(value, spec.dtype)
