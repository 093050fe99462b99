"""Recognizes the layout of a folder of raw data, for `tfprep init`: a layout is accepted only if a rule explains every file.

A rule proposes a source with its options and names the side files of its format. The source's own listing says which files it
reads. Files that are left over, and doubts, refuse the layout.
"""

from __future__ import annotations

from typing import Literal, TypeAlias, get_args

from tfprep.sources.splits import Fractions

FRACTIONS = Fractions(train=0.8, val=0.2)
"""Shares of data that comes without splits."""

Layout: TypeAlias = Literal[
    "coco", "voc", "yolo", "labelme", "table", "masks", "folders", "images", "archives", "arrays", "videos"
]
"""The layouts that `tfprep init --as` names."""
LAYOUTS: tuple[str, ...] = get_args(Layout)


def splits_for(pattern: str, labeled: bool = False) -> Fractions | None:
    """Return the option `splits` of a source: None if its pattern gives the splits, else shares, of each class if it has some."""
    if "{split}" in pattern:
        return None
    return Fractions(train=0.8, val=0.2, stratify="label") if labeled else FRACTIONS
