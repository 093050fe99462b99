"""A built dataset is read by tfprep, by TensorFlow Datasets, and by a plain TFRecordDataset; damaged datasets are refused."""

import json
import shutil
import warnings
from dataclasses import replace

import cv2
import numpy as np
import pytest
from PIL import ImageDraw

from tests.damage import flip
from tests.dataset.conftest import LABELS
from tests.examples import read_records
from tfprep import codecs
from tfprep.dataset import Dataset, open_dataset
from tfprep.errors import DatasetError, RecordError
from tfprep.inspect.sheet import class_colors, contact_sheet, marked_image
from tfprep.records import format_index

tf = pytest.importorskip("tensorflow")

ALL = [("train", 0), ("train", 1), ("train", 2), ("val", 0)]

# --- reading --------------------------------------------------------------------------------------------------------


def test_the_manifest_reads_back_as_it_was_written(data):
    assert open_dataset(data.path).manifest == data.manifest
    assert json.loads(data.manifest.to_json()) == json.loads((data.path / "manifest.json").read_text())
    assert {name: (s.samples, s.variants, s.shards) for name, s in data.splits.items()} == {
        "train": (30, 3, 3), "val": (12, 1, 1)
    }  # fmt: skip
    assert list(data.manifest.classes["label"]) == LABELS
    pixels = np.concatenate([sample["plain"].reshape(-1, 3) for sample in data.samples("train")]).astype(np.float64)
    statistics = data.manifest.statistics["plain"]
    np.testing.assert_allclose([statistics.mean, statistics.std], [pixels.mean(0), pixels.std(0)], rtol=1e-9)


def test_the_spans_of_fields_and_records_are_those_of_tensorflows_parser(data):
    """Those of `index.parquet`; those of records are in the text indexes as well."""
    for split, variant in ALL:
        table = data.index(split, variant).to_pylist()
        for shard, info in enumerate(data.splits[split].files[variant]):
            path = data.path / info.name
            spans = [(row["offset"], row["size"]) for row in table if row["shard"] == shard]
            frames = [frame for frame, _ in read_records(path)]
            assert spans == [tuple(frame) for frame in frames]
            assert path.with_name(f"{path.name}.idx").read_text() == format_index(frames)
            assert (info.records, info.bytes) == (len(spans), path.stat().st_size)
        for row, sample in zip(table, data.samples(split, variant), strict=True):
            content = (data.path / data.file(split, variant, row["shard"]).name).read_bytes()
            payload = content[row["offset"] + 12 : row["offset"] + row["size"] - 4]
            example = tf.train.Example.FromString(payload).features.feature
            span = {n: content[row[f"{n}_offset"] : row[f"{n}_offset"] + row[f"{n}_size"]] for n in data.fields}
            for name in ("image", "text", "gray", "plain"):
                assert span[name] == example[name].bytes_list.value[0]
            assert np.frombuffer(span["boxes"], np.float32).tolist() == list(example["boxes"].float_list.value)
            assert span["boxes"] == sample["boxes"].tobytes()
            assert span["label"][0] == example["label"].int64_list.value[0] == row["label"] == sample["label"]
            assert (row["height"], row["width"]) == sample["image"].shape[:2]


# --- other readers --------------------------------------------------------------------------------------------------


def test_tensorflow_datasets_reads_every_split_and_variant(data):
    """It decodes JPEG with TensorFlow's default, fast DCT: the pixels are not bit-identical but close."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import tensorflow_datasets as tfds

        builder = tfds.builder_from_directory(str(data.path))
        assert builder.info.features["label"].names == LABELS
        counts = {name: info.num_examples for name, info in builder.info.splits.items()}
        assert counts == {"train": 30, "train_v1": 30, "train_v2": 30, "val": 12}
        read = tfds.ReadConfig(interleave_cycle_length=1)
        for split, variant in ALL:
            name = split if variant == 0 else f"{split}_v{variant}"
            theirs = tfds.as_numpy(builder.as_dataset(split=name, read_config=read))
            for ours, other in zip(data.samples(split, variant), theirs, strict=True):
                assert np.abs(ours["image"].astype(int) - other["image"].astype(int)).mean() < 3
                for field in ("label", "weight", "boxes", "gray"):
                    assert np.array_equal(ours[field], other[field]), field
                assert ours["text"] == other["text"].decode()


# --- what is wrong with a folder ------------------------------------------------------------------------------------


def test_a_version_that_was_deleted_is_an_error_by_name(copy):
    opened = open_dataset(copy)
    shutil.rmtree(copy)
    for read in (lambda: opened.index("train"), lambda: next(opened.samples("train"))):
        with pytest.raises(DatasetError, match="was removed or moved: open"):
            read()


def test_a_folder_without_a_dataset(tmp_path):
    (tmp_path / "begun/.tfprep").mkdir(parents=True)
    (tmp_path / "tfprep-index").write_text("a file of this name")
    for name, message in (
        ("tfprep-index/inside", "the folder does not exist"),
        ("\0", "cannot be opened"),
        ("none", "the folder does not exist"),
        ("", "not a dataset built by tfprep"),
        ("begun", "a build has begun here and not finished; run the same command again"),
    ):
        with pytest.raises(DatasetError, match=message):
            open_dataset(tmp_path / name)


def test_a_missing_or_damaged_index_and_a_manifest_that_was_edited(copy):
    data, path = open_dataset(copy), copy / "manifest.json"
    (copy / "index.parquet").write_bytes(b"PAR1 but not really")
    with pytest.raises(DatasetError, match=r"index\.parquet is not the index .*: it is damaged"):
        data.index("train")
    (copy / "index.parquet").unlink()
    with pytest.raises(DatasetError, match=r"index\.parquet is missing; run the build again"):
        data.index("train")
    path.write_text(path.read_text().replace('"rejected": 0', '"rejected": 1'))
    with pytest.raises(DatasetError, match="its own checksum is wrong; run the build again"):
        open_dataset(copy)


def test_unknown_splits_variants_and_fields_are_named(data):
    with pytest.raises(DatasetError, match="has no split 'test'; it has train, val"):
        data.index("test")
    with pytest.raises(DatasetError, match="has 1 variants, numbered from 0; there is no 1"):
        data.index("val", 1)
    with pytest.raises(DatasetError, match="there is no -1"):
        next(data.samples("val", -1))
    with pytest.raises(DatasetError, match=r"rows of split 'val' have numbers below 12, not \[3, -1\]"):
        next(data.samples("val", positions=[3, -1]))
    with pytest.raises(DatasetError, match="has no field 'imgae'; it has image, label, weight"):
        next(data.samples("val", fields=["label", "imgae"]))


def test_a_damaged_record_is_named_and_affects_no_other(copy):
    data = open_dataset(copy)
    row = data.index("val").to_pylist()[5]
    path = copy / data.file("val", 0, row["shard"]).name
    flip(path, row["offset"] + row["size"] // 2)
    with pytest.raises(RecordError, match=rf"{path.name}: record 5 at byte {row['offset']}: wrong checksum"):
        list(data.samples("val"))
    assert len(list(data.samples("val", 0, [n for n in range(12) if n != 5]))) == 11


# --- names and pictures ---------------------------------------------------------------------------------------------


def test_a_contact_sheet_shows_the_stored_pixels(data):
    sheet = np.asarray(contact_sheet(data, "val", samples=12, panel_px=40))
    unmarked = [sample["image"] for sample in data.samples("val") if not len(sample["boxes"])]
    assert len(unmarked) == 4
    windows = np.lib.stride_tricks.sliding_window_view(sheet, unmarked[0].shape)[:, :, 0]
    for image in unmarked:
        candidates = windows[(windows[:, :, 0, 0] == image[0, 0]).all(-1)]
        assert (candidates == image).all((1, 2, 3)).any(), "every image is in the sheet pixel by pixel"


def test_splits_are_printed_as_a_table_and_compare_as_a_mapping(data):
    first, train, val = repr(data.splits).splitlines()
    assert first.split() == ["split", "samples", "variants", "shards", "size"]
    assert train.split()[:4] == ["train", "30", "3", "3"]
    assert val.split()[:4] == ["val", "12", "1", "1"]
    assert len(first) == len(train) == len(val)
    assert data.splits == data.manifest.splits


@pytest.fixture
def generated(make_dataset):
    """A function that makes a dataset of samples of these kinds, and its contact sheet with panels of this side."""

    def generated(make, kinds, samples=1, side=32):
        codec = {name: codecs.Scalar() if kind in ("boxes", "label") else codecs.Raw() for name, kind in kinds.items()}
        made = make_dataset(samples={"train": samples}, fields=(*kinds,), make=make, kinds=kinds, codec=codec)
        data = open_dataset(made.path)
        return data, np.asarray(contact_sheet(data, "train", samples=samples, panel_px=side))

    return generated


def test_a_contact_sheet_of_any_class_numbers(generated):
    """A color for each number up to the highest one would take minutes, and below 0 there is none."""
    _, sheet = generated(lambda rng, number: {"mask": rng.choice([-5, 0, 1 << 40], (24, 32))}, {"mask": "mask"}, 2)
    for color in class_colors([-5, 0, 1 << 40]):
        assert (sheet == color).all(2).sum() > 100
    objects, (void,) = class_colors(range(1, 255)).astype(int), class_colors([255])
    assert np.abs(objects - void).max(1).min() > 100, "void looks like an object"


def test_a_contact_sheet_of_a_map_with_holes(generated):
    """The colors are those of the finite values."""

    def make(rng, number):
        depth = np.full((24, 32), np.nan, np.float32)
        depth[:12], depth[12:14], depth[0] = 5.0, np.inf, 1.0
        return {"depth": depth}

    _, sheet = generated(make, {"depth": "map"})
    ends = cv2.applyColorMap(np.array([[0, 255]], np.uint8), cv2.COLORMAP_VIRIDIS)[0, :, ::-1]
    assert [int((sheet == color).all(2).sum()) for color in ends] == [32 + 10 * 32, 13 * 32]


def test_boxes_have_the_color_of_their_class_and_the_sheet_its_name(generated):
    def make(rng, number):
        boxes = np.array([[4, 4, 20, 20], [30, 6, 44, 22]], np.float32)
        tags = np.array([1, 0], np.float32)  # a number for each of two classes, not for each box
        return {
            "image": np.full((32, 48, 3), 99, np.uint8),
            "boxes": boxes,
            "tags": tags,
            "box_labels": np.array([1, 2]),
        }

    data, sheet = generated(make, {"image": "image", "boxes": "boxes", "tags": "label", "box_labels": "label"}, 2, 48)
    ends = [int(np.flatnonzero((sheet == color).all(2).any(1))[-1]) for color in class_colors([1, 2])]
    drawn = int(np.flatnonzero((sheet == 99).all(2).any(1))[-1])
    assert min(ends) > drawn, "the legend is below the pictures"
    marked = marked_image(data, next(data.samples("train")))
    assert (marked[4, 4:20] == class_colors([1])).all()
    assert (marked[6, 30:44] == class_colors([2])).all()
    dark = {**next(data.samples("train")), "image": np.zeros((32, 48, 3), np.uint8), "box_labels": np.array([0, 1])}
    assert (marked_image(data, dark)[3, 4:20] == 255).all(), "class 0 is black, and shows on a dark photo"


def test_the_legend_says_which_of_two_fields_has_a_class(generated, monkeypatch):
    kinds = dict.fromkeys(("mask", "parts"), "mask")
    data, _ = generated(lambda rng, number: dict.fromkeys(kinds, np.eye(24, 32, dtype=np.uint8)), kinds)
    classes = {"mask": ("ground", "leaf"), "parts": ("leaf", "stem")}
    words = []
    monkeypatch.setattr(ImageDraw.ImageDraw, "text", lambda pen, place, text, *rest: words.append(text))
    contact_sheet(Dataset(data.path, replace(data.manifest, classes=classes)), "train")
    assert words[-4:] == ["mask ground", "mask leaf", "parts leaf", "parts stem"]
