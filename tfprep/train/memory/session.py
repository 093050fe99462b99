"""`fresh_session`: many models in one process, each gone before the next one."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import keras
import psutil

from tfprep.train.backend import tensorflow_in_use
from tfprep.train.memory.leftovers import Leftover, leftover, tracked

_LOG = logging.getLogger("tfprep.train")


@dataclass
class Session:
    """What `fresh_session` found when its block was left.

    Attributes:
        leftovers: Models, optimizers, iterators and datasets of the block that are still alive.
        rss: Resident memory of the process in bytes.
    """

    leftovers: tuple[Leftover, ...] = ()
    rss: int = 0


@contextmanager
def fresh_session() -> Iterator[Session]:
    """Run one training of many in a process (a search, a cross-validation) and free what it built.

    When the block is left, Keras's global state is cleared, unreferenced models, optimizers, functions, iterators and datasets
    are collected, and freed memory goes back to the system. A variable that still refers to a model keeps it and all that
    belongs to it; the log `tfprep.train` and `leftovers` then name the variable. The simplest way to keep nothing is a function:

        with fresh_session():
            score = train_once(learning_rate)

    No library can free the code of XLA kernels and the GPU's own pool; they go with the process (see `isolated`).

    Yields:
        The session; its attributes are set when the block is left without an exception.
    """
    before = {id(thing) for thing in tracked()}
    session = Session()
    try:
        yield session
    except BaseException:
        # The exception's traceback holds the frames, and they hold the model: leftovers would be false alarms.
        _collect()
        raise
    _collect()
    alive = [thing for thing in tracked() if id(thing) not in before]
    session.leftovers = tuple(leftover(thing) for thing in alive)
    del alive
    for left in session.leftovers:
        _LOG.warning("fresh_session: still alive: %s", left)
    give_back()
    session.rss = psutil.Process().memory_info().rss


def _collect() -> None:
    keras.utils.clear_session(free_memory=False)
    gc.collect()
    if tensorflow_in_use() is not None:
        from tfprep.train.memory.orphans import forget_dead_gradients

        forget_dead_gradients()
        gc.collect()


def give_back() -> None:
    """Return freed memory to the system: glibc keeps it for later. Other C libraries have no `malloc_trim`."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
