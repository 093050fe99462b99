"""Builds on a Ray cluster of real nodes, each with processes and an address of its own, which are killed, added and refused.

The tests share one cluster and follow each other in it, since each node takes seconds to start.
"""

import json
import re
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.builder.conftest import Site, digests
from tests.builder.ray_cluster import ADDRESS, CLIENT_ADDRESS, Cluster, why_not
from tests.photos import save
from tests.waiting import wait_until
from tfprep.storage.urls import durable_write

pytest.importorskip("ray")
pytestmark = pytest.mark.skipif(bool(why_not()), reason=f"no cluster here: {why_not()}")

RECIPE = """
import json, os, signal
from pathlib import Path
import numpy as np
from tfprep import Recipe, codecs, sources
from neighbor.waiting import wait

SCALE = json.loads(Path(__file__).with_name("scale.json").read_text()) * np.load(Path(__file__).with_name("one.npy"))

def slow(sample, generator):
    wait()
    if (sample["image"] == 255).all():
        os.kill(os.getpid(), signal.SIGKILL)
    if (sample["image"] == 0).all():
        raise ValueError("no light")
    return (sample["image"] * SCALE).astype(np.float32)

RECIPE = Recipe(
    name="slow", source=sources.Folder(), derive={"slow": slow}, shards={"train": 6}, seed=3,
    files=["one.npy"], store={"image": codecs.Png(), "slow": codecs.Raw("float32"), "label": codecs.Scalar()},
)
"""
NEIGHBOR = """
import time
from pathlib import Path

def wait():
    while (seconds := Path(SECONDS).read_text()) == "hold":
        time.sleep(0.05)
    time.sleep(float(seconds))
"""
SAMPLES = 24
SHARDS = 6


class SlowSite(Site):
    """Raw images, and a recipe with neighbors whose samples take as long as they are told to."""

    @classmethod
    def made(cls, folder):
        site = cls(folder / "data", folder / "out", folder / "slow.py")
        package = folder / "neighbor"
        package.mkdir()
        (package / "__init__.py").touch()
        (package / "waiting.py").write_text(NEIGHBOR.replace("SECONDS", repr(str(folder / "seconds"))))
        (folder / "scale.json").write_text("2.5")
        np.save(folder / "one.npy", np.float32(1))
        site.recipe.write_text(RECIPE)
        site.wait(0)
        for number in range(SAMPLES):
            site.picture(number, np.random.default_rng(number).integers(1, 255, (8, 8, 3), np.uint8))
        return site

    def picture(self, number, pixels):
        save(self.data / f"cat/{number:03d}.png", pixels)

    def wait(self, seconds):
        """Make each sample take this long, or hold it until it is told otherwise; this changes no byte of it."""
        durable_write(self.recipe.with_name("seconds"), str(seconds))

    @property
    def local(self):
        return self.out.with_name("local")

    def build_here(self):
        """Build into `local` on this machine, and return the summary."""
        command = replace(self, out=self.local).command("--json", "--workers", "1")
        return json.loads(subprocess.run(command, check=True, capture_output=True).stdout)


class Driver:
    """A build on the cluster, and the events that it prints."""

    def __init__(self, cluster, site):
        self._log = site.out.with_name("events.jsonl")
        with self._log.open("w") as file:
            command = site.command("--json", "--engine", "ray", "--address", ADDRESS)
            self.process = cluster.run(command, stderr=file, stdout=subprocess.PIPE)

    def events(self, name):
        lines = [json.loads(line) for line in self._log.read_text().splitlines() if line.startswith("{")]
        return [event for event in lines if event["event"] == name]

    def wait_for(self, name, count=1):
        """Wait until that many such events were printed."""
        wait_until(lambda: len(self.events(name)) >= count, self.process)

    def end(self):
        """Return the summary of a build that succeeds."""
        output, _ = self.process.communicate()
        assert self.process.returncode == 0, self._log.read_text()
        return json.loads(output)

    def error(self):
        """Return the message of a build that fails."""
        self.process.communicate()
        assert self.process.returncode == 1, self._log.read_text()
        return self._log.read_text().splitlines()[-1]

    def built(self):
        return Counter(event["shard"] for event in self.events("shard") if event["built"])


@pytest.fixture(scope="module")
def cluster():
    with Cluster() as cluster:
        yield cluster


@pytest.fixture
def two_nodes(cluster):
    """The nodes that an earlier test left, or new ones."""
    if missing := 3 - len(cluster.nodes):
        cluster.add_all(missing)


@pytest.fixture
def site(tmp_path):
    return SlowSite.made(tmp_path)


def test_a_node_that_would_make_other_bytes_or_sees_other_folders_ends_the_build_and_is_named(cluster, site):
    other = site.out.with_name("other")
    other.mkdir()
    (other / "sitecustomize.py").write_text("import cv2\ncv2.__version__ = '4.9.0'\n")
    site.out.mkdir()
    for node, message in (
        ({"environment": {"PYTHONPATH": f"{other}:{cluster.environment['PYTHONPATH']}"}}, "opencv is 4.9.0 here and"),
        ({"before": f"mount -t tmpfs none {site.out}"}, f"{site.out} does not hold the plan of this build there"),
    ):
        address = cluster.add(**node)
        error = Driver(cluster, site).error()
        cluster.kill(address)
        assert error.startswith(f"tfprep: node {address}: ")
        assert message in error
        assert list((site.out / ".tfprep/receipts").iterdir()) == []
        assert list((site.out / ".tfprep/parts").glob("plan.json")) == [], "it binds no later build"


def test_a_node_is_killed_another_joins_late_and_the_driver_is_killed(cluster, site):
    site.build_here()
    site.wait(0.1)
    first, second = cluster.add_all(2)
    driver = Driver(cluster, site)
    driver.wait_for("shard", 2)
    driver.process.kill()
    driver.process.communicate()
    finished = {int(path.stem.split("-")[1]) for path in (site.out / ".tfprep/receipts").glob("train-?????.json")}
    assert 2 <= len(finished) < SHARDS

    again = Driver(cluster, site)
    again.wait_for("shard", 1)
    site.wait("hold")
    cluster.kill(first)
    cluster.add()
    again.wait_for("warning")
    site.wait(0.05)
    again.end()
    (warning,) = again.events("warning")
    assert warning["text"].startswith(f"node {first} was lost")
    assert set(again.built().values()) == {1}, "no shard that was finished is built again"
    assert not finished & again.built().keys()
    assert {event["node"] for event in again.events("shard")} >= {second}
    assert digests(site.out) == digests(site.local)


def test_samples_that_kill_workers_or_fail_on_a_node_are_rejected_by_name(cluster, two_nodes, site):
    site.picture(7, np.full((8, 8, 3), 255, np.uint8))
    site.picture(9, np.zeros((8, 8, 3), np.uint8))
    here = site.build_here()
    driver = Driver(cluster, site)
    summary = driver.end()
    assert digests(site.out) == digests(site.local), "rejects.jsonl among them"
    assert summary["rejected"] == 2
    differing = {"out", "path", "seconds"}
    assert {name: summary[name] for name in summary.keys() - differing} == {
        name: here[name] for name in here.keys() - differing
    }
    crashes = Counter(crash["key"] for crash in driver.events("crash"))
    assert set(crashes) == {"", "cat/007.png"}, "the first crash is of an unknown sample"
    assert [(lost["key"], lost["reason"]) for lost in driver.events("lost")] == [
        ("cat/007.png", "its process was killed by SIGKILL (out of memory?)")
    ]
    assert set(driver.built().values()) == {1}


def test_one_program_builds_again_and_again(cluster, two_nodes, site):
    """It builds over Ray Client into an object store, and over a connection of its own: see `session`."""
    pytest.importorskip("obstore")
    pytest.importorskip("moto")
    site.picture(9, np.zeros((8, 8, 3), np.uint8))
    site.build_here()
    command = [sys.executable, "-m", "tests.builder.cluster_session", str(site.recipe.parent), ADDRESS, CLIENT_ADDRESS]
    session = cluster.run(command, stdout=subprocess.PIPE, cwd=Path(__file__).parents[2])
    output, _ = session.communicate()
    assert session.returncode == 0
    results = json.loads(output)
    stored = results.pop("store through Ray Client")
    errors = {name: result["error"] for name, result in results.items()}
    assert re.search(
        r"^node 10\.77\.0\.\d+: .*cat/009\.png: derive of 'slow': ValueError: no light", errors["bad sample"]
    )
    assert "waiting.py was edited after this process imported it" in errors["changed module in one program"]
    assert "no Ray cluster at '10.77.0.1:1'" in errors["no cluster"]
    from tests.builder.cluster_session import NOT_STARTED  # with Ray

    if NOT_STARTED.search(stored.get("error", "")):
        pytest.skip(f"Ray's client server did not start: {stored['error']}")
    assert (stored.get("built"), stored["equal"]) == (SHARDS, True), stored
