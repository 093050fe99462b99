"""Kill nodes of a Ray cluster at random moments of a build: the dataset has the bytes of a build on one machine.

    python benchmarks/soak.py nodes --count 20 --seed 0 --json FILE

Two nodes, in a network namespace of their own, build 60 photos. Of one of them the whole node, the raylet or a worker process
is killed, after a random number of shards. A killed node is replaced. No shard that was finished is built again.
"""

from __future__ import annotations

import collections
import random
import shutil
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import harness
import numpy as np
import psutil

from tests.builder.conftest import digests
from tests.builder.ray_cluster import HEAD, Cluster
from tests.builder.test_cluster import SHARDS, Driver, SlowSite
from tests.waiting import wait_until

PHOTOS = 60
PROCESSES = {"raylet": "/raylet ", "worker": "ray::_build_part"}
"""What the command lines hold of the processes that are killed."""


def run(options: Any) -> None:
    chance, counts = random.Random(options.seed), collections.Counter[str]()
    with tempfile.TemporaryDirectory() as temporary, Cluster() as cluster:
        site = SlowSite.made(Path(temporary))
        for number in range(PHOTOS):
            site.picture(number, np.random.default_rng(number).integers(1, 255, (90, 120, 3), np.uint8))
        site.build_here()
        expected = digests(site.local)
        site.wait(0.05)
        while counts.total() < options.count:
            while len(cluster.nodes) < 3:
                cluster.add()
            shutil.rmtree(site.out, ignore_errors=True)
            whom, after, pause_s = chance.choice(["node", *PROCESSES]), chance.randrange(SHARDS), chance.random() / 2
            driver = Driver(cluster, site)
            wait_until(lambda: len(driver.events("shard")) >= after and driver.events("planned"), driver.process)  # noqa: B023
            time.sleep(pause_s)
            counts[whom] += kill(cluster, chance.choice([node for node in cluster.nodes if node != HEAD]), whom)
            driver.end()
            assert digests(site.out) == expected, f"{whom}: other bytes"
            assert set(driver.built().values()) == {1}, f"{whom}: a finished shard was built again"
            print(counts.total(), whom, f"after {after} shards and {pause_s:.2f} s", flush=True)
    harness.finish(options, {"kills": counts, "seed": options.seed})


def kill(cluster: Cluster, node: str, whom: str) -> bool:
    """Kill a node, or a process of it; return True if there was one."""
    if whom == "node":
        cluster.kill(node)
        return True
    processes = psutil.Process(cluster.nodes[node].pid).children(recursive=True)
    found = 0
    for process in processes:
        with suppress(psutil.Error):  # it has ended
            if PROCESSES[whom] in f"{' '.join(process.cmdline())} ":
                process.kill()
                found += 1
    if whom == "raylet":  # `ray start --block` ends without it
        cluster.nodes[node].wait()
        cluster.kill(node)
    return bool(found)
