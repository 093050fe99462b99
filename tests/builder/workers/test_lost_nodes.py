"""The driver and the replies of its nodes, which are written down here: no cluster is needed."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from tfprep.builder.layout import Layout
from tfprep.builder.options import NodeNews
from tfprep.builder.planning.plan import building_versions
from tfprep.builder.receipts import ShardTask
from tfprep.builder.schedule import ShardScheduler, _Attempt
from tfprep.builder.workers.cluster import RayNodes
from tfprep.builder.workers.node import Node, NodeReply, NodeTask
from tfprep.builder.workers.remote_node import Connection
from tfprep.child_process import Inline, TaskCrashed, WorkerEvent
from tfprep.engines import Ray
from tfprep.errors import BuildError, StorageError

ray = pytest.importorskip("ray")
FACTS = {"NodeID": "01" * 28, "NodeManagerAddress": "10.0.0.7", "Alive": True, "Resources": {"CPU": 1.0}}


class Cluster:
    """A cluster of one node, whose actor answers with `replies` one after the other; an exception ends it.

    Attributes:
      given: Numbers of the tasks that the node was given.
      killed: The actors that were ended.
    """

    def __init__(self, *replies: Any) -> None:
        self.replies: Iterator[Any] = iter([building_versions(), None, *replies])
        self.given: list[int] = []
        self.killed: list[Any] = []

    def actor(self, *arguments: Any) -> Any:
        call = SimpleNamespace(remote=self._call)
        return SimpleNamespace(versions=call, open=call, exchange=SimpleNamespace(remote=self._exchange))

    def _call(self, *arguments: Any) -> object:
        return object()

    def _exchange(self, tasks: list[NodeTask]) -> object:
        self.given += [task.number for task in tasks]
        return object()

    def answer(self, call: object) -> Any:
        reply = next(self.replies)
        if isinstance(reply, Exception):
            raise reply
        return reply

    def stand_in(self, monkeypatch) -> None:
        """Take the place of a cluster to which this process is connected."""
        actor_class = SimpleNamespace(options=lambda **options: SimpleNamespace(remote=self.actor))
        for name, function in {
            "is_initialized": lambda: True,
            "nodes": lambda: [] if self.killed else [FACTS],
            "remote": lambda node: actor_class,
            "wait": lambda calls, **options: (calls, []),
            "get": self.answer,
            "kill": self.killed.append,
        }.items():
            monkeypatch.setattr(ray, name, function)


@pytest.fixture
def argument(tmp_path) -> dict[str, Any]:
    Layout(tmp_path / "out").make()
    folders = {"out": str(tmp_path / "out"), "root": str(tmp_path), "scratch": None}
    return {**folders, "recipe_file": None, "recipe_files": {}, "files": [], "values": [], "witnesses": []}


def test_a_task_that_overtakes_others_is_a_suspect_as_well_when_its_node_is_lost(monkeypatch, argument):
    """The sample of task 0 ends its worker, and the node is lost while that sample is tried alone, which is task 3."""
    crash = NodeReply([TaskCrashed(0, 5, "its process was killed by SIGKILL")], (), None)
    cluster = Cluster(crash, ray.exceptions.ActorDiedError())
    cluster.stand_in(monkeypatch)
    nodes = RayNodes("its_work:open_work", Ray(), workers=1, item_timeout_s=1)
    nodes.start()
    nodes.open(argument)
    for number in range(3):
        nodes.submit(number, {})
    seen: list[WorkerEvent] = []
    for event in nodes.events():
        seen.append(event)
        if event == TaskCrashed(0, 5, "its process was killed by SIGKILL", node="10.0.0.7-010101"):
            nodes.submit(3, {}, urgent=True)
        if sum(isinstance(one, TaskCrashed) for one in seen) == 3:
            break
    nodes.close()
    assert cluster.given == [0, 1, 3]
    assert [(event.task, event.item) for event in seen if isinstance(event, TaskCrashed)] == [
        (0, 5),
        (1, None),
        (3, None),
    ]
    assert [event.state for event in seen if isinstance(event, NodeNews)] == ["joined", "lost"]


def test_all_actors_are_ended_although_the_store_is_gone(monkeypatch, argument):
    cluster = Cluster()
    cluster.stand_in(monkeypatch)
    nodes = RayNodes("its_work:open_work", Ray(), workers=1, item_timeout_s=1)
    nodes.start()

    def fail() -> None:
        raise OSError("no space left")

    nodes._folders.callback(fail)
    with pytest.raises(OSError, match="no space left"):
        nodes.close()
    assert len(cluster.killed) == 1
    nodes.close()
    assert len(cluster.killed) == 1


def test_a_mark_that_cannot_be_removed_hides_no_error(monkeypatch, argument):
    from tfprep.builder.workers import node

    def fail(path: object) -> None:
        raise StorageError("the store cannot be reached")

    monkeypatch.setattr(node, "remove_file", fail)
    with pytest.raises(BuildError, match="the first error"), node.shared_folder_check(argument):
        raise BuildError("the first error")


def test_values_of_the_environment_are_no_part_of_messages(monkeypatch):
    Cluster().stand_in(monkeypatch)
    key = "AWS_SECRET_ACCESS_KEY"
    with pytest.raises(BuildError, match=rf"but the value \${key} is of type") as caught:
        Connection(Ray(runtime_env={"env_vars": {key: b"wJalrSECRET"}}))
    assert caught.value.__cause__ is None
    connection = Connection(Ray(runtime_env={"env_vars": {key: "wJalrSECRET", "FAST": "1"}}))
    error = RuntimeError("node 10.0.0.1: export AWS_SECRET_ACCESS_KEY=wJalrSECRET failed")
    assert connection.summary_of(error) == f"node 10.0.0.1: export {key}=${key} failed"


def test_a_node_whose_workers_cannot_be_ended_says_why_its_work_ended(monkeypatch):
    node = Node("here", "its_work:open_work", 1, 1.0)

    def fail() -> None:
        raise OSError("cannot end them")

    def end(argument: object) -> None:
        raise SystemExit("the first error")

    monkeypatch.setattr(node._engine, "start", lambda: None)
    monkeypatch.setattr(node._engine, "open", end)
    monkeypatch.setattr(node._engine, "close", fail)
    with pytest.raises(OSError, match="cannot end them"):
        node._work({})
    assert node.exchange([]).failure == ("SystemExit", "the first error")


def test_a_shard_that_loses_its_node_again_and_again_ends_the_build():
    engine, reason = Inline("its_work:open_work"), "its node 10.0.0.7 was lost"
    attempt = _Attempt(ShardTask("train", 7, 12, "fingerprint", "signature", "", []))
    plan: Any = None  # It makes tasks, and this one exists.
    scheduler = ShardScheduler(plan, engine, lambda *_, **facts: None, None, lambda *_: None, 0.0)
    for _ in range(3):
        scheduler._crashed(attempt, TaskCrashed(0, None, reason))
    with pytest.raises(BuildError, match=f"^shard 7 of 'train': {reason}, 4 times, at no sample; "):
        scheduler._crashed(attempt, TaskCrashed(0, None, reason))
