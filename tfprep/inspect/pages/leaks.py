"""The page of `tfprep check`: counts, suspicions and pairs with pictures, as one file that opens offline."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import pyarrow as pa

from tfprep.dataset import Dataset
from tfprep.inspect.groups import Suspicion
from tfprep.inspect.leaks import Leaks, Pair, searched_for
from tfprep.inspect.pages.pictures import Place, pictures_of
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
        "inspect/pages/leaks.html.j2",
        title=f"{data.name}: duplicates and leaks",
        leaks=leaks,
        samples=sum(leaks.samples.values()),
        searched_for=searched_for(leaks),
        two_labels=pairs_with_pictures(data, leaks, leaks.two_labels[:_MOST_PAIRS], _PICTURE_PX),
        leaking=[
            (split, other, f"{count:,}", f"{100 * count / leaks.samples[split]:.2f} %")
            for split, row in leaks.leaking.items()
            for other, count in row.items()
        ],
        suspicions=suspicions,
        lists=[
            (heading, pairs_with_pictures(data, leaks, pairs[:_MOST_PAIRS], _PICTURE_PX), max(0, total - _MOST_PAIRS))
            for heading, pairs, total in lists
            if pairs
        ],
    )


def pairs_with_pictures(
    data: Dataset, leaks: Leaks, pairs: Sequence[Pair], side_px: int
) -> list[tuple[Pair, str, str]]:
    """Return pairs with both pictures, JPEG in base 64; an empty text for a sample without one."""
    if not pairs:
        return []
    import pyarrow.compute as pc  # takes as long as the rest of Arrow, and most datasets have no leaks

    prints, keys = (
        leaks.fingerprints,
        pa.array([key for pair in pairs for key in (pair.first, pair.second)], pa.string()),
    )
    rows = pc.indices_nonzero(pc.is_in(prints.keys, value_set=keys)).to_pylist()
    places = {(prints.name_of_split(row), prints.key(row)): int(prints.position[row]) for row in rows}
    pictures = pictures_of(data, [Place(split, position) for (split, _), position in places.items()], side_px)

    def picture(split: str, key: str) -> str:
        return pictures.get(Place(split, places[split, key]), "")

    return [(pair, picture(pair.first_split, pair.first), picture(pair.second_split, pair.second)) for pair in pairs]


def leaks_json(leaks: Leaks, suspicions: Sequence[Suspicion]) -> dict[str, Any]:
    """Return the result as plain JSON."""
    return {
        "samples": leaks.samples,
        "distance": leaks.distance,
        "search": asdict(leaks.search),
        "unhashed": leaks.unhashed,
        "undigested": leaks.undigested,
        "pairs": asdict(leaks.counts),
        "leaking": leaks.leaking,
        "excluded": len(leaks.excluded),
        "listed": [{**asdict(pair), "straddles": pair.straddles} for pair in leaks.pairs],
        "two_labels": {"samples": leaks.two_labels_count, "listed": [asdict(pair) for pair in leaks.two_labels]},
        "suspected_groups": [asdict(one) for one in suspicions],
    }
