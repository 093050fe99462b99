"""Loaders: tf.data, NumPy and PyTorch over the same reader. Importing this imports none of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tfprep.optional import lazy_names

if TYPE_CHECKING:
    from tfprep.load.at_load.ops import (
        Buckets,
        CenterCrop,
        ColorJitter,
        CutMix,
        Grayscale,
        MixUp,
        OneHotLabels,
        RandomCrop,
        RandomErasing,
        RandomFlip,
        RandomResizedCrop,
        Resize,
        Solarize,
    )
    from tfprep.load.data import Data, Mix, Subset, mix, open
    from tfprep.load.options import LoaderOptions

__all__ = [
    "Buckets", "CenterCrop", "ColorJitter", "CutMix", "Data", "Grayscale", "LoaderOptions", "Mix", "MixUp", "OneHotLabels",
    "RandomCrop", "RandomErasing", "RandomFlip", "RandomResizedCrop", "Resize", "Solarize", "Subset", "mix", "open",
]  # fmt: skip

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "data": ["Data", "Mix", "Subset", "mix", "open"],
        "options": ["LoaderOptions"],
        "at_load.ops": [
            "Buckets", "CenterCrop", "ColorJitter", "CutMix", "Grayscale", "MixUp", "OneHotLabels", "RandomCrop",
            "RandomErasing", "RandomFlip", "RandomResizedCrop", "Resize", "Solarize",
        ],
    },
)  # fmt: skip
