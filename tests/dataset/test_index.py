"""An index whose digest is right and whose rows are wrong, as a stranger may write one: each rule refuses it."""

import subprocess
import sys
import threading

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import tfprep
from tests.storage.server import copied_to_memory
from tfprep.dataset import index_tfrecords, open_dataset
from tfprep.dataset.names import INDEX, LOCATIONS
from tfprep.dataset.verify import verify
from tfprep.errors import DatasetError
from tfprep.records import encode, frame
from tfprep.storage.urls import _ObjectFile


@pytest.fixture
def made(make_dataset):
    """10 training samples in 2 shards: rows 0 to 4 and 5 to 9."""
    return make_dataset(samples={"train": 10}, fields=["image", "label"])


ROWS = {
    "a shard before the first": (0, {"shard": -1}, "shards are numbered from 0 to 1, not -1 to 1"),
    "a shard after the last": (9, {"shard": 2}, "shards are numbered from 0 to 1, not 0 to 2"),
    "another number of records": (4, {"shard": 1}, "another number of records"),
    "a negative offset": (0, {"offset": -1}, "a record is outside its shard"),
    "an offset after the end": (0, {"offset": 1 << 40}, "a record is outside its shard"),
    "a sum that overflows": (0, {"offset": 2**63 - 1}, "a record is outside its shard"),
    "a size smaller than a frame": (0, {"size": 15}, "a record is outside its shard"),
    "a size beyond the shard": (4, {"size": 1 << 40}, "a record is outside its shard"),
    "a field before its record": (3, {"image_offset": 0}, "the bytes of 'image' are outside their record"),
    "a field of negative size": (3, {"image_size": -1}, "the bytes of 'image' are outside their record"),
    "a field beyond its record": (3, {"image_size": 2**31 - 1}, "the bytes of 'image' are outside their record"),
    "a missing label": (3, {"label": None}, "the column label has 1 values missing"),
    "a missing checksum": (3, {"payload_crc": None}, "the column payload_crc has 1 values missing"),
}


LOCATED = {
    "an offset after the end",
    "a size smaller than a frame",
    "a field before its record",
    "a field beyond its record",
}


@pytest.mark.parametrize("case", ROWS)
def test_a_wrong_row(made, case):
    """Those that a loader would follow are refused by `locations.bin`, which is made from the rows, too."""
    row, values, message = ROWS[case]
    made.change_index(row, **values)
    data = open_dataset(made.path)
    with pytest.raises(DatasetError, match=rf"index.parquet, split 'train', variant 0: .*{message}"):
        data.index("train")
    if case in LOCATED:
        with pytest.raises(DatasetError, match=r"are outside their record|is outside its shard"):
            data.locations("train", range(1)).take(np.array([row]))


@pytest.mark.parametrize("first", [0, 1, 4, 5, 10, 11])
def test_the_first_rows(made, first):
    """Those of several row groups."""
    table = pq.read_table(made.path / INDEX)
    pq.write_table(table, made.path / INDEX, row_group_size=4)
    made.seal()
    data = open_dataset(made.path)
    assert data.index("train", 0, ["key", "shard"], first=first) == data.index("train", 0, ["key", "shard"])[:first]


def retyped(table):
    return table.set_column(table.schema.get_field_index("size"), "size", table["size"].cast(pa.float64()))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda table: table.take([5, 6, 7, 8, 9, 0, 1, 2, 3, 4]), "the rows are not in the order of the shards"),
        (lambda table: table.slice(0, 9), r"lists 9 records of split 'train', variant 0; manifest.json says 10"),
        (lambda table: table.drop_columns(["payload_crc"]), "the column payload_crc is missing"),
        (lambda table: table.drop_columns(["split"]), "it has no columns split and variant"),
        (retyped, "the column size is of type double, not int64"),
    ],
)
def test_wrong_rows_and_columns(made, change, message):
    pq.write_table(change(pq.read_table(made.path / INDEX)), made.path / INDEX)
    made.seal()
    with pytest.raises(DatasetError, match=message):
        open_dataset(made.path).index("train")


FIELDS = ("image", "lossless", "label", "caption")
ROW = np.dtype([
    ("offset", "<u8"), ("size", "<u4"), ("payload_crc", "<u4"), ("label", "<i8"),
    *[(f"{name}_{what}", "<u4") for name in FIELDS for what in ("offset", "size")],
])  # fmt: skip


@pytest.fixture
def placed(make_dataset):
    """Two splits, three variants, and more shards than samples in one of them."""
    return make_dataset(samples={"val": 5, "train": 20}, variants=3, shards=7, fields=FIELDS)


def damaged(path, row):
    """Changes a byte of a row of `locations.bin`, without a change of its size."""
    content = bytearray((path / LOCATIONS).read_bytes())
    content[row * ROW.itemsize] ^= 1
    (path / LOCATIONS).write_bytes(content)


def test_rows_say_what_the_index_says(placed, make_dataset):
    rows, index = np.fromfile(placed.path / LOCATIONS, ROW), pq.read_table(placed.path / INDEX)
    assert len(rows) == 5 + 3 * 20
    for name in ROW.names:
        inside = name.endswith("_offset")
        expected = index[name].to_numpy() - (index["offset"].to_numpy() if inside else 0)
        np.testing.assert_array_equal(rows[name], expected)

    for fields, size in ((["image"], 24), (["label"], 32)):  # a multiple of 8 bytes
        path = make_dataset(fields[0], samples={"train": 3}, fields=fields).path
        assert (path / LOCATIONS).stat().st_size == 3 * size


def test_an_index_at_a_url_is_read_by_the_thread_that_asks(placed, monkeypatch):
    """A thread of Arrow that lets go of a Python object while the program ends aborts it."""
    readers = set()

    def readinto(file, target, *, read=_ObjectFile.readinto):
        readers.add(threading.get_ident())
        return read(file, target)

    monkeypatch.setattr(_ObjectFile, "readinto", readinto)
    data = open_dataset(copied_to_memory(placed.path))
    for split, variant in (("val", 0), ("train", 2)):
        assert data.index(split, variant).equals(open_dataset(placed.path).index(split, variant))
        assert len(data.index(split, variant, ["key"])) == len(data.index(split, variant, ["no such"])) > 0
    assert readers == {threading.get_ident()}


def test_a_shard_is_checked_when_it_is_first_used(placed):
    damaged(placed.path, 5 + 19)  # the last record of training, in shard 6 of variant 0
    locations = open_dataset(placed.path).locations("train", range(1))
    expected = [value["label"] for value in placed.values["train"][0][:17]]
    assert locations.take(np.arange(17))["label"].tolist() == expected
    for _ in range(2):
        with pytest.raises(DatasetError, match=r"locations.bin is damaged, or of another build.*run the build again"):
            locations.take(np.array([0, 18]))
    assert "locations.bin" in {fault.file for fault in verify(placed.path)}
    for row in range(5, 5 + 60):
        damaged(placed.path, row)
    with pytest.raises(DatasetError, match=r"locations.bin is damaged"):
        next(iter(tfprep.open(placed.path).numpy_loader("train", 4, seed=0)))


def test_a_file_of_another_size(placed):
    content = (placed.path / LOCATIONS).read_bytes()
    (placed.path / LOCATIONS).write_bytes(content[:-1])
    with pytest.raises(DatasetError, match=f"holds {len(content) - 1} bytes, {len(content)} were written"):
        open_dataset(placed.path).locations("val", range(1))
    (placed.path / LOCATIONS).unlink()
    with pytest.raises(DatasetError, match=r"locations.bin cannot be read"):
        open_dataset(placed.path).locations("val", range(1))


LITTLE_MEMORY = """
import resource, sys
import pyarrow.parquet
from tfprep.dataset import open_dataset
data = open_dataset(sys.argv[1])
pages = int(open("/proc/self/statm").read().split()[0])
limit = pages * resource.getpagesize() + (6 << 20)
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
data.index("train", 0)
"""


def test_memory_that_cannot_be_had_is_not_damage(tmp_path):
    (tmp_path / "0.tfrecord").write_bytes(
        b"".join(frame(encode({"text": b"%0250d" % number})[0]) for number in range(60_000))
    )
    index_tfrecords(str(tmp_path / "0.tfrecord"), "train", workers=0)
    done = subprocess.run([sys.executable, "-c", LITTLE_MEMORY, tmp_path], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    last = done.stderr.strip().splitlines()[-1]
    assert "memory or a thread for it cannot be had" in last
    assert "damaged" not in last
