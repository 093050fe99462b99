"""Statistics of a dataset: sizes from its index, what is measured on the images of variant 0, and rejected samples by reason."""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from PIL import Image

from tfprep.dataset import Dataset
from tfprep.dataset.names import REJECTS
from tfprep.errors import DatasetError
from tfprep.fields import Array, FieldSpec
from tfprep.storage.urls import read_file

BINS = 24
_MEASURED = ("image", "boxes", "mask")
MOST_INSPECTED = 1_000_000
"""Samples of a split, from the first on, that statistics and pictures are made of: their keys and sizes take 100 MB. A shard of
a build holds a random part of the data in random order, so these samples are a random part too."""


def inspected(samples: int, most: int) -> list[int]:
    """Return the positions of at most `most` samples of a split, spread evenly over the first `MOST_INSPECTED`."""
    count = min(samples, MOST_INSPECTED)
    rows: list[int] = np.unique(np.linspace(0, count - 1, min(count, most)).round().astype(int)).tolist()
    return rows if count else []


def counted(spec: FieldSpec) -> str:
    """Return what the class counts of a field are numbers of; a list of labels, as of boxes, may hold a class several times."""
    if spec.kind == "mask":
        return "pixels"
    return "labels" if spec.shape and not spec.dtype.startswith("float") else "samples"


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
class DatasetStats:
    """Result of `statistics_of`.

    Attributes:
        samples: Number of samples by split.
        measured: Number of samples by split whose records were read.
        distributions: By quantity, one of `UNITS`, then by split.
        rejected: Rejected inputs by reason.
    """

    samples: Mapping[str, int]
    measured: Mapping[str, int]
    distributions: Mapping[str, Mapping[str, Distribution]]
    rejected: Sequence[RejectedGroup]


UNITS = {
    "width": "pixels", "height": "pixels", "brightness": "mean gray level, 0 to 255",
    "objects": "boxes in an image",
    "object size": "% of the image's area", "mask area": "% of the image that is not class 0",
}  # fmt: skip
"""The unit of each quantity."""


def statistics_of(
    data: Dataset, *, most_samples: int = 1000, on_sample: Callable[[int, int], None] | None = None
) -> DatasetStats:
    """Sum up a dataset. Of each split at most `most_samples` are read, spread evenly over the first `MOST_INSPECTED`.

    Raises:
        DatasetError: The index or a record cannot be read.
    """
    positions = {split: inspected(info.samples, most_samples) for split, info in data.splits.items()}
    total, done = sum(map(len, positions.values())), 0
    values: dict[str, dict[str, Any]] = defaultdict(lambda: defaultdict(list))
    for split, rows in positions.items():
        index = data.index(split, 0, ["height", "width"], first=MOST_INSPECTED)
        for name in ("width", "height"):
            values[name][split] = index[name].drop_null().to_numpy()
        fields = [name for name, spec in data.fields_of(split).items() if spec.kind in _MEASURED]
        for sample in data.samples(split, positions=rows, fields=fields):
            for name, numbers in _numbers(data, sample).items():
                values[name][split] += numbers
            done += 1
            if on_sample:
                on_sample(done, total)
    return DatasetStats(
        samples={split: info.samples for split, info in data.splits.items()},
        measured={split: len(rows) for split, rows in positions.items()},
        distributions={name: _distributions(values[name]) for name in UNITS if any(map(len, values[name].values()))},
        rejected=rejected_groups(data),
    )


def _numbers(data: Dataset, sample: Mapping[str, Any]) -> dict[str, list[float]]:
    numbers: dict[str, list[float]] = defaultdict(list)
    fields = {name: spec for name, spec in data.fields.items() if name in sample}
    image = next((name for name, spec in fields.items() if spec.kind == "image"), None)
    area = float(np.prod(sample[image].shape[:2])) if image is not None else 0.0
    # Levels of 16 bits and of floats have no common scale, so they are not compared.
    if image is not None and area and sample[image].dtype == np.uint8:
        pixels = np.ascontiguousarray(sample[image][:, :, :3])
        gray = pixels[:, :, 0] if pixels.shape[2] < 3 else np.asarray(Image.fromarray(pixels).convert("L"))
        numbers["brightness"].append(float(gray.mean()))
    for name, spec in fields.items():
        value = np.asarray(sample[name])
        if spec.kind == "boxes":
            numbers["objects"].append(float(len(value)))
            if area:
                sides = np.maximum(value[:, 2:4] - value[:, 0:2], 0).astype(np.float64)
                sizes = 100 * sides.prod(axis=1) / area
                numbers["object size"] += sizes[np.isfinite(sizes)].tolist()
        elif spec.kind == "mask" and value.size:
            numbers["mask area"].append(100 * float(np.count_nonzero(value)) / value.size)
    return numbers


def _distributions(by_split: Mapping[str, Sequence[float] | Array]) -> dict[str, Distribution]:
    """Return the distribution of each split, with the same edges for all."""
    whole = np.concatenate([np.asarray(numbers, np.float64) for numbers in by_split.values()])
    low, high = float(whole.min()), float(whole.max())
    edges = np.linspace(low, high if high > low else low + 1, BINS + 1)
    distributions = {}
    for split, numbers in by_split.items():
        if len(numbers):
            counts, quartiles = np.histogram(numbers, edges)[0], np.quantile(numbers, (0, 0.25, 0.5, 0.75, 1))
            summed_up = (tuple(array.tolist()) for array in (quartiles, edges, counts))
            distributions[split] = Distribution(len(numbers), *summed_up)
    return distributions


# --- rejected samples -----------------------------------------------------------------------------------------------------------

_MOST_BYTES = 64 << 20
_MOST_FILES = 8
_VARYING = re.compile(r"\d+|'[^']*'|b'[^']*'")
"""Parts of a reason that differ from file to file."""


@dataclass(frozen=True)
class RejectedGroup:
    """Rejected samples of one stage, field and reason; numbers and quoted parts of the reason do not count.

    Attributes:
        count: How many.
        stage: The stage that failed, such as "decode".
        field: The field that it failed for; "" if none.
        error: The reason of the first.
        files: The files of the first, or their keys where a sample has no file.
    """

    count: int
    stage: str
    field: str
    error: str
    files: tuple[str, ...]


def rejected_groups(data: Dataset) -> list[RejectedGroup]:
    """Return the rejected samples of a dataset by reason, the largest group first; those of the first 64 MiB of `rejects.jsonl`.

    Raises:
        DatasetError: The file cannot be read.
    """
    counts: Counter[tuple[str, str, str]] = Counter()
    first: dict[tuple[str, str, str], list[tuple[str, str]]] = defaultdict(list)
    for stage, field, error, file in _rejected(data):
        group = stage, field, _VARYING.sub("…", error)
        counts[group] += 1
        if len(first[group]) < _MOST_FILES:
            first[group].append((error, file))
    groups = []
    for group, count in counts.most_common():
        errors, files = zip(*first[group], strict=True)
        groups.append(RejectedGroup(count, group[0], group[1], errors[0], files))
    return groups


def _rejected(data: Dataset) -> Iterator[tuple[str, str, str, str]]:
    """Yield of each input that was left out the stage and field that failed, the reason, and its file or the key."""
    if not data.manifest.rejected:
        return
    path = data.path / REJECTS
    try:
        content = read_file(path, _MOST_BYTES + 1)
        whole = content if len(content) <= _MOST_BYTES else content[: content.rfind(b"\n")]
        for line in whole.splitlines():
            sample = json.loads(line)
            if "record" in sample:  # a line of an index names a record of a shard, not a sample
                yield "read", "", str(sample["reason"]), f"{sample['shard']}#{sample['record']}"
            else:
                key, stage, field, error = (str(sample.get(name, "")) for name in ("key", "stage", "field", "error"))
                yield stage, field, error, str(sample.get("file", "")) or key
    except (ValueError, KeyError, TypeError, AttributeError, OSError) as error:
        raise DatasetError(f"{path} is damaged ({error}); tfprep build --verify mends it") from error
