"""A session frees what a training allocated, and names what it cannot free."""

from __future__ import annotations

import gc
import json
import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tfprep.errors import TrainError

BENCHMARK = Path(__file__).parents[3] / "benchmarks" / "sessions.py"


@pytest.fixture(autouse=True)
def _young_heap(tf: Any) -> Iterator[None]:
    """Excludes TensorFlow's half million objects from the many collections in these tests."""
    gc.collect()
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


def test_weights_graphs_and_iterators_are_freed(tf: Any) -> None:
    from tfprep.train import fresh_session

    with fresh_session():
        _train(tf)
    kinds = ("ResourceVariable", "FuncGraph", "ConcreteFunction", "OwnedIterator", "Sequential", "Adam")
    before = _alive(*kinds)
    for _ in range(2):
        with fresh_session() as session:
            _train(tf)
        assert session.leftovers == ()
    assert _alive(*kinds) == before


def test_without_a_session_tensorflow_keeps_the_graphs(tf: Any) -> None:
    """The leak that `forget_dead_gradients` works around. If this test fails, TensorFlow has fixed it, and the module can be
    deleted."""
    from tfprep.train.memory.orphans import forget_dead_gradients

    gc.collect()
    forget_dead_gradients()
    before = _alive("FuncGraph")
    _train(tf)
    assert _alive("FuncGraph") > before
    assert forget_dead_gradients() > 0
    assert _alive("FuncGraph") == before


def test_without_private_names_a_session_still_clears_what_it_can(tf: Any, monkeypatch: Any) -> None:
    """The graphs of gradients stay in that case; only a new process frees them."""
    from tfprep.train import fresh_session
    from tfprep.train.memory.orphans import forget_dead_gradients

    monkeypatch.setenv("TFPREP_PUBLIC_TENSORFLOW", "1")
    with fresh_session() as session:
        _train(tf)
    assert session.leftovers == ()
    assert forget_dead_gradients() == 0
    monkeypatch.delenv("TFPREP_PUBLIC_TENSORFLOW")
    assert forget_dead_gradients() > 0


def test_gradients_in_use_are_kept(tf: Any) -> None:
    """A living function with a custom gradient can still be differentiated after a session."""
    from tfprep.train import fresh_session

    @tf.custom_gradient
    def triple(x: Any) -> Any:
        return 3.0 * x, lambda upstream: 7.0 * upstream

    inner = tf.function(lambda x: triple(x) + 0.0)
    inner(tf.constant(1.0))
    with fresh_session():
        _train(tf)
    with tf.GradientTape() as tape:
        x = tf.constant(2.0)
        tape.watch(x)
        y = inner(x)
    assert float(tape.gradient(y, x)) == 7.0


def test_a_warning_names_what_a_variable_keeps(tf: Any, caplog: Any) -> None:
    import keras

    from tfprep.train import fresh_session

    class Trial:
        best: Any = None

    trial = Trial()
    with caplog.at_level(logging.WARNING, "tfprep.train"), fresh_session() as session:
        kept = keras.Sequential([keras.Input([8]), keras.layers.Dense(3)], name="kept")
        trial.best = keras.Sequential([keras.Input([8]), keras.layers.Dense(3)], name="best")
        iterator = iter(tf.data.Dataset.range(3))
    text = "\n".join(map(str, session.leftovers))
    assert "model 'kept' (27 parameters), held by " in text
    assert "local variable 'kept' of test_a_warning_names_what_a_variable_keeps (" in text
    assert "model 'best' (27 parameters), held by " in text
    assert "Trial" in text
    assert "tf.data iterator OwnedIterator, held by local variable 'iterator' of" in text
    assert caplog.text.count("fresh_session: still alive: model 'kept'") == 1
    del kept, iterator


def test_a_warning_names_the_local_variable_that_keeps_an_optimizer(tf: Any) -> None:
    """The optimizer is reachable through the model, and the model through a list or the result of `fit`."""
    import keras

    from tfprep.train import fresh_session

    with fresh_session() as session:
        kept = keras.Sequential([keras.Input([8]), keras.layers.Dense(3)], name="kept")
        kept.compile("adam", "mse")
        trained = [[kept.fit(tf.zeros([4, 8]), tf.zeros([4, 3]), verbose=0)]]
        del kept
    held_by = {left.what.split(" ")[0]: left.held_by for left in session.leftovers}
    assert set(held_by) >= {"model", "optimizer"}
    name = "local variable 'trained' of test_a_warning_names_the_local_variable_that_keeps_an_optimizer ("
    assert all(any(one.startswith(name) for one in held_by[what]) for what in ("model", "optimizer")), held_by
    del trained


def test_an_exception_goes_through_and_the_session_is_cleared(tf: Any) -> None:
    from tfprep.train import fresh_session

    with fresh_session():
        _train(tf)
    before = _alive("ResourceVariable")

    def fails() -> None:
        with fresh_session():
            _train(tf)
            raise LookupError

    with pytest.raises(LookupError):
        fails()
    assert _alive("ResourceVariable") == before


def test_memory_stays_level_over_models() -> None:
    """The measurement of benchmarks/sessions.py over 20 models; without a session, each adds 27 MB. Keras's other backends
    are not imported."""
    script = (
        "import runpy, sys; sys.modules.update(torch=None, jax=None); runpy.run_path(sys.argv[0], run_name='__main__')"
    )
    command = [sys.executable, "-c", f"import sys; del sys.argv[0]; {script}"]
    command += [str(BENCHMARK), "--setup", "fresh_session", "--models", "4"]
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"}
    text = subprocess.run(command, check=True, capture_output=True, text=True, timeout=200, env=environment).stdout
    rss = json.loads(text.splitlines()[-1])
    assert rss[-1] < 1.05 * rss[1]


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
