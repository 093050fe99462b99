"""The datasets of benchmarks/loader.py and others: photo-like images of 224 × 224, as JPEG of quality 95 and as raw uint8."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import cv2
import numpy as np

from tfprep import Recipe, augment, build, codecs, sources
from tfprep.dataset import open_dataset

SIZE = 224
CLASSES = 1000


def images(count: int, size: int = SIZE) -> Iterator[np.ndarray]:
    """Yields uint8 [size, size, 3]: crops of blurred noise of several scales; 224 x 224 take 37 kB as JPEG of quality 95."""
    rng = np.random.default_rng(0)
    canvas = np.zeros((1200, 1600, 3), np.float32)
    for sigma, gain in ((1.5, 260), (6, 700), (24, 1800)):
        noise = rng.standard_normal(canvas.shape).astype(np.float32)
        canvas += gain * 0.14 * cv2.GaussianBlur(noise, (0, 0), sigma)
    scene = np.clip(canvas + 128, 0, 255).astype(np.uint8)
    for _ in range(count):
        top, left = rng.integers(0, scene.shape[0] - size), rng.integers(0, scene.shape[1] - size)
        yield np.ascontiguousarray(scene[top : top + size, left : left + size])


def raw_files(folder: Path, count: int) -> None:
    """Writes the images as PNG files, with their labels in samples.csv."""
    folder.mkdir(exist_ok=True)
    rows = ["number,label"]
    for number, image in enumerate(images(count)):
        cv2.imwrite(f"{folder}/{number:08d}.png", image, [cv2.IMWRITE_PNG_COMPRESSION, 1])
        rows.append(f"{number:08d},{number % CLASSES:03d}")
    Path(folder, "samples.csv").write_text("\n".join(rows) + "\n")


def write(folder: Path, codec: Any, count: int) -> Path:
    """Builds a dataset of images and labels; the resizing says that all have one size."""
    source = sources.Table("samples.csv", "{number}.png", label="label", key="number")
    store = {"image": codec, "label": codecs.Scalar()}
    recipe = Recipe("bench", source, store, geometry=[augment.Resize(SIZE, SIZE)], shards={"train": 4})
    with tempfile.TemporaryDirectory() as raw:
        raw_files(Path(raw), count)
        build(recipe, folder, Path(raw))
    return folder


@contextmanager
def datasets(count: int) -> Iterator[Path]:
    """A folder with the datasets `jpeg` and `raw` of this number of images."""
    with tempfile.TemporaryDirectory() as name:
        write(Path(name) / "jpeg", codecs.Jpeg(95), count)
        write(Path(name) / "raw", codecs.Raw(), count)
        yield Path(name)


def record_spans(folder: Path) -> tuple[list[Path], np.ndarray, np.ndarray, np.ndarray]:
    """Returns (files, file of each image, offset and size of each image's bytes)."""
    dataset = open_dataset(folder)
    index = dataset.index("train", 0, ["shard", "image_offset", "image_size"])
    files = [dataset.path / file.name for file in dataset.split("train").files[0]]
    return (files, *(index.column(name).to_numpy() for name in ("shard", "image_offset", "image_size")))


def contents(folder: Path) -> list[bytes]:
    """The bytes of each image."""
    files, file, offset, size = record_spans(folder)
    data = [path.read_bytes() for path in files]
    return [data[f][o : o + s] for f, o, s in zip(file.tolist(), offset.tolist(), size.tolist(), strict=True)]
