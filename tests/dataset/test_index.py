"""An index whose digest is right and whose rows are wrong, as a stranger may write one: each rule refuses it."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tfprep.dataset import open_dataset
from tfprep.dataset.index import write_index
from tfprep.dataset.names import INDEX
from tfprep.errors import DatasetError


@pytest.fixture
def made(make_dataset):
    """10 training samples in 2 shards: rows 0 to 4 and 5 to 9."""
    return make_dataset(samples={"train": 10}, fields=["image", "label"])


ROWS = {
    "a shard before the first": (0, {"shard": -1}, "shards are numbered from 0 to 1, not -1 to 1"),
    "a shard after the last": (9, {"shard": 2}, "shards are numbered from 0 to 1, not 0 to 2"),
    "another number of records": (4, {"shard": 1}, "another number of records"),
    "a negative offset": (0, {"offset": -1}, "a record lies outside its shard"),
    "an offset behind the end": (0, {"offset": 1 << 40}, "a record lies outside its shard"),
    "a sum that overflows": (0, {"offset": 2**63 - 1}, "a record lies outside its shard"),
    "a size smaller than a frame": (0, {"size": 15}, "a record lies outside its shard"),
    "a size beyond the shard": (4, {"size": 1 << 40}, "a record lies outside its shard"),
    "a field before its record": (3, {"image_offset": 0}, "the bytes of 'image' lie outside their record"),
    "a field of negative size": (3, {"image_size": -1}, "the bytes of 'image' lie outside their record"),
    "a field beyond its record": (3, {"image_size": 2**31 - 1}, "the bytes of 'image' lie outside their record"),
    "a missing label": (3, {"label": None}, "the column label has 1 values missing"),
    "a missing checksum": (3, {"payload_crc": None}, "the column payload_crc has 1 values missing"),
}


@pytest.mark.parametrize("case", ROWS)
def test_a_wrong_row(made, case):
    row, values, message = ROWS[case]
    made.change_index(row, **values)
    with pytest.raises(DatasetError, match=rf"index.parquet, split 'train', variant 0: .*{message}"):
        open_dataset(made.path).index("train")


@pytest.mark.parametrize("first", [0, 1, 4, 5, 10, 11])
def test_the_first_rows(made, first):
    """Those of several row groups."""
    table = pq.read_table(made.path / INDEX)
    write_index(made.path / INDEX, table.schema, [table.slice(0, 4), table.slice(4, 1), table.slice(5)])
    made.seal()
    data = open_dataset(made.path)
    assert data.index("train", 0, ["key", "shard"], first=first) == data.index("train", 0, ["key", "shard"])[:first]


def test_heights_may_be_missing(made):
    made.change_index(3, height=None, width=None)
    assert open_dataset(made.path).index("train").column("height").null_count == 1


def test_rows_out_of_the_order_of_their_shards(made):
    table = pq.read_table(made.path / INDEX)
    write_index(made.path / INDEX, table.schema, [table.take([5, 6, 7, 8, 9, 0, 1, 2, 3, 4])])
    made.seal()
    with pytest.raises(DatasetError, match="the rows are not in the order of the shards"):
        open_dataset(made.path).index("train")


def test_rows_are_missing(made):
    table = pq.read_table(made.path / INDEX)
    write_index(made.path / INDEX, table.schema, [table.slice(0, 9)])
    made.seal()
    with pytest.raises(DatasetError, match=r"lists 9 records of split 'train', variant 0; tfprep.json says 10"):
        open_dataset(made.path).index("train")


def retyped(table):
    return table.set_column(table.schema.get_field_index("size"), "size", table["size"].cast(pa.float64()))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda table: table.drop_columns(["payload_crc"]), "the column payload_crc is missing"),
        (lambda table: table.drop_columns(["split"]), "it has no columns split and variant"),
        (retyped, "the column size is of type double, not int64"),
    ],
)
def test_wrong_columns(made, change, message):
    pq.write_table(change(pq.read_table(made.path / INDEX)), made.path / INDEX)
    made.seal()
    with pytest.raises(DatasetError, match=message):
        open_dataset(made.path).index("train")


def test_an_index_of_another_build(made, make_dataset):
    other = make_dataset("other", samples={"train": 10}, fields=["image", "label"], seed=1)
    (made.path / INDEX).write_bytes((other.path / INDEX).read_bytes())
    with pytest.raises(DatasetError, match=r"is not the index that tfprep\.json was written with"):
        open_dataset(made.path).index("train")
