"""What `InputMonitor` costs a train step, and `Watchdog` and `RetraceGuard` with it.

    python benchmarks/monitor.py [--rounds 9] [--steps 40] [--size 64] [--json monitor.json]

One small convolutional network, the same batches from memory, `fit` in turn with and without the callbacks,
interleaved; printed are the medians of the time of a step, and of each round's difference to plain `fit` in
microseconds and percent of a step. A second table has a step of next to nothing: there the fixed cost stands alone. The
monitor samples every second here, five times as often as by default.
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

WAYS = ("plain", "InputMonitor", "Watchdog", "RetraceGuard", "all three")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--size", type=int, default=64)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    found = {
        "convolutions": measure(convolutions, options.size, options.rounds, options.steps),
        "next to nothing": measure(nothing, 4, options.rounds, 10 * options.steps),
    }
    for title, times in found.items():
        print_table(title, times)
    if options.json:
        options.json.write_text(json.dumps(found, indent=1))


def measure(build: Any, size: int, rounds: int, steps: int) -> dict[str, list[float]]:
    """Seconds a step: way to one value a round."""
    models = {way: build(size) for way in WAYS}
    dataset = batches(size)
    callbacks = {way: make(way) for way in WAYS}
    for way in WAYS:  # traces
        models[way].fit(dataset, steps_per_epoch=5, verbose=0, shuffle=False, callbacks=callbacks[way])
    times: dict[str, list[float]] = {way: [] for way in WAYS}
    for number in range(rounds):
        first = number % len(WAYS)
        for way in WAYS[first:] + WAYS[:first]:
            clock = step_clock()
            callback_list = [*callbacks[way], clock]
            models[way].fit(dataset, steps_per_epoch=steps, verbose=0, shuffle=False, callbacks=callback_list)
            times[way].append(clock.seconds_per_step())
    return times


def make(way: str) -> list[Any]:
    from tfprep.train import InputMonitor, RetraceGuard, Watchdog

    folder = tempfile.mkdtemp(prefix="tfprep-monitor-")
    made = {
        "InputMonitor": [InputMonitor(folder, every_s=1.0)],
        "Watchdog": [Watchdog(300)],
        "RetraceGuard": [RetraceGuard()],
    }
    return [one for each in made.values() for one in each] if way == "all three" else made.get(way, [])


def step_clock() -> Any:
    import keras

    class Clock(keras.callbacks.Callback):  # type: ignore[misc]
        """The time from the end of the 2nd step to the end of the last, for each step between: starting and ending is
        not a step."""

        def on_train_begin(self, logs: Any = None) -> None:
            self.ends: list[float] = []

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            self.ends.append(time.perf_counter())

        def seconds_per_step(self) -> float:
            return (self.ends[-1] - self.ends[1]) / (len(self.ends) - 2)

    return Clock()


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


def nothing(size: int) -> Any:
    import keras

    model = keras.Sequential(
        [keras.Input([size, size, 3]), keras.layers.GlobalAveragePooling2D(), keras.layers.Dense(2)]
    )
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model


def print_table(title: str, times: dict[str, list[float]]) -> None:
    plain = times["plain"]
    print(f"{title}: a step of {1e3 * median(plain):.2f} ms")
    for way, each in times.items():
        more = [one - other for one, other in zip(each, plain, strict=True)]
        cost = median(more)
        print(
            f"  {way:14s} {1e3 * median(each):8.3f} ms   {1e6 * cost:+8.0f} µs   {100 * cost / median(plain):+6.2f} %"
        )


if __name__ == "__main__":
    main()
