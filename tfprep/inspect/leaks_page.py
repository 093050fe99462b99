"""The page of `tfprep check`: counts, suspicions and pairs with pictures, as one file that opens offline."""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
from PIL import Image

from tfprep.dataset import Dataset
from tfprep.dataset.sheet import marked_image
from tfprep.errors import TfprepError
from tfprep.fields import ImageArray
from tfprep.inspect.groups import Suspicion
from tfprep.inspect.leaks import Leaks, Pair
from tfprep.pages import render

_MOST_PAIRS = 60
_PICTURE_PX = 240


def leaks_page(data: Dataset, leaks: Leaks, suspicions: Sequence[Suspicion]) -> str:
    """Return the page as HTML."""
    across = [pair for pair in leaks.pairs if pair.straddles]
    within = [pair for pair in leaks.pairs if not pair.straddles]
    counts = leaks.counts
    lists = (
        ("Pairs across splits", across, max(counts.near_across, counts.exact_across)),
        ("Pairs within a split", within, max(counts.near_within, counts.exact_within)),
    )
    return render(
        "inspect/leaks.html.j2",
        title=f"{data.name}: duplicates and leaks",
        leaks=leaks,
        samples=sum(leaks.samples.values()),
        leaking=[
            (split, other, f"{count:,}", f"{100 * count / leaks.samples[split]:.2f} %")
            for split, row in leaks.leaking.items()
            for other, count in row.items()
        ],
        suspicions=suspicions,
        lists=[
            (heading, list(_with_pictures(data, leaks, pairs[:_MOST_PAIRS])), max(0, total - _MOST_PAIRS))
            for heading, pairs, total in lists
            if pairs
        ],
    )


def _with_pictures(data: Dataset, leaks: Leaks, pairs: Sequence[Pair]) -> list[tuple[Pair, str, str]]:
    wanted = {(split, key) for pair in pairs for split, key in _places(pair)}
    pictures = {place: picture_of(data, place[0], position) for place, position in _positions(leaks, wanted).items()}
    return [(pair, *(pictures.get(place, "") for place in _places(pair))) for pair in pairs]  # type: ignore[misc]


def _places(pair: Pair) -> tuple[tuple[str, str], tuple[str, str]]:
    return (pair.first_split, pair.first), (pair.second_split, pair.second)


def _positions(leaks: Leaks, places: set[tuple[str, str]]) -> Mapping[tuple[str, str], int]:
    prints, keys = leaks.fingerprints, {key for _, key in places}
    rows = [row for row, key in enumerate(prints.keys.to_pylist()) if key in keys]
    return {(prints.name_of_split(row), prints.key(row)): int(prints.position[row]) for row in rows}


def picture_of(data: Dataset, split: str, position: int, side_px: int = _PICTURE_PX) -> str:
    """Return the first image of variant 0 of a sample, as a small JPEG in base 64; an empty text if there is none."""
    try:
        (sample,) = data.samples(split, positions=[position])
        return small_jpeg(marked_image(data, sample), side_px)
    except TfprepError:  # A picture that cannot be drawn costs the picture, not the page.
        return ""


def small_jpeg(pixels: ImageArray | None, side_px: int) -> str:
    """Return pixels [H, W, 3] as a JPEG of at most `side_px` a side, in base 64; an empty text for None."""
    if pixels is None:
        return ""
    picture, file = Image.fromarray(np.ascontiguousarray(pixels)), io.BytesIO()
    picture.thumbnail((side_px, side_px))
    picture.save(file, "JPEG", quality=80)
    return base64.b64encode(file.getvalue()).decode()


def as_json(leaks: Leaks, suspicions: Sequence[Suspicion]) -> dict[str, Any]:
    """Return the result as plain JSON."""
    return {
        "samples": leaks.samples,
        "distance": leaks.distance,
        "unhashed": leaks.unhashed,
        "undigested": leaks.undigested,
        "pairs": asdict(leaks.counts),
        "leaking": leaks.leaking,
        "excluded": len(leaks.excluded),
        "listed": [{**asdict(pair), "straddles": pair.straddles} for pair in leaks.pairs],
        "suspected_groups": [asdict(one) for one in suspicions],
    }
