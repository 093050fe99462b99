"""Derived inputs: arrays computed from the warped sample, after geometry and before colour."""

from tfprep.derive.clicks import Clicks
from tfprep.derive.derived import Derived
from tfprep.derive.distance import Distance, SignedDistance

__all__ = ["Clicks", "Derived", "Distance", "SignedDistance"]
