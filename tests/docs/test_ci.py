"""The page about CI: the commands of its workflow run as printed, and statuses and errors are those of the table."""

import json
import re

from tests.commands import status_of
from tests.docs import pages
from tests.photos import write_photos
from tfprep import errors

PAGE = pages.text("ci.md")
COMMANDS = [re.sub(" >.*", "", line) for line in re.findall(r"^ +(?:- run: )?(tfprep .*)$", PAGE, re.M)]


def test_the_workflow_stops_at_bad_inputs_leaks_and_nothing_else(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "recipe.py").write_text(pages.RECIPE)
    write_photos(tmp_path / "data/photos", 20, "train/{label}/{number}.png", noise=(16, 16))
    folder = write_photos(tmp_path / "data/photos", 24, "val/{label}/{number}.png", noise=(20, 16))
    assert len(COMMANDS) == 4
    statuses = [status_of(line, *(["--workers", "0"] if "build" in line else [])) for line in COMMANDS]
    assert statuses == [0, 0, 0, 0]
    document, _ = json.JSONDecoder().raw_decode(capsys.readouterr().out)
    assert {"samples", "records", "bytes", "rejected"} <= document.keys()

    (folder / "val/a/0.png").write_bytes((folder / "train/a/0.png").read_bytes())
    assert [status_of(line) for line in COMMANDS if "check" in line or "build" in line] == [0, 4]
    (folder / "val/a/2.png").write_bytes(b"no image")
    capsys.readouterr()
    assert status_of(COMMANDS[0]) == 3
    error = json.loads(capsys.readouterr().out)["error"]
    (shown,) = re.findall(r"```json\n(.*?)```", PAGE, re.S)
    assert error.keys() == json.loads(shown)["error"].keys()
    assert error["type"] == json.loads(shown)["error"]["type"] == errors.TooManyRejectedError.__name__
