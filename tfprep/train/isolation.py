"""Many models in one program: `fresh_session` and `isolated` give memory back, `cross_validate` trains a model for each fold."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import logging
import multiprocessing
import pickle
import traceback
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any, TypeVar

import numpy as np

from tfprep.errors import TrainError
from tfprep.pool import ending_of, sendable_error

Result = TypeVar("Result")

_LOG = logging.getLogger("tfprep.train")


@contextmanager
def fresh_session() -> Iterator[None]:
    """Run one training of many in a process (a search, a cross-validation).

    When the block is left, Keras's global state is cleared, unreferenced models, optimizers, iterators and datasets are
    collected, and freed memory goes back to the system. Train in a function, so that no variable refers to the model:

        with fresh_session():
            score = train_once(learning_rate)

    TensorFlow keeps the weights of every model that was trained, and the code of XLA and the GPU's own pool stay too: where that
    grows too large, run each training in a process of its own (see `isolated`).
    """
    import keras

    try:
        yield
    finally:
        keras.utils.clear_session(free_memory=False)
        gc.collect()
        give_back()


def give_back() -> None:
    """Return freed memory to the system: glibc keeps it for later. Other C libraries have no `malloc_trim`."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


def isolated(function: Callable[..., Result], *args: Any, **kwargs: Any) -> Result:
    """Run a function in a fresh process, which gives all memory back when it ends, that of the GPU too.

    Starting the process costs the import of TensorFlow, some seconds. A GPU whose memory this process has taken is not free for
    the other one: use no GPU here, or call `configure_gpu(growth=True)` in both.

    Args:
        function: A function at the top of a module. A script that calls `isolated` guards its start with
            `if __name__ == "__main__":`.
        *args: Arguments that can be pickled.
        **kwargs: Keyword arguments that can be pickled.

    Returns:
        What the function returned. It is pickled, so return numbers or a path to saved weights rather than a model.

    Raises:
        TrainError: The process died, or something cannot be pickled.
        BaseException: What the function raised, with the traceback of the other process as a note.
    """
    require_picklable("isolated", function, args, kwargs)
    with fresh_process(_run, function, args, kwargs) as (process, receiver):
        try:
            outcome, content = receiver.recv()
        except EOFError:
            process.join()
            was = "was " if process.exitcode < 0 else ""
            raise TrainError(
                f"the process of {_name(function)} {was}{ending_of(process.exitcode)} before it had a result"
            ) from None
    if outcome == "failed":
        error, trace = content
        error.add_note(f"in the process of {_name(function)}:\n{trace}")
        raise error
    result: Result = content
    return result


@contextmanager
def fresh_process(function: Callable[..., None], *args: Any) -> Iterator[tuple[Any, Connection]]:
    """Run `function(sender, *args)` in a fresh process: the value is that process, and what it sends. Joined on exit."""
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=function, args=(sender, *args))
    process.start()
    sender.close()
    try:
        yield process, receiver
    finally:
        receiver.close()
        process.join()


def _run(sender: Connection, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    try:
        message = pickle.dumps(("done", function(*args, **kwargs)))
    except BaseException as error:
        message = pickle.dumps(("failed", (sendable_error(error, TrainError), traceback.format_exc())))
    sender.send_bytes(message)
    sender.close()


def require_picklable(caller: str, *sent: Any) -> None:
    """Raise a `TrainError` in the name of the function `caller` where something cannot be sent to another process."""
    try:
        pickle.dumps(sent)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise TrainError(
            f"{caller}() sends its functions and their arguments to another process, and these cannot be sent ({error}); define "
            "each function at the top of a module, and pass paths and numbers rather than models or datasets"
        ) from error


def _name(function: Callable[..., Any]) -> str:
    return getattr(function, "__qualname__", repr(function))


# --- cross-validation


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
) -> Scores:
    """Train a new model for each of `k` folds, each in a `fresh_session`, and measure it on the samples left out.

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
    folds = data.folds(k, split=split, stratify=stratify, group=group, seed=seed)
    scores = []
    for number, (train, validation) in enumerate(folds, 1):
        with fresh_session():
            scores.append(_one_fold(build_model, train, validation, options, epochs))
        _LOG.info("cross_validate: fold %d of %d: %s", number, k, scores[-1])
    return Scores(tuple(scores))


def _one_fold(
    build_model: Callable[[], Any], train: Any, validation: Any, options: dict[str, Any], epochs: int
) -> dict[str, float]:
    """Train on one fold. A function, so that no variable keeps the model."""
    model = build_model()
    with closing(train.keras_loader(**options)) as feed, closing(validation.keras_loader(**options)) as held_out:
        model.fit(feed, epochs=epochs, verbose=0)
        measured = model.evaluate(held_out, return_dict=True, verbose=0)
    return {name: float(value) for name, value in measured.items()}
