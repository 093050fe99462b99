"""Memory of a process that trains 20 models in succession: with `fresh_session`, with `clear_session` only, and with neither.

    python benchmarks/sessions.py [--models 20] [--json sessions.json]

Each setup runs in a new process. A model (about 2.1 million parameters, Adam) is built and trained for a few steps on a tf.data
pipeline with `repeat()`, or on tfprep's loader over a dataset that is built first. After each model the resident memory (RSS) is
read. The output shows the MB after the second and after the last model, and their ratio.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from contextlib import nullcontext
from pathlib import Path
from typing import Any

SETUPS = ("fresh_session", "fresh_session+loader", "clear_session", "nothing")
RECIPE = """
from tfprep import Recipe, augment, codecs, sources
RECIPE = Recipe(name="noise", source=sources.Folder(), geometry=[augment.Flip(p=0.5)], variants={"train": 2},
                store={"image": codecs.Jpeg(95), "label": codecs.Scalar()})
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", type=int, default=20, help="Number of models")
    parser.add_argument("--json", type=Path, help="File for the memory after each model")
    parser.add_argument("--setup", choices=SETUPS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.setup:
        print(json.dumps(run(options.setup, options.models)))
        return
    results = {setup: run_in_new_process(setup, options.models) for setup in SETUPS}
    for setup, rss in results.items():
        print(f"{setup:20s} 2nd {rss[1]:7.1f} MB   last {rss[-1]:7.1f} MB   ratio {rss[-1] / rss[1]:.3f}")
    if options.json:
        options.json.write_text(json.dumps(results, indent=1))


def run_in_new_process(setup: str, models: int) -> list[float]:
    command = [sys.executable, __file__, "--setup", setup, "--models", str(models)]
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"}
    output = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=environment).stdout
    return [float(value) for value in json.loads(output.splitlines()[-1])]


def run(setup: str, models: int) -> list[float]:
    """RSS in MB (10⁶ bytes) after each model."""
    import keras
    import psutil

    from tfprep.train import fresh_session

    rss = []
    folder = build_noise() if setup.endswith("+loader") else None
    for _ in range(models):
        with fresh_session() if setup.startswith("fresh_session") else nullcontext():
            train_once(folder)
        if setup == "clear_session":
            keras.utils.clear_session()
        rss.append(psutil.Process().memory_info().rss / 1e6)
    return rss


def build_noise() -> Path:
    """Builds a dataset of 256 images of 32 x 32 pixels in two classes, in a new folder."""
    import numpy as np
    from PIL import Image

    from tfprep.builder import BuildOptions, build

    root = Path(tempfile.mkdtemp(prefix="tfprep-sessions-"))
    draws = np.random.default_rng(0)
    for number in range(256):
        path = root / "raw" / "train" / "ab"[number % 2] / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(draws.integers(0, 256, (32, 32, 3), np.uint8)).save(path)
    (root / "recipe.py").write_text(RECIPE)
    build(root / "recipe.py", root / "out", root / "raw", options=BuildOptions(workers=0))
    return root / "out"


def train_once(folder: Path | None) -> float:
    """Trains a model on the dataset in `folder`, or on zeros, and returns the loss."""
    import keras

    import tfprep

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
    if folder is None:
        return fit(model, zeros())
    train = tfprep.open(folder).loader("train", batch_size=32, inputs="image", targets="label")
    try:
        return fit(model, train)
    finally:
        train.close()


def fit(model: Any, data: Any) -> float:
    history = model.fit(data, steps_per_epoch=3, verbose=0, shuffle=False)
    return float(history.history["loss"][-1])


def zeros() -> Any:
    import tensorflow as tf

    images = tf.data.Dataset.from_tensors((tf.zeros([32, 32, 3]), tf.zeros([], tf.int32))).repeat()
    return images.shuffle(500).batch(32).prefetch(2)


if __name__ == "__main__":
    main()
