"""TFRecord files without TensorFlow: Examples, frames, and the text index of a file."""

from tfprep.records.example import FeatureSpan, decode, encode, unpack
from tfprep.records.framing import (
    Frame,
    RecordWriter,
    check_frame,
    footer_crc,
    format_index,
    frame,
    masked_crc,
    read_record,
    read_records,
)

__all__ = [
    "FeatureSpan", "Frame", "RecordWriter", "check_frame", "decode", "encode", "footer_crc", "format_index", "frame",
    "masked_crc", "read_record", "read_records", "unpack",
]  # fmt: skip
