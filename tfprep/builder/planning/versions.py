"""Versions of the software that decides what bytes a build makes."""

from __future__ import annotations

from functools import cache
from platform import python_version

import cv2
import numpy as np
import PIL
import simplejpeg

from tfprep import __version__

MAKER = 3
"""Raised whenever tfprep itself makes other bytes of the same recipe and inputs, so that older shards are built again."""

PRECISE_OPENCV = 5
"""The first version whose `warpAffine` interpolates at exact coordinates instead of a table of 32 x 32 fractions."""


@cache
def maker_versions() -> dict[str, str]:
    """Return the versions of the libraries that turn files into pixels and back; a shard's fingerprint covers them."""
    return {
        "maker": str(MAKER),
        "numpy": np.__version__,
        "opencv": cv2.__version__,
        "pillow": PIL.__version__,
        "simplejpeg": simplejpeg.__version__,
    }


def building_versions() -> dict[str, str]:
    """Return the versions that all machines of one build share: of the libraries, of tfprep, and of Python."""
    return {"python": python_version(), "tfprep": __version__, **maker_versions()}


def warning_of_opencv() -> str:
    """Return what an old OpenCV costs; empty for a version that warps with full precision."""
    if int(cv2.__version__.partition(".")[0]) >= PRECISE_OPENCV:
        return ""
    return f"OpenCV {cv2.__version__} rounds warps to 1/32 pixel; version {PRECISE_OPENCV} does not"


@cache
def recorded_versions() -> dict[str, str]:
    """Return the versions that `tfprep.json` names."""
    import pyarrow as pa  # Not at the top: worker processes import this module and need no Arrow.

    libraries = {name: number for name, number in maker_versions().items() if name != "maker"}
    return {"tfprep": __version__, "python": python_version(), **libraries, "pyarrow": pa.__version__}
