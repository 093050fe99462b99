"""Sessions and processes of their own for trainings."""

import gc
import os
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from tfprep.errors import TrainError


@pytest.fixture(autouse=True)
def _young_heap(tf: Any) -> Iterator[None]:
    """Excludes TensorFlow's half million objects from the many collections in these tests."""
    gc.freeze()
    yield
    gc.unfreeze()


def _train(tf: Any, units: int = 64) -> float:
    import keras

    model = keras.Sequential([keras.Input([8]), keras.layers.Dense(units, activation="relu"), keras.layers.Dense(4)])
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    dataset = tf.data.Dataset.from_tensors((tf.zeros([4, 8]), tf.zeros([4], tf.int32))).repeat()
    return float(model.fit(dataset, steps_per_epoch=2, verbose=0, shuffle=False).history["loss"][0])


def _alive(*kinds: str) -> list[int]:
    gc.collect()
    names = [type(thing).__name__ for thing in gc.get_objects()]
    return [names.count(kind) for kind in kinds]


def test_a_session_collects_models_and_iterators(tf: Any) -> None:
    """TensorFlow itself keeps the weights of what was trained; the page of the guide says so."""
    from tfprep.train import fresh_session

    kinds = ("OwnedIterator", "Sequential", "Adam")
    with fresh_session():
        _train(tf)
    before = _alive(*kinds)
    with fresh_session():
        _train(tf)
    assert _alive(*kinds) == before


def test_an_exception_goes_through_and_the_session_is_cleared(tf: Any) -> None:
    import keras

    from tfprep.train import fresh_session

    def fails() -> None:
        with fresh_session():
            _train(tf)
            raise LookupError

    with pytest.raises(LookupError):
        fails()
    assert keras.Sequential().name == "sequential"  # names count from the start again


def _pid_and_tensorflow(add: int) -> tuple[int, bool, int]:
    return os.getpid(), "tensorflow" in sys.modules, add + 1


def _fail() -> None:
    raise LookupError("of the function")


def _die() -> None:
    os.kill(os.getpid(), 9)


def test_isolated_runs_in_another_process() -> None:
    from tfprep.train import isolated

    pid, _, value = isolated(_pid_and_tensorflow, add=2)
    assert pid != os.getpid()
    assert value == 3


def test_isolated_raises_what_the_function_raised() -> None:
    from tfprep.train import isolated

    with pytest.raises(LookupError, match="of the function") as caught:
        isolated(_fail)
    assert "in the process of _fail" in caught.value.__notes__[0]


def test_isolated_says_how_its_process_died() -> None:
    from tfprep.train import isolated

    with pytest.raises(TrainError, match=r"_die was killed by SIGKILL \(out of memory\?\) before it had a result"):
        isolated(_die)


def test_isolated_says_what_cannot_be_sent() -> None:
    from tfprep.train import isolated

    with pytest.raises(TrainError, match="define each function at the top of a module"):
        isolated(lambda: 1)
