"""Batches of a loader, and whether two lists of them are the same."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np


def batches(data: Any, count: int, split: str = "train", **options: Any) -> list[Any]:
    """The first batches: of any number of epochs in training, of one in evaluation."""
    loader = data.numpy_loader(split, **{"seed": 3, **options})
    try:
        return list(itertools.islice(loader.repeat() if loader.pipeline.training else loader, count))
    finally:
        loader.close()


def check_same(expected: Sequence[Mapping[str, Any]], given: Sequence[Mapping[str, Any]]) -> None:
    """Compare dtypes and values; those of samples that differ in size are lists."""
    assert len(expected) == len(given)
    for one, other in zip(expected, given, strict=True):
        assert one.keys() == other.keys()
        for name, value in one.items():
            assert not isinstance(value, Mapping), "of views, compare each"
            assert getattr(value, "dtype", None) == getattr(other[name], "dtype", None)
            for a, b in zip(value, other[name], strict=True):
                np.testing.assert_array_equal(a, b, err_msg=name)
