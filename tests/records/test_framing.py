"""TFRecord frames, compared with TensorFlow's writer and reader, and with golden bytes."""

import numpy as np
import pytest

from tests.damage import flip
from tests.examples import read_records, write
from tfprep.errors import RecordError
from tfprep.records import Frame, frame, masked_crc, read_record

tf = pytest.importorskip("tensorflow")

GOLDEN_ABC = "0300000000000000b099490e6162636e57f121"
"""What `tf.io.TFRecordWriter` of TensorFlow 2.21 writes for b"abc"."""
PAYLOADS = [b"", b"a", b"hello" * 100, bytes(range(256)), np.random.default_rng(0).bytes(100_000)]


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "x.tfrecord"
    path.write_bytes(b"".join(map(frame, PAYLOADS)))
    return path


def test_golden_bytes():
    """crc32c("123456789") = 0xE3069283 (RFC 3720, B.4); the mask and the frame are those of TensorFlow's record_writer.h."""
    assert masked_crc(b"123456789") == ((0xE3069283 >> 15 | 0xE3069283 << 17) + 0xA282EAD8) & 0xFFFFFFFF
    assert frame(b"abc").hex() == GOLDEN_ABC


def test_same_bytes_as_tensorflow(path, tmp_path):
    assert path.read_bytes() == write(tmp_path / "tf", PAYLOADS).read_bytes()
    assert [record.numpy() for record in tf.data.TFRecordDataset(str(path))] == PAYLOADS


def test_records_are_read_in_order_and_by_offset(path):
    frames = []
    for (place, payload), expected in zip(read_records(path), PAYLOADS, strict=True):
        assert payload == expected
        frames.append(place)
    with path.open("rb") as file:
        for number in reversed(range(len(frames))):
            assert read_record(file, path, frames[number], number) == PAYLOADS[number]


def test_every_flipped_byte_and_every_truncation_is_detected(tmp_path):
    path, first = tmp_path / "x", frame(b"first")
    good = first + frame(b"some payload")
    for position in range(len(first), len(good)):
        for bit in (1, 128):
            path.write_bytes(good)
            flip(path, position, bit=bit)
            with pytest.raises(AssertionError, match="at byte 21: "):
                list(read_records(path))
        if position > len(first):
            path.write_bytes(good[:position])
            with pytest.raises(AssertionError, match="at byte 21: cut short"):
                list(read_records(path))


def test_a_frame_of_another_size_than_the_index_says(path):
    with path.open("rb") as file, pytest.raises(RecordError, match="the index says 16"):
        read_record(file, path, Frame(16, 16))
    with path.open("rb") as file, pytest.raises(RecordError, match="cut short"):
        read_record(file, path, Frame(10**9, 50))
