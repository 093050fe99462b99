"""A built dataset is read by tfprep, by TensorFlow Datasets, and by a plain TFRecordDataset; damaged datasets are refused."""

import json
import shutil
import warnings
from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from PIL import Image, ImageFont

from tfprep import Recipe, augment, codecs, sources
from tfprep.builder import build
from tfprep.dataset import Dataset, open_dataset
from tfprep.dataset.manifest import seal
from tfprep.dataset.names import check_name, shard_name
from tfprep.dataset.sheet import _caption, _wrapped, class_colours, contact_sheet
from tfprep.errors import DatasetError, RecordError
from tfprep.records import read_index, read_record, read_records

tf = pytest.importorskip("tensorflow")

KEPT = {"train": 30, "val": 12}


@pytest.fixture(scope="session")
def raw(tmp_path_factory) -> Path:
    """Photos of noise in class folders, with a table of further columns."""
    root = tmp_path_factory.mktemp("raw")
    draws = np.random.default_rng(0)
    rows = []
    for split, count in KEPT.items():
        for number in range(count):
            label = ["cat", "dog", "ünïcode"][number % 3]
            path = root / split / label / f"{number} photo.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            coarse = Image.fromarray(draws.integers(0, 256, (6, 8, 3), np.uint8))
            coarse.resize((64 + number, 48), Image.Resampling.BICUBIC).save(path)
            corners = np.sort(draws.uniform(0, 40, (number % 3, 2, 2)).round(2), axis=1)
            boxes = corners.reshape(-1, 4).tolist()
            rows.append({
                "path": str(path.relative_to(root)), "split": split, "animal": label, "text": f"{split} {number} ß",
                "weight": number / 7, "boxes": boxes,
            })  # fmt: skip
    (root / "table.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return root


def gray(sample, generator):
    return sample["image"].mean(2).astype(np.float32)


def plain(sample, generator):
    return sample["image"].copy()


plain.kind = "image"


def recipe() -> Recipe:
    return Recipe(
        name="mixed",
        source=sources.Table(
            "table.jsonl",
            image="path",
            label="animal",
            splits="split",
            fields={"weight": ("scalar", "weight"), "text": ("text", "text"), "boxes": ("boxes", "boxes")},
        ),
        geometry=[augment.Rotate(10), augment.Crop(40, 40)],
        colour=[augment.Brightness(0.2)],
        derive={"gray": gray, "plain": plain},
        variants={"train": 3},
        shards={"train": 3},
        store={
            "image": codecs.Jpeg(90),
            "label": codecs.Scalar(),
            "weight": codecs.Scalar(),
            "text": codecs.Text(),
            "boxes": codecs.Scalar(),
            "gray": codecs.Raw(),
            "plain": codecs.Png(),
        },
        seed=4,
    )


@pytest.fixture(scope="session")
def data(raw, tmp_path_factory) -> Dataset:
    from tfprep.builder import BuildOptions

    out = tmp_path_factory.mktemp("built") / "mixed"
    build(recipe(), out, raw, options=BuildOptions(workers=0))
    return open_dataset(out)


@pytest.fixture
def copy(data, tmp_path) -> Path:
    return Path(shutil.copytree(data.path, tmp_path / "copy"))


def names(split: str, variants: int) -> list[tuple[str, int]]:
    return [(split, variant) for variant in range(variants)]


ALL = [*names("train", 3), *names("val", 1)]

# --- reading --------------------------------------------------------------------------------------------------------


def test_the_manifest_reads_back_as_it_was_written(data):
    assert open_dataset(data.path).manifest == data.manifest
    assert json.loads(data.manifest.to_json()) == json.loads((data.path / "tfprep.json").read_text())
    assert {name: (s.samples, s.variants, s.shards) for name, s in data.splits.items()} == {
        "train": (30, 3, 3), "val": (12, 1, 1)
    }  # fmt: skip


def test_values_come_from_the_table_row_of_their_key(data, raw):
    rows = {row["path"]: row for row in map(json.loads, (raw / "table.jsonl").read_text().splitlines())}
    for split in KEPT:
        keys = data.index(split, 0, ["key"])["key"].to_pylist()
        assert sorted(keys) == sorted(key for key, row in rows.items() if row["split"] == split)
        for key, sample in zip(keys, data.samples(split), strict=True):
            assert sample["text"] == rows[key]["text"]
            assert sample["weight"] == np.float32(rows[key]["weight"])
            assert data.manifest.classes["label"][sample["label"]] == rows[key]["animal"]


def test_variants_contain_the_same_samples_in_the_same_order(data):
    zero = data.index("train", 0, ["key", "shard", "source_digest", "label"])
    for variant in (1, 2):
        assert data.index("train", variant, ["key", "shard", "source_digest", "label"]).equals(zero)
    images = [np.stack([s["image"] for s in data.samples("train", variant)]) for variant in range(3)]
    assert (images[0] != images[1]).any()
    assert (images[1] != images[2]).any()


def test_a_fields_span_in_the_index_covers_its_bytes(data):
    for split, variant in ALL:
        for row in data.index(split, variant).to_pylist():
            file = (data.path / data.file(split, variant, row["shard"]).name).read_bytes()
            sample = data.decode(_payload(data, split, variant, row))
            span = {n: file[row[f"{n}_offset"] : row[f"{n}_offset"] + row[f"{n}_size"]] for n in data.fields}
            assert span["text"].decode() == sample["text"]
            assert span["gray"] == sample["gray"].tobytes()
            assert span["boxes"] == sample["boxes"].tobytes()
            assert span["image"][:3] == b"\xff\xd8\xff"
            assert span["image"][-2:] == b"\xff\xd9"
            assert (row["height"], row["width"]) == sample["image"].shape[:2]
            assert row["label"] == sample["label"]


def _payload(data, split, variant, row) -> bytes:
    from tfprep.records import Frame

    path = data.path / data.file(split, variant, row["shard"]).name
    with path.open("rb") as file:
        return read_record(file, path, Frame(row["offset"], row["size"]))


def test_the_text_index_and_the_parquet_index_agree_with_the_files(data):
    for split, variant in ALL:
        table = data.index(split, variant)
        for shard, info in enumerate(data.splits[split].files[variant]):
            path = data.path / info.name
            rows = [(r["offset"], r["size"]) for r in table.to_pylist() if r["shard"] == shard]
            assert rows == [tuple(frame) for frame in read_index(path.with_name(f"{path.name}.idx"))]
            assert rows == [tuple(frame) for frame, _ in read_records(path)]
            assert info.records == len(rows)
            assert info.bytes == path.stat().st_size


def test_statistics_are_those_of_the_stored_training_images(data):
    """Compared with NumPy over all pixels, before JPEG changes them slightly."""
    for name, tolerance in (("plain", 1e-9), ("image", 3)):
        pixels = np.concatenate([sample[name].reshape(-1, 3) for sample in data.samples("train")]).astype(np.float64)
        assert np.allclose(data.manifest.statistics[name].mean, pixels.mean(0), atol=tolerance)
        assert np.allclose(data.manifest.statistics[name].std, pixels.std(0), atol=tolerance)


def test_class_counts(data):
    for split in KEPT:
        counted = Counter(data.index(split, 0, ["label"])["label"].to_pylist())
        assert data.manifest.class_counts["label"][split] == tuple(counted[n] for n in range(3))
    assert list(data.manifest.classes["label"]) == ["cat", "dog", "ünïcode"]


# --- other readers --------------------------------------------------------------------------------------------------


def test_tensorflow_datasets_reads_every_split_and_variant(data):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import tensorflow_datasets as tfds

        builder = tfds.builder_from_directory(str(data.path))
        assert builder.info.features["label"].names == list(data.manifest.classes["label"])
        counts = {name: info.num_examples for name, info in builder.info.splits.items()}
        assert counts == {"train": 30, "train_v1": 30, "train_v2": 30, "val": 12}
        read = tfds.ReadConfig(interleave_cycle_length=1)
        for split, variant in ALL:
            name = split if variant == 0 else f"{split}_v{variant}"
            theirs = tfds.as_numpy(builder.as_dataset(split=name, read_config=read))
            for ours, other in zip(data.samples(split, variant), theirs, strict=True):
                assert_same_but_for_dct(ours, other)


def assert_same_but_for_dct(ours, theirs) -> None:
    """TFDS decodes JPEG with TensorFlow's default, fast DCT: the pixels are not bit-identical but close."""
    assert np.abs(ours["image"].astype(int) - theirs["image"].astype(int)).mean() < 3
    for name in ("label", "weight", "boxes", "gray"):
        assert np.array_equal(ours[name], theirs[name]), name
    assert ours["text"] == theirs["text"].decode()


def test_a_plain_tfrecord_dataset_reads_them_too(data):
    specification = {
        "image": tf.io.FixedLenFeature([], tf.string),
        "label": tf.io.FixedLenFeature([], tf.int64),
        "weight": tf.io.FixedLenFeature([], tf.float32),
        "text": tf.io.FixedLenFeature([], tf.string),
        "gray": tf.io.FixedLenFeature([], tf.string),
    }
    for split, variant in ALL:
        files = [str(data.path / info.name) for info in data.splits[split].files[variant]]
        for record, ours in zip(tf.data.TFRecordDataset(files), data.samples(split, variant), strict=True):
            parsed = tf.io.parse_single_example(record, specification)
            image = tf.io.decode_jpeg(parsed["image"], dct_method="INTEGER_ACCURATE")
            assert np.array_equal(image, ours["image"])
            assert np.array_equal(tf.io.decode_raw(parsed["gray"], tf.float32), ours["gray"].reshape(-1))
            assert (int(parsed["label"]), float(parsed["weight"])) == (ours["label"], ours["weight"])
            assert parsed["text"].numpy().decode() == ours["text"]


def test_pandas_style_columns(data):
    schema = pq.read_schema(data.path / "index.parquet")
    fields = [f"{name}_{what}" for name in data.fields for what in ("offset", "size")]
    assert schema.names == [
        *("key", "split", "variant", "shard", "offset", "size", "payload_crc"),
        *("label", "height", "width", "source_digest", "image_digest", "image_hash"), *fields
    ]  # fmt: skip


# --- what is wrong with a folder ------------------------------------------------------------------------------------


def test_a_dataset_that_was_deleted_is_not_called_replaced(copy):
    opened = open_dataset(copy)
    shutil.rmtree(copy)
    for read in (lambda: opened.index("train"), lambda: next(opened.samples("train"))):
        with pytest.raises(DatasetError, match="was deleted or moved since it was opened") as caught:
            read()
        assert "another build" not in str(caught.value)


def test_a_folder_without_a_dataset(tmp_path):
    with pytest.raises(DatasetError, match="the folder does not exist"):
        open_dataset(tmp_path / "none")
    with pytest.raises(DatasetError, match="not a dataset built by tfprep"):
        open_dataset(tmp_path)
    (tmp_path / ".tfprep").mkdir()
    with pytest.raises(DatasetError, match="a build has begun here and not finished; run the same command again"):
        open_dataset(tmp_path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda m: m.update(format_version=3), "format version 3, this tfprep reads 2; upgrade tfprep"),
        (lambda m: m.pop("fields"), "fields is missing"),
        (lambda m: m["fields"]["image"]["spec"].update(kind="sound"), "kind is one of image, .*, not 'sound'"),
        (lambda m: m["fields"]["image"]["codec"].update(codec="zip"), "unknown codec 'zip'"),
        (lambda m: m["splits"]["train"]["files"][0][0].update(name="../../etc/passwd"), "cannot be '../../etc/passwd'"),
        (
            lambda m: m["splits"]["train"]["files"][0][0].update(records=-1),
            r"files\[0\]\[0\].records is a whole number from 0 on, not -1",
        ),
        (lambda m: m["splits"]["train"]["files"][1][0].update(records=1), "variant 1 holds"),
        (
            lambda m: m["splits"]["train"].update(samples="many"),
            "splits.train.samples is a whole number from 0 on, not 'many'",
        ),
    ],
)
def test_a_damaged_manifest_is_refused_with_its_reason(copy, change, message):
    manifest = json.loads((copy / "tfprep.json").read_text())
    change(manifest)
    (copy / "tfprep.json").write_text(seal({key: value for key, value in manifest.items() if key != "sha256"}))
    with pytest.raises(DatasetError, match=message):
        next(open_dataset(copy).samples("val"))


def test_a_manifest_that_is_not_json_and_a_missing_or_damaged_index(copy):
    data = open_dataset(copy)
    (copy / "index.parquet").write_bytes(b"PAR1 but not really")
    with pytest.raises(DatasetError, match=r"index\.parquet is not the index .*: it is damaged"):
        data.index("train")
    (copy / "index.parquet").unlink()
    with pytest.raises(DatasetError, match=r"index\.parquet is missing; run the build again"):
        data.index("train")
    (copy / "tfprep.json").write_text("{")
    with pytest.raises(DatasetError, match="is damaged"):
        open_dataset(copy)


def test_unknown_splits_and_variants_are_named(data):
    with pytest.raises(DatasetError, match="has no split 'test'; it has train, val"):
        data.index("test")
    with pytest.raises(DatasetError, match="has 1 variants, numbered from 0; there is no 1"):
        data.index("val", 1)


def test_a_damaged_record_is_named_and_affects_no_other(copy):
    data = open_dataset(copy)
    row = data.index("val").to_pylist()[5]
    path = copy / data.file("val", 0, row["shard"]).name
    damaged = bytearray(path.read_bytes())
    damaged[row["offset"] + row["size"] // 2] ^= 0xFF
    path.write_bytes(damaged)
    with pytest.raises(RecordError, match=rf"{path.name}: record 5 at byte {row['offset']}: wrong checksum"):
        list(data.samples("val"))
    others = [n for n in range(12) if n != 5]
    assert len(list(data.samples("val", 0, others))) == 11


# --- names and pictures ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["", "1a", "a-b", "a b", "train_v1", "a.b", "ä"])
def test_names_that_would_not_parse_are_refused(name):
    with pytest.raises(DatasetError):
        check_name("the name", name)


def test_shard_names():
    assert shard_name("camvid", "train", 0, 0, 4) == "camvid-train.tfrecord-00000-of-00004"
    assert shard_name("camvid", "train", 2, 3, 4) == "camvid-train_v2.tfrecord-00003-of-00004"


def test_a_contact_sheet_shows_the_stored_pixels(data):
    sheet = np.asarray(contact_sheet(data, "val", samples=12, panel_px=40))
    unmarked = [sample["image"] for sample in data.samples("val") if not len(sample["boxes"])]
    assert len(unmarked) == 4
    windows = np.lib.stride_tricks.sliding_window_view(sheet, unmarked[0].shape)[:, :, 0]
    for image in unmarked:
        candidates = windows[(windows[:, :, 0, 0] == image[0, 0]).all(-1)]
        assert (candidates == image).all((1, 2, 3)).any(), "every image stands in the sheet pixel by pixel"


def test_class_colours_are_distinct():
    colours = class_colours(40)
    assert len({tuple(colour) for colour in colours.tolist()}) == 40
    assert np.array_equal(colours[:5], class_colours(5))


@pytest.mark.parametrize(
    ("value", "caption"),
    [
        (np.float32(0.5), "0.5"),
        (np.arange(3), "[0 1 2]"),
        (np.zeros((12, 12, 8), np.float16), "float16 [12, 12, 8]"),
        ("a" * 100_000, "a" * 200 + " ..."),
    ],
)
def test_a_caption_of_a_contact_sheet_is_short(value, caption):
    """The width of each line is measured letter by letter, which takes minutes for arrays and long texts."""
    assert _caption(value) == caption


def test_a_key_of_a_contact_sheet_has_one_colour_and_ends_its_lines_between_words():
    key, name = "train/a-rather-long-class/frame_of_a_camera_0001.png", "x" * 60
    lines = list(_wrapped([key, name], ImageFont.load_default(10)))
    of_key = [line for line, ink in lines if ink == lines[0][1]]
    assert "".join(of_key) == key
    assert all(line[-1] in "-_/." for line in of_key[:-1])
    assert "".join(line for line, ink in lines if ink != lines[0][1]) == name
