"""Exports the splits of a dataset, one after another, and names what the other format cannot hold."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tfprep.dataset import Dataset
from tfprep.errors import DatasetError
from tfprep.export.files import write_parquet, write_webdataset
from tfprep.storage.local import whole_folder
from tfprep.units import number

Format = Literal["webdataset", "parquet"]
_WRITERS: dict[str, Callable[[Dataset, str, int, Path], None]] = {
    "webdataset": write_webdataset,
    "parquet": write_parquet,
}


@dataclass(frozen=True)
class ExportSummary:
    """Result of an export: samples by split, and one text for each thing that the format does not hold."""

    samples: dict[str, int]
    left_out: tuple[str, ...]


def export(data: Dataset, out: Path, to: Format, *, variant: int = 0) -> ExportSummary:
    """Write a dataset in another format.

    Args:
        data: The dataset.
        out: A folder, which is missing or empty. It appears whole, or not at all.
        to: The format.
        variant: The variant to export. Splits that do not have it are left out.

    Raises:
        DatasetError: A record cannot be read, the folder is not empty, or the format cannot hold such a dataset at all.
    """
    if out.is_file():
        raise DatasetError(f"{out} is a file; export into a new folder")
    if out.exists() and any(out.iterdir()):
        raise DatasetError(f"{out} is not empty; export into a new folder")
    splits = [name for name, info in data.splits.items() if variant < info.variants]
    if not splits:
        raise DatasetError(f"no split of {data.path} has a variant {variant}")
    with whole_folder(out) as folder:
        for split in splits:
            _WRITERS[to](data, split, variant, folder)
    return ExportSummary(
        {split: data.splits[split].samples for split in splits}, tuple(_left_out(data, to, variant, splits))
    )


def _left_out(data: Dataset, to: Format, variant: int, splits: list[str]) -> Iterator[str]:
    for split, info in data.splits.items():
        if split not in splits:
            yield f"split {split}: it has no variant {variant}"
        elif info.variants > 1:
            yield f"split {split}: {number(info.variants - 1, 'other variant')}; --variant N exports another"
        for group, entry in data.manifest.groups.items():
            if split in splits and variant >= entry.variants.get(split, 0):
                yield f"added fields {group}: variant {variant} of split {split} has none"
    for name in data.manifest.classes:
        spec = data.fields.get(name)
        if spec is not None and not (to == "parquet" and (spec.kind, spec.dtype) == ("label", "int64")):
            yield f"class names of {name}: labels are numbers there"
