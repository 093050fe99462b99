"""Scalars for TensorBoard, written without TensorFlow and without TensorBoard installed.

An event file is a TFRecord file of `tensorflow.Event` messages
(https://github.com/tensorflow/tensorflow/blob/master/tensorflow/core/util/event.proto). The metadata is what TensorBoard's plugin
"scalars" reads.
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

_METADATA_OF_SCALARS = 1
"""`DATA_CLASS_SCALAR` of TensorFlow's summary.proto."""
_FLOAT = 1
"""`DT_FLOAT` of TensorFlow's types.proto."""


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
        metadata = message({1: message({1: "scalars"}), 4: _METADATA_OF_SCALARS})
        tensors = {tag: message({1: _FLOAT, 2: b"", 5: struct.pack("<f", value)}) for tag, value in values.items()}
        summary = [message({1: tag, 8: tensor, 9: metadata}) for tag, tensor in tensors.items()]
        self._write(message({2: step, 5: message({1: summary})}))

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            self._file.close()

    def _write(self, event: bytes) -> None:
        with self._lock:
            self._file.write(frame(message({1: time.time()}) + event))
            self._file.flush()


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
