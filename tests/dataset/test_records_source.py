"""Datasets as sources: what was stored comes back field by field, from built datasets and from TensorFlow's own TFRecords."""

import json
import shutil

import cv2
import numpy as np
import pytest

import tfprep
from tests.damage import flip
from tests.examples import image_bytes, serialized, write
from tests.sources.building import built, picture, write_picture
from tfprep import Recipe, augment, codecs, sources
from tfprep.builder import BuildOptions
from tfprep.dataset import Records, index_tfrecords, read_manifest
from tfprep.dataset.clean import clean
from tfprep.dataset.versions import NewVersion
from tfprep.errors import RecipeError, SourceError
from tfprep.sources.raw import parse_reference
from tfprep.storage.store import open_store

FIELDS = {"image": "image", "mask": "mask", "depth": "map", "label": "label", "boxes": "boxes", "text": "text"}
STORE = {"image": codecs.Png(), "mask": codecs.Png(), "depth": codecs.Raw(), "label": codecs.Scalar(),
         "boxes": codecs.Scalar(), "text": codecs.Text()}  # fmt: skip
COUNT = 7


def depth(sample, generator):
    """A map of floats: the mask's numbers, halved."""
    return (sample["mask"] / 2).astype(np.float32)


def value_of(number):
    """The fields of a sample; sizes differ."""
    height, width = 30 + number, 44 - number
    mask = np.indices((height, width)).sum(0).astype(np.uint8) // (number + 2)
    return {
        "image": picture(number, height, width), "mask": mask, "depth": (mask / 2).astype(np.float32), "label": number % 2,
        "boxes": np.reshape([[1, 2, 9 + n, 12] for n in range(number % 3)], (-1, 4)), "text": f"ü {number}",
    }  # fmt: skip


@pytest.fixture(scope="module")
def first(tmp_path_factory):
    """A built dataset of images of different sizes, whose variant 1 is turned."""
    root, rows = tmp_path_factory.mktemp("first"), []
    for number in range(COUNT):
        value = value_of(number)
        write_picture(root / f"{number}.png", number, *value["mask"].shape)
        cv2.imwrite(str(root / f"{number}_mask.png"), value["mask"])
        rows.append({"image": f"{number}.png", "mask": f"{number}_mask.png", "kind": ("cat", "dog")[value["label"]],
                     "boxes": value["boxes"].tolist(), "text": value["text"]})  # fmt: skip
    (root / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    source = sources.Table(
        "rows.jsonl", image="image", label="kind", splits=sources.Fractions(train=0.6, val=0.4),
        fields={"mask": ("mask", "mask"), "boxes": ("boxes", "boxes"), "text": ("text", "text")},
    )  # fmt: skip
    flipped = {"geometry": [augment.Flip(p=1.0)], "variants": {"train": 2}}
    recipe = Recipe(name="first", source=source, derive={"depth": depth}, store=STORE, **flipped)
    tfprep.build(recipe, root / "out", root, options=BuildOptions(workers=0))
    return root / "out"


@pytest.mark.parametrize(
    ("fields", "geometry", "warned"),
    [
        (("mask", "depth"), [augment.Resize(20, 20)], True),
        (("mask", "depth"), [], False),
        (("mask",), [augment.Flip()], False),
    ],
)
def test_geometry_over_maps_that_an_earlier_recipe_derived_is_a_warning(first, tmp_path, fields, geometry, warned):
    recipe = Recipe(
        name="again", source=Records({name: FIELDS[name] for name in fields}), geometry=geometry,
        store={name: STORE[name] for name in fields},
    )  # fmt: skip
    events = []
    tfprep.build(recipe, tmp_path / "out", first, options=BuildOptions(workers=0), on_event=events.append)
    texts = [event.text for event in events if event.name == "warning" and "an earlier recipe derived" in event.text]
    assert [("(depth)" in text, "derive=" in text) for text in texts] == [(True, True)] * warned


@pytest.mark.parametrize("at", ["folder", "url"])
def test_a_built_dataset_field_by_field(first, tmp_path, at):
    place = first
    if at == "url":
        pytest.importorskip("obstore")
        place = f"memory://records-{tmp_path.name}/first"
        for path in first.rglob("*"):
            if path.is_file():
                open_store(place).write(path.relative_to(first).as_posix(), path)
    fields, rejected = built(Records(FIELDS), place, tmp_path / "out", store=STORE)
    assert (rejected, set(fields)) == ({}, {f"{number}.png" for number in range(COUNT)})
    for number in range(COUNT):
        row = fields[f"{number}.png"]
        for name, value in value_of(number).items():
            np.testing.assert_array_equal(row[name], value)
    before, after = tfprep.open(first), tfprep.open(tmp_path / "out")
    assert after.classes == before.classes
    for split in before.splits:
        assert sorted(after.index(split)["key"].to_pylist()) == sorted(before.index(split)["key"].to_pylist())


def test_a_damaged_record_is_rejected(first, tmp_path):
    copy = shutil.copytree(first, tmp_path / "copy", symlinks=True)
    row = tfprep.open(first).index("train")
    flip(next(copy.glob("current/first-train.tfrecord-00000-*[0-9]")), row["offset"][0].as_py() + 60)
    fields, rejected = built(Records({"image": "image"}), copy, tmp_path / "out")
    ((key, reason),) = rejected.items()
    assert key == row["key"][0].as_py()
    assert "its checksum differs" in reason
    assert len(fields) == COUNT - 1


@pytest.mark.parametrize("at", ["folder", "url"])
def test_tfrecords_of_tensorflow(tmp_path, at):
    rng = np.random.default_rng(0)
    images = [image_bytes(rng, (20 + n, 30), "PNG") for n in range(5)]
    examples = [serialized({"image/encoded": data, "image/class/label": n % 3}) for n, data in enumerate(images)]
    write(tmp_path / "raw/train-0.tfrecord", examples)
    place = str(tmp_path / "raw")
    if at == "url":
        pytest.importorskip("obstore")
        place = f"memory://imported-{tmp_path.name}/raw"
        open_store(place).write("train-0.tfrecord", tmp_path / "raw/train-0.tfrecord")
        (tmp_path / "raw/train-0.tfrecord").unlink()
    index_tfrecords(f"{place}/train-*.tfrecord", "train", tmp_path / "index")
    kinds = {spec.kind: name for name, spec in tfprep.open(tmp_path / "index").fields.items()}
    image = kinds.pop("image")
    (label,) = kinds.values()
    source = Records({image: "image", label: next(iter(kinds))})
    store = {image: codecs.Png(), label: codecs.Scalar()}
    fields, rejected = built(source, tmp_path / "index", tmp_path / "out", store=store)
    assert (rejected, len(fields)) == ({}, 5)
    for (_, row), (number, data) in zip(sorted(fields.items()), enumerate(images), strict=True):
        expected = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR)[:, :, ::-1]
        np.testing.assert_array_equal(row[image], expected)
        assert int(row[label]) == number % 3


@pytest.mark.parametrize(
    ("fields", "options", "error", "message"),
    [
        ({"image": "picture"}, {}, RecipeError, "is one of image"),
        ({}, {}, RecipeError, "expected fields"),
        ({"image": "mask"}, {}, SourceError, r"no field 'image' of kind mask; it has image \(image\), mask \(mask\)"),
        ({"image": "image"}, {"splits": ("test",)}, SourceError, "no split 'test'"),
    ],
)
def test_wrong_options_are_named(first, fields, options, error, message):
    with pytest.raises(error, match=message):
        Records(fields, **options).scan(first)


def test_the_version_that_a_recipe_reads_stays_whatever_is_published_meanwhile(first, tmp_path):
    """Its samples are listed in a moment and read for hours."""
    out, records = shutil.copytree(first, tmp_path / "out", symlinks=True), Records({"label": "label"})
    entries = [*records.scan(out).entries, *records.scan(out / "current").entries]
    with NewVersion(out) as new:
        manifest = read_manifest(new.before.path)
        new.add_current(manifest.files)
        new.complete(manifest)
        new.publish(keep=0)
    assert {(out / parse_reference(entry.files[0]).file).parent for entry in entries} == {out / "v0001"}
    assert (out / "v0001").exists()
    del records
    clean(out, remove=True)
    assert not (out / "v0001").exists()
