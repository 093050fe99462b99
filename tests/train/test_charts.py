"""Event files, compared with TensorBoard's reader and message classes."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

tensorboard = pytest.importorskip("tensorboard")


def _read(folder: Path) -> Any:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    accumulator = EventAccumulator(str(folder), size_guidance={"tensors": 0})
    accumulator.Reload()
    return accumulator


def test_scalars_are_read_back(tf: Any, tmp_path: Path) -> None:
    from tfprep.train.charts import SummaryWriter

    charts = SummaryWriter(str(tmp_path))
    charts.scalars({"a/b": 0.25, "c": 3.0}, step=7)
    charts.scalars({"a/b": 0.5}, step=9)
    charts.close()
    events = _read(tmp_path)
    read = [(event.step, float(tf.make_ndarray(event.tensor_proto))) for event in events.Tensors("a/b")]
    assert read == [(7, 0.25), (9, 0.5)]
    assert events.SummaryMetadata("c").plugin_data.plugin_name == "scalars"


def test_the_layout_equals_tensorboards_message() -> None:
    from tensorboard.plugins.custom_scalar import layout_pb2

    from tfprep.train.charts import ScalarChart, layout_bytes

    long = "x" * 300
    written = layout_bytes("Input", [ScalarChart("one", ("a/.*", "b")), ScalarChart(long, ("c",))])
    multiline = [layout_pb2.MultilineChartContent(tag=["a/.*", "b"]), layout_pb2.MultilineChartContent(tag=["c"])]
    charts = [
        layout_pb2.Chart(title="one", multiline=multiline[0]),
        layout_pb2.Chart(title=long, multiline=multiline[1]),
    ]
    expected = layout_pb2.Layout(category=[layout_pb2.Category(title="Input", chart=charts)])
    assert written == expected.SerializeToString()


def test_check_batches_draws_the_images(tf: Any, tmp_path: Path) -> None:
    from tfprep.train import check_batches

    images = np.zeros([4, 6, 5, 3], np.uint8)
    images[:] = np.arange(4)[:, None, None, None] * 60
    check_batches([(images, np.array([0, 1, 1, 0]))], log_dir=tmp_path)
    events = _read(tmp_path)
    (event,) = events.Tensors("batch/[0]")
    width, height, png = tf.make_ndarray(event.tensor_proto).tolist()
    assert (width, height) == (b"10", b"12")
    picture = tf.io.decode_png(png).numpy()
    np.testing.assert_array_equal(picture[:6, :5], images[0])
    np.testing.assert_array_equal(picture[:6, 5:], images[1])
    np.testing.assert_array_equal(picture[6:, 5:], images[3])
