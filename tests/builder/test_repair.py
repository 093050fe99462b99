"""Every kind of damage is found and mended to the bytes of before, or named."""

import json
import shutil

import numpy as np
import pytest
from PIL import Image

from tfprep.builder import BuildOptions, build
from tfprep.builder.layout import Layout, locked
from tfprep.builder.repair import repair
from tfprep.cli import main
from tfprep.dataset import IndexOptions, index_tfrecords, open_dataset
from tfprep.dataset.verify import verify
from tfprep.errors import BuildLockedError, DatasetError

TINY = """
from tfprep import Recipe, codecs, sources
RECIPE = Recipe(name="tiny", source=sources.Folder("{split}/{label}/**"),
                store={"image": codecs.Png(), "label": codecs.Scalar()}, shards={"train": 2, "val": 1}, variants={"train": 2})
"""


@pytest.fixture(scope="module")
def pristine(tmp_path_factory, photo):
    """A built dataset with a reject, its raw files and its recipe. Tests copy it."""
    root = tmp_path_factory.mktemp("pristine")
    for number in range(9):
        path = root / "raw" / ("val" if number > 6 else "train") / "ab"[number % 2] / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(photo(number)).save(path)
    (root / "raw" / "train" / "a" / "broken.png").write_bytes(b"no image")
    (root / "recipe.py").write_text(TINY)
    build(root / "recipe.py", root / "out", root / "raw", options=BuildOptions(workers=0))
    return root


@pytest.fixture(scope="module")
def photo():
    return lambda number: np.random.default_rng(number).integers(0, 256, (12, 14, 3), np.uint8)


@pytest.fixture
def copy(pristine, tmp_path):
    shutil.copytree(pristine, tmp_path / "here")
    return tmp_path / "here"


def published(out):
    skipped = {"report.html"}
    return {path.name: path.read_bytes() for path in out.iterdir() if path.is_file() and path.name not in skipped}


def kinds(names):
    """One file name of each kind."""
    return {
        "shard": next(name for name in names if name.endswith("-of-00002")),
        "variant": next(name for name in names if "_v1" in name and name.endswith("-of-00002")),
        "text index": next(name for name in names if name.endswith(".idx")),
        **{name: name for name in names if ".tfrecord" not in name},
    }


def fix(here, **options):
    return repair(here / "out", here / "recipe.py", here / "raw", workers=0, **options)


def test_flips_in_every_kind_of_file_are_found(copy):
    """`benchmarks/damage.py` makes 200 in each, and repairs them."""
    whole = published(copy / "out")
    assert list(verify(copy / "out")) == []
    rng = np.random.default_rng(0)
    for kind, name in kinds(whole).items():
        content, path = whole[name], copy / "out" / name
        for _ in range(25):
            place, bit = int(rng.integers(len(content))), int(rng.integers(8))
            path.write_bytes(content[:place] + bytes([content[place] ^ 1 << bit]) + content[place + 1 :])
            assert any(verify(copy / "out")), (kind, place, bit)
        path.write_bytes(content)
    assert list(verify(copy / "out")) == []


def test_every_kind_of_file_is_mended(copy):
    whole = published(copy / "out")
    names = kinds(whole)
    assert {
        "tfprep.json",
        "index.parquet",
        "rejects.jsonl",
        "features.json",
        "dataset_info.json",
        "label.labels.txt",
    } <= names.keys()
    rng = np.random.default_rng(1)
    for name in [*names.values(), *names.values()]:
        path, content = copy / "out" / name, whole[name]
        if content:
            place = int(rng.integers(len(content)))
            path.write_bytes(content[:place] + bytes([content[place] ^ 4]) + content[place + 1 :])
            assert name in fix(copy).mended
            assert published(copy / "out") == whole


def test_many_missing_files_are_mended_at_once_and_others_are_not_touched(copy):
    whole = published(copy / "out")
    kept = copy / "out" / next(name for name in whole if "-val.tfrecord" in name and not name.endswith(".idx"))
    before = kept.stat().st_ino
    for name in whole:
        if "-train" in name or name in ("index.parquet", "features.json"):
            (copy / "out" / name).unlink()
    summary = fix(copy)
    assert not summary.lost
    assert len(summary.mended) == 4 * 2 + 2
    assert published(copy / "out") == whole
    assert kept.stat().st_ino == before


def test_a_dataset_without_the_notes_of_its_build_is_mended_from_the_raw_files(copy):
    whole = published(copy / "out")
    shutil.rmtree(copy / "out" / ".tfprep")
    for name in ("index.parquet", "rejects.jsonl"):
        (copy / "out" / name).write_bytes(b"")
    assert fix(copy).lost == {}
    (copy / "out" / "tfprep.json").unlink()
    shutil.rmtree(copy / "out" / ".tfprep")
    assert fix(copy).lost == {}
    assert published(copy / "out") == whole


def test_without_raw_files_the_rest_is_mended_and_the_loss_named(copy):
    whole = published(copy / "out")
    shard = kinds(whole)["shard"]
    content = bytearray(whole[shard])
    content[40] ^= 1  # in the first record
    (copy / "out" / shard).write_bytes(content)
    for name in ("index.parquet", "features.json", "label.labels.txt"):
        (copy / "out" / name).unlink()
    shutil.rmtree(copy / "raw")
    summary = repair(copy / "out")
    assert set(summary.mended) == {"index.parquet", "features.json", "label.labels.txt"}
    assert list(summary.lost) == [shard]
    assert "needs the raw files and the recipe" in summary.lost[shard] or "SHA-256" in summary.lost[shard]
    assert summary.lost_samples == (open_dataset(copy / "out").index("train")["key"][0].as_py(),)


def test_lengths_and_checksums_of_records_follow_from_the_index(copy):
    """No raw files are needed for the 16 bytes around a payload, nor for bytes after the last record."""
    data = open_dataset(copy / "out")
    path, row = copy / "out" / data.file("train", 0, 0).name, data.index("train").to_pylist()[1]
    content = bytearray(before := path.read_bytes())
    for place in (3, 9, row["size"] - 1):
        content[row["offset"] + place] ^= 4
    path.write_bytes(content + b"more")
    shutil.rmtree(copy / "raw")
    summary = repair(copy / "out")
    assert summary.mended == (path.name,)
    assert path.read_bytes() == before


def test_without_raw_files_an_index_opens_the_records_that_are_intact(copy):
    """The command of docs/inspect.md and of `tfprep repair`, which needs no manifest."""
    data = open_dataset(copy / "out")
    images = [sample["image"] for sample in data.samples("train")]
    row = data.index("train").to_pylist()[1]
    path = copy / "out" / data.file("train", 0, row["shard"]).name
    content = bytearray(path.read_bytes())
    content[row["offset"] + row["size"] // 2] ^= 4
    path.write_bytes(content)
    (copy / "out" / "tfprep.json").unlink()
    options = IndexOptions(verify=True, on_bad="skip")
    index_tfrecords(copy / "out" / "tiny-train.tfrecord-*-of-?????", "train", copy / "rest", options=options)
    left = [sample["image"] for sample in open_dataset(copy / "rest").samples("train")]
    assert len(left) == len(images) - 1 == 6
    assert all(np.array_equal(one, other) for one, other in zip(left, [images[0], *images[2:]], strict=True))
    (line,) = (copy / "rest" / "rejects.jsonl").read_text().splitlines()
    assert (json.loads(line)["shard"], json.loads(line)["offset"]) == (path.name, row["offset"])


def test_raw_files_that_have_changed_do_not_get_in(copy, photo):
    whole = published(copy / "out")
    shard = kinds(whole)["shard"]
    (copy / "out" / shard).write_bytes(b"")
    for path in (copy / "raw" / "train").rglob("?.png"):
        Image.fromarray(photo(int(path.stem) + 50)).save(path)
    summary = fix(copy)
    assert "built again with other bytes: the raw files have changed since the build" in summary.lost[shard]
    assert (copy / "out" / shard).read_bytes() == b""


def test_another_recipe_is_named(copy):
    shard = kinds(published(copy / "out"))["shard"]
    (copy / "out" / shard).unlink()
    (copy / "recipe.py").write_text(TINY.replace("codecs.Png()", "codecs.Jpeg(50)"))
    assert "the recipe is another one: store['image']" in fix(copy).lost[shard]


def test_what_cannot_be_repaired_at_all(tmp_path, copy):
    with pytest.raises(DatasetError, match=r"needs the raw files and the recipe"):
        repair(tmp_path)
    (copy / "out" / "features.json").unlink()
    with locked(Layout(copy / "out")), pytest.raises(BuildLockedError):
        fix(copy)


def test_the_command(copy, capsys):
    (copy / "out" / "features.json").unlink()
    for expected in (["features.json"], []):
        with pytest.raises(SystemExit) as stopped:
            main(["repair", str(copy / "out"), str(copy / "recipe.py"), "--data", str(copy / "raw"), "--json"])
        assert stopped.value.code == 0
        assert json.loads(capsys.readouterr().out)["mended"] == expected


def test_damaged_notes_of_a_build_never_get_into_the_dataset(copy):
    """A flipped bit in a receipt, or in the rows that belong to it, and an index that has to be made from them."""
    whole, rng = published(copy / "out"), np.random.default_rng(2)
    for pattern in ("train-00000.json", "train-00000.contents.json"):
        path = copy / "out" / ".tfprep" / "receipts" / pattern
        content = path.read_bytes()
        place = int(rng.integers(len(content)))
        path.write_bytes(content[:place] + bytes([content[place] ^ 1 << int(rng.integers(8))]) + content[place + 1 :])
        (copy / "out" / "index.parquet").unlink()
        assert fix(copy).lost == {}
        assert published(copy / "out") == whole
        build(copy / "recipe.py", copy / "out", copy / "raw", options=BuildOptions(workers=0))
        assert published(copy / "out") == whole
