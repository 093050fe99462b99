"""The additional time of a train step with `InputMonitor`, `Watchdog`, `RetraceGuard`, and all three.

    python benchmarks/monitor.py [--steps 600] [--size 40] [--json monitor.json]

Each setup has its own model and takes the same batches from memory. The setups take turns step by step, so that other programs
slow all of them; a step is a call of the model's train function, as in `fit`. The tables show the median step of each setup and
its difference to a step without a callback, in microseconds and percent. The first model has convolutions. The second does almost
nothing, so that its table shows the fixed cost. The last lines show the time in which Keras calls an empty callback, and the time
of a sample, which `InputMonitor` takes every 5 seconds in a thread.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

SETUPS = ("no callback", "InputMonitor", "Watchdog", "RetraceGuard", "all three")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=600, help="Measured steps per setup")
    parser.add_argument("--size", type=int, default=40, help="Side of the images in pixels")
    parser.add_argument("--json", type=Path, help="File for the times")
    options = parser.parse_args()
    results = {
        "convolutions": measure(convolutions, options.size, options.steps),
        "almost nothing": measure(almost_nothing, 4, 5 * options.steps),
    }
    for title, times in results.items():
        print_table(title, times)
    print(f"empty callback: {1e6 * empty_callback_s():.1f} µs per step")
    print(f"sample: {1e3 * sample_s():.1f} ms, every 5 s by default")
    if options.json:
        options.json.write_text(json.dumps(results))


def measure(build: Any, size: int, steps: int) -> dict[str, list[float]]:
    """Seconds of each step, by setup."""
    runs = {setup: Run(build(size), callbacks_of(setup), batches(size)) for setup in SETUPS}
    for run in runs.values():  # traces the train function
        for _ in range(5):
            run.step()
    times: dict[str, list[float]] = {setup: [] for setup in SETUPS}
    for number in range(steps):
        first = number % len(SETUPS)
        for setup in SETUPS[first:] + SETUPS[:first]:
            began = time.perf_counter()
            runs[setup].step()
            times[setup].append(time.perf_counter() - began)
    for run in runs.values():
        run.end()
    return times


class Run:
    """A training with callbacks whose steps are run one by one, without the loop of `fit`."""

    def __init__(self, model: Any, callbacks: list[Any], dataset: Any) -> None:
        self._model, self._callbacks = model, callbacks
        for callback in callbacks:
            callback.set_model(model)
        model.make_train_function()
        for callback in callbacks:
            callback.on_train_begin()
            callback.on_epoch_begin(0)
        self._iterator = iter(dataset)

    def step(self) -> None:
        self._model.train_function(self._iterator)

    def end(self) -> None:
        for callback in self._callbacks:
            callback.set_params({"verbose": 0})
            callback.on_train_end()


def callbacks_of(setup: str) -> list[Any]:
    from tfprep.train import InputMonitor, RetraceGuard, Watchdog

    folder = tempfile.mkdtemp(prefix="tfprep-monitor-")
    callbacks = {"InputMonitor": InputMonitor(folder), "Watchdog": Watchdog(300), "RetraceGuard": RetraceGuard()}
    return list(callbacks.values()) if setup == "all three" else [callbacks[setup]] if setup in callbacks else []


def empty_callback_s() -> float:
    """Seconds in which Keras calls both methods of an empty callback in a step."""
    import keras

    callbacks = keras.callbacks.CallbackList([keras.callbacks.Callback()])
    began = time.perf_counter()
    for number in range(10_000):
        callbacks.on_train_batch_begin(number)
        callbacks.on_train_batch_end(number, None)
    return (time.perf_counter() - began) / 10_000


def batches(size: int) -> Any:
    import tensorflow as tf

    batch = (tf.zeros([32, size, size, 3]), tf.zeros([32], tf.int32))
    return tf.data.Dataset.from_tensors(batch).repeat().prefetch(2)


def convolutions(size: int) -> Any:
    import keras

    layers = keras.layers
    model = keras.Sequential(
        [
            keras.Input([size, size, 3]),
            layers.Conv2D(32, 3, activation="relu"),
            layers.Conv2D(32, 3, strides=2, activation="relu"),
            layers.Conv2D(64, 3, strides=2, activation="relu"),
            layers.GlobalAveragePooling2D(),
            layers.Dense(10),
        ]
    )
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model


def almost_nothing(size: int) -> Any:
    import keras

    model = keras.Sequential(
        [keras.Input([size, size, 3]), keras.layers.GlobalAveragePooling2D(), keras.layers.Dense(2)]
    )
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model


def print_table(title: str, times: dict[str, list[float]]) -> None:
    plain = median(times["no callback"])
    print(f"{title}: {1e3 * plain:.2f} ms per step")
    for setup, each in times.items():
        more = median(each) - plain
        print(f"  {setup:14s} {1e3 * median(each):8.3f} ms   {1e6 * more:+6.0f} µs   {100 * more / plain:+6.2f} %")


def sample_s() -> float:
    """Seconds of one sample of an `InputMonitor`."""
    from tfprep.train import InputMonitor

    taken = []
    with InputMonitor(tempfile.mkdtemp(prefix="tfprep-monitor-"), every_s=3600) as monitor:
        iterator = monitor.watch(batches(4))
        for _ in range(20):
            next(iterator)
            began = time.perf_counter()
            monitor.sample()
            taken.append(time.perf_counter() - began)
    return median(taken)


if __name__ == "__main__":
    main()
