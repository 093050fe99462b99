"""Recognizes the layout of a folder of raw data, for `tfprep init`; here the answers of the detectors."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, NamedTuple, TypeAlias, get_args

from tfprep.errors import SourceError
from tfprep.sources.source import Source
from tfprep.sources.splits import Fractions

FRACTIONS = Fractions(train=0.8, val=0.2)
"""Shares of data that comes without splits."""
BY_CLASS = Fractions(train=0.8, val=0.2, stratify="label")
"""The same for data with classes: each of them has its share in every split."""

Layout: TypeAlias = Literal["coco", "voc", "yolo", "labelme", "masks", "table", "folders", "images"]
"""The layouts that `tfprep init --as` names."""
LAYOUTS: tuple[str, ...] = get_args(Layout)
WITHOUT_ANNOTATIONS = ("folders", "images")


class LayoutGuess(NamedTuple):
    """A source that may fit.

    Attributes:
        kind: The layout by its name in `LAYOUTS`, or another word for files that hold many samples each.
        source: The source.
        layout: The layout in words, with the evidence.
        doubts: What is not certain about it.
    """

    kind: str
    source: Source
    layout: str
    doubts: tuple[str, ...] = ()


class Refusal(NamedTuple):
    """Annotations that were recognized and cannot be read: the layout, and the error that says why."""

    kind: str
    error: SourceError


Answers: TypeAlias = Iterator[LayoutGuess | Refusal]
"""The answers of one detector, those that say the most first."""
