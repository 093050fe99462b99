"""A sample that kills its process is identified when its shard is built again, and rejected by name; the build goes on."""

import os
import shutil
import subprocess
from collections import Counter
from pathlib import Path

import pytest

from tests.builder.conftest import check_whole, digests
from tests.waiting import wait_until
from tfprep.errors import BuildError, RecipeError

KEY = "train/cat/000"
TIMEOUT_S = 3


def poison(site, body: str | dict[str, str]) -> Path:
    """Adds code that runs a body for each of these samples, by default for `KEY`, after it has written the number of the body and
    the process to the file that it returns and that bodies know as TRACE.

    The code recognizes a sample by its mask, which has one number everywhere: 2, the value that fills what rotations leave empty,
    for the first body."""
    bodies = {KEY: body} if isinstance(body, str) else body
    distinct = list(dict.fromkeys(bodies.values()))
    for key, text in bodies.items():
        site.mask(key, 2 + distinct.index(text))
    trace = site.out.with_name("trace")
    more = "".join(f', "class {number}"' for number in range(3, 2 + len(distinct)))
    site.change_recipe('"void")', f'"void"{more})')
    site.define(f"TRACE = {str(trace)!r}")
    ways = "".join(f"    if number == {number}:\n        {text}\n" for number, text in enumerate(distinct))
    site.derive(
        "poisoned",
        "number = int(sample['mask'].min()) - 2\n"
        "if number >= 0 and number == sample['mask'].max() - 2:\n"
        "    with open(TRACE, 'a') as file:\n"
        "        file.write(f'{number} {os.getpid()}\\n')\n"
        f"{ways}"
        "return sample['mask']",
    )
    return trace


def key_of(number: int) -> str:
    return f"train/{('cat', 'dog')[number % 2]}/{number:03d}"


CRASHES = {
    "ctypes.string_at(0)": ("its process was killed by SIGSEGV (a crash in native code)", 3),
    "os.kill(os.getpid(), signal.SIGKILL)": ("its process was killed by SIGKILL (out of memory?)", 3),
    "ctypes.PyDLL(None).usleep(60_000_000)": (f"no end after {TIMEOUT_S} s; its process was killed", 2),
}
"""Crashes, and a function that keeps the lock of the interpreter; their reasons and the numbers of tries."""


def test_samples_that_crash_are_rejected_by_name(full):
    trace = poison(full, {key_of(number): body for number, body in enumerate(CRASHES)})
    events = []
    summary = full.build(workers=1, item_timeout_s=TIMEOUT_S, on_event=events.append)
    assert (summary.samples, summary.rejected) == (27, 3)
    crashes = [event.facts for event in events if event.name == "crash"]
    calls = [line.split() for line in trace.read_text().splitlines()]
    for number, (sample, (reason, tries)) in enumerate(zip(full.rejected(), sorted_by_key(CRASHES), strict=True)):
        key = sample["key"]
        assert sample == {
            "key": key, "split": "train", "stage": "process", "field": "", "error": reason, "file": key,
        }, number  # fmt: skip
        assert len([crash for crash in crashes if crash["key"] == key]) == tries - 1, "not known at the first crash"
    counts = Counter(number for number, _ in calls)
    for number, (_, tries) in enumerate(CRASHES.values()):  # two of one shard end its first build once
        assert counts[str(number)] in (tries - 1, tries)
    assert len({process for _, process in calls}) == len(calls) == len(crashes), "each try in a process of its own"
    check_whole(full.out)
    assert full.build().built_shards == 0
    built = digests(full.out)
    for number in range(len(CRASHES)):
        (full.data / f"{key_of(number)}.jpg").unlink()
    others = full.from_nothing()
    assert {name for name in built if built[name] != others.get(name)} == {"rejects.jsonl", "manifest.json"}


def sorted_by_key(table: dict) -> list:
    """The values of a table whose row number n is about the sample `key_of(n)`, in the order of keys."""
    return [value for _, value in sorted((key_of(number), value) for number, value in enumerate(table.values()))]


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


def test_whatever_a_users_function_raises_is_one_rejected_sample(full):
    """In a worker, since KeyboardInterrupt is Ctrl-C in this process."""
    poison(full, {key_of(number): body for number, body in enumerate(RAISED)})
    full.change_recipe("TRACE = ", f"{UNUSUAL}\nTRACE = ")
    assert full.build(workers=1).rejected == len(RAISED)
    assert {(sample["stage"], sample["field"]) for sample in full.rejected()} == {("derive", "poisoned")}
    assert [sample["error"] for sample in full.rejected()] == sorted_by_key(RAISED)
    check_whole(full.out)


@pytest.mark.parametrize("body", ["raise Unprintable()", "raise GeneratorExit", "raise Own('mine')"])
def test_whatever_a_recipe_raises_is_an_error_with_its_line(full, body):
    full.define(f"{UNUSUAL}{body}")
    with pytest.raises(RecipeError, match=rf"tiny\.py, line \d+: (Unprintable|GeneratorExit|Own).*\n +{body[:9]}"):
        full.build()


@pytest.mark.parametrize(
    ("faults", "why"),
    [
        (["os.abort()"], "a sample crashed or took too long last time"),
        (
            ["np.ones(1 << 50)", "__import__('cv2').resize(np.zeros((2, 2)), (1 << 30, 1 << 30))"],
            "a sample did not fit into memory last time",
        ),
    ],
)
def test_samples_that_met_an_accident_are_tried_again_by_the_next_build_and_kept_if_they_succeed(full, faults, why):
    full.change_recipe('"train": 4, "val": 2', '"train": 1, "val": 1')
    cured = full.out.with_name("cured")
    bodies = [f"None if os.path.exists({str(cured)!r}) else {fault}" for fault in faults]
    trace = poison(full, {key_of(number): body for number, body in enumerate(bodies)})
    assert full.build(workers=1).rejected == len(faults)
    before = digests(full.out)
    assert full.due() == f"1 of 2 shards: {why}"
    trace.unlink()
    summary = full.build(workers=1)
    assert (summary.rejected, summary.built_shards) == (len(faults), 1)
    assert len(trace.read_text().splitlines()) == (3 if "os.abort()" in faults else 2)
    assert digests(full.out) == before
    cured.touch()
    summary = full.build(workers=1)
    assert (summary.rejected, summary.built_shards) == (0, 1)
    assert digests(full.out) == full.from_nothing()


def test_a_recipe_that_is_edited_during_a_build_is_refused_by_its_workers(full):
    """A worker that replaces one that died would otherwise build records of another recipe under the receipts of this plan."""
    poison(full, f"open({str(full.recipe)!r}, 'a').write('RECIPE = dataclasses.replace(RECIPE, seed=8)'); os.abort()")
    full.change_recipe("import os,", "import dataclasses, os,")
    with pytest.raises(RecipeError, match=r"tiny.py changed while the build was running; run the build again"):
        full.build(workers=1)
    assert not (full.out / "tfprep.json").exists()


def test_nothing_is_left_in_the_temporary_folder_after_a_kill(full, tmp_path):
    trace = poison(full, "time.sleep(60)")
    folder = tmp_path / "temporary"
    folder.mkdir()
    environment = {**os.environ, "TMPDIR": str(folder)}
    process = subprocess.Popen(full.driver(1), env=environment, stderr=subprocess.DEVNULL)
    wait_until(trace.exists, process)
    process.kill()
    process.wait()
    assert list(folder.iterdir()) == []


def test_a_sample_that_crashes_and_then_does_not_is_kept(full):
    """A process may be killed from outside, or run out of memory because of another sample."""
    full.change_recipe('"train": 4', '"train": 1')
    trace = poison(full, "os.kill(os.getpid(), 9) if len(open(TRACE).readlines()) <= 2 else None")
    assert full.build(workers=1).rejected == 0
    assert len(trace.read_text().splitlines()) >= 3


def test_workers_that_cannot_start_are_an_error(full, monkeypatch):
    monkeypatch.setattr("sys.executable", shutil.which("false"))
    with pytest.raises(BuildError, match=r"ended with exit status 1.* finished nothing"):
        full.build(workers=2)


def test_a_recipe_that_fails_only_in_workers_raises(full):
    full.define("import sys\nif sys.argv[0].endswith('pool.py'):\n    raise ImportError('no GPU')\n")
    with pytest.raises(Exception, match=r"no GPU"):
        full.build(workers=1)


def test_a_file_that_hangs_when_its_content_is_compared(full):
    """The time limit also applies when a touched file is read to compare its content. Workers read it slowly, once told to."""
    hang = full.out.with_name("hang")
    full.define(
        f"import sys\nreal = os.open\nHANG = {str(hang)!r}\n"
        "def slow(path, *rest, **options):\n"
        "    if str(path).endswith('train/cat/000.jpg') and os.path.exists(HANG):\n"
        "        time.sleep(60)\n"
        "    return real(path, *rest, **options)\n"
        "if sys.argv[0].endswith('pool.py'):\n"
        "    os.open = slow\n"
    )
    full.build()
    os.utime(full.data / "train/cat/000.jpg", (1, 1))
    hang.touch()
    crashes = []

    def count(event):
        crashes.extend([event.text] if event.name == "crash" else [])
        assert len(crashes) <= 2, "once unknown, once announced"

    assert full.build(workers=1, item_timeout_s=TIMEOUT_S, on_event=count).rejected == 1
    (sample,) = full.rejected()
    assert (sample["key"], sample["error"]) == (f"{KEY}.jpg", f"no end after {TIMEOUT_S} s; its process was killed")
