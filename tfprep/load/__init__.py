"""Loaders: tf.data, NumPy and PyTorch over the same reader. Importing this imports none of them."""

from tfprep.load.data import Data, Mix, Part, mix, open

__all__ = ["Data", "Mix", "Part", "mix", "open"]
