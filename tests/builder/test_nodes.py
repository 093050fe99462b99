"""The driver and the replies of its nodes, which are written down here, the folders that a node must see, and the code that is
sent to it: no cluster is needed."""

import fcntl
import sys
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tfprep.builder import node
from tfprep.builder.cluster import Connection, RayNodes
from tfprep.builder.layout import Layout
from tfprep.builder.node import collected, shared_folder_check, unpack
from tfprep.builder.options import NodeNews
from tfprep.builder.receipts import ShardTask
from tfprep.builder.shards.shard import BuildContext
from tfprep.engines import Ray
from tfprep.errors import BuildError, StorageError
from tfprep.pool import Died, Done, Lost, Task
from tfprep.recipe.file import load_recipe
from tfprep.sources import Listing

ray = pytest.importorskip("ray")
FACTS = {"NodeID": "01" * 28, "NodeManagerAddress": "10.0.0.7", "Alive": True, "Resources": {"CPU": 1.0}}
NODE = "10.0.0.7-010101"


class Cluster:
    """A cluster of one node, whose tasks of Ray are answered from `answers`; an exception is raised.

    Attributes:
      given: The contents of the tasks that the node was given; None is the question whether it builds the same.
      cancelled: The calls that were ended.
    """

    def __init__(self, *answers: Any) -> None:
        self.answers = iter([(NODE, []), *answers])
        self.given: list[Any] = []
        self.cancelled: list[Any] = []

    def call(self, opening: Any, content: Any) -> Any:
        self.given.append(content)
        return object()

    def answer(self, call: Any) -> Any:
        answer = next(self.answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def stand_in(self, monkeypatch) -> None:
        """Take the place of a cluster to which this process is connected."""
        function = SimpleNamespace(options=lambda **options: SimpleNamespace(remote=self.call))
        for name, value in {
            "is_initialized": lambda: True,
            "nodes": lambda: [FACTS],
            "available_resources": lambda: {"CPU": 1.0},
            "cluster_resources": lambda: {"CPU": 1.0},
            "put": lambda value: value,
            "remote": lambda build_shard: function,
            "wait": lambda calls, **options: (calls[:1], []),
            "get": self.answer,
            "cancel": lambda call, **options: self.cancelled.append(call),
        }.items():
            monkeypatch.setattr(ray, name, value)


@pytest.fixture
def argument(tmp_path) -> BuildContext:
    layout = Layout(tmp_path / "out")
    layout.make()
    return BuildContext(b"", "", layout, str(tmp_path), Listing({}, (), (), iter(())), {}, "train", "run")


def test_a_task_whose_node_is_lost_is_given_to_another(monkeypatch, argument):
    """A sample of the first task ends a process of the node, which goes on without it and is lost at the second task."""
    there = Task(0, None)
    lost = Lost(there, 5, "its process was killed by SIGKILL")
    died = ray.exceptions.WorkerCrashedError()
    cluster = Cluster((NODE, [lost, Done(there, {})]), died, (NODE, [Done(there, {})]), (NODE, [Done(there, {})]))
    cluster.stand_in(monkeypatch)
    nodes = RayNodes("its_work:open_work", Ray(), workers=1, item_timeout_s=1)
    nodes.start()
    nodes.open(argument)
    tasks = [nodes.submit({"number": number}) for number in range(3)]
    seen = list(nodes.events())
    nodes.close()
    assert [content and content["number"] for content in cluster.given] == [None, 0, 1, 1, 2]
    assert replace(lost, task=tasks[0]) in seen
    assert [event.task for event in seen if isinstance(event, Died)] == [tasks[1]]
    assert [event for event in seen if isinstance(event, Done)] == [Done(task, {}, NODE) for task in tasks]
    assert [event.state for event in seen if isinstance(event, NodeNews)] == ["joined"]


@pytest.mark.parametrize("error", [OSError("no space left"), StorageError("the store cannot be reached")])
def test_tasks_are_ended_and_no_error_is_hidden_although_the_mark_cannot_be_removed(monkeypatch, argument, error):
    def fail(path: object) -> None:
        raise error

    monkeypatch.setattr(node, "remove_file", fail)
    cluster = Cluster()
    cluster.stand_in(monkeypatch)
    nodes = RayNodes("its_work:open_work", Ray(), workers=1, item_timeout_s=1)
    nodes.start()
    nodes.open(argument)
    with pytest.raises(OSError, match="no space left") if isinstance(error, OSError) else nullcontext():
        nodes.close()
    nodes.close()
    assert len(cluster.cancelled) == 1


def test_values_of_the_environment_are_no_part_of_messages(monkeypatch):
    Cluster().stand_in(monkeypatch)
    key = "AWS_SECRET_ACCESS_KEY"
    with pytest.raises(BuildError, match=rf"but the value \${key} is of type") as caught:
        Connection(Ray(runtime_env={"env_vars": {key: b"wJalrSECRET"}}))
    assert caught.value.__cause__ is None
    connection = Connection(Ray(runtime_env={"env_vars": {key: "wJalrSECRET", "FAST": "1"}}))
    error = RuntimeError("node 10.0.0.1: export AWS_SECRET_ACCESS_KEY=wJalrSECRET failed")
    assert connection.summary_of(error) == f"node 10.0.0.1: export {key}=${key} failed"


def test_a_cluster_that_was_killed_is_named_at_once(monkeypatch, tmp_path):
    """It leaves its address in a file, which Ray would try for minutes."""
    monkeypatch.setattr(ray, "init", lambda *arguments, **options: pytest.fail("Ray would try to connect"))
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    (tmp_path / "ray").mkdir()
    (tmp_path / "ray/ray_current_cluster").write_text("127.0.0.1:1\n")
    with pytest.raises(BuildError, match=r"no Ray cluster at 'auto': .*Connection refused.*ray start --head"):
        Connection(Ray())


def test_a_shard_that_loses_its_node_again_and_again_ends_the_build(monkeypatch, argument):
    cluster = Cluster(*[ray.exceptions.WorkerCrashedError()] * 4)
    cluster.stand_in(monkeypatch)
    nodes = RayNodes("its_work:open_work", Ray(), workers=1, item_timeout_s=1)
    nodes.start()
    nodes.open(argument)
    nodes.submit(ShardTask("train", 7, 12, "fingerprint", "signature", "", []))
    with pytest.raises(BuildError, match=r"^shard 7 of 'train' lost its node 4 times"):
        list(nodes.events())
    nodes.close()


# --- folders and code -------------------------------------------------------------------------------------------------


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
    context = BuildContext(
        b"", "", layout, root, Listing({}, ("image",), (), iter(())), {}, "train", "run", witnesses=witnesses
    )
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


@pytest.mark.filterwarnings("ignore:Setuptools is replacing distutils")  # its hook sees the import of `pip`
def test_the_recipe_and_its_neighbors_are_sent_and_large_data_and_installed_packages_are_not(tmp_path, monkeypatch):
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
