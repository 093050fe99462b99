"""tfprep: `tfprep.build`, and its loaders for TensorFlow. Every record once an epoch, in a global permutation."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Literal

from common import CROP, QUALITY, SIDE, Item

import tfprep
from tfprep import Recipe, augment, codecs, sources
from tfprep.cli.text import start_tensorflow


def build(items: Sequence[Item], out: Path, form: str) -> None:
    recipe = Recipe(
        name="photos",
        source=sources.Folder(),
        geometry=[augment.Resize(shorter=SIDE), augment.CenterCrop(CROP, CROP)],
        store={"image": codecs.Raw() if form == "raw" else codecs.Jpeg(QUALITY), "label": codecs.Scalar()},
    )
    tfprep.build(recipe, out, Path(items[0][0]).parent.parent)


def load(out: Path, form: str, batch_size: int, workers: int) -> Iterable[Any]:
    return batches(out, batch_size, workers, "threads")


def tfprep_processes(out: Path, form: str, batch_size: int, workers: int) -> Iterable[Any]:
    """Worker processes read instead of threads."""
    return batches(out, batch_size, workers, "processes")


def batches(out: Path, batch_size: int, threads: int, workers: Literal["threads", "processes"]) -> Iterable[Any]:
    start_tensorflow()
    loader = tfprep.open(out).loader(
        "train", batch_size, inputs="image", targets="label", threads=threads, workers=workers, cache=False
    )
    return iter(loader.repeat().eager())


def tf_dataset(out: Path, form: str, batch_size: int, workers: int) -> Iterable[Any]:
    """The dataset in plain tf.data. `tf_guide` is its limit: the same, tuned by hand."""
    start_tensorflow()
    return tfprep.open(out).tf_dataset("train", batch_size, inputs="image", targets="label").repeat()
