"""Ctrl-C in the wait for a batch ends the wait at once, and loses no batch: the next call returns it."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import closing, suppress
from itertools import islice
from pathlib import Path

import numpy as np
import psutil
import pytest

import tfprep
from tests.conftest import write_dataset
from tests.load.batches import batches, check_same, overwrite
from tests.waiting import wait_until
from tests.warm_python import run_python
from tfprep import codecs
from tfprep.errors import RecordError
from tfprep.load.reader.workers import ENTRY

PACKAGES = {"numpy_loader": "numpy", "torch_loader": "torch", "jax_loader": "jax", "loader": "tensorflow"}
OPTIONS = {
    "seed": 3, "fields": ["label", "pose"], "cache": False, "verify": "always", "workers": "threads", "threads": 1,
}  # fmt: skip


@pytest.fixture(params=PACKAGES)
def kind(request):
    """The function of a loader, whose passes take batches themselves."""
    pytest.importorskip(PACKAGES[request.param])

    def make(data, *args, **options):
        loader = getattr(data, request.param)(*args, **options)
        return loader.eager() if request.param == "loader" else loader

    return make


def press():
    os.kill(os.getpid(), signal.SIGINT)


def test_the_next_call_returns_the_batch_that_was_waited_for(data, kind, at_each_record):
    """Ctrl-C comes with the third record of a batch of five, when the consumer has waited for it for a while."""
    expected = [batch["pose"] for batch in batches(data, 10, batch_size=5, **OPTIONS)]
    records = []

    def slowly():
        time.sleep(0.02)
        records.append(1)
        if len(records) in (3, 8, 18, 28):
            press()

    at_each_record(slowly)
    with closing(kind(data, "train", 5, prefetch=1, **OPTIONS)) as loader:
        waiting, seen, interrupts = iter(loader), [], 0
        while len(seen) < 10:
            try:
                seen.append(np.asarray(next(waiting)["pose"]))
            except KeyboardInterrupt:
                interrupts += 1
    assert interrupts == 4
    assert all(map(np.array_equal, seen, expected))


def test_the_wait_ends_at_once(data, kind, gate):
    """Records never arrive: only Ctrl-C can end the wait."""
    with closing(kind(data, "train", 5, **OPTIONS, timeout_s=float("inf"))) as loader:
        waiting = iter(loader)
        threading.Timer(0.2, press).start()
        with pytest.raises(KeyboardInterrupt):
            next(waiting)
        gate.set()


class InterruptAt:
    """A profiler that raises what Ctrl-C raises, at the given number of calls of the modules that deliver batches."""

    def __init__(self, number):
        self.number = number

    def __call__(self, frame, event, argument):
        if event in ("c_return", "return") and Path(frame.f_code.co_filename).name in (
            "loader.py",
            "prefetch.py",
            "threads.py",
        ):
            self.number -= 1
            if not self.number:
                raise KeyboardInterrupt


def test_control_c_at_any_call_loses_no_place(data):
    """Also where a pass is started: the batch that comes next is the one that the state names."""
    options = {**OPTIONS, "prefetch": 2, "timeout_s": 20}
    expected = [batch["pose"] for batch in batches(data, 8, batch_size=5, **options)]
    number, kept = 1, []  # the end of a loader in another round would hide an interrupt
    while True:
        kept.append(loader := data.numpy_loader("train", 5, **options))
        waiting, seen, at = iter(loader.repeat()), 0, InterruptAt(number)
        sys.setprofile(at)
        try:
            while seen < 3:
                with suppress(KeyboardInterrupt):
                    next(waiting)
                    seen += 1
        finally:
            sys.setprofile(None)
        assert np.array_equal(next(waiting)["pose"], expected[loader.state_dict()["step"] - 1]), number
        loader.close()
        if at.number > 0:
            break
        number += 7
    assert number > 100


def test_control_c_at_the_end_of_a_pass_loses_no_batch(data):
    """The last batch comes again unless the state counts it."""
    options = {**OPTIONS, "prefetch": 2, "timeout_s": 20}
    expected = [batch["pose"] for batch in batches(data, 3, batch_size=25, **options)]
    number, kept = 1, []
    while True:
        kept.append(loader := data.numpy_loader("train", 25, **options))
        waiting, at = iter(loader), InterruptAt(number)
        sys.setprofile(at)
        try:
            while loader.progress.position < 2:
                with suppress(KeyboardInterrupt):
                    next(waiting)
        finally:
            sys.setprofile(None)
        assert np.array_equal(next(iter(loader))["pose"], expected[2]), number
        loader.close()
        if at.number > 0:
            break
        number += 1
    assert number > 50


@pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="this system has no memfd_create")
@pytest.mark.parametrize("name", ["tfprep-pool", "tfprep-read-0"])
@pytest.mark.parametrize("when", ["before", "after"])
def test_control_c_while_a_thread_is_started_starts_none_twice(data, monkeypatch, name, when):
    """Whether it had begun to run or not."""
    options = {**OPTIONS, "workers": "processes", "threads": 2, "timeout_s": 20}
    start, interrupted = threading.Thread.start, []

    def interrupt(thread):
        if when == "after":
            start(thread)
        if thread.name == name and not interrupted:
            interrupted.append(thread)
            raise KeyboardInterrupt
        if when == "before":
            start(thread)

    others = set(threading.enumerate())
    expected = batches(data, 2, batch_size=5, **OPTIONS)
    with closing(data.numpy_loader("train", 5, **options)) as loader, monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", interrupt)
        waiting = iter(loader)
        with pytest.raises(KeyboardInterrupt):
            next(waiting)
        check_same(expected, [next(waiting), next(waiting)])
        wait_until(lambda: loader.report()["workers"]["started"])
        running = set(threading.enumerate()) - others
        assert [thread.name for thread in running].count("tfprep-pool") == 1
        assert sum(ENTRY in process.cmdline() for process in psutil.Process().children()) == 2
    wait_until(lambda: not set(threading.enumerate()) - others)


@pytest.fixture
def slow_with_control_c(at_each_record):
    """Each record takes 10 ms, and Ctrl-C is sent at the twelfth one."""
    calls = []

    def slowly():
        time.sleep(0.01)
        calls.append(1)
        if len(calls) == 12:
            press()

    before = signal.getsignal(signal.SIGINT)
    at_each_record(slowly)
    yield
    signal.signal(signal.SIGINT, before)


def test_a_handler_of_the_user_is_respected(data, slow_with_control_c):
    """For example a handler that asks the loop to stop after this step: the batches are not affected."""
    pytest.importorskip("tensorflow")
    caught = []
    train = data.loader("train", 8, **OPTIONS)
    signal.signal(signal.SIGINT, lambda number, frame: caught.append(number))
    # Read through tf.data, while the main thread waits in C++.
    found = [batch["label"].numpy().tolist() for batch in train.take(3)]
    train.close()
    assert caught == [signal.SIGINT]
    assert found == [batch["label"].tolist() for batch in islice(data.numpy_loader("train", 8, **OPTIONS), 3)]


def test_errors_after_control_c_keep_their_type(make_dataset, slow_with_control_c):
    pytest.importorskip("tensorflow")
    made = make_dataset(samples={"train": 24}, fields=("pose", "label"), shards=1)
    path = next(made.path.glob("*.tfrecord*"))
    overwrite(path, path.stat().st_size - 6, b"\0\xff")
    train = tfprep.open(made.path).loader("train", 8, training=False, **OPTIONS).eager()
    with pytest.raises(KeyboardInterrupt):
        list(train)
    with pytest.raises(RecordError, match="record 23"):
        list(train)


CYCLES = """
import gc, json, sys, time
import psutil
import tfprep

class Trainer:
    def __init__(self, iterable):
        self.batches = iter(iterable)
        self.step = self.take  # the cycle: only the garbage collector ends it

    def take(self):
        return next(self.batches)

def use(count):
    for number in range(count):
        trainer = Trainer(iterable)
        for _ in range(1 + number % 3):  # the threads are at different work when the iterator is dropped
            trainer.step()
    del trainer
    gc.collect()
    while loader.stats["batches_in_flight"]:
        time.sleep(0.05)
    gc.collect()
    process = psutil.Process()
    return {"threads": process.num_threads(), "descriptors": process.num_fds(), "mb": process.memory_info().rss / 1e6}

gc.set_threshold(100, 5, 5)  # collections in all threads, also in reading threads that have a lock
make = getattr(tfprep.open(sys.argv[1]), "numpy_loader" if sys.argv[2] == "numpy" else "loader")
# A collection in a reading thread may destroy an iterator of tf.data, whose end waits for TensorFlow's thread, which waits for
# what the reading thread is at: `timeout_s` ends that.
loader = make("train", 8, threads=4, prefetch=2, cache=False, workers="threads", timeout_s=30).repeat()
iterable = loader.eager() if sys.argv[2] == "eager" else loader
before = use(3)
gc.freeze()
use(27)
print(json.dumps([before, use(3)]))  # the last pass lets go of what was read in advance for those before
"""


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    """64 images, of which a batch of eight has 1.2 MB."""
    codec, make = {"image": codecs.Raw()}, lambda rng, number: {"image": np.full((224, 224, 3), number, np.uint8)}
    return write_dataset(tmp_path_factory.mktemp("images") / "d", samples={"train": 64}, make=make, codec=codec).path


@pytest.mark.parametrize("kind", ["numpy", "eager", "tf.data"])
def test_iterators_in_reference_cycles(images, kind):
    """A finalizer that takes a lock that its thread has would never end. The batches of 30 iterators would take over 130 MB."""
    done = run_python(["-c", CYCLES, str(images), kind])
    assert done.returncode == 0, done.stdout + done.stderr
    before, after = json.loads(done.stdout.splitlines()[-1])
    for name in ("threads", "descriptors"):
        assert after[name] <= before[name], name
    assert after["mb"] < before["mb"] + 70


AT_EXIT = """
import atexit, os, signal, sys, threading, time
import tfprep

signal.signal(signal.SIGINT, signal.default_int_handler)
ending = threading.Event()


def press():
    ending.wait()
    time.sleep(0.2)
    os.kill(os.getpid(), signal.SIGINT)


def slow(image, draws):
    time.sleep(1)
    return image


loader = tfprep.open(sys.argv[1]).numpy_loader("train", 5, workers="threads", fields=["image"], color=[slow])
waiting = iter(loader)
threading.Thread(target=lambda: next(waiting), daemon=True).start()  # is told that the loader is closed
time.sleep(0.5)
threading.Thread(target=press, daemon=True).start()
atexit.register(ending.set)
"""


def test_control_c_while_the_interpreter_waits_for_threads_is_ignored(data, tmp_path):
    """It left threads that abort the process, or with TensorFlow let it hang."""
    (script := tmp_path / "script.py").write_text(AT_EXIT)
    command = [sys.executable, script, str(data.path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, "KeyboardInterrupt" in done.stderr) == (0, False)
