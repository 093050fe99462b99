"""Each problem of a batch is reported."""

import numpy as np
import pytest

from tfprep import train
from tfprep.errors import TrainError


def _images(count=4, **changes):
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, [count, 8, 8, 3]).astype(np.uint8)
    return changes.get("images", images), changes.get("labels", np.arange(count) % 3)


def test_a_good_batch_is_described(tf):
    images, labels = _images(10)
    dataset = tf.data.Dataset.from_tensor_slices(({"image": images, "name": ["a"] * 10}, labels)).batch(4)
    text = train.check_batches(dataset, 3, num_classes=3)
    assert f"[0]['image']: uint8 (4, 8, 8, 3) or (2, 8, 8, 3), from 0 to 255, mean {images.mean():.4g}" in text
    assert "[1]: int64 (4,) or (2,), from 0 to 2, mean 0.9" in text
    assert "[0]['name']: object (4,) or (2,), not checked: no numbers" in text


def test_numbers_among_the_inputs_are_no_labels():
    train.check_batches([({"gray": np.arange(32).reshape(2, 4, 4)}, np.arange(2))], num_classes=3)
    with pytest.raises(TrainError, match="outside of"):
        train.check_batches([{"label": np.arange(4)}], num_classes=3)


def test_rows_that_pad_added_are_no_labels():
    images, padded = _images()[0], np.array([[0, 1], [2, -1], [1, 1], [-1, -1]])
    train.check_batches([(images, {"names": padded})], num_classes=3)
    with pytest.raises(TrainError, match=r"labels \[-2, 3, 4\] are outside"):
        train.check_batches([(images, {"names": np.where(padded == 1, 3, padded * 2)})], num_classes=3)


def test_weights_of_samples_are_no_labels():
    train.check_batches([(*_images(), np.array([1, 5, 1, 5], "f"))], num_classes=3)


def test_ragged_sparse_and_empty_components(tf):
    ragged = tf.RaggedTensor.from_row_lengths(tf.constant([1.0, np.nan, 3.0]), [2, 1])
    with pytest.raises(TrainError, match="1 values are NaN"):
        train.check_batches([ragged])
    text = train.check_batches([(tf.sparse.from_dense([[1, 0], [0, 2]]), np.zeros([0, 3]))])
    assert text.splitlines() == [
        "[0]: int32 (2, 2), from 1 to 2, mean 1.5",
        "[1]: float64 (0, 3), not checked: no values",
    ]


def test_batches_with_other_numbers_of_ragged_or_sparse_values_are_right(tf):
    boxes = [
        tf.RaggedTensor.from_row_lengths(tf.random.normal([sum(counts), 4]), counts) for counts in ([2, 1], [0, 5])
    ]
    sparse = [tf.sparse.from_dense(dense) for dense in ([[1, 0], [0, 2]], [[0, 0], [0, 3]])]
    for batches in (boxes, sparse):
        assert train.check_batches([*batches, *batches]).count(" (2, ") == 1  # the size of a batch, not of its values
    with pytest.raises(TrainError, match="batch sizes differ"):
        train.check_batches([boxes[0], tf.concat(boxes, 0), boxes[1]])


WRONG = {
    "nan": ([_images(images=np.full([4, 8, 8, 3], np.nan, "f"))], r"\[0\]: 768 values are NaN or infinite"),
    "constant": ([_images(images=np.zeros([4, 8, 8, 3], "f"))], r"\[0\]: all values are 0"),
    "unscaled": ([_images(images=_images()[0].astype("f"))], r"\[0\]: float images up to 25\d; divide by 255"),
    "channels_first": ([_images(images=_images()[0].transpose(0, 3, 1, 2).astype("f"))], "divide by 255"),
    "labels": ([_images(labels=np.array([0, 1, 3, -1]))], r"\[1\]: labels \[-1, 3\] are outside of \[0, 3\)"),
    "float_labels": ([_images(labels=np.array([0, 1, 3, 2], "f"))], r"\[1\]: labels \[3.0\] are outside of \[0, 3\)"),
    "mask": ([_images(labels=np.arange(16).reshape(4, 2, 2, 1) % 4)], r"\[1\]: labels \[3\] are outside of \[0, 3\)"),
    "one_class": ([_images(labels=np.ones(4, int))], r"\[1\]: all values are 1"),
    "shapes": ([_images(), (np.zeros([4, 9, 8, 3], np.uint8) + _images()[0][:, :1], np.arange(4) % 3)], "shapes differ"),
    "sizes": ([_images(4), _images(3), _images(4)], "batch sizes differ before the last batch"),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG)
def test_each_problem_is_reported(case):
    batches, message = WRONG[case]
    with pytest.raises(TrainError, match=message):
        train.check_batches(batches, num_classes=3)
