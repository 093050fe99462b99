"""TFRecords that TensorFlow wrote, in the layout of its Object Detection API."""

import os

import numpy as np
import pytest

from tests.examples import detection, serialized, write


@pytest.fixture(scope="module")
def detections(tmp_path_factory):
    """30 records in 3 shards."""
    folder, rng = tmp_path_factory.mktemp("detections"), np.random.default_rng(1)
    for shard in range(3):
        examples = [serialized(detection(rng, 10 * shard + number)) for number in range(10)]
        write(folder / f"train-{shard:05d}-of-00003.tfrecord", examples)
    return folder


def open_dying(argument):
    """The entry of a process that dies with its first task. This module imports no TensorFlow."""
    return lambda task, mark: os._exit(7)
