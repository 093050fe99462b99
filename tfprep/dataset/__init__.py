"""A dataset on disk: its manifest, its index, the files for TensorFlow Datasets, and single records.

Names are imported when they are first used: code that needs only the names of files imports neither NumPy nor Arrow.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tfprep.optional import lazy_names

if TYPE_CHECKING:
    from tfprep.dataset.dataset import Dataset, open_dataset
    from tfprep.dataset.imported.make import IndexReport, index_tfrecords
    from tfprep.dataset.manifest import FieldInfo, FileInfo, Manifest, SplitInfo, Statistics, read_manifest
    from tfprep.dataset.records_source import Records

__all__ = [
    "Dataset", "FieldInfo", "FileInfo", "IndexReport", "Manifest", "Records", "SplitInfo",
    "Statistics", "index_tfrecords", "open_dataset", "read_manifest",
]  # fmt: skip

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "imported.make": ["IndexReport", "index_tfrecords"],
        "dataset": ["Dataset", "open_dataset"],
        "records_source": ["Records"],
        "manifest": ["FieldInfo", "FileInfo", "Manifest", "SplitInfo", "Statistics", "read_manifest"],
    },
)
