"""The workers of a build start before the recipe is loaded, and after all that is quick to check."""

from pathlib import Path

import pytest

from tests.builder.conftest import run
from tfprep.builder import BuildOptions, Ray, build, start
from tfprep.errors import BuildError, RecipeError


class Watched:
    """An engine that counts its starts."""

    starts = 0

    def start(self):
        self.starts += 1

    def close(self):
        pass


MEMORY = "in the memory of this process"
ERRORS = [
    ("mistyped.py", "out", None, {}, "no such recipe", 0),
    ("recipe.txt", "out", "data", {}, "its name ends in .py", 0),
    ("folder.py", "out", "data", {}, "is a folder", 0),
    ("wrong.py", "out", None, {}, "ZeroDivisionError", 1),
    ("wrong.py", "out", "data", {}, "ZeroDivisionError", 1),
    ("wrong.py", "memory://out", "data", {"options": BuildOptions(workers=2)}, MEMORY, 0),
    ("wrong.py", "out", "memory://data", {"options": BuildOptions(workers=2)}, MEMORY, 0),
    ("wrong.py", "out", None, {"engine": Ray()}, "ZeroDivisionError", 0),
]


@pytest.mark.parametrize(("recipe", "out", "data", "options", "error", "starts"), ERRORS)
def test_workers_start_for_a_recipe_that_is_there(
    monkeypatch, tmp_path, recipe, out, data, options, error, starts
):  # fmt: skip
    """Those of a cluster start on its nodes."""
    monkeypatch.chdir(tmp_path)
    Path("wrong.py").write_text("1 / 0")
    Path("recipe.txt").write_text("RECIPE = 1")
    Path("folder.py").mkdir()
    watched = Watched()
    monkeypatch.setattr(start, "Pool", lambda *_, **__: watched)
    with pytest.raises((BuildError, RecipeError), match=error):
        build(recipe, out, data, **options)
    assert watched.starts == starts


def test_workers_begin_as_this_process_did_whenever_they_start(site):
    """They start before the recipe is loaded, or where a dataset is there already, after its shards were looked at."""
    site.fill(1, 0).change_recipe(', "val": 2', "")
    site.define(
        "import sys\n"
        'os.environ["LOADED"] = os.environ.get("LOADED", "") + "once"\n'
        'sys.path.insert(0, "/added/by/the/recipe")\n'
    )
    site.derive(
        "checked",
        'assert (os.environ["LOADED"], sys.path.count("/added/by/the/recipe")) == ("once", 1)\nreturn sample["mask"]',
    )
    for seed in ("seed=3", "seed=4"):
        site.change_recipe("seed=3", seed)
        done = run(site.command("--max-bad", "0", "--workers", "1"))
        assert done.returncode == 0, done.stderr
        assert "Built 1 sample" in done.stdout
