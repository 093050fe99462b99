"""Every kind of damage is found and mended to the bytes of before, or named."""

import json
import shutil

import numpy as np
import pytest
from PIL import Image

from tests.commands import status_of
from tfprep.builder import BuildOptions, build
from tfprep.builder.layout import Layout, locked
from tfprep.builder.repair import repair
from tfprep.dataset import IndexOptions, index_tfrecords, open_dataset
from tfprep.dataset.verify import verify
from tfprep.errors import BuildLockedError, DatasetError

TINY = """
from tfprep import Recipe, codecs, sources
RECIPE = Recipe(name="tiny", source=sources.Folder("{split}/{label}/**"),
                store={"image": codecs.Png(), "label": codecs.Scalar()}, shards={"train": 2, "val": 1}, variants={"train": 2})
"""
SHARD = "tiny-train.tfrecord-00000-of-00002"
KINDS = (
    SHARD, "tiny-train_v1.tfrecord-00000-of-00002", f"{SHARD}.idx", "tfprep.json", "index.parquet", "locations.bin",
    "rejects.jsonl", "features.json", "dataset_info.json", "croissant.json", "label.labels.txt",
)  # fmt: skip
"""A file of each kind."""


def photo(number):
    return Image.fromarray(np.random.default_rng(number).integers(0, 256, (12, 14, 3), np.uint8))


@pytest.fixture(scope="module")
def pristine(tmp_path_factory):
    """A built dataset with a reject, its raw files and its recipe. Tests copy it."""
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
    return shutil.copytree(pristine, tmp_path / "here")


def published(here):
    files = [path for path in (here / "out").iterdir() if path.is_file() and path.name != "report.html"]
    return {path.name: path.read_bytes() for path in files}


def fix(here):
    return repair(here / "out", here / "recipe.py", here / "raw", workers=0)


def flip(path, *places, bit=4):
    """Changes a bit of each of these bytes."""
    content = bytearray(path.read_bytes())
    for place in places:
        content[place] ^= bit
    path.write_bytes(content)


@pytest.mark.parametrize("name", KINDS)
def test_a_flip_in_every_kind_of_file_is_found_and_mended(copy, name):
    """`benchmarks/damage.py` makes 200 in each, and repairs them."""
    whole, path = published(copy), copy / "out" / name
    assert whole.keys() - set(KINDS) == {n for n in whole if "-of-" in n and n not in KINDS}
    rng = np.random.default_rng(0)
    for number in range(50):
        place, bit = int(rng.integers(len(whole[name]))), 1 << int(rng.integers(8))
        flip(path, place, bit=bit)
        assert name in {fault.file for fault in verify(copy / "out")}, (place, bit)
        if number < 2:
            assert name in fix(copy).mended
            assert published(copy) == whole
        path.write_bytes(whole[name])
    assert list(verify(copy / "out")) == []


def test_many_missing_files_are_mended_at_once_and_others_are_not_touched(copy):
    whole = published(copy)
    kept = copy / "out" / next(name for name in whole if "-val.tfrecord" in name and not name.endswith(".idx"))
    before = kept.stat().st_ino
    for name in whole:
        if "-train" in name or name in ("index.parquet", "features.json"):
            (copy / "out" / name).unlink()
    summary = fix(copy)
    assert (summary.lost, len(summary.mended)) == ({}, 4 * 2 + 2)
    assert (published(copy), kept.stat().st_ino) == (whole, before)


def test_a_dataset_without_the_notes_of_its_build_is_mended_from_the_raw_files(copy):
    whole = published(copy)
    shutil.rmtree(copy / "out/.tfprep")
    for name in ("index.parquet", "rejects.jsonl"):
        (copy / "out" / name).write_bytes(b"")
    assert fix(copy).lost == {}
    (copy / "out/tfprep.json").unlink()
    shutil.rmtree(copy / "out/.tfprep")
    assert fix(copy).lost == {}
    assert published(copy) == whole


def test_damaged_notes_of_a_build_never_get_into_the_dataset(copy):
    """A flipped bit in a receipt, or in the rows that belong to it, and an index that has to be made from them."""
    whole, rng = published(copy), np.random.default_rng(2)
    for name in ("train-00000.json", "train-00000.contents.json"):
        path = copy / "out/.tfprep/receipts" / name
        flip(path, int(rng.integers(path.stat().st_size)), bit=1 << int(rng.integers(8)))
        (copy / "out/index.parquet").unlink()
        assert fix(copy).lost == {}
        assert published(copy) == whole
        build(copy / "recipe.py", copy / "out", copy / "raw", options=BuildOptions(workers=0))
        assert published(copy) == whole


# --- without the raw files, or with others ---------------------------------------------------------------------------------


def test_without_raw_files_the_rest_is_mended_and_the_loss_named(copy):
    flip(copy / "out" / SHARD, 40)  # in the first record
    for name in ("index.parquet", "features.json", "label.labels.txt"):
        (copy / "out" / name).unlink()
    shutil.rmtree(copy / "raw")
    summary = repair(copy / "out")
    assert set(summary.mended) == {"index.parquet", "features.json", "label.labels.txt"}
    assert list(summary.lost) == [SHARD]
    assert "needs the raw files and the recipe" in summary.lost[SHARD] or "SHA-256" in summary.lost[SHARD]
    assert summary.lost_samples == (open_dataset(copy / "out").index("train")["key"][0].as_py(),)


def test_lengths_and_checksums_of_records_follow_from_the_index(copy):
    """No raw files are needed for the 16 bytes around a payload, nor for bytes after the last record."""
    row, path = open_dataset(copy / "out").index("train").to_pylist()[1], copy / "out" / SHARD
    before = path.read_bytes()
    flip(path, *(row["offset"] + place for place in (3, 9, row["size"] - 1)))
    path.write_bytes(path.read_bytes() + b"more")
    shutil.rmtree(copy / "raw")
    assert repair(copy / "out").mended == (SHARD,)
    assert path.read_bytes() == before


def test_without_raw_files_an_index_opens_the_records_that_are_intact(copy):
    """The command of docs/inspect.md and of `tfprep repair`, which needs no manifest."""
    data = open_dataset(copy / "out")
    images, row = [sample["image"] for sample in data.samples("train")], data.index("train").to_pylist()[1]
    path = copy / "out" / data.file("train", 0, row["shard"]).name
    flip(path, row["offset"] + row["size"] // 2)
    (copy / "out/tfprep.json").unlink()
    options = IndexOptions(verify=True, on_bad="skip")
    index_tfrecords(copy / "out/tiny-train.tfrecord-*-of-?????", "train", copy / "rest", options=options)
    left = [sample["image"] for sample in open_dataset(copy / "rest").samples("train")]
    assert len(left) == len(images) - 1 == 6
    assert all(np.array_equal(one, other) for one, other in zip(left, [images[0], *images[2:]], strict=True))
    (line,) = map(json.loads, (copy / "rest/rejects.jsonl").read_text().splitlines())
    assert (line["shard"], line["offset"]) == (path.name, row["offset"])


def test_other_raw_files_and_another_recipe_do_not_get_in(copy):
    (copy / "out" / SHARD).write_bytes(b"")
    recipe = copy / "recipe.py"
    recipe.write_text(TINY.replace("codecs.Png()", "codecs.Jpeg(50)"))
    assert "the recipe is another one: store['image']" in fix(copy).lost[SHARD]
    recipe.write_text(TINY)
    for path in (copy / "raw/train").rglob("?.png"):
        photo(int(path.stem) + 50).save(path)
    assert "built again with other bytes: the raw files have changed since the build" in fix(copy).lost[SHARD]
    assert (copy / "out" / SHARD).read_bytes() == b""


def test_what_cannot_be_repaired_at_all(tmp_path, copy):
    with pytest.raises(DatasetError, match=r"needs the raw files and the recipe"):
        repair(tmp_path)
    (copy / "out/features.json").unlink()
    with locked(Layout(copy / "out")), pytest.raises(BuildLockedError):
        fix(copy)


def test_the_command(copy, capsys):
    (copy / "out/features.json").unlink()
    for expected in (["features.json"], []):
        assert status_of("repair", copy / "out", copy / "recipe.py", "--data", copy / "raw", "--json") == 0
        assert json.loads(capsys.readouterr().out)["mended"] == expected
