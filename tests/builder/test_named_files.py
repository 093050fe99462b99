"""`Recipe(files=[...])`: files that user code reads belong to the recipe, in builds, parts and worker processes."""

import os
import pickle
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.builder.conftest import digests
from tfprep import Recipe, codecs, sources
from tfprep.builder import BuildOptions, build
from tfprep.dataset import open_dataset
from tfprep.errors import RecipeError
from tfprep.recipe.file import load_recipe

BODY = """
assert Path(__file__).is_relative_to(HERE)
return sample["mask"].astype(np.float32) + np.load(HERE / "weights/lift.npy")
"""


def lift(site, number):
    (site.recipe.parent / "weights").mkdir(exist_ok=True)
    np.save(site.recipe.parent / "weights/lift.npy", np.float32(number))


@pytest.fixture
def lifting(full):
    full.change_recipe("RECIPE = Recipe(", 'RECIPE = Recipe(\n    files=["weights/lift.npy"],')
    full.define("from pathlib import Path\nHERE = Path(__file__).parent")
    full.derive("lifted", BODY, "codecs.Raw()")
    lift(full, 1)
    return full


def lifts(out):
    return {int(sample["lifted"].min()) for split in ("train", "val") for sample in open_dataset(out).samples(split)}


def test_a_changed_file_builds_everything_again(lifting):
    lifting.build(workers=1)
    assert lifts(lifting.out) == {1}
    os.utime(lifting.recipe.parent / "weights/lift.npy")  # its content is the same
    assert lifting.build().built_shards == 0
    lift(lifting, 2)
    assert lifting.due() == "6 of 6 shards: the recipe changed: files['weights/lift.npy'] changed"
    assert lifting.build(workers=1).built_shards == 6
    assert lifts(lifting.out) == {2}
    lifting.build(lifting.out.with_name("fresh"))
    assert digests(lifting.out) == digests(lifting.out.with_name("fresh"))


def test_the_name_is_the_same_wherever_the_recipe_is(lifting, tmp_path):
    """The fingerprint names a file by its path below the recipe's folder, also where the recipe gives an absolute one."""
    lifting.change_recipe('files=["weights/lift.npy"]', 'files=[str(Path(__file__).parent / "weights/lift.npy")]')
    here, there = load_recipe(lifting.recipe), tmp_path / "there"
    shutil.copytree(lifting.recipe.parent / "weights", there / "weights")
    moved = load_recipe(Path(shutil.copy(lifting.recipe, there)))
    assert here.fingerprint() == moved.fingerprint()
    assert list(moved.describe()["files"]) == ["weights/lift.npy"]


@pytest.mark.parametrize("workers", [0, 1])
def test_a_file_that_changes_during_a_build_ends_it(lifting, workers):
    def change(event):
        if event.name == "planned":
            lift(lifting, 3)

    with pytest.raises(RecipeError, match=r"(lift\.npy is another file than when|changed while the build was running)"):
        lifting.build(workers=workers, on_event=change)
    assert not (lifting.out / "tfprep.json").exists()


def test_a_file_that_changes_while_samples_are_made_ends_the_build(lifting):
    lifting.change_recipe("    return sample[", "    (HERE / 'weights/lift.npy').touch()\n    return sample[")
    assert lifting.build().rejected == 0, "only a new time is not a change"
    lifting.change_recipe(".touch()", ".write_bytes(b'other')")
    with pytest.raises(RecipeError, match="is another file than when"):
        lifting.build(replace=True)


def recipe(**options):
    return Recipe("r", sources.Folder(), {"image": codecs.Jpeg()}, **options)


def test_a_recipe_in_memory_keeps_what_it_was_made_with(tmp_path):
    (tmp_path / "model").write_text("1")
    made = recipe(files=["model"], folder=tmp_path)
    first = made.fingerprint("train")
    assert pickle.loads(pickle.dumps(made)).fingerprint("train") == first
    (tmp_path / "model").write_text("2")
    assert made.fingerprint("train") == first
    with pytest.raises(RecipeError, match="model is another file than when the recipe was made"):
        build(made, tmp_path / "out", tmp_path, options=BuildOptions(workers=0))
    assert replace(made).fingerprint("train") != first


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ("model", "files: expected a list of names of files, not 'model'"),
        *(([name], f"there is no regular file .*{name}; relative names are") for name in ("absent", "folder", "pipe")),
    ],
)
def test_wrong_names_are_named(tmp_path, files, message):
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(RecipeError, match=message):
        recipe(files=files, folder=tmp_path)


def test_a_missing_file_is_named_with_its_line(lifting):
    (lifting.recipe.parent / "weights/lift.npy").unlink()
    with pytest.raises(RecipeError, match=r"tiny\.py, line \d+: files: there is no regular file .*lift\.npy"):
        load_recipe(lifting.recipe)
