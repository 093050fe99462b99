"""Sources: where samples come from. Each source is one module."""

from tfprep.sources.folder import Folder
from tfprep.sources.paired import Paired
from tfprep.sources.source import Entry, Listing, Source, read_files
from tfprep.sources.splits import Fractions
from tfprep.sources.table import Table

__all__ = ["Entry", "Folder", "Fractions", "Listing", "Paired", "Source", "Table", "read_files"]
