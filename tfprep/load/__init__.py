"""Loaders: tf.data, NumPy and PyTorch over the same reader. Importing this imports none of them."""

from tfprep.load.data import Data, Mix, Part, mix, open
from tfprep.read.at_load import CutMix, MixUp, RandomCrop, RandomFlip

__all__ = ["CutMix", "Data", "Mix", "MixUp", "Part", "RandomCrop", "RandomFlip", "mix", "open"]
