"""Round trips: each format is read by its own library, and compared with the records field by field."""

import csv
import io
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from PIL import Image

from tests.commands import status_of
from tests.dataset.golden.test_golden import HERE as GOLDEN
from tfprep import codecs
from tfprep.dataset import open_dataset
from tfprep.errors import BuildError, DatasetError
from tfprep.export import export
from tfprep.storage.local import whole_folder

pytestmark = pytest.mark.filterwarnings(  # of pycocotools
    "ignore:__array__ implementation doesn't accept a copy keyword:DeprecationWarning"
)


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


def test_folder(exported):
    data, to = exported
    for split in data.splits:
        folder = to("folder") / split
        rows = list(csv.DictReader((folder / "metadata.csv").read_text(encoding="utf-8").splitlines()))
        assert len(rows) == data.splits[split].samples
        for row, (key, values) in zip(rows, records(data, split), strict=True):
            assert row["key"] == key
            assert row["label"] == ("cat", "dog", "owl")[values["label"]]
            assert row["caption"] == values["caption"]
            assert np.float32(row["weight"]) == np.float32(values["weight"])
            for field in set(data.fields) - {"label", "caption", "weight"}:
                column = "file_name" if field == "image" else f"{field}_file_name"
                check(values, field, (folder / row[column if column in row else field]).read_bytes())


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # it leaves files open
@pytest.mark.parametrize("to", ["parquet", "folder"])
def test_hugging_face_reads_images_masks_and_classes(exported, tmp_path, to):
    datasets = pytest.importorskip("datasets")
    data, exported_to = exported
    builder, folder = {"parquet": "parquet", "folder": "imagefolder"}[to], exported_to(to)
    files = {split: str(folder / (f"made-{split}-*" if to == "parquet" else f"{split}/**")) for split in data.splits}
    read = datasets.load_dataset(builder, data_files=files, cache_dir=str(tmp_path))
    for split in data.splits:
        for row, (key, values) in zip(read[split], records(data, split), strict=True):
            assert row["key"] == key
            for field in ("image", "lossless", "mask", "depth"):
                np.testing.assert_array_equal(np.asarray(row[field]), values[field])
    if to == "parquet":
        assert read["train"].features["label"].names == ["cat", "dog", "owl"]


def test_a_label_that_is_no_class_stays_a_number(make_dataset, tmp_path):
    made = make_dataset(samples={"train": 3}, shards=1, fields=["label"], make=lambda _, number: {"label": number - 1})
    export(open_dataset(made.path), tmp_path / "folder", "folder")
    rows = list(csv.DictReader((tmp_path / "folder" / "train" / "metadata.csv").read_text().splitlines()))
    assert [row["label"] for row in rows] == ["-1", "cat", "dog"]


def test_texts_and_classes_that_are_not_utf8_are_written_as_keys_are(make_dataset, tmp_path):
    made = make_dataset(
        samples={"train": 1}, shards=1, fields=["label", "caption"],
        make=lambda *_: {"label": 0, "caption": "caf\udce9 ü"},
    )  # fmt: skip
    made.seal(lambda document: document["classes"].update(label=["\udcff", "b"]))
    data = open_dataset(made.path)
    for to in ("folder", "webdataset", "parquet"):
        export(data, tmp_path / to, to)
    (row,) = csv.DictReader((tmp_path / "folder/train/metadata.csv").read_text(encoding="utf-8").splitlines())
    assert (row["label"], row["caption"]) == ("\\xff", "caf\\xe9 ü")
    (sample,) = read_tars((tmp_path / "webdataset").iterdir())
    assert sample["caption.txt"].decode() == "caf\\xe9 ü"
    table = pq.read_table(tmp_path / "parquet" / "made-train-00000.parquet")
    assert table["caption"].to_pylist() == ["caf\\xe9 ü"]
    features = json.loads(table.schema.metadata[b"huggingface"])["info"]["features"]
    assert features["label"]["names"] == ["\\xff", "b"]


def test_fields_named_as_the_columns_of_files_and_shapes_keep_columns_of_their_own(make_dataset, tmp_path):
    values = {
        "image": np.zeros((6, 8, 3), np.uint8), "file_name": "photo.jpg", "pose": np.ones((2, 2), np.float32),
        "pose_shape": np.array([7, 8, 9]),
    }  # fmt: skip
    stored = {name: codecs.Scalar() for name in values} | {"image": codecs.Png(), "file_name": codecs.Text()}
    kinds = {"image": "image", "file_name": "text", "pose": "scalar", "pose_shape": "scalar"}
    made = make_dataset(samples={"train": 1}, shards=1, make=lambda *_: values, codec=stored, kinds=kinds)
    for to in ("folder", "parquet"):
        export(open_dataset(made.path), tmp_path / to, to)
    header, row = csv.reader((tmp_path / "folder/train/metadata.csv").read_text().splitlines())
    cells = dict(zip(header, row, strict=True))
    assert len(cells) == 5
    assert (cells["file_name"], cells["file_name_"]) == ("image/train/0000.png", "photo.jpg")
    table = pq.read_table(tmp_path / "parquet" / "made-train-00000.parquet")
    assert len(set(table.column_names)) == len(table.column_names)
    (row,) = table.to_pylist()
    assert (row["pose_shape"], row["pose_shape_"], row["pose_shape_shape"]) == ([7, 8, 9], [2, 2], [3])


@pytest.mark.parametrize(
    ("dtype", "written"), [("float16", "float16"), ("bfloat16", "float32"), ("complex64", "complex64")]
)
def test_numbers_of_rare_types(make_dataset, tmp_path, dtype, written):
    if dtype == "bfloat16":
        pytest.importorskip("ml_dtypes")  # it gives NumPy bfloat16
    values = {"map": np.array([[0.5, -3], [7, 1]], dtype), "number": np.array(2.5, dtype)}
    kinds = {"map": "map", "number": "scalar"}
    made = make_dataset(
        samples={"train": 1}, shards=1, make=lambda *_: values, codec=dict.fromkeys(values, codecs.Raw()), kinds=kinds
    )
    data = open_dataset(made.path)
    for to in ("folder", "webdataset"):
        export(data, tmp_path / to, to)
    (sample,) = read_tars((tmp_path / "webdataset").iterdir())
    for content in (sample["map.npy"], (tmp_path / "folder/train/map/train/0000.npy").read_bytes()):
        array = np.load(io.BytesIO(content))
        np.testing.assert_array_equal(array, values["map"].astype(written))
        assert array.dtype == written
    number = sample.get("number.json")
    assert (json.loads(number) if number else np.load(io.BytesIO(sample["number.npy"]))) == 2.5
    if dtype == "complex64":
        with pytest.raises(
            DatasetError, match="field 'map' is complex64, which Parquet does not have; export to folder"
        ):
            export(data, tmp_path / "parquet", "parquet")
        return
    export(data, tmp_path / "parquet", "parquet")
    (row,) = pq.read_table(tmp_path / "parquet" / "made-train-00000.parquet").to_pylist()
    assert (row["map"], row["number"]) == ([0.5, -3, 7, 1], 2.5)


def test_numbers_that_begin_as_an_image_file_does(make_dataset, tmp_path):
    """FF D8 begins a JPEG, and a float32 as well."""
    value = np.frombuffer(b"\xff\xd8\x00\x3f" * 4, np.float32).reshape(2, 2)
    made = make_dataset(
        samples={"train": 2}, shards=1, make=lambda *_: {"depth": value},
        codec={"depth": codecs.Raw()}, kinds={"depth": "map"},
    )  # fmt: skip
    export(open_dataset(made.path), tmp_path / "folder", "folder")
    np.testing.assert_array_equal(np.load(tmp_path / "folder" / "train" / "depth" / "train" / "0000.npy"), value)
    export(open_dataset(made.path), tmp_path / "parquet", "parquet")
    (row, _) = pq.read_table(tmp_path / "parquet" / "made-train-00000.parquet").to_pylist()
    assert np.float32(row["depth"]).tobytes() == value.tobytes()


def test_masks_and_images_of_zstd_become_png(make_dataset, tmp_path):
    pytest.importorskip("pycocotools")  # for masks
    draws = np.random.default_rng(0)
    values = {
        "image": draws.integers(0, 256, (6, 8, 3)).astype(np.uint8),
        "mask": draws.integers(0, 9000, (6, 8)).astype(np.uint16),
        "depth": draws.normal(size=(6, 8)).astype(np.float32),
    }
    made = make_dataset(
        samples={"train": 2}, shards=1, make=lambda *_: values,
        codec=dict.fromkeys(values, codecs.Zstd()), kinds={"image": "image", "mask": "mask", "depth": "map"},
    )  # fmt: skip
    data = open_dataset(made.path)
    for to in ("folder", "coco"):
        export(data, tmp_path / to, to)
    for name, suffix in (("image", "png"), ("mask", "png"), ("depth", "npy")):
        check(values, name, (tmp_path / "folder" / "train" / name / "train" / f"0000.{suffix}").read_bytes())
    (image,) = (tmp_path / "coco").rglob("0000.png")
    check(values, "image", image.read_bytes())


def test_images_in_coco(exported):
    coco = pytest.importorskip("pycocotools.coco")
    data, to = exported
    api = coco.COCO(str(to("coco") / "annotations" / "val.json"))
    images = api.loadImgs(api.getImgIds())
    for image, (key, values) in zip(images, records(data, "val"), strict=True):
        assert image["key"] == key
        assert (image["height"], image["width"]) == values["image"].shape[:2]
        check(values, "image", (to("coco") / "images" / image["file_name"]).read_bytes())


def test_boxes_in_coco(tmp_path, make_dataset):
    coco = pytest.importorskip("pycocotools.coco")
    boxes = [[[1, 2, 5, 9], [0, 0, 24, 24]], np.zeros((0, 4)), [[1, 1, 1, 1]]]
    depth = np.ones((2, 2), np.float32)
    made = make_dataset(
        samples={"train": 3}, shards=1, make=lambda _, n: {
            "image": np.full((24, 24, 3), n, np.uint8), "boxes": np.array(boxes[n], np.float32), "depth": depth,
        },
        codec={"image": codecs.Png(), "boxes": codecs.Raw(), "depth": codecs.Raw()},
        kinds={"image": "image", "boxes": "boxes", "depth": "map"},
    )  # fmt: skip
    data = open_dataset(made.path)
    summary = export(data, tmp_path / "coco", "coco")
    assert summary.left_out == ("field depth: COCO has no place for it",)
    api = coco.COCO(str(tmp_path / "coco" / "annotations" / "train.json"))
    assert [category["name"] for category in api.loadCats(api.getCatIds())] == ["object"]
    for image in api.loadImgs(api.getImgIds()):
        boxes = [entry["bbox"] for entry in api.loadAnns(api.getAnnIds(image["id"]))]
        corners = [[x, y, x + w, y + h] for x, y, w, h in boxes]
        values = next(values for key, values in records(data, "train") if key == image["key"])
        np.testing.assert_array_equal(np.reshape(corners, (-1, 4)), values["boxes"])


def objects_of(rng, number):
    """An image with `number` objects: boxes, classes, crowds, three key points each, and a mask in which each has a number.

    Void (255) is in every second mask.
    """
    boxes = np.array([[2 * n, 1, 2 * n + 2, 9.5] for n in range(number)], np.float32).reshape(-1, 4)
    numbers = np.array([7 * (n + 1) for n in range(number)], np.int64)
    instances = np.zeros((24, 32), np.uint8)
    for box, one in zip(boxes.astype(int), numbers, strict=True):
        instances[box[1] : box[3], box[0] : box[2]] = one
    instances[12:14, : 5 * (number % 2)] = 255
    points = np.concatenate([rng.integers(0, 20, (3 * number, 2)) + 0.5, rng.integers(0, 3, (3 * number, 1))], 1)
    points[points[:, 2] == 0] = 0
    return {
        "image": np.full((24, 32, 3), number, np.uint8), "boxes": boxes, "box_labels": np.arange(number) % 2,
        "box_numbers": numbers, "crowd": np.arange(number) % 2, "difficult": np.ones(number, np.int64),
        "points": points.astype(np.float32), "instances": instances, "mask": rng.integers(0, 4, (24, 32)).astype(np.uint8),
    }  # fmt: skip


OBJECT_KINDS = {
    "image": "image", "boxes": "boxes", "box_labels": "label", "box_numbers": "label", "crowd": "label",
    "difficult": "label", "points": "points", "instances": "mask", "mask": "mask",
}  # fmt: skip


def test_masks_points_and_crowds_of_objects_and_masks_of_classes_in_coco(make_dataset, tmp_path):
    COCO = pytest.importorskip("pycocotools.coco").COCO
    store = {name: codecs.Png() if kind in ("image", "mask") else codecs.Raw() for name, kind in OBJECT_KINDS.items()}
    made = make_dataset(samples={"train": 4}, make=objects_of, codec=store, kinds=OBJECT_KINDS)
    data, folder = open_dataset(made.path), tmp_path / "coco" / "annotations"
    left_out = export(data, tmp_path / "coco", "coco").left_out
    void = [int((values["instances"] == 255).sum()) for values in data.samples("train")]
    assert left_out == (
        "field difficult: COCO has no place for it",
        f"field instances: {sum(void)} pixels in {np.count_nonzero(void)} samples of train whose number (255) is that of no "
        "object, such as void",
    )
    api = COCO(str(folder / "train.json"))
    for image, values in zip(api.loadImgs(api.getImgIds()), data.samples("train"), strict=True):
        entries = api.loadAnns(api.getAnnIds(image["id"], iscrowd=None))
        assert len(entries) == len(values["boxes"])
        for row, one in enumerate(entries):
            assert one["category_id"] == values["box_labels"][row] + 1
            assert one["iscrowd"] == values["crowd"][row]
            region = values["instances"] == values["box_numbers"][row]
            np.testing.assert_array_equal(api.annToMask(one), region)
            assert one["area"] == region.sum()
            x, y, visible = np.reshape(one["keypoints"], (3, 3)).T
            expected = values["points"][3 * row : 3 * row + 3]
            np.testing.assert_array_equal(visible, expected[:, 2])
            half = np.where(visible > 0, 0.5, 0)
            np.testing.assert_array_equal(np.stack([x + half, y + half], 1), expected[:, :2])
            assert one["num_keypoints"] == (visible > 0).sum()
    api = COCO(str(folder / "train.mask.json"))
    assert {one["id"]: one["name"] for one in api.loadCats(api.getCatIds())} == {n + 1: str(n) for n in range(4)}
    for image, values in zip(api.loadImgs(api.getImgIds()), data.samples("train"), strict=True):
        drawn = np.full((24, 32), 255, np.uint8)
        for one in api.loadAnns(api.getAnnIds(image["id"])):
            drawn[api.annToMask(one) > 0] = one["category_id"] - 1
        np.testing.assert_array_equal(drawn, values["mask"])


def test_points_that_do_not_belong_to_boxes_are_named_and_alone_are_one_object(make_dataset, tmp_path):
    coco = pytest.importorskip("pycocotools.coco")
    rows = {"image": codecs.Png(), "boxes": codecs.Scalar(), "points": codecs.Scalar()}
    kinds = {"image": "image", "boxes": "boxes", "points": "points"}

    def make(rng, number):
        return objects_of(rng, number + 1) | {"points": np.array([[4, 5], [1.5, 9]], np.float32)}

    options = {"samples": {"train": 3}, "shards": 1, "make": make, "codec": rows, "kinds": kinds}
    both, alone = make_dataset("both", **options), make_dataset("alone", fields=["image", "points"], **options)
    summary = export(open_dataset(both.path), tmp_path / "one", "coco")
    assert summary.left_out == ("field points: COCO has no place for it",)
    export(open_dataset(alone.path), tmp_path / "two", "coco")
    api = coco.COCO(str(tmp_path / "two" / "annotations" / "train.json"))
    (one,) = api.loadAnns(api.getAnnIds(1))
    assert one["keypoints"] == [3.5, 4.5, 2, 1, 8.5, 2]
    assert one["bbox"] == [1.5, 5, 2.5, 4]


def test_an_index_of_other_tfrecords_is_exported(tmp_path):
    """Images are files there, numbers are lists of any length, and texts lists too."""
    data = open_dataset(GOLDEN / "v3" / "indexed")
    for to in ("parquet", "webdataset", "folder", "coco"):
        assert export(data, tmp_path / to, to).samples == {"train": 4, "val": 2}
    rows = pq.read_table(tmp_path / "parquet" / "indexed-train-00000.parquet").to_pylist()
    tars = read_tars([tmp_path / "webdataset" / "indexed-train-00000.tar"])
    for row, tar, (key, values) in zip(rows, tars, records(data, "train"), strict=True):
        assert row["key"] == tar["key.txt"].decode() == key
        check(values, "picture", row["picture"]["bytes"])
        check(values, "ragged", tar["ragged.npy"])
        assert row["texts"] == json.loads(tar["texts.json"]) == list(values["texts"])


def test_what_is_left_out_is_named_and_other_variants_can_be_exported(photos, tmp_path, capsys):
    assert status_of("export", photos.path, "--to", "folder", "--out", tmp_path / "out", "--json") == 0
    assert json.loads(capsys.readouterr().out)["samples"] == {"train": 50, "val": 11}
    data = open_dataset(photos.path)
    summary = export(data, tmp_path / "one", "parquet", variant=1)
    assert summary.samples == {"train": 50}
    assert "split val: it has no variant 1" in summary.left_out
    assert "split train: 2 other variants; --variant N exports another" in summary.left_out
    table = pq.read_table(sorted((tmp_path / "one").glob("*.parquet"))[0])
    first = next(data.samples("train", 1, [0]))
    np.testing.assert_array_equal(decoded(table["lossless"][0].as_py()["bytes"]), first["lossless"])
    with pytest.raises(DatasetError, match="is not empty; export into a new folder"):
        export(data, tmp_path / "one", "folder")
    with pytest.raises(DatasetError, match=r"metadata\.csv is a file; export into a new folder"):
        export(data, tmp_path / "out/train/metadata.csv", "folder")
    with pytest.raises(DatasetError, match=r"no split of .* has a variant 7"):
        export(data, tmp_path / "two", "folder", variant=7)


def test_a_key_that_leads_out_of_the_folder_is_refused_and_one_with_dots_survives(make_dataset, tmp_path):
    made = make_dataset(samples={"train": 2}, fields=["image"], shards=1)
    for key in ("../out.png", "/abs.png", "a/../../b"):
        made.change_index(0, key=key)
        for to in ("folder", "webdataset", "coco"):
            with pytest.raises(DatasetError, match="cannot be the name of a file below the folder of the export"):
                export(open_dataset(made.path), tmp_path / "export", to)
            assert [path.name for path in tmp_path.iterdir()] == ["made"], "nothing is left of an export that failed"
    made.change_index(0, key="a.b/50%.x.jpg")
    export(open_dataset(made.path), tmp_path / "tar", "webdataset")
    samples = read_tars((tmp_path / "tar").iterdir())
    assert [sample["key.txt"].decode() for sample in samples] == ["a.b/50%.x.jpg", "train/0001"]


def test_a_key_that_file_names_cannot_hold_is_named(make_dataset, tmp_path):
    made = make_dataset(samples={"train": 1}, fields=["image"], shards=1)
    made.change_index(0, key="été")
    ascii_names = {**os.environ, "LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}
    for to, status in (("folder", 1), ("coco", 1), ("webdataset", 0), ("parquet", 0)):
        command = [sys.executable, "-m", "tfprep", "export", made.path, "--to", to, "--out", tmp_path / to]
        done = subprocess.run(command, env=ascii_names, check=False, capture_output=True, text=True)
        assert done.returncode == status, done.stderr
        if status:
            assert re.search(
                r"'\S*/\\xe9t\\xe9.jpg' cannot be the name of a file here: .* is ascii. Set PYTHONUTF8=1", done.stderr
            )


@pytest.fixture
def killed_export(photos, tmp_path):
    """A function that starts an export and kills it before its folder gets its name."""

    def run():
        code = (
            "import os, sys; from pathlib import Path\n"
            "from tfprep.dataset import open_dataset; from tfprep.export import export\n"
            "os.sync = lambda: os._exit(9)\n"
            "export(open_dataset(sys.argv[1]), Path(sys.argv[2]), 'folder')"
        )
        return subprocess.run([sys.executable, "-c", code, photos.path, tmp_path / "out"], check=False).returncode

    return run


def test_what_a_killed_export_left_is_removed_by_the_next_one(photos, tmp_path, killed_export):
    assert killed_export() == 9
    assert [path.name for path in tmp_path.iterdir()] == [".out.export.tmp"]
    export(open_dataset(photos.path), tmp_path / "out", "parquet")
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    assert {path.suffix for path in (tmp_path / "out").rglob("*") if path.is_file()} == {".parquet"}


def test_places_that_no_folder_can_take_are_refused_before_the_work(photos, tmp_path, monkeypatch):
    data = open_dataset(photos.path)
    monkeypatch.setitem(sys.modules["tfprep.export.export"]._WRITERS, "folder", None)  # no work is begun
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    with pytest.raises(BuildError, match="is a mount point or the current folder, which cannot be replaced"):
        export(data, Path("."), "folder")
    monkeypatch.setattr(os.path, "ismount", lambda path: True)
    with pytest.raises(BuildError, match="is a mount point or the current folder"):
        export(data, tmp_path / "new", "folder")
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
