"""Derived inputs: arrays computed from the warped sample, after geometry and before colour.

Each is a frozen dataclass called with (sample, generator). A derived input sees the fields derived before it, so they chain:
`{"object": OneObject(target=8), "clicks": Clicks(mask="object", target=1)}`.
"""

from tfprep.derive.clicks import ClickMaps, ClickPoints, Clicks
from tfprep.derive.derived import Derived
from tfprep.derive.distance import Distance, SignedDistance
from tfprep.derive.filters import Canny, ChannelStatistics, Sobel
from tfprep.derive.geodesic import GeodesicDistance
from tfprep.derive.heatmaps import ExtremePoints, Heatmaps
from tfprep.derive.instances import InstanceBoxes, InstanceCenters, InstanceClasses, InstanceOffsets, OneInstance
from tfprep.derive.labels import Boundaries, OneHot, OneObject
from tfprep.derive.unet import UNetWeights

__all__ = [
    "Boundaries",
    "Canny",
    "ChannelStatistics",
    "ClickMaps",
    "ClickPoints",
    "Clicks",
    "Derived",
    "Distance",
    "ExtremePoints",
    "GeodesicDistance",
    "Heatmaps",
    "InstanceBoxes",
    "InstanceCenters",
    "InstanceClasses",
    "InstanceOffsets",
    "OneHot",
    "OneInstance",
    "OneObject",
    "SignedDistance",
    "Sobel",
    "UNetWeights",
]
