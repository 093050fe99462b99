"""The commands and recipes of docs/inspect.md run as printed, one after another."""

import re

import pytest

from tests.commands import status_of
from tests.docs import pages
from tests.photos import natural, save
from tfprep.builder import BuildOptions, build
from tfprep.dataset import open_dataset

PAGE = pages.text("inspect.md")
COMMANDS = pages.commands("inspect.md")
BLOCKS = pages.blocks("inspect.md")
STATUS = {"check": 4, "diff": 4}
"""Exit status of the commands that tell of a difference; all others succeed."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """`data/photos` with a picture in two splits."""
    root = tmp_path_factory.mktemp("inspect")
    for number in range(12):
        path = root / "data" / "photos" / ("val" if number > 8 else "train") / "ab"[number % 2] / f"{number}.jpg"
        save(path, natural(number % 10, 64, 80))
    return root


def test_commands_and_recipes_run(folder, monkeypatch, capsys):
    monkeypatch.chdir(folder)
    (folder / "recipe.py").write_text(pages.RECIPE)
    build("recipe.py", "out/photos", "data/photos", options=BuildOptions(workers=0))
    (folder / "smaller.py").write_text(pages.RECIPE.replace("Jpeg(95)", "Jpeg(60)"))
    build("smaller.py", "out/photos2", "data/photos", options=BuildOptions(workers=0))
    assert COMMANDS
    for command in COMMANDS:
        assert status_of(command) == STATUS.get(command.split()[1], 0), (command, capsys.readouterr())
    (grouped,), (without,) = BLOCKS, re.findall(r"`source=(sources\.Without.*?)`", PAGE)
    for number, source in enumerate(["", without]):
        recipe = f"{grouped}\nfrom dataclasses import replace\nRECIPE = replace(RECIPE, source={source or 'RECIPE.source'})\n"
        (folder / "taken_over.py").write_text(recipe)
        build(folder / "taken_over.py", f"out/clean{number}", "data/photos", options=BuildOptions(workers=0))
        assert status_of("check", f"out/clean{number}") == 0
    assert sum(split.samples for split in open_dataset("out/clean1").splits.values()) < 12
