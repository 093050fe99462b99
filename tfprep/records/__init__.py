"""TFRecord files without TensorFlow: Examples, frames, and the text index of a file."""

from tfprep.records.example import decode, encode, unpack
from tfprep.records.framing import (
    Frame,
    check_frame,
    format_index,
    frame,
    masked_crc,
    read_record,
)

__all__ = [
    "Frame", "check_frame", "decode", "encode", "format_index", "frame", "masked_crc", "read_record", "unpack",
]  # fmt: skip
