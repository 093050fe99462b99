"""Scalars and images for TensorBoard, written without TensorBoard installed.

TensorFlow no longer depends on TensorBoard, and `tf.summary.scalar` needs it; `tf.summary.write` does not. The metadata
and the layout below are what TensorBoard's plugins "scalars", "images" and "custom_scalars" read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from tfprep.train.messages import message_class

_DATA_CLASSES = {"scalars": 1, "images": 3}
"""`DATA_CLASS_SCALAR` and `DATA_CLASS_BLOB_SEQUENCE` of TensorBoard's summary.proto."""


@dataclass(frozen=True)
class ScalarChart:
    """Several scalars in one chart; `tags` are regular expressions."""

    title: str
    tags: tuple[str, ...]


class SummaryWriter:
    """Writes event files to `folder`. Any thread may call it; all of its ops run on the CPU."""

    def __init__(self, folder: str) -> None:
        with tf.device("CPU:0"):
            self._writer = tf.summary.create_file_writer(folder)

    def scalars(self, values: Mapping[str, float], step: int) -> None:
        """Write the value of each tag."""
        with tf.device("CPU:0"), self._writer.as_default(step=step):
            for tag, value in values.items():
                tf.summary.write(tag, np.float32(value), metadata=_metadata("scalars"))
        self._writer.flush()

    def layout(self, category: str, charts: Sequence[ScalarChart]) -> None:
        """Show `charts` together on TensorBoard's page "Custom Scalars"."""
        with tf.device("CPU:0"), self._writer.as_default(step=0):
            tf.summary.write(
                "custom_scalars__config__", layout_bytes(category, charts), metadata=_metadata("custom_scalars")
            )

    def image(self, tag: str, png: bytes, size: tuple[int, int], step: int) -> None:
        """Write a PNG image; `size` is (height, width) in pixels."""
        height, width = size
        with tf.device("CPU:0"), self._writer.as_default(step=step):
            fields = [str(width).encode(), str(height).encode(), png]
            tf.summary.write(tag, np.array(fields, object), metadata=_metadata("images"))
        self._writer.flush()

    def close(self) -> None:
        """Flush and close the file."""
        self._writer.close()


def layout_bytes(category: str, charts: Sequence[ScalarChart]) -> bytes:
    """Return a serialised `tensorboard.plugins.custom_scalar.Layout` of one category."""
    described = [{"title": chart.title, "multiline": {"tag": list(chart.tags)}} for chart in charts]
    layout = message_class("layout", "Layout")(category=[{"title": category, "chart": described}])
    return bytes(layout.SerializeToString())


def _metadata(plugin: str) -> Any:
    metadata = tf.compat.v1.SummaryMetadata()
    metadata.plugin_data.plugin_name = plugin
    metadata.data_class = _DATA_CLASSES.get(plugin, 0)
    return metadata
