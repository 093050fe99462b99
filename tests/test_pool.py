"""Worker processes: where they import from, when they end, what they send, and crashes of their tasks."""

import os
import queue
import random
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest

from tests.waiting import wait_until
from tfprep.errors import BuildError, RecipeError, RecordError
from tfprep.pool import (
    LATER,
    Died,
    Done,
    Pool,
    Progress,
    worker_environment,
)
from tfprep.recipe.file import import_file


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
    monkeypatch.setenv("MALLOC_TRIM_THRESHOLD_", "7")
    assert worker_environment()["MALLOC_TRIM_THRESHOLD_"] == "7"
    # Relative to the folder where the parent was started; the child starts elsewhere. Python skips what is not text.
    monkeypatch.setattr(sys, "path", ["", "tests", Path("/no/text"), *sys.path])
    assert lines_of_child(FOLDERS, tmp_path)[:3] == [os.getcwd(), os.path.abspath("tests"), "/first"]


def test_folders_of_recipes_come_first_once_a_worker_has_imported_its_own(tmp_path, monkeypatch, entry):
    """As in the parent, which had imported modules of the standard library before it loaded the recipe."""
    own, beside = tmp_path / "own", tmp_path / "beside"
    for folder, names in ((own, ["helper", "other"]), (beside, ["recipe", "random", "helper"])):
        folder.mkdir()
        for name in names:
            (folder / f"{name}.py").write_text("")
    monkeypatch.setattr(sys, "path", [str(own), *sys.path])
    monkeypatch.setattr("tfprep.pool._added", set())
    import_file(beside / "recipe.py", "tfprep_test_recipe")
    assert sys.path[:2] == [str(beside), str(own)]
    code = "import random, helper, other\nmade = [*(module.__file__ for module in (random, helper, other)), *sys.path[:2]]\n"
    code += f"open({str(tmp_path / 'made')!r}, 'w').write('\\n'.join(made))"
    ran(Pool(entry, LATER, 1), [{"code": code}])
    found = [random.__file__, str(beside / "helper.py"), str(own / "other.py"), str(beside)]
    assert (tmp_path / "made").read_text().splitlines()[:4] == found


def test_a_folder_that_was_there_before_a_recipe_keeps_its_place(tmp_path, monkeypatch):
    """One of an editable installation, for example, is after the standard library."""
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    (tmp_path / "recipe.py").write_text("")
    (tmp_path / "random.py").write_text("raise SystemExit('imported')")
    import_file(tmp_path / "recipe.py", "tfprep_test_recipe")
    assert sys.path.index(str(tmp_path)) == len(sys.path) - 1
    assert lines_of_child(FOLDERS, tmp_path)[-1] == str(tmp_path)


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel ends children on Linux only")
def test_a_child_whose_parent_is_gone_ends():
    code = "from tfprep.pool import end_with_parent; end_with_parent(1); print('still here')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (1, "")


WORK = """
import os, sys, time
from tfprep.errors import RecipeError, RecordError

def open_work(argument):
    if argument.get("refuse"):
        raise RecipeError("no")
    if argument.get("eof"):
        raise EOFError("no data left")
    def work(task, mark):
        made = []
        for item in sorted(set(range(task.get("items", 1))) - mark.lost.keys()):
            mark(item)
            time.sleep(task.get("sleep", 0))
            exec(task.get("code", ""))
            made.append(item)
        return {"pid": os.getpid(), "number": task.get("number"), "argument": argument, "made": made}
    return work
"""


@pytest.fixture
def entry(tmp_path, monkeypatch):
    (tmp_path / "its_work.py").write_text(WORK)
    monkeypatch.syspath_prepend(tmp_path)
    return "its_work:open_work"


def ran(pool, tasks, argument=None):
    pool.start()
    pool.open(argument or {})
    for task in tasks:
        pool.submit(task)
    try:
        return list(pool.events())
    finally:
        pool.close()


def test_processes_and_this_process_give_the_same_results(entry):
    """One task is larger than a pipe."""
    numbers, word = [*range(6), "x" * 3_000_000], "ünïcode \udc80"
    for workers in (0, 2):
        events = ran(Pool(entry, LATER, workers), [{"number": number} for number in numbers], {"word": word})
        results = {event.task.number: event.result for event in events if isinstance(event, Done)}
        assert [results[task]["number"] for task in range(7)] == numbers
        assert {result["argument"]["word"] for result in results.values()} == {word}
        processes = {result["pid"] for result in results.values()}
        assert processes == {os.getpid()} if workers == 0 else os.getpid() not in processes


def test_a_worker_that_replaces_another_gets_the_same_environment(entry, monkeypatch):
    pool = Pool(entry, LATER, 1)
    pool.start()
    monkeypatch.setenv("SET_LATER", "1")
    monkeypatch.syspath_prepend("/added/later")
    code = "assert 'SET_LATER' not in os.environ and '/added/later' not in sys.path, (os.environ, sys.path)"
    events = ran(pool, [{"code": "os.kill(os.getpid(), 9) if not mark.careful else None"}, {"code": code}])
    assert [type(event) for event in events if isinstance(event, Died | Done)] == [Died, Done, Done]


def test_progress_is_reported_during_a_task(entry):
    events = ran(Pool(entry, LATER, 1), [{"items": 8, "sleep": 0.1}])
    items = [event.item for event in events if isinstance(event, Progress)]
    assert items == sorted(items)
    assert len(items) >= 2
    assert isinstance(events[-1], Done)


FAILURES = [
    ("raise RecipeError('line 7')", RecipeError, "^line 7$"),
    ("raise RecordError('bad', path='p', record=1, offset=2)", RecordError, "^p: record 1 at byte 2: bad$"),
    ("class Unsendable(Exception): pass\nraise Unsendable('its text')", Exception, "its text"),
]


@pytest.mark.parametrize("workers", [0, 1])
def test_an_exception_of_a_task_ends_the_run(entry, workers):
    """It keeps its type and what it holds if it can be sent, and its text otherwise."""
    for code, kind, message in FAILURES:
        with pytest.raises(kind, match=message):
            ran(Pool(entry, LATER, workers), [{"code": code}])
    with pytest.raises(RecipeError, match="no"):
        ran(Pool(entry, LATER, workers), [{}], {"refuse": True})
    with pytest.raises((BuildError, ZeroDivisionError)) as caught:
        ran(Pool(entry, LATER, workers), [{"code": "1 / 0"}])
    assert "its_work.py" in str(caught.getrepr())  # of another process as text


def test_closing_leaves_no_process_however_busy(entry):
    pool = Pool(entry, {}, 2)
    for _ in range(4):
        pool.submit({"items": 100, "sleep": 0.3})
    next(event for event in pool.events() if event and all(process.task is not None for process in pool.workers()))
    processes = [psutil.Process(process.pid) for process in pool.workers()]
    pool.close()
    assert psutil.wait_procs(processes, timeout=120)[1] == []


def test_output_goes_to_standard_error(entry, capfd):
    """Standard output is for results of the program."""
    ran(Pool(entry, LATER, 1), [{"code": "os.write(2, b'odd\\n'); os.system('echo a child'); print('by Python')"}])
    assert capfd.readouterr() == ("", "odd\na child\nby Python\n")


# --- processes that die -------------------------------------------------------------------------------------------------


def deaths(events):
    """The deaths of a run, in their order, as the item and whether it is lost."""
    return [(event.item, event.lost) for event in events if isinstance(event, Died)]


def test_an_item_that_ends_every_process_is_lost_and_nothing_else(entry):
    """The first death blames nothing; the others are at an announced item."""
    code = "if item in (2, 5): os.abort()"
    events = ran(Pool(entry, LATER, 2), [{"items": 8, "code": code}, {"items": 8}])
    by_task = [[event for event in events if getattr(event, "task", None) and event.task.number == n] for n in (0, 1)]
    died = [(None, False), *((item, lost) for item in (2, 5) for lost in (False, True))]
    assert deaths(by_task[0]) == died
    assert deaths(by_task[1]) == []
    results = [next(event.result for event in events if isinstance(event, Done)) for events in by_task]
    assert [result["made"] for result in results] == [[0, 1, 3, 4, 6, 7], [*range(8)]]
    lost = next(event for event in events if isinstance(event, Died) and event.lost)
    assert lost.reason == "its process was killed by SIGABRT"


def test_an_item_that_takes_too_long_is_lost_at_one_announced_try(entry):
    pool = Pool(entry, LATER, 1, item_timeout_s=3)
    events = ran(pool, [{"items": 3, "code": "time.sleep(60 if item == 1 else 0)"}])
    assert deaths(events) == [(None, False), (1, True)]
    assert events[-1].result["made"] == [0, 2]


@pytest.mark.parametrize("seed", range(3))
def test_signals_from_outside_cost_nothing(entry, seed):
    """All tasks end with all items. What is run again is spared: a second kill at the same item would be that item's fault."""
    rng, pool = random.Random(seed), Pool(entry, {}, 3)
    tasks = [pool.submit({"items": 20, "sleep": 0.01}) for _ in range(12)]
    results = {}
    for event in pool.events():
        assert not (isinstance(event, Died) and event.lost)
        if isinstance(event, Done):
            results[event.task] = event.result["made"]
            if len(results) in (2, 4, 6, 8):
                time.sleep(rng.uniform(0, 0.2))
                first_tries = [
                    process for process in pool.workers() if process.task is None or not process.task.careful
                ]
                for process in rng.sample(first_tries, min(1, len(first_tries))):
                    os.kill(process.pid, 9)
    pool.close()
    assert [sorted(results[task]) for task in tasks] == [[*range(20)]] * 12


def test_a_task_that_ends_its_process_after_its_items_is_an_error(entry):
    """Without an item to blame, it would be run for ever."""
    with pytest.raises(BuildError, match=r"^its process was killed by SIGABRT, 2 times, while it was at no item"):
        ran(Pool(entry, LATER, 1), [{"items": 3, "code": "if item == 2: mark(-1); os.abort()"}])


def test_processes_that_finish_nothing_are_given_up(entry):
    with pytest.raises(BuildError, match=r"11 worker processes died one after another .*SIGKILL.* finished nothing"):
        ran(Pool(entry, LATER, 2), [{"items": 50, "code": "os.kill(os.getpid(), 9)"}])


# --- tasks from threads -------------------------------------------------------------------------------------------------


def test_threads_submit_tasks_and_are_called_back(entry):
    """Several threads of this process and of each worker; an exception is the result of its task only."""
    pool, answers = Pool(entry, {}, 2, threads=2, ahead=1), queue.SimpleQueue()
    pool.on_done(lambda task, result: answers.put((task.note, result)))
    wait_until(lambda: pool.ready)  # both get tasks

    def submit(first):
        for number in range(first, first + 50):
            pool.submit({"number": number, "code": "1 / (task['number'] - 7)"}, note=number)

    threads = [threading.Thread(target=submit, args=(50 * n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    found = dict(answers.get(timeout=300) for _ in range(200))
    assert {number: result["number"] for number, result in found.items() if number != 7} == {
        number: number for number in range(200) if number != 7
    }
    assert "ZeroDivisionError" in str(found[7])
    assert len({result["pid"] for number, result in found.items() if number != 7}) == 2
    pool.close()
    with pytest.raises(BuildError, match="were ended"):
        pool.submit({})


def test_tasks_that_wait_get_an_error_when_the_pool_is_closed_or_given_up(entry):
    for argument, code, text in (({}, "time.sleep(60)", "were ended"), ({"refuse": True}, "", r"cannot go on (no)")):
        pool, answers = Pool(entry, argument, 1), queue.SimpleQueue()
        pool.submit({"code": code})
        pool.on_done(lambda task, result, answers=answers: answers.put(result))
        if not argument:
            wait_until(lambda pool=pool: pool.ready)
            pool.close()
        assert text in str(answers.get(timeout=300))
        assert bool(pool.failure) == bool(argument)
        pool.close()


def test_the_pool_of_a_process_that_forked_is_not_used_or_ended_by_its_child(entry):
    code = """if True:
        import os, sys
        from tfprep.errors import BuildError
        from tfprep.pool import Done, Pool
        pool = Pool(sys.argv[1], {}, 1)
        pool.start()
        child = os.fork()
        if not child:
            try:
                pool.submit({})
            except BuildError as error:
                pool.close()
                os._exit(7 if "forked" in str(error) else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        pool.submit({})
        assert sum(isinstance(event, Done) for event in pool.events()) == 1
        assert not pool.deaths
        pool.close()
    """
    subprocess.run([sys.executable, "-c", code, entry], check=True, env=worker_environment())


def test_ctrl_c_ends_no_worker_while_it_starts_and_no_worker_reads_what_is_typed(entry):
    """The signal goes to the whole process group, as from a terminal."""
    code = """if True:
        import os, signal, sys, time
        from tfprep.pool import Done, Pool
        pool = Pool(sys.argv[1], {}, 2)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGINT, lambda *_: None)
        pool.start()
        for _ in range(40):
            os.killpg(0, signal.SIGINT)
            time.sleep(0.01)
        pool.submit({"code": "assert not sys.stdin.read()"})
        assert sum(isinstance(event, Done) for event in pool.events()) == 1
        print(len(pool.deaths))
        pool.close()
    """
    command = [sys.executable, "-c", code, entry]
    options = {"env": worker_environment(), "stdout": subprocess.PIPE, "start_new_session": True}
    done = subprocess.run(command, check=True, input=b"typed", **options)
    assert done.stdout == b"0\n"


# --- what the work of users does to its process -------------------------------------------------------------------------


def test_work_may_print_what_no_encoding_holds(entry, monkeypatch, capfd):
    monkeypatch.setenv("PYTHONIOENCODING", "ascii:strict")
    ran(Pool(entry, LATER, 1), [{"code": "print('caf\\u00e9 \\udcff')"}])
    assert capfd.readouterr() == ("", "café \\udcff\n")


@pytest.mark.parametrize("threads", [1, 2])
def test_a_task_or_a_result_that_cannot_be_sent_is_an_error_and_not_a_wait(entry, threads):
    pool = Pool(entry, LATER, 1, threads=threads)
    with pytest.raises(BuildError, match="cannot pickle"):
        ran(pool, [{"code": "task['number'] = (one for one in ())"}])
    pool = Pool(entry, LATER, 1, threads=threads)
    with pytest.raises(BuildError, match="2 times, while it was at no item"):
        ran(pool, [{"number": Unreadable()}])


class Unreadable:
    """What a worker fails to read."""

    def __reduce__(self):
        return open, ("/does not exist",)


def test_an_eof_error_of_the_work_that_opens_is_reported(entry):
    with pytest.raises(BuildError, match="EOFError: no data left"):
        ran(Pool(entry, LATER, 1), [{}], {"eof": True})
