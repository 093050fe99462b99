"""Sessions and processes of their own for trainings."""

import gc
import os
import signal
import sys
import threading
import time

import pytest

from tests.waiting import wait_until
from tfprep import train
from tfprep.errors import TrainError


@pytest.fixture(autouse=True)
def _young_heap(tf):
    """Excludes TensorFlow's half million objects from the many collections in these tests."""
    gc.freeze()
    yield
    gc.unfreeze()


def _train(tf, units=64):
    model = tf.keras.Sequential(
        [tf.keras.Input([8]), tf.keras.layers.Dense(units, activation="relu"), tf.keras.layers.Dense(4)]
    )
    model.compile("adam", tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    dataset = tf.data.Dataset.from_tensors((tf.zeros([4, 8]), tf.zeros([4], tf.int32))).repeat()
    return float(model.fit(dataset, steps_per_epoch=2, verbose=0, shuffle=False).history["loss"][0])


def _alive(*kinds):
    gc.collect()
    names = [type(thing).__name__ for thing in gc.get_objects()]
    return [names.count(kind) for kind in kinds]


def test_a_session_collects_models_and_iterators(tf):
    """TensorFlow itself keeps the weights of what was trained; the page of the guide says so."""
    kinds = ("OwnedIterator", "Sequential", "Adam")
    with train.fresh_session():
        _train(tf)
    before = _alive(*kinds)
    with train.fresh_session():
        _train(tf)
    assert _alive(*kinds) == before


def test_an_exception_goes_through_and_the_session_is_cleared(tf):
    def fails():
        with train.fresh_session():
            _train(tf)
            raise LookupError

    with pytest.raises(LookupError):
        fails()
    assert tf.keras.Sequential().name == "sequential"  # names count from the start again


def _pid_and_tensorflow(add):
    return os.getpid(), "tensorflow" in sys.modules, add + 1


def _fail():
    raise LookupError("of the function")


def _die():
    os.kill(os.getpid(), 9)


def _sleep(path):
    path.write_text(f"{os.getpid()}")
    time.sleep(60)


def test_ctrl_c_ends_the_other_process(tmp_path, monkeypatch):
    """Of a notebook, only the process of the notebook gets the signal."""
    pid, main = tmp_path / "pid", threading.get_ident()
    interrupt = threading.Thread(
        target=lambda: (wait_until(lambda: pid.exists() and pid.read_text()), signal.pthread_kill(main, signal.SIGINT))
    )
    monkeypatch.setattr("tfprep.train.isolation._GRACE_S", 0.1)
    interrupt.start()
    with pytest.raises(KeyboardInterrupt):
        train.isolated(_sleep, pid)
    interrupt.join()
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid.read_text()), 0)


def test_isolated_runs_in_another_process():
    pid, _, value = train.isolated(_pid_and_tensorflow, add=2)
    assert pid != os.getpid()
    assert value == 3
    with pytest.raises(LookupError, match="of the function") as caught:
        train.isolated(_fail)
    assert "in the process of _fail" in caught.value.__notes__[0]
    with pytest.raises(TrainError, match=r"_die was killed by SIGKILL \(out of memory\?\) before it had a result"):
        train.isolated(_die)
