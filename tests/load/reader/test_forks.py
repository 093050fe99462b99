"""Forked processes: the batches that they hold stay as they are, and they read by themselves or fail at once."""

import multiprocessing
import os
import resource
import threading
import weakref
from contextlib import closing
from itertools import islice
from types import SimpleNamespace

import numpy as np
import pytest

import tfprep
from tests.conftest import write_dataset
from tests.waiting import wait_until
from tfprep.dataset import Dataset
from tfprep.errors import LoaderError

fork = multiprocessing.get_context("fork")


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    samples = {"train": 400, "val": 5}
    return tfprep.open(write_dataset(tmp_path_factory.mktemp("forks"), samples=samples, fields=("field", "label")).path)


@pytest.fixture(params=["threads", "processes"])
def loader(data, request):
    """A loader whose batches are all filled by these workers."""
    options = {"cache": False, "workers": request.param, "threads": 2, "prefetch": 2, "seed": 1, "timeout_s": 60}
    with closing(data.numpy_loader("train", 32, **options).repeat()) as loader:
        loader.batches = iter(loader)
        is_started = request.param == "processes"
        wait_until(lambda: next(loader.batches) and loader.report()["workers"]["started"] == is_started)
        yield loader


def in_fork(function):
    """Start `function(go)` in a forked process, which may wait for the event `go`; return a function for its result."""
    go, (receive, send) = fork.Event(), fork.Pipe(False)
    process = fork.Process(target=lambda: send.send(function(go)))
    process.start()

    def result():
        go.set()
        assert receive.poll(300)  # a process that hangs
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
    """The memory of batches that are in use at a fork is not filled again."""
    forks = []
    for number in range(6):
        kept = [batch["field"] for batch in islice(loader.batches, 1 + number % 3)]
        expected = [batch.copy() for batch in kept]

        def compare(go, kept=kept, expected=expected):
            assert go.wait(60)
            changed = sum(not np.array_equal(batch, one) for batch, one in zip(kept, expected, strict=True))
            return changed

        forks.append(in_fork(compare))
        assert all(np.array_equal(batch, one) for batch, one in zip(kept, expected, strict=True))
        list(islice(loader.batches, number))
    mine = next(loader.batches)["field"]
    copy = mine.copy()
    list(islice(loader.batches, 20))
    assert [result() for result in forks] == [0] * 6
    assert np.array_equal(mine, copy)


def test_a_fork_that_drops_its_batches_or_ends_at_once(loader):
    """It delays no other process, and leaves the batches of the other one as they are."""
    kept = [batch["field"] for batch in islice(loader.batches, 8)]
    copies = [batch.copy() for batch in kept]
    assert in_fork(lambda go: kept.clear())() is None
    assert in_fork(lambda go: 3)() == 3
    list(islice(loader.batches, 30))
    assert all(np.array_equal(batch, copy) for batch, copy in zip(kept, copies, strict=True))


def test_a_fork_that_closes_the_loader_clears_no_batch(loader):
    """It gives no memory back that both processes share."""
    list(islice(loader.batches, 12))
    closed = in_fork(lambda go: go.wait(60) and loader.close())
    kept = [next(loader.batches)["field"] for _ in range(8)]
    copies = [batch.copy() for batch in kept]
    assert closed() is None
    assert all(np.array_equal(batch, copy) for batch, copy in zip(kept, copies, strict=True))


def test_loaders_and_iterators_of_the_other_process_fail_at_once(data, loader):
    """With the fix."""

    def take(go):
        for batches in (iter(loader), loader.batches):
            with pytest.raises(LoaderError, match=r"belong to the process that forked this one: .* the method 'spawn'"):
                next(batches)
        return len(list(tfprep.open(data.path).numpy_loader("val", 5)))

    assert in_fork(take)() == 1
    next(loader.batches)


def test_batches_by_their_step_in_a_fork(loader):
    """It reads them by itself, with files and locks of its own, while the other process goes on."""
    expected = [loader[step]["field"] for step in range(4)]
    results = [in_fork(lambda go: [loader[step]["field"] for step in range(4)]) for _ in range(3)]
    list(islice(loader.batches, 20))
    for result in results:
        assert all(np.array_equal(one, other) for one, other in zip(result(), expected, strict=True))


@pytest.mark.parametrize("within", ["the index", "the list of passes"])
def test_a_fork_while_a_thread_is_within(data, monkeypatch, within):
    """A lock that a thread held at the fork is never free in the other process."""
    entered, go_on, parent = threading.Event(), threading.Event(), os.getpid()
    real = Dataset.locations if within == "the index" else weakref.ref

    def wait(*arguments):
        if os.getpid() == parent and threading.current_thread() is not threading.main_thread():
            entered.set()
            assert go_on.wait(60)
        return real(*arguments)

    loader = data.numpy_loader("train", 32, workers="threads", cache=False)
    thread = threading.Thread(target=lambda: next(iter(loader)))
    if within == "the index":
        monkeypatch.setattr(Dataset, "locations", wait)
    else:
        monkeypatch.setattr("tfprep.load.threads.weakref", SimpleNamespace(ref=wait))
    thread.start()
    assert entered.wait(60)
    assert in_fork(lambda go: (len(loader[1]["label"]), len(list(data.numpy_loader("val", 5)))))() == (32, 1)
    go_on.set()
    thread.join()
