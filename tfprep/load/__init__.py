"""Loaders: tf.data, NumPy and PyTorch over the same reader. Importing this imports none of them."""

from tfprep.load.data import Data, open

__all__ = ["Data", "open"]
