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

OTHER_FILE = r"1\.jpg below .* is missing or another file there"
CHANGES = {
    "nothing": (lambda context, lock: None, None),
    "content": (lambda context, lock: Path(context.root, "1.jpg").write_bytes(b"two"), OTHER_FILE),
    "no file": (lambda context, lock: Path(context.root, "1.jpg").unlink(), OTHER_FILE),
    "no mark": (lambda context, lock: context.layout.mark.unlink(), "is not the driver's folder there"),
    "no lock": (lambda _, lock: fcntl.flock(lock, fcntl.LOCK_UN), "is locked by the driver and not locked there"),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_node_that_sees_the_same_folders_takes_part_and_a_difference_is_named(tmp_path, name):
    change, message = CHANGES[name]
    (tmp_path / "data").mkdir()
    (tmp_path / "data/1.jpg").write_bytes(b"one")
    layout, root = Layout(tmp_path / "out"), str(tmp_path / "data")
    layout.make()
    witnesses = [(["1.jpg"], [])]
    context = BuildContext(b"", "", layout, root, {}, ("image",), (), {}, {}, "train", "run", witnesses=witnesses)
    with layout.lock.open("a+") as lock, shared_folder_check(context) as check:
        fcntl.flock(lock, fcntl.LOCK_EX)
        change(context, lock)
        if message is None:
            check.compare(context)
            assert layout.mark.read_text() == check.mark
        else:
            with pytest.raises(BuildError, match=message):
                check.compare(context)
    assert not layout.mark.exists()


def test_the_recipe_and_its_neighbours_are_sent_and_large_data_and_installed_packages_are_not(tmp_path, monkeypatch):
    home, elsewhere, there = tmp_path / "home", tmp_path / "elsewhere", tmp_path / "there"
    for path, text in {
        home / "recipe.py": "import near, elsewhere_module, pip\nfrom sent_package.inner import deep\nRECIPE = None\n",
        home / "near.py": "from space.inner import found\n",
        home / "broken.py": "this is no Python",
        home / "queue.py": "raise RuntimeError('in the place of a module of the standard library')",
        home / "classes.txt": "cat\n",
        home / "large.csv": "x" * (1 << 20) + "x",
        home / "key.json": "{}",
        elsewhere / "elsewhere_module.py": "",
        elsewhere / "pip.py": "",  # the name of an installed package
        **{home / f"sent_package/{name}.py": "" for name in ("__init__", "lazy", "inner/__init__", "inner/deep")},
        **{home / name: "" for name in ("photo.jpg", ".hidden.py", "space/inner/found.py", "space/1.txt")},
        **{home / name: "" for name in ("raw/1.txt", "raw/unused.py")},
    }.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    for name in (".#recipe.py", "config.json", "sent_package/gone.py"):  # The first is a lock of Emacs.
        (home / name).symlink_to("nobody@nowhere.1234")
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(home / "space/../key.json"))
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
