"""Examples and TFRecords by TensorFlow's own classes, in the layouts that people have."""

import numpy as np
from PIL import Image

from tests.photos import written
from tfprep.records.framing import FRAME_BYTES, Frame, find_records


def example(features):
    """A `tf.train.Example` of bytes, numbers, lists of one of them, or arrays. An empty list is one of bytes."""
    import tensorflow as tf

    def feature(value):
        values = np.ravel(value) if isinstance(value, np.ndarray) else value if isinstance(value, list) else [value]
        if isinstance(values, list) and isinstance(values[0] if values else b"", bytes):
            return tf.train.Feature(bytes_list=tf.train.BytesList(value=values))
        if np.asarray(values).dtype.kind == "f":
            return tf.train.Feature(float_list=tf.train.FloatList(value=values))
        return tf.train.Feature(int64_list=tf.train.Int64List(value=values))

    lists = {name: value if isinstance(value, tf.train.Feature) else feature(value) for name, value in features.items()}
    return tf.train.Example(features=tf.train.Features(feature=lists))


def serialized(features):
    return bytes(example(features).SerializeToString())


def read_records(path):
    """Yield the position and the payload of every record of a file; the fault of a damaged one is an AssertionError."""
    with path.open("rb") as file:
        for found in find_records(file, path.stat().st_size):
            assert not found.fault, f"at byte {found.offset}: {found.fault}"
            yield Frame(found.offset, len(found.payload) + FRAME_BYTES), found.payload


def write(path, payloads, compression=""):
    """A shard, by TensorFlow's writer."""
    import tensorflow as tf

    path.parent.mkdir(parents=True, exist_ok=True)
    with tf.io.TFRecordWriter(str(path), compression) as writer:
        for payload in payloads:
            writer.write(payload)
    return path


def image_bytes(rng, size, form="JPEG", mode="RGB"):
    return written(Image.fromarray(rng.integers(0, 256, (*size, 3), np.uint8)).convert(mode), form)


def detection(rng, number):
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
