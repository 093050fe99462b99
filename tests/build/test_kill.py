"""Killed at any moment, the same command ends with the same bytes; a reader sees the old dataset, the new one or none."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time

import psutil
import pytest

KILLS = {"parent": 12, "worker": 27, "all": 12}
SLOW = "def slow(sample, generator):\n    time.sleep(0.004)\n    return sample['mask']\n\nRECIPE = Recipe("


def slowed(site):
    """A build of a second or so, most of it waiting: the moments of the kills fall everywhere."""
    site.change_recipe("RECIPE = Recipe(", SLOW)
    site.change_recipe("derive={", 'derive={"slow": slow, ')
    return site


def start(site, tools):
    command = tools["driver"](site, workers=2)
    with site.out.with_name("said").open("a") as said:
        return subprocess.Popen(command, stdout=said, stderr=said, start_new_session=True)


def workers_of(process):
    try:
        return [child for child in psutil.Process(process.pid).children() if "tfprep.engines.worker" in child.cmdline()]
    except psutil.Error:
        return []


def gone(processes):
    _, alive = psutil.wait_procs(processes, timeout=10)
    return not alive


def kill(process, victim, rng):
    """SIGKILL; False where there is nothing to kill (any more)."""
    workers = workers_of(process)
    if process.poll() is not None or (victim == "worker" and not workers):
        return False
    if victim == "worker":
        rng.choice(workers).kill()
        return True
    os.killpg(process.pid, signal.SIGKILL) if victim == "all" else process.kill()
    process.wait()
    assert gone(workers), "workers end with their parent"
    return True


@pytest.mark.parametrize("victim", KILLS)
def test_kill_at_random_moments(full, tools, victim):
    """Builds are killed until one comes through, round after round; each round ends as a build without a kill does."""
    slowed(full).fill(train=40, val=8)
    expected = full.from_nothing()
    rng = random.Random(f"{victim} {os.environ.get('TFPREP_TEST_SEED', '')}")
    latest_s = 0.3 if victim == "worker" else 0.8
    kills = rounds = 0
    while kills < KILLS[victim]:
        rounds += 1
        full.out = full.out.with_name(f"round{rounds}")
        process = start(full, tools)
        while process.poll() is None and kills < KILLS[victim]:
            time.sleep(rng.uniform(0.02, latest_s))
            kills += kill(process, victim, rng)
            if process.poll() not in (None, 0):
                process = start(full, tools)
        if process.wait() != 0:
            full.build(workers=2)
        assert tools["digests"](full.out) == expected, (full.out.with_name("said")).read_text()
        tools["check_whole"](full.out)
        assert not list((full.out / ".tfprep/new").iterdir())


# --- at every step ----------------------------------------------------------------------------------------------------

EVERY_STEP = """
import os, sys, hashlib
from pathlib import Path
import tfprep.build.run, tfprep.build.publish, tfprep.build.shard, cv2
from tfprep.build import build, BuildOptions

recipe, out, data, report = sys.argv[1:]
steps = 0

def counted(function):
    def step(*arguments, **options):
        global steps
        steps += 1
        if steps == die_at:
            os._exit(9)
        return function(*arguments, **options)
    return step

def child():
    cv2.setNumThreads(0)
    os.fsync = lambda descriptor: None  # what a killed process wrote stays: no need to wait for the disk
    for name in ("fsync", "replace", "unlink", "rename", "link"):
        setattr(os, name, counted(getattr(os, name)))
    Path.replace = lambda self, target: os.replace(self, target)
    def unlink(self, missing_ok=False):
        try:
            os.unlink(self)
        except FileNotFoundError:
            if not missing_ok:
                raise
    Path.unlink = unlink
    build(recipe, out, data, options=BuildOptions(workers=0))
    os._exit(0)

# A fork before any thread is started: each child dies one step later than the one before, in a copy of the same folder.
die_at = 0
with open(report, "w") as told:
    while True:
        die_at += 1
        os.system(f"rm -rf {out} && cp -a {out}.before {out}")
        pid = os.fork()
        if pid == 0:
            child()
        _, status = os.waitpid(pid, 0)
        code = os.waitstatus_to_exitcode(status)
        told.write(f"{die_at} {code}\\n")
        told.flush()
        if code != 9:
            break
        os.rename(out, f"{out}.{die_at}")
"""


def test_kill_at_every_step_of_a_build_over_an_older_dataset(site, tools, tmp_path):
    """At each fsync, rename and removal the process vanishes. What is there then is the old dataset whole, the new one whole,
    or none that opens; and the same build ends with the bytes of a build from nothing."""
    from tfprep.dataset import Dataset
    from tfprep.errors import DatasetError

    full = site.fill(train=10, val=3)
    full.change_recipe('{"train": 4, "val": 2}', '{"train": 2, "val": 1}')
    full.build()
    old = Dataset.open(full.out).manifest
    full.out.rename(full.out.with_name("out.before"))
    full.add("train/cat/000", 500, mask=False)
    full.add("train/cat/new", 501)
    (full.data / "val/dog/001.jpg").unlink()
    expected = full.from_nothing()
    new = Dataset.open(full.out.with_name("fresh")).manifest
    command = [sys.executable, "-c", EVERY_STEP, *map(str, (full.recipe, full.out, full.data, tmp_path / "report"))]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stderr
    *killed, last = (tmp_path / "report").read_text().splitlines()
    assert last.endswith(" 0"), done.stderr
    assert len(killed) > 40
    seen = set()
    for step in range(1, len(killed) + 1):
        full.out = tmp_path / f"out.{step}"
        try:
            found = tools["check_whole"](full.out).manifest
        except DatasetError:
            seen.add("none")
        else:
            assert found in (old, new), f"step {step}"
            seen.add("old" if found == old else "new")
        full.build()
        assert tools["digests"](full.out) == expected, f"step {step}"
    assert seen == {"old", "new", "none"}


# --- Ctrl-C -----------------------------------------------------------------------------------------------------------


def test_kill_by_ctrl_c_leaves_no_process_and_continues(full, tools):
    slowed(full).fill(train=60, val=12)
    expected = full.from_nothing()
    process = start(full, tools)
    while len(found := workers_of(process)) < 2 or not list(full.out.glob(".tfprep/receipts/*-0000[0-9].json")):
        time.sleep(0.01)
        assert process.poll() is None
    os.killpg(process.pid, signal.SIGINT)
    assert process.wait(20) != 0
    assert "KeyboardInterrupt" in full.out.with_name("said").read_text()
    assert gone(found)
    assert not (full.out / "tfprep.json").exists()
    assert "failed: stopped; the same command continues" in (full.out / ".tfprep/build.log").read_text()
    summary = full.build(workers=2)
    assert 0 < summary.built_samples < 72
    assert tools["digests"](full.out) == expected
