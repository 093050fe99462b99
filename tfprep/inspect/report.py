"""The report of a dataset: what it holds, what was left out, and what deserves a look.

A build writes it as `report.html`, with what only the build knows; `tfprep stats --html` writes it without. The page of
`tfprep check` is here too: counts, suspicions and pairs with pictures; and what a notebook shows. Each opens offline. They are
made from Jinja2 templates, with every value escaped.
"""

from __future__ import annotations

import base64
import io
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from PIL import Image

from tfprep.dataset import Dataset
from tfprep.dataset.dataset import Splits
from tfprep.errors import MissingDependencyError, TfprepError
from tfprep.fields import Array, Sample
from tfprep.inspect.fingerprints import Suspicion
from tfprep.inspect.leaks import Leaks, Pair, searched_for
from tfprep.inspect.sheet import contact_sheet, marked_image
from tfprep.inspect.stats import MOST_INSPECTED, UNITS, DatasetStats, counted, inspected
from tfprep.units import duration, size

_PACKAGE = Path(__file__).parents[1]
_COMMON_CLASSES, _RARE_CLASSES = 40, 20
_SHEET_CLASSES, _OF_EACH_CLASS = 20, 8
_MOST_PAIRS = 6
_PICTURE_PX, _PAIR_PX = 128, 240
_IN_NOTEBOOK, _IN_NOTEBOOK_PX = 6, 96
_SHEET_SAMPLES, _SHEET_VARIANTS, _PANEL_PX = 4, 4, 112


def render(template: str, **values: Any) -> str:
    """Return the page of a template, such as `bench/page.html.j2`, which is given by its path in the package.

    `values` are the names that it uses; any other name in it is an error.
    """
    return str(environment().get_template(template).render(values))


@cache
def environment() -> Any:
    """Return Jinja2's environment, which compiles each template once."""
    import jinja2  # imported here, as only the commands that write pages need it

    return jinja2.Environment(
        loader=jinja2.FileSystemLoader(_PACKAGE),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        extensions=["jinja2.ext.loopcontrols"],
    )


@dataclass(frozen=True)
class BuildFacts:
    """Facts of the build that a report shows beside those of the dataset.

    Attributes:
        seconds: Wall time of the last run.
        built_samples: Samples in the shards that it built.
        passed_over: What the source passed over, by reason.
        stages: Seconds of all workers by stage, for all shards.
        notes: Sentences about images, such as those that were turned upright by EXIF.
        warned: Key and warning of each sample with a warning.
        code_accepted: Number of shards that other code built than that of the recipe (`--accept-code`).
    """

    seconds: float
    built_samples: int
    passed_over: Mapping[str, int] = field(default_factory=dict)
    stages: Mapping[str, float] = field(default_factory=dict)
    notes: Sequence[str] = ()
    code_accepted: int = 0
    warned: Sequence[tuple[str, str]] = ()


def report_page(data: Dataset, stats: DatasetStats, leaks: Leaks | None, facts: BuildFacts | None = None) -> str:
    """Return the page as HTML; `leaks` is None if duplicates were not looked for, `facts` is what only a build knows."""
    examples = list(_examples(data))
    places = [one for _, samples in examples for one in samples]
    splits = data.manifest.splits.values()
    return render(
        "inspect/pages/report.html.j2",
        title=f"{data.name}: report",
        size=size,
        duration=duration,
        figure=lambda value: f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}",
        manifest=data.manifest,
        totals={
            "samples": sum(split.samples for split in splits),
            "records": sum(split.samples * split.variants for split in splits),
            "bytes": sum(split.bytes for split in splits),
        },
        splits=[
            (*row, size(split.bytes / max(1, split.samples * split.variants)))
            for row, split in zip(Splits(data.splits).rows()[1:], splits, strict=True)
        ],
        fields=[
            (name, info.spec.kind, info.spec.dtype, info.spec.sides, str(info.codec.get("codec", "")))
            for name, info in data.infos.items()
        ],
        statistics=[
            (name, *(", ".join(f"{value:.2f}" for value in values) for values in (one.mean, one.std)))
            for name, one in data.manifest.statistics.items()
        ],
        stats=stats,
        units=UNITS,
        facts=facts,
        classes=[_class_table(data, name) for name in data.manifest.class_counts],
        leaks=leaks,
        pairs=_with_pictures(data, leaks, [one for one in leaks.pairs if one.straddles][:_MOST_PAIRS]) if leaks else [],
        pictures=pictures_of(data, places, _PICTURE_PX),
        most_inspected=MOST_INSPECTED,
        examples=examples,
        sheets=list(_sheets(data)),
        versions=", ".join(f"{name} {number}" for name, number in data.manifest.versions.items()),
    )  # fmt: skip


# --- counts -----------------------------------------------------------------------------------------------------------


def _class_table(data: Dataset, name: str) -> dict[str, Any]:
    """The counts of each class by split. Of many classes, the most common and the rarest."""
    by_split, classes = data.manifest.class_counts[name], data.manifest.classes[name]
    totals = [sum(counts) or 1 for counts in by_split.values()]
    rows: list[dict[str, Any]] = [
        {"name": label, "counts": counts, "shares": [n / total for n, total in zip(counts, totals, strict=True)]}
        for label, *counts in zip(classes, *by_split.values(), strict=True)
    ]
    missing = [(split, sum(not count for count in counts)) for split, counts in by_split.items()]
    left_out = max(0, len(rows) - _COMMON_CLASSES - _RARE_CLASSES)
    if left_out:
        rows.sort(key=lambda row: -sum(row["counts"]))
        rows = rows[:_COMMON_CLASSES] + rows[-_RARE_CLASSES:]
    return {
        "name": name,
        "unit": counted(data.fields[name]),
        "splits": list(by_split),
        "largest": max((share for row in rows for share in row["shares"]), default=0) or 1,
        "rows": rows,
        "left_out": left_out,
        "classes": len(classes),
        "missing": [(split, count) for split, count in missing if count],
    }


# --- pictures ---------------------------------------------------------------------------------------------------------


def _examples(data: Dataset) -> Iterator[tuple[str, list[Place]]]:
    name = next((name for name, spec in data.fields.items() if spec.kind == "label"), None)
    if name is not None and name in data.manifest.classes:
        split = next(iter(data.splits))
        rows, numbers = _labels(data, split)
        for number, label in enumerate(data.manifest.classes[name][:_SHEET_CLASSES]):
            if chosen := np.unique(rows[numbers == number])[:_OF_EACH_CLASS].tolist():
                yield label, [Place(split, row) for row in chosen]


def _labels(data: Dataset, split: str) -> tuple[Array, Array]:
    """Return rows of the index and the numbers of their classes; a list of labels gives a row several times."""
    column = data.index(split, 0, ["label"], first=MOST_INSPECTED)["label"].combine_chunks()
    if not hasattr(column, "flatten") or not hasattr(column, "value_lengths"):
        return np.arange(len(column)), column.to_numpy()
    lengths = column.value_lengths().fill_null(0).to_numpy()
    return np.repeat(np.arange(len(column)), lengths), column.flatten().to_numpy()


def _sheets(data: Dataset) -> Iterator[tuple[str, str]]:
    """Yield each split with samples in all their fields and variants."""
    for split, info in data.splits.items():
        try:
            if info.samples:
                sheet = contact_sheet(data, split, samples=_SHEET_SAMPLES, variants=_SHEET_VARIANTS, panel_px=_PANEL_PX)
                yield split, small_jpeg(sheet, max(sheet.size))
        except TfprepError:  # nothing that can be drawn, which costs the picture, not the report
            continue


# --- the page of `tfprep check` ------

_MOST_LISTED = 60


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
        two_labels=_with_pictures(data, leaks, leaks.two_labels[:_MOST_LISTED]),
        leaking=[
            (split, other, f"{count:,}", f"{100 * count / leaks.samples[split]:.2f} %")
            for split, row in leaks.leaking.items()
            for other, count in row.items()
        ],
        suspicions=suspicions,
        lists=[
            (heading, _with_pictures(data, leaks, pairs[:_MOST_LISTED]), max(0, total - _MOST_LISTED))
            for heading, pairs, total in lists
            if pairs
        ],
    )


def _with_pictures(data: Dataset, leaks: Leaks, pairs: Sequence[Pair]) -> list[tuple[Pair, str, str]]:
    """Return pairs with both pictures, JPEG in base 64; an empty text for a sample without one."""
    prints = leaks.fingerprints
    rows = {row for pair in pairs for row in pair.rows}
    places = {row: Place(prints.name_of_split(row), int(prints.position[row])) for row in rows}
    pictures = pictures_of(data, places.values(), _PAIR_PX)
    shown = {row: pictures.get(place, "") for row, place in places.items()}
    return [(pair, shown[pair.rows[0]], shown[pair.rows[1]]) for pair in pairs]


def leaks_json(leaks: Leaks, suspicions: Sequence[Suspicion]) -> dict[str, Any]:
    """Return the result as plain JSON."""

    def plain(pair: Pair) -> dict[str, Any]:
        return {name: value for name, value in asdict(pair).items() if name != "rows"}

    return {
        **{name: getattr(leaks, name) for name in ("samples", "distance", "unhashed", "undigested", "leaking")},
        "search": asdict(leaks.search),
        "pairs": asdict(leaks.counts),
        "excluded": len(leaks.excluded),
        "listed": [{**plain(pair), "straddles": pair.straddles} for pair in leaks.pairs],
        "two_labels": {"samples": leaks.two_labels_count, "listed": [plain(pair) for pair in leaks.two_labels]},
        "suspected_groups": [asdict(one) for one in suspicions],
    }


# --- what a notebook shows


def summary_html(data: Dataset) -> str:
    """Return the summary as a piece of HTML; the pictures are of the first split that has samples."""
    fields = [(name, one.kind, one.sides, one.dtype) for name, one in data.fields.items()]
    split = next((name for name, info in data.splits.items() if info.samples), None)
    places = [] if split is None else [Place(split, row) for row in inspected(data.splits[split].samples, _IN_NOTEBOOK)]
    try:
        pictures = list(pictures_of(data, places, _IN_NOTEBOOK_PX).values())
    except MissingDependencyError:  # boxes are drawn with OpenCV
        pictures = []
    return render(
        "inspect/pages/summary.html.j2",
        name=f"{data.name} in {data.path}",
        splits=Splits(data.splits).rows(),
        fields=[("field", "kind", "shape", "dtype"), *fields],
        pictures=pictures,
    )


# --- small pictures: the first image with its boxes and points ----


class Place(NamedTuple):
    """A sample: its split, and its row in the index of the split."""

    split: str
    position: int


def pictures_of(data: Dataset, places: Iterable[Place], side_px: int) -> dict[Place, str]:
    """Return pictures of samples of variant 0, at most `side_px` a side; samples without an image are left out."""
    by_split: dict[str, set[Place]] = defaultdict(set)
    for place in places:
        by_split[place.split].add(place)
    return {
        place: small_jpeg(Image.fromarray(picture), side_px)
        for split, of_split in by_split.items()
        for place, sample in _samples(data, split, sorted(of_split))
        if (picture := marked_image(data, sample)) is not None
    }


def small_jpeg(picture: Image.Image, side_px: int) -> str:
    """Return a picture as a JPEG of at most `side_px` a side, in base 64."""
    file = io.BytesIO()
    picture.thumbnail((side_px, side_px), Image.Resampling.HAMMING)  # two thirds of the time of the default
    picture.save(file, "JPEG", quality=80)
    return base64.b64encode(file.getvalue()).decode()


def _samples(data: Dataset, split: str, places: Sequence[Place]) -> Iterator[tuple[Place, Sample]]:
    fields = [name for name, spec in data.fields_of(split).items() if spec.kind in ("image", "boxes", "points")]
    rest = list(places)
    while rest:
        try:
            for sample in data.samples(split, positions=[place.position for place in rest], fields=fields):
                yield rest.pop(0), sample
        except TfprepError:
            rest.pop(0)  # A record that cannot be read costs its picture, not the page.
