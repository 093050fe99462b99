"""The report of a dataset: what it holds, what was left out, and what deserves a look.

A build writes it as `report.html`, with what only the build knows; `tfprep stats --html` writes it without.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tfprep.dataset import Dataset, Manifest
from tfprep.dataset.arrow import numpy_column
from tfprep.dataset.index import MOST_INSPECTED
from tfprep.dataset.sheet import contact_sheet
from tfprep.errors import TfprepError
from tfprep.fields import RASTER_KINDS, Array
from tfprep.inspect.leaks import Leaks
from tfprep.inspect.pages.leaks import pairs_with_pictures
from tfprep.inspect.pages.pictures import Place, mask_field, pictures_of, small_jpeg
from tfprep.inspect.stats import DatasetStats
from tfprep.pages import prepare, render
from tfprep.units import duration, size

_COMMON_CLASSES, _RARE_CLASSES = 40, 20
_SHEET_CLASSES, _OF_EACH_CLASS = 20, 8
_MOST_PAIRS = 6
_PICTURE_PX, _PAIR_PX = 128, 240
_SHEET_SAMPLES, _SHEET_VARIANTS, _PANEL_PX = 4, 4, 112


@dataclass(frozen=True)
class BuildFacts:
    """Facts of the build that a report shows beside those of the dataset.

    Attributes:
        seconds: Wall time of the last run.
        built_samples: Samples in the shards that it built.
        passed_over: What the source passed over, by reason.
        stages: Seconds of all workers by stage, for all shards.
        profiles: Number of images whose colour profile is not sRGB, by its name, stored as they are.
    """

    seconds: float
    built_samples: int
    passed_over: Mapping[str, int] = field(default_factory=dict)
    stages: Mapping[str, float] = field(default_factory=dict)
    profiles: Mapping[str, int] = field(default_factory=dict)


def report_page(data: Dataset, stats: DatasetStats, leaks: Leaks | None, facts: BuildFacts | None = None) -> str:
    """Return the page as HTML.

    Args:
        data: The dataset.
        stats: Its statistics.
        leaks: Its duplicates; None if they are not known.
        facts: What only its build knows.
    """
    examples = list(_examples(data, stats))
    shown = [
        *(one for _, _, samples in examples for one in samples),
        *(Place(one.split, one.position) for of_one in stats.hardest.values() for one in of_one),
    ]
    splits = data.manifest.splits.values()
    return render(
        "inspect/pages/report.html.j2",
        title=f"{data.name}: report",
        size=size,
        duration=duration,
        figure=_figure,
        manifest=data.manifest,
        totals={
            "samples": sum(split.samples for split in splits),
            "records": sum(split.samples * split.variants for split in splits),
            "bytes": sum(split.bytes for split in splits),
        },
        splits=list(_split_rows(data.manifest)),
        fields=[
            (name, info.spec.kind, info.spec.dtype, _shape(info.spec.shape), str(info.codec.get("codec", "")))
            for name, info in data.manifest.fields.items()
        ],
        statistics=[(name, _numbers(one.mean), _numbers(one.std)) for name, one in data.manifest.statistics.items()],
        stats=stats,
        facts=facts,
        classes=[_class_table(data, stats, name) for name in stats.class_counts],
        leaks=leaks,
        pairs=pairs_with_pictures(data, leaks, [pair for pair in leaks.pairs if pair.straddles][:_MOST_PAIRS], _PAIR_PX)
        if leaks
        else [],
        pictures=pictures_of(data, shown, _PICTURE_PX),
        most_inspected=MOST_INSPECTED,
        examples=examples,
        sheets=list(_sheets(data)),
        versions=", ".join(f"{name} {number}" for name, number in data.manifest.versions.items()),
    )


def prepare_report() -> None:
    """Import and compile what `report_page` needs, while there is nothing else to do."""
    prepare(*(f"inspect/pages/{name}.html.j2" for name in ("report", "page", "macros")))


# --- counts -----------------------------------------------------------------------------------------------------------


def _split_rows(manifest: Manifest) -> Iterator[tuple[str, ...]]:
    for name, split in manifest.splits.items():
        record = split.bytes / max(1, split.samples * split.variants)
        yield name, f"{split.samples:,}", str(split.variants), str(split.shards), size(split.bytes), size(record)


def _figure(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def _numbers(values: Sequence[float]) -> str:
    return ", ".join(f"{value:.2f}" for value in values)


def _shape(shape: Sequence[int | None]) -> str:
    return " × ".join("any" if axis is None else str(axis) for axis in shape) or "scalar"


def _class_table(data: Dataset, stats: DatasetStats, name: str) -> dict[str, Any]:
    """The counts of each class by split. Of many classes, the most common and the rarest."""
    counts = stats.class_counts[name]
    splits = list(next(iter(counts.values()), {}))
    totals = {split: sum(of_class[split] for of_class in counts.values()) or 1 for split in splits}
    rows: list[dict[str, Any]] = [
        {"name": label, "counts": list(of.values()), "shares": [of[split] / totals[split] for split in splits]}
        for label, of in counts.items()
    ]
    missing = [(split, sum(not of[split] for of in counts.values())) for split in splits]
    left_out = max(0, len(rows) - _COMMON_CLASSES - _RARE_CLASSES)
    if left_out:
        rows.sort(key=lambda row: -sum(row["counts"]))
        rows = rows[:_COMMON_CLASSES] + rows[-_RARE_CLASSES:]
    return {
        "name": name,
        "unit": "pixels" if name in data.fields and data.fields[name].kind == "mask" else "samples",
        "splits": splits,
        "largest": max((share for row in rows for share in row["shares"]), default=0) or 1,
        "rows": rows,
        "left_out": left_out,
        "classes": len(counts),
        "missing": [(split, count) for split, count in missing if count],
    }


# --- pictures ---------------------------------------------------------------------------------------------------------


def _examples(data: Dataset, stats: DatasetStats) -> Iterator[tuple[str, str, list[Place]]]:
    """Yield the field, the name of a class and samples that show it."""
    name = next((name for name, spec in data.fields.items() if spec.kind == "label"), None)
    if name is not None and name in data.manifest.classes:
        split = next(iter(data.splits))
        rows, numbers = _labels(data, split)
        for number, label in enumerate(data.manifest.classes[name][:_SHEET_CLASSES]):
            chosen = np.unique(rows[numbers == number])[:_OF_EACH_CLASS].tolist()
            if chosen:
                yield name, label, [Place(split, row) for row in chosen]
    mask = mask_field(data)
    numbers_of = {label: number for number, label in enumerate(data.manifest.classes[mask])} if mask else {}
    for label, samples in list(stats.largest_areas.items())[:_SHEET_CLASSES]:
        yield "the largest areas of", label, [Place(one.split, one.position, numbers_of[label]) for one in samples]


def _labels(data: Dataset, split: str) -> tuple[Array, Array]:
    """Return rows of the index and the numbers of their classes; a list of labels gives a row several times."""
    column = data.index(split, 0, ["label"], first=MOST_INSPECTED)["label"].combine_chunks()
    if not hasattr(column, "flatten") or not hasattr(column, "value_lengths"):
        return np.arange(len(column)), numpy_column(column)
    lengths = numpy_column(column.value_lengths(), 0)
    return np.repeat(np.arange(len(column)), lengths), numpy_column(column.flatten())


def _sheets(data: Dataset) -> Iterator[tuple[str, str]]:
    """Yield each split with samples in all their fields and variants."""
    if not any(spec.kind in RASTER_KINDS for spec in data.fields.values()):
        return
    for split, info in data.splits.items():
        try:
            if info.samples:
                sheet = contact_sheet(data, split, samples=_SHEET_SAMPLES, variants=_SHEET_VARIANTS, panel_px=_PANEL_PX)
                yield split, small_jpeg(sheet, max(sheet.size))
        except TfprepError:  # A field that cannot be drawn costs the picture, not the report.
            continue
