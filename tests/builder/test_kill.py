"""A build that is killed at any moment makes the same bytes when it is repeated; `tests/test_kills.py` kills at each step."""

import os
import random
import subprocess
import time

import psutil
import pytest

from tests.builder.conftest import check_whole, digests

MORE = int(os.environ.get("TFPREP_TEST_KILLS", "1"))  # The nightly run kills ten times as often.
KILLS = {"parent": 2 * MORE, "worker": 4 * MORE}


def start(site):
    with site.out.with_name("said").open("a") as said:
        return subprocess.Popen(site.driver(2), stdout=said, stderr=said)


def workers_of(process):
    try:
        return [child for child in psutil.Process(process.pid).children() if "tfprep.pool" in child.cmdline()]
    except psutil.Error:
        return []


def gone(processes):
    return not psutil.wait_procs(processes, timeout=120)[1]


def kill(process, victim, rng):
    """Sends SIGKILL; returns False if the process has ended."""
    workers = workers_of(process)
    if process.poll() is not None or (victim == "worker" and not workers):
        return False
    if victim == "worker":
        rng.choice(workers).kill()
        return True
    process.kill()
    process.wait()
    assert gone(workers), "workers end with their parent"
    return True


@pytest.mark.parametrize("victim", KILLS)
def test_kill_at_random_moments(full, victim):
    """Builds are killed until one completes. Each round must end with the bytes of a build without a kill."""
    full.fill(train=40, val=8).slow()
    expected = full.from_nothing()
    rng = random.Random(f"{victim} {os.environ.get('TFPREP_TEST_SEED', '')}")
    # A sample whose worker is killed three times in a row is rejected, by design: kills are further apart than new workers take.
    first_s, latest_s = (0.4, 1.0) if victim == "worker" else (0.02, 0.8)
    kills = rounds = 0
    while kills < KILLS[victim]:
        rounds += 1
        full.out = full.out.with_name(f"round{rounds}")
        process = start(full)
        while process.poll() is None and kills < KILLS[victim]:
            time.sleep(rng.uniform(first_s, latest_s))
            kills += kill(process, victim, rng)
            if process.poll() not in (None, 0):
                process = start(full)
        if process.wait() != 0:
            full.build(workers=2)
        assert digests(full.out) == expected, (full.out.with_name("said")).read_text()
        check_whole(full.out)
        assert not list((full.out / ".tfprep/new").iterdir())
