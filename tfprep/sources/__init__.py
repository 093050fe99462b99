"""Where samples come from: one file a source."""

from tfprep.sources.folder import Folder
from tfprep.sources.paired import Paired
from tfprep.sources.source import Entry, Listing, Source, read_files
from tfprep.sources.splits import Fractions

__all__ = ["Entry", "Folder", "Fractions", "Listing", "Paired", "Source", "read_files"]
