"""Where the bytes of every sample lie: the columns of `index.parquet` that a reader needs, one set a variant."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from tfprep.dataset import Dataset

Numbers = npt.NDArray[np.int64]


class Places(NamedTuple):
    """One variant of a split, one element a sample: its `shard`, its record's frame, and by field where its bytes lie."""

    shard: npt.NDArray[np.int32]
    offset: Numbers
    size: Numbers
    field_offset: dict[str, Numbers]
    field_size: dict[str, npt.NDArray[np.int32]]


@dataclass
class Table:
    """The samples of one split, in the order of the records on disk; a variant's places are read when first asked for."""

    dataset: Dataset
    split: str
    fields: Sequence[str]
    _places: dict[int, Places] = field(default_factory=dict)
    _keys: list[str] | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def samples(self) -> int:
        return self.dataset.split(self.split).samples

    def places(self, variant: int) -> Places:
        with self._lock:
            if variant not in self._places:
                self._places[variant] = self._read(variant)
            return self._places[variant]

    def path(self, variant: int, shard: int) -> Path:
        return self.dataset.path / self.dataset.file(self.split, variant, shard).name

    def key(self, variant: int, row: int) -> str:
        """The sample's key, for messages: it is looked up on disk."""
        return str(self.dataset.index(self.split, variant, ["key"]).column("key")[row].as_py())

    def keys(self) -> list[str]:
        """Every sample's key."""
        with self._lock:
            if self._keys is None:
                self._keys = self.dataset.index(self.split, 0, ["key"]).column("key").to_pylist()
            return self._keys

    def number_in_shard(self, variant: int, row: int) -> int:
        """The record's number in its file, from 0."""
        shard = self.places(variant).shard
        return row - int(np.searchsorted(shard, shard[row]))

    def _read(self, variant: int) -> Places:
        names = [f"{name}_{part}" for name in self.fields for part in ("offset", "size")]
        index = self.dataset.index(self.split, variant, ["shard", "offset", "size", *names])
        columns = {name: index.column(name).to_numpy() for name in index.column_names}
        return Places(
            columns["shard"],
            columns["offset"],
            columns["size"],
            {name: columns[f"{name}_offset"] for name in self.fields},
            {name: columns[f"{name}_size"] for name in self.fields},
        )
