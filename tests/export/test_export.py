"""Round trips: each format is read by its own library, and compared with the records field by field."""

import io
import json
import os
import sys
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from PIL import Image

from tests.commands import status_of
from tests.photos import oriented, written
from tfprep import codecs
from tfprep.dataset import open_dataset
from tfprep.dataset.imported.make import index_tfrecords
from tfprep.errors import BuildError, DatasetError
from tfprep.export import export
from tfprep.records import encode, frame
from tfprep.storage.local import whole_folder


def decoded(content):
    return np.asarray(Image.open(io.BytesIO(content)))


def read_tars(paths):
    """The samples of tar files, grouped by WebDataset itself; its own pipeline leaves the files open, which is a warning here."""
    tars = pytest.importorskip("webdataset").tariterators
    samples = []
    for path in paths:
        with path.open("rb") as file:
            samples += tars.group_by_keys(tars.tar_file_expander([{"url": str(path), "stream": file}]))
    return samples


def check(values, field, content):
    """Compares one exported value with that of the record."""
    expected = values[field]
    if isinstance(content, bytes):
        pixels = decoded(content) if not content.startswith(b"\x93NUMPY") else np.load(io.BytesIO(content))
        np.testing.assert_array_equal(pixels.reshape(np.shape(expected)), expected)
    elif isinstance(expected, str):
        assert content == expected
    else:
        np.testing.assert_array_equal(np.asarray(content, np.asarray(expected).dtype), expected)


@pytest.fixture(scope="module")
def exported(photos, tmp_path_factory):
    """The data, and a function that exports it once to each format."""
    root, data = tmp_path_factory.mktemp("exported"), open_dataset(photos.path)

    def to(name):
        if not (root / name).exists():
            export(data, root / name, name)
        return root / name

    return data, to


@pytest.fixture
def one_shard(make_dataset):
    """A function that makes training samples of the same values, each stored by one codec, and opens them."""

    def one_shard(values, codec, kinds, samples=1):
        made = make_dataset(
            samples={"train": samples},
            shards=1,
            make=lambda *_: values,
            codec=dict.fromkeys(values, codec),
            kinds=kinds,
        )
        return open_dataset(made.path)

    return one_shard


def records(data, split):
    return zip(data.index(split)["key"].to_pylist(), data.samples(split), strict=True)


def test_parquet(exported):
    data, to = exported
    for split in data.splits:
        tables = [pq.read_table(path) for path in sorted(to("parquet").glob(f"made-{split}-*.parquet"))]
        rows = [row for table in tables for row in table.to_pylist()]
        assert len(rows) == data.splits[split].samples
        for row, (key, values) in zip(rows, records(data, split), strict=True):
            assert row["key"] == key
            for field in data.fields:
                content = row[field]["bytes"] if isinstance(row[field], dict) else row[field]
                if f"{field}_shape" in row:
                    content = np.reshape(content, row[f"{field}_shape"])
                check(values, field, content)


def test_webdataset(exported):
    data, to = exported
    for split in data.splits:
        samples = read_tars(sorted(to("webdataset").glob(f"made-{split}-*.tar")))
        assert len(samples) == data.splits[split].samples
        for sample, (key, values) in zip(samples, records(data, split), strict=True):
            assert sample["key.txt"].decode() == key == sample["__key__"]
            for field in data.fields:
                (suffix,) = [name for name in sample if name.startswith(f"{field}.")]
                content = sample[suffix]
                if suffix.endswith((".cls", ".json")):
                    content = json.loads(content)
                elif suffix.endswith(".txt"):
                    content = content.decode()
                check(values, field, content)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # it leaves files open
def test_hugging_face_reads_images_masks_and_classes(exported, tmp_path):
    datasets = pytest.importorskip("datasets")
    data, to = exported
    files = {split: str(to("parquet") / f"made-{split}-*") for split in data.splits}
    read = datasets.load_dataset("parquet", data_files=files, cache_dir=str(tmp_path))
    for split in data.splits:
        for row, (key, values) in zip(read[split], records(data, split), strict=True):
            assert row["key"] == key
            for field in ("image", "lossless", "mask", "depth"):
                np.testing.assert_array_equal(np.asarray(row[field]), values[field])
    assert read["train"].features["label"].names == ["cat", "dog", "owl"]


def test_texts_and_classes_that_are_not_utf8_are_written_as_keys_are(make_dataset, tmp_path):
    made = make_dataset(
        samples={"train": 1}, shards=1, fields=["label", "caption"],
        make=lambda *_: {"label": 0, "caption": "caf\udce9 ü"},
    )  # fmt: skip
    made.seal(lambda document: document["classes"].update(label=["\udcff", "b"]))
    data = open_dataset(made.path)
    for to in ("webdataset", "parquet"):
        export(data, tmp_path / to, to)
    (sample,) = read_tars((tmp_path / "webdataset").iterdir())
    assert sample["caption.txt"].decode() == "caf\\xe9 ü"
    table = pq.read_table(tmp_path / "parquet" / "made-train-00000.parquet")
    assert table["caption"].to_pylist() == ["caf\\xe9 ü"]
    features = json.loads(table.schema.metadata[b"huggingface"])["info"]["features"]
    assert features["label"]["names"] == ["\\xff", "b"]


def test_a_field_named_as_the_column_of_a_shape_keeps_its_name(one_shard, tmp_path):
    values = {"pose": np.ones((2, 2), np.float32), "pose_shape": np.array([7, 8, 9])}
    export(one_shard(values, codecs.Scalar(), dict.fromkeys(values, "scalar")), tmp_path / "parquet", "parquet")
    (row,) = pq.read_table(tmp_path / "parquet" / "made-train-00000.parquet").to_pylist()
    assert (row["pose_shape"], row["pose_shape_"], row["pose_shape_shape"]) == ([7, 8, 9], [2, 2], [3])


@pytest.mark.parametrize(("dtype", "written"), [("float16", "float16"), ("bfloat16", "float32")])
def test_numbers_of_rare_types(one_shard, tmp_path, dtype, written):
    if dtype == "bfloat16":
        pytest.importorskip("ml_dtypes")  # it gives NumPy bfloat16
    values = {"map": np.array([[0.5, -3], [7, 1]], dtype), "number": np.array(2.5, dtype)}
    data = one_shard(values, codecs.Raw(), {"map": "map", "number": "scalar"})
    export(data, tmp_path / "webdataset", "webdataset")
    (sample,) = read_tars((tmp_path / "webdataset").iterdir())
    array = np.load(io.BytesIO(sample["map.npy"]))
    np.testing.assert_array_equal(array, values["map"].astype(written))
    assert array.dtype == written
    assert json.loads(sample["number.json"]) == 2.5
    export(data, tmp_path / "parquet", "parquet")
    (row,) = pq.read_table(tmp_path / "parquet" / "made-train-00000.parquet").to_pylist()
    assert (row["map"], row["number"]) == ([0.5, -3, 7, 1], 2.5)


def test_masks_and_images_of_zstd_become_png(one_shard, tmp_path):
    draws = np.random.default_rng(0)
    values = {
        "image": draws.integers(0, 256, (6, 8, 3)).astype(np.uint8),
        "mask": draws.integers(0, 9000, (6, 8)).astype(np.uint16),
        "depth": draws.normal(size=(6, 8)).astype(np.float32),
    }
    data = one_shard(values, codecs.Zstd(), {"image": "image", "mask": "mask", "depth": "map"}, samples=2)
    export(data, tmp_path / "tars", "webdataset")
    for sample in read_tars((tmp_path / "tars").iterdir()):
        for name, suffix in (("image", "png"), ("mask", "png"), ("depth", "npy")):
            check(values, name, sample[f"{name}.{suffix}"])


def test_an_index_of_other_tfrecords_is_exported(indexed, tmp_path):
    """Images are files there, numbers are lists of any length, and texts lists too."""
    data = open_dataset(indexed)
    for to in ("parquet", "webdataset"):
        assert export(data, tmp_path / to, to).samples == {"train": 4, "val": 2}
    rows = pq.read_table(tmp_path / "parquet" / "indexed-train-00000.parquet").to_pylist()
    tars = read_tars([tmp_path / "webdataset" / "indexed-train-00000.tar"])
    for row, tar, (key, values) in zip(rows, tars, records(data, "train"), strict=True):
        assert row["key"] == tar["key.txt"].decode() == key
        check(values, "picture", row["picture"]["bytes"])
        check(values, "ragged", tar["ragged.npy"])
        assert row["texts"] == json.loads(tar["texts.json"]) == list(values["texts"])


@pytest.fixture
def index_one(tmp_path):
    """A function that writes and indexes a TFRecord of another tool, and opens it."""

    def index_one(features):
        with (tmp_path / "a.tfrecord").open("wb") as shard:
            shard.write(frame(encode(features)[0]))
        index_tfrecords(tmp_path / "a.tfrecord", split="train", out=tmp_path / "index", workers=0)
        return open_dataset(tmp_path / "index")

    return index_one


def test_an_imported_image_that_readers_would_turn_is_written_as_its_pixels(index_one, tmp_path):
    """Hugging Face's datasets turn such a file, and its boxes and masks stay."""
    pixels = np.arange(24 * 16 * 3, dtype=np.uint8).reshape(24, 16, 3)
    data = index_one({"picture": written(pixels, "JPEG", exif=oriented(6))})
    export(data, tmp_path / "out", "webdataset")
    (sample,) = read_tars((tmp_path / "out").iterdir())
    picture = Image.open(io.BytesIO(sample["picture.png"]))
    assert picture.getexif().get(0x0112) is None
    np.testing.assert_array_equal(picture, next(data.samples("train"))["picture"])


def test_a_label_of_floats_keeps_its_value(one_shard, tmp_path):
    values = {"label": np.int64(1), "score": np.float32(0.75)}
    made = one_shard(values, codecs.Scalar(), dict.fromkeys(values, "label"))
    export(made, tmp_path / "tars", "webdataset")
    (sample,) = read_tars((tmp_path / "tars").iterdir())
    assert sample["label.cls"] == b"1"
    assert np.load(io.BytesIO(sample["score.npy"])) == np.float32(0.75)


def test_class_names_of_several_labels_are_named_where_they_are_left_out(make_dataset, tmp_path):
    made = make_dataset(
        samples={"train": 1}, shards=1, make=lambda *_: {"hot": np.array([0.5, 1], np.float32)},
        codec={"hot": codecs.Scalar()}, kinds={"hot": "label"},
    )  # fmt: skip
    made.seal(lambda document: document["classes"].update(hot=["a", "b"]))
    data = open_dataset(made.path)
    assert "class names of hot: labels are numbers there" in export(data, tmp_path / "hot", "parquet").left_out


def test_what_is_left_out_is_named_and_other_variants_can_be_exported(photos, tmp_path, capsys):
    assert status_of("export", photos.path, "--to", "parquet", "--out", tmp_path / "out", "--json") == 0
    assert json.loads(capsys.readouterr().out)["samples"] == {"train": 50, "val": 11}
    chosen = ["--split", "val", "--out", tmp_path / "val"]
    assert status_of("export", photos.path, "--to", "parquet", *chosen) == 0
    assert capsys.readouterr().out.startswith(f"{tmp_path / 'val'}: 11 samples of val")
    assert {path.name.split("-")[1] for path in (tmp_path / "val").iterdir()} == {"val"}
    data = open_dataset(photos.path)
    summary = export(data, tmp_path / "one", "parquet", variant=1)
    assert summary.samples == {"train": 50}
    assert "split val: it has no variant 1" in summary.left_out
    assert "split train: 2 other variants; --variant N exports another" in summary.left_out
    table = pq.read_table(sorted((tmp_path / "one").glob("*.parquet"))[0])
    first = next(data.samples("train", 1, [0]))
    np.testing.assert_array_equal(decoded(table["lossless"][0].as_py()["bytes"]), first["lossless"])
    with pytest.raises(DatasetError, match="is not empty; export into a new folder"):
        export(data, tmp_path / "one", "webdataset")
    with pytest.raises(DatasetError, match=r"parquet is a file; export into a new folder"):
        export(data, next((tmp_path / "out").iterdir()), "webdataset")
    with pytest.raises(DatasetError, match=r"no split of .* has a variant 7"):
        export(data, tmp_path / "two", "webdataset", variant=7)


def test_a_key_that_leads_out_of_the_folder_is_refused_and_one_with_dots_survives(make_dataset, tmp_path):
    made = make_dataset(samples={"train": 2}, fields=["image"], shards=1)
    for key in ("../out.png", "/abs.png", "a/../../b", r"caf\xe9.png"):
        made.change_index(0, key=key)
        with pytest.raises(DatasetError, match=r"cannot be the name of a file .* or export to parquet"):
            export(open_dataset(made.path), tmp_path / "export", "webdataset")
        assert [path.name for path in tmp_path.iterdir()] == ["made"], "nothing is left of an export that failed"
    for number, key in enumerate(("a.b/50%.x.jpg", "__a__/b.jpg", "a.b\nc/d", "__a\n__/.")):
        made.change_index(0, key=key)
        export(open_dataset(made.path), tmp_path / f"tar{number}", "webdataset")
        samples = read_tars((tmp_path / f"tar{number}").iterdir())
        assert [sample["key.txt"].decode() for sample in samples] == [key, "train/0001"]


def test_fields_that_webdataset_takes_for_one_are_refused(one_shard, tmp_path):
    values = {"pose": np.ones(2, np.float32), "Pose": np.zeros(2, np.float32)}
    with pytest.raises(DatasetError, match="some differ in case only, which WebDataset ignores"):
        export(one_shard(values, codecs.Scalar(), dict.fromkeys(values, "scalar")), tmp_path / "tar", "webdataset")


def test_places_that_no_folder_can_take_are_refused_before_the_work(photos, tmp_path, monkeypatch):
    data = open_dataset(photos.path)
    monkeypatch.setitem(sys.modules["tfprep.export"]._WRITERS, "parquet", None)  # no work is begun
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    with pytest.raises(BuildError, match="is a mount point or the current folder, which cannot be replaced"):
        export(data, Path("."), "parquet")
    monkeypatch.setattr(os.path, "ismount", lambda path: True)
    with pytest.raises(BuildError, match="is a mount point or the current folder"):
        export(data, tmp_path / "new", "parquet")
    assert [path.name for path in tmp_path.iterdir()] == ["here"]


def test_a_link_to_an_empty_folder_is_followed_and_a_second_export_is_refused(photos, tmp_path):
    data = open_dataset(photos.path)
    (tmp_path / "empty").mkdir()
    (tmp_path / "link").symlink_to("empty")
    with whole_folder(tmp_path / "empty"), pytest.raises(BuildError, match="another process writes"):
        export(data, tmp_path / "link", "parquet")
    export(data, tmp_path / "link", "parquet")
    assert (tmp_path / "link").is_symlink()
    assert list((tmp_path / "empty").glob("*.parquet"))
