"""Descriptions of the machine: the page cache by mincore, memory limits, the file system, and CPU time of child processes."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tfprep.bench import machine
from tfprep.bench.machine import file_system
from tfprep.bench.rounds import Meter


def test_a_new_file_is_in_the_page_cache(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(os.urandom(1 << 20))
    assert machine.cached_share([path]) == 1.0


def test_a_dropped_file_is_not_in_the_page_cache(tmp_path: Path) -> None:
    path = tmp_path / "file"
    with path.open("wb") as file:
        file.write(os.urandom(1 << 20))
        file.flush()
        os.fsync(file.fileno())  # Pages that are not yet on disk cannot be dropped.
    machine.drop_cache([path])
    if file_system(tmp_path) in ("tmpfs", "overlay"):
        pytest.skip("a file in memory cannot leave it")
    assert machine.cached_share([path]) == 0.0
    with path.open("rb") as file:
        file.read(1 << 20)
    assert machine.cached_share([path]) == 1.0


def test_empty_files_have_no_share(tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    assert machine.cached_share([tmp_path / "empty"]) is None
    assert machine.cached_share([]) is None


def test_this_machine(tmp_path: Path) -> None:
    here = machine.this_machine(tmp_path)
    assert here.cores == len(os.sched_getaffinity(0))
    assert 2**28 < here.memory_bytes <= os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    named = subprocess.run(["stat", "-f", "-c", "%T", tmp_path], capture_output=True, text=True, check=True).stdout
    assert here.file_system.startswith(named.strip().split("/")[0][:3])
    assert f"{here.cores} cores" in here.words


def test_the_meter_counts_children_and_memory() -> None:
    burn = "import time\nend = time.process_time() + 0.3\nwhile time.process_time() < end: pass\n"
    with Meter() as meter:
        kept = bytearray(os.urandom(1)) * (64 << 20)
        subprocess.run([sys.executable, "-c", burn], check=True)
    assert meter.used.cpu_s >= 0.3
    assert meter.used.rss_peak > len(kept)
    assert meter.used.memory[0][0] < 0.1


def test_the_meter_of_an_idle_period() -> None:
    with Meter() as meter:
        time.sleep(0.3)
    assert meter.used.cpu_s < 0.25
    assert meter.used.cores < 1
    assert meter.used.others is None  # The period is too short for a result.
