"""Generates the datasets of benchmarks/loader.py: photo-like images of 224 × 224, as JPEG of quality 95 and as raw uint8."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tfprep import codecs, records
from tfprep.dataset import FieldInfo, FileInfo, Manifest, SplitInfo, open_dataset, read_manifest
from tfprep.dataset.digests import digest_of
from tfprep.dataset.index import ROW_GROUP, schema, write_index
from tfprep.dataset.locations import write_locations
from tfprep.dataset.names import INDEX, LOCATIONS, shard_name
from tfprep.fields import FieldSpec

SIZE = 224
CLASSES = 1000


def images(count: int) -> Iterator[np.ndarray]:
    """Yields uint8 [224, 224, 3]: crops of noise blurred at several scales, about 37 kB each as JPEG of quality 95."""
    rng = np.random.default_rng(0)
    canvas = np.zeros((1200, 1600, 3), np.float32)
    for sigma, gain in ((1.5, 260), (6, 700), (24, 1800)):
        noise = rng.standard_normal(canvas.shape).astype(np.float32)
        canvas += gain * 0.14 * cv2.GaussianBlur(noise, (0, 0), sigma)
    scene = np.clip(canvas + 128, 0, 255).astype(np.uint8)
    for _ in range(count):
        top, left = rng.integers(0, scene.shape[0] - SIZE), rng.integers(0, scene.shape[1] - SIZE)
        yield np.ascontiguousarray(scene[top : top + SIZE, left : left + SIZE])


def write(folder: Path, codec: Any, count: int, shards: int = 4) -> Path:
    """Writes a dataset of images and labels, unless the folder already contains one."""
    if (folder / "tfprep.json").exists():
        return folder
    folder.mkdir(parents=True, exist_ok=True)
    pixels, files, tables = images(count), [], []
    for shard in range(shards):
        name = shard_name("bench", "train", 0, shard, shards)
        numbers = range(count * shard // shards, count * (shard + 1) // shards)
        with (folder / name).open("wb") as file:
            writer = records.RecordWriter(file)
            rows = [_write_one(writer, codec, number, next(pixels)) for number in numbers]
        files.append(FileInfo(name, len(numbers), writer.frames[-1].offset + writer.frames[-1].size, "0" * 64))
        tables.append(_table(rows, shard))
    write_index(folder / INDEX, schema(["image", "label"], pa.int64()), tables)
    _write_manifest(folder, codec, files)
    return folder


def write_index_only(folder: Path, source: Path, count: int) -> Path:
    """Writes an index of `count` records that all point to one file of `source`, to measure opening without the pixels' disk."""
    if (folder / "tfprep.json").exists():
        return folder
    folder.mkdir(parents=True, exist_ok=True)
    manifest = read_manifest(source)
    rows = _index(source)
    shard = rows.schema.get_field_index("shard")
    groups = [
        rows.take(np.arange(start, min(start + ROW_GROUP, count)) % len(rows)).set_column(
            shard, "shard", pa.array(np.zeros(min(ROW_GROUP, count - start)), pa.int32())
        )
        for start in range(0, count, ROW_GROUP)
    ]
    write_index(folder / INDEX, schema(["image", "label"], pa.int64()), groups)
    file = manifest.splits["train"].files[0][0]
    shutil.copy(source / file.name, folder / file.name)
    size = max(file.bytes, count * records.framing.FRAME_BYTES)
    os.truncate(folder / file.name, size)  # `open` checks that the file can contain so many records; the end is sparse
    _write_manifest(
        folder, codecs.from_description(manifest.fields["image"].codec), [FileInfo(file.name, count, size, file.sha256)]
    )
    return folder


def _index(source: Path) -> pa.Table:
    """The rows of the first shard."""
    table = open_dataset(source).index("train")
    return table.filter(pc.equal(table["shard"], 0))


def _write_one(writer: records.RecordWriter, codec: Any, number: int, image: np.ndarray) -> dict[str, Any]:
    label = np.array([number % CLASSES], np.int64)
    features = {"image" + suffix: value for suffix, value in codec.encode(image).items()}
    payload, spans = records.encode({**features, "label": label})
    frame = writer.write(payload)
    row = {"key": f"{number:08d}", "offset": frame.offset, "size": frame.size, "label": int(label[0])}
    row["payload_crc"] = writer.payload_crcs[-1]
    for name in ("image", "label"):
        row |= {f"{name}_offset": frame.offset + 12 + spans[name].offset, f"{name}_size": spans[name].size}
    return row


def _table(rows: list[dict[str, Any]], shard: int) -> pa.Table:
    same = {"split": "train", "variant": 0, "shard": shard, "height": SIZE, "width": SIZE, "source_digest": b"\0" * 16}
    columns = schema(["image", "label"], pa.int64())
    return pa.table({c.name: pa.array([{**same, **row}.get(c.name) for row in rows], c.type) for c in columns})


def _write_manifest(folder: Path, codec: Any, shards: list[FileInfo]) -> None:
    fields = {
        "image": FieldInfo(FieldSpec("image", (SIZE, SIZE, 3), "uint8"), codec.describe()),
        "label": FieldInfo(FieldSpec("label", (), "int64"), codecs.Scalar().describe()),
    }
    split = SplitInfo(sum(file.records for file in shards), (tuple(shards),))
    manifest = Manifest("bench", "0" * 64, {}, fields, {"train": split})
    manifest = write_locations(folder / LOCATIONS, folder / INDEX, manifest)
    manifest = replace(manifest, files={name: digest_of(folder / name) for name in (INDEX, LOCATIONS)})
    (folder / "tfprep.json").write_text(manifest.to_json())
