"""The script that most people write for TFRecords: Pillow in a `multiprocessing.Pool`, Examples and the writer of TensorFlow.

    python benchmarks/build_usual.py DATA OUT WORKERS

This is a candidate of `benchmarks/build.py`. It does what public scripts have in common (TensorFlow's `build_imagenet_data.py`,
https://www.tensorflow.org/tutorials/load_data/tfrecord and their copies): it imports TensorFlow at the top, makes an Example of
image, height, width and label in the process that reads the image, and sends its bytes to the parent, which writes them with
`tf.io.TFRecordWriter`. Pillow resizes with its default filter (bicubic).
"""

from __future__ import annotations

import io
import multiprocessing
import os
import sys
from pathlib import Path

import tensorflow as tf
from PIL import Image


def bytes_feature(value):
    return tf.train.Feature(bytes_list=tf.train.BytesList(value=[value]))


def int64_feature(value):
    return tf.train.Feature(int64_list=tf.train.Int64List(value=[value]))


def example_of(path_and_label):
    path, label = path_and_label
    with Image.open(path) as image:
        picture = image.convert("RGB")
    scale = 256 / min(picture.size)
    width, height = round(picture.width * scale), round(picture.height * scale)
    left, top = (width - 224) // 2, (height - 224) // 2
    picture = picture.resize((width, height)).crop((left, top, left + 224, top + 224))
    file = io.BytesIO()
    picture.save(file, "JPEG", quality=95)
    feature = {
        "image/encoded": bytes_feature(file.getvalue()),
        "image/height": int64_feature(picture.height),
        "image/width": int64_feature(picture.width),
        "image/class/label": int64_feature(label),
    }
    return tf.train.Example(features=tf.train.Features(feature=feature)).SerializeToString()


def main(data, out, workers):
    paths = sorted(Path(data).rglob("*.*"))
    labels = {name: number for number, name in enumerate(sorted({path.parent.name for path in paths}))}
    os.makedirs(out)
    with multiprocessing.Pool(workers) as pool, tf.io.TFRecordWriter(f"{out}/all.tfrecord") as writer:
        for serialized in pool.imap_unordered(example_of, [(p, labels[p.parent.name]) for p in paths], chunksize=8):
            writer.write(serialized)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
