"""Verification finds no fault in an intact dataset, and names the file of every kind of damage.

`tests/builder/test_damage.py` builds damaged datasets again.
"""

import os

import google_crc32c
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import tfprep
from tests.commands import status_of
from tests.damage import flip
from tfprep.dataset import open_dataset
from tfprep.dataset.index import read_index
from tfprep.dataset.locations import row_type
from tfprep.dataset.manifest import read_manifest
from tfprep.dataset.verify import verify
from tfprep.errors import DatasetError, RecordError
from tfprep.storage.urls import read_content

SHARD = "mixed-train_v1.tfrecord-00001-of-00003"
IDX = f"{SHARD}.idx"


def cut(path):
    path.write_bytes(path.read_bytes()[:-5])


DAMAGE = {
    "nothing": (lambda folder: None, []),
    "missing": (lambda folder: (folder / SHARD).unlink(), [(SHARD, False, "missing")]),
    "payload": (lambda folder: flip(folder / SHARD, 40), [(SHARD, False, "SHA-256"), (SHARD, True, "of the payload")]),
    "length": (lambda folder: flip(folder / SHARD, 0), [(SHARD, False, "SHA-256"), (SHARD, True, "of the length")]),
    "cut": (lambda folder: cut(folder / SHARD), [(SHARD, False, "were written"), (SHARD, True, "cut short")]),
    "index cut": (lambda folder: cut(folder / IDX), [(IDX, False, "")]),
    "index missing": (lambda folder: (folder / IDX).unlink(), [(IDX, False, "No such file")]),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_every_kind_of_damage_is_named_with_its_file(copy, name):
    damage, faults = DAMAGE[name]
    damage(copy)
    found = list(verify(copy))
    assert [(fault.file, fault.offset is not None) for fault in found] == [(file, at) for file, at, _ in faults]
    for fault, (_, _, reason) in zip(found, faults, strict=True):
        assert reason in fault.reason


def test_nothing_waits_for_the_writer_of_a_fifo(copy):
    """A build that verifies waited for ever."""
    for name in ("index.parquet", IDX):
        (copy / name).unlink()
        os.mkfifo(copy / name)
    assert read_content(copy / IDX) == b""
    with pytest.raises(DatasetError, match=r"index\.parquet is not a regular file"):
        read_index(copy, read_manifest(copy), "train", 0, None)


def test_an_index_of_another_build_is_refused_when_it_is_read(copy):
    """The same samples with other labels: the index is intact but belongs to another build."""
    table = pq.read_table(copy / "index.parquet")
    label = table.schema.get_field_index("label")
    open_dataset(copy).index("train")
    other = table.set_column(label, "label", pa.array([0] * len(table), pa.int64()))
    pq.write_table(other, copy / "index.parquet")
    with pytest.raises(DatasetError, match=r"is not the index that manifest\.json was written with"):
        open_dataset(copy).index("train")


def test_two_shards_of_equal_size_that_are_swapped_are_refused_when_they_are_read(make_dataset):
    """The checksums of all records are correct; only the index shows that they belong elsewhere."""
    made = make_dataset(samples={"train": 12}, fields=("clicks", "label"), shards=2)
    first, second = (made.path / f"made-train.tfrecord-0000{shard}-of-00002" for shard in range(2))
    contents = first.read_bytes(), second.read_bytes()
    assert len(contents[0]) == len(contents[1]), "the sizes tell nothing"
    first.write_bytes(contents[1])
    second.write_bytes(contents[0])
    for read in (
        lambda: next(open_dataset(made.path).samples("train")),
        lambda: next(iter(tfprep.open(made.path).numpy_loader("train", 4))),
    ):
        with pytest.raises(RecordError, match="not the record that the index describes"):
            read()
    faults = [fault for fault in verify(made.path) if fault.offset is not None]
    assert [fault.file for fault in faults] == [first.name, second.name], "one for each shard, whatever its records"
    assert all("5 more records of this shard are damaged" in fault.reason for fault in faults)


FIELDS = ("image", "mask", "clicks", "field", "label", "weight", "caption")


def swapped(row, one, other):
    """The columns in which the spans of two fields have changed places, as for a row that `change_index` takes."""
    places = ((one, other), (other, one))
    return {f"{name}_{what}": row[f"{there}_{what}"] for name, there in places for what in ("offset", "size")}


def column_faults(made):
    """The faults of the index and of the locations; the digests of the shards are none, and there is no `.idx`."""
    return [fault for fault in verify(made.path) if fault.file in ("index.parquet", "locations.bin")]


INDEX_FAULTS = {
    "fields of one size": (lambda row: swapped(row, "image", "mask"), "'image' are those of 'mask', and 1 more"),
    "numbers": (
        lambda row: swapped(row, "label", "weight"), "'label' are those of 'weight', and 1 more",
    ),
    "a byte too late": (lambda row: {"clicks_offset": row["clicks_offset"] + 1}, "'clicks' are others"),
    "a size": (lambda _: {"caption_size": 3}, "'caption' are others"),
    "a label": (lambda _: {"label": 7}, "the label is 0, not 7"),
    "a height": (lambda _: {"height": 23}, "height and width are (24, 32) of 'image' and (24, 32) of 'mask'"),
    "no width": (lambda _: {"width": None}, "not (24, None)"),
}  # fmt: skip


@pytest.mark.parametrize("case", INDEX_FAULTS)
def test_an_index_that_was_written_wrong_is_compared_with_the_records(make_dataset, case):
    """All digests are those of the wrong index, and `locations.bin` follows from it: only the records show that it is wrong."""
    made = make_dataset(samples={"train": 8}, fields=FIELDS, shards=2)
    assert column_faults(made) == []
    change, reason = INDEX_FAULTS[case]
    made.change_index(3, **change(pq.read_table(made.path / "index.parquet").slice(3, 1).to_pylist()[0]))
    (fault,) = column_faults(made)
    assert fault.file == "index.parquet"
    assert reason in fault.reason
    assert fault.reason.startswith("made-train.tfrecord-00000-of-00002, record 3: ")


@pytest.mark.parametrize("name", ["offset", "payload_crc", "label", "mask_offset", "field_size"])
def test_locations_that_are_not_those_of_the_index(make_dataset, name):
    """The file has its own digest and its own checksums of rows; only the index shows that a number is another."""
    made = make_dataset(samples={"train": 8}, fields=FIELDS, shards=2)
    manifest = open_dataset(made.path).manifest
    path, rows = made.path / "locations.bin", np.memmap(made.path / "locations.bin", row_type(manifest.fields), "c")
    rows[name][5] -= 1
    path.write_bytes(rows.tobytes())
    crcs = [google_crc32c.value(part.tobytes()) for part in (rows[:4], rows[4:])]
    made.seal(lambda document: document["splits"]["train"].update(rows_crc32c=[crcs]))
    (fault,) = column_faults(made)
    assert (fault.file, fault.offset) == ("locations.bin", None)
    assert fault.reason == f"{name} of 1 records of train, variant 0, is not that of the index; the first is record 5"


def test_the_command_prints_faults_and_sets_the_exit_status(copy, capsys):
    assert status_of("verify", copy) == 0
    flip(copy / SHARD, 40)
    assert status_of("verify", copy) == 1
    assert f"{SHARD}, byte 0: wrong checksum of the payload" in capsys.readouterr().out
