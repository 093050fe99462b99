"""Threads that fill ahead: they stop, stall and fail in ways that one can see."""

from __future__ import annotations

import gc
import threading
import time

import numpy as np
import pytest

import tfprep
from tfprep.errors import LoaderError, StalledPipelineError
from tfprep.read import fill
from tfprep.read.reader import AHEAD_OF_MEMORY


def reading_threads():
    return [thread for thread in threading.enumerate() if thread.name.startswith("tfprep-read")]


@pytest.fixture(autouse=True)
def all_threads_end():
    yield
    gc.collect()
    end = time.monotonic() + 60
    while reading_threads() and time.monotonic() < end:
        time.sleep(0.01)
    assert not reading_threads()


@pytest.fixture
def data(photos):
    return tfprep.open(photos.path)


OPTIONS = {"cache": False, "verify": "always", "fields": ["image", "key"]}


@pytest.fixture
def gate(monkeypatch):
    """Reads wait until it is set."""
    opened, real = threading.Event(), fill.read_fields

    def read(*arguments, **options):
        assert opened.wait(20)
        return real(*arguments, **options)

    monkeypatch.setattr(fill, "read_fields", read)
    yield opened
    opened.set()


def test_no_thread_before_the_first_batch(data):
    iterator = iter(data.numpy_loader("train", 8, threads=2))
    assert not reading_threads()
    next(iterator)
    assert len(reading_threads()) == 2
    iterator.close()
    assert not reading_threads()


def test_dropping_an_iterator_ends_its_threads(data):
    next(iter(data.numpy_loader("train", 8)))
    gc.collect()
    assert not reading_threads()


def test_never_further_ahead_than_asked(data):
    loader = data.numpy_loader("train", 8, ahead=3, threads=4, **OPTIONS)
    iterator = iter(loader)
    for _ in range(5):
        next(iterator)
        time.sleep(0.02)
        stats = loader.stats
        assert stats["batches_ready"] + stats["batches_in_flight"] <= 3
    assert loader.stats["records_read"] <= 8 * (5 + 3)
    iterator.close()


def test_less_far_ahead_once_all_rows_are_in_memory(data):
    """No delay of a disk is to be hidden then; memory that was used just now is still in the processor's cache."""
    loader = data.numpy_loader("train", 8, variants=0, cache="decoded", ahead=6, fields=["image", "key"])
    batches = iter(loader)
    next(batches)
    assert loader.stats["batches_ahead"] == 6
    for _ in range(30):
        next(batches)
    assert loader.report()["cache"]["records"] == 50
    assert loader.stats["batches_ahead"] == AHEAD_OF_MEMORY
    for _ in range(20):
        next(batches)
        time.sleep(0.01)
        assert loader.stats["batches_ready"] + loader.stats["batches_in_flight"] <= AHEAD_OF_MEMORY
    end = time.monotonic() + 20
    while loader.stats["batches_ready"] < AHEAD_OF_MEMORY and time.monotonic() < end:
        time.sleep(0.01)
    assert loader.stats["batches_ready"] == AHEAD_OF_MEMORY
    batches.close()


def test_a_stall_says_where(data, gate):
    loader = data.numpy_loader("train", 8, timeout_s=0.3, threads=2, **OPTIONS)
    with pytest.raises(StalledPipelineError) as caught:
        next(iter(loader))
    told = str(caught.value)
    assert "no batch for step 0 in 0.3 s" in told
    assert "tfprep-read-0: read " in told
    assert "made-train" in told  # the file
    assert "opened.wait(20)" in told  # the line of code
    gate.set()


def test_a_slow_batch_is_no_stall(data, gate):
    iterator = iter(data.numpy_loader("train", 8, timeout_s=10, **OPTIONS))
    threading.Timer(0.3, gate.set).start()
    next(iterator)
    iterator.close()


def test_closing_ends_a_wait(data, gate):
    loader = data.numpy_loader("train", 8, **OPTIONS)
    threading.Timer(0.2, loader.pipeline.interrupt).start()
    with pytest.raises(LoaderError, match="interrupted"):
        next(iter(loader))
    gate.set()


def test_an_error_comes_at_its_step_and_not_before(data, monkeypatch):
    real, seen = fill.read_fields, []

    def read(*arguments, **options):
        seen.append(None)
        if len(seen) > 20:
            raise RuntimeError("the twenty-first record")
        return real(*arguments, **options)

    monkeypatch.setattr(fill, "read_fields", read)
    iterator = iter(data.numpy_loader("train", 8, threads=1, ahead=4, **OPTIONS))
    next(iterator)
    next(iterator)
    with pytest.raises(RuntimeError, match="twenty-first"):
        next(iterator)
    with pytest.raises(StopIteration):
        next(iterator)


def test_batches_that_are_kept_keep_their_pixels(data, photos):
    kept = [
        batch
        for _, batch in zip(
            range(100), data.numpy_loader("train", 8, ahead=2, fields=["field", "key"], variants=0), strict=False
        )
    ]
    assert len(kept) == 100
    for batch in kept:
        for at, key in enumerate(batch["key"]):
            assert np.array_equal(batch["field"][at], photos.values["train"][0][int(key[-4:])]["field"])


def test_memory_is_used_again(make_dataset):
    """Large batches that are let go at once lie in a few places, whatever their number."""

    def make(rng, number):
        return {"image": np.full((128, 128, 3), number, np.uint8)}

    from tfprep import codecs

    made = make_dataset(samples={"train": 16}, fields=("image",), make=make, codec={"image": codecs.Raw()})
    loader = tfprep.open(made.path).numpy_loader("train", 4, ahead=2)
    places = set()
    for _, batch in zip(range(200), loader, strict=False):
        places.add(batch["image"].__array_interface__["data"][0])
        assert len({int(image[0, 0, 0]) for image in batch["image"]}) == 4
        del batch
    assert len(places) <= 6


def test_iterations_are_independent(data):
    loader = data.numpy_loader("train", 8, fields=["key"])
    one, other = iter(loader), iter(loader)
    first = [next(one)["key"].tolist() for _ in range(4)]
    assert [next(other)["key"].tolist() for _ in range(4)] == first
    assert loader.stats["batches"] == 8
    one.close()
    other.close()
    assert loader.stats["batches"] == 8


def test_a_closed_loader_says_so(data):
    loader = data.numpy_loader("train", 8)
    iterator = iter(loader)
    next(iterator)
    loader.close()
    with pytest.raises(LoaderError, match="closed"):
        next(iterator)


def test_threads_beside_the_two_that_copy_end(data, monkeypatch):
    """Waking them for every batch would cost more than they do."""
    monkeypatch.setattr("tfprep.read.reader.usable_cpus", lambda: 6)
    loader = data.numpy_loader("train", 8, variants=0, cache="decoded", seed=3, fields=["image", "key"])
    batches = iter(loader)
    next(batches)
    assert len(loader.pipeline.readers[0].workers) == 6  # some may have ended by now
    expected = iter(data.numpy_loader("train", 8, variants=0, cache=False, seed=3, fields=["image", "key"], threads=1))
    next(expected)
    for _ in range(40):
        batch, other = next(batches), next(expected)
        assert batch["key"].tolist() == other["key"].tolist()
        assert np.array_equal(batch["image"], other["image"])
    expected.close()
    end = time.monotonic() + 20
    while len(reading_threads()) > 2 and time.monotonic() < end:
        next(batches)
    assert len(reading_threads()) == 2
    batches.close()
