"""COCO: `images/SPLIT/KEY.SUFFIX`; `annotations/SPLIT.json` with an object for each box; `annotations/SPLIT.MASK.json` with the
region of each class of a mask.

An object is the row of the boxes with the rows of other fields that belong to it: its class from the first label field that has
one label for each box, `crowd`, its key points from `points` if each box has the same number of them, and its region from the
mask `instances`, where it has the number of `box_numbers` or of its row (`tfprep.sources.annotations.objects`). Points without
boxes are one object. Regions are run lengths, as pycocotools writes them; a class of a mask is one annotation of an image.

Categories are numbered from 1. The key of a sample is the entry `key` of its image. Key points are pixel indices in COCO: half a
pixel is subtracted, which `sources.Coco` adds.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np

from tfprep.dataset import Dataset
from tfprep.errors import DatasetError
from tfprep.export.files import StoredSample, checked_key, image_fields, stored_samples, write_file
from tfprep.fields import Array
from tfprep.optional import require_package
from tfprep.storage.local import whole_file

_SHOWN_NUMBERS = 5


@dataclass(frozen=True)
class CocoFields:
    """The fields that COCO has a place for; None or () where the dataset has none.

    Attributes:
        image: The image.
        boxes, labels, crowd: A row for each object.
        numbers, instances: The numbers of the objects in a mask, and the mask.
        points: Key points; `per_box` of them for each box, or all of one object if there are no boxes.
        masks: Masks of classes.
    """

    image: str
    boxes: str | None
    labels: str | None
    crowd: str | None
    numbers: str | None
    instances: str | None
    points: str | None
    per_box: int
    masks: tuple[str, ...]

    def __contains__(self, name: object) -> bool:
        ones = (self.image, self.boxes, self.labels, self.crowd, self.numbers, self.instances, self.points)
        return name in ones or name in self.masks

    @property
    def objects(self) -> bool:
        """True if there are objects."""
        return bool(self.boxes or self.points)


def coco_fields(data: Dataset) -> CocoFields:
    """Return the fields that COCO has a place for. Raises DatasetError if no image is stored as a file."""
    infos = data.manifest.fields
    files = [name for name in infos if infos[name].spec.kind == "image" and name in image_fields(data)]
    if not files:
        raise DatasetError("COCO holds images as JPEG or PNG files; this dataset stores none that way")
    boxes = next((name for name, info in infos.items() if info.spec.kind == "boxes"), None)
    lists = [
        n for n, i in infos.items() if (i.spec.kind, i.spec.dtype) == ("label", "int64") and len(i.spec.shape) == 1
    ]
    rows = lists if boxes else []
    points = next(
        (name for name, info in infos.items() if info.spec.kind == "points" and len(info.spec.shape) == 2), None
    )
    per_box = _points_per_box(data, boxes, points) if boxes and points else 0
    instances = "instances" if boxes and "instances" in infos else None
    labels = [name for name in rows if name not in ("crowd", "box_numbers", "difficult")]
    return CocoFields(
        image=files[0],
        boxes=boxes,
        labels=labels[0] if labels else None,
        crowd="crowd" if "crowd" in rows else None,
        numbers="box_numbers" if instances and "box_numbers" in rows else None,
        instances=instances,
        points=points if per_box or not boxes else None,
        per_box=per_box,
        masks=tuple(name for name, info in infos.items() if info.spec.kind == "mask" and name != instances),
    )


def _points_per_box(data: Dataset, boxes: str, points: str) -> int:
    """Return how many points each box has, by the lengths in the index; 0 if that is not the same for all boxes."""
    ratios: set[float] = set()
    for split in data.splits:
        lengths = []  # the number of rows of each field of floats, in each sample
        for name in (boxes, points):
            spec, column = data.fields[name], f"{name}_size"
            row_bytes = np.dtype(spec.dtype).itemsize * (spec.shape[-1] or 1)
            lengths.append(data.index(split, 0, [column])[column].to_numpy() / row_bytes)
        boxes_of, points_of = lengths
        ratios |= set((points_of / np.maximum(boxes_of, 1))[(boxes_of > 0) | (points_of > 0)].tolist())
    ratio = ratios.pop() if len(ratios) == 1 else 0.0
    return int(ratio) if ratio == int(ratio) else 0


def write_coco(data: Dataset, split: str, variant: int, out: Path) -> list[str]:
    """Write one split; return what of its samples was left out."""
    stored, without_object = coco_fields(data), _PixelsWithoutObject()
    if stored.masks or stored.instances:
        require_package("pycocotools", "the export of masks to COCO")
    (out / "annotations").mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        objects = stack.enter_context(_AnnotationFile(out, split, _categories(data, stored)))
        masks = [
            stack.enter_context(_AnnotationFile(out, f"{split}.{name}", _names(data.manifest.classes.get(name, ()))))
            for name in stored.masks
        ]
        for number, sample in enumerate(stored_samples(data, split, variant), 1):
            content, suffix = sample.files[stored.image]
            name = f"{split}/{checked_key(sample.key)}.{suffix}"
            write_file(out / "images" / name, content)
            height, width = sample.values[stored.image].shape[:2]
            image = {"id": number, "file_name": name, "height": height, "width": width, "key": sample.key}
            objects.add(image, _objects(sample, stored))
            without_object.add(sample, stored)
            for file, field in zip(masks, stored.masks, strict=True):
                file.add(image, _regions(np.asarray(sample.values[field])))
    return without_object.in_words(split, stored.instances)


class _PixelsWithoutObject:
    """Pixels of the mask of objects that belong to none of them, such as void: COCO has no place for them."""

    def __init__(self) -> None:
        self._pixels = self._samples = 0
        self._numbers: set[int] = set()

    def add(self, sample: StoredSample, stored: CocoFields) -> None:
        if not stored.instances or not stored.boxes:
            return
        boxes = np.asarray(sample.values[stored.boxes]).reshape(-1, 4)
        of_objects = _rows(sample, stored.numbers, np.arange(1, len(boxes) + 1))
        numbers, counts = np.unique(np.asarray(sample.values[stored.instances]), return_counts=True)
        rest = (numbers != 0) & ~np.isin(numbers, of_objects)
        self._pixels += int(counts[rest].sum())
        self._samples += bool(rest.any())
        self._numbers |= set(numbers[rest].tolist())

    def in_words(self, split: str, mask: str | None) -> list[str]:
        if not self._pixels:
            return []
        numbers = ", ".join(map(str, sorted(self._numbers)[:_SHOWN_NUMBERS]))
        more = ", ..." if len(self._numbers) > _SHOWN_NUMBERS else ""
        return [
            f"field {mask}: {self._pixels:,} pixels in {self._samples:,} samples of {split} whose number ({numbers}{more}) is "
            "that of no object, such as void"
        ]


class _AnnotationFile:
    """A file of annotations, written an image at a time; categories that only the annotations name are added at the end."""

    def __init__(self, out: Path, name: str, categories: dict[int, dict[str, Any]]) -> None:
        self._path, self._categories = out / "annotations" / f"{name}.json", categories
        self._images = self._annotations = 0
        self._stack = ExitStack()

    def __enter__(self) -> _AnnotationFile:
        self._file = self._stack.enter_context(whole_file(self._path))
        waiting = self._path.with_name(f".{self._path.name}.annotations")
        self._stack.callback(waiting.unlink, missing_ok=True)
        self._waiting: IO[str] = self._stack.enter_context(waiting.open("w+"))
        self._file.write(b'{"images": [')
        return self

    def add(self, image: Mapping[str, Any], annotations: Iterator[dict[str, Any]]) -> None:
        self._file.write((", " * bool(self._images) + json.dumps(image)).encode())
        self._images += 1
        for annotation in annotations:
            number = annotation["category_id"]
            self._categories.setdefault(number, {"id": number, "name": str(number - 1)})
            one = {"id": self._annotations + 1, "image_id": image["id"], **annotation}
            self._waiting.write(", " * bool(self._annotations) + json.dumps(one))
            self._annotations += 1

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: Any) -> None:
        if error is None:
            self._file.write(b'], "annotations": [')
            self._waiting.seek(0)
            while chunk := self._waiting.read(1 << 20):
                self._file.write(chunk.encode())
            categories = [self._categories[number] for number in sorted(self._categories)]
            self._file.write(f'], "categories": {json.dumps(categories)}}}\n'.encode())
        self._stack.__exit__(kind, error, trace)


def _names(classes: Sequence[str]) -> dict[int, dict[str, Any]]:
    return {number: {"id": number, "name": name} for number, name in enumerate(classes, 1)}


def _categories(data: Dataset, stored: CocoFields) -> dict[int, dict[str, Any]]:
    if not stored.objects:
        return {}
    classes = data.manifest.classes.get(stored.labels, ()) if stored.labels else ("object",)
    points = stored.per_box or (data.fields[stored.points].shape[0] if stored.points else 0) or 0
    more = {"keypoints": [f"point {number}" for number in range(1, points + 1)], "skeleton": []} if points else {}
    return {number: {**category, **more} for number, category in _names(classes).items()}


# --- annotations ------------------------------------------------------------------------------------------------------


def _objects(sample: StoredSample, stored: CocoFields) -> Iterator[dict[str, Any]]:
    if stored.boxes is None:
        yield from _lone_points(sample.values[stored.points]) if stored.points else ()
        return
    boxes = np.asarray(sample.values[stored.boxes], np.float64).reshape(-1, 4)
    labels = _rows(sample, stored.labels, np.zeros(len(boxes), np.int64))
    crowd = _rows(sample, stored.crowd, np.zeros(len(boxes), np.int64))
    numbers = _rows(sample, stored.numbers, np.arange(1, len(boxes) + 1))
    points = _rows(sample, stored.points, np.zeros((len(boxes) * stored.per_box, 3)))
    for row, (x0, y0, x1, y1) in enumerate(boxes.tolist()):
        one: dict[str, Any] = {"category_id": int(labels[row]) + 1, "bbox": [x0, y0, x1 - x0, y1 - y0]}
        one |= {"area": (x1 - x0) * (y1 - y0), "iscrowd": int(crowd[row])}
        if stored.instances:
            one |= _region(np.asarray(sample.values[stored.instances]) == int(numbers[row]))[1]
        if stored.points:
            one |= _keypoints(points[row * stored.per_box : (row + 1) * stored.per_box])
        yield one


def _rows(sample: StoredSample, name: str | None, default: Array) -> Array:
    """Return the field with a row for each box; DatasetError if it has another number."""
    rows = default if name is None else np.asarray(sample.values[name])
    if len(rows) != len(default):
        raise DatasetError(f"{sample.key}: {len(rows)} rows of {name!r}; its boxes have {len(default)}")
    return rows


def _lone_points(values: Any) -> Iterator[dict[str, Any]]:
    points = np.asarray(values, np.float64)
    seen = points[points[:, 2] > 0] if points.shape[1] > 2 else points
    if len(seen):
        (x0, y0), (x1, y1) = seen[:, :2].min(axis=0).tolist(), seen[:, :2].max(axis=0).tolist()
        box = {"bbox": [x0, y0, x1 - x0, y1 - y0], "area": (x1 - x0) * (y1 - y0)}
        yield {"category_id": 1, **box, "iscrowd": 0, **_keypoints(points)}


def _keypoints(points: Array) -> dict[str, Any]:
    flat: list[float] = []
    for x, y, *rest in points.tolist():
        visible = int(rest[0]) if rest else 2
        flat += [x - 0.5, y - 0.5, visible] if visible else [0, 0, 0]
    return {"keypoints": flat, "num_keypoints": sum(1 for visible in flat[2::3] if visible)}


def _regions(mask: Array) -> Iterator[dict[str, Any]]:
    """Yield an annotation for each class that occurs."""
    for number in np.unique(mask).tolist():
        box, region = _region(mask == number)
        yield {"category_id": int(number) + 1, "iscrowd": 0, "bbox": box, **region}


def _region(pixels: Array) -> tuple[list[float], dict[str, Any]]:
    """Return the box around a region, bool [H, W], and the region with its area."""
    from pycocotools import mask as masks

    runs = masks.encode(np.asfortranarray(pixels.astype(np.uint8)))
    segmentation = {"size": list(pixels.shape), "counts": runs["counts"].decode()}
    return masks.toBbox(runs).tolist(), {"segmentation": segmentation, "area": int(masks.area(runs))}
