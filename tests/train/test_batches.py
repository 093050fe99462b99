"""Each problem of a batch is reported."""

import numpy as np
import pytest

from tfprep import train
from tfprep.errors import TrainError


def _images(count=4, **changes):
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, [count, 8, 8, 3]).astype(np.uint8)
    return changes.get("images", images), changes.get("labels", np.arange(count) % 3)


def test_a_good_batch_has_no_problem(tf):
    images, labels = _images(10)
    dataset = tf.data.Dataset.from_tensor_slices((images, labels)).batch(4)
    report = train.check_batches(dataset, 3, num_classes=3)
    assert report.problems == ()
    assert report.batches == 3
    image, label = report.components
    assert image.shapes == ((4, 8, 8, 3), (2, 8, 8, 3))
    assert (image.low, image.high) == (images.min(), images.max())
    assert image.mean == pytest.approx(images.mean())
    assert label.counts == {0: 4, 1: 3, 2: 3}
    assert "[1]: int64 (4,) or (2,), from 0 to 2, mean 0.9; values 0: 4, 1: 3, 2: 3" in str(report)


WRONG = {
    "nan": ([_images(images=np.full([4, 8, 8, 3], np.nan, "f"))], r"\[0\]: 768 values are NaN or infinite"),
    "constant": ([_images(images=np.zeros([4, 8, 8, 3], "f"))], r"\[0\]: all values are 0; is the right file read"),
    "unscaled": ([_images(images=_images()[0].astype("f"))], r"\[0\]: float images up to 25\d; divide by 255"),
    "labels": ([_images(labels=np.array([0, 1, 3, -1]))], r"\[1\]: labels \[-1, 3\] are outside of \[0, 3\)"),
    "one_class": ([_images(labels=np.ones(4, int))], r"\[1\]: only the value 1; shuffle before batching"),
    "shapes": ([_images(), (np.zeros([4, 9, 8, 3], np.uint8) + _images()[0][:, :1], np.arange(4) % 3)], "shapes differ"),
    "sizes": ([_images(4), _images(3), _images(4)], "batch sizes differ before the last batch"),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG)
def test_each_problem_is_reported(tf, case):
    batches, message = WRONG[case]
    with pytest.raises(TrainError, match=message):
        train.check_batches(batches, num_classes=3)
    assert train.check_batches(batches, num_classes=3, strict=False).problems


def test_named_components_and_ragged_ones(tf):
    boxes = tf.RaggedTensor.from_row_lengths(tf.random.stateless_uniform([5, 4], [1, 2]), [2, 3])
    batch = ({"image": _images(2)[0], "boxes": boxes}, {"name": np.array([b"a", b"b"])})
    names = [component.name for component in train.check_batches([batch], strict=False).components]
    assert names == ["[0].image", "[0].boxes", "[1].name"]


tensorboard = pytest.importorskip("tensorboard")


def _read(folder):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    accumulator = EventAccumulator(str(folder), size_guidance={"tensors": 0})
    accumulator.Reload()
    return accumulator


def test_scalars_are_read_back(tf, tmp_path):
    from tfprep.train.charts import SummaryWriter

    charts = SummaryWriter(str(tmp_path))
    charts.scalars({"a/b": 0.25, "c": 3.0}, step=7)
    charts.scalars({"a/b": 0.5}, step=9)
    charts.close()
    events = _read(tmp_path)
    read = [(event.step, float(tf.make_ndarray(event.tensor_proto))) for event in events.Tensors("a/b")]
    assert read == [(7, 0.25), (9, 0.5)]
    assert events.SummaryMetadata("c").plugin_data.plugin_name == "scalars"
