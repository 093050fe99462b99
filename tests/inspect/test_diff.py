"""Differences between two builds, against what was done to the raw files."""

import json
import shutil

import pytest
from PIL import Image

from tests.commands import status_of
from tests.examples import write
from tests.photos import natural, save
from tfprep import augment, codecs, sources
from tfprep.dataset import index_tfrecords, open_dataset
from tfprep.errors import DatasetError
from tfprep.inspect.diff import compare

tf = pytest.importorskip("tensorflow")


@pytest.fixture(scope="module")
def before(tmp_path_factory, build_folder):
    """12 training and 4 validation pictures of two classes, built with two variants."""
    root = tmp_path_factory.mktemp("before")
    for number in range(16):
        split = "train" if number < 12 else "val"
        save(root / "raw" / split / "ab"[number % 2] / f"{number:02d}.png", natural(number, 32, 40))
    build_folder(root / "raw", root / "out", variants={"train": 2})
    return root


def rebuilt(before, tmp_path, build_folder, change=lambda raw: None, **options):
    shutil.copytree(before / "raw", tmp_path / "raw")
    change(tmp_path / "raw")
    build_folder(tmp_path / "raw", tmp_path / "out", **{"variants": {"train": 2}, **options})
    return compare(open_dataset(before / "out"), open_dataset(tmp_path / "out"))


def counts(difference):
    kinds = ("added", "removed", "raw_changed", "recipe_changed")
    return {kind: getattr(difference, kind).count for kind in kinds if getattr(difference, kind).count}


def test_builds_of_equal_files_are_equal(before, tmp_path, build_folder):
    difference = rebuilt(before, tmp_path, build_folder, shards={"train": 3})
    assert difference.equal
    assert counts(difference) == {}
    assert difference.recipe, "the recipe differs, and no record does"


def test_every_kind_of_change_of_the_raw_files(before, tmp_path, build_folder):
    def change(raw):
        (raw / "train/a/00.png").unlink()
        Image.fromarray(natural(99, 32, 40)).save(raw / "train/b/01.png")
        Image.fromarray(natural(98, 32, 40)).save(raw / "val/a/new.png")
        (raw / "train/a/02.png").rename(raw / "train/a/other.png")

    difference = rebuilt(before, tmp_path, build_folder, change)
    assert not difference.equal
    assert set(difference.added.keys) == {"val/a/new.png", "train/a/other.png"}
    assert set(difference.removed.keys) == {"train/a/00.png", "train/a/02.png"}
    assert difference.raw_changed.keys == ("train/b/01.png",)
    assert difference.recipe_changed.count == 0
    assert difference.samples == {"train": (12, 11), "val": (4, 5)}


def test_a_change_of_the_recipe_is_told_from_one_of_the_files(before, tmp_path, build_folder):
    store = {"image": codecs.Jpeg(90), "label": codecs.Scalar()}
    difference = rebuilt(before, tmp_path, build_folder, store=store, variants={"train": 3})
    assert counts(difference) == {"recipe_changed": 16}
    assert difference.variants == {"train": (2, 3)}
    assert list(difference.fields) == ["image"]
    assert "jpeg" in difference.fields["image"][1]
    assert any("store" in change for change in difference.recipe)
    other = build_folder(before / "raw", tmp_path / "color", variants={"train": 2}, color=[augment.Brightness(0.5)])
    difference = compare(open_dataset(before / "out"), open_dataset(other))
    assert counts(difference) == {"recipe_changed": 12}, "variant 0 is not augmented, and val has no other"


def test_other_class_names_are_a_difference(make_dataset):
    """The numbers in the records are the same, and mean something else."""
    one, other = (make_dataset(name, samples={"train": 2}, fields=["label"]) for name in ("one", "other"))
    other.seal(lambda document: document["classes"].update(label=["dog", "cat", "owl"]))
    difference = compare(open_dataset(one.path), open_dataset(other.path))
    assert not difference.equal
    assert list(difference.fields) == ["label"]


def test_moves_between_splits(before, tmp_path, build_folder):
    def at(seed):
        return sources.Folder("*/{label}/**", splits=sources.Fractions(train=0.5, val=0.5, seed=seed))

    for seed in (0, 1):
        build_folder(before / "raw", tmp_path / f"out{seed}", source=at(seed))
    split_of = [{entry.key: entry.split for entry in at(seed).scan(before / "raw").entries} for seed in (0, 1)]
    expected = {}
    for key, split in split_of[0].items():
        if split_of[1][key] != split:
            expected.setdefault(f"{split} -> {split_of[1][key]}", set()).add(key)
    difference = compare(open_dataset(tmp_path / "out0"), open_dataset(tmp_path / "out1"))
    assert expected
    assert {where: set(listed.keys) for where, listed in difference.moved.items()} == expected
    assert counts(difference) == {}


def test_the_command(before, tmp_path, build_folder, capsys):
    rebuilt(before, tmp_path, build_folder, lambda raw: (raw / "val/b/13.png").unlink())
    assert status_of("diff", before / "out", tmp_path / "out", "--json") == 4
    result = json.loads(capsys.readouterr().out)
    assert result["removed"] == {"count": 1, "keys": ["val/b/13.png"]}
    assert status_of("diff", before / "out", tmp_path / "out") == 4
    assert "removed: 1 sample: val/b/13.png" in capsys.readouterr().out
    assert status_of("diff", before / "out", before / "out") == 0
    assert capsys.readouterr().out == "Both hold the same samples and records.\n"


def test_imported_tfrecords_are_compared_by_their_records(before, indexed, tmp_path):
    first = indexed
    second = shutil.copytree(first, tmp_path / "second", symlinks=True)
    records = [record.numpy() for record in tf.data.TFRecordDataset(str(first / "train-00000.tfrecord"))]
    write(second / "train-00000.tfrecord", [records[0], records[2], records[2]])
    index_tfrecords(str(second / "train-*.tfrecord"), "train", workers=0)
    difference = compare(open_dataset(first), open_dataset(second))
    assert counts(difference) == {"removed": 1, "raw_changed": 1}
    assert difference.removed.keys == ("train-00000.tfrecord#3",)
    assert difference.raw_changed.keys == ("train-00000.tfrecord#1",)
    assert compare(open_dataset(first), open_dataset(first)).equal
    with pytest.raises(DatasetError, match="Two imported datasets can be compared, and so can two that were built"):
        compare(open_dataset(first), open_dataset(before / "out"))
