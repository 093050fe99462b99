"""The versions that decide what bytes a build makes."""

from __future__ import annotations

from functools import cache
from importlib.metadata import version
from platform import python_version

from tfprep import __version__

MAKER = 1
"""Raised whenever tfprep itself makes other bytes of the same recipe and inputs, so that older shards are built anew."""
_PIXELS = ("numpy", "opencv-python-headless", "pillow", "simplejpeg")
"""The libraries that turn files into pixels and back."""


@cache
def maker_versions() -> dict[str, str]:
    """What a shard's bytes depend on beside recipe and inputs: part of its fingerprint."""
    return {"maker": str(MAKER), **{name: _version(name) for name in _PIXELS}}


@cache
def recorded_versions() -> dict[str, str]:
    """What `tfprep.json` says about the software that built it."""
    pixels = {name: number for name, number in maker_versions().items() if name != "maker"}
    return {"tfprep": __version__, "python": python_version(), **pixels, "pyarrow": _version("pyarrow")}


def _version(name: str) -> str:
    return version(name)
