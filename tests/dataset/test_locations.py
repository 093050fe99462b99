"""`locations.bin` against the columns of the index, read as docs/format.md says; and damage."""

from __future__ import annotations

import numpy as np
import pyarrow.parquet as pq
import pytest

import tfprep
from tfprep.dataset import open_dataset
from tfprep.dataset.names import INDEX, LOCATIONS
from tfprep.dataset.verify import verify
from tfprep.errors import DatasetError, DatasetReplacedError

FIELDS = ("image", "lossless", "label", "caption")
ROW = np.dtype([
    ("offset", "<u8"), ("size", "<u4"), ("payload_crc", "<u4"), ("label", "<i8"),
    *[(f"{name}_{what}", "<u4") for name in FIELDS for what in ("offset", "size")],
])  # fmt: skip


@pytest.fixture
def made(make_dataset):
    """Two splits, three variants, and more shards than samples in one of them."""
    return make_dataset(samples={"val": 5, "train": 20}, variants=3, shards=7, fields=FIELDS)


def damaged(path, row):
    """Changes a byte of a row of `locations.bin`, without a change of its size."""
    content = bytearray((path / LOCATIONS).read_bytes())
    content[row * ROW.itemsize] ^= 1
    (path / LOCATIONS).write_bytes(content)


def test_rows_say_what_the_index_says(made):
    rows, index = np.fromfile(made.path / LOCATIONS, ROW), pq.read_table(made.path / INDEX)
    assert len(rows) == 5 + 3 * 20
    for name in ROW.names:
        inside = name.endswith("_offset")
        expected = index[name].to_numpy() - (index["offset"].to_numpy() if inside else 0)
        np.testing.assert_array_equal(rows[name], expected)


@pytest.mark.parametrize("fields", [["image"], ["label"]])
def test_rows_are_a_multiple_of_8_bytes(make_dataset, fields):
    path = make_dataset(samples={"train": 3}, fields=fields).path
    assert (path / LOCATIONS).stat().st_size == 3 * (24 if fields == ["image"] else 32)


def test_a_shard_is_checked_when_it_is_first_used(made):
    damaged(made.path, 5 + 19)  # the last record of training, in shard 6 of variant 0
    locations = open_dataset(made.path).locations("train", range(1))
    assert locations.take(np.arange(17))["label"].tolist() == [value["label"] for value in made.values["train"][0][:17]]
    for _ in range(2):
        with pytest.raises(DatasetError, match=r"locations.bin is damaged, or of another build.*tfprep repair"):
            locations.take(np.array([0, 18]))
    assert "locations.bin" in {fault.file for fault in verify(made.path)}


def test_a_loader_names_the_damage(made):
    for row in range(5, 5 + 60):
        damaged(made.path, row)
    with pytest.raises(DatasetError, match=r"locations.bin is damaged"):
        next(iter(tfprep.open(made.path).numpy_loader("train", 4, seed=0)))


def test_a_file_of_another_size(made):
    content = (made.path / LOCATIONS).read_bytes()
    (made.path / LOCATIONS).write_bytes(content[:-1])
    with pytest.raises(DatasetError, match=f"holds {len(content) - 1} bytes, {len(content)} were written"):
        open_dataset(made.path).locations("val", range(1))
    (made.path / LOCATIONS).unlink()
    with pytest.raises(DatasetError, match=r"locations.bin cannot be read"):
        open_dataset(made.path).locations("val", range(1))


@pytest.mark.parametrize("values", [{"offset": 1 << 40}, {"size": 15}, {"image_offset": 0}, {"image_size": 2**31 - 1}])
def test_numbers_that_cannot_be_are_refused(made, values):
    made.change_index(5 + 3, **values)
    with pytest.raises(DatasetError, match=r"lie outside their record|lies outside its shard"):
        open_dataset(made.path).locations("train", range(1)).take(np.array([3]))


def test_a_dataset_that_was_replaced_says_so(made, make_dataset):
    data = tfprep.open(made.path)
    locations = data.locations("train", range(1))
    other = make_dataset("other", samples={"val": 5, "train": 20}, variants=3, shards=7, fields=FIELDS, seed=9).path
    assert len(locations.take(np.array([3]))) == 1
    for file in other.iterdir():
        file.replace(made.path / file.name)
    with pytest.raises(DatasetReplacedError):
        data.locations("train", range(1)).take(np.array([3]))
    assert len(locations.take(np.arange(20))) == 20  # the file that was mapped


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda m: m["splits"]["val"].update(rows_crc32c=[]),
            "splits.val.rows_crc32c has not one number for each shard",
        ),
        (lambda m: m["splits"]["val"].pop("rows_crc32c"), "splits.val.rows_crc32c is missing"),
        (lambda m: m.update(format_version=1), "format version 1, this tfprep reads 2; build it again"),
        (lambda m: m.update(format_version=True), "format version True"),
    ],
)
def test_a_wrong_manifest(made, change, message):
    made.seal(change)
    with pytest.raises(DatasetError, match=message):
        open_dataset(made.path)
