"""Memory of 20 models after one another in one process: with `fresh_session`, with `clear_session` alone, with nothing.

    python benchmarks/sessions.py [--models 20] [--json sessions.json]

Each way runs in a process of its own. A model (about 2.1 million parameters, Adam) is built and trained for a few steps
from a tf.data pipeline with `repeat()`; after each, the resident memory (RSS) is read. Printed: MB after the 2nd and
the last model, and their ratio.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path

WAYS = ("fresh_session", "clear_session", "nothing")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", type=int, default=20)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--way", choices=WAYS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.way:
        print(json.dumps(run(options.way, options.models)))
        return
    found = {way: run_apart(way, options.models) for way in WAYS}
    for way, rss in found.items():
        print(f"{way:15s} 2nd {rss[1]:7.1f} MB   last {rss[-1]:7.1f} MB   ratio {rss[-1] / rss[1]:.3f}")
    if options.json:
        options.json.write_text(json.dumps(found, indent=1))


def run_apart(way: str, models: int) -> list[float]:
    command = [sys.executable, __file__, "--way", way, "--models", str(models)]
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"}
    told = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=environment).stdout
    return [float(value) for value in json.loads(told.splitlines()[-1])]


def run(way: str, models: int) -> list[float]:
    """RSS in MB (10⁶ bytes) after each model."""
    import keras
    import psutil

    from tfprep.train import fresh_session

    rss = []
    for _ in range(models):
        with fresh_session() if way == "fresh_session" else nullcontext():
            train_once()
        if way == "clear_session":
            keras.utils.clear_session()
        rss.append(psutil.Process().memory_info().rss / 1e6)
    return rss


def train_once() -> float:
    import keras
    import tensorflow as tf

    layers = keras.layers
    model = keras.Sequential(
        [
            layers.Conv2D(64, 3, activation="relu"),
            layers.MaxPooling2D(4),
            layers.Conv2D(128, 3, activation="relu"),
            layers.Flatten(),
            layers.Dense(400, activation="relu"),
            layers.Dense(10),
        ]
    )
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    images = tf.data.Dataset.from_tensors((tf.zeros([32, 32, 3]), tf.zeros([], tf.int32))).repeat()
    history = model.fit(images.shuffle(500).batch(32).prefetch(2), steps_per_epoch=8, verbose=0, shuffle=False)
    return float(history.history["loss"][-1])


if __name__ == "__main__":
    main()
