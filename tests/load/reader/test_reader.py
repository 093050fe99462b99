"""Threads that prefetch batches: how they stop, stall and fail, and when their memory is used again."""

import gc
import os
import subprocess
import sys
import threading
from contextlib import closing
from itertools import islice

import numpy as np
import pytest

from tests.load.batches import check_same
from tests.photos import build_photos
from tests.waiting import wait_until
from tfprep.errors import LoaderError, StalledPipelineError
from tfprep.load.budget import PREFETCH_FROM_MEMORY
from tfprep.load.reader.files import Files
from tfprep.load.slots import ArraySlots
from tfprep.load.threads import Threads


def wait_for_the_end_of(reading_threads):
    wait_until(
        lambda: (gc.collect(), not reading_threads())[1]
    )  # a thread that ends a task may hold a cycle until then


@pytest.fixture(autouse=True)
def all_threads_end(reading_threads):
    yield
    wait_for_the_end_of(reading_threads)


OPTIONS = {"cache": False, "verify": "always", "fields": ["image", "key"], "workers": "threads"}


def test_threads_live_as_long_as_their_loader(data, reading_threads):
    loader = data.numpy_loader("train", 8, threads=2).repeat()
    iterator = iter(loader)
    assert not reading_threads()  # none starts before the first batch
    next(iterator)
    assert len(reading_threads()) == 2
    loader.close()
    assert not reading_threads()
    for steps in (iterator, iter(loader)):
        with pytest.raises(LoaderError, match="the loader is closed; make a new one"):
            next(steps)
    next(iter(data.numpy_loader("train", 8).repeat()))
    wait_for_the_end_of(reading_threads)  # a finaliser does not wait


def test_prefetch_stays_within_its_limit(data):
    with closing(data.numpy_loader("train", 8, prefetch=3, threads=4, **OPTIONS).repeat()) as loader:
        for _ in islice(loader, 5):
            wait_until(lambda: loader.stats["batches_ready"] == 3)
            assert loader.stats["batches_in_flight"] == 0
        assert loader.stats["records_read"] <= 8 * (5 + 3)


def test_prefetch_is_shorter_once_all_rows_are_in_memory(data):
    """Then no delay of a disk has to be bridged, and memory that was just used is still in the processor's cache."""
    options = {"variants": 0, "cache": "decoded", "prefetch": 6, "fields": ["image", "key"]}
    with closing(data.numpy_loader("train", 8, **options).repeat()) as loader:
        batches = iter(loader)
        next(batches)
        assert loader.stats["prefetch"] == 6
        list(islice(batches, 30))
        assert loader.report()["cache"]["records"] == 50
        assert loader.stats["prefetch"] == PREFETCH_FROM_MEMORY
        for _ in islice(batches, 10):
            wait_until(lambda: loader.stats["batches_ready"] == PREFETCH_FROM_MEMORY)
            assert loader.stats["batches_in_flight"] == 0


def test_a_stall_names_the_file_and_the_line(data, gate):
    loader = data.numpy_loader("train", 8, timeout_s=0.3, threads=2, **OPTIONS).repeat()
    with pytest.raises(StalledPipelineError) as caught:
        next(iter(loader))
    for part in ("no batch for step 0 in 0.3 s", "tfprep-read-0: read ", "made-train", "opened.wait(20)"):
        assert part in str(caught.value)
    gate.set()


def test_a_slow_batch_is_not_a_stall(data, gate):
    threading.Timer(0.2, gate.set).start()
    with closing(data.numpy_loader("train", 8, timeout_s=300, **OPTIONS)) as loader:
        next(iter(loader))


def test_closing_ends_a_wait(data, gate):
    loader = data.numpy_loader("train", 8, **OPTIONS)
    threading.Timer(0.1, loader.close).start()
    with pytest.raises(LoaderError, match="closed"):
        next(iter(loader))


@pytest.mark.parametrize(("fault", "error"), [(RuntimeError, RuntimeError), (StopIteration, LoaderError)])
def test_an_error_is_raised_at_its_step_and_not_before(data, at_each_record, fault, error):
    seen = []

    def fail():
        seen.append(None)
        if len(seen) > 20:
            raise fault("the twenty-first record")

    at_each_record(fail)
    iterator = iter(data.numpy_loader("train", 8, threads=1, prefetch=4, **OPTIONS))
    next(iterator)
    next(iterator)
    for _ in range(2):  # an end of the data would hide that batches are missing
        with pytest.raises(error, match="twenty-first"):
            next(iterator)


@pytest.mark.parametrize("from_step", [0, 5])
def test_an_error_in_planning_ends_the_wait_at_once(data, monkeypatch, from_step):
    """Batches that were planned earlier may still arrive; no call waits for `timeout_s`."""
    loader = data.numpy_loader("train", 8, timeout_s=600, prefetch=2).repeat()
    schedule = type(loader.pipeline.schedule)
    real = schedule.positions

    def fail(self, steps):
        if steps[0] >= from_step:
            raise MemoryError("no room for a plan")
        return real(self, steps)

    monkeypatch.setattr(schedule, "positions", fail)
    with pytest.raises(MemoryError, match="no room for a plan"):
        list(loader)


def test_a_thread_that_cannot_be_started_is_named(data, monkeypatch):
    real, started = threading.Thread.start, []

    def start(self):
        if self.name.startswith("tfprep-read"):
            started.append(self)
            if len(started) % 3 == 0:
                raise RuntimeError("can't start new thread")
        real(self)

    monkeypatch.setattr(threading.Thread, "start", start)
    with pytest.raises(
        LoaderError, match=r"thread 3 of 4 cannot be started \(can't start new thread\); use fewer `threads`"
    ):
        next(iter(data.numpy_loader("train", 8, threads=4).repeat()))
    with pytest.raises(LoaderError, match=r"cannot be started \(can't start new thread\); raise the limit"):
        Threads(fewer="").grow(3)  # threads that fetch, whose number no option sets


# --- memory -------------------------------------------------------------------------------------------------------------

HOLDS = [
    lambda array: array,
    lambda array: array[1:2],
    lambda array: array.reshape(-1).view(np.uint16)[7:8],
    memoryview,
    lambda array: np.asarray(memoryview(array))[::2],
    lambda array: [array.T],
]


def test_memory_is_used_again_once_nobody_refers_to_it(large):
    """Batches that are released at once use a few addresses; any view of one keeps its memory as it is, also after `close`."""
    with closing(large.numpy_loader("train", 4, prefetch=2, cache=False, threads=2).repeat()) as loader:
        places, held = set(), []
        for number, batch in enumerate(islice(loader, 200)):
            array = batch["image"]
            places.add(array.__array_interface__["data"][0])
            assert (array == array[:, :1, :1, :1]).all()
            assert len({int(image[0, 0, 0]) for image in array}) == 4
            if number < len(HOLDS):
                held.append((HOLDS[number](array), HOLDS[number](array.copy())))
            del batch, array
        assert len(places) <= 6 + len(HOLDS)
        assert all(place % 4096 == 0 for place in places)
        check_same([copy for _, copy in held], [view for view, _ in held])
    check_same([copy for _, copy in held], [view for view, _ in held])


def test_an_array_that_was_made_read_only_costs_nothing_later(large):
    with closing(large.numpy_loader("train", 4, prefetch=1, cache=False, threads=1).repeat()) as loader:
        for batch in islice(loader, 30):
            assert batch["image"].flags.writeable
            batch["image"].flags.writeable = False


def test_memory_beyond_the_limit_is_given_back():
    slots = ArraySlots(64, keep=2)
    held = [slots.take((64,), np.uint8) for _ in range(5)]
    assert len({array.ctypes.data for array in held}) == len(slots) == 5
    view = held[0][3:4]
    held.clear()
    again = slots.take((32,), np.uint16)
    assert len(slots) == 2  # that of the view, and this one
    assert not np.shares_memory(again, view)


FEW_DESCRIPTORS = """
import resource, sys
import tfprep

data = tfprep.open(sys.argv[1])
resource.setrlimit(resource.RLIMIT_NOFILE, (48, 48))
for workers in ("threads", "processes"):
    loader = data.numpy_loader("train", 4, cache=False, workers=workers, threads=2)
    print(sum(len(batch["label"]) for batch in loader))
    loader.close()
loader = data.numpy_loader("train", 4, cache=False, workers="threads")
resource.setrlimit(resource.RLIMIT_NOFILE, (3, 48))
try:
    loader[0]
except tfprep.errors.DatasetError as error:
    print(error)
"""


def test_more_shards_than_descriptors_are_read(tmp_path):
    folder = build_photos(tmp_path, 160, recipe={"shards": {"train": 64}})
    command = [sys.executable, "-c", FEW_DESCRIPTORS, str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.stdout.startswith("160\n160\n"), done.stderr
    assert "(Too many open files); raise the limit of open files (ulimit -n)" in done.stdout


def test_a_file_stays_open_while_the_system_is_told_of_it(tmp_path, monkeypatch):
    """Another thread may ask for many other files meanwhile, so that it leaves the cache of open files."""
    paths = [tmp_path / name for name in "ab"]
    for path in paths:
        path.write_bytes(b"12345678")
    files, announced = Files(paths, limit=1), []

    def advise(descriptor, *_):
        files.get(1)
        announced.append(os.path.samestat(os.fstat(descriptor), paths[0].stat()))

    monkeypatch.setattr(os, "posix_fadvise", advise, raising=False)
    files.will_need(0, 0, 8)
    assert announced == [True]
