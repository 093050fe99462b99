"""What a notebook shows of a dataset: its splits, its fields and some pictures."""

from __future__ import annotations

from tfprep.dataset import Dataset
from tfprep.dataset.dataset import Splits
from tfprep.dataset.index import inspected
from tfprep.errors import MissingDependencyError
from tfprep.inspect.pages import render
from tfprep.inspect.pages.report import Place, pictures_of

_PICTURES, _PICTURE_PX = 6, 96


def summary_html(data: Dataset) -> str:
    """Return the summary as a piece of HTML; the pictures are of the first split that has samples."""
    shapes = {name: " x ".join("?" if n is None else str(n) for n in one.shape) for name, one in data.fields.items()}
    fields = [(name, one.kind, shapes[name] or "-", one.dtype) for name, one in data.fields.items()]
    split = next((name for name, info in data.splits.items() if info.samples), None)
    places = [] if split is None else [Place(split, row) for row in inspected(data.splits[split].samples, _PICTURES)]
    try:
        pictures = list(pictures_of(data, places, _PICTURE_PX).values())
    except MissingDependencyError:  # boxes are drawn with OpenCV
        pictures = []
    return render(
        "inspect/pages/summary.html.j2",
        name=f"{data.name} in {data.path}",
        splits=Splits(data.splits).rows(),
        fields=[("field", "kind", "shape", "dtype"), *fields],
        pictures=pictures,
    )
