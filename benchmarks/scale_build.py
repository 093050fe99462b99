"""Builds on a Ray cluster whose nodes are killed.

    python benchmarks/scale_build.py --kills 20 --json kills.json

The cluster (`ray_cluster.py`; Linux and root) is on this machine: each node has an address and processes of its own and says that
it has one core. N builds of 48 samples in 12 shards each lose a node with its workers at a random moment. Counted are builds
with the bytes of a local build, and shards that were finished before the kill and built again after it;
the exit status is 1 if bytes differ or a shard was built again.
"""

from __future__ import annotations

import json
import random
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks import harness
from benchmarks.ray_cluster import Cluster, why_not


def main() -> None:
    options = harness.arguments(
        __doc__ or "", kills=(20, "Number of builds that lose a node"), seed=(0, "Seed of the moments of the kills")
    )
    if reason := why_not():
        sys.exit(f"no cluster here: {reason}")
    results = kills(options.kills, options.seed)
    print(json.dumps(results, indent=1))
    harness.finish(options, results, failed=results["equal_bytes"] < options.kills or results["shards_built_again"] > 0)


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
            site.build_here()
            expected = digests(site.folder / "local")
            site.wait(0.05)
            driver = Driver(cluster, site)
            driver.wait_for("shard", 1 + moments.randrange(SHARDS // 2))
            site.wait("hold")  # The other node cannot take what is left, so that the victim has work when it is killed.
            time.sleep(0.1)
            cluster.kill(victim)
            site.wait(0.05)
            driver.end()
            lost += bool(driver.events("warning"))
            equal += digests(site.out) == expected
            again += sum(times - 1 for times in driver.built().values())
            print(f"{number + 1}: {len(driver.built())} shards", file=sys.stderr)
            victim = cluster.add()
    return {"kills": count, "nodes_lost_while_building": lost, "equal_bytes": equal, "shards_built_again": again}


if __name__ == "__main__":
    main()
