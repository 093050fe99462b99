"""tfprep: image preprocessing done once, ahead of training."""

from tfprep._version import __version__

__all__ = ["__version__"]
