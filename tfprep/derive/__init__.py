"""Derived inputs: arrays computed from the warped sample, after geometry and before colour.

Each is a frozen dataclass called with (sample, generator). A derived input sees the fields derived before it, so they chain:
`{"object": OneObject(target=8), "clicks": Clicks(mask="object", target=1)}`.

Names are imported when they are first used: a recipe uses a few of them, and each worker of a build imports those alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tfprep.lazy import lazy_names

if TYPE_CHECKING:
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

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "clicks": ["ClickMaps", "ClickPoints", "Clicks"],
        "derived": ["Derived"],
        "distance": ["Distance", "SignedDistance"],
        "filters": ["Canny", "ChannelStatistics", "Sobel"],
        "geodesic": ["GeodesicDistance"],
        "heatmaps": ["ExtremePoints", "Heatmaps"],
        "instances": ["InstanceBoxes", "InstanceCenters", "InstanceClasses", "InstanceOffsets", "OneInstance"],
        "labels": ["Boundaries", "OneHot", "OneObject"],
        "unet": ["UNetWeights"],
    },
)
