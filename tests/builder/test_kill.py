"""A build that is killed at any moment ends with the same bytes when it is repeated; a reader sees the old or the new dataset."""

import os
import random
import subprocess
import sys
import time
from collections import Counter
from contextlib import suppress

import psutil
import pytest

from tests.builder.conftest import check_whole, digests
from tests.kills import COUNTED
from tfprep.builder import BuildOptions, build
from tfprep.dataset import open_dataset
from tfprep.dataset.verify import verify

MORE = int(os.environ.get("TFPREP_TEST_KILLS", "1"))  # The nightly run kills ten times as often, and at every step.
STRIDE = 1 if MORE > 1 else 7
"""Only each seventh rename, link or removal of a build is one at which it is killed, but in the nightly run."""
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


# --- at each step of a publication -----------------------------------------------------------------------------------

ALTERNATING = """
from tfprep.builder import BuildOptions, build, publish

recipes, out, data, stride = sys.argv[1:3], sys.argv[3], sys.argv[4], int(sys.argv[5])
real = publish.write_files

def published(*arguments):
    count("replace", "unlink", "rename", "link")
    return real(*arguments)

def count_publication():
    publish.write_files = published

finished = set()
while len(finished) < 2:
    die_at += stride
    for recipe in recipes:
        ended = status(count_publication, lambda: build(recipe, out, data, options=BuildOptions(workers=0)))
        assert ended in (0, 9), ended
        if ended == 0:
            finished.add(recipe)
print(die_at)
"""


def test_a_reader_sees_one_of_two_datasets_while_builds_of_both_alternate_and_are_killed(site, tmp_path):
    """The shards of both recipes have equal names and sizes, so that a mixture cannot be detected by size. Each build is
    killed at the next rename, link or removal of its publication, while one reader opens and reads the dataset all the time
    and another keeps one version open, which every build leaves as it is."""
    site.fill(train=6, val=2)
    site.change_recipe('{"train": 4, "val": 2}', '{"train": 2, "val": 1}', "codecs.Jpeg(90)", "codecs.Raw()")
    site.change_recipe('"mask": codecs.Png(), ', "")
    other = site.recipe.with_name("other.py")
    other.write_text(site.recipe.read_text().replace("Brightness(0.2)", "Brightness(0.4)"))
    both = []
    for recipe in (other, site.recipe):
        build(recipe, site.out, site.data, options=BuildOptions(workers=0))
        both.append(read_all(open_dataset(site.out)))
    assert both[0] != both[1]
    command = [
        sys.executable,
        "-c",
        COUNTED + ALTERNATING,
        *map(str, (site.recipe, other, site.out, site.data, STRIDE)),
    ]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    seen, kept = Counter(), open_dataset(site.out)
    of_kept = read_all(kept)
    while process.poll() is None:
        with suppress(subprocess.TimeoutExpired):
            process.wait(0.02)  # The builds need a core as well.
        data = kept if sum(seen.values()) % 2 else open_dataset(site.out)
        values = read_all(data)
        assert data is not kept or values == of_kept
        seen[both.index(values)] += 1
    out, err = process.communicate()
    assert process.returncode == 0, err
    assert int(out) > 15, "steps at which builds were killed"
    assert min(seen[0], seen[1]) > 0, seen
    assert not list(verify(site.out))


def read_all(data):
    """All pixels of all variants, by split, variant and position."""
    return {
        (split, variant, position): (sample["image"].tobytes(), sample["distance"].tobytes())
        for split, info in data.splits.items()
        for variant in range(info.variants)
        for position, sample in enumerate(data.samples(split, variant))
    }
