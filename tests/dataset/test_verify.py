"""Verification: a whole dataset has no fault, and every kind of damage is named where it is."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tfprep import Recipe, codecs, sources
from tfprep.build import BuildOptions, build
from tfprep.cli import main
from tfprep.dataset import Dataset
from tfprep.dataset.verify import verify


@pytest.fixture(scope="session")
def whole(tmp_path_factory) -> Path:
    root = tmp_path_factory.mktemp("verify")
    draws = np.random.default_rng(0)
    for number in range(12):
        path = root / "raw" / f"{number}.png"
        path.parent.mkdir(exist_ok=True)
        Image.fromarray(draws.integers(0, 256, (9, 11, 3), np.uint8)).save(path)
    recipe = Recipe(
        name="r", source=sources.Folder("**"), store={"image": codecs.Png()}, variants={"train": 2}, shards={"train": 2}
    )
    build(recipe, root / "out", root / "raw", options=BuildOptions(workers=0))
    return root / "out"


@pytest.fixture
def copy(whole, tmp_path) -> Path:
    return Path(shutil.copytree(whole, tmp_path / "copy"))


SHARD = "r-train_v1.tfrecord-00001-of-00002"


def test_a_whole_dataset_has_no_fault(whole):
    assert list(verify(Dataset.open(whole))) == []


def flip(path: Path, offset: int) -> None:
    data = bytearray(path.read_bytes())
    data[offset] ^= 1
    path.write_bytes(data)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-5])


@pytest.mark.parametrize(
    ("damage", "faults"),
    [
        (lambda folder: (folder / SHARD).unlink(), [(SHARD, False, "missing")]),
        (
            lambda folder: flip(folder / SHARD, 40),
            [(SHARD, False, "SHA-256"), (SHARD, True, "checksum of the payload")],
        ),
        (lambda folder: flip(folder / SHARD, 0), [(SHARD, False, "SHA-256"), (SHARD, True, "checksum of the length")]),
        (lambda folder: cut(folder / SHARD), [(SHARD, False, "were written"), (SHARD, True, "cut short")]),
        (lambda folder: cut(folder / f"{SHARD}.idx"), [(f"{SHARD}.idx", False, "")]),
        (lambda folder: (folder / f"{SHARD}.idx").unlink(), [(f"{SHARD}.idx", False, "No such file")]),
    ],
    ids=["missing", "payload", "length", "cut", "index cut", "index missing"],
)
def test_every_damage_is_named_where_it_is(copy, damage, faults):
    damage(copy)
    found = list(verify(Dataset.open(copy)))
    assert [(fault.file, fault.offset is not None) for fault in found] == [(file, at) for file, at, _ in faults]
    for fault, (_, _, reason) in zip(found, faults, strict=True):
        assert reason in fault.reason


def test_the_command_tells_and_the_exit_status_agrees(copy, capsys):
    with pytest.raises(SystemExit) as caught:
        main(["verify", str(copy)])
    assert caught.value.code == 0
    flip(copy / SHARD, 40)
    with pytest.raises(SystemExit) as caught:
        main(["verify", str(copy)])
    assert caught.value.code == 1
    assert f"{SHARD}, byte 0: wrong checksum of the payload" in capsys.readouterr().out
