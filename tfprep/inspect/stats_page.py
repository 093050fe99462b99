"""The page of `tfprep stats`: distributions, classes, rejects, samples that are hard to see and samples of each class."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from tfprep.dataset import Dataset
from tfprep.inspect.leaks import PairCounts
from tfprep.inspect.leaks_page import picture_of
from tfprep.inspect.stats import DatasetStats
from tfprep.pages import render

_MOST_CLASSES, _SHEET_CLASSES, _OF_EACH_CLASS = 60, 20, 8
_PICTURE_PX = 128


def stats_page(data: Dataset, stats: DatasetStats, leaks: PairCounts | None) -> str:
    """Return the page as HTML; `leaks` are the numbers of duplicates, None if they are not known."""
    return render(
        "inspect/stats.html.j2",
        title=f"{data.name}: statistics",
        stats=stats,
        leaks=leaks,
        rejected=data.manifest.rejects,
        rejects=[(f"{count:,}", reason) for reason, count in stats.rejects.items()],
        classes=[_class_table(data, stats, field) for field in stats.class_counts],
        hardest=[
            (title, [(one, picture_of(data, one.split, one.position, _PICTURE_PX)) for one in samples])
            for title, samples in stats.hardest.items()
        ],
        sheet=list(_sheet(data)),
    )


def _class_table(data: Dataset, stats: DatasetStats, field: str) -> dict[str, Any]:
    counts = stats.class_counts[field]
    splits = list(next(iter(counts.values()), {}))
    totals = {split: sum(of_class[split] for of_class in counts.values()) or 1 for split in splits}
    rows: list[dict[str, Any]] = [
        {"name": name, "counts": list(of.values()), "shares": [of[split] / totals[split] for split in splits]}
        for name, of in counts.items()
    ]
    return {
        "name": field,
        "unit": "pixels" if data.fields[field].kind == "mask" else "samples",
        "splits": splits,
        "largest": max((share for row in rows for share in row["shares"]), default=0) or 1,
        "rows": rows[:_MOST_CLASSES],
        "more": max(0, len(rows) - _MOST_CLASSES),
    }


def _sheet(data: Dataset) -> Iterator[tuple[str, list[str]]]:
    """Yield the names of the first classes with pictures of some samples of each, from the first split."""
    field = next((name for name, spec in data.fields.items() if spec.kind == "label" and spec.shape == ()), None)
    if field is None or field not in data.manifest.classes:
        return
    split = next(iter(data.splits))
    labels = data.index(split, 0, ["label"])["label"].to_numpy()
    for number, name in enumerate(data.manifest.classes[field][:_SHEET_CLASSES]):
        rows = np.flatnonzero(labels == number)[:_OF_EACH_CLASS].tolist()
        pictures = [picture_of(data, split, row, _PICTURE_PX) for row in rows]
        if any(pictures):
            yield name, [picture for picture in pictures if picture]
