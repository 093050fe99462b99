"""COCO: `images/SPLIT/KEY.SUFFIX`, and `annotations/SPLIT.json` with a box for each row of the boxes.

The category of a box is the row of the first label field that has one label for each box; without one, all are of the category
`object`. Categories are numbered from 1. The key of a sample is the entry `key` of its image.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from tfprep.dataset import Dataset
from tfprep.errors import DatasetError
from tfprep.export.stored import StoredSample, checked_key, stored_samples
from tfprep.storage.local import whole_file


def held_fields(data: Dataset) -> tuple[str, str | None, str | None]:
    """Return the image, the boxes and the labels of boxes. Raises DatasetError if no image is stored as a file."""
    fields = data.manifest.fields.items()
    image = next(
        (n for n, i in fields if i.spec.kind == "image" and i.codec["codec"] in ("jpeg", "png", "original")), None
    )
    if image is None:
        raise DatasetError("COCO holds images as JPEG or PNG files; this dataset stores none that way")
    boxes = next((name for name, info in fields if info.spec.kind == "boxes"), None)
    labels = next((name for name, info in fields if info.spec.kind == "label" and len(info.spec.shape) == 1), None)
    return image, boxes, labels if boxes else None


def write_coco(data: Dataset, split: str, variant: int, out: Path) -> int:
    """Write one split; return the number of samples."""
    image, boxes, labels = held_fields(data)
    classes = list(data.manifest.classes.get(labels, ())) if labels else ["object"]
    count, numbers = 0, 0
    (out / "annotations").mkdir(parents=True, exist_ok=True)
    annotations = out / "annotations" / f".{split}.annotations"
    try:
        with whole_file(out / "annotations" / f"{split}.json") as file, annotations.open("w+") as rows:
            categories = [{"id": number, "name": name} for number, name in enumerate(classes, 1)]
            file.write(f'{{"categories": {json.dumps(categories)}, "images": ['.encode())
            for sample in stored_samples(data, split, variant):
                count += 1
                file.write((", " * (count > 1) + json.dumps(_image(sample, image, split, count, out))).encode())
                if boxes:
                    for entry in _entries(sample, boxes, labels, count, numbers):
                        rows.write(", " * bool(numbers) + json.dumps(entry))
                        numbers += 1
            file.write(b'], "annotations": [')
            rows.seek(0)
            while chunk := rows.read(1 << 20):
                file.write(chunk.encode())
            file.write(b"]}\n")
    finally:
        annotations.unlink(missing_ok=True)
    return count


def _image(sample: StoredSample, image: str, split: str, number: int, out: Path) -> dict[str, Any]:
    content, suffix = sample.files[image]
    name = f"{split}/{checked_key(sample.key)}.{suffix}"
    (out / "images" / name).parent.mkdir(parents=True, exist_ok=True)
    (out / "images" / name).write_bytes(content)
    height, width = sample.values[image].shape[:2]
    return {"id": number, "file_name": name, "height": height, "width": width, "key": sample.key}


def _entries(sample: StoredSample, boxes: str, labels: str | None, image: int, before: int) -> list[dict[str, Any]]:
    rows = np.asarray(sample.values[boxes], np.float64).reshape(-1, 4)
    numbers = np.asarray(sample.values[labels]).tolist() if labels else [0] * len(rows)
    if len(numbers) != len(rows):
        raise DatasetError(f"{sample.key}: {len(rows)} rows of {boxes!r} and {len(numbers)} of {labels!r}")
    entries = []
    for offset, (box, number) in enumerate(zip(rows.tolist(), numbers, strict=True), 1):
        x0, y0, x1, y1 = box
        bbox = [x0, y0, x1 - x0, y1 - y0]
        one = {"id": before + offset, "image_id": image, "category_id": number + 1, "bbox": bbox}
        entries.append({**one, "area": bbox[2] * bbox[3], "iscrowd": 0})
    return entries
