"""What child processes have in common: where they import from, when they end, and which errors they can send."""

from __future__ import annotations

import os
import random
import subprocess
import sys

import pytest

from tfprep import python_file
from tfprep.child_process import sendable_error, worker_environment
from tfprep.errors import RecordError, TrainError
from tfprep.python_file import import_file


def folders_of_child(folder, *options):
    code = "import sys; print('\\n'.join(sys.path))"
    command = [sys.executable, *options, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=folder, env=worker_environment())
    return done.stdout.splitlines()


def test_a_child_imports_from_the_folders_of_its_parent(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", ["/first", *sys.path])
    monkeypatch.setenv("PYTHONPATH", "/elsewhere")
    folders = folders_of_child(tmp_path)
    assert folders[0] == "/first"
    assert "/elsewhere" not in folders
    assert not {"", str(tmp_path)} & set(folders)


def test_the_current_folder_is_that_of_the_parent(tmp_path, monkeypatch):
    """A parent that imports from "" finds modules where it was started; its child starts elsewhere."""
    monkeypatch.setattr(sys, "path", ["", *sys.path])
    assert folders_of_child(tmp_path)[0] == os.getcwd()


def test_folders_of_recipes_come_first_once_the_child_has_imported_its_own(tmp_path, monkeypatch):
    """As in the parent, which had imported modules of the standard library before it loaded the recipe."""
    own, beside = tmp_path / "own", tmp_path / "beside"
    for folder, names in ((own, ["helper", "other"]), (beside, ["recipe", "random", "helper"])):
        folder.mkdir()
        for name in names:
            (folder / f"{name}.py").write_text("")
    monkeypatch.setattr(sys, "path", [str(own), *sys.path])
    monkeypatch.setattr(python_file, "_added", set())
    import_file(beside / "recipe.py", "tfprep_test_recipe")
    assert sys.path[:2] == [str(beside), str(own)]
    code = """if True:
        import random, sys
        from tfprep.python_file import add_folders_of_parent
        add_folders_of_parent()
        import helper, other
        print(*(module.__file__ for module in (random, helper, other)), *sys.path[:2])
    """
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=worker_environment()
    )
    found = [random.__file__, str(beside / "helper.py"), str(own / "other.py"), str(beside), str(own)]
    assert done.stdout.split() == found


def test_a_folder_that_was_there_before_a_recipe_keeps_its_place(tmp_path, monkeypatch):
    """One of an editable installation, for example, stands behind the standard library."""
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    (tmp_path / "recipe.py").write_text("")
    (tmp_path / "random.py").write_text("raise SystemExit('imported')")
    import_file(tmp_path / "recipe.py", "tfprep_test_recipe")
    assert sys.path.index(str(tmp_path)) == len(sys.path) - 1
    assert folders_of_child(tmp_path)[-1] == str(tmp_path)


def test_each_child_has_one_thread_of_openmp():
    assert worker_environment()["OMP_NUM_THREADS"] == "1"


class Unsendable(Exception):
    """An error whose copy cannot be made: it needs an argument that it does not keep."""

    def __init__(self, first, second):
        super().__init__(f"{first} and {second}")


@pytest.mark.parametrize(
    ("error", "kind", "text"),
    [
        (RecordError("bad", path="p", record=1, offset=2), RecordError, "p: record 1 at byte 2: bad"),
        (Unsendable(1, 2), TrainError, "Unsendable: 1 and 2"),
    ],
)
def test_errors_that_cannot_be_sent_are_replaced_by_their_text(error, kind, text):
    sent = sendable_error(error, TrainError)
    assert type(sent) is kind
    assert str(sent) == text


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel ends children on Linux only")
def test_a_child_whose_parent_is_gone_ends():
    code = "from tfprep.child_process import end_with_parent; end_with_parent(1); print('still here')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (1, "")
