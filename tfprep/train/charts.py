"""Numbers into TensorBoard, without TensorBoard installed: scalars, and the layout that puts their charts together.

TensorFlow no longer depends on TensorBoard, and `tf.summary.scalar` needs it; `tf.summary.write` does not. The metadata
and the layout below are what TensorBoard's plugins "scalars" and "custom_scalars" read
(`tensorboard/plugins/custom_scalar/layout.proto`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf


@dataclass(frozen=True)
class Chart:
    """Some scalars in one picture: `tags` are regular expressions."""

    title: str
    tags: tuple[str, ...]


class Charts:
    """Writes scalars to `folder`. Any thread may call; all ops run on the CPU."""

    def __init__(self, folder: str) -> None:
        with tf.device("CPU:0"):
            self._writer = tf.summary.create_file_writer(folder)

    def scalars(self, values: Mapping[str, float], step: int) -> None:
        with tf.device("CPU:0"), self._writer.as_default(step=step):
            for tag, value in values.items():
                tf.summary.write(tag, np.float32(value), metadata=_metadata("scalars"))
        self._writer.flush()

    def layout(self, category: str, charts: Sequence[Chart]) -> None:
        """Put `charts` together on TensorBoard's page "Custom Scalars"."""
        with tf.device("CPU:0"), self._writer.as_default(step=0):
            tf.summary.write(
                "custom_scalars__config__", layout_bytes(category, charts), metadata=_metadata("custom_scalars")
            )

    def image(self, tag: str, png: bytes, size: tuple[int, int], step: int) -> None:
        """A PNG image; `size` is (height, width)."""
        height, width = size
        with tf.device("CPU:0"), self._writer.as_default(step=step):
            told = [str(width).encode(), str(height).encode(), png]
            tf.summary.write(tag, np.array(told, object), metadata=_metadata("images"))
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()


def layout_bytes(category: str, charts: Sequence[Chart]) -> bytes:
    """A serialised `tensorboard.plugins.custom_scalar.Layout` of one category: its field numbers are part of the
    format."""
    inside = b"".join(_field(2, _chart_bytes(chart)) for chart in charts)
    return _field(2, _field(1, category.encode()) + inside)


def _chart_bytes(chart: Chart) -> bytes:
    multiline = b"".join(_field(1, tag.encode()) for tag in chart.tags)
    return _field(1, chart.title.encode()) + _field(2, multiline)


def _field(number: int, payload: bytes) -> bytes:
    """A length-delimited field of the protocol buffer wire format."""
    return bytes([number << 3 | 2]) + _varint(len(payload)) + payload


def _varint(value: int) -> bytes:
    low, high = value & 0x7F, value >> 7
    return bytes([low | 0x80]) + _varint(high) if high else bytes([low])


def _metadata(plugin: str) -> Any:
    metadata = tf.compat.v1.SummaryMetadata()
    metadata.plugin_data.plugin_name = plugin
    if plugin == "scalars":
        metadata.data_class = 1  # DATA_CLASS_SCALAR
    if plugin == "images":
        metadata.data_class = 3  # DATA_CLASS_BLOB_SEQUENCE
    return metadata
