"""Datasets as sources: what was stored comes back field by field, from built datasets and from TensorFlow's own TFRecords."""

import itertools
import json

import cv2
import numpy as np
import pytest

import tfprep
from tests.dataset.imported.conftest import image_bytes, serialized, write
from tests.sources.building import built, picture, rejects_of, write_picture
from tfprep import Recipe, augment, codecs, sources
from tfprep.builder import BuildOptions
from tfprep.dataset import IndexOptions, Records, index_tfrecords
from tfprep.errors import RecipeError, SourceError
from tfprep.storage.store import open_store

NAMES = ("cat", "dog")
FIELDS = {"image": "image", "mask": "mask", "depth": "map", "label": "label", "boxes": "boxes", "text": "text"}
STORE = {"image": codecs.Png(), "mask": codecs.Png(), "depth": codecs.Raw(), "label": codecs.Scalar(),
         "boxes": codecs.Scalar(), "text": codecs.Text()}  # fmt: skip
COUNT = 7
_numbers = itertools.count()


def size_of(number):
    return 30 + number, 44 - number


def mask_of(number):
    return np.indices(size_of(number)).sum(0).astype(np.uint8) // (number + 2)


@pytest.fixture(scope="module")
def first(tmp_path_factory):
    """A built dataset of images of different sizes, whose variant 1 is turned."""
    root = tmp_path_factory.mktemp("first")
    rows = []
    for number in range(COUNT):
        height, width = size_of(number)
        write_picture(root / f"{number}.png", number, height, width)
        cv2.imwrite(str(root / f"{number}_mask.png"), mask_of(number))
        boxes = [[1, 2, 9 + n, 12] for n in range(number % 3)]
        rows.append({"image": f"{number}.png", "mask": f"{number}_mask.png", "kind": NAMES[number % 2], "boxes": boxes,
                     "text": f"ü {number}"})  # fmt: skip
    (root / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    source = sources.Table(
        "rows.jsonl", image="image", label="kind", splits=sources.Fractions(train=0.6, val=0.4),
        fields={"mask": ("mask", "mask"), "boxes": ("boxes", "boxes"), "text": ("text", "text")},
    )  # fmt: skip
    recipe = Recipe(
        name="first",
        source=source,
        geometry=[augment.Flip(p=1.0)],
        variants={"train": 2},
        derive={"depth": Depth()},
        store=STORE,
    )
    tfprep.build(recipe, root / "out", root, options=BuildOptions(workers=0))
    return root / "out"


class Depth:
    """A map of floats: the mask's numbers, halved."""

    kind = "map"

    def __call__(self, sample, generator):
        return (sample["mask"] / 2).astype(np.float32)


def check(fields):
    assert set(fields) == {f"{number}.png" for number in range(COUNT)}
    for number in range(COUNT):
        row = fields[f"{number}.png"]
        np.testing.assert_array_equal(row["image"], picture(number, *size_of(number)))
        np.testing.assert_array_equal(row["mask"], mask_of(number))
        np.testing.assert_array_equal(row["depth"], (mask_of(number) / 2).astype(np.float32))
        np.testing.assert_array_equal(row["boxes"], np.reshape([[1, 2, 9 + n, 12] for n in range(number % 3)], (-1, 4)))
        assert (int(row["label"]), row["text"]) == (number % 2, f"ü {number}")


def test_a_built_dataset_field_by_field(first, tmp_path):
    fields, rejects = built(Records(FIELDS), first, tmp_path / "out", store=STORE)
    assert not rejects
    check(fields)
    before, after = tfprep.open(first), tfprep.open(tmp_path / "out")
    assert after.classes == before.classes
    for split in before.splits:
        assert sorted(after.index(split)["key"].to_pylist()) == sorted(before.index(split)["key"].to_pylist())


def test_at_a_url(first, tmp_path):
    pytest.importorskip("obstore")
    url = f"memory://records-{next(_numbers)}/first"
    for path in first.iterdir():
        if path.is_file():
            open_store(url).write(path.name, path)
    fields, rejects = built(Records(FIELDS), url, tmp_path / "out", store=STORE)
    assert not rejects
    check(fields)


def test_resized_and_encoded_anew(first, tmp_path):
    source = Records({"image": "image", "mask": "mask"}, splits=("val",))
    store = {"image": codecs.Jpeg(90), "mask": codecs.Raw()}
    fields, rejects = built(source, first, tmp_path / "out", store=store, geometry=[augment.Resize(16, 16)])
    assert not rejects
    assert {row["split"] for row in fields.values()} == {"val"}
    assert {row["image"].shape for row in fields.values()} == {(16, 16, 3)}
    assert {row["mask"].shape for row in fields.values()} == {(16, 16)}


def test_a_damaged_record_is_a_reject(first, tmp_path):
    copy = tmp_path / "copy"
    copy.mkdir()
    for path in first.iterdir():
        if path.is_file():
            (copy / path.name).write_bytes(path.read_bytes())
    row = tfprep.open(first).index("train")
    key, offset = row["key"][0].as_py(), row["offset"][0].as_py() + 60
    shard = next(copy.glob("first-train.tfrecord-00000-*[0-9]"))
    data = bytearray(shard.read_bytes())
    data[offset] ^= 1
    shard.write_bytes(data)
    fields, rejects = built(Records({"image": "image"}), copy, tmp_path / "out")
    assert set(rejects) == {key}
    assert "its checksum differs" in rejects[key]
    assert len(fields) == COUNT - 1


def test_tfrecords_of_tensorflow(tmp_path):
    rng = np.random.default_rng(0)
    images = [image_bytes(rng, (20 + n, 30), "PNG") for n in range(5)]
    write(tmp_path / "raw/train-0.tfrecord", [serialized({"image/encoded": data, "image/class/label": n % 3})
                                              for n, data in enumerate(images)])  # fmt: skip
    index_tfrecords(str(tmp_path / "raw/train-*.tfrecord"), "train", tmp_path / "index", options=IndexOptions())
    data = tfprep.open(tmp_path / "index")
    kinds = {name: spec.kind for name, spec in data.fields.items()}
    (image,) = (name for name, kind in kinds.items() if kind == "image")
    (label,) = (name for name, kind in kinds.items() if kind in ("label", "scalar"))
    store = {image: codecs.Png(), label: codecs.Scalar()}
    fields, rejects = built(
        Records({image: kinds[image], label: kinds[label]}), tmp_path / "index", tmp_path / "out", store=store
    )
    assert not rejects
    assert not rejects_of(tmp_path / "out")
    rows = sorted(fields.items())
    assert len(rows) == 5
    for (_, row), (number, data) in zip(rows, enumerate(images), strict=True):
        expected = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR)[:, :, ::-1]
        np.testing.assert_array_equal(row[image], expected)
        assert int(row[label]) == number % 3


def test_wrong_options_are_named(first):
    for options, message in (
        ({"fields": {"image": "picture"}}, "is one of image"),
        ({"fields": {}}, "expected fields"),
    ):
        with pytest.raises(RecipeError, match=message):
            Records(**options)
    with pytest.raises(SourceError, match=r"no field 'image' of kind mask; it has image \(image\), mask \(mask\)"):
        Records({"image": "mask"}).scan(first)
    with pytest.raises(SourceError, match="no split 'test'"):
        Records({"image": "image"}, splits=("test",)).scan(first)
