"""Sources: where samples come from. Each source is one module.

Names are imported when they are first used: a recipe uses a few of them, and each worker of a build imports only those.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tfprep.optional import lazy_names

if TYPE_CHECKING:
    from tfprep.sources.annotations import Coco, LabelMe, ObjectTable, Voc, Yolo
    from tfprep.sources.archives import Archives
    from tfprep.sources.arrays import Arrays
    from tfprep.sources.folder import Folder
    from tfprep.sources.paired import Paired, cityscapes
    from tfprep.sources.pixels import Pixels
    from tfprep.sources.source import Entry, FieldDecoder, Listing, Source, read_files
    from tfprep.sources.splits import Fractions, GroupFile, Without
    from tfprep.sources.table import Table
    from tfprep.sources.video import Video

__all__ = [
    "Archives", "Arrays", "Coco", "Entry", "FieldDecoder", "Folder", "Fractions", "GroupFile", "LabelMe",
    "Listing", "ObjectTable", "Paired", "Pixels", "Source", "Table", "Video", "Voc", "Without", "Yolo",
    "cityscapes", "read_files",
]  # fmt: skip

__getattr__, __dir__ = lazy_names(__name__, {
    "annotations": ["Coco", "LabelMe", "ObjectTable", "Voc", "Yolo"],
    "archives": ["Archives"],
    "arrays": ["Arrays"],
    "folder": ["Folder"],
    "paired": ["Paired", "cityscapes"],
    "pixels": ["Pixels"],
    "source": ["Entry", "FieldDecoder", "Listing", "Source", "read_files"],
    "splits": ["Fractions", "GroupFile", "Without"],
    "table": ["Table"],
    "video": ["Video"],
})  # fmt: skip
