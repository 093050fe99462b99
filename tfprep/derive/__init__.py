"""Derived inputs: arrays computed from the warped sample, after geometry and before color.

Each is a frozen dataclass called with (sample, generator). A derived input sees the fields derived before it, so they chain:
`{"object": OneObject(target=8), "clicks": Clicks(mask="object", target=1)}`. `mask` names the field of class or instance numbers;
`background` and `void` are the numbers that are not an object, and instances of fewer than `min_px` pixels are left out.

Names are imported when they are first used: a recipe uses a few of them, and each worker of a build imports only those.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tfprep.optional import lazy_names

if TYPE_CHECKING:
    from tfprep.derive.clicks import ClickMaps, ClickPoints, Clicks
    from tfprep.derive.distance import Distance, SignedDistance, UNetWeights
    from tfprep.derive.filters import Canny, Sobel
    from tfprep.derive.heatmaps import Heatmaps
    from tfprep.derive.inputs import Derived, Own
    from tfprep.derive.labels import (
        Boundaries,
        InstanceBoxes,
        InstanceCenters,
        InstanceClasses,
        InstanceOffsets,
        OneHot,
        OneInstance,
        OneObject,
    )

__all__ = [
    "Boundaries", "Canny", "ClickMaps", "ClickPoints", "Clicks", "Derived", "Distance",
    "Heatmaps", "InstanceBoxes", "InstanceCenters", "InstanceClasses",
    "InstanceOffsets", "OneHot", "OneInstance", "OneObject", "Own", "SignedDistance", "Sobel", "UNetWeights",
]  # fmt: skip

__getattr__, __dir__ = lazy_names(__name__, {
    "clicks": ["ClickMaps", "ClickPoints", "Clicks"],
    "distance": ["Distance", "SignedDistance", "UNetWeights"],
    "filters": ["Canny", "Sobel"],
    "heatmaps": ["Heatmaps"],
    "inputs": ["Derived", "Own"],
    "labels": [
        "Boundaries", "InstanceBoxes", "InstanceCenters", "InstanceClasses", "InstanceOffsets", "OneHot", "OneInstance",
        "OneObject",
    ],
})  # fmt: skip
