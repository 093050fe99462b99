"""Every kind of damage is found by `verify`, and `build --verify` makes the bytes of before again."""

import json
import os
import shutil

import numpy as np
import pytest
from PIL import Image

from tests.commands import status_of
from tests.damage import flip
from tfprep.builder import BuildOptions, build, plan_build
from tfprep.dataset import index_tfrecords, open_dataset
from tfprep.dataset.verify import verify
from tfprep.storage.local import whole_folder

TINY = """
from tfprep import Recipe, codecs, sources
RECIPE = Recipe(name="tiny", source=sources.Folder("{split}/{label}/**"),
                store={"image": codecs.Png(), "label": codecs.Scalar()}, shards={"train": 2, "val": 1}, variants={"train": 2})
"""
SHARD = "tiny-train.tfrecord-00000-of-00002"
KINDS = (
    SHARD, "tiny-train_v1.tfrecord-00000-of-00002", f"{SHARD}.idx", "manifest.json", "index.parquet", "locations.bin",
    "rejects.jsonl", "features.json", "dataset_info.json", "label.labels.txt",
)  # fmt: skip
"""A file of each kind."""


FLIPS = 20 * int(os.environ.get("TFPREP_TEST_KILLS", "1"))  # ten times as many in the nightly run


def photo(number):
    return Image.fromarray(np.random.default_rng(number).integers(0, 256, (12, 14, 3), np.uint8))


@pytest.fixture(scope="module")
def pristine(tmp_path_factory):
    """A built dataset with a rejected sample, its raw files and its recipe. Tests copy it."""
    root = tmp_path_factory.mktemp("pristine")
    for number in range(9):
        path = root / "raw" / ("val" if number > 6 else "train") / "ab"[number % 2] / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        photo(number).save(path)
    (root / "raw/train/a/broken.png").write_bytes(b"no image")
    (root / "recipe.py").write_text(TINY)
    build(root / "recipe.py", root / "out", root / "raw", options=BuildOptions(workers=0))
    return root


@pytest.fixture
def copy(pristine, tmp_path):
    return shutil.copytree(pristine, tmp_path / "here", symlinks=True)


def published(here):
    files = [path for path in open_dataset(here / "out").path.iterdir() if path.name != "report.html"]
    return {path.name: path.read_bytes() for path in files}


def fix(here):
    return build(here / "recipe.py", here / "out", here / "raw", options=BuildOptions(workers=0, verify=True))


@pytest.mark.parametrize("name", KINDS)
def test_a_flip_in_every_kind_of_file_is_found_and_mended(copy, name):
    whole = published(copy)
    assert whole.keys() - set(KINDS) == {n for n in whole if "-of-" in n and n not in KINDS}
    rng, path = np.random.default_rng(0), copy / "out/current" / name
    for number in range(FLIPS):
        place, bit = int(rng.integers(len(whole[name]))), 1 << int(rng.integers(8))
        flip(path, place, bit=bit)
        assert name in {fault.file for fault in verify(copy / "out")}, (place, bit)
        if number % 20 == 19:
            assert fix(copy).built_shards == (".tfrecord" in name)
            assert published(copy) == whole
            assert list(verify(copy / "out")) == []
        path.write_bytes(whole[name])


def test_a_dataset_without_the_notes_of_its_build_or_its_pointer(copy):
    whole = published(copy)
    (copy / "out/tfprep.json").write_text("{")
    assert fix(copy).built_shards == 0
    assert published(copy) == whole
    shutil.rmtree(copy / "out/.tfprep")
    (copy / "out/tfprep.json").unlink()
    assert fix(copy).built_shards == 3
    assert published(copy) == whole


def test_an_export_inside_of_the_dataset_does_not_stop_builds(copy):
    """Its folder, which a killed export leaves too, is not a file of the build."""
    whole = published(copy)
    with whole_folder(copy / "out/exported") as folder:
        (folder / "data.tar").write_bytes(b"1")
        fix(copy)
    assert (copy / "out/exported/data.tar").read_bytes() == b"1"
    assert published(copy) == whole


def test_damaged_notes_of_a_build_never_get_into_the_dataset(copy):
    """A flipped bit in a receipt, or in the rows that belong to it, or no rows, or those of another shard, and an index that has
    to be made from them."""
    whole, rng, path = published(copy), np.random.default_rng(2), copy / "out/.tfprep/receipts/train-00000.json"
    for part in ("receipt", "rows", "no rows", "other rows"):
        lines = path.read_bytes().splitlines(keepends=True)
        head, size = sum(map(len, lines[:2])), path.stat().st_size
        if part == "no rows":
            os.truncate(path, head)
        elif part == "other rows":
            other = path.with_name("train-00001.json").read_bytes().splitlines(keepends=True)
            path.write_bytes(b"".join(lines[:2] + other[2:]))
        else:
            start, stop = (0, head) if part == "receipt" else (head, size)
            flip(path, int(rng.integers(start, stop)), bit=1 << int(rng.integers(8)))
        (copy / "out/current/index.parquet").unlink()
        assert fix(copy).built_shards == 1
        assert published(copy) == whole


@pytest.mark.parametrize("change", [(b'"variants": 2', b'"variants": 3'), (b'"indexed"', b'"indexes"'), (b"{", b"[] ")])
def test_a_damaged_note_of_a_recipe_says_nothing(copy, change):
    for note in (copy / "out/.tfprep/recipes").iterdir():
        content = note.read_bytes()
        note.write_bytes(content.replace(*change, 1))
    (copy / "recipe.py").write_text(TINY.replace("codecs.Png()", "codecs.Raw()"))
    states = plan_build(copy / "recipe.py", copy / "out", copy / "raw")
    assert {state.why for state in states if state.split == "train"} == {"the recipe or the classes changed"}


def test_a_pointer_that_was_set_back_by_hand_mixes_no_versions(copy):
    """Shards of both versions have equal names and sizes. Receipts are those of the later version."""
    recipe = copy / "recipe.py"
    recipe.write_text(TINY.replace("codecs.Png()", "codecs.Raw()").replace("variants=", "seed=1, variants="))
    fix(copy)
    first = published(copy)
    recipe.write_text(
        recipe.read_text()
        .replace("RECIPE =", "from tfprep import augment\nRECIPE =")
        .replace("store=", "geometry=[augment.Flip(p=1.0)], store=")
    )
    fix(copy)
    second = published(copy)
    of_variant = KINDS[1]
    assert first[of_variant] != second[of_variant]
    assert len(first[of_variant]) == len(second[of_variant])
    opened = open_dataset(copy / "out")  # so that the version stays in its place
    (copy / "out/tfprep.json").write_text('{"version": 2}')
    build(recipe, copy / "out", copy / "raw", options=BuildOptions(workers=0))
    assert published(copy) == second
    assert list(verify(copy / "out")) == []
    assert opened.version.number == 3


def test_without_raw_files_an_index_opens_the_records_that_are_intact(copy):
    """The command of docs/inspect.md, which needs no manifest."""
    data = open_dataset(copy / "out")
    images, row = [sample["image"] for sample in data.samples("train")], data.index("train").to_pylist()[1]
    path = data.path / data.file("train", 0, row["shard"]).name
    flip(path, row["offset"] + row["size"] // 2)
    (data.path / "manifest.json").unlink()
    index_tfrecords(copy / "out/current/tiny-train.tfrecord-*-of-?????", "train", copy / "rest", on_bad="skip")
    left = [sample["image"] for sample in open_dataset(copy / "rest").samples("train")]
    assert len(left) == len(images) - 1 == 6
    assert all(np.array_equal(one, other) for one, other in zip(left, [images[0], *images[2:]], strict=True))
    (line,) = map(json.loads, (copy / "rest/current/rejects.jsonl").read_text().splitlines())
    assert (line["shard"], line["offset"]) == (path.name, row["offset"])


def test_the_command(copy, capsys):
    flip(copy / "out/v0001" / SHARD, 40)
    for built in (1, 0):
        paths = f"{copy}/recipe.py --out {copy}/out --data {copy}/raw"
        assert status_of(f"tfprep build {paths} --verify --json --workers 0") == 0
        assert json.loads(capsys.readouterr().out)["built_shards"] == built
