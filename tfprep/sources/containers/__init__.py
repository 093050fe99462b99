"""Sources whose samples are members of larger files."""

from tfprep.sources.containers.archives import Archives

__all__ = ["Archives"]
