"""Loaders for TensorFlow, Keras, PyTorch, JAX and NumPy over the same reader. Importing this imports none of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tfprep.optional import lazy_names

if TYPE_CHECKING:
    from tfprep.load.data import Data, Mix, Subset, mix, open
    from tfprep.load.options import Buckets, LoaderOptions

__all__ = ["Buckets", "Data", "LoaderOptions", "Mix", "Subset", "mix", "open"]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "data": ["Data", "Mix", "Subset", "mix", "open"],
        "options": ["Buckets", "LoaderOptions"],
    },
)
