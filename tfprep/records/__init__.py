"""TFRecord without TensorFlow: Examples, frames, and the text index beside a file."""

from tfprep.records.example import Span, decode, encode
from tfprep.records.framing import Frame, RecordWriter, check_frame, frame, masked_crc, read_record, read_records
from tfprep.records.index import format_index, read_index

__all__ = [
    "Frame",
    "RecordWriter",
    "Span",
    "check_frame",
    "decode",
    "encode",
    "format_index",
    "frame",
    "masked_crc",
    "read_index",
    "read_record",
    "read_records",
]
