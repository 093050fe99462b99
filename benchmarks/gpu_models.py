"""The models of `benchmarks/gpu.py`, and the input pipelines that it compares with the loader."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from tfprep import train
from tfprep.errors import MissingDependencyError

SMALL = "TFPREP_SMALL"
"""A variable of the environment of all processes where sizes are small."""
SIZE, BATCH, IMAGES, CLASSES, STEPS = (32, 8, 64, 4, 4) if os.environ.get(SMALL) else (224, 128, 4096, 10, 100)


def device() -> str:
    """The device of TensorFlow, which takes memory as it is needed from now on."""
    gpus = train.configure_gpu(growth=True)
    if not gpus and SIZE == 224:
        raise MissingDependencyError("TensorFlow sees no GPU")
    return "/GPU:0" if gpus else "/CPU:0"


def resnet() -> Any:
    """ResNet-50 with random weights; with small sizes one convolution."""
    import keras

    images = keras.Input([SIZE, SIZE, 3], dtype="uint8")
    features = keras.layers.Rescaling(1 / 127.5, offset=-1)(images)
    if SIZE == 224:
        features = keras.applications.ResNet50(False, None, features, pooling="avg").output
    else:
        features = keras.layers.GlobalAveragePooling2D()(keras.layers.Conv2D(16, 3)(features))
    model = keras.Model(images, keras.layers.Dense(CLASSES, activation="softmax", dtype="float32")(features))
    model.compile("adam", "sparse_categorical_crossentropy")
    return model


def wide() -> Any:
    """A model whose activations take most of its memory, and that is traced in a second."""
    import keras

    layers = [keras.layers.Conv2D(64, 3, activation="relu") for _ in range(4)]
    model = keras.Sequential([keras.Input([SIZE, SIZE, 3]), *layers, keras.layers.GlobalMaxPooling2D()])
    model.compile("sgd", "mse", jit_compile=False)
    return model


def zeros(size: int) -> tuple[np.ndarray, np.ndarray]:
    return np.zeros([size, SIZE, SIZE, 3], np.float32), np.zeros([size, 64], np.float32)


def fits(size: int) -> bool:
    """Return True if two steps of `wide` fit into the memory that is free."""
    import tensorflow as tf

    device()
    model = wide()
    with suppress(tf.errors.ResourceExhaustedError):
        model.train_on_batch(*zeros(size))
        model.train_on_batch(*zeros(size))
        return True
    return False


def from_directory(photos: Path) -> Any:
    """As Keras reads class folders; batched after `repeat`, since a batch must not be partial."""
    import keras
    import tensorflow as tf

    data = keras.utils.image_dataset_from_directory(photos, image_size=(SIZE, SIZE), batch_size=None, verbose=False)
    return data.repeat().batch(BATCH).prefetch(tf.data.AUTOTUNE)


def tf_data(photos: Path) -> Any:
    """As https://www.tensorflow.org/tutorials/load_data/images reads them; uint8, as the loader's images are."""
    import tensorflow as tf

    def read(path: Any, label: Any) -> Any:
        image = tf.io.decode_jpeg(tf.io.read_file(path), channels=3)
        return tf.cast(tf.image.resize(image, [SIZE, SIZE]), tf.uint8), label

    files = sorted(photos.rglob("*.jpg"))
    labels = [int(file.parent.name) for file in files]
    paths = tf.data.Dataset.from_tensor_slices(([str(file) for file in files], labels)).shuffle(len(files)).repeat()
    return paths.map(read, num_parallel_calls=tf.data.AUTOTUNE).batch(BATCH).prefetch(tf.data.AUTOTUNE)
