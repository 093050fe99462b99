"""The cost of the Ray engine, and builds whose nodes are killed.

    python benchmarks/scale_build.py --nodes 1 2 4 --tasks 10000 --json scale_build.json
    python benchmarks/scale_build.py --kills 20 --json kills.json

The cluster (`ray_cluster.py`; Linux and root) is on this machine: each node has an address and processes of its own and says that
it has one core. Its tasks wait instead of working, so that nodes cost next to nothing and what remains is the driver of a build:
its scheduler with progress, and the engine. A task waits 10 ms and holds 500 samples, as that of a shard of 64 MiB does.

- `tasks_per_s` by the number of nodes, and `ideal_tasks_per_s`, that of nodes that only wait.
- `driver_ms`: processor time of the driver for each task, its threads included; `driver_mb`: growth of its peak memory.
- `idle_ms`: processor time of the driver for each second in which a node runs long tasks.
- `nodes_fed`: with how many nodes of 8 cores one driver has a core's work, if each shard takes 1.5 s of a core.

With `--kills N`, N builds of 48 samples in 12 shards each lose a node with its workers at a random moment. Counted are builds
with the bytes of a local build, and shards that were finished before the kill and built again after it;
the exit status is 1 if bytes differ or a shard was built again.
"""

from __future__ import annotations

import argparse
import json
import random
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks import harness
from benchmarks.ray_cluster import ADDRESS, Cluster, why_not

WAIT_S = 0.01
LONG_S = 20.0
SAMPLES = 500
SHARD_S, CORES = 1.5, 8
"""A shard of 64 MiB of photos holds 600 images, of which a core makes 400 a second (docs/scale.md)."""


def main() -> None:
    options = harness.arguments(
        __doc__ or "", nodes=([1, 2, 4], "Numbers of nodes to measure"),
        tasks=(10_000, "Tasks of each measurement"), seed=(0, "Seed of the moments of the kills"),
        kills=(0, "Number of builds that lose a node; nothing else is measured"),
        drive=([], argparse.SUPPRESS),  # the driver's side, inside the cluster
    )  # fmt: skip
    if options.drive:
        print(json.dumps(drive(int(options.drive[0]), float(options.drive[1]))))
        return
    if reason := why_not():
        sys.exit(f"no cluster here: {reason}")
    results = kills(options.kills, options.seed) if options.kills else scale(options.nodes, options.tasks)
    print(json.dumps(results, indent=1))
    failed = options.kills and (results["equal_bytes"] < options.kills or results["shards_built_again"] > 0)
    harness.finish(options, results, failed=failed)


# --- what the engine costs ------------------------------------------------------------------------------------------------


def scale(counts: list[int], tasks: int) -> dict[str, Any]:
    results: dict[str, Any] = {}
    with Cluster() as cluster:
        for count in sorted(counts):
            while len(cluster.nodes) <= count:
                cluster.add()
            results[str(count)] = {**_driven(cluster, tasks, WAIT_S), "ideal_tasks_per_s": round(count / WAIT_S, 1)}
        long = _driven(cluster, count, LONG_S)
    idle_ms = long["driver_s"] / long["seconds"] / count * 1000
    task_ms = max(result["driver_ms"] for result in results.values())
    node_ms = idle_ms + CORES / SHARD_S * task_ms
    return {"nodes": results, "idle_ms": round(idle_ms, 2), "nodes_fed": int(1000 / node_ms)}


def _driven(cluster: Cluster, tasks: int, wait_s: float) -> dict[str, Any]:
    """Run a driver in the cluster."""
    driver = cluster.run([sys.executable, __file__, "--drive", str(tasks), str(wait_s)], stdout=subprocess.PIPE)
    output, _ = driver.communicate()
    assert driver.returncode == 0
    result: dict[str, Any] = json.loads(output)
    return result


def open_waiting(argument: Any) -> Callable[[dict[str, Any], Any], dict[str, Any]]:
    """The work of the nodes' workers; see `tfprep.pool`. The context's fingerprint says how long a task waits."""
    wait_s = float(argument.fingerprint)

    def work(task: dict[str, Any], mark: Any) -> dict[str, Any]:
        mark(0)
        time.sleep(wait_s)
        return {"built": True, "bytes": 0, "rejects": 0, "seconds": wait_s}

    return work


class WaitingPlan:
    """A plan of tasks that wait, in the place of `tfprep.builder.planning.plan.Plan`."""

    def __init__(self, shards: int) -> None:
        self._shards = shards
        keys = (f"train/cat/{number:09d}.jpg" for number in range(SAMPLES))
        self._samples = [(key, [key], [], f"{len(key)} 1700000000", 0) for key in keys]

    def task(self, split: str, shard: int) -> Any:
        from tfprep.builder.receipts import ShardTask

        return ShardTask(split, shard, self._shards, "fingerprint", "signature", "", self._samples)


def drive(tasks: int, wait_s: float) -> dict[str, Any]:
    """Run the tasks on the nodes of the cluster, as a build does."""
    from tfprep.builder.cluster import RayNodes
    from tfprep.builder.planning.state import ShardState
    from tfprep.builder.schedule import ShardScheduler
    from tfprep.engines import Ray

    begun: list[tuple[float, float, float]] = []

    def begin(name: str = "shard", text: str = "", **facts: Any) -> None:
        if name == "shard" and not begun:  # All nodes have joined.
            begun.append((time.process_time(), _peak_mb(), time.perf_counter()))

    engine = RayNodes("benchmarks.scale_build:open_waiting", Ray(ADDRESS), workers=None, item_timeout_s=300)
    plan: Any = WaitingPlan(tasks)
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        try:
            engine.start()
            engine.open(stack.enter_context(_context(Path(folder), wait_s)))
            scheduler = ShardScheduler(plan, engine, begin, None, lambda task, size: None, time.monotonic())
            if wait_s == LONG_S:
                begin()
            scheduler.run([ShardState("train", shard, SAMPLES, "") for shard in range(tasks)])
            cpu, peak, start = begun[0]
            driver_s, seconds = time.process_time() - cpu, time.perf_counter() - start
            return {
                "tasks": len(scheduler.built),
                "seconds": round(seconds, 2),
                "tasks_per_s": round(tasks / seconds, 1),
                "driver_s": round(driver_s, 3),
                "driver_ms": round(driver_s / tasks * 1000, 3),
                "driver_mb": round(_peak_mb() - peak, 1),
            }
        finally:
            engine.close()


@contextmanager
def _context(folder: Path, wait_s: float) -> Iterator[Any]:
    """Hold the lock of a build, and yield what its workers are given."""
    from tfprep.builder.layout import Layout
    from tfprep.builder.shards.shard import BuildContext
    from tfprep.dataset.versions import locked
    from tfprep.sources import Listing

    layout = Layout(folder)
    layout.make()
    with locked(folder):
        yield BuildContext(b"", str(wait_s), layout, str(folder), Listing({}, (), (), iter(())), {}, "train", "scale")


def _peak_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


# --- nodes that are killed --------------------------------------------------------------------------------------------------


def kills(count: int, seed: int) -> dict[str, Any]:
    from tests.builder.test_cluster import SHARDS, Driver, Site, digests

    moments = random.Random(seed)
    equal = again = lost = 0
    with tempfile.TemporaryDirectory() as temporary, Cluster() as cluster:
        victim, _ = cluster.add(), cluster.add()
        for number in range(count):
            folder = Path(temporary) / str(number)
            folder.mkdir()
            site = Site(folder).write()
            expected = site.digests_of_local_build()
            site.wait(0.05)
            driver = Driver(cluster, site)
            driver.wait_for("node", 2)
            driver.wait_for("shard", moments.randrange(SHARDS - 5))
            time.sleep(moments.random() * 0.1)
            site.wait("hold")  # The other node cannot take what is left, so that the victim has work when it is killed.
            time.sleep(0.1)
            cluster.kill(victim)
            site.wait(0.05)
            summary = driver.end()
            lost += any(node["state"] == "lost" for node in summary["nodes"])
            equal += digests(site.out) == expected
            again += sum(times - 1 for times in driver.built().values())
            print(f"{number + 1}: {summary['nodes']}", file=sys.stderr)
            victim = cluster.add()
    return {"kills": count, "nodes_lost_while_building": lost, "equal_bytes": equal, "shards_built_again": again}


if __name__ == "__main__":
    main()
