"""Checks of a node of a cluster before it takes part, and the code that is sent to it."""

import fcntl
import sys
from pathlib import Path

import pytest

from tfprep.builder.layout import Layout
from tfprep.builder.node import collected, shared_folder_check, unpack
from tfprep.builder.shards.shard import BuildContext
from tfprep.errors import BuildError
from tfprep.recipe.file import load_recipe


@pytest.fixture
def argument(tmp_path) -> BuildContext:
    (tmp_path / "data").mkdir()
    (tmp_path / "data/1.jpg").write_bytes(b"one")
    layout = Layout(tmp_path / "out")
    layout.make()
    witnesses = [(["1.jpg"], [])]
    root = str(tmp_path / "data")
    return BuildContext(b"", "", layout, root, {}, ("image",), (), {}, {}, "train", "run", witnesses=witnesses)


def test_a_node_that_sees_the_same_folders_takes_part(argument):
    layout = argument.layout
    with layout.lock.open("a+") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with shared_folder_check(argument) as check:
            check.compare(argument)
            assert layout.mark.read_text() == check.mark
    assert not layout.mark.exists()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda argument: Path(argument.root, "1.jpg").write_bytes(b"two"),
            r"1\.jpg below .* is missing or another",
        ),
        (
            lambda argument: Path(argument.root, "1.jpg").unlink(),
            r"1\.jpg below .* is missing or another file there",
        ),
        (lambda argument: argument.layout.mark.unlink(), "is not the driver's folder there"),
        (None, "is locked by the driver and not locked there"),
    ],
)
def test_a_difference_is_named(argument, change, message):
    with shared_folder_check(argument) as check, argument.layout.lock.open("a+") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if change is None:
            fcntl.flock(lock, fcntl.LOCK_UN)
        else:
            change(argument)
        with pytest.raises(BuildError, match=message):
            check.compare(argument)


def test_the_recipe_and_its_neighbours_are_sent_and_large_data_and_installed_packages_are_not(tmp_path, monkeypatch):
    home, elsewhere, there = tmp_path / "home", tmp_path / "elsewhere", tmp_path / "there"
    for path, text in {
        home / "recipe.py": "import near, elsewhere_module, pip\nfrom sent_package.inner import deep\nRECIPE = None\n",
        home / "near.py": "from space.inner import found\n",
        home / "broken.py": "this is no Python",
        home / "queue.py": "raise RuntimeError('in the place of a module of the standard library')",
        home / "classes.txt": "cat\n",
        home / "large.csv": "x" * (1 << 20) + "x",
        home / "photo.jpg": "",
        home / "sent_package/__init__.py": "",
        home / "sent_package/lazy.py": "",
        home / "sent_package/inner/__init__.py": "",
        home / "sent_package/inner/deep.py": "",
        home / "space/inner/found.py": "",
        home / "space/1.txt": "",
        home / "raw/1.txt": "",
        home / "raw/unused.py": "",
        elsewhere / "elsewhere_module.py": "",
        elsewhere / "pip.py": "",  # the name of an installed package
    }.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    monkeypatch.setattr(sys, "path", [str(elsewhere), *sys.path])
    monkeypatch.setattr(sys, "modules", dict(sys.modules))
    of_other_tests = collected(None, {}).files
    with pytest.raises(Exception, match="expected RECIPE"):
        load_recipe(home / "recipe.py")
    code = collected(home / "recipe.py", {})
    packages = {f"sent_package/{name}.py" for name in ("__init__", "lazy", "inner/__init__", "inner/deep")}
    beside = {"recipe.py", "near.py", "broken.py", "queue.py", "classes.txt", *packages}
    from_elsewhere = {"modules/elsewhere_module.py", "modules/pip.py", "modules/space/inner/found.py"}
    assert code.files.keys() - of_other_tests.keys() == {f"recipe/{name}" for name in beside} | from_elsewhere
    unpack(code, there)
    assert sys.path[0] == str(there / "modules")
    assert str(there / "recipe") not in sys.path
    assert (there / "recipe/sent_package/inner/deep.py").is_file()


def test_links_to_nothing_hidden_files_and_keys_are_not_sent(tmp_path, monkeypatch):
    for name in ("recipe.py", "near.json", "key.json", ".hidden.py"):
        (tmp_path / name).write_text("{}")
    (tmp_path / "space").mkdir()
    for name in (".#recipe.py", "config.json", "space/__init__.py", "space/gone.py"):  # The first is a lock of Emacs.
        (tmp_path / name).symlink_to("nobody@nowhere.1234")
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / "space/../key.json"))
    sent = collected(tmp_path / "recipe.py", {}).files
    assert {name for name in sent if name.startswith("recipe/")} == {"recipe/recipe.py", "recipe/near.json"}
