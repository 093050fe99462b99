"""Scalars for TensorBoard, written without TensorFlow and without TensorBoard installed.

An event file is a TFRecord file of `tensorflow.Event` messages
(https://github.com/tensorflow/tensorflow/blob/master/tensorflow/core/util/event.proto). The metadata and the layout below are
what TensorBoard's plugins "scalars" and "custom_scalars" read.
"""

from __future__ import annotations

import os
import socket
import struct
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TypeAlias

from tfprep.records import frame
from tfprep.records.example import varint

Value: TypeAlias = "int | float | str | bytes | list[bytes]"

_DATA_CLASSES = {"scalars": 1}
"""`DATA_CLASS_SCALAR` of TensorFlow's summary.proto."""
_FLOAT, _STRING = 1, 7
"""`DT_FLOAT` and `DT_STRING` of TensorFlow's types.proto."""


class SummaryWriter:
    """Writes an event file to `folder`, which is made if it does not exist. Any thread may call it."""

    def __init__(self, folder: str) -> None:
        Path(folder).mkdir(parents=True, exist_ok=True)
        # TensorBoard reads the files of a folder in the order of their names, and so of their times.
        name = f"events.out.tfevents.{time.time():017.6f}.{socket.gethostname()}.{os.getpid()}.v2"
        self._file = (Path(folder) / name).open("wb")
        self._lock = threading.Lock()
        self._write(message({3: "brain.Event:2"}))

    def scalars(self, values: Mapping[str, float], step: int) -> None:
        """Write the value of each tag."""
        summary = {tag: message({1: _FLOAT, 2: b"", 5: struct.pack("<f", value)}) for tag, value in values.items()}
        self._event("scalars", summary, step)

    def layout(self, category: str, charts: Mapping[str, str]) -> None:
        """Show `charts`, by title a regular expression of tags, together on TensorBoard's page "Custom Scalars"."""
        self._event("custom_scalars", {"custom_scalars__config__": _texts([layout_bytes(category, charts)], ())}, 0)

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            self._file.close()

    def _event(self, plugin: str, tensors: Mapping[str, bytes], step: int) -> None:
        metadata = message({1: message({1: plugin}), 4: _DATA_CLASSES.get(plugin, 0)})
        values = [message({1: tag, 8: tensor, 9: metadata}) for tag, tensor in tensors.items()]
        self._write(message({2: step, 5: message({1: values})}))

    def _write(self, event: bytes) -> None:
        with self._lock:
            self._file.write(frame(message({1: time.time()}) + event))
            self._file.flush()


def layout_bytes(category: str, charts: Mapping[str, str]) -> bytes:
    """Return a serialized `tensorboard.plugins.custom_scalar.Layout` of one category, from titles and regular expressions of tags
    (https://github.com/tensorflow/tensorboard/blob/master/tensorboard/plugins/custom_scalar/layout.proto)."""
    described = [message({1: title, 2: message({1: [tags.encode()]})}) for title, tags in charts.items()]
    return message({2: message({1: category, 2: described})})


def message(fields: Mapping[int, Value]) -> bytes:
    """Serialize a protocol-buffers message (https://protobuf.dev/programming-guides/encoding).

    Args:
        fields: By number of the field its value: a whole number, a double, text, bytes (also another message), or several bytes.
    """
    return b"".join(_field(number, value) for number, value in fields.items())


def _field(number: int, value: Value) -> bytes:
    if isinstance(value, list):
        return b"".join(_field(number, item) for item in value)
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    if isinstance(value, float):
        return varint(number << 3 | 1) + struct.pack("<d", value)
    content = value.encode() if isinstance(value, str) else value
    return varint(number << 3 | 2) + varint(len(content)) + content


def _texts(texts: list[bytes], shape: tuple[int, ...]) -> bytes:
    """A `tensorflow.TensorProto` of byte strings."""
    return message({1: _STRING, 2: message({2: [message({1: size}) for size in shape]}), 8: texts})
