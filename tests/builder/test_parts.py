"""A build in parts makes the bytes of one build, in any order, twice, at once, killed; a part that plans differently refuses."""

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time

import cv2
import numpy as np
import pytest

from tests.builder.conftest import check_whole, digests, run
from tests.commands import status_of
from tfprep import optional
from tfprep.builder import options, plan, plan_build
from tfprep.builder.layout import Layout, name_locked
from tfprep.builder.options import parse_part
from tfprep.errors import BuildError, BuildLockedError

KILLS = 5 * int(os.environ.get("TFPREP_TEST_KILLS", "1"))


@pytest.mark.parametrize("parts", [1, 3, 16])
def test_parts_in_any_order_make_the_bytes_of_one_build(full, parts):
    order = random.Random(parts).sample(range(parts), parts)
    summaries = [full.part(part, parts) for part in order]
    assert not (full.out / "tfprep.json").exists()
    assert sorted(summary.shards for summary in summaries) == sorted(len(range(n, 6, parts)) for n in range(parts))
    assert sum(summary.samples for summary in summaries) == 30
    assert full.part(0, parts).built_shards == 0, "a part that runs twice"
    summary = full.finish()
    assert (summary.samples, summary.built_shards) == (30, 0)
    assert digests(full.out) == full.from_nothing()
    check_whole(full.out)
    assert not list((full.out / ".tfprep/new").iterdir())
    assert full.build().built_shards == 0
    built = [full.part(part, parts).built_shards for part in range(parts)]
    assert built == [0] * parts, "a part that runs after the publication"
    assert not Layout(full.out).part_plan.exists(), "it binds no later build"


def test_missing_shards_are_named_with_their_parts_and_built_by_others_or_without_parts(full):
    with pytest.raises(BuildError, match=r"6 of 6 shards: not built yet"):
        full.finish()
    full.part(0, 4)
    full.part(2, 4)
    message = r"shards are missing. 3 of 6 shards: not built yet \(train 1, train 3, val 1\)\. "
    with pytest.raises(BuildError, match=message) as error:
        full.finish()
    assert "Run again, of 4 parts: 1,3. `tfprep build` without --part builds what is missing" in str(error.value)
    assert not (full.out / "tfprep.json").exists()
    assert full.part(1, 3).built_shards == 1
    assert full.build().built_shards == 2
    assert digests(full.out) == full.from_nothing()
    assert not Layout(full.out).part_plan.exists()


def test_parts_continue_an_older_dataset(full):
    """Readers see the old dataset until the end; only shards whose samples changed are built."""
    full.build()
    before = digests(full.out)
    full.add("train/cat/000", 500, mask=False)
    (full.data / "val/dog/001.jpg").unlink()
    assert sum(full.part(part, 3).built_shards for part in range(3)) == 2
    assert digests(full.out) == before
    full.finish()
    assert digests(full.out) == full.from_nothing()


def test_fields_that_differ_between_parts_are_settled_at_the_end(full):
    """One array of floats among arrays of bytes: no part can know that it is the exception."""
    body = "return sample['mask'].astype('f4' if (sample['mask'] == 2).all() else 'u1')"
    full.derive("raw", body, "codecs.Raw()")
    full.mask("train/cat/000", 2)
    for part in range(6):
        full.part(part, 6)
    assert full.finish().rejected == 1
    assert digests(full.out) == full.from_nothing()


# --- a part that would make another dataset ------------------------------------------------------------------------------


def other_opencv(site, monkeypatch):
    monkeypatch.setattr(optional.cv2, "__version__", "4.0.0")
    plan.maker_versions.cache_clear()


def other_python(site, monkeypatch):
    monkeypatch.setattr("tfprep.builder.plan.python_version", lambda: "3.9.1")


DIFFERENT = {
    "recipe": (
        lambda site, _: site.change_recipe("Rotate(degrees=10)", "Rotate(degrees=12)"),
        r"another recipe: geometry\[1\].degrees: 10 -> 12",
    ),
    "size": (
        lambda site, _: site.add("train/cat/000", 500, mask=False),
        r"other raw files: samples of train differ in key, size, time or values",
    ),
    "time": (
        lambda site, _: os.utime(site.data / "val/dog/001.jpg", (1, 1)),
        r"samples of val differ in .*; copy raw files with their times: cp -p, rsync -a",
    ),
    "one more": (lambda site, _: site.add("train/cat/new", 501), r"other raw files: train has 25 samples here and 24 there"),
    "one less": (
        lambda site, _: (site.data / "train/cat/002.jpg").unlink(),
        r"other raw files: train has 23 samples here and 24 there",
    ),
    "OpenCV": (other_opencv, rf"opencv is 4.0.0 here and {cv2.__version__} there"),
    "Python": (other_python, r"python is 3.9.1 here and 3.\d+"),
}  # fmt: skip


@pytest.mark.parametrize("name", DIFFERENT)
def test_a_part_that_plans_differently_refuses_and_says_why(full, monkeypatch, name):
    change, message = DIFFERENT[name]
    full.part(0, 2)
    before = content(full.out)
    with monkeypatch.context() as patch:
        change(full, patch)
        for step in (lambda: full.part(1, 2), full.finish):
            with pytest.raises(BuildError, match=message) as error:
                step()
            assert "by part 0/2" in str(error.value)
            assert "remove it while no part runs, then run all parts again" in str(error.value)
        assert content(full.out) == before, "nothing was built"
        Layout(full.out).part_plan.unlink()
        assert full.part(1, 2).built_shards == 3
    plan.maker_versions.cache_clear()


def content(out):
    files = [path for path in out.rglob("*") if path.is_file() and path.suffix != ".log" and path.name != "locks"]
    return {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in files if path.name != "lock"}


def test_another_option_or_a_plan_that_cannot_be_read_is_an_error(full):
    full.part(0, 2)
    for chosen, message in (
        ({"hash": False}, "--hash is False here and True there"),
        ({"limit": 5}, "--limit is 5 here and None"),
    ):
        with pytest.raises(BuildError, match=message):
            full.part(1, 2, **chosen)
    for text in ("{", '{"format": 0}', "[1]"):
        Layout(full.out).part_plan.write_text(text)
        for step in (lambda: full.part(1, 2), full.finish):
            with pytest.raises(
                BuildError, match=r"plan.json cannot be read, or was written by another version .*; remove it"
            ):
                step()


def test_numbers_of_parts(full):
    assert parse_part("3/16") == options.Part(3, 16)
    for text, message in (("16/16", "0 to 15; there is no part 16"), ("1", "written as NUMBER/PARTS"), ("0/0", "none")):
        with pytest.raises(BuildError, match=message):
            parse_part(text)
    states = plan_build(full.recipe, full.out, full.data, part=parse_part("1/4"))
    assert [(state.split, state.shard) for state in states] == [("train", 1), ("val", 1)]
    assert full.part(0, 1, limit=np.int64(4)).samples == 4


# --- at once ----------------------------------------------------------------------------------------------------------


def test_the_lock_is_shared_only_by_parts(full):
    """A part meets another part; a build and `finish` meet neither."""
    entered, leave = threading.Event(), threading.Event()

    def hold(event):
        if event.name == "planned":
            entered.set()
            assert leave.wait(60)

    holder = threading.Thread(target=full.part, args=(0, 2), kwargs={"on_event": hold})
    holder.start()
    try:
        assert entered.wait(60)
        assert full.part(1, 2).built_shards == 3
        for step in (full.build, full.finish):
            with pytest.raises(BuildLockedError, match=r"out is being built by .*parts; wait"):
                step()
    finally:
        leave.set()
        holder.join()
    assert full.finish().samples == 30


def test_the_first_of_two_attempts_at_a_shard_wins(full):
    """The second attempt finishes after the first: it leaves the first one's files and receipt as they are."""
    layout = Layout(full.out)
    layout.make()
    overtaken = []

    def times():
        return {path: path.stat().st_mtime_ns for path in layout.receipts.iterdir()}

    def overtake(event):
        if event.name == "planned":  # another process builds the same part from beginning to end
            done = run(full.command("--part", "0/2", "--workers", "0"))
            assert done.returncode == 0, done.stderr
            overtaken.append(times())

    summary = full.part(0, 2, on_event=overtake)
    assert (summary.shards, summary.built_shards) == (3, 0)
    assert overtaken == [times()]
    full.part(1, 2)
    full.finish()
    assert digests(full.out) == full.from_nothing()


def test_the_lock_of_a_shard_keeps_another_process_waiting(tmp_path):
    layout = Layout(tmp_path)
    layout.make()
    code = (
        "import sys; from pathlib import Path; from tfprep.builder.layout import Layout, name_locked\n"
        "for shard in sys.argv[2:]:\n"
        "    with name_locked(Layout(Path(sys.argv[1])), shard): print(shard, flush=True)"
    )
    with name_locked(layout, "train 1"):
        command = [sys.executable, "-c", code, tmp_path, "train 2", "train 1"]
        other = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert other.stdout.readline() == "train 2\n"
        with pytest.raises(subprocess.TimeoutExpired):
            other.wait(0.3)
    assert other.communicate(timeout=300)[0] == "train 1\n"


def test_parts_at_once_and_twice_that_are_killed(full):
    """Every part runs in two processes at the same time; they are killed at random moments and started again."""
    full.fill(train=40, val=8).slow()
    rng = random.Random(os.environ.get("TFPREP_TEST_SEED", ""))
    output = full.out.with_name("output")

    def start(part):
        with output.open("a") as file:
            return subprocess.Popen(full.command("--part", f"{part}/3", "--workers", "1"), stdout=file, stderr=file)

    running = [(part, start(part)) for part in [*range(3)] * 2]
    kills = 0
    while running:
        part, process = running.pop(rng.randrange(len(running)))
        if kills < KILLS and process.poll() is None:
            time.sleep(rng.uniform(0.1, 0.6))
            process.send_signal(signal.SIGKILL)
            kills += process.wait() == -signal.SIGKILL
            running.append((part, start(part)))
        elif process.wait(timeout=120) != 0:
            pytest.fail(output.read_text())
    assert kills
    assert full.finish().samples == 48, output.read_text()
    assert digests(full.out) == full.from_nothing()
    check_whole(full.out)
    assert not list((full.out / ".tfprep/new").iterdir())


def test_the_commands(full, capsys):
    """The command line: two parts, JSON, a missing part, `--finish`; wrong combinations are refused."""

    def said(*arguments, status=0):
        assert status_of(*full.command("--workers", "0", *arguments)[3:]) == status
        return capsys.readouterr()

    assert "part 0 of 2: built" in said("--part", "0/2").out
    assert "shards are missing. 3 of 6 shards: not built yet" in said("--finish", status=1).err
    summary = json.loads(said("--part", "1/2", "--json").out)
    assert (summary["part"], summary["shards"], summary["built_shards"]) == (1, 3, 3)
    assert "Published in" in said("--finish").out
    assert digests(full.out) == full.from_nothing()
    for arguments in (["--part", "2/2"], ["--part", "1/2", "--finish"], ["--finish", "--dry-run"]):
        said(*arguments, status=2)
