"""Small pictures of samples for the pages: the first image with its boxes and points, as JPEG in base 64."""

from __future__ import annotations

import base64
import io
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
from PIL import Image

from tfprep.dataset import Dataset
from tfprep.dataset.sheet import marked_image, outlined
from tfprep.errors import TfprepError
from tfprep.fields import ImageArray, Sample


class Place(NamedTuple):
    """A sample: its split, and its row in the index of the split; `mask_class` is a class of the mask to outline."""

    split: str
    position: int
    mask_class: int | None = None


def pictures_of(data: Dataset, places: Iterable[Place], side_px: int) -> dict[Place, str]:
    """Return pictures of samples of variant 0, at most `side_px` a side; samples without an image are left out.

    Args:
        data: The dataset.
        places: The samples.
        side_px: The longer side of a picture.
    """
    by_split: dict[str, set[Place]] = defaultdict(set)
    for place in places:
        by_split[place.split].add(place)
    return {
        place: small_jpeg(Image.fromarray(picture), side_px)
        for split, of_split in by_split.items()
        for place, sample in _samples(data, split, sorted(of_split, key=lambda place: place.position))
        if (picture := _drawn(data, sample, place.mask_class)) is not None
    }


def small_jpeg(picture: Image.Image, side_px: int) -> str:
    """Return a picture as a JPEG of at most `side_px` a side, in base 64."""
    file = io.BytesIO()
    picture.thumbnail((side_px, side_px))
    picture.save(file, "JPEG", quality=80)
    return base64.b64encode(file.getvalue()).decode()


def mask_field(data: Dataset) -> str | None:
    """Return the first mask whose classes have names."""
    masks = (name for name, spec in data.fields.items() if spec.kind == "mask" and name in data.manifest.classes)
    return next(masks, None)


def _samples(data: Dataset, split: str, places: Sequence[Place]) -> Iterator[tuple[Place, Sample]]:
    fields = [name for name, spec in data.fields.items() if spec.kind in ("image", "boxes", "points")]
    fields += [name for name in [mask_field(data)] if name and any(place.mask_class is not None for place in places)]
    rest = list(places)
    while rest:
        try:
            for sample in data.samples(split, positions=[place.position for place in rest], fields=fields):
                yield rest.pop(0), sample
        except TfprepError:
            rest.pop(0)  # A record that cannot be read costs its picture, not the page.


def _drawn(data: Dataset, sample: Sample, mask_class: int | None) -> ImageArray | None:
    picture, mask = marked_image(data, sample), mask_field(data)
    if picture is None:
        return None
    return np.ascontiguousarray(
        picture if mask_class is None or mask is None else outlined(picture, sample[mask] == mask_class)
    )
