"""Sources whose samples are members of larger files."""

from tfprep.sources.containers.archives import Archives
from tfprep.sources.containers.video import Video

__all__ = ["Archives", "Video"]
