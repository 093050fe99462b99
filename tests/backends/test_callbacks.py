"""The callbacks and functions of `tfprep.train` on the backend that Keras runs on: they work, or say at once what they need."""

import json
import subprocess
import sys
import time

import numpy as np
import pytest

from tfprep import train
from tfprep.errors import MissingDependencyError, TrainError

keras = pytest.importorskip("keras")
BACKEND = keras.backend.backend()
pytestmark = pytest.mark.skipif(BACKEND == "tensorflow", reason="tests/train has these for TensorFlow")


class Batches(keras.utils.PyDataset):  # type: ignore[misc]
    """Ten batches of four, each after 20 ms."""

    def __len__(self):
        return 10

    def __getitem__(self, number):
        time.sleep(0.02)
        return np.ones([4, 8], "float32"), np.zeros([4, 4], "float32")


def dense():
    """A compiled model for [B, 8] inputs and [B, 4] targets, at the top of a module: processes make it by name."""
    model = keras.Sequential([keras.Input([8]), keras.layers.Dense(4)])
    model.compile("sgd", "mse")
    return model


def zeros(size):
    return np.zeros([size, 8], "float32"), np.zeros([size, 4], "float32")


class SlowPython(keras.callbacks.Callback):  # type: ignore[misc]
    """Takes as long as the step itself, at least 30 ms."""

    _began = 0.0

    def on_train_batch_begin(self, batch, logs=None):
        self._began = time.perf_counter()

    def on_train_batch_end(self, batch, logs=None):
        time.sleep(max(0.03, time.perf_counter() - self._began))


def test_the_monitor_measures_the_wait_for_any_input(tmp_path):
    monitor = train.InputMonitor(tmp_path, every_s=60)
    model = dense()
    model.fit(Batches(), epochs=2, verbose=0, shuffle=False, callbacks=[monitor])
    (sample,) = monitor.samples
    assert (sample.step, sample.waits.batches, sample.waits.images) == (20, 20, 80)
    assert sample.waits.waited_s > 5 * 0.02  # Keras may have taken some ahead, while a step took long
    assert monitor.summary.startswith("InputMonitor: 19 batches in "), monitor.summary
    assert not type(model.train_function).__module__.startswith("tfprep")
    model.fit(Batches(), verbose=0, shuffle=False, callbacks=[monitor])
    assert monitor.samples[-1].waits.batches == 10


def test_the_monitor_knows_tfpreps_loader(data, make_model, tmp_path):
    """Also before a callback that takes long, whose time is not a wait for input, and with validation between the epochs."""
    loader = data.keras_loader("train", 8, inputs="image", targets="label", training=True)
    val = data.keras_loader("val", 4, inputs="image", targets="label", training=False)
    monitor = train.InputMonitor(tmp_path, every_s=60)
    make_model().fit(
        loader, steps_per_epoch=6, epochs=2, verbose=0, shuffle=False, validation_data=val,
        callbacks=[monitor, SlowPython()],
    )  # fmt: skip
    assert sum(sample.waits.batches for sample in monitor.samples if sample.waits) == 12
    assert monitor.samples[-1].waits.images == 96
    assert monitor.samples[-1].readers["batches"] >= 12
    assert monitor.samples[-1].between_s > 10 * 0.03 * 0.9  # not the last step of an epoch
    lines = [json.loads(line) for line in (tmp_path / "input.jsonl").read_text().splitlines()]
    assert lines[-1]["readers"]["batches"] >= 12


def test_a_custom_training_loop(data, tmp_path):
    with train.InputMonitor(tmp_path, every_s=60) as monitor:
        for number, _ in enumerate(monitor.watch(data.numpy_loader("train", 8, training=True))):
            if number == 4:
                break
    assert monitor.samples[-1].waits.batches == 5
    assert monitor.samples[-1].readers["batches"] == 5


def test_a_slow_callback_is_named(data, make_model, tmp_path):
    loader = data.keras_loader("train", 8, inputs="image", targets="label", training=True)
    monitor = train.InputMonitor(tmp_path, every_s=60)
    make_model().fit(loader, epochs=2, verbose=0, shuffle=False, callbacks=[monitor, SlowPython()])
    assert "Python between the steps takes " in monitor.summary, monitor.summary
    assert ("steps_per_execution" in monitor.summary) == (BACKEND != "torch")  # PyTorch has none


NEEDS_TENSORFLOW = {
    "RetraceGuard": lambda: train.RetraceGuard(warmup_steps=2),
    "configure_gpu": lambda: train.configure_gpu(growth=True),
}
USES = {} if BACKEND == "tensorflow" else NEEDS_TENSORFLOW


@pytest.mark.parametrize("name", USES)
def test_what_needs_another_backend_says_so_at_once(name):
    with pytest.raises((TrainError, MissingDependencyError)) as raised:
        USES[name]()
    if isinstance(raised.value, MissingDependencyError):  # TensorFlow is not installed
        assert f"{name} needs TensorFlow: pip install 'tfprep[tensorflow]'" in str(raised.value)
        return
    assert str(raised.value).startswith(f"{name} needs Keras's backend tensorflow")
    assert f"Keras runs on {BACKEND} here; set KERAS_BACKEND=tensorflow" in str(raised.value)


def test_memory_is_counted(data, make_model):
    model = make_model()
    report = train.memory_report(model, 8)
    parameters = 4 * (24 * 32 * 3 * 3 + 3)
    assert (report.parameters, report.gradients) == (parameters, parameters)
    assert parameters <= report.optimizer <= parameters + 16  # the momentum, the step and the learning rate
    assert report.input_buffers == 4 * 8 * 24 * 32 * 3
    loader = data.keras_loader("train", 8, inputs="image", targets="label", training=True)
    assert train.memory_report(model, 8, data=loader).input_buffers == 2 * 8 * 24 * 32 * 3  # two batches of uint8


def test_batches_are_checked():
    values = keras.ops.convert_to_tensor(np.arange(8, dtype="float32").reshape(4, 2))
    labels = keras.ops.convert_to_tensor(np.array([0, 1, 1, 5]))
    with pytest.raises(TrainError, match=r"\[1\]: labels \[5\] are outside of \[0, 3\)[^$]*mean 3.5"):
        train.check_batches([(values, labels)], num_classes=3)


SCRIPT = """
import keras, numpy as np
from tfprep.train import find_batch_size

def dense():
    model = keras.Sequential([keras.Input([8]), keras.layers.Dense(4)])
    model.compile("sgd", "mse")
    return model

def zeros(size):
    keras.ops.ones([2**46 if size > 1 else 1])  # 256 TiB
    return np.zeros([size, 8], "float32"), np.zeros([size, 4], "float32")

if __name__ == "__main__":
    print(find_batch_size(dense, zeros, memory_limit_mb=4000, largest=2).size)
"""


def test_the_largest_batch_is_found_in_a_process_of_its_own(tmp_path):
    """Whatever the error is by which a backend says that memory cannot be had."""
    (tmp_path / "script.py").write_text(SCRIPT)
    command = [sys.executable, str(tmp_path / "script.py")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.split() == ["1"]
