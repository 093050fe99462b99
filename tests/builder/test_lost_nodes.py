"""The driver and the replies of its nodes, which are written down here: no cluster is needed."""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from tfprep.builder.cluster import Connection, RayNodes
from tfprep.builder.layout import Layout
from tfprep.builder.options import NodeNews
from tfprep.builder.planning.state import ShardState
from tfprep.builder.receipts import ShardTask
from tfprep.builder.schedule import ShardScheduler
from tfprep.builder.shards.shard import BuildContext
from tfprep.child_process import TaskCrashed, WorkerEvent
from tfprep.engines import Ray
from tfprep.errors import BuildError, StorageError

ray = pytest.importorskip("ray")
FACTS = {"NodeID": "01" * 28, "NodeManagerAddress": "10.0.0.7", "Alive": True, "Resources": {"CPU": 1.0}}


class Cluster:
    """A cluster of one node, whose calls are answered from `answers`; an exception ends it.

    Attributes:
      answers: By the name of the method, what its calls return one after the other.
      given: Numbers of the tasks that the node was given.
      killed: The actors that were ended.
    """

    def __init__(self, *of_tasks: Any) -> None:
        self.answers: dict[str, Iterator[Any]] = {
            "open": iter([None]),
            "run": iter(of_tasks),
        }
        self.given: list[int] = []
        self.killed: list[Any] = []

    def actor(self, *arguments: Any) -> Any:
        def call(name: str, *arguments: Any) -> Exception:
            self.given += [arguments[0]] if name == "run" else []
            return Exception(name)  # any object that is equal to itself alone

        methods = {name: SimpleNamespace(remote=partial(call, name)) for name in self.answers}
        return SimpleNamespace(**methods)

    def answer(self, call: Any) -> Any:
        answer = next(self.answers[call.args[0]])
        if isinstance(answer, Exception):
            raise answer
        return answer

    def stand_in(self, monkeypatch) -> None:
        """Take the place of a cluster to which this process is connected."""
        actor_class = SimpleNamespace(options=lambda **options: SimpleNamespace(remote=self.actor))
        for name, function in {
            "is_initialized": lambda: True,
            "nodes": lambda: [] if self.killed else [FACTS],
            "remote": lambda node: actor_class,
            "wait": lambda calls, **options: (calls[:1] if options.get("timeout") else calls, []),
            "get": self.answer,
            "kill": self.killed.append,
        }.items():
            monkeypatch.setattr(ray, name, function)


@pytest.fixture
def argument(tmp_path) -> BuildContext:
    layout = Layout(tmp_path / "out")
    layout.make()
    return BuildContext(b"", "", layout, str(tmp_path), {}, (), (), {}, {}, "train", "run")


def test_the_tasks_that_a_lost_node_runs_have_crashed_and_no_others(monkeypatch, argument):
    """The sample of task 0 ends its worker, and the node is lost while that sample is tried alone, which is task 3."""
    crash = TaskCrashed(0, 5, "its process was killed by SIGKILL")
    cluster = Cluster([crash], ray.exceptions.ActorDiedError())
    cluster.stand_in(monkeypatch)
    nodes = RayNodes("its_work:open_work", Ray(), workers=1, item_timeout_s=1)
    nodes.start()
    nodes.open(argument)
    for number in range(3):
        nodes.submit(number, {})
    seen: list[WorkerEvent] = []
    for event in nodes.events():
        seen.append(event)
        if event == replace(crash, node="10.0.0.7-010101"):
            nodes.submit(3, {}, urgent=True)
        if sum(isinstance(one, TaskCrashed) for one in seen) == 2:
            break
    nodes.close()
    assert cluster.given == [0, 3]
    assert [(event.task, event.item) for event in seen if isinstance(event, TaskCrashed)] == [(0, 5), (3, None)]
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
    from tfprep.builder import node

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


class LosingEngine:
    """Loses the node of every task."""

    def __init__(self) -> None:
        self.submitted: list[int] = []

    def submit(self, number: int, task: Any, *, urgent: bool = False) -> None:
        self.submitted.append(number)

    def events(self) -> Iterator[WorkerEvent]:
        while self.submitted:
            yield TaskCrashed(self.submitted.pop(), None, "its node 10.0.0.7 was lost")

    def workers(self) -> tuple[()]:
        return ()

    def capacity(self) -> int:
        return 1


def test_a_shard_that_loses_its_node_again_and_again_ends_the_build():
    task = ShardTask("train", 7, 12, "fingerprint", "signature", "", [])
    plan: Any = SimpleNamespace(task=lambda split, shard: task)
    engine: Any = LosingEngine()
    scheduler = ShardScheduler(plan, engine, lambda *_, **facts: None, None, lambda *_: None, 0.0)
    with pytest.raises(BuildError, match=r"^shard 7 of 'train': its node 10.0.0.7 was lost, 4 times, at no sample; "):
        scheduler.run([ShardState("train", 7, 0, "not built yet")])
