"""A dataset on disk: manifest, index, the files for TensorFlow Datasets, and reading single records."""

from tfprep.dataset.dataset import Dataset
from tfprep.dataset.manifest import FieldInfo, FileInfo, Manifest, SplitInfo, Statistics

__all__ = ["Dataset", "FieldInfo", "FileInfo", "Manifest", "SplitInfo", "Statistics"]
