"""Batches as NumPy arrays, without any framework."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from tfprep.load.accessors import PipelineAccessors
from tfprep.load.pipeline import Pipeline
from tfprep.load.reader.batch import Batch


class NumpyLoader(PipelineAccessors):
    """An iterable of elements as `fields`, `inputs` and `targets` describe them. Made by `Data.numpy_loader`.

    Arrays are [B, ...], text comes as arrays of str, images of different sizes as lists of arrays. In training each iteration
    delivers one epoch, and the next iteration the next epoch (see `tfprep.load.passes`). The memory of a batch is not used again
    while any array or view of it exists.
    """

    def __init__(self, pipeline: Pipeline) -> None:
        self.pipeline = pipeline

    def __iter__(self) -> Iterator[Any]:
        return self.elements()

    def elements(self, look: int = 0) -> Iterator[Any]:
        """An iteration of which `look` batches may be taken without using an epoch."""
        pack = self.pipeline.outputs.pack
        return self.pipeline.batches(lambda batch: pack(with_text(batch)), epochs=self._epochs, look=look)


def with_text(batch: Batch) -> dict[str, Any]:
    """The batch's values, with text decoded."""
    return {name: _decoded(value) for name, value in batch.values.items()}


def _decoded(value: Any) -> Any:
    if isinstance(value, list):
        return [_decoded(item) for item in value]
    if isinstance(value, np.ndarray) and value.dtype == object:
        return np.array([text.decode("utf-8", "surrogateescape") for text in value.ravel()], object).reshape(
            value.shape
        )
    return value
