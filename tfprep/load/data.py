"""A dataset as trainers see it: open it, ask it for loaders."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tfprep.dataset import Dataset, Manifest
from tfprep.read import LoaderOptions, Pipeline

if TYPE_CHECKING:
    from tfprep.load.tfdata import Loader


@dataclass(frozen=True, eq=False)
class Data(Dataset):
    """An opened dataset. Reading its metadata is all that happens until a loader is asked for."""

    def loader(self, split: str = "train", batch_size: int = 32, **options: Any) -> Loader:
        """A `tf.data.Dataset` of batches; `options` are those of `tfprep.read.LoaderOptions`. Imports TensorFlow."""
        from tfprep.load.tfdata import make_loader

        return make_loader(Pipeline(self, split, LoaderOptions(batch_size=batch_size, **options)))

    def numpy_loader(self, split: str = "train", batch_size: int = 32, **options: Any) -> Iterator[Any]:
        """The same batches as NumPy arrays, without TensorFlow."""
        pipeline = Pipeline(self, split, LoaderOptions(batch_size=batch_size, **options))
        for batch in pipeline.batches():
            yield pipeline.outputs.pack(batch.values)

    @property
    def classes(self) -> Mapping[str, Sequence[str]]:
        """Class names by field."""
        return self.manifest.classes

    @property
    def class_names(self) -> Sequence[str]:
        """The class names of the label; without a label those of the mask; empty where there are none."""
        for kind in ("label", "mask"):
            for name, spec in self.fields.items():
                if spec.kind == kind and name in self.classes:
                    return self.classes[name]
        return ()


def open(path: str | os.PathLike[str]) -> Data:
    """The dataset in this folder; DatasetError where there is none that this version reads."""
    folder = Path(path)
    return Data(folder, Manifest.read(folder))
