"""TFRecords that TensorFlow wrote, in the layouts that people have."""

import io
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image


def feature(value: Any):
    """A `tf.train.Feature` of bytes, numbers, or lists of them."""
    import tensorflow as tf

    values = value if isinstance(value, list | np.ndarray) else [value]
    first = values[0] if len(values) else value
    if isinstance(first, bytes):
        return tf.train.Feature(bytes_list=tf.train.BytesList(value=values))
    if isinstance(first, float | np.floating) or (isinstance(value, np.ndarray) and value.dtype.kind == "f"):
        return tf.train.Feature(float_list=tf.train.FloatList(value=values))
    return tf.train.Feature(int64_list=tf.train.Int64List(value=values))


def serialized(features: Mapping[str, Any]) -> bytes:
    import tensorflow as tf

    example = tf.train.Example(
        features=tf.train.Features(feature={name: feature(value) for name, value in features.items()})
    )
    return bytes(example.SerializeToString())


def write(path: Path, payloads: Iterable[bytes], compression: str = "") -> Path:
    """A shard, by TensorFlow's writer."""
    import tensorflow as tf

    path.parent.mkdir(parents=True, exist_ok=True)
    with tf.io.TFRecordWriter(str(path), compression) as writer:
        for payload in payloads:
            writer.write(payload)
    return path


def image_bytes(rng: np.random.Generator, size: tuple[int, int], form: str = "JPEG", mode: str = "RGB") -> bytes:
    file = io.BytesIO()
    Image.fromarray(rng.integers(0, 256, (*size, 3), np.uint8)).convert(mode).save(file, form)
    return file.getvalue()


def detection(rng: np.random.Generator, number: int) -> dict[str, Any]:
    """An Example in the layout of TensorFlow's Object Detection API: sizes differ, so do the numbers of boxes, one feature is
    missing in some records."""
    height, width, boxes = *(int(side) for side in rng.integers(20, 40, 2)), number % 4
    features = {
        "image/encoded": image_bytes(rng, (height, width), "PNG" if number % 5 == 3 else "JPEG"),
        "image/format": b"png" if number % 5 == 3 else b"jpeg",
        "image/filename": b"photo%04d.jpg" % number,
        "image/source_id": str(number).encode(),
        "image/height": height,
        "image/width": width,
        "image/object/class/text": [b"cat", b"dog", b"d\xc3\xb6g"][:boxes],
        "image/object/class/label": rng.integers(1, 90, boxes),
        "image/night": number % 3,
    }
    for side in ("xmin", "xmax", "ymin", "ymax"):
        features[f"image/object/bbox/{side}"] = rng.random(boxes).astype(np.float32)
    if number % 4 == 0:
        del features["image/object/class/text"]
    if number % 2:
        features["image/weather"] = number % 7
    return features


@pytest.fixture(scope="module")
def detections(tmp_path_factory) -> Path:
    """60 records in 3 shards."""
    folder, rng = tmp_path_factory.mktemp("detections"), np.random.default_rng(1)
    for shard in range(3):
        examples = [serialized(detection(rng, 20 * shard + number)) for number in range(20)]
        write(folder / f"train-{shard:05d}-of-00003.tfrecord", examples)
    return folder


def open_dying(argument: Any) -> Any:
    """The entry of a process that dies with its first task. This module imports no TensorFlow."""
    return lambda task, mark: os._exit(7)
