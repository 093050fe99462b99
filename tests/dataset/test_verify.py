"""Verification finds no fault in an intact dataset, and names the file of every kind of damage."""

import json
import shutil
from pathlib import Path

import google_crc32c
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

import tfprep
from tfprep import Recipe, codecs, sources
from tfprep.builder import BuildOptions, build
from tfprep.cli import main
from tfprep.dataset import open_dataset
from tfprep.dataset.locations import row_type
from tfprep.dataset.manifest import seal
from tfprep.dataset.verify import verify
from tfprep.errors import DatasetError, RecordError

tf = pytest.importorskip("tensorflow")


@pytest.fixture(scope="session")
def whole(tmp_path_factory) -> Path:
    root = tmp_path_factory.mktemp("verify")
    draws = np.random.default_rng(0)
    for number in range(12):
        path = root / "raw" / ["cat", "dog"][number % 2] / f"{number:02d}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(draws.integers(0, 256, (9, 11, 3), np.uint8)).save(path)
    recipe = Recipe(
        name="r",
        source=sources.Folder(),
        store={"image": codecs.Raw(), "label": codecs.Scalar()},
        variants={"train": 2},
        shards={"train": 2},
    )
    build(recipe, root / "out", root / "raw", options=BuildOptions(workers=0))
    return root / "out"


@pytest.fixture
def copy(whole, tmp_path) -> Path:
    return Path(shutil.copytree(whole, tmp_path / "copy"))


SHARD = "r-train_v1.tfrecord-00001-of-00002"


def test_an_intact_dataset_has_no_fault(whole):
    assert list(verify(whole)) == []


def flip(path: Path, offset: int) -> None:
    data = bytearray(path.read_bytes())
    data[offset] ^= 1
    path.write_bytes(data)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-5])


@pytest.mark.parametrize(
    ("damage", "faults"),
    [
        (lambda folder: (folder / SHARD).unlink(), [(SHARD, False, "missing")]),
        (
            lambda folder: flip(folder / SHARD, 40),
            [(SHARD, False, "SHA-256"), (SHARD, True, "checksum of the payload")],
        ),
        (lambda folder: flip(folder / SHARD, 0), [(SHARD, False, "SHA-256"), (SHARD, True, "checksum of the length")]),
        (lambda folder: cut(folder / SHARD), [(SHARD, False, "were written"), (SHARD, True, "cut short")]),
        (lambda folder: cut(folder / f"{SHARD}.idx"), [(f"{SHARD}.idx", False, "")]),
        (lambda folder: (folder / f"{SHARD}.idx").unlink(), [(f"{SHARD}.idx", False, "No such file")]),
    ],
    ids=["missing", "payload", "length", "cut", "index cut", "index missing"],
)
def test_every_kind_of_damage_is_named_with_its_file(copy, damage, faults):
    damage(copy)
    found = list(verify(copy))
    assert [(fault.file, fault.offset is not None) for fault in found] == [(file, at) for file, at, _ in faults]
    for fault, (_, _, reason) in zip(found, faults, strict=True):
        assert reason in fault.reason


def resealed(text: str) -> str:
    return seal({key: value for key, value in json.loads(text).items() if key != "sha256"})


def kinds_of_files(folder: Path) -> dict[str, list[Path]]:
    """The published files by kind, at least one of each."""
    kinds = {
        "index": [folder / "index.parquet"],
        "manifest": [folder / "tfprep.json"],
        "labels": [folder / "label.labels.txt"],
        "features": [folder / "features.json"],
        "info": [folder / "dataset_info.json"],
        "shards": sorted(folder.glob("r-*-of-0000[0-9]")),
        "text index": sorted(folder.glob("*.idx")),
    }
    assert all(path.is_file() for paths in kinds.values() for path in paths)
    return kinds


@pytest.mark.parametrize("kind", ["index", "manifest", "labels", "features", "info", "shards", "text index"])
def test_150_random_flips_in_every_kind_of_file_are_found(copy, kind):
    """Any bit of any byte is flipped; the fault names the file."""
    draws = np.random.default_rng(150)
    for _ in range(150):
        path = draws.choice(kinds_of_files(copy)[kind])
        whole = path.read_bytes()
        damaged = bytearray(whole)
        damaged[draws.integers(len(damaged))] ^= 1 << draws.integers(8)
        path.write_bytes(damaged)
        assert path.name in {fault.file for fault in verify(copy)}
        path.write_bytes(whole)
    assert list(verify(copy)) == []


def test_an_index_of_another_build_is_refused_when_it_is_read(copy, tmp_path):
    """The same samples with other labels: the index is intact but belongs to another build."""
    table = pq.read_table(copy / "index.parquet")
    label = table.schema.get_field_index("label")
    other = table.set_column(label, "label", pa.array([0] * len(table), pa.int64()))
    data = open_dataset(copy)
    data.index("train")
    pq.write_table(other, copy / "index.parquet")
    for opened in (data, open_dataset(copy)):
        with pytest.raises(DatasetError, match="is not the index that"):
            opened.index("train")


def test_two_shards_of_equal_size_that_are_swapped_are_refused_when_they_are_read(make_dataset):
    """The checksums of all records are correct; only the index shows that they belong elsewhere."""
    made = make_dataset(samples={"train": 12}, fields=("clicks", "label"), shards=2)
    first, second = (made.path / f"made-train.tfrecord-0000{shard}-of-00002" for shard in range(2))
    assert first.stat().st_size == second.stat().st_size, "the sizes alone give nothing away"
    content = first.read_bytes()
    first.write_bytes(second.read_bytes())
    second.write_bytes(content)
    with pytest.raises(RecordError, match="not the record that the index describes"):
        next(open_dataset(made.path).samples("train"))
    with pytest.raises(RecordError, match="not the record that the index describes"):
        next(iter(tfprep.open(made.path).numpy_loader("train", 4)))
    assert {first.name, second.name} <= {fault.file for fault in verify(made.path) if fault.offset is not None}


FIELDS = ("image", "mask", "clicks", "field", "label", "weight", "caption")


def swapped(made, row, one, other):
    """The columns in which the spans of two fields have changed places, as for a row that `change_index` takes."""
    values = pq.read_table(made.path / "index.parquet").slice(row, 1).to_pylist()[0]
    return {
        f"{name}_{what}": values[f"{there}_{what}"]
        for name, there in ((one, other), (other, one))
        for what in ("offset", "size")
    }


def column_faults(made):
    """The faults of the index and of the locations; the digests of the shards are none, and there is no `.idx`."""
    return [fault for fault in verify(made.path) if fault.file in ("index.parquet", "locations.bin")]


def moved(made, row, name, by):
    (value,) = pq.read_table(made.path / "index.parquet", columns=[f"{name}_offset"]).slice(row, 1)[0].to_pylist()
    return {f"{name}_offset": value + by}


INDEX_FAULTS = {
    "fields of one size": (
        lambda made: swapped(made, 3, "image", "mask"),
        ["'image' are those of 'mask'", "'mask' are those of"],
    ),
    "numbers": (
        lambda made: swapped(made, 3, "label", "weight"),
        ["'label' are those of 'weight'", "'weight' are those of 'label'"],
    ),
    "a byte too late": (lambda made: moved(made, 3, "clicks", 1), ["'clicks' are others"]),
    "a size": (lambda _: {"caption_size": 3}, ["'caption' are others"]),
    "a label": (lambda _: {"label": 7}, ["the label is 0, not 7"]),
    "a height": (lambda _: {"height": 23}, [r"height and width are (24, 32) of 'image' and (24, 32) of 'mask'"]),
    "no width": (lambda _: {"width": None}, ["not (24, None)"]),
}


@pytest.mark.parametrize("case", INDEX_FAULTS)
def test_an_index_that_was_written_wrong_is_compared_with_the_records(make_dataset, case):
    """All digests are those of the wrong index, and `locations.bin` follows from it: only the records show that it is wrong."""
    made = make_dataset(samples={"train": 8}, fields=FIELDS, shards=2)
    assert column_faults(made) == []
    change, reasons = INDEX_FAULTS[case]
    made.change_index(3, **change(made))
    faults = column_faults(made)
    assert {fault.file for fault in faults} == {"index.parquet"}
    for fault, reason in zip(faults, reasons, strict=True):
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


def test_the_spans_of_a_build_are_those_of_tensorflows_parser(copy):
    """`verify` finds the bytes of fields by a parse of its own; here TensorFlow parses the record."""
    data = open_dataset(copy)
    index = data.index("train", 1).to_pylist()
    for row, values in zip(index, data.samples("train", 1), strict=True):
        content = (copy / data.file("train", 1, row["shard"]).name).read_bytes()[row["offset"] :][: row["size"]]
        example = tf.train.Example.FromString(content[12:-4]).features.feature
        start = row["image_offset"] - row["offset"]
        assert content[start : start + row["image_size"]] == example["image"].bytes_list.value[0]
        assert content[row["label_offset"] - row["offset"]] == example["label"].int64_list.value[0] == row["label"]
        assert (row["height"], row["width"]) == values["image"].shape[:2]


def test_a_manifest_that_was_edited_is_refused(copy):
    path = copy / "tfprep.json"
    path.write_text(path.read_text().replace('"rejects": 0', '"rejects": 1'))
    with pytest.raises(DatasetError, match="its own checksum is wrong; run the build again"):
        open_dataset(copy)
    path.write_text(resealed(path.read_text()))
    assert open_dataset(copy).manifest.rejects == 1


def test_the_command_prints_faults_and_sets_the_exit_status(copy, capsys):
    with pytest.raises(SystemExit) as caught:
        main(["verify", str(copy)])
    assert caught.value.code == 0
    flip(copy / SHARD, 40)
    with pytest.raises(SystemExit) as caught:
        main(["verify", str(copy)])
    assert caught.value.code == 1
    assert f"{SHARD}, byte 0: wrong checksum of the payload" in capsys.readouterr().out
