"""The largest batch size of three models within a memory limit, as `find_batch_size` determines it, and the memory of each trial.

    python benchmarks/memory.py --limit 2000 [--json memory.json]

The models are MobileNetV2, ResNet50 and a U-Net, with images of 128 x 128 pixels and Adam. Each trial runs two train steps in a
new process.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

SIZE = 128
MODELS = ("MobileNetV2", "ResNet50", "U-Net")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--limit", type=float, default=2000, help="Memory limit of a training process in MB (10⁶ bytes)"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="File for the results")
    options = parser.parse_args()
    results = {model: search(model, options.limit) for model in MODELS}
    if options.json:
        options.json.write_text(json.dumps({model: asdict(result) for model, result in results.items()}, indent=1))


def search(model: str, limit_mb: float) -> Any:
    from tfprep.train import find_batch_size

    result = find_batch_size(partial(build, model), partial(batch_of, model), memory_limit_mb=limit_mb)
    trials = ", ".join(
        f"{trial.size}: {trial.peak_mb:,.0f} MB" if trial.fits else f"{trial.size}: does not fit"
        for trial in result.trials
    )
    print(f"{model:12s} largest batch within {limit_mb:,.0f} MB: {result.size} ({trials})", flush=True)
    return result


def batch_of(name: str, size: int) -> Any:
    """Images [size, 128, 128, 3] and targets."""
    import numpy as np

    targets = (size, SIZE, SIZE) if name == "U-Net" else (size,)
    return np.ones([size, SIZE, SIZE, 3], np.float32), np.zeros(targets, np.int32)


def build(name: str) -> Any:
    import keras

    shape = (SIZE, SIZE, 3)
    known = {"MobileNetV2": keras.applications.MobileNetV2, "ResNet50": keras.applications.ResNet50}
    if name in known:
        model = known[name](input_shape=shape, weights=None, classes=10, classifier_activation=None)
    else:
        model = u_net(keras.Input(shape))
    model.compile(keras.optimizers.Adam(), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model


def u_net(image: Any) -> Any:
    """Four levels of 32 to 256 channels after Ronneberger et al. 2015, with batch normalisation; four classes."""
    import keras

    layers = keras.layers
    x, skips = image, []
    for channels in (32, 64, 128):
        x = double_convolution(x, channels)
        skips.append(x)
        x = layers.MaxPooling2D()(x)
    x = double_convolution(x, 256)
    for channels, skip in zip((128, 64, 32), reversed(skips), strict=True):
        x = layers.Concatenate()([layers.Conv2DTranspose(channels, 2, strides=2)(x), skip])
        x = double_convolution(x, channels)
    return keras.Model(image, layers.Conv2D(4, 1)(x))


def double_convolution(x: Any, channels: int) -> Any:
    import keras

    for _ in range(2):
        x = keras.layers.Conv2D(channels, 3, padding="same", use_bias=False)(x)
        x = keras.layers.ReLU()(keras.layers.BatchNormalization()(x))
    return x


if __name__ == "__main__":
    main()
