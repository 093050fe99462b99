"""What containers, batch systems and systemd allow a process, on generated control groups."""

import os
import subprocess
import sys
import time

import psutil
import pytest

from tfprep.limits import CpuTimes, available_memory, groups, memory_limit, usable_cpus


@pytest.fixture
def place(tmp_path):
    """A function that writes the files of groups and returns (mount, own)."""

    def make(own, files):
        (tmp_path / "own").write_text(own)
        for name, text in files.items():
            path = tmp_path / "mount" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return tmp_path / "mount", tmp_path / "own"

    return make


MEMORY = {
    "a container sees its own group as the root": (
        "0::/\n",
        {"memory.max": "1000000\n", "memory.current": "700000\n", "memory.stat": "anon 5\ninactive_file 200000\n"},
        1_000_000, 500_000,
    ),
    "a job's group; one above it has less": (
        "0::/slurm/job_7/step_0\n",
        {
            "memory.stat": "", "slurm/memory.max": "max\n", "slurm/job_7/memory.max": "900000\n",
            "slurm/job_7/memory.current": "600000\n", "slurm/job_7/memory.stat": "inactive_file 0\n",
            "slurm/job_7/step_0/memory.max": "2000000\n", "slurm/job_7/step_0/memory.current": "600000\n",
            "slurm/other/memory.max": "5\n",
        },
        900_000,
        300_000,
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", MEMORY)
def test_memory(place, case):
    own, files, limit, available = MEMORY[case]
    where = place(own, files)
    assert memory_limit(*where) == limit
    assert available_memory(*where) == available


@pytest.mark.parametrize(
    ("own", "files"),
    [("0::/\n", {"memory.max": "max\n"}), ("0::/no/such\n", {"memory.stat": ""}), ("", {"memory.max": "5\n"})],
)
def test_without_a_limit_the_machines_memory_counts(place, own, files):
    where = place(own, files)
    assert memory_limit(*where) == psutil.virtual_memory().total
    assert abs(available_memory(*where) - psutil.virtual_memory().available) < 1 << 30
    assert usable_cpus(*where) == len(os.sched_getaffinity(0))


def test_systems_other_than_linux(tmp_path):
    assert not list(groups(tmp_path, tmp_path / "none"))


CPUS = {
    "a quota of one and a half": ("0::/\n", {"cpu.max": "150000 100000\n"}, 2),
    "less than one": ("0::/\n", {"cpu.max": "20000 100000\n"}, 1),
    "above": ("0::/a/b\n", {"a/cpu.max": "300000 100000\n", "a/b/cpu.max": "max 100000\n"}, 3),
}  # fmt: skip


@pytest.mark.parametrize("case", CPUS)
def test_cpus(place, monkeypatch, case):
    own, files, expected = CPUS[case]
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(64)))
    assert usable_cpus(*place(own, files)) == expected


@pytest.mark.skipif(not os.path.exists("/proc/self/schedstat"), reason="only Linux counts waits for a processor")
def test_processor_times_of_children_count_as_own():
    """More children than processors compute for a while: their time is their own, and so is what they wait for a processor."""
    code = "import time; print(flush=True); end = time.process_time() + 0.3\nwhile time.process_time() < end: pass\ninput()"
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    count = 2 * usable_cpus() + 1
    before, children = CpuTimes.now(), [subprocess.Popen([sys.executable, "-c", code], **pipes) for _ in range(count)]
    try:
        while CpuTimes.now().since(before).own < 0.3 * count:
            time.sleep(0.05)
        spent = CpuTimes.now().since(before)
    finally:
        for child in children:
            child.communicate(b"\n")
    assert spent.lacking > 0.1
    after = CpuTimes.now().since(before)
    assert after.own >= 0.3 * count
    assert after.lacking >= spent.lacking  # though the children have ended
    assert CpuTimes(1.0, 5.0, 2.0).since(CpuTimes(0.5, 6.0, 2.5)) == CpuTimes(0.5, 0.0, 0.0)
