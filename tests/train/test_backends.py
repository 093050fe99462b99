"""Keras on JAX and PyTorch, in new processes: each callback works there, or raises at construction with what it needs."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

JAX = """
import sys, time
import keras, numpy as np
from tfprep.train import InputMonitor, Watchdog
from tfprep.errors import StalledPipelineError

class Batches(keras.utils.PyDataset):
    stuck_at = None
    def __len__(self):
        return 10
    def __getitem__(self, number):
        time.sleep(30 if number == self.stuck_at else 0.02)
        return np.ones([4, 8], "float32"), np.zeros([4, 4], "float32")

model = keras.Sequential([keras.Input([8]), keras.layers.Dense(4)])
model.compile("sgd", "mse")
monitor = InputMonitor(sys.argv[1], every_s=60, reader=lambda: {"batches_ready": 3})
model.fit(Batches(), epochs=2, verbose=0, callbacks=[monitor, Watchdog(20)])
(sample,) = monitor.samples
assert (sample.step, sample.waits.batches, sample.waits.images) == (20, 20, 80), sample
assert sample.waits.waited_s > 0.1, sample
assert sample.readers == {"batches_ready": 3.0}
assert monitor.summary.startswith("InputMonitor: 19 batches in "), monitor.summary
assert not type(model.train_function).__module__.startswith("tfprep")
stuck = Batches()
stuck.stuck_at = 5
try:
    model.fit(stuck, verbose=0, callbacks=[Watchdog(1.0)])
except StalledPipelineError as error:
    print("stalled", str(error).splitlines()[0])
model.fit(Batches(), verbose=0, callbacks=[monitor, Watchdog(20)])
assert monitor.samples[-1].waits.batches == 10
"""

ANYWHERE = """
import keras, numpy as np
from tfprep.train import check_batches, find_batch_size, fresh_session

def build():
    model = keras.Sequential([keras.Input([8]), keras.layers.Dense(4)])
    model.compile("sgd", "mse")
    return model

def batch(size):
    return np.ones([size, 8], "float32"), np.zeros([size, 4], "float32")

if __name__ == "__main__":
    with fresh_session() as session:
        build().fit(*batch(8), verbose=0)
    assert session.leftovers == (), session.leftovers
    assert check_batches([batch(8)], strict=False).batches == 1
    print(find_batch_size(build, batch, memory_limit_mb=4000, largest=2).size)
"""

REFUSED = """
import sys
import keras
import tfprep.train as train
from tfprep.errors import TrainError

model = keras.Sequential([keras.Input([8]), keras.layers.Dense(4)])
model.compile("sgd", "mse")
uses = {
    "InputMonitor": lambda: train.InputMonitor("logs"),
    "Watchdog": lambda: train.Watchdog(300),
    "RetraceGuard": train.RetraceGuard,
    "profile": train.profile,
    "memory_report": lambda: train.memory_report(model, 8),
}
for name, use in uses.items():
    try:
        use()
    except TrainError as error:
        assert str(error).startswith(f"{name} needs Keras's backend tensorflow"), error
        assert f"Keras runs on {keras.backend.backend()} here; set KERAS_BACKEND=tensorflow" in str(error), error
        print(name)
"""


def _run(backend: str, script: str, *arguments: str) -> list[str]:
    module = {"jax": "jax", "torch": "torch"}[backend]
    if importlib.util.find_spec(module) is None:
        pytest.skip(f"{module} is not installed")
    environment = {**os.environ, "KERAS_BACKEND": backend, "TF_CPP_MIN_LOG_LEVEL": "3"}
    command = [sys.executable, "-c", script, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False, env=environment)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout.splitlines()


def test_the_monitor_and_the_watchdog_on_jax(tmp_path: Path) -> None:
    (line,) = _run("jax", JAX, str(tmp_path))
    assert line.startswith("stalled no batch for 1.")


@pytest.mark.parametrize("backend", ["jax", "torch"])
def test_what_works_anywhere(backend: str, tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(ANYWHERE)
    script = f"import runpy; runpy.run_path({str(tmp_path / 'script.py')!r}, run_name='__main__')"
    assert _run(backend, script) == ["2"]


def test_what_needs_tensorflow_says_so_on_jax() -> None:
    assert _run("jax", REFUSED) == ["RetraceGuard", "profile", "memory_report"]


def test_what_needs_tensorflow_says_so_on_torch() -> None:
    assert _run("torch", REFUSED) == ["InputMonitor", "Watchdog", "RetraceGuard", "profile", "memory_report"]


def test_a_backend_without_a_process_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """For example PyTorch, if it is not installed."""
    import keras

    from tfprep.errors import TrainError
    from tfprep.train import InputMonitor, RetraceGuard

    monkeypatch.setattr(keras.backend, "backend", lambda: "torch")
    with pytest.raises(
        TrainError, match="InputMonitor needs Keras's backend tensorflow or jax, and Keras runs on torch"
    ):
        InputMonitor("logs")
    with pytest.raises(TrainError, match="RetraceGuard needs Keras's backend tensorflow, and Keras runs on torch here"):
        RetraceGuard()
