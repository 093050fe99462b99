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
from click.testing import CliRunner
from PIL import Image

from tests.builder.conftest import check_whole, digests
from tfprep import opencv
from tfprep.builder import build_part, finish_build, options, plan_build
from tfprep.builder.layout import Layout, name_locked
from tfprep.builder.options import BuildOptions, parse_part
from tfprep.builder.planning import plan
from tfprep.cli.build import build_command
from tfprep.errors import BuildError, BuildLockedError

INLINE = BuildOptions(workers=0)


def run_part(site, part, parts, **more):
    return build_part(site.recipe, site.out, site.data, part=part, parts=parts, options=BuildOptions(workers=0, **more))


def run_parts(site, parts, order=None):
    return [run_part(site, part, parts) for part in order or range(parts)]


def finish(site, **more):
    return finish_build(site.recipe, site.out, site.data, options=BuildOptions(workers=0, **more))


@pytest.mark.parametrize("parts", [1, 3, 16])
def test_parts_in_any_order_make_the_bytes_of_one_build(full, parts):
    expected = full.from_nothing()
    order = random.Random(parts).sample(range(parts), parts)
    summaries = run_parts(full, parts, order)
    assert not (full.out / "tfprep.json").exists()
    assert sorted(summary.shards for summary in summaries) == sorted(len(range(n, 6, parts)) for n in range(parts))
    assert sum(summary.samples for summary in summaries) == 30
    summary = finish(full)
    assert (summary.samples, summary.built_shards) == (30, 0)
    assert digests(full.out) == expected
    check_whole(full.out)
    assert not list((full.out / ".tfprep/new").iterdir())
    assert full.build().built_shards == 0
    assert [run.built_shards for run in run_parts(full, parts)] == [0] * parts, "a part that runs after the publication"
    assert not Layout(full.out).part_plan.exists(), "it binds no later build"


def test_a_part_that_runs_twice_builds_nothing_the_second_time(full):
    assert run_part(full, 1, 2).built_shards == 3
    assert run_part(full, 1, 2).built_shards == 0
    assert run_part(full, 0, 2).built_shards == 3


def test_parts_of_another_number_complete_each_other(full):
    expected = full.from_nothing()
    run_part(full, 0, 2)
    run_part(full, 1, 3)
    run_parts(full, 4)
    finish(full)
    assert digests(full.out) == expected


def test_missing_shards_are_named_with_their_parts(full):
    run_part(full, 0, 4)
    run_part(full, 2, 4)
    with pytest.raises(
        BuildError, match=r"shards are missing. 3 of 6 shards: not built yet \(train 1, train 3, val 1\)\. "
    ) as error:
        finish(full)
    assert "Run again, of 4 parts: 1,3. `tfprep build` without --part builds what is missing" in str(error.value)
    assert not (full.out / "tfprep.json").exists()


def test_a_build_without_part_completes_parts(full):
    expected = full.from_nothing()
    run_part(full, 0, 2)
    assert full.build().built_shards == 3
    assert digests(full.out) == expected
    assert not Layout(full.out).part_plan.exists()


def test_finish_alone_says_what_is_missing(full):
    with pytest.raises(BuildError, match=r"6 of 6 shards: not built yet"):
        finish(full)


def test_parts_continue_an_older_dataset(full):
    """Readers see the old dataset until the end; only shards whose samples changed are built."""
    full.build()
    before = digests(full.out)
    full.add("train/cat/000", 500, mask=False)
    (full.data / "val/dog/001.jpg").unlink()
    expected = full.from_nothing()
    built = run_parts(full, 3)
    assert sum(summary.built_shards for summary in built) == 2
    assert digests(full.out) == before
    finish(full)
    assert digests(full.out) == expected


def test_fields_that_differ_between_parts_are_settled_at_the_end(full):
    """One mask of 16 bits among masks of 8: no part can know that it is the exception."""
    full.change_recipe('"mask": codecs.Png()', '"mask": codecs.Png(), "raw": codecs.Raw()')
    full.change_recipe("derive={", 'derive={"raw": raw, ')
    full.change_recipe(
        "RECIPE = Recipe(",
        "def raw(sample, generator):\n    return sample['mask'].astype('f4' if (sample['mask'] == 2).all() else 'u1')\n\n"
        "RECIPE = Recipe(",
    )
    Image.fromarray(np.full((24, 28), 2, np.uint8)).save(full.data / "train/cat/000.mask.png")
    expected = full.from_nothing()
    run_parts(full, 6)
    assert finish(full).rejects == 1
    assert digests(full.out) == expected


# --- a part that would make another dataset ------------------------------------------------------------------------------


def other_recipe(site, monkeypatch):
    site.change_recipe("Rotate(degrees=10)", "Rotate(degrees=12)")


def other_size(site, monkeypatch):
    site.add("train/cat/000", 500, mask=False)


def other_time(site, monkeypatch):
    os.utime(site.data / "val/dog/001.jpg", (1, 1))


def one_more(site, monkeypatch):
    site.add("train/cat/new", 501)


def one_less(site, monkeypatch):
    (site.data / "train/cat/002.jpg").unlink()


def other_opencv(site, monkeypatch):
    monkeypatch.setattr(opencv.cv2, "__version__", "4.0.0")
    plan.maker_versions.cache_clear()


def other_python(site, monkeypatch):
    monkeypatch.setattr("tfprep.builder.planning.plan.python_version", lambda: "3.9.1")


DIFFERENT = {
    "recipe": (other_recipe, r"another recipe: geometry\[1\].degrees: 10 -> 12"),
    "size": (other_size, r"other raw files: samples of train differ in key, size, time or values"),
    "time": (other_time, r"samples of val differ in .*; copy raw files with their times: cp -p, rsync -a"),
    "one more": (one_more, r"other raw files: train has 25 samples here and 24 there"),
    "one less": (one_less, r"other raw files: train has 23 samples here and 24 there"),
    "OpenCV": (other_opencv, rf"opencv is 4.0.0 here and {cv2.__version__} there"),
    "Python": (other_python, r"python is 3.9.1 here and 3.\d+"),
}


@pytest.mark.parametrize("name", DIFFERENT)
def test_a_part_that_plans_differently_refuses_and_says_why(full, monkeypatch, name):
    change, message = DIFFERENT[name]
    run_part(full, 0, 2)
    before = content(full.out)
    with monkeypatch.context() as patch:
        change(full, patch)
        for step in (lambda: run_part(full, 1, 2), lambda: finish(full)):
            with pytest.raises(BuildError, match=message) as error:
                step()
            assert "by part 0/2" in str(error.value)
            assert "remove it while no part runs, then run all parts again" in str(error.value)
        assert content(full.out) == before, "nothing was built"
        Layout(full.out).part_plan.unlink()
        assert run_part(full, 1, 2).built_shards == 3
    plan.maker_versions.cache_clear()


def content(out):
    files = [path for path in out.rglob("*") if path.is_file() and path.suffix != ".log" and path.name != "locks"]
    return {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in files if path.name != "lock"}


def test_an_option_that_decides_what_is_built_is_compared(full):
    run_part(full, 0, 2)
    with pytest.raises(BuildError, match=r"--hash is False here and True there"):
        run_part(full, 1, 2, hash=False)


def test_a_plan_that_cannot_be_read_is_an_error(full):
    run_part(full, 0, 2)
    plan = Layout(full.out).part_plan
    plan.write_text("{")
    with pytest.raises(BuildError, match=r"plan.json cannot be read .*; remove it"):
        run_part(full, 1, 2)
    plan.write_text(json.dumps({"format": 0}))
    with pytest.raises(BuildError, match=r"plan.json was written by another version of tfprep; remove it"):
        finish(full)


def test_numbers_of_parts(full):
    assert parse_part("3/16") == options.Part(3, 16)
    for text, message in (("16/16", "0 to 15; there is no part 16"), ("1", "written as NUMBER/PARTS"), ("0/0", "none")):
        with pytest.raises(BuildError, match=message):
            parse_part(text)
    states = plan_build(full.recipe, full.out, full.data, part=parse_part("1/4"))
    assert [(state.split, state.shard) for state in states] == [("train", 1), ("val", 1)]


# --- at once ----------------------------------------------------------------------------------------------------------


def test_the_lock_is_shared_by_parts_alone(full):
    """A part meets another part; a build and `finish` meet neither."""
    entered, leave = threading.Event(), threading.Event()

    def hold(event):
        if event.name == "planned":
            entered.set()
            assert leave.wait(60)

    chosen = {"part": 0, "parts": 2, "options": INLINE, "on_event": hold}
    holder = threading.Thread(target=build_part, args=(full.recipe, full.out, full.data), kwargs=chosen)
    holder.start()
    try:
        assert entered.wait(60)
        assert run_part(full, 1, 2).built_shards == 3
        for step in (full.build, lambda: finish(full)):
            with pytest.raises(BuildLockedError, match=r"parts of .*out are being built; wait for them"):
                step()
    finally:
        leave.set()
        holder.join()
    assert finish(full).samples == 30


def test_the_first_of_two_attempts_at_a_shard_wins(full):
    """The second attempt finishes after the first: it leaves the first one's files and receipt as they are."""
    expected = full.from_nothing()
    layout = Layout(full.out)
    layout.make()
    overtaken = []

    def overtake(event):
        if event.name == "planned":  # another process builds the same part from beginning to end
            command = [sys.executable, "-m", "tfprep", "build", full.recipe, "--data", full.data, "--out", full.out]
            subprocess.run([*command, "--part", "0/2", "--workers", "0"], check=True, capture_output=True)
            overtaken.append({path: path.stat().st_mtime_ns for path in layout.receipts.iterdir()})

    summary = build_part(full.recipe, full.out, full.data, part=0, parts=2, options=INLINE, on_event=overtake)
    assert (summary.shards, summary.built_shards) == (3, 0)
    assert overtaken[0] == {path: path.stat().st_mtime_ns for path in layout.receipts.iterdir()}
    run_part(full, 1, 2)
    finish(full)
    assert digests(full.out) == expected


def test_the_lock_of_a_shard_keeps_another_process_waiting(tmp_path):
    layout = Layout(tmp_path)
    layout.make()
    code = (
        "import sys; from pathlib import Path; from tfprep.builder.layout import Layout, name_locked\n"
        "with name_locked(Layout(Path(sys.argv[1])), sys.argv[2]): print('locked')"
    )
    with name_locked(layout, "shard train 1"):
        subprocess.run([sys.executable, "-c", code, tmp_path, "shard train 2"], check=True, timeout=60)
        other = subprocess.Popen([sys.executable, "-c", code, tmp_path, "shard train 1"], stdout=subprocess.PIPE)
        with pytest.raises(subprocess.TimeoutExpired):
            other.wait(1)
    assert other.communicate(timeout=60)[0] == b"locked\n"


@pytest.mark.parametrize("parts", [3])
def test_parts_at_once_and_twice_that_are_killed(full, parts):
    """Every part runs in two processes at the same time; they are killed at random moments and started again."""
    full.fill(train=40, val=8)
    full.change_recipe(
        "RECIPE = Recipe(",
        "def slow(sample, generator):\n    time.sleep(0.004)\n    return sample['mask']\n\nRECIPE = Recipe(",
    )
    full.change_recipe("derive={", 'derive={"slow": slow, ')
    expected = full.from_nothing()
    rng = random.Random(os.environ.get("TFPREP_TEST_SEED", ""))
    output = full.out.with_name("output")

    def start(part):
        command = [sys.executable, "-m", "tfprep", "build", full.recipe, "--data", full.data, "--out", full.out]
        with output.open("a") as file:
            return subprocess.Popen([*command, "--part", f"{part}/{parts}", "--workers", "1"], stdout=file, stderr=file)

    running = [(part, start(part)) for part in [*range(parts)] * 2]
    kills = 0
    while running:
        part, process = running.pop(rng.randrange(len(running)))
        if kills < 8 and process.poll() is None:
            time.sleep(rng.uniform(0.1, 0.6))
            process.send_signal(signal.SIGKILL)
            kills += process.wait() == -signal.SIGKILL
            running.append((part, start(part)))
        elif process.wait(timeout=120) != 0:
            pytest.fail(output.read_text())
    assert kills
    assert finish(full).samples == 48, output.read_text()
    assert digests(full.out) == expected
    check_whole(full.out)
    assert not list((full.out / ".tfprep/new").iterdir())


def test_the_commands(full):
    """The command line: two parts, JSON, a missing part, `--finish`; wrong combinations are refused."""
    expected = full.from_nothing()

    def run(*arguments, status=0):
        build = [sys.executable, "-m", "tfprep", "build", full.recipe, "--data", full.data, "--out", full.out]
        done = subprocess.run([*build, "--workers", "0", *arguments], capture_output=True, text=True, check=False)
        assert done.returncode == status, done.stderr
        return done

    assert "part 0 of 2: built" in run("--part", "0/2").stdout
    assert "shards are missing. 3 of 6 shards: not built yet" in run("--finish", status=1).stderr
    summary = json.loads(run("--part", "1/2", "--json").stdout)
    assert (summary["part"], summary["shards"], summary["built_shards"]) == (1, 3, 3)
    assert "Published in" in run("--finish").stdout
    assert digests(full.out) == expected


@pytest.mark.parametrize("arguments", [["--part", "2/2"], ["--part", "1/2", "--finish"], ["--finish", "--dry-run"]])
def test_wrong_usage(full, arguments):
    assert CliRunner().invoke(build_command, [str(full.recipe), "--out", str(full.out), *arguments]).exit_code == 2
