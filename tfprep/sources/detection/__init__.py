"""Recognizes the layout of a folder of raw data, for `tfprep init`: a layout is accepted only if a rule explains every file.

A rule proposes a source with its options and names the side files of its format. The source's own listing says which files it
reads. Files that are left over, and doubts, refuse the layout.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple, TypeAlias, get_args

from tfprep.sources.splits import Fractions

FRACTIONS = Fractions(train=0.8, val=0.2)
"""Shares of data that comes without splits."""
BY_CLASS = Fractions(train=0.8, val=0.2, stratify="label")
"""The same for data with classes: each of them has its share in every split."""

Layout: TypeAlias = Literal[
    "coco", "voc", "yolo", "labelme", "table", "masks", "folders", "images", "archives", "arrays", "videos"
]
"""The layouts that `tfprep init --as` names."""
LAYOUTS: tuple[str, ...] = get_args(Layout)


class Proposal(NamedTuple):
    """A source that a rule proposes.

    Attributes:
        layout: The layout by its name in `LAYOUTS`.
        source: The source.
        declared: Patterns and paths of further files that the rule explains: annotations, and the side files of the format.
        checks: What a user should check: what decides labels, splits or masks and may be meant otherwise.
        doubts: Reasons to refuse the source unless the user asks for it.
        others: Other forms of the source, the likely ones first: the first is taken whose samples can be built.
        unlabeled: Paths of images that the annotations name without labels, as those of a test split.
    """

    layout: str
    source: Any
    declared: Sequence[str] = ()
    checks: Sequence[str] = ()
    doubts: Sequence[str] = ()
    others: Sequence[Any] = ()
    unlabeled: frozenset[str] = frozenset()
