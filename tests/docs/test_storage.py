"""The commands and the code of docs/storage.md run as printed, in their order, at an S3 server on loopback."""

import re
from contextlib import closing

import pytest

import tfprep
from tests.commands import status_of
from tests.docs import pages
from tests.photos import write_photos
from tfprep.dataset import clean as cleaning
from tfprep.storage.address import _SECRET_VARIABLE
from tfprep.storage.store import open_store

pytest.importorskip("obstore")
PAGE = pages.text("storage.md")
COMMANDS = {command.split()[1]: command for command in pages.commands("storage.md")}
CLEAN = [command for command in pages.commands("storage.md") if command.startswith("tfprep clean ")]
BLOCKS = pages.blocks("storage.md")


def test_the_page_runs(s3, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(cleaning, "AGE_S", -60.0)  # of objects that clean removes
    write_photos(tmp_path / "data/photos/train", 40, noise=(16, 16))
    (tmp_path / "photos.py").write_text(pages.RECIPE)
    assert list(COMMANDS) == ["info", "build", "clean", "bench"]
    assert status_of(COMMANDS["build"], "--workers", "0") == 0
    assert status_of(COMMANDS["info"]) == 0
    lost = "shards/0123456789abcdef-photos-train.tfrecord-00000-of-00001"
    open_store("s3://bucket/photos").write(lost, b"of a build that was killed")
    capsys.readouterr()
    for command, there in zip(CLEAN, (True, False), strict=True):
        assert status_of(command) == 0
        assert lost in capsys.readouterr().out
        assert any(info.name == lost for info in open_store("s3://bucket/photos").list()) == there
    bench = COMMANDS["bench"].replace("--batch-size 64", "--batch-size 8")
    assert status_of(bench, "--rounds", "1", "--seconds", "0.1") == 0
    names = {"tfprep": tfprep}
    (opened,) = BLOCKS
    exec(opened, names)
    with closing(names["train"]):
        next(iter(names["train"]))


def test_the_variables_of_the_page_are_those_that_are_kept_out_of_messages():
    secret = set(re.findall(r"`((?:AWS|GOOGLE|AZURE)_[A-Z_]*(?:KEY|TOKEN|CREDENTIALS)[A-Z_]*)(?:=\w+)?`", PAGE))
    assert len(secret) >= 5
    assert all(_SECRET_VARIABLE.search(name) for name in secret)
