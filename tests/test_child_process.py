"""Child processes: where they import from, when they end, what they send, and crashes of their tasks."""

import os
import random
import subprocess
import sys
import time

import psutil
import pytest

from tfprep import python_file
from tfprep.child_process import (
    Inline,
    NothingNew,
    Processes,
    TaskCrashed,
    TaskDone,
    TaskProgress,
    WorkerOutput,
    sendable_error,
    worker_environment,
)
from tfprep.errors import BuildError, RecipeError, RecordError, TrainError
from tfprep.python_file import import_file


def lines_of_child(code, folder=None, environment=None):
    """What Python prints for the code, in the environment of a worker unless there is another."""
    command, environment = [sys.executable, "-c", code], environment or worker_environment()
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=folder, env=environment)
    return done.stdout.splitlines()


FOLDERS = "import sys; print('\\n'.join(sys.path))"


def test_a_child_imports_from_the_folders_of_its_parent(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", ["/first", *sys.path])
    monkeypatch.setenv("PYTHONPATH", "/elsewhere")
    folders = lines_of_child(FOLDERS, tmp_path)
    assert folders[0] == "/first"
    assert "/elsewhere" not in folders
    assert not {"", str(tmp_path)} & set(folders)
    assert worker_environment()["OMP_NUM_THREADS"] == "1"
    # The folder where the parent was started; the child starts elsewhere.
    monkeypatch.setattr(sys, "path", ["", *sys.path])
    assert lines_of_child(FOLDERS, tmp_path)[0] == os.getcwd()


def test_folders_of_recipes_come_first_once_the_child_has_imported_its_own(tmp_path, monkeypatch):
    """As in the parent, which had imported modules of the standard library before it loaded the recipe."""
    own, beside = tmp_path / "own", tmp_path / "beside"
    for folder, names in ((own, ["helper", "other"]), (beside, ["recipe", "random", "helper"])):
        folder.mkdir()
        for name in names:
            (folder / f"{name}.py").write_text("")
    monkeypatch.setattr(sys, "path", [str(own), *sys.path])
    monkeypatch.setattr(python_file, "_added", set())
    import_file(beside / "recipe.py", "tfprep_test_recipe")
    assert sys.path[:2] == [str(beside), str(own)]
    code = """if True:
        import random, sys
        from tfprep.python_file import add_folders_of_parent
        add_folders_of_parent()
        import helper, other
        print(*(module.__file__ for module in (random, helper, other)), *sys.path[:2], sep="\\n")
    """
    found = [random.__file__, str(beside / "helper.py"), str(own / "other.py"), str(beside), str(own)]
    assert lines_of_child(code) == found


def test_a_folder_that_was_there_before_a_recipe_keeps_its_place(tmp_path, monkeypatch):
    """One of an editable installation, for example, stands behind the standard library."""
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    (tmp_path / "recipe.py").write_text("")
    (tmp_path / "random.py").write_text("raise SystemExit('imported')")
    import_file(tmp_path / "recipe.py", "tfprep_test_recipe")
    assert sys.path.index(str(tmp_path)) == len(sys.path) - 1
    assert lines_of_child(FOLDERS, tmp_path)[-1] == str(tmp_path)


@pytest.mark.skipif(sys.platform != "linux", reason="glibc alone has these thresholds")
def test_a_child_keeps_the_memory_of_freed_arrays(monkeypatch):
    code = "import resource\nfor _ in range(20):\n    blocks = [b'x' * (8 << 20) for _ in range(3)]\n    del blocks\n"
    code += "print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt)"
    monkeypatch.delenv("MALLOC_TRIM_THRESHOLD_", raising=False)
    of_worker, usual = (int(*lines_of_child(code, environment=one)) for one in (worker_environment(), os.environ))
    assert of_worker < usual / 4
    monkeypatch.setenv("MALLOC_TRIM_THRESHOLD_", "7")
    assert worker_environment()["MALLOC_TRIM_THRESHOLD_"] == "7"


class Unsendable(Exception):
    """An error whose copy cannot be made: it needs an argument that it does not keep."""

    def __init__(self, first, second):
        super().__init__(f"{first} and {second}")


@pytest.mark.parametrize(
    ("error", "kind", "text"),
    [
        (RecordError("bad", path="p", record=1, offset=2), RecordError, "p: record 1 at byte 2: bad"),
        (Unsendable(1, 2), TrainError, "Unsendable: 1 and 2"),
    ],
)
def test_errors_that_cannot_be_sent_are_replaced_by_their_text(error, kind, text):
    sent = sendable_error(error, TrainError)
    assert type(sent) is kind
    assert str(sent) == text


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel ends children on Linux only")
def test_a_child_whose_parent_is_gone_ends():
    code = "from tfprep.child_process import end_with_parent; end_with_parent(1); print('still here')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (1, "")


WORK = """
import os, sys, time
from tfprep.errors import RecipeError

def open_work(argument):
    if argument.get("refuse"):
        raise RecipeError("no")
    def work(task, mark):
        for item in range(task.get("items", 1)):
            mark(item)
            time.sleep(task.get("sleep", 0))
            exec(task.get("code", ""))
        return {"pid": os.getpid(), "number": task.get("number"), "argument": argument}
    return work
"""


@pytest.fixture
def entry(tmp_path, monkeypatch):
    (tmp_path / "its_work.py").write_text(WORK)
    monkeypatch.syspath_prepend(tmp_path)
    return "its_work:open_work"


def ran(engine, tasks, argument=None):
    engine.start()
    engine.open(argument or {})
    for number, task in enumerate(tasks):
        engine.submit(number, task)
    try:
        return list(engine.events())
    finally:
        engine.close()


def test_a_mark_is_never_seen_half_written(entry):
    """An item that seems to have begun at 0, when the machine did, would be one that has reached its time limit."""
    engine = Processes(entry, workers=1, item_timeout_s=1e9)
    engine.start()
    engine.open({})
    engine.submit(0, {"items": 100_000})
    try:
        next(event for event in engine.events() if isinstance(event, TaskProgress))
        seconds = [state.seconds for _ in range(20_000) for state in engine.workers()]
    finally:
        engine.close()
    assert max(seconds) < time.monotonic() / 2


def test_both_engines_give_the_same_results(entry):
    """One task is larger than a pipe."""
    numbers, word = [*range(6), "x" * 3_000_000], "ünïcode \udc80"
    for engine, processes in ((Inline(entry), 1), (Processes(entry, workers=2, item_timeout_s=60), 2)):
        events = ran(engine, [{"number": number} for number in numbers], {"word": word})
        results = {event.task: event.result for event in events if isinstance(event, TaskDone)}
        assert [results[task]["number"] for task in range(7)] == numbers
        assert {result["argument"]["word"] for result in results.values()} == {word}
        assert len({result["pid"] for result in results.values()}) == processes


def test_a_worker_that_replaces_another_gets_the_same_environment(entry, monkeypatch):
    engine = Processes(entry, workers=1, item_timeout_s=60)
    engine.start()
    monkeypatch.setenv("SET_LATER", "1")
    monkeypatch.syspath_prepend("/added/later")
    code = "assert 'SET_LATER' not in os.environ and '/added/later' not in sys.path, (os.environ, sys.path)"
    crashed, done = (
        event
        for event in ran(engine, [{"code": "os.kill(os.getpid(), 9)"}, {"code": code}])
        if isinstance(event, TaskCrashed | TaskDone)
    )
    assert isinstance(crashed, TaskCrashed)
    assert isinstance(done, TaskDone)


def test_progress_is_reported_during_a_task(entry):
    events = ran(Processes(entry, workers=1, item_timeout_s=60), [{"items": 8, "sleep": 0.1}])
    items = [event.item for event in events if isinstance(event, TaskProgress)]
    assert items == sorted(items)
    assert len(items) >= 2
    assert isinstance(events[-1], TaskDone)


def test_urgent_tasks_come_first(entry):
    engine = Processes(entry, workers=1, item_timeout_s=60)
    engine.open({})
    for number in range(3):
        engine.submit(number, {})
    engine.submit(9, {}, urgent=True)
    engine.start()
    order = [event.task for event in engine.events() if isinstance(event, TaskDone)]
    engine.close()
    assert order == [9, 0, 1, 2]


@pytest.mark.parametrize("make", [Inline, lambda entry: Processes(entry, workers=1, item_timeout_s=9)])
def test_an_exception_of_a_task_ends_the_run(entry, make):
    code = "raise RecipeError('line 7')"
    with pytest.raises(RecipeError, match="line 7"):
        ran(make(entry), [{"code": code}])
    with pytest.raises(RecipeError, match="no"):
        ran(make(entry), [{}], {"refuse": True})
    with pytest.raises((BuildError, ZeroDivisionError)) as caught:
        ran(make(entry), [{"code": "1 / 0"}])
    assert "its_work.py" in str(caught.getrepr())  # of another process as text


def test_closing_leaves_no_process_however_busy(entry):
    engine = Processes(entry, workers=2, item_timeout_s=60)
    engine.start()
    engine.open({})
    for number in range(4):
        engine.submit(number, {"items": 100, "sleep": 0.3})
    assert isinstance(next(event for event in engine.events() if not isinstance(event, NothingNew)), TaskProgress)
    processes = [psutil.Process(state.process) for state in engine.workers()]
    assert all(state.item is not None and state.task is not None for state in engine.workers())
    engine.close()
    assert psutil.wait_procs(processes, timeout=5)[1] == []


def test_output_of_native_code_is_reported_by_item_and_kept_off_the_terminal(entry, capfd):
    code = """
if item == 1:
    os.write(2, b"libpng warning: odd\\n"); os.system("echo a child"); print("by Python")
if item == 4:
    os.write(2, b"last words\\n"); os.abort()
if item == 3:
    os.write(2, b"x" * 1_000_000)
if item == 2:
    import logging, warnings; logging.getLogger("PIL").error("by a logger"); warnings.warn("by a warning")
"""
    events = ran(Processes(entry, workers=1, item_timeout_s=60), [{"items": 5, "code": code}])
    outputs = [event for event in events if isinstance(event, WorkerOutput)]
    first, second, endless, last = outputs
    assert (first, last) == (WorkerOutput(0, 1, "libpng warning: odd\na child\n"), WorkerOutput(0, 4, "last words\n"))
    assert (endless.item, len(endless.text)) == (3, 4000), "the beginning"
    assert second.text.startswith("by a logger\n")
    assert "UserWarning: by a warning" in second.text
    crash = next(event for event in events if isinstance(event, TaskCrashed))
    assert events.index(last) < events.index(crash), "the task is still known when its last words come"
    terminal = capfd.readouterr()
    assert "by Python" in terminal.err
    assert "libpng" not in terminal.err + terminal.out
