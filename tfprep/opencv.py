"""OpenCV, imported when it is first used: datasets are opened, loaded and checked without it.

`from tfprep.opencv import cv2` takes the place of `import cv2`.
"""

from __future__ import annotations

import importlib
import importlib.util
from typing import TYPE_CHECKING, Any

from tfprep.optional import require_package

HAS_OPENCV = importlib.util.find_spec("cv2") is not None
"""Whether OpenCV is installed."""
CV_CHANNELS = 128
"""The most channels of an array in OpenCV 5; 512 in OpenCV 4."""
__all__ = ["CV_CHANNELS", "HAS_OPENCV", "cv2"]

if TYPE_CHECKING:
    import cv2
else:

    class _OpenCv:
        """Stands for the module; each name is kept here when it is first used."""

        def __getattr__(self, name: str) -> Any:
            if not HAS_OPENCV:  # looking it up again would fail: OpenCV replaces its module while it is imported
                instead = "datasets are opened, loaded and checked without it"
                require_package("cv2", "what warps, draws or encodes pixels", instead)
            value = getattr(importlib.import_module("cv2"), name)
            setattr(self, name, value)
            return value

    cv2 = _OpenCv()
