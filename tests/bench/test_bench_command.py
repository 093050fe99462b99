"""`tfprep bench` on the command line: exit statuses, JSON, wrong usage."""

import dataclasses
import json
import os
import re
import shutil
from pathlib import Path

import pytest

from tests.commands import status_of
from tfprep.bench.run import bench
from tfprep.cli.options import named
from tfprep.errors import DatasetError, LoaderError

QUICK = ["--rounds", "1", "--seconds", "0.1", "--batch-size", "8", "--threads", "1", "--cache", "none"]


def test_exit_status_if_the_step_waits(raw_data, capfd, slow_reads):
    """Batches of 8 records take 8 ms each: a step of 1 µs waits for them."""
    slow_reads(0.001)
    given = [*QUICK, "--step-ms", "0.001", "--fail-if-waiting", "30%"]
    assert status_of("bench", str(raw_data.path), *given, "--json") == 4
    document = json.loads(capfd.readouterr().out)
    assert document["step"]["share"] > 0.3
    assert document["settings"]["cache"] == {"kind": "none"}


def test_a_memory_budget_applies_to_the_measured_loader(jpeg_data, capfd):
    options = ["--rounds", "1", "--seconds", "0.1", "--batch-size", "4", "--json"]
    assert status_of("bench", str(jpeg_data.path), *options) == 0
    assert json.loads(capfd.readouterr().out)["settings"]["cache"]["kind"] == "decoded"
    batch = 4 * jpeg_data.fields["image"].shape[0] * jpeg_data.fields["image"].shape[1] * 3 + 4096
    assert status_of("bench", str(jpeg_data.path), *options, "--memory-budget", str(batch * 6)) == 0
    settings = json.loads(capfd.readouterr().out)["settings"]
    assert settings["memory"]["budget_bytes"] == batch * 6
    assert settings["cache"]["kind"] == "none"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--fail-if-waiting", "1%"], "needs a step"),
        (["--step-ms", "0"], "0"),
        (["--fail-if-waiting", "200%", "--step-ms", "5"], "expected a share such as 1% or 0.01, not '200%'"),
        (["--batch-size", "0"], "'--batch-size': 0 is not in the range"),
        (["--forms", "--batch-size", "8"], "--batch-size does nothing with --forms"),
        (["--samples", "20"], "--samples belongs to --forms"),
        (["--inputs", "image"], "--inputs belongs to --model"),
    ],
)
def test_wrong_usage(capfd, arguments, message):
    assert status_of("bench", "nowhere", *arguments) == 2
    assert message in capfd.readouterr().err


def test_a_folder_without_a_dataset(tmp_path, capfd):
    assert status_of("bench", str(tmp_path)) == 1
    assert "it is not a dataset built by tfprep" in capfd.readouterr().err


@pytest.fixture
def copy(raw_data, tmp_path):
    """A copy of the dataset, to be damaged."""
    return Path(shutil.copytree(raw_data.path, tmp_path / "copy"))


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (Path.unlink, r"train.* cannot be opened \(No such file or directory\); is the dataset complete"),
        (lambda path: os.truncate(path, 9), r"holds 9 bytes, manifest\.json says \d+; copy the file again"),
    ],
)
def test_a_shard_that_is_missing_or_cut_short_is_named(copy, capfd, damage, message):
    damage(min(path for path in copy.rglob("*.tfrecord-*") if path.suffix != ".idx"))
    assert status_of("bench", str(copy), *QUICK) == 1
    assert re.search(message, capfd.readouterr().err)


def test_a_split_without_samples(raw_data, monkeypatch):
    empty = dataclasses.replace(raw_data.split("train"), samples=0, files=())
    monkeypatch.setattr(type(raw_data), "split", lambda self, name: empty)
    with pytest.raises(DatasetError, match="split 'train' has no sample; available: train"):
        bench(raw_data)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("nothing", "expected file.py:name"),
        ("a.module:f", "expected file.py:name, not 'a.module:f'; a file may import"),
        ("missing.py:f", "no such file"),
        (f"{__file__}:nothing", "has no 'nothing'"),
    ],
)
def test_unknown_names(text, message):
    with pytest.raises(LoaderError, match=message):
        named(text)


def test_a_function_by_its_file(tmp_path):
    (tmp_path / "mine.py").write_text("def double(x):\n    return 2 * x\n")
    assert named(f"{tmp_path / 'mine.py'}:double")(4) == 8


def test_against_a_pipeline_of_the_user(raw_data, tmp_path, monkeypatch, capfd):
    (tmp_path / "earlier.py").write_text(
        "import time, numpy as np\n\ndef batches():\n    for _ in range(3):  # an epoch\n        time.sleep(0.02)\n"
        "        yield {'image': np.zeros((8, 4, 4, 3), 'uint8')}\n\n"
        "def none():\n    return []\n\ndef nothing():\n    batches()\n\nsize = 8\n"
        "def image():\n    return np.zeros((9, 4, 4, 3), 'uint8')\n"
    )
    name = f"{tmp_path / 'earlier.py'}:batches"
    assert status_of("bench", str(raw_data.path), *QUICK, "--json", "--batch-size", "8", *["--against", name] * 2) == 0
    compared = json.loads(capfd.readouterr().out)["against"][name]
    assert 0 < compared["images_per_s"]["median"] <= 400  # a batch of 8 each 20 ms; a busy machine is slower
    assert compared["ratio"]["median"] > 0
    one_image = ["--against", name.replace("batches", "image")]
    assert status_of("bench", str(raw_data.path), *QUICK, *one_image) == 1
    assert "a first batch of 4, and the loader has batches of 8" in capfd.readouterr().err
    for wrong in ("none", "nothing", "size"):
        assert status_of("bench", str(raw_data.path), *QUICK, "--against", name.replace("batches", wrong)) == 1
        assert f"{wrong} gave no batch: it has to be a function" in capfd.readouterr().err
