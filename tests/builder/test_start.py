"""The workers of a build start before the recipe is loaded, and after all that is quick to check."""

import subprocess
import sys
from pathlib import Path

import cv2
import numpy as np
import pytest

from tfprep.builder import BuildOptions, build, start
from tfprep.engines import Ray
from tfprep.errors import BuildError, RecipeError


class Watched:
    """An engine that counts its starts."""

    def __init__(self):
        self.starts = 0

    def start(self):
        self.starts += 1

    def close(self):
        pass


@pytest.fixture
def engine(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    Path("wrong.py").write_text("1 / 0")
    Path("recipe.txt").write_text("RECIPE = 1")
    Path("folder.py").mkdir()
    watched = Watched()
    monkeypatch.setattr(start, "_engine", lambda *_: watched)
    return watched


@pytest.mark.parametrize("data", [None, "data"])
@pytest.mark.parametrize(
    ("recipe", "error", "starts"),
    [
        ("mistyped.py", "no such recipe", 0),
        ("recipe.txt", "its name ends in .py", 0),
        ("folder.py", "is a folder", 0),
        ("wrong.py", "ZeroDivisionError", 1),
    ],
)
def test_workers_start_for_a_recipe_that_is_there(engine, recipe, error, starts, data):
    with pytest.raises(RecipeError, match=error):
        build(recipe, "out", data)
    assert engine.starts == starts


@pytest.mark.parametrize("places", [("memory://out", "data"), ("out", "memory://data")])
def test_no_worker_starts_for_memory_that_it_does_not_see(engine, places):
    with pytest.raises(BuildError, match="in the memory of this process"):
        build("wrong.py", *places, options=BuildOptions(workers=2))
    assert engine.starts == 0


def test_no_cluster_is_connected_to_before_the_recipe_is_loaded(engine):
    with pytest.raises(RecipeError, match="ZeroDivisionError"):
        build("wrong.py", "out", engine=Ray())
    assert engine.starts == 0


RECIPE = """
import os, sys
from tfprep import Recipe, codecs, sources
os.environ["LOADED"] = os.environ.get("LOADED", "") + "once"
sys.path.insert(0, "/added/by/the/recipe")
def checked(sample, generator):
    assert (os.environ["LOADED"], sys.path.count("/added/by/the/recipe")) == ("once", 1)
    return sample["image"]
RECIPE = Recipe("r", sources.Folder(), derive={"d": checked}, store={"d": codecs.Raw()}, seed=SEED)
"""


def test_workers_begin_as_this_process_did_whenever_they_start(tmp_path):
    """They start before the recipe is loaded, or where a dataset is there already, after its shards were looked at."""
    photo = tmp_path / "data" / "thing" / "1.png"
    photo.parent.mkdir(parents=True)
    photo.write_bytes(cv2.imencode(".png", np.zeros((8, 8, 3), np.uint8))[1].tobytes())
    for seed in (1, 2):
        (tmp_path / "recipe.py").write_text(RECIPE.replace("SEED", str(seed)))
        command = [
            sys.executable,
            "-m",
            "tfprep",
            "build",
            "recipe.py",
            "--data",
            "data",
            "--out",
            "out",
            "--max-bad",
            "0",
        ]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        assert "Built 1 sample" in done.stdout
