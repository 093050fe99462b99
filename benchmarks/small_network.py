"""A small network on 64-pixel photos: stored variants alone, RandomResizedCrop at load alone, and both.

    python benchmarks/small_network.py --photos data/photos [--seeds 5] [--epochs 60] [--json FILE]

Photos in class folders, 70 % for training, are stored with a short side of 96 pixels. The network is four blocks of convolution,
batch normalization and pooling (0.1 million weights), trained with Adam from 10^-3 down to 0 by a cosine, the same number of
steps each time. The figure is the mean of the classes' recalls on the other 30 %, in the last epoch, as its mean and standard
deviation over the seeds. The seed decides the weights, the order and the draws; the stored variants are the same.
"""

from __future__ import annotations

import os
import statistics
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import harness
import numpy as np

import tfprep
from tfprep import Recipe, augment, codecs, sources
from tfprep.load import RandomFlip, RandomResizedCrop, Resize

SIDE, STORED, VARIANTS, BATCH = 64, 96, 8, 30
GEOMETRY = [augment.RandomResizedCrop(STORED, STORED), augment.Flip(), augment.Rotate(10)]
COLOR = [augment.Brightness(0.4), augment.Contrast(0.4), augment.Saturation(0.4)]
WINDOW: list[Any] = [RandomResizedCrop(SIDE, SIDE), RandomFlip()]
CASES: dict[str, tuple[int, list[Any]]] = {
    "nothing": (1, [Resize(SIDE, SIDE)]),
    "stored variants": (VARIANTS, [Resize(SIDE, SIDE)]),
    "RandomResizedCrop at load": (1, WINDOW),
    "both": (VARIANTS, [RandomResizedCrop(SIDE, SIDE, (0.35, 1.0)), RandomFlip()]),
}
"""The variants of each photo, and the ops at load."""


def main() -> None:
    options = harness.arguments(
        __doc__ or "",
        photos=(Path("data/photos"), "Folder of class folders"),
        seeds=(5, "Seeds"),
        epochs=(60, "Epochs"),
    )
    with tempfile.TemporaryDirectory() as folder:
        data = {count: built(Path(folder) / str(count), options.photos, count) for count in (1, VARIANTS)}
        recalls = over_seeds(
            {name: partial(trained, data[count], ops, options.epochs) for name, (count, ops) in CASES.items()},
            options.seeds,
        )
    harness.finish(options, summary(recalls))


def over_seeds(trainings: Mapping[str, Callable[[int], float]], seeds: int) -> dict[str, list[float]]:
    """The recalls by name; in each round all train from the same seed."""
    numbers = {name: iter(range(seeds)) for name in trainings}
    turns = {name: lambda name=name: trainings[name](next(numbers[name])) for name in trainings}
    return harness.in_turns(turns, seeds)


def summary(recalls: Mapping[str, list[float]]) -> dict[str, Any]:
    """Print and return the mean and the standard deviation of each case."""
    results = {
        name: {"mean": statistics.mean(each), "deviation": statistics.stdev(each), "recalls": each}
        for name, each in recalls.items()
    }
    for name, result in results.items():
        print(f"{name}: {100 * result['mean']:.1f} ± {100 * result['deviation']:.1f} %")
    return results


def built(folder: Path, photos: Path, variants: int) -> Any:
    plain = [augment.Resize(STORED, STORED)]
    recipe = Recipe(
        "photos",
        sources.Folder(splits=sources.Fractions(train=0.7, val=0.3, stratify="label")),
        {"image": codecs.Png(), "label": codecs.Scalar()},
        geometry=GEOMETRY if variants > 1 else plain,
        color=COLOR if variants > 1 else [],
        variants={"train": variants},
        seed=1,
    )
    tfprep.build(recipe, folder, photos)
    return tfprep.open(folder)


def trained(data: Any, ops: list[Any], epochs: int, seed: int) -> float:
    """Train from this seed; return the mean recall."""
    import keras
    from keras import layers

    keras.utils.set_random_seed(seed)
    elements = {"inputs": "image", "targets": "label", "at_load": ops}
    train = data.loader("train", BATCH, seed=seed, **elements)
    model = keras.Sequential([network(SIDE, (16, 32, 64, 96), len(data.class_names)), layers.Softmax()])
    rate = keras.optimizers.schedules.CosineDecay(1e-3, epochs * len(train))
    model.compile(keras.optimizers.Adam(rate), "sparse_categorical_crossentropy")
    model.fit(train, epochs=epochs, verbose=0)
    train.close()
    return mean_recall(data, model, at_load=ops)


def network(side: int, widths: Sequence[int], classes: int, momentum: float = 0.99) -> Any:
    """Blocks of convolution, batch normalization and pooling; returns logits. `momentum` is that of the moving averages."""
    import keras
    from keras import layers

    blocks = [
        layer
        for width in widths
        for layer in (
            layers.Conv2D(width, 3, padding="same", use_bias=False), layers.BatchNormalization(momentum=momentum),
            layers.ReLU(),
            layers.MaxPooling2D(),
        )
    ]  # fmt: skip
    head = [layers.GlobalAveragePooling2D(), layers.Dense(classes)]
    return keras.Sequential([layers.Input((side, side, 3)), layers.Rescaling(1 / 128, -1), *blocks, *head])


def mean_recall(data: Any, model: Any, **options: Any) -> float:
    """The mean of the classes' recalls."""
    with closing(data.loader("val", BATCH, inputs="image", targets="label", **options)) as val:
        labels = np.concatenate([label for _, label in val.as_numpy_iterator()])
        found = model.predict(val, verbose=0).argmax(1)
    return float(np.mean([np.mean(found[labels == label] == label) for label in np.unique(labels)]))


if __name__ == "__main__":
    main()
