"""Forked processes: the batches that they hold stay as they are, and they read by themselves or fail at once."""

import multiprocessing
import os
import resource
import time
from contextlib import closing

import numpy as np
import pytest

import tfprep
from tfprep.errors import LoaderError

fork = multiprocessing.get_context("fork")
SAMPLES, BATCH = 400, 32


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    from tests.conftest import write_dataset

    return write_dataset(
        tmp_path_factory.mktemp("forks"), samples={"train": SAMPLES, "val": 5}, fields=("field", "label")
    )


@pytest.fixture(params=["threads", "processes"])
def loader(made, request):
    """A loader whose batches are all filled by these workers."""
    options = {"cache": False, "workers": request.param, "threads": 2, "prefetch": 2, "seed": 1, "timeout_s": 60}
    with closing(tfprep.open(made.path).numpy_loader("train", BATCH, **options).repeat()) as loader:
        batches = iter(loader)
        end = time.monotonic() + 60
        while loader.report()["workers"]["started"] != (request.param == "processes"):
            next(batches)
            assert time.monotonic() < end
        loader.batches = batches
        yield loader


def in_fork(function):
    """Start `function(go, answer)` in a forked process; `go` is an event that it may wait for, `answer` sends its result."""
    go, (receive, send) = fork.Event(), fork.Pipe(False)
    process = fork.Process(target=lambda: send.send(function(go)))
    process.start()

    def result():
        go.set()
        assert receive.poll(60)
        value = receive.recv()
        process.join()
        return value

    return result


@pytest.fixture(params=["few files are open", "many"])
def descriptors(request):
    """Where 1,024 files are open, `select` knows none of the next ones."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if request.param == "many" and hard != resource.RLIM_INFINITY and hard < 4096:
        pytest.skip("a process may open fewer than 4,096 files here")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 4096), hard))
    opened = [os.open(os.devnull, os.O_RDONLY) for _ in range(1500 if request.param == "many" else 0)]
    yield request.param
    for descriptor in opened:
        os.close(descriptor)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_batches_that_a_fork_holds_stay_as_they_are(descriptors, loader):
    """Of both processes' own writes, too, the other sees nothing."""
    forks = []
    for number in range(6):
        kept = [next(loader.batches)["field"] for _ in range(1 + number % 3)]
        expected = [batch.copy() for batch in kept]

        def compare(go, kept=kept, expected=expected):
            assert go.wait(60)
            changed = sum(not np.array_equal(batch, one) for batch, one in zip(kept, expected, strict=True))
            for batch in kept:
                batch[:] = -1
            return changed

        forks.append(in_fork(compare))
        assert all(np.array_equal(batch, one) for batch, one in zip(kept, expected, strict=True))
        kept[0][:] = number
        for _ in range(number):
            next(loader.batches)
    mine = next(loader.batches)["field"]
    copy = mine.copy()
    for _ in range(20):
        next(loader.batches)
    assert [result() for result in forks] == [0] * 6
    assert np.array_equal(mine, copy)


def test_a_fork_that_nobody_waits_for_delays_no_other(loader):
    """One that ends at once, before it could copy anything, lets the other process go on."""
    kept = next(loader.batches)["field"]
    copy = kept.copy()
    assert in_fork(lambda go: 3)() == 3
    for _ in range(30):
        next(loader.batches)
    assert np.array_equal(kept, copy)


def test_a_loader_of_the_other_process_is_an_error_with_the_way_out(loader):
    def take(go):
        with pytest.raises(LoaderError, match="make a loader here, or start this process with the method 'spawn'"):
            next(iter(loader))
        return len(list(tfprep.open(loader.pipeline.sources[0].dataset.path).numpy_loader("val", 5)))

    assert in_fork(take)() == 1


def test_an_iterator_of_the_other_process_fails_at_once(loader):
    next(loader.batches)

    def take(go):
        began = time.monotonic()
        with pytest.raises(LoaderError, match="belongs to the process that forked this one; make a new one here"):
            next(loader.batches)
        return time.monotonic() - began

    assert in_fork(take)() < 30
    next(loader.batches)
