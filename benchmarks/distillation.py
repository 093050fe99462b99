"""A small student with the logits of a teacher, against the same student with labels alone.

    python benchmarks/distillation.py [--photos FOLDER] [--count 300] [--seeds 5] [--epochs 60] [--json FILE]

The tutorial on distillation, with several seeds. `--count` drawn photos of one object each (or photos in class folders) are
stored at 48 x 48 pixels, half of them for training in 8 variants. The teacher (three blocks of 32, 64 and 128 filters) learns
from all of these. The student (8, 16 and 32 filters) has a fifth of them: with their labels, or with what the teacher says of
each stored variant, and nothing else. Both students of a seed begin with the same weights and see the same batches. The figures
are the means of the classes' recalls on the other half, in the last epoch, as mean and standard deviation over the seeds;
`wins` counts the seeds in which the student of the teacher is better.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import harness
from small_network import mean_recall, network, over_seeds, summary

import tfprep
from tfprep import ModelFields, Recipe, augment, codecs, sources

SIDE, BATCH = 48, 20


def main() -> None:
    options = harness.arguments(
        __doc__ or "", photos=(Path, "Folder of class folders; by default drawn objects"),
        count=(300, "Photos that are drawn"), seeds=(5, "Seeds"), teacher_epochs=(30, "Epochs of the teacher"),
        epochs=(60, "Epochs of a student"),
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        data, teacher = taught(Path(folder), options)
        students = {
            "labels": partial(student, data, "label", options.epochs),
            "teacher": partial(student, data, "teacher", options.epochs),
        }
        recalls = over_seeds(students, options.seeds)
    results = {"of the teacher": teacher, **summary(recalls)}
    results["wins"] = sum(ours > theirs for ours, theirs in zip(recalls["teacher"], recalls["labels"], strict=True))
    print(f"the teacher itself: {100 * teacher:.1f} %; its student is better in {results['wins']} of {options.seeds}")
    harness.finish(options, results)


def taught(folder: Path, options: Any) -> tuple[Any, float]:
    """The dataset with the teacher's logits, and the teacher's mean recall."""
    from tfprep.demo.scenes import write_objects

    photos = options.photos or folder / "photos"
    if options.photos is None:
        write_objects(photos, options.count)
    recipe = Recipe(
        "things",
        sources.Folder(splits=sources.Fractions(train=0.5, val=0.5, stratify="label")),
        {"image": codecs.Png(), "label": codecs.Scalar()},
        geometry=[augment.RandomResizedCrop(SIDE, SIDE, scale=(0.3, 1.0)), augment.Flip(), augment.Rotate(20)],
        color=[augment.Brightness(0.3), augment.Contrast(0.3), augment.Hue(0.1)],
        variants={"train": 8},
        seed=1,
    )
    tfprep.build(recipe, folder / "built", photos)
    data = tfprep.open(folder / "built")
    model = trained(data, data.subset("train"), (32, 64, 128), "label", options.teacher_epochs, 0)
    model.save(folder / "teacher.keras")
    fields = ModelFields(
        model=partial(load, folder / "teacher.keras"), inputs=["image"], splits=["train"], store={"teacher": codecs.TopK(3)},
        files=["teacher.keras"], folder=folder,
    )  # fmt: skip
    tfprep.add_fields(folder / "built", fields)
    return tfprep.open(folder / "built"), mean_recall(data, model)


def load(path: Path) -> Callable[[Mapping[str, Any]], Mapping[str, Any]]:
    import keras

    model = keras.saving.load_model(path)
    return lambda batch: {"teacher": model.predict_on_batch(batch["image"])}


def student(data: Any, targets: str, epochs: int, seed: int) -> float:
    """Train a student with these targets; return its mean recall."""
    few = data.folds(5, stratify="label")[0][1]
    return mean_recall(data, trained(data, few, (8, 16, 32), targets, epochs, seed))


def trained(data: Any, photos: Any, widths: tuple[int, ...], targets: str, epochs: int, seed: int) -> Any:
    import keras

    keras.utils.set_random_seed(seed)
    model = network(SIDE, widths, len(data.class_names), momentum=0.9)  # an epoch of the student has one step
    train = photos.loader(BATCH, training=True, seed=seed, inputs="image", targets=targets)
    losses = {"label": keras.losses.SparseCategoricalCrossentropy, "teacher": keras.losses.CategoricalCrossentropy}
    rate = keras.optimizers.schedules.CosineDecay(3e-3, epochs * len(train))
    model.compile(keras.optimizers.Adam(rate), losses[targets](from_logits=True))
    model.fit(train, epochs=epochs, verbose=0)
    train.close()
    return model


if __name__ == "__main__":
    main()
