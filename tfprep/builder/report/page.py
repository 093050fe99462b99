"""`report.html`: counts, sizes, rejects with pictures, samples and time of a build, as one file that opens offline.

The page is made from the receipts and the published records alone. It holds no script, no font and no link.
"""

from __future__ import annotations

import base64
import io
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tfprep.builder.receipts import Receipt, Reject
from tfprep.dataset import Dataset, Manifest
from tfprep.dataset.sheet import contact_sheet
from tfprep.errors import TfprepError
from tfprep.fields import RASTER_KINDS
from tfprep.pages import render
from tfprep.units import duration, size

_MOST_CLASSES = 60
_MOST_PICTURES = 8
_MOST_FILES = 5
_SHEET_SAMPLES, _SHEET_VARIANTS, _PANEL_PX = 4, 4, 112
_STAGES = ("read", "decode", "geometry", "derive", "colour", "stack", "hash", "encode", "write")
_NUMERIC = ("samples", "variants", "shards", "size", "size per record")
_VARYING = re.compile(r"\d+|'[^']*'|b'[^']*'")
"""Parts of a reject's text that differ from file to file."""


@dataclass(frozen=True)
class BuildFacts:
    """What the report says besides the manifest.

    Attributes:
        seconds: Wall time of this run.
        built_samples: Samples in the shards that this run built.
        built_shards: Shards that this run built.
        samples: Samples that the source lists.
        passed_over: What the source passed over, by reason.
    """

    seconds: float
    built_samples: int
    built_shards: int
    samples: int
    passed_over: Mapping[str, int]


def write_report(folder: Path, manifest: Manifest, receipts: Sequence[Receipt], facts: BuildFacts) -> str:
    """Return the page of the dataset in `folder` as text."""
    groups = _reject_groups(receipts)
    return render(
        "builder/report/report.html.j2",
        size=size,
        duration=duration,
        manifest=manifest,
        facts=facts,
        numeric=_NUMERIC,
        totals=_totals(manifest),
        splits=list(_split_rows(manifest)),
        fields=[
            (name, info.spec.kind, info.spec.dtype, _shape(info.spec.shape), str(info.codec.get("codec", "")))
            for name, info in manifest.fields.items()
        ],
        statistics=[(name, _channels(one.mean), _channels(one.std)) for name, one in manifest.statistics.items()],
        classes=[_class_table(manifest, field) for field in manifest.class_counts],
        groups=groups,
        rejected=sum(group["count"] for group in groups),
        sheets=list(_sheets(folder, manifest)),
        stages=_stages(receipts),
        versions=", ".join(f"{name} {number}" for name, number in manifest.versions.items()),
    )


# --- counts -----------------------------------------------------------------------------------------------------------


def _totals(manifest: Manifest) -> dict[str, int]:
    splits = manifest.splits.values()
    return {
        "samples": sum(split.samples for split in splits),
        "records": sum(split.samples * split.variants for split in splits),
        "bytes": sum(split.bytes for split in splits),
    }


def _split_rows(manifest: Manifest) -> Iterator[tuple[str, ...]]:
    for name, split in manifest.splits.items():
        record = split.bytes / max(1, split.samples * split.variants)
        yield name, f"{split.samples:,}", str(split.variants), str(split.shards), size(split.bytes), size(record)


def _class_table(manifest: Manifest, field: str) -> dict[str, Any]:
    by_split, names = manifest.class_counts[field], manifest.classes[field]
    is_mask = field in manifest.fields and manifest.fields[field].spec.kind == "mask"
    return {
        "name": field,
        "unit": "pixels" if is_mask else "samples",
        "splits": list(by_split),
        "largest": max((sum(counts) for counts in zip(*by_split.values(), strict=True)), default=0) or 1,
        "rows": [
            {"number": number, "name": name, "counts": [counts[number] for counts in by_split.values()]}
            for number, name in enumerate(names[:_MOST_CLASSES])
        ],
        "more": max(0, len(names) - _MOST_CLASSES),
    }


def _channels(values: Sequence[float]) -> str:
    return ", ".join(f"{value:.2f}" for value in values)


def _shape(shape: Sequence[int | None]) -> str:
    return " × ".join("any" if axis is None else str(axis) for axis in shape) or "scalar"


# --- rejects, samples, time -------------------------------------------------------------------------------------------


def _reject_groups(receipts: Sequence[Receipt]) -> list[dict[str, Any]]:
    """Rejects of one stage, field and reason, the largest group first; numbers and quoted parts of the reason do not count."""
    groups: dict[tuple[str, str, str], list[Reject]] = defaultdict(list)
    pictures: dict[str, str] = {}
    for receipt in receipts:
        pictures |= receipt.thumbnails
        for reject in receipt.rejects:
            groups[reject.stage, reject.field, _VARYING.sub("…", reject.error)].append(reject)
    return [_group(rejects, pictures) for rejects in sorted(groups.values(), key=len, reverse=True)]


def _group(rejects: Sequence[Reject], pictures: Mapping[str, str]) -> dict[str, Any]:
    first = rejects[0]
    return {
        "count": len(rejects),
        "stage": f"{first.stage} of {first.field}" if first.field else first.stage,
        "error": first.error,
        "pictures": [(one.key, pictures[one.key]) for one in rejects if one.key in pictures][:_MOST_PICTURES],
        "files": [one.file or one.key for one in rejects[:_MOST_FILES]],
        "more": max(0, len(rejects) - _MOST_FILES),
    }


def _sheets(folder: Path, manifest: Manifest) -> Iterator[tuple[str, str]]:
    """Each split with a contact sheet, a JPEG in base 64."""
    data = Dataset(folder, manifest)
    if not any(spec.kind in RASTER_KINDS for spec in data.fields.values()):
        return
    for split in manifest.splits:
        try:
            if data.splits[split].samples:
                sheet = contact_sheet(data, split, samples=_SHEET_SAMPLES, variants=_SHEET_VARIANTS, panel_px=_PANEL_PX)
                file = io.BytesIO()
                sheet.save(file, "JPEG", quality=85)
                yield split, base64.b64encode(file.getvalue()).decode()
        except TfprepError:  # a field that cannot be drawn costs the picture, not the report
            continue


def _stages(receipts: Sequence[Receipt]) -> list[tuple[str, float, float]]:
    """Stage, seconds of all workers, and share."""
    total: defaultdict[str, float] = defaultdict(float)
    for receipt in receipts:
        for stage, seconds in receipt.seconds.items():
            total[stage] += seconds
    whole = sum(total.values()) or 1
    return [(stage, total[stage], total[stage] / whole) for stage in _STAGES if total[stage]]
