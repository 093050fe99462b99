"""`cross_validate`: one model for each fold, each gone before the next one."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import numpy as np

from tfprep.errors import TrainError
from tfprep.train.isolation import fresh_session, isolated

_LOG = logging.getLogger("tfprep.train")


@dataclass(frozen=True)
class Scores:
    """The metrics of each fold's model on the samples that it has not seen.

    Attributes:
        folds: For each fold, metric name to value.
    """

    folds: tuple[dict[str, float], ...]

    @property
    def mean(self) -> dict[str, float]:
        """The mean of each metric over the folds."""
        return {name: float(np.mean([fold[name] for fold in self.folds])) for name in self.folds[0]}

    @property
    def std(self) -> dict[str, float]:
        """The standard deviation of each metric over the folds, with n - 1."""
        return {name: float(np.std([fold[name] for fold in self.folds], ddof=1)) for name in self.folds[0]}

    def __str__(self) -> str:
        return ", ".join(f"{name} {self.mean[name]:.4g} ± {self.std[name]:.2g}" for name in self.folds[0])


def cross_validate(
    build_model: Callable[[], Any],
    data: Any,
    k: int = 5,
    *,
    batch_size: int = 32,
    epochs: int = 1,
    split: str = "train",
    stratify: str | None = None,
    group: Any = None,
    seed: int = 0,
    loader: dict[str, Any] | None = None,
    isolate: bool = False,
) -> Scores:
    """Train a new model for each of `k` folds and measure it on the samples left out.

    Args:
        build_model: Returns a new compiled Keras model.
        data: A tfprep dataset, as `tfprep.open` returns it.
        k: Number of folds.
        batch_size: Samples in a batch.
        epochs: Epochs for each fold.
        split: The split to divide into folds.
        stratify: See `data.folds`.
        group: See `data.folds`.
        seed: Seed of the folds and of the loader.
        loader: Further options of the loader, such as `{"inputs": "image", "targets": "label"}`.
        isolate: Run each fold in a process of its own instead of a `fresh_session`; `build_model` is then a function at the top
            of a module.

    Returns:
        The metrics of each fold.

    Raises:
        TrainError: An argument is wrong.
    """
    if k < 2:
        raise TrainError(f"k is the number of folds, at least 2, got {k}; k=5 is usual")
    if not hasattr(data, "folds"):
        raise TrainError(
            f"data is a tfprep dataset, as tfprep.open(folder) gives it, got {type(data).__name__}; folds of anything "
            "else: a loop over your own indices with `with fresh_session():` inside"
        )
    if not callable(build_model) or hasattr(build_model, "fit"):
        raise TrainError(
            f"build_model is a function that returns a new compiled model for each fold, got {type(build_model).__name__}"
        )
    options = {"batch_size": batch_size, "seed": seed, **(loader or {})}
    folding = {"split": split, "stratify": stratify, "group": group, "seed": seed}
    scores = []
    for number in range(k):
        if isolate:
            score = isolated(_fold_of_folder, str(data.path), build_model, k, number, folding, options, epochs)
        else:
            with fresh_session():
                score = _one_fold(build_model, data.folds(k, **folding)[number], options, epochs)
        _LOG.info("cross_validate: fold %d of %d: %s", number + 1, k, score)
        scores.append(score)
    return Scores(tuple(scores))


def _fold_of_folder(
    folder: str, build_model: Callable[[], Any], k: int, number: int, folding: dict[str, Any], options: Any, epochs: int
) -> dict[str, float]:
    from tfprep.load import open as open_data

    return _one_fold(build_model, open_data(folder).folds(k, **folding)[number], options, epochs)


def _one_fold(
    build_model: Callable[[], Any], fold: tuple[Any, Any], options: dict[str, Any], epochs: int
) -> dict[str, float]:
    train, validation = fold
    model = build_model()
    with closing(train.keras_loader(**options)) as feed, closing(validation.keras_loader(**options)) as held_out:
        model.fit(feed, epochs=epochs, verbose=0)
        measured = model.evaluate(held_out, return_dict=True, verbose=0)
    return {name: float(value) for name, value in measured.items()}
