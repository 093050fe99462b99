"""Masks that are pictures of colours: which colours there are, and which class number each gets."""

from __future__ import annotations

from itertools import islice
from pathlib import Path

import numpy as np

from tfprep.errors import SampleError
from tfprep.images import decode_image
from tfprep.sources.paired import CAMVID_CLASSES, Paired, camvid
from tfprep.sources.source import read_files

MOST_COLOURS = 64
"""A mask of colours has one colour for each class; a picture has thousands."""
MASKS_OPENED = 300

Colour = tuple[int, int, int]


def colours_of(source: Paired, root: Path) -> tuple[list[Colour], int] | None:
    """Return the colours in the masks of a source, black first, and the number of masks opened; None if these are no masks."""
    listing = source.scan(root)
    place = listing.files.index("mask")
    seen: set[int] = set()
    opened = 0
    for entry in islice(listing.entries, MASKS_OPENED):
        try:
            raw = read_files(root, listing.files, entry)[listing.files[place]]
            codes = decode_image(raw).astype(np.int64) @ np.array([1 << 16, 1 << 8, 1])
        except SampleError:
            continue
        opened += 1
        seen.update(np.unique(codes).tolist())
        if len(seen) > MOST_COLOURS:
            return None
    return [(code >> 16, code >> 8 & 255, code & 255) for code in sorted(seen)], opened


def palette_of(colours: list[Colour]) -> tuple[dict[Colour, int], tuple[str, ...]]:
    """Return a class number for each colour, and the names of the classes if these are the colours of a known data set."""
    known = camvid().palette
    if len(colours) > 2 and all(colour in known for colour in colours):
        return dict(known), CAMVID_CLASSES
    return {colour: number for number, colour in enumerate(colours)}, ()
