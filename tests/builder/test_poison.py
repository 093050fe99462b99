"""A sample that kills its process is identified, tried once more alone, and rejected by name; the build goes on."""

import os
import re
import shutil
import struct
import subprocess
import time
from pathlib import Path

import cv2
import numpy as np
import psutil
import pytest
from PIL import Image

from tests.builder.conftest import check_whole, digests, driver
from tests.waiting import wait_until
from tfprep.builder import explain, plan_build
from tfprep.dataset import open_dataset
from tfprep.errors import BuildError, RecipeError, TooManyRejectsError


def poison(site, body: str, key: str = "train/cat/000") -> None:
    """Code that runs `body` for one sample, which it recognises by a mask that is all void; it may count its calls in `TRACE`."""
    Image.fromarray(np.full((24, 28), 2, np.uint8)).save(site.data / f"{key}.mask.png")
    trace = site.out.with_name("trace")
    site.change_recipe(
        "RECIPE = Recipe(",
        f"TRACE = {str(trace)!r}\n\n"
        "def poisoned(sample, generator):\n"
        "    if (sample['mask'] == 2).all():\n"
        "        with open(TRACE, 'a') as file:\n"
        "            file.write(f'{os.getpid()}\\n')\n"
        f"        {body}\n"
        "    return sample['mask']\n\nRECIPE = Recipe(",
    )
    site.change_recipe("derive={", 'derive={"poisoned": poisoned, ')


CRASHES = {
    "native crash": ("ctypes.string_at(0)", "its process was killed by SIGSEGV (a crash in native code)", 2),
    "exit": ("os._exit(7)", "its process was ended with exit status 7", 2),
    "out of memory": ("os.kill(os.getpid(), signal.SIGKILL)", "its process was killed by SIGKILL (out of memory?)", 3),
    "hang": ("time.sleep(60)", "no end after 1.5 s; its process was killed", 2),
    "hang in native code": (
        "ctypes.PyDLL(None).usleep(60_000_000)", "no end after 1.5 s; its process was killed", 2
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CRASHES)
def test_a_sample_that_crashes_is_rejected_by_name(full, name):
    body, reason, tries = CRASHES[name]
    poison(full, body)
    events = []
    summary = full.build(workers=1, item_timeout_s=1.5 if name.startswith("hang") else 60, on_event=events.append)
    assert (summary.samples, summary.rejects) == (29, 1)
    (reject,) = full.rejects()
    assert reject == {
        "key": "train/cat/000.jpg", "split": "train", "stage": "process", "field": "", "error": reason,
        "file": "train/cat/000.jpg",
    }  # fmt: skip
    crashes = [event.facts for event in events if event.name == "crash"]
    assert [crash["alone"] for crash in crashes] == [False] + [True] * (tries - 1)
    assert {crash["key"] for crash in crashes} == {"train/cat/000.jpg"}
    processes = full.out.with_name("trace").read_text().split()
    assert len(set(processes)) == len(processes) == tries, "each try in a process of its own"
    check_whole(full.out)
    assert full.build().built_shards == 0


UNUSUAL = """
class Unprintable(Exception):
    def __str__(self):
        raise ValueError("no")

class Leaving(Exception):
    def __str__(self):
        raise SystemExit

class Own(BaseException):
    pass

"""
RAISED = {
    "raise Unprintable()": "Unprintable (its text cannot be shown: ValueError in __str__)",
    "raise KeyboardInterrupt('mine')": "KeyboardInterrupt: mine",
    "raise GeneratorExit('mine')": "GeneratorExit: mine",
    "raise Own('mine')": "Own: mine",
    "raise SystemExit(3)": "SystemExit: 3",
    "raise Leaving()": "Leaving (its text cannot be shown: SystemExit in __str__)",
    "raise ValueError('half a pair: ' + chr(0xD800))": r"ValueError: half a pair: \xed\xa0\x80",
    "from tfprep.errors import SampleError; raise SampleError(np.ones(2))": "[1. 1.]",
}


@pytest.mark.parametrize("body", RAISED)
def test_whatever_a_users_function_raises_is_one_reject(full, body):
    """In this process; in a worker where that would end it: KeyboardInterrupt is Ctrl-C here."""
    workers = int(any(name in body for name in ("Keyboard", "SystemExit", "Leaving")))
    poison(full, body)
    full.change_recipe("TRACE = ", f"{UNUSUAL}TRACE = ")
    assert full.build(workers=workers).rejects == 1
    (reject,) = full.rejects()
    assert (reject["key"], reject["stage"], reject["field"]) == ("train/cat/000.jpg", "derive", "poisoned")
    assert reject["error"] == RAISED[body]
    check_whole(full.out)


@pytest.mark.parametrize("body", ["raise Unprintable()", "raise GeneratorExit", "raise Own('mine')"])
def test_whatever_a_recipe_raises_is_an_error_with_its_line(full, body):
    full.change_recipe("RECIPE = Recipe(", f"{UNUSUAL}{body}\nRECIPE = Recipe(")
    with pytest.raises(RecipeError, match=rf"tiny\.py, line \d+: (Unprintable|GeneratorExit|Own).*\n +{body[:9]}"):
        full.build()


def test_a_sample_that_crashed_is_tried_again_by_the_next_build(full):
    body, _, tries = CRASHES["native crash"]
    cured = full.out.with_name("cured")
    poison(full, f"None if os.path.exists({str(cured)!r}) else {body}")
    options = {"workers": 1, "item_timeout_s": 60}
    assert full.build(**options).rejects == 1
    before = digests(full.out)
    assert (
        explain(plan_build(full.recipe, full.out, full.data))
        == "1 of 6 shards: a sample crashed or took too long last time"
    )
    trace = full.out.with_name("trace")
    trace.unlink()
    summary = full.build(**options)
    assert (summary.rejects, summary.built_shards) == (1, 1)
    assert len(trace.read_text().split()) == tries
    assert digests(full.out) == before
    cured.touch()
    summary = full.build(**options)
    assert (summary.rejects, summary.built_shards) == (0, 1)
    assert digests(full.out) == full.from_nothing()


def test_of_several_rejects_those_that_now_succeed_are_kept(full):
    full.change_recipe('shards={"train": 4, "val": 2}', 'shards={"train": 1, "val": 1}')
    cured = full.out.with_name("cured")
    poison(full, f"os.abort() if sample['mask'].shape == (16, 20) and not os.path.exists({str(cured)!r}) else None")
    names = ["train/cat/000", "train/dog/001"]
    for name in names:
        Image.fromarray(np.full((24, 28), 2, np.uint8)).save(full.data / f"{name}.mask.png")
    assert full.build(workers=1).rejects == 2
    text = full.recipe.read_text()
    cured.touch()
    assert full.build(workers=1).rejects == 0
    assert full.recipe.read_text() == text
    assert digests(full.out) == full.from_nothing()


def test_a_recipe_that_is_edited_during_a_build_is_refused_by_its_workers(full):
    """A worker that replaces one that died would otherwise build records of another recipe under the receipts of this plan."""
    poison(full, f"(open({str(full.recipe)!r}, 'a').write('RECIPE = dataclasses.replace(RECIPE, seed=8)'), os.abort())")
    full.change_recipe("import os,", "import dataclasses, os,")
    with pytest.raises(RecipeError, match=r"tiny.py changed while the build was running; run the build again"):
        full.build(workers=1)
    assert not (full.out / "tfprep.json").exists()


def test_nothing_is_left_in_the_temporary_folder_after_a_kill(full, tmp_path):
    poison(full, "time.sleep(60)")
    folder = tmp_path / "temporary"
    folder.mkdir()
    environment = {**os.environ, "TMPDIR": str(folder)}
    process = subprocess.Popen(driver(full, workers=1), env=environment, stderr=subprocess.DEVNULL)
    trace = full.out.with_name("trace")
    wait_until(trace.exists, process)
    process.kill()
    process.wait()
    assert list(folder.iterdir()) == []


def test_a_sample_that_crashes_once_is_kept(full):
    """A process may be killed from outside, or run out of memory because of another sample: alone, the sample succeeds."""
    poison(full, "os.kill(os.getpid(), 9) if len(open(TRACE).readlines()) == 1 else None")
    assert full.build(workers=1).rejects == 0
    assert len(full.out.with_name("trace").read_text().split()) >= 3


def test_a_sample_that_crashes_only_after_others_is_kept(full):
    """The process crashes at this sample if it has made another one before. The new process continues with it, and succeeds."""
    full.change_recipe('"train": 4', '"train": 1')
    poison(full, "os.abort() if OTHERS else None")
    full.change_recipe("    return sample['mask']\n", "    OTHERS.append(1)\n    return sample['mask']\n")
    full.change_recipe("RECIPE = Recipe(", "OTHERS = []\nRECIPE = Recipe(")
    full.change_recipe(
        "        os.abort() if OTHERS else None\n", "        if OTHERS: os.abort()\n        return sample['mask']\n"
    )
    assert full.build(workers=1).rejects == 0


def test_a_sample_that_crashes_in_its_shard_every_time_is_left_out_in_the_end(full):
    """The process crashes at this sample in its shard, and not when it is tried alone."""
    crash, alone = 1, 2  # Calls: each crash is one, and a trial alone makes both variants.
    poison(full, f"os.abort() if len(open(TRACE).readlines()) % {crash + alone} == 1 else None")
    assert full.build(workers=1).rejects == 1
    assert full.rejects()[0]["error"] == "its process was killed by SIGABRT"
    assert len(full.out.with_name("trace").read_text().split()) == crash + alone + crash + alone + crash


@pytest.mark.parametrize("workers", [1, 3])
def test_what_is_finished_of_a_shard_is_kept_when_its_process_dies(full, workers):
    """Six samples of one shard crash. Every other sample is made once, and the bytes are those of a build without the six."""
    full.change_recipe('"train": 4', '"train": 1')
    poisoned = [f"train/{'cat' if n % 2 == 0 else 'dog'}/{n:03d}" for n in range(0, 24, 4)]
    poison(full, "os.abort()")
    for key in poisoned:
        Image.fromarray(np.full((24, 28), 2, np.uint8)).save(full.data / f"{key}.mask.png")
    made = full.out.with_name("made")
    full.change_recipe(
        "def poisoned(sample, generator):\n",
        f"def poisoned(sample, generator):\n    with open({str(made)!r}, 'a') as file:\n"
        "        file.write(f'{generator.random()}\\n')\n",
    )
    assert full.build(workers=workers).rejects == 6
    draws = made.read_text().split()  # one number for each sample and variant, whenever it is made
    good, tries = 18 * 2 + 6, 6 * 2
    assert (len(draws), len(set(draws))) == (good + tries, good + 6)
    check_whole(full.out)
    for key in poisoned:
        (full.data / f"{key}.jpg").unlink()
    other = full.out.with_name("without")
    full.build(other)
    name = "tiny-train.tfrecord-00000-of-00001"
    assert (full.out / name).read_bytes() == (other / name).read_bytes()
    old, new = (open_dataset(folder) for folder in (full.out, other))
    for what in ("splits", "statistics", "class_counts"):
        assert getattr(old.manifest, what) == getattr(new.manifest, what)
    assert old.index("train").equals(new.index("train"))
    assert not list((full.out / ".tfprep/new").iterdir())


def test_a_worker_that_dies_between_samples_is_replaced(full):
    """Workers that have no task yet, or wait for one, may die as well."""
    expected = full.from_nothing()
    killed = []

    def strike(event):
        if event.name in ("planned", "space") and len(killed) < 3:
            workers = [c for c in psutil.Process().children() if "tfprep.child_process" in c.cmdline()]
            killed.append(workers[0].pid)
            workers[0].kill()

    full.build(workers=2, on_event=strike)
    assert len(killed) >= 2
    assert digests(full.out) == expected


def test_workers_that_cannot_start_are_an_error(full, monkeypatch):
    monkeypatch.setattr("sys.executable", shutil.which("false"))
    with pytest.raises(BuildError, match=r"ended with exit status 1.* output is above"):
        full.build(workers=2)


def test_a_recipe_that_fails_only_in_workers_raises(full):
    full.change_recipe(
        "RECIPE = Recipe(",
        "import sys\nif 'child_process' in sys.argv[0]:\n    raise ImportError('no GPU')\nRECIPE = Recipe(",
    )
    with pytest.raises(Exception, match=r"no GPU"):
        full.build(workers=1)


def test_what_a_users_function_prints_and_reads_disturbs_nothing(full, capfd):
    expected = full.from_nothing()
    full.change_recipe(
        "RECIPE = Recipe(",
        'import sys\n\ndef noisy(sample, generator):\n    print(\'{"event": "done"}\')\n'
        "    os.system('echo noise')\n    assert sys.stdin.read() == ''\n    return sample['mask']\n\nRECIPE = Recipe(",
    )
    full.change_recipe("derive={", 'derive={"noisy": noisy, ')
    assert full.build(workers=1).rejects == 0
    assert '{"event": "done"}' in capfd.readouterr().err
    assert ".jpg: noise" in (full.out / ".tfprep/build.log").read_text()
    full.change_recipe('derive={"noisy": noisy, ', "derive={")
    assert full.from_nothing("again") == expected


def test_a_file_that_hangs_when_its_content_is_compared(full, monkeypatch):
    """The time limit also applies when a touched file is read to compare its content."""
    full.build(workers=1)
    path = full.data / "train/cat/000.jpg"
    os.utime(path, (1, 1))
    started = time.monotonic()
    marks = []
    from tfprep.builder.shards import shard

    real = shard._renew
    monkeypatch.setattr(shard, "_renew", lambda job, task, old, mark: real(job, task, old, marks.append))
    assert full.build().built_shards == 0
    assert marks == [*range(len(marks) - 1), -1]
    assert time.monotonic() - started < 30


def test_warnings_of_native_decoders_go_to_the_log_by_sample(full, capfd):
    """A 16-bit PNG with a text chunk of a wrong checksum: libpng writes a warning to descriptor 2."""
    done, png = cv2.imencode(".png", np.zeros((24, 28, 3), np.uint16))
    assert done
    chunk = struct.pack(">I", 4) + b"tEXt" + b"a\0b!" + b"\0\0\0\0"
    end = len(png) - 12
    (full.data / "train/cat/000.jpg").write_bytes(bytes(png[:end]) + chunk + bytes(png[end:]))
    classes = 'classes=("ground", "thing", "void")'
    full.change_recipe(classes, f'{classes}, pixels={{"image": sources.Pixels(to="uint8")}}')
    assert full.build(workers=1).rejects == 0
    assert capfd.readouterr().err == ""
    log = (full.out / ".tfprep/build.log").read_text()
    assert re.search(r"output: train/cat/000\.jpg: libpng warning: tEXt: CRC error", log), log


def test_warnings_of_a_users_function_go_to_the_log_too(full, capfd):
    full.change_recipe(
        "RECIPE = Recipe(", "def odd(sample, generator):\n    return np.zeros(1) / np.zeros(1)\n\nRECIPE = Recipe("
    )
    full.change_recipe("derive={", 'derive={"odd": odd, ')
    with pytest.raises(TooManyRejectsError):
        full.build(workers=1)
    assert capfd.readouterr().err == ""
    log = (full.out / ".tfprep/build.log").read_text()
    assert re.search(r"output: train/cat/\d+\.jpg: .*RuntimeWarning: invalid value encountered in divide", log), log


@pytest.fixture
def small_memory():
    """A memory cgroup of 700 MB, in which the kernel kills processes that grow beyond it. Needs root and version 1 or 2."""
    version_2 = Path("/sys/fs/cgroup/cgroup.controllers")
    root, limit = (version_2.parent, "memory.max") if version_2.exists() else (MEMORY, "memory.limit_in_bytes")
    group = root / f"tfprep-test-{os.getpid()}"
    try:
        group.mkdir()
        (group / limit).write_text(str(700 << 20))
    except OSError as error:
        pytest.skip(f"no memory cgroup can be made here: {error}")
    yield group
    group.rmdir()


MEMORY = Path("/sys/fs/cgroup/memory")


def kernel_kills(group: Path) -> int:
    """Number of processes of the cgroup that the kernel has killed for memory."""
    counters = group / ("memory.events" if (group / "memory.events").exists() else "memory.oom_control")
    return int(next(line.split()[1] for line in counters.read_text().splitlines() if line.startswith("oom_kill ")))


def test_a_sample_that_needs_too_much_memory_is_rejected_by_name(full, small_memory):
    """The kernel's out-of-memory killer ends the worker and not the build."""
    poison(full, "HOG = [np.ones(1 << 25, np.uint8) for _ in range(1000)]")
    command = driver(full, workers=2)
    join = f'echo $$ > {small_memory}/cgroup.procs && exec "$@"'
    done = subprocess.run(["sh", "-c", join, "sh", *command], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert kernel_kills(small_memory) == 3, "once in its shard, twice alone: SIGKILL may come from outside as well"
    (reject,) = full.rejects()
    assert (reject["key"], reject["stage"]) == ("train/cat/000.jpg", "process")
    assert reject["error"] == "its process was killed by SIGKILL (out of memory?)"
    assert check_whole(full.out).split("train").samples == 23
