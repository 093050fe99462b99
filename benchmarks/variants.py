"""The effect of the number of variants: the same network trained on 1, 4 and 16 stored variants, and on the fly.

Run: python benchmarks/variants.py --data-photos data/photos --data-camvid data/camvid [--json FILE]

There are two tasks that two cores can train in minutes: the classes of photos at 64 x 64, and cars in CamVid at 160 x 160 from
the image and two click maps. All runs of a task take the same number of steps. They differ in the source of the training batches:

    on the fly       every sample is augmented in tf.py_function in every epoch (tfprep.bench.compare.on_the_fly)
    1, 4, 16         this number of stored variants, in turn (variant 0 is the sample without augmentation)
    1 + flip, 4 + flip     the same with at_load=[RandomFlip()]
    4 + flip, MixUp  at_load=[RandomFlip(), MixUp(0.2)] (photos)

A seed determines augmentation, order, the weights of the network and, for photos, the split. The split is the same for all runs
of a seed, so results are compared within a seed. Images/s are those of the training loop, which includes the network; the runs
take turns on the same machine.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import tfprep
from tfprep import Recipe, augment, codecs, derive, sources
from tfprep.bench.compare.on_the_fly import on_the_fly
from tfprep.bench.measure.machine import this_machine
from tfprep.builder import BuildOptions
from tfprep.cli.quiet import start_tensorflow
from tfprep.load import MixUp, RandomFlip

CAR, VOID, CLASSES = 8, 11, 5
WARM_UP = 20
"""First steps that do not count for images/s, since they trace the model and read the files for the first time."""
ENDLESS = 1000
"""Variants of a run on the fly: more than the number of epochs, so that none is repeated."""


@dataclass(frozen=True)
class Arm:
    """A source of training batches: the number of stored variants (None: on the fly) and the ops at load time."""

    name: str
    variants: int | None
    at_load: tuple[Any, ...] = ()


@dataclass(frozen=True)
class Task:
    """A training task: `recipe(seed, variants)`, fields, network, and the score on the validation split (higher is better)."""

    name: str
    data: Path
    recipe: Callable[[int, int], Recipe]
    inputs: Any
    targets: str
    network: Callable[[], Any]
    loss: Callable[[], Any]
    ready: Callable[[Any, Any], Any]
    score: Callable[[Any, Any], dict[str, float]]
    batch_size: int
    steps: int
    arms: tuple[Arm, ...]


@dataclass(frozen=True)
class Run:
    """A training: its scores on the validation split, and images/s of the training loop."""

    task: str
    arm: str
    seed: int
    scores: dict[str, float]
    images_per_s: float
    build_s: float
    megabytes: float


ARMS = (
    Arm("on the fly", None),
    Arm("1", 1),
    Arm("4", 4),
    Arm("16", 16),
    Arm("1 + flip", 1, (RandomFlip(),)),
    Arm("4 + flip", 4, (RandomFlip(),)),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-photos", type=Path, help="Folder of class folders")
    parser.add_argument("--data-camvid", type=Path, help="Folder of CamVid")
    parser.add_argument("--seeds-photos", type=int, default=5, help="Number of seeds for photos")
    parser.add_argument("--seeds-camvid", type=int, default=3, help="Number of seeds for CamVid")
    parser.add_argument("--steps-photos", type=int, default=320, help="Training steps per run on photos")
    parser.add_argument("--steps-camvid", type=int, default=240, help="Training steps per run on CamVid")
    parser.add_argument("--json", type=Path, help="File for the results")
    options = parser.parse_args()
    os.environ.setdefault("KERAS_BACKEND", "tensorflow")
    start_tensorflow()
    runs: list[Run] = []
    for task, seeds in tasks(options):
        runs += measured(task, seeds)
        print(table([run for run in runs if run.task == task.name]), flush=True)
        if options.json:
            machine = asdict(this_machine(task.data))
            options.json.write_text(json.dumps({"runs": [asdict(run) for run in runs], "machine": machine}, indent=1))


def tasks(options: argparse.Namespace) -> list[tuple[Task, int]]:
    chosen = []
    if options.data_photos:
        chosen.append((photos(options.data_photos, options.steps_photos), options.seeds_photos))
    if options.data_camvid:
        chosen.append((camvid(options.data_camvid, options.steps_camvid), options.seeds_camvid))
    return chosen


def measured(task: Task, seeds: int) -> list[Run]:
    """Runs every arm with every seed. The first arm is another one for each seed."""
    runs = []
    for seed in range(seeds):
        with tempfile.TemporaryDirectory() as folder:
            built = {number: _built(task, seed, number, Path(folder)) for number in _numbers(task)}
            turn = seed % len(task.arms)
            for arm in (*task.arms[turn:], *task.arms[:turn]):
                runs.append(_run(task, arm, seed, built))
                print(_line(runs[-1]), flush=True)
    return runs


def _numbers(task: Task) -> list[int]:
    return sorted({arm.variants for arm in task.arms if arm.variants is not None})


@dataclass(frozen=True)
class Built:
    path: Path
    seconds: float
    megabytes: float


def _built(task: Task, seed: int, variants: int, folder: Path) -> Built:
    start = time.perf_counter()
    out = folder / f"v{variants}"
    tfprep.build(task.recipe(seed, variants), out, task.data, options=BuildOptions(workers=0))
    size = sum(path.stat().st_size for path in out.glob("*train*.tfrecord*"))
    return Built(out, time.perf_counter() - start, size / 1e6)


def _run(task: Task, arm: Arm, seed: int, built: Mapping[int, Built]) -> Run:
    import keras

    keras.backend.clear_session()
    keras.utils.set_random_seed(seed)
    dataset = built[arm.variants or min(built)]
    batches = {"batch_size": task.batch_size, "inputs": task.inputs, "targets": task.targets}
    data = tfprep.open(dataset.path)
    val = data.loader("val", **batches)
    model, clock = task.network(), _clock()
    model.compile(keras.optimizers.Adam(keras.optimizers.schedules.CosineDecay(3e-3, task.steps)), task.loss())
    train = (
        _on_the_fly(task, seed)
        if arm.variants is None
        else data.loader("train", seed=seed, at_load=arm.at_load, **batches).repeat()
    )
    model.fit(train.map(task.ready), steps_per_epoch=task.steps, epochs=1, shuffle=False, verbose=0, callbacks=[clock])
    rate = task.batch_size * (len(clock.times) - WARM_UP - 1) / (clock.times[-1] - clock.times[WARM_UP])
    scores = task.score(model, val.map(task.ready))
    return Run(task.name, arm.name, seed, scores, rate, dataset.seconds if arm.variants else 0.0, dataset.megabytes)


def _on_the_fly(task: Task, seed: int) -> Any:
    import tensorflow as tf

    data = on_the_fly(task.recipe(seed, ENDLESS), task.data, "train", task.batch_size, seed)
    names = [task.inputs] if isinstance(task.inputs, str) else list(task.inputs)
    return data.map(lambda fields: (tf.concat([fields[name] for name in names], -1), fields[task.targets]))


def _clock() -> Any:
    import keras

    class Clock(keras.callbacks.Callback):
        def __init__(self) -> None:
            super().__init__()
            self.times: list[float] = []

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            self.times.append(time.perf_counter())

    return Clock()


# --- photos: five classes ---------------------------------------------------------------------------------------------


def photos(data: Path, steps: int) -> Task:
    return Task(
        name="photos",
        data=data,
        recipe=_photos_recipe,
        inputs="image",
        targets="label",
        network=_classifier,
        loss=_cross_entropy,
        ready=_one_hot,
        score=_class_scores,
        batch_size=32,
        steps=steps,
        arms=(*ARMS, Arm("4 + flip, MixUp", 4, (RandomFlip(), MixUp(0.2)))),
    )


def _photos_recipe(seed: int, variants: int) -> Recipe:
    return Recipe(
        name="photos",
        source=sources.Folder(splits=sources.Fractions(train=0.7, val=0.3, stratify="label", seed=seed)),
        geometry=[augment.RandomResizedCrop(64, 64, scale=(0.3, 1.0)), augment.Flip(p=0.5)],
        colour=[augment.Brightness(0.2), augment.Contrast(0.2), augment.Saturation(0.2)],
        variants={"train": variants},
        store={"image": codecs.Raw(), "label": codecs.Scalar()},
        shards={"train": 1, "val": 1},
        seed=seed,
    )


def _classifier() -> Any:
    from keras import Model, layers

    image = layers.Input((64, 64, 3), dtype="uint8")
    x = layers.Rescaling(1 / 127.5, -1)(image)
    for channels in (16, 32, 64, 96):
        x = _convolution(x, channels, 2)
    x = layers.GlobalAveragePooling2D()(x)
    return Model(image, layers.Dense(CLASSES)(x))


def _cross_entropy() -> Any:
    import keras

    return keras.losses.CategoricalCrossentropy(from_logits=True)


def _one_hot(image: Any, label: Any) -> tuple[Any, Any]:
    import tensorflow as tf

    return image, label if label.dtype == tf.float32 else tf.one_hot(label, CLASSES)


def _class_scores(model: Any, batches: Any) -> dict[str, float]:
    """Accuracy, and the mean recall over the classes (1/5 for a constant prediction)."""
    import numpy as np

    right, label = [], []
    for image, one_hot in batches:
        label += np.argmax(one_hot, -1).tolist()
        right += (np.argmax(model(image, training=False), -1) == np.argmax(one_hot, -1)).tolist()
    by_class = [statistics.mean(r for r, c in zip(right, label, strict=True) if c == number) for number in set(label)]
    return {"balanced_accuracy": statistics.mean(by_class), "accuracy": statistics.mean(right)}


# --- CamVid: cars from clicks -----------------------------------------------------------------------------------------


def camvid(data: Path, steps: int) -> Task:
    return Task(
        name="camvid",
        data=data,
        recipe=_camvid_recipe,
        inputs=["image", "clicks"],
        targets="mask",
        network=_segmenter,
        loss=_binary,
        ready=_car_or_not,
        score=_car_iou,
        batch_size=8,
        steps=steps,
        arms=ARMS,
    )


def _camvid_recipe(seed: int, variants: int) -> Recipe:
    return Recipe(
        name="camvid",
        source=sources.Paired(image="{split}/*.png", mask="{split}annot/*.png"),
        geometry=[
            augment.Flip(p=0.5),
            augment.Rotate(degrees=10),
            augment.RandomResizedCrop(160, 160, scale=(0.3, 1.0)),
        ],
        colour=[augment.Brightness(0.2), augment.Contrast(0.2)],
        derive={"clicks": derive.Clicks(mask="mask", target=CAR, void=VOID, truncate_px=255)},
        variants={"train": variants},
        fill={"mask": VOID},
        store={"image": codecs.Raw(), "mask": codecs.Raw(), "clicks": codecs.Raw()},
        shards={"train": 1, "val": 1},
        seed=seed,
    )


def _segmenter() -> Any:
    """A U-Net whose highest resolution is half that of the image."""
    from keras import Model, layers

    both = layers.Input((160, 160, 5), dtype="uint8")
    x = layers.Rescaling(1 / 255)(both)
    skips = []
    for channels in (12, 24, 32):
        x = _convolution(x, channels, 2)
        skips.append(x)
    x = _convolution(x, 48, 2)
    for skip in reversed(skips):
        x = layers.Concatenate()([layers.UpSampling2D()(x), skip])
        x = _convolution(x, skip.shape[-1], 1)
    return Model(both, layers.UpSampling2D(interpolation="bilinear")(layers.Conv2D(1, 1)(x)))


def _convolution(x: Any, channels: int, strides: int) -> Any:
    from keras import layers

    x = layers.Conv2D(channels, 3, strides, padding="same", use_bias=False)(x)
    return layers.ReLU()(layers.BatchNormalization(momentum=0.9)(x))


def _binary() -> Any:
    import keras

    return keras.losses.BinaryCrossentropy(from_logits=True)


def _car_or_not(x: Any, mask: Any) -> tuple[Any, Any, Any]:
    import tensorflow as tf

    return x, tf.cast(mask == CAR, tf.float32)[..., None], tf.cast(mask != VOID, tf.float32)


def _car_iou(model: Any, batches: Any) -> dict[str, float]:
    """Intersection over union of the cars over all pixels of the validation frames except void."""
    import numpy as np

    both = either = 0
    for x, target, weight in batches:
        cars, valid = target.numpy()[..., 0] > 0, weight.numpy() > 0
        predicted = (np.asarray(model(x, training=False))[..., 0] > 0) & valid
        both, either = both + int((predicted & cars).sum()), either + int(((predicted | cars) & valid).sum())
    return {"iou_car": both / max(either, 1)}


# --- output ----------------------------------------------------------------------------------------------------------


def _line(run: Run) -> str:
    scores = ", ".join(f"{name} {value:.3f}" for name, value in run.scores.items())
    return f"{run.task:8} seed {run.seed} {run.arm:16} {scores}, {run.images_per_s:.0f} images/s"


def table(runs: Sequence[Run]) -> str:
    """A Markdown table: mean and standard deviation over the seeds, difference to '1' per seed, rate relative to on the fly."""
    score = next(iter(runs[0].scores))
    lines = [
        f"| {runs[0].task} | {score} | difference to 1 | images/s | multiple of on the fly | MB | build s |",
        "|---" * 7 + "|",
    ]
    for arm in dict.fromkeys(run.arm for run in sorted(runs, key=lambda run: run.seed)):
        mine, base, live = (_by_seed(runs, name) for name in (arm, "1", "on the fly"))
        values = [run.scores[score] for run in mine.values()]
        gains = [run.scores[score] - base[seed].scores[score] for seed, run in mine.items()]
        ratios = [run.images_per_s / live[seed].images_per_s for seed, run in mine.items()]
        one = next(iter(mine.values()))
        lines.append(
            f"| {arm} | {spread(values)} | {spread(gains, '+')} | {statistics.median(r.images_per_s for r in mine.values()):.0f} "
            f"| {statistics.median(ratios):.1f} ({min(ratios):.1f} to {max(ratios):.1f}) "
            f"| {one.megabytes if one.build_s else 0:.0f} | {statistics.median(r.build_s for r in mine.values()):.1f} |"
        )
    return "\n".join(lines)


def _by_seed(runs: Sequence[Run], arm: str) -> dict[int, Run]:
    return {run.seed: run for run in runs if run.arm == arm}


def spread(values: Sequence[float], sign: str = "") -> str:
    deviation = statistics.stdev(values) if len(values) > 1 else 0.0
    return f"{statistics.mean(values):{sign}.3f} ± {deviation:.3f}"


if __name__ == "__main__":
    main()
