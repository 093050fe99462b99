"""Loaders: tf.data, NumPy and PyTorch over the same reader. Importing this imports none of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tfprep.lazy import lazy_names

if TYPE_CHECKING:
    from tfprep.load.at_load.ops import CutMix, MixUp, OneHotLabels, RandomCrop, RandomFlip
    from tfprep.load.data import Data, Mix, Subset, mix, open

__all__ = ["CutMix", "Data", "Mix", "MixUp", "OneHotLabels", "RandomCrop", "RandomFlip", "Subset", "mix", "open"]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "data": ["Data", "Mix", "Subset", "mix", "open"],
        "at_load.ops": ["CutMix", "MixUp", "OneHotLabels", "RandomCrop", "RandomFlip"],
    },
)
