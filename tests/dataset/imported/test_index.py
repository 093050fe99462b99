"""Making an index: what becomes a field, what is refused and why, what the same command reads again, and hostile input."""

import io
import json
import os
import re
import shutil
import sys
import tarfile
from hashlib import sha256
from pathlib import Path

import numpy as np
import pyarrow.compute as pc
import pytest

import tfprep
from tests.builder.conftest import run
from tests.commands import status_of
from tests.damage import flip
from tests.examples import image_bytes, serialized, write
from tests.photos import save
from tfprep import Recipe, codecs, sources
from tfprep.builder import BuildOptions, build
from tfprep.dataset import index_tfrecords
from tfprep.dataset.imported import scan
from tfprep.dataset.manifest import digest_of, seal
from tfprep.dataset.names import stored_name
from tfprep.dataset.verify import verify
from tfprep.errors import BuildError, DatasetError

tf = pytest.importorskip("tensorflow")

RNG = np.random.default_rng(9)


def index(folder, *payloads, **options):
    """Write shards, and index all of the folder."""
    for number, group in enumerate(payloads):
        write(folder / f"{number}.tfrecord", group)
    return index_tfrecords(str(folder / "*.tfrecord"), "train", **options)


def numbers(*values):
    """Records of one number each."""
    return [serialized({"n": n}) for n in values]


def reason(report, feature):
    return report.manifest.imported.left_out[feature]


def read_all(folder, **options):
    """All samples of the training split, one dict each."""
    loader = tfprep.open(folder).numpy_loader("train", 4, training=False, **options)
    return [
        {name: values[row] for name, values in batch.items()}
        for batch in loader
        for row in range(len(next(iter(batch.values()))))
    ]


def numbers_of(folder, **options):
    return [sample["n"] for sample in read_all(folder, **options)]


def read_rejected(report):
    return [json.loads(line) for line in (report.out / "current/rejects.jsonl").read_text().splitlines()]


# --- what becomes a field ---------------------------------------------------------------------------------------------


def test_shapes(tmp_path):
    """A length that differs, or a feature that is missing, makes a list; neither is ever filled with zeros."""
    examples = [
        {
            "one": n, "three": [n, n + 1, n + 2], "floats": np.full(2, n / 4, np.float32), "ragged": np.arange(n % 3),
            "text": b"t%d" % n, "two texts": [b"a", b"b"], "texts": [b"x"] * (n % 3 + 1), "empty": np.zeros(0, np.int64),
        } | ({"some": n} if n % 2 else {}) | ({"some text": b"s"} if n % 2 else {})
        for n in range(12)
    ]  # fmt: skip
    report = index(tmp_path, [serialized(e) for e in examples[:5]], [serialized(e) for e in examples[5:]])
    shapes = {item.name: (item.spec.kind, item.spec.shape, item.spec.dtype, item.column) for item in report.fields}
    assert shapes == {
        "one": ("scalar", (), "int64", True),
        "three": ("scalar", (3,), "int64", False),
        "floats": ("scalar", (2,), "float32", False),
        "ragged": ("scalar", (None,), "int64", False),
        "text": ("text", (), "string", True),
        "two_texts": ("text", (2,), "string", False),
        "texts": ("text", (None,), "string", False),
        "some": ("scalar", (None,), "int64", True),
        "some_text": ("text", (None,), "string", True),
    }
    assert reason(report, "empty") == "it is empty in every record"
    for number, sample in enumerate(read_all(tmp_path)):
        assert sample["some"].tolist() == ([number] if number % 2 else [])
        assert sample["some_text"].tolist() == (["s"] if number % 2 else [])
        assert sample["ragged"].tolist() == list(range(number % 3))
        assert sample["three"].tolist() == [number, number + 1, number + 2]
        assert sample["two_texts"].tolist() == ["a", "b"]
        assert sample["texts"].tolist() == ["x"] * (number % 3 + 1)


def test_names(tmp_path):
    report = index(
        tmp_path, [serialized({"a/b": 1, "a_b": 2, "9x": 3, "key": b"k", "size": 4, "a_b_size": 5, "größe": 6})]
    )
    names = {item.feature: item.name for item in report.fields}
    assert len(set(names.values())) == 7
    assert names["key"] == "key_"
    assert names["9x"] == "_9x"
    columns = {f"{name}{ending}" for name in names.values() for ending in ("", "_offset", "_size")}
    assert len(columns) == 21
    assert not columns & {"offset", "size", "key", "shard"}
    (sample,) = read_all(tmp_path)
    expected = {"a/b": 1, "a_b": 2, "9x": 3, "size": 4, "a_b_size": 5, "größe": 6}
    assert {feature: sample[names[feature]] for feature in expected} == expected


@pytest.mark.parametrize(
    ("contents", "text"),
    [
        ([b"GIF89a" + bytes(20) + b"\xff"], "strings of 27 bytes that are neither text, JPEG nor PNG"),
        ([bytes(range(6)), bytes(6)], "neither text, JPEG nor PNG"),  # a mask of few classes is UTF-8
        ([b"\xc3", b"\xb6"], "neither text, JPEG nor PNG"),  # together they are one letter
        ([image_bytes(RNG, (6, 7)), b"a", b"b"], "neither text, JPEG nor PNG"),
        ([[b"a", b"\xff"]], "lists of byte strings that are neither text"),
        ([1, 1.5], "float in 1 records and int64 in 1 records"),
    ],
)
def test_unknown_features_are_listed_with_what_they_look_like(tmp_path, contents, text):
    report = index(tmp_path, [serialized({"n": n, "x": content}) for n, content in enumerate(contents)])
    assert text in reason(report, "x")


@pytest.mark.parametrize("blank", [b" ", b"\n", b"", [b"\t"]])
def test_a_text_may_be_blank(tmp_path, blank):
    report = index(tmp_path, [serialized({"x": value}) for value in (b"a cat", blank)])
    assert [field.spec.kind for field in report.fields] == ["text"]
    assert [sample["x"] for sample in read_all(tmp_path)] == [
        "a cat",
        (blank[0] if isinstance(blank, list) else blank).decode(),
    ]
    assert "neither text" in reason(index(tmp_path / "only", [serialized({"x": b" ", "n": 1})]), "x")


@pytest.fixture
def index_as(tmp_path):
    """A function that indexes the records of `a.tfrecord` with a declaration of features, given as it is written in JSON."""

    def index_as(features, out=None):
        declared = tmp_path / "declared.json"
        declared.write_text(features if isinstance(features, str) else json.dumps(features))
        return index_tfrecords(str(tmp_path / "a.tfrecord"), "train", out, features=declared)

    return index_as


def test_declared_features(tmp_path, index_as):
    arrays = [RNG.integers(0, 2**16, (3, 4), np.uint16) for _ in range(5)]
    masks = [image_bytes(RNG, (8, 9), "PNG", "L") for _ in range(5)]
    examples = [
        serialized({"array": a.tobytes(), "m": m, "matrix": a.reshape(-1).astype(np.int64), "kind": n % 2, "one": n})
        for n, (a, m) in enumerate(zip(arrays, masks, strict=True))
    ]
    write(tmp_path / "a.tfrecord", examples)
    (tmp_path / "features.json").write_text("[]")  # of another tool
    described = {"array": {"dtype": "uint16", "shape": [3, 4]}, "m": {"kind": "mask"}, "matrix": {"shape": [3, None]}}
    index_as({**described, "one": {"shape": [1, 1]}, "kind": {"classes": ["cat", "dog"]}})
    data = tfprep.open(tmp_path)
    assert not list(verify(data.path))
    assert (data.fields["m"].kind, data.fields["m"].shape) == ("mask", (8, 9))
    assert data.class_names == ("cat", "dog")
    for sample, array, mask in zip(read_all(tmp_path), arrays, masks, strict=True):
        assert np.array_equal(sample["array"], array)
        assert np.array_equal(sample["matrix"], array)
        assert np.array_equal(sample["m"], tf.io.decode_png(mask)[..., 0])


@pytest.mark.parametrize("labels", [[1, 2, 3, 1], [[1], [2, 300], [], [2]]])
def test_class_names_that_begin_with_another_number(tmp_path, index_as, labels):
    """Label maps of the Object Detection API count from 1: without a name for 0, objects would have those of other classes."""
    write(tmp_path / "a.tfrecord", [serialized({"n": n, "kind": label}) for n, label in enumerate(labels)])
    with pytest.raises(DatasetError, match="'kind' has 3 class names, of the numbers from 0, and a record has 3"):
        index_as({"kind": {"classes": ["cat", "dog", "owl"]}})


def test_boxes_are_of_the_declared_form(tmp_path, index_as):
    boxes = RNG.integers(0, 9, (3, 4)).astype(np.float32)
    write(tmp_path / "a.tfrecord", [serialized({"bands": RNG.random(40).astype(np.float32), "where": boxes.ravel()})])
    index_as({"where": {"kind": "boxes", "format": "center_xywh"}})
    data = tfprep.open(tmp_path)
    assert (data.fields["bands"].kind, data.fields["where"].kind) == ("scalar", "boxes")
    (sample,) = data.samples("train")
    half = boxes[:, 2:] / 2
    np.testing.assert_allclose(sample["where"], np.concatenate([boxes[:, :2] - half, boxes[:, :2] + half], 1))
    sides = dict(zip(("xmin", "ymin", "xmax", "ymax"), boxes.T / 9, strict=True))
    write(tmp_path / "a.tfrecord", [serialized(sides)])
    index_as({"xmin": {"kind": "boxes", "format": "xyxy"}}, tmp_path / "sides")
    (sample,) = tfprep.open(tmp_path / "sides").samples("train")
    np.testing.assert_array_equal(sample["boxes"], boxes / 9)


def test_what_a_declaration_said_is_not_lost_without_a_word(tmp_path, index_as):
    write(tmp_path / "a.tfrecord", [serialized({"kind": 1, "bbox": np.arange(8.0)})])
    for form in ("xyxy", "yxyx"):
        changed = index_as({"kind": {"classes": ["cat", "dog"]}, "bbox": {"kind": "boxes", "format": form}}).changed
    assert [text.split(" was ")[0] for text in changed] == ["bbox"]
    changed = index_tfrecords(str(tmp_path / "a.tfrecord"), "train").changed
    assert any("kind has other class names, or none any more" in text for text in changed)


BOXES = {"kind": "boxes", "format": "xyxy"}
NO_FILE = r"declared\.json"
WRONG_DECLARATIONS = [
    (
        {"matrix": {"shape": [5, None]}},
        r"'matrix' is declared with the shape \[5, None\], but the records have 12 values",
    ),
    ({"matrix": BOXES}, "'matrix' is declared as boxes, which its int64 values"),
    ({"text": {"kind": "label"}}, "'text' is declared as label"),
    ({"bands": {"kind": "map", "shape": [4, 5, 2]}}, "'bands' is declared as map, which its float values"),
    ({"bands": {"kind": "points", "shape": [4, 10]}}, r"'bands' is declared as points, whose shape is \[null, 2\]"),
    ({"bands": {**BOXES, "shape": [2, 4]}}, "the records have 40 values"),
    (
        {"bbox": {"kind": "boxes", "format": "rel_yxyx"}},
        "'bbox' is declared as rel_yxyx, shares .* 1 records have numbers above 2",
    ),
    (
        {"image": {"kind": "image", "dtype": "float32"}},
        "'image' is declared as float32 .* its images are uint8, 8 to 8 high",
    ),
    ({"image": {"kind": "mask", "shape": [8, 10, 1]}}, r"'image' is declared as uint8 \[8, 10, 1\], but its images"),
    ({"places": {"kind": "boxes", "format": "rel_xyxy"}}, "'places' is declared as rel_xyxy, shares .* 1 of 1 records"),
    ({"xmin": {"kind": "boxes", "format": "yxyx"}}, "'xmin' is declared as boxes of the form yxyx; sides of boxes are"),
    ({"ymax": {"kind": "boxes", "format": "xywh"}}, "'ymax' is declared as boxes of the form xywh; sides of boxes are"),
    ({"text": {"classes": ["cat", "dog"]}}, "'text' has class names, but holds bytes values"),
    ({"bands": {"dtype": "float64"}}, "'bands' is declared as float64, but holds float values"),
    ("[", NO_FILE),
    ({"text": {"size": 3}}, NO_FILE),
    ({"text": {"kind": "boxes"}}, NO_FILE),
    ({"text": {"format": "xyxy"}}, NO_FILE),
    ({"text": {"dtype": "uint9"}}, NO_FILE),
    ({"text": {"rows": ["matrix"]}}, "'rows' are the features with a row per box"),
    ({"text": {"kind": "picture"}}, NO_FILE),
]


@pytest.mark.parametrize(("features", "message"), WRONG_DECLARATIONS)
def test_a_declaration_that_the_records_or_its_form_do_not_allow_is_refused(tmp_path, index_as, features, message):
    bands = RNG.random(40).astype(np.float32)
    image = image_bytes(RNG, (8, 9), "PNG", "L")
    values = {"matrix": np.arange(12), "text": b"text", "bands": bands, "image": image, "bbox": np.arange(8.0)}
    values |= {"places": np.arange(8.0), **dict.fromkeys(("xmin", "ymin", "xmax", "ymax"), bands[:3])}
    write(tmp_path / "a.tfrecord", [serialized(values)])
    with pytest.raises(DatasetError, match=message):
        index_as(features)


def test_images_of_several_kinds(tmp_path):
    forms = [("JPEG", "RGB"), ("JPEG", "L"), ("PNG", "RGBA")]
    contents = [*(image_bytes(RNG, (10, 12), *form) for form in forms), b"not an image", b""]
    report = index(tmp_path, [serialized({"image": content, "n": n}) for n, content in enumerate(contents)])
    image = next(item for item in report.fields if item.name == "image")
    assert image.spec.shape == (None, None, 3)
    assert "2 values are not JPEG or PNG: bad records" in image.note
    assert not report.manifest.rejected  # no record is left out unasked
    assert "the alpha channel of 1 is dropped" in image.note
    samples = read_all(tmp_path, on_bad="skip")
    assert [sample["n"] for sample in samples] == [0, 1, 2]
    for sample, content in zip(samples[:2], contents[:2], strict=True):
        expected = tf.io.decode_jpeg(content, channels=3, dct_method="INTEGER_ACCURATE")
        assert np.array_equal(sample["image"], expected)
    with pytest.raises(DatasetError, match="neither a JPEG nor a PNG: 12 bytes that begin with b'not an i'"):
        read_all(tmp_path)


def test_an_image_that_some_records_lack_is_left_out_or_these_records_are(tmp_path, capsys):
    examples = [serialized({"n": n} | ({"image": image_bytes(RNG, (6, 7))} if n != 3 else {})) for n in range(8)]
    report = index(tmp_path, examples)
    assert reason(report, "image") == "1 of 8 records have none; --on-bad skip leaves those records out and lists them"
    assert numbers_of(tmp_path) == list(range(8))
    report = index(tmp_path, on_bad="skip")
    assert numbers_of(tmp_path) == [0, 1, 2, 4, 5, 6, 7]
    path = tmp_path / "0.tfrecord"
    modified = path.stat().st_mtime_ns
    flip(path, -1)
    os.utime(path, ns=(modified, modified))
    # The key counts all records of the file.
    with pytest.raises(DatasetError, match=r"record 6 at byte.*0\.tfrecord#7"):
        list(tfprep.open(tmp_path).numpy_loader("train", 4, training=False, on_bad="raise", fields=["n"]))
    (line,) = read_rejected(report)
    assert (line["shard"], line["record"], line["reason"]) == ("0.tfrecord", 3, "it has no 'image'")
    status_of("index", tmp_path / "*.tfrecord", "--split", "train", "--on-bad", "skip")
    assert Path(re.search(r"1 record was left out; see (.*)", capsys.readouterr().out)[1]).read_text()
    assert tfprep.open(tmp_path).index("train", 0, ["key"])["key"].to_pylist()[3] == "0.tfrecord#4"
    mostly = [serialized({"n": n} | ({"image": image_bytes(RNG, (6, 7))} if n == 3 else {})) for n in range(8)]
    assert reason(index(tmp_path, mostly, on_bad="skip"), "image") == "7 of 8 records have none"
    assert numbers_of(tmp_path) == list(range(8))


def test_another_split_without_on_bad_does_not_take_fields_from_the_first(tmp_path):
    image = image_bytes(RNG, (6, 7))
    write(tmp_path / "train.tfrecord", [serialized({"n": n} | ({"image": image} if n != 3 else {})) for n in range(8)])
    write(tmp_path / "val.tfrecord", [serialized({"n": 9, "image": image})])
    index_tfrecords(str(tmp_path / "train.tfrecord"), "train", on_bad="skip")
    with pytest.raises(DatasetError, match="image: 1 records do not have them, which --on-bad skip left out"):
        index_tfrecords(str(tmp_path / "val.tfrecord"), "val")
    index_tfrecords(str(tmp_path / "val.tfrecord"), "val", on_bad="skip")
    assert {"n", "image"} <= set(tfprep.open(tmp_path).fields)
    assert len(tfprep.open(tmp_path).index("train")) == 7


# --- what is refused --------------------------------------------------------------------------------------------------


def sequence():
    example = tf.train.SequenceExample()
    example.feature_lists.feature_list["frames"].feature.add().int64_list.value.append(1)
    return example.SerializeToString()


def archive():
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as tar:
        tar.addfile(tarfile.TarInfo("x"))
    return file.getvalue()


NO_RECORDS = r"a\.tfrecord, record 0 at byte 0: (cut short|wrong checksum).*give a pattern that leaves it out"
REFUSED = [
    ([sequence()], "", {}, r"a\.tfrecord, record 0 at byte 0: it is a tf\.train\.SequenceExample"),
    (numbers(*range(200)), "GZIP", {}, r"If it is compressed as a whole \(GZIP, ZLIB\), index copies without compression"),
    (b"hello", "", {}, NO_RECORDS),
    (b"x" * 100, "", {}, NO_RECORDS),
    (archive(), "", {}, NO_RECORDS),
    (b"", "", {}, "hold no record that can be read$"),
    (b"", "", {"shards": "b*"}, "names no file"),
    (b"", "", {"out": "s3://bucket/index"}, "is written to a local folder, not to s3://bucket/index"),
    (b"", "", {"split": None}, "Name it with --split"),
    (b"", "", {"split": None, "shards": ""}, "not a directory of TensorFlow Datasets; name the shards of one split with"),
]  # fmt: skip


@pytest.mark.parametrize(("content", "compression", "options", "message"), REFUSED)
def test_what_is_not_an_index_of_examples(tmp_path, content, compression, options, message):
    if isinstance(content, bytes):
        (tmp_path / "a.tfrecord").write_bytes(content)
    else:
        write(tmp_path / "a.tfrecord", content, compression)
    arguments = {"split": "train", "out": None, "shards": "a.tfrecord", **options}
    with pytest.raises(DatasetError, match=message):
        index_tfrecords(str(tmp_path / arguments["shards"]), arguments["split"], arguments["out"])


def test_a_shard_of_two_splits_and_wrong_options_are_refused(tmp_path):
    """A version with such splits could not be opened; no process would ever take a shard."""
    index(tmp_path, numbers(1), numbers(2))
    with pytest.raises(DatasetError, match=r"1\.tfrecord is in two splits"):
        index_tfrecords(str(tmp_path / "1.tfrecord"), "val")
    for options in ({"workers": -1}, {"on_bad": "drop"}):
        with pytest.raises(DatasetError, match=next(iter(options))):
            index(tmp_path, **options)
    assert numbers_of(tmp_path) == [1, 2]


def test_a_dataset_that_tfprep_built_needs_no_index(photos):
    with pytest.raises(DatasetError, match="was built by tfprep; open it as it is"):
        index_tfrecords(str(photos.path))
    with pytest.raises(BuildError, match="is a version of a dataset, which never changes; choose another folder"):
        index_tfrecords(str(photos.path / "*train*of-?????"), "train", photos.path)


@pytest.mark.parametrize("damage", ["cut", "length", "example", "payload"])
def test_damage_is_an_error_or_left_out_by_name(tmp_path, damage):
    payloads = [serialized({"label": number, "text": b"x" * number}) for number in range(30)]
    if damage == "example":
        payloads[11] = b"\xff" * 20
    path = write(tmp_path / "0.tfrecord", payloads)
    write(tmp_path / "1.tfrecord", payloads[:2])
    content, starts = bytearray(path.read_bytes()), np.cumsum([0, *(len(p) + 16 for p in payloads)])
    if damage == "cut":
        del content[int(starts[11]) + 20 :]
    elif damage != "example":
        content[int(starts[11]) + {"length": 2, "payload": 30}[damage]] ^= 4
    path.write_bytes(content)
    with pytest.raises(DatasetError, match=r"0\.tfrecord.*--on-bad skip"):
        index(tmp_path)
    report = index(tmp_path, on_bad="skip")
    lost = range(11, 30) if damage in ("cut", "length") else [11]
    assert [s["label"] for s in read_all(tmp_path)] == [n for n in range(30) if n not in lost] + [0, 1]
    (line,) = read_rejected(report)
    assert (line["shard"], line["record"], line["offset"]) == ("0.tfrecord", 11, starts[11])
    assert tfprep.open(tmp_path).manifest.rejected == 1


def test_a_record_that_is_left_out_leaves_no_values_to_the_next_one(tmp_path):
    """Its features are read before the one whose packed numbers are damaged: one number has eleven bytes."""
    numbers_of_b = b"\xff" * 10 + b"\x01\x01"
    value = b"\x1a" + bytes([len(numbers_of_b) + 2]) + b"\x0a" + bytes([len(numbers_of_b)]) + numbers_of_b
    entry = b"\x0a\x01b\x12" + bytes([len(value)]) + value
    damaged = serialized({"a": 7}) + b"\x0a" + bytes([len(entry) + 2]) + b"\x0a" + bytes([len(entry)]) + entry
    report = index(tmp_path, [damaged, serialized({"b": [5]}), serialized({"a": 9, "b": [6]})], on_bad="skip")
    assert [line["record"] for line in read_rejected(report)] == [0]
    assert [(sample["a"].tolist(), sample["b"]) for sample in read_all(tmp_path)] == [([], 5), ([9], 6)]


def test_shares_are_not_pixels_where_most_records_have_no_boxes(tmp_path, index_as):
    image = image_bytes(RNG, (8, 9))
    boxes = [[[0, 0, 8, 8]], [], []]
    write(tmp_path / "a.tfrecord", [serialized({"image": image, "b": np.float32(one).ravel()}) for one in boxes])
    with pytest.raises(DatasetError, match="'b' is declared as rel_xyxy, shares of the image, and 1 of 1 records"):
        index_as({"b": {"kind": "boxes", "format": "rel_xyxy"}})


# --- the same command again -------------------------------------------------------------------------------------------


def test_appending_reads_only_new_shards(tmp_path):
    examples = [serialized({"n": n, "text": b"t" * (n % 5)}) for n in range(40)]
    index(tmp_path, examples[:10], examples[10:20])
    write(tmp_path / "2.tfrecord", examples[20:30])
    report = index(tmp_path)
    assert report.scanned == ("2.tfrecord",)
    assert numbers_of(tmp_path) == list(range(30))
    for content in (None, b"damaged"):  # without a change no version is published
        if content is not None:
            (report.out / "v0002/index.parquet").write_bytes(content)
        assert index(tmp_path).scanned == ()
        assert tfprep.open(report.out).version.number == (2 if content is None else 3)
        assert numbers_of(tmp_path) == list(range(30))
    write(tmp_path / "1.tfrecord", examples[30:])
    assert index(tmp_path).scanned == ("1.tfrecord",)
    assert numbers_of(tmp_path) == [*range(10), *range(30, 40), *range(20, 30)]
    (tmp_path / "0.tfrecord").unlink()
    assert [text.partition(":")[0] for text in index(tmp_path).changed] == ["train had 30 samples, it has 20"]
    assert numbers_of(tmp_path) == [*range(30, 40), *range(20, 30)]
    assert len(list((tmp_path / "tfprep-index" / ".tfprep").glob("*.part"))) == 2
    index_tfrecords(str(tmp_path / "*.tfrecord"), "train", tmp_path / "fresh")
    for name in ("index.parquet", "locations.bin"):
        both = [(tmp_path / out / "current" / name).read_bytes() for out in ("tfprep-index", "fresh")]
        assert both[0] == both[1]


def test_a_pattern_in_quotes_may_begin_with_the_home_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    write(tmp_path / "raw/0.tfrecord", numbers(1))
    assert index_tfrecords("~/raw/*.tfrecord", "train").out == tmp_path / "raw/tfprep-index"


def test_shards_that_the_names_of_others_speak_of_are_named(tmp_path, capsys):
    at_store = [stored_name(f"w-0000{number}-of-00003", sha256(b"%d" % number).hexdigest()) for number in (0, 2)]
    for name in ("x-00001-of-00004", "x-00003-of-00004", "y-00000-of-00001", "z-0-of-9", *at_store):
        write(tmp_path / name, numbers(1))
    (tmp_path / "x-00001-of-00004.idx").write_text("0 30\n")  # beside a shard, as builds and DALI write it
    missing = ["x-00000-of-00004", "x-00002-of-00004"]
    rest = [*missing, "x-00003-of-00004"]
    for pattern, expected in (("?-*", missing), ("y-*", []), ("x-00001-of-*", rest), ("*-w-*", ["w-00001-of-00003"])):
        assert sorted(index_tfrecords(tmp_path / pattern, "train", tmp_path / "out").missing) == expected
    status_of("index", tmp_path / "x*", "--split", "train", "--out", tmp_path / "out")
    printed = capsys.readouterr().out
    assert f"2 shards are missing, by the names of the others: {', '.join(missing)}" in printed
    assert f"out: a dataset of the TFRecords in {tmp_path}\n" in printed


def test_new_shards_may_change_shapes(tmp_path):
    """What was a scalar becomes a list, a text becomes a list of texts, and a new feature is missing before."""
    index(tmp_path, [serialized({"n": n, "text": b"%d" % n}) for n in range(5)])
    write(tmp_path / "1.tfrecord", [serialized({"n": [7, 8], "new": 1.5})])
    report = index(tmp_path)
    assert report.changed == (
        "new is new", "n was scalar of int64 [-], scalar, it is scalar of int64 [?], scalar",
        "text was text of string [-], text, it is text of string [?], texts",
    )  # fmt: skip
    samples = read_all(tmp_path)
    assert [sample["n"].tolist() for sample in samples] == [[0], [1], [2], [3], [4], [7, 8]]
    assert [sample["text"].tolist() for sample in samples] == [["0"], ["1"], ["2"], ["3"], ["4"], []]
    assert [sample["new"].tolist() for sample in samples] == [[], [], [], [], [], [1.5]]


def test_splits_are_added_one_by_one(tmp_path, monkeypatch):
    """A shard that is a link keeps its name, which is part of the keys. The part file of a shard is read and hashed once."""
    (tmp_path / "a-train").symlink_to(write(tmp_path.with_name(f"{tmp_path.name}-blob"), numbers(*range(6))))
    write(tmp_path / "b-val", [serialized({"n": n, "extra": 1}) for n in range(4)])
    index_tfrecords(str(tmp_path / "a-*"), "train")
    hashed = []
    monkeypatch.setattr(scan, "digest_of", lambda path: hashed.append(path) or digest_of(path))
    report = index_tfrecords(str(tmp_path / "b-*"), "val")
    assert report.scanned == ("b-val",)
    assert len(hashed) == len(set(hashed)) == 2
    data = tfprep.open(tmp_path)
    assert data.index("train")["key"][5].as_py() == "a-train#5"
    assert {name: split.samples for name, split in data.splits.items()} == {"train": 6, "val": 4}
    (batch,) = data.numpy_loader("val", 4, training=False)
    assert batch["n"].tolist() == [0, 1, 2, 3]
    (batch,) = data.numpy_loader("train", 6, training=False)
    assert [values.tolist() for values in batch["extra"]] == [[]] * 6


def test_changed_shards_are_an_error_that_names_the_command(tmp_path):
    payloads = [serialized({"label": number, "text": b"x" * 20}) for number in range(20)]
    index(tmp_path, payloads)
    path, data = tmp_path / "0.tfrecord", tfprep.open(tmp_path)
    os.utime(path)  # the same bytes: it was copied
    assert len(read_all(tmp_path)) == 20
    write(path, [*payloads[:10], serialized({"label": 10, "text": b"y" * 20}), *payloads[11:]])
    with pytest.raises(DatasetError, match="not the record that the index describes"):
        read_all(tmp_path)
    assert [fault.offset is not None for fault in verify(tmp_path)] == [True]
    write(path, payloads[:-1])
    with pytest.raises(DatasetError, match=r"0\.tfrecord holds \d+ bytes, .*tfprep index again"):
        data.numpy_loader("train", 4)
    assert any("were indexed" in fault.reason for fault in verify(tmp_path))
    path.unlink()
    with pytest.raises(DatasetError, match=r"0\.tfrecord cannot be read \(No such file"):
        data.numpy_loader("train", 4)


def test_the_index_moves_with_its_shards_which_may_be_links_and_lie_in_several_folders(tmp_path):
    tmp_path /= "not a [pattern]*"
    write(tmp_path / "store/x", numbers(0))
    write(tmp_path / "before/b/0.tfrecord", numbers(1))
    (tmp_path / "before/a").mkdir()
    (tmp_path / "before/a/0.tfrecord").symlink_to(tmp_path / "store/x")
    report = index_tfrecords(str(tmp_path / "before/*/*.tfrecord"), "train", tmp_path / "out")
    assert report.scanned == ("a%2F0.tfrecord", "b%2F0.tfrecord")
    assert numbers_of(tmp_path / "out") == [0, 1]
    index_tfrecords(str(tmp_path / "before/b/*.tfrecord"), "train")
    (tmp_path / "before").rename(tmp_path / "after")
    assert numbers_of(tmp_path / "after/b") == numbers_of(tmp_path / "after/b/tfprep-index") == [1]
    for _ in range(2):  # the second pattern names the files of the first index, too
        index_tfrecords(str(tmp_path / "after/**/*"), "train")
        assert numbers_of(tmp_path / "after") == [0, 1]


def test_a_name_may_be_any_bytes_and_a_link_to_nothing_is_an_error(tmp_path):
    write(tmp_path / "0.tfrecord", numbers(0)).rename(os.fsdecode(os.fsencode(tmp_path) + b"/\xff.tfrecord"))
    index(tmp_path)
    assert numbers_of(tmp_path) == [0]
    write(tmp_path / "1.tfrecord", numbers(1))
    assert index(tmp_path).scanned == ("1.tfrecord",)
    assert numbers_of(tmp_path) == [1, 0]
    with pytest.raises(BuildError, match="the path is not UTF-8, and Arrow opens no other; choose another with --out"):
        index(tmp_path, out=tmp_path / "out\udcff")
    (tmp_path / "2.tfrecord").symlink_to("nowhere")
    with pytest.raises(DatasetError, match=r"2\.tfrecord cannot be read"):
        index(tmp_path)


def test_processes_find_what_this_process_finds(tmp_path, monkeypatch):
    monkeypatch.setattr(scan, "BLOCK_BYTES", 1000)  # of this process: every block has some records, some are larger
    examples = [serialized({"n": n, "image": image_bytes(RNG, (9, 9)), "text": [b"t"] * (n % 70)}) for n in range(30)]
    in_one_process = index(tmp_path, examples[:10], examples[10:25], examples[25:], workers=0)
    out = tmp_path / "other"
    several = index_tfrecords(str(tmp_path / "*.tfrecord"), "train", out, workers=2)
    assert tfprep.open(out).index("train").equals(tfprep.open(tmp_path).index("train"))
    assert several.fields == in_one_process.fields


KILLED = """
import os, signal, sys
from tfprep.dataset import index_tfrecords
read = []
def on_bytes(done, total):
    read.append(done)
    if len(read) > 2:
        os.kill(os.getpid(), signal.SIGKILL)
index_tfrecords(sys.argv[1], "train", workers=0, on_bytes=on_bytes)
"""


def test_a_command_that_was_killed_continues_and_the_old_index_stays_until_then(tmp_path):
    index(tmp_path, numbers(0))
    for number in range(1, 4):
        write(tmp_path / f"{number}.tfrecord", numbers(number))
    assert run([sys.executable, "-c", KILLED, tmp_path / "*.tfrecord"]).returncode == -9
    assert numbers_of(tmp_path) == [0]
    read = []
    index_tfrecords(str(tmp_path / "*.tfrecord"), "train", on_bytes=lambda done, total: read.append(done))
    assert read[0] > 0  # the shard that was complete is not read again
    assert numbers_of(tmp_path) == [0, 1, 2, 3]


def test_a_process_that_dies_names_its_shard(tmp_path, monkeypatch):
    monkeypatch.setattr(scan, "_ENTRY", "tests.dataset.imported.conftest:open_dying")
    with pytest.raises(DatasetError, match=r"the process that read .*\.tfrecord died \(.*ended with exit status 7\)"):
        index(tmp_path, numbers(0), numbers(1), workers=2)


# --- hostile and damaged indexes ----------------------------------------------------------------------------------------


HOSTILE = [
    lambda raw: raw.update(imported=[]),
    lambda raw: raw["splits"]["train"].update(samples=7),
    lambda raw: raw["imported"].update(versions={"train": []}),
    lambda raw: raw["imported"].update(versions={}),
    lambda raw: raw["imported"].update(features={"other": "n"}),
    lambda raw: raw["imported"].pop("root"),
    lambda raw: raw["imported"].update(root="\0"),
    lambda raw: raw["splits"]["train"]["files"][0][0].update(name="%00"),
    lambda raw: raw["imported"].update(left_out=[]),
    lambda raw: raw["fields"]["n"].update(codec={"codec": "pickle"}),
]


def test_a_hostile_document_is_refused(tmp_path):
    """Its checksum is right."""
    path = index(tmp_path, numbers(*range(5))).out / "v0001/manifest.json"
    content = path.read_text()
    for edit in HOSTILE:
        document = json.loads(content)
        del document["sha256"]
        edit(document)
        path.write_text(seal(document))
        with pytest.raises(DatasetError, match=r"manifest\.json is damaged.*delete it, then run tfprep index again"):
            tfprep.open(tmp_path)


def test_what_is_lost_beside_the_index_is_made_again(tmp_path):
    """Without receipts all shards are read again; a part that is cut short, or a receipt of another shard, counts for nothing."""
    report = index(tmp_path, numbers(*range(5)), numbers(5))
    shutil.rmtree(report.out / ".tfprep")
    assert index(tmp_path).scanned == ("0.tfrecord", "1.tfrecord")
    (report.out / "tfprep.json").unlink()
    with pytest.warns(UserWarning, match="did not say how many older versions stay"):
        assert index(tmp_path).scanned == ()
    assert numbers_of(tmp_path) == list(range(6))
    shutil.rmtree(report.out / ".tfprep")
    (tmp_path / "1.tfrecord").rename(
        tmp_path / "2.tfrecord"
    )  # the split is given again: its old shards are not looked for
    assert index(tmp_path).scanned == ("0.tfrecord", "2.tfrecord")


def test_a_field_named_label_is_the_column_of_labels(tmp_path):
    """Whatever other labels there are; a text of that name gets another one beside a label."""
    index(tmp_path / "a", [serialized({"a/label": 9, "label": n}) for n in range(5)])
    data = tfprep.open(tmp_path / "a")
    assert next(iter(data.fields)) == "label"
    assert data.index("train")["label"].to_pylist() == list(range(5))
    index(tmp_path / "b", [serialized({"a/label": 9, "label": b"text"}) for _ in range(5)])
    data = tfprep.open(tmp_path / "b")
    assert list(data.fields) == ["a_label", "label_"]
    assert data.index("train")["label"].to_pylist() == [9] * 5
    index(tmp_path / "c", [serialized({"label": b"text"}) for _ in range(5)])
    data = tfprep.open(tmp_path / "c")
    assert data.index("train")["label"].to_pylist() == ["text"] * 5
    for name in "abc":
        assert list(verify(tmp_path / name)) == []
        assert len(read_all(tmp_path / name, where=None if name == "c" else pc.field("label") >= 0)) == 5


def test_a_build_in_the_folder_of_an_index_leaves_the_shards_alone(tmp_path):
    """It takes the place of the index, whose shards may be in the same folder."""
    shard = write(tmp_path / "r-train.tfrecord-00000-of-00002", numbers(*range(5)))
    content = shard.read_bytes()
    index_tfrecords(str(shard), "train", tmp_path)
    save(tmp_path / "raw/a/a.png", np.zeros((4, 4, 3), np.uint8))
    recipe = Recipe(name="r", source=sources.Folder(), store={"image": codecs.Png()}, shards={"train": 1})
    with pytest.raises(BuildError, match="holds the finished dataset"):
        build(recipe, tmp_path, tmp_path / "raw", options=BuildOptions(workers=0))
    build(recipe, tmp_path, tmp_path / "raw", options=BuildOptions(workers=0, replace=True))
    assert list(tfprep.open(tmp_path).fields) == ["image"]
    assert shard.read_bytes() == content


@pytest.mark.parametrize("ending", ["part", "part.json"])
def test_a_part_file_or_receipt_with_a_wrong_byte_is_scanned_again(tmp_path, ending):
    index(tmp_path, numbers(*range(-20, 0)))  # a receipt holds no number below 0
    (part,) = (tmp_path / "tfprep-index" / ".tfprep").glob(f"*.{ending}")
    whole, table = part.read_bytes(), (tmp_path / "tfprep-index/current/index.parquet").read_bytes()
    for at in range(0, len(whole), max(len(whole) // 12, 1)):
        part.write_bytes(whole[:at] + bytes([whole[at] ^ 4]) + whole[at + 1 :])
        assert len(index(tmp_path).scanned) == 1
        assert (tmp_path / "tfprep-index/current/index.parquet").read_bytes() == table
    part.write_bytes(b"")
    assert len(index(tmp_path).scanned) == 1
    assert index(tmp_path).scanned == ()
