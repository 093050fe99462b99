"""Statistics of a dataset: counts from its manifest and index, and what is measured on the images of variant 0."""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import cv2
import numpy as np

from tfprep.dataset import Dataset
from tfprep.dataset.names import REJECTS
from tfprep.errors import DatasetError
from tfprep.fields import Array
from tfprep.storage.urls import open_file

BINS = 24
_HARDEST = 8
_SHARPNESS_SIDE = 256
"""Images are compared at this longer side, so that a large one does not count as blurred."""
_MOST_REJECT_BYTES = 64 << 20


@dataclass(frozen=True)
class Distribution:
    """Numbers summed up: how many, their smallest, quartiles and largest, and a histogram.

    Attributes:
        count: How many numbers.
        quartiles: Smallest, lower quartile, median, upper quartile, largest.
        edges: `BINS` + 1 edges of the histogram.
        counts: `BINS` numbers.
    """

    count: int
    quartiles: tuple[float, ...]
    edges: tuple[float, ...]
    counts: tuple[int, ...]


@dataclass(frozen=True)
class Extreme:
    """A sample that stands out, and the value by which it does."""

    split: str
    key: str
    position: int
    value: float


@dataclass(frozen=True)
class DatasetStats:
    """What `statistics_of` returns.

    Attributes:
        samples: Number of samples by split.
        measured: Number of samples by split whose records were read.
        class_counts: By field, class and split: samples of a label, pixels of a mask.
        distributions: By quantity, such as "brightness", then by split.
        units: The unit of each quantity.
        hardest: By quantity, the samples that are hardest to see: darkest, blurriest, with the smallest object.
        rejects: Number of rejected inputs by stage and reason.
    """

    samples: Mapping[str, int]
    measured: Mapping[str, int]
    class_counts: Mapping[str, Mapping[str, Mapping[str, int]]]
    distributions: Mapping[str, Mapping[str, Distribution]]
    units: Mapping[str, str]
    hardest: Mapping[str, Sequence[Extreme]]
    rejects: Mapping[str, int]


UNITS = {
    "width": "pixels",
    "height": "pixels",
    "brightness": "mean gray level, 0 to 255",
    "sharpness": "variance of the Laplacian at 256 pixels",
    "objects": "boxes in an image",
    "object size": "% of the image's area",
    "mask area": "% of the image that is not class 0",
}
_HARDEST_OF = {"brightness": "darkest", "sharpness": "blurriest", "object size": "smallest objects"}


def statistics_of(
    data: Dataset, *, most_samples: int = 1000, on_sample: Callable[[int, int], None] | None = None
) -> DatasetStats:
    """Sum up a dataset.

    Args:
        data: The dataset.
        most_samples: The number of samples of each split to read, spread evenly over it. A shard holds a random part of the
            data in random order, so these are a random part too.
        on_sample: Called after each sample with the number read and the number to read.

    Raises:
        DatasetError: The index or a record cannot be read.
    """
    positions = {split: _spread(info.samples, most_samples) for split, info in data.splits.items()}
    total, done = sum(map(len, positions.values())), 0
    values: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    extremes: dict[str, list[Extreme]] = defaultdict(list)
    for split, rows in positions.items():
        index = data.index(split, 0, ["key", "height", "width"])
        for name in ("width", "height"):
            values[name][split] = [side for side in index[name].to_pylist() if side is not None]
        for position, sample in zip(rows, data.samples(split, positions=rows), strict=True):
            for name, numbers in _measured(data, sample).items():
                values[name][split] += numbers
                if name in _HARDEST_OF and numbers:
                    extremes[name].append(Extreme(split, index["key"][position].as_py(), position, min(numbers)))
            done += 1
            if on_sample:
                on_sample(done, total)
    return DatasetStats(
        samples={split: info.samples for split, info in data.splits.items()},
        measured={split: len(rows) for split, rows in positions.items()},
        class_counts=_class_counts(data),
        distributions={name: _distributions(values[name]) for name in UNITS if any(values[name].values())},
        units=UNITS,
        hardest={
            title: sorted(extremes[name], key=lambda one: one.value)[:_HARDEST]
            for name, title in _HARDEST_OF.items()
            if extremes[name]
        },
        rejects=dict(_rejects(data).most_common()),
    )


def _spread(samples: int, most: int) -> list[int]:
    rows: list[int] = np.unique(np.linspace(0, samples - 1, min(samples, most)).round().astype(int)).tolist()
    return rows if samples else []


def _measured(data: Dataset, sample: Mapping[str, Any]) -> dict[str, list[float]]:
    numbers: dict[str, list[float]] = defaultdict(list)
    fields = data.fields
    image = next((name for name, spec in fields.items() if spec.kind == "image"), None)
    area = float(np.prod(sample[image].shape[:2])) if image is not None else 0.0
    # Levels of 16 bits and of floats have no common scale, so they are not compared.
    if image is not None and area and sample[image].dtype == np.uint8:
        gray = _gray(sample[image])
        numbers["brightness"].append(float(gray.mean()))
        numbers["sharpness"].append(_sharpness(gray))
    for name, spec in fields.items():
        value = np.asarray(sample[name]) if spec.kind in ("boxes", "mask") else None
        if spec.kind == "boxes" and value is not None:
            numbers["objects"].append(float(len(value)))
            if area:
                numbers["object size"] += _areas(value, area)
        elif spec.kind == "mask" and value is not None and value.size:
            numbers["mask area"].append(100 * float(np.count_nonzero(value)) / value.size)
    return numbers


def _gray(image: Array) -> Array:
    if image.shape[2] < 3:
        return np.ascontiguousarray(image[:, :, 0])
    return np.asarray(cv2.cvtColor(np.ascontiguousarray(image[:, :, :3]), cv2.COLOR_RGB2GRAY))


def _areas(boxes: Array, area: float) -> list[float]:
    sides = np.maximum(boxes[:, 2:4] - boxes[:, 0:2], 0).astype(np.float64)
    shares: list[float] = (100 * sides.prod(axis=1) / area).tolist()
    return shares


def _sharpness(gray: Array) -> float:
    scale = _SHARPNESS_SIDE / max(gray.shape)
    if scale < 1:
        size = max(1, round(gray.shape[1] * scale)), max(1, round(gray.shape[0] * scale))
        gray = cv2.resize(gray, size, interpolation=cv2.INTER_AREA)
    return float(cv2.Laplacian(gray, cv2.CV_64F).var())


def _distributions(by_split: Mapping[str, Sequence[float]]) -> dict[str, Distribution]:
    """Return the distribution of each split, with the same edges for all."""
    whole = np.concatenate([np.asarray(numbers, np.float64) for numbers in by_split.values()])
    low, high = float(whole.min()), float(whole.max())
    edges = np.linspace(low, high if high > low else low + 1, BINS + 1)
    return {
        split: _distribution(np.asarray(numbers, np.float64), edges) for split, numbers in by_split.items() if numbers
    }


def _distribution(numbers: Array, edges: Array) -> Distribution:
    counts, _ = np.histogram(numbers, edges)
    quartiles = np.quantile(numbers, (0, 0.25, 0.5, 0.75, 1))
    return Distribution(len(numbers), tuple(quartiles.tolist()), tuple(edges.tolist()), tuple(counts.tolist()))


def _class_counts(data: Dataset) -> dict[str, dict[str, dict[str, int]]]:
    return {
        field: {
            name: {split: counts[number] for split, counts in by_split.items()}
            for number, name in enumerate(data.manifest.classes[field])
        }
        for field, by_split in data.manifest.class_counts.items()
    }


def _rejects(data: Dataset) -> Counter[str]:
    """Count rejects by stage and reason, with numbers and quoted parts left out."""
    return Counter(
        f"{one.get('stage', '')}: {without_details(str(one.get('error', '')))}" for one in _reject_lines(data)
    )


def without_details(reason: str) -> str:
    """Return a reject's reason without the parts that differ from file to file."""
    return re.sub(r"\d+|'[^']*'|b'[^']*'", "…", reason)


def _reject_lines(data: Dataset) -> Iterator[dict[str, Any]]:
    if REJECTS not in data.manifest.files:
        return
    try:
        with open_file(data.path / REJECTS) as file:
            for line in file.read(_MOST_REJECT_BYTES).splitlines():
                yield json.loads(line)
    except (ValueError, OSError) as error:
        raise DatasetError(f"{data.path / REJECTS} is damaged ({error}); tfprep repair mends it") from error
