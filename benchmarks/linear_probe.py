"""A linear probe on stored embeddings, beside one for which the frozen network computes them in each epoch.

    python benchmarks/linear_probe.py [--count 300] [--epochs 20] [--rounds 3] [--json FILE]

The tutorial on embeddings, with larger photos and a published network's size: `--count` drawn photos at 128 x 128 pixels, half of
them for training in 4 variants, and a frozen EfficientNetV2B0 without its weights (the time does not depend on them). Both probes
begin with the same weights and see the same batches.

- `store_s`: seconds of `add_fields`, once, for all variants; `stored_s`: those of an epoch with stored embeddings.
- `each_epoch_s`: those of an epoch with photos.
- `whole`: time of `--epochs` epochs with photos as a multiple of that of `add_fields` and as many epochs with stored embeddings.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

from harness import arguments, finish, in_turns

import tfprep
from tfprep import ModelFields, Recipe, augment, codecs, sources
from tfprep.model_fields import remove_fields

SIDE, BATCH = 128, 30


def main() -> None:
    from tfprep.demo.scenes import write_objects

    options = arguments(
        __doc__, count=(300, "Photos that are drawn"), epochs=(20, "Epochs of a probe"), rounds=(3, "Rounds")
    )
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_objects(folder / "photos", options.count)
        recipe = Recipe(
            "things",
            sources.Folder(splits=sources.Fractions(train=0.5, val=0.5, stratify="label")),
            {"image": codecs.Jpeg(95), "label": codecs.Scalar()},
            geometry=[augment.RandomResizedCrop(SIDE, SIDE, scale=(0.5, 1.0)), augment.Flip()],
            variants={"train": 4},
            seed=1,
        )
        tfprep.build(recipe, folder / "built", folder / "photos")
        import keras

        network = keras.applications.EfficientNetV2B0(
            include_top=False, pooling="avg", weights=None, input_shape=(SIDE, SIDE, 3)
        )
        network.trainable = False
        network.save(folder / "frozen.keras")
        cases = {
            "store": lambda: stored(folder),
            "stored": lambda: epoch_s(folder, "embedding", []),
            "each_epoch": lambda: epoch_s(folder, "image", [network]),
        }
        stored(folder)
        runs = {case: median(times) for case, times in in_turns(cases, options.rounds).items()}
    results = {f"{case}_s": seconds for case, seconds in runs.items()}
    epochs = options.epochs
    results["whole"] = epochs * runs["each_epoch"] / (runs["store"] + epochs * runs["stored"])
    for key, value in results.items():
        print(f"{key:14} {value:.3g}")
    finish(options, results)


def load(path: Path) -> Callable[[Mapping[str, Any]], Mapping[str, Any]]:
    import keras

    model = keras.saving.load_model(path)
    return lambda batch: {"embedding": model.predict_on_batch(batch["image"])}


def stored(folder: Path) -> float:
    """Compute the embeddings of all variants; return the seconds."""
    if "embedding" in tfprep.open(folder / "built").fields:
        remove_fields(folder / "built", "embedding")
    fields = ModelFields(
        model=partial(load, folder / "frozen.keras"), inputs=["image"], store={"embedding": codecs.Raw("float16")},
        splits=["train"], batch_size=BATCH, pad_batches=True,
    )  # fmt: skip
    return tfprep.add_fields(folder / "built", fields).seconds


def epoch_s(folder: Path, inputs: str, below: list[Any]) -> float:
    """Return the seconds of the second epoch of a probe; the first one traces."""
    import keras

    keras.utils.set_random_seed(0)
    probe = keras.Sequential([*below, keras.layers.Dense(3, activation="softmax")])
    probe.compile(keras.optimizers.Adam(1e-2), "sparse_categorical_crossentropy")
    train = tfprep.open(folder / "built").loader("train", BATCH, seed=0, inputs=inputs, targets="label")
    probe.fit(train, verbose=0)
    began = time.monotonic()
    probe.fit(train, verbose=0)
    seconds = time.monotonic() - began
    train.close()
    return seconds


if __name__ == "__main__":
    main()
