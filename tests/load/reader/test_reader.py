"""Threads that prefetch batches: how they stop, stall and fail."""

import gc
import os
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

import tfprep
from tests.waiting import wait_until
from tfprep.errors import LoaderError, StalledPipelineError
from tfprep.load.reader import rows
from tfprep.load.reader.files import Files
from tfprep.load.reader.reader import PREFETCH_FROM_MEMORY


def wait_for_the_end_of(reading_threads):
    gc.collect()
    wait_until(lambda: not reading_threads())


@pytest.fixture(autouse=True)
def all_threads_end(reading_threads):
    yield
    wait_for_the_end_of(reading_threads)


@pytest.fixture
def data(photos):
    return tfprep.open(photos.path)


OPTIONS = {"cache": False, "verify": "always", "fields": ["image", "key"]}


@pytest.fixture
def gate(monkeypatch):
    """Makes reads wait until the event is set."""
    opened, real = threading.Event(), rows.read_fields

    def read(*arguments, **options):
        assert opened.wait(20)
        return real(*arguments, **options)

    monkeypatch.setattr(rows, "read_fields", read)
    yield opened
    opened.set()


def test_no_thread_starts_before_the_first_batch(data, reading_threads):
    iterator = iter(data.numpy_loader("train", 8, threads=2).repeat())
    assert not reading_threads()
    next(iterator)
    assert len(reading_threads()) == 2
    iterator.close()
    assert not reading_threads()


def test_dropping_an_iterator_ends_its_threads(data, reading_threads):
    next(iter(data.numpy_loader("train", 8).repeat()))
    wait_for_the_end_of(reading_threads)  # A finaliser does not wait.


def test_prefetch_stays_within_its_limit(data):
    loader = data.numpy_loader("train", 8, prefetch=3, threads=4, **OPTIONS).repeat()
    iterator = iter(loader)
    for _ in range(5):
        next(iterator)
        time.sleep(0.02)
        stats = loader.stats
        assert stats["batches_ready"] + stats["batches_in_flight"] <= 3
    assert loader.stats["records_read"] <= 8 * (5 + 3)
    iterator.close()


def test_prefetch_is_shorter_once_all_rows_are_in_memory(data):
    """Then no delay of a disk has to be bridged, and memory that was just used is still in the processor's cache."""
    loader = data.numpy_loader("train", 8, variants=0, cache="decoded", prefetch=6, fields=["image", "key"]).repeat()
    batches = iter(loader)
    next(batches)
    assert loader.stats["prefetch"] == 6
    for _ in range(30):
        next(batches)
    assert loader.report()["cache"]["records"] == 50
    assert loader.stats["prefetch"] == PREFETCH_FROM_MEMORY
    for _ in range(20):
        next(batches)
        time.sleep(0.01)
        assert loader.stats["batches_ready"] + loader.stats["batches_in_flight"] <= PREFETCH_FROM_MEMORY
    wait_until(lambda: loader.stats["batches_ready"] == PREFETCH_FROM_MEMORY)
    batches.close()


def test_a_stall_names_the_file_and_the_line(data, gate):
    loader = data.numpy_loader("train", 8, timeout_s=0.3, threads=2, **OPTIONS).repeat()
    with pytest.raises(StalledPipelineError) as caught:
        next(iter(loader))
    message = str(caught.value)
    assert "no batch for step 0 in 0.3 s" in message
    assert "tfprep-read-0: read " in message
    assert "made-train" in message  # The file.
    assert "opened.wait(20)" in message  # The line of code.
    gate.set()


def test_a_slow_batch_is_not_a_stall(data, gate):
    iterator = iter(data.numpy_loader("train", 8, timeout_s=10, **OPTIONS).repeat())
    threading.Timer(0.3, gate.set).start()
    next(iterator)
    iterator.close()


def test_closing_ends_a_wait(data, gate):
    loader = data.numpy_loader("train", 8, **OPTIONS).repeat()
    threading.Timer(0.2, loader.close).start()
    with pytest.raises(LoaderError, match="closed"):
        next(iter(loader))
    gate.set()


def test_an_error_is_raised_at_its_step_and_not_before(data, monkeypatch):
    real, seen = rows.read_fields, []

    def read(*arguments, **options):
        seen.append(None)
        if len(seen) > 20:
            raise RuntimeError("the twenty-first record")
        return real(*arguments, **options)

    monkeypatch.setattr(rows, "read_fields", read)
    iterator = iter(data.numpy_loader("train", 8, threads=1, prefetch=4, **OPTIONS).repeat())
    next(iterator)
    next(iterator)
    for _ in range(2):  # an end of the data would hide that batches are missing
        with pytest.raises(RuntimeError, match="twenty-first"):
            next(iterator)


def test_batches_that_are_kept_keep_their_pixels(data, photos):
    kept = [
        batch
        for _, batch in zip(
            range(100),
            data.numpy_loader("train", 8, prefetch=2, fields=["field", "key"], variants=0).repeat(),
            strict=False,
        )
    ]
    assert len(kept) == 100
    for batch in kept:
        for at, key in enumerate(batch["key"]):
            assert np.array_equal(batch["field"][at], photos.values["train"][0][int(key[-4:])]["field"])


def test_memory_is_reused(make_dataset):
    """Large batches that are released at once use only a few addresses, for any number of batches."""

    def make(rng, number):
        return {"image": np.full((128, 128, 3), number, np.uint8)}

    from tfprep import codecs

    made = make_dataset(samples={"train": 16}, fields=("image",), make=make, codec={"image": codecs.Raw()})
    loader = tfprep.open(made.path).numpy_loader("train", 4, prefetch=2).repeat()
    places = set()
    for _, batch in zip(range(200), loader, strict=False):
        places.add(batch["image"].__array_interface__["data"][0])
        assert len({int(image[0, 0, 0]) for image in batch["image"]}) == 4
        del batch
    assert len(places) <= 6


def test_an_error_in_planning_ends_the_wait_at_once(data, monkeypatch):
    def fail(self, steps):
        raise RuntimeError("the plan")

    loader = data.numpy_loader("train", 8, timeout_s=600).repeat()
    monkeypatch.setattr(type(loader.pipeline.schedule), "batch_indices", fail)
    began = time.monotonic()
    with pytest.raises(RuntimeError, match="the plan"):
        next(iter(loader))
    assert time.monotonic() - began < 300


def test_an_error_in_a_later_plan_comes_too(data, monkeypatch):
    """Batches that were planned earlier may still arrive; no call waits for `timeout_s`."""
    loader = data.numpy_loader("train", 8, timeout_s=600, prefetch=2).repeat()
    real = type(loader.pipeline.schedule).batch_indices

    def fail(self, steps):
        if steps[0] > 4:
            raise MemoryError("no room for a plan")
        return real(self, steps)

    monkeypatch.setattr(type(loader.pipeline.schedule), "batch_indices", fail)
    with pytest.raises(MemoryError, match="no room for a plan"):
        for _ in loader:
            pass


def test_a_thread_that_cannot_be_started_is_named(data, monkeypatch):
    real, started = threading.Thread.start, []

    def start(self):
        if self.name.startswith("tfprep-read"):
            started.append(self)
            if len(started) == 3:
                raise RuntimeError("can't start new thread")
        real(self)

    monkeypatch.setattr(threading.Thread, "start", start)
    with pytest.raises(LoaderError, match=r"reading thread 3 of 4 cannot be started \(can't start new thread\)"):
        next(iter(data.numpy_loader("train", 8, threads=4).repeat()))


CYCLES = """
import gc, sys, threading, time
import tfprep
loader = tfprep.open(sys.argv[1]).numpy_loader("train", 8, cache=False).repeat()

class Trainer:
    def __init__(self):
        self.batches = iter(loader)
        self.callback = self.step  # the cycle: only the garbage collector ends it

    def step(self):
        return next(self.batches)

gc.set_threshold(100, 5, 5)  # collections in all threads, also in reading threads that have a lock
for number in range(int(sys.argv[2])):
    Trainer().step()
end = time.monotonic() + 60
while threading.active_count() > 1 and time.monotonic() < end:
    gc.collect()  # again and again: it does nothing while another thread collects
    time.sleep(0.01)
print(threading.active_count(), "thread left")
"""


def test_iterators_in_cycles_are_collected_in_any_thread(photos):
    """A finaliser that takes the reader's lock would deadlock in a thread that already has it."""
    command = [sys.executable, "-c", CYCLES, str(photos.path), "100"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.stdout == "1 thread left\n", done.stderr


def test_iterations_are_independent(data):
    loader = data.numpy_loader("train", 8, fields=["key"]).repeat()
    one, other = iter(loader), iter(loader)
    first = [next(one)["key"].tolist() for _ in range(4)]
    again = iter(loader.at_epoch(0))
    assert [next(again)["key"].tolist() for _ in range(4)] == first
    assert next(other)["key"].tolist() not in first
    assert loader.stats["batches"] == 9
    for iterator in (one, other, again):
        iterator.close()
    assert loader.stats["batches"] == 9


def test_a_closed_loader_raises(data):
    loader = data.numpy_loader("train", 8).repeat()
    iterator = iter(loader)
    next(iterator)
    loader.close()
    with pytest.raises(LoaderError, match="closed"):
        next(iterator)


def test_a_file_stays_open_while_the_system_is_told_of_it(tmp_path, monkeypatch):
    """Another thread may ask for so many other files meanwhile that it leaves the cache of open files."""
    paths = [tmp_path / name for name in "ab"]
    for path in paths:
        path.write_bytes(b"12345678")
    files, announced = Files(paths, [None, None], limit=1), []

    def advise(descriptor, *_):
        files.get(1)
        announced.append(os.path.samestat(os.fstat(descriptor), paths[0].stat()))

    monkeypatch.setattr(os, "posix_fadvise", advise, raising=False)
    files.will_need(0, 0, 8)
    assert announced == [True]
