"""`find_batch_size`: the largest batch that fits, found by trying."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

import psutil

from tfprep.errors import TrainError
from tfprep.memory import available_memory
from tfprep.train.own_process import require_picklable

_LOOK_S = 0.02
_START_S = 120.0
"""How long a trial process may take to import TensorFlow and build the model."""


@dataclass(frozen=True)
class Trial:
    """One batch size that was tried: whether it `fits`, the peak memory of the process in MB (10⁶ bytes), and why not."""

    size: int
    fits: bool
    peak_mb: float
    reason: str = ""


@dataclass(frozen=True)
class BatchSize:
    """`size` fits, and the next one tried (`size` + a quarter of it, or less) does not; `trials` in the order they were
    made."""

    size: int
    trials: tuple[Trial, ...]


def find_batch_size(
    build_model: Callable[[], Any],
    make_batch: Callable[[int], Any],
    *,
    memory_limit_mb: float | None = None,
    largest: int = 65536,
    steps: int = 2,
) -> BatchSize:
    """The largest batch for which `steps` train steps fit into memory, found by doubling and then by quarters.

    `build_model()` gives a compiled Keras model, `make_batch(size)` its (x, y) as arrays. Both are defined at the top
    of a module: they run in processes of their own, so that an allocation that fails leaves nothing behind, and neither
    the GPU's memory nor this process's is touched. What fits is decided by TensorFlow's ResourceExhaustedError (GPU),
    and by `memory_limit_mb`: the resident memory of the whole trial process in MB (10⁶ bytes), watched from outside, on
    CPU as well; at 64 times a second a peak of less than 20 ms can be missed. None means 90 % of the memory that is
    free now.
    """
    if largest < 1 or steps < 1:
        raise TrainError(f"largest and steps are at least 1, got largest={largest!r}, steps={steps!r}")
    require_picklable("find_batch_size", build_model, make_batch)
    limit_mb = memory_limit_mb or 0.9 * available_memory() / 1e6
    doubling = [2**power for power in range(largest.bit_length()) if 2**power <= largest]
    trials = list(_try_all(build_model, make_batch, doubling, steps, limit_mb))
    good = max((trial.size for trial in trials if trial.fits), default=0)
    if not good:
        raise TrainError(
            f"not even a batch of 1 fits into {limit_mb:,.0f} MB: {trials[0].reason}. The limit covers the whole "
            "process, of which TensorFlow alone takes some 500 MB; raise memory_limit_mb, or make the model or its input smaller "
            "(memory_report says what takes how much)"
        )
    bad = min((trial.size for trial in trials if not trial.fits), default=0)
    between = sorted({good + (bad - good) * quarter // 4 for quarter in (1, 2, 3)} - {good, bad}) if bad else []
    trials += _try_all(build_model, make_batch, between, steps, limit_mb)
    return BatchSize(max(trial.size for trial in trials if trial.fits), tuple(trials))


def _try_all(
    build_model: Callable[[], Any], make_batch: Callable[[int], Any], sizes: Sequence[int], steps: int, limit_mb: float
) -> list[Trial]:
    """One process tries growing sizes until one does not fit; its memory only grows, so each peak is its own."""
    if not sizes:
        return []
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_grow, args=(sender, build_model, make_batch, list(sizes), steps))
    process.start()
    sender.close()
    trials: list[Trial] = []
    try:
        while len(trials) < len(sizes) and all(trial.fits for trial in trials):
            trials.append(_watched(process, receiver, sizes[len(trials)], limit_mb))
    finally:
        process.kill()
        process.join()
        receiver.close()
    return trials


def _watched(process: Any, receiver: Connection, size: int, limit_mb: float) -> Trial:
    """Wait for the trial of `size`, and end it as soon as it takes more than the limit."""
    peak_mb, began = 0.0, time.monotonic()
    while not receiver.poll(_LOOK_S):
        peak_mb = max(peak_mb, _rss_mb(process.pid))
        if peak_mb > limit_mb:
            return Trial(size, False, peak_mb, f"more than {limit_mb:,.0f} MB")
        if time.monotonic() - began > _START_S and peak_mb == 0.0:
            return Trial(size, False, peak_mb, f"no start within {_START_S:g} s")
    try:
        reason, error = receiver.recv()
    except EOFError:
        process.join()
        return Trial(size, False, peak_mb, f"its process died (exit status {process.exitcode}; killed for memory?)")
    if error is not None:
        raise TrainError(f"the train step with a batch of {size} failed, and not for memory: {error}")
    peak_mb = max(peak_mb, _rss_mb(process.pid))
    too_much = f"more than {limit_mb:,.0f} MB" if peak_mb > limit_mb else ""
    return Trial(size, not (reason or too_much), peak_mb, reason or too_much)


def _rss_mb(pid: int) -> float:
    try:
        return float(psutil.Process(pid).memory_info().rss / 1e6)
    except psutil.Error:  # it has ended
        return 0.0


def _grow(
    sender: Connection,
    build_model: Callable[[], Any],
    make_batch: Callable[[int], Any],
    sizes: Sequence[int],
    steps: int,
) -> None:
    """In the trial process: sends (why it does not fit or "", another error or None) for each size."""
    import tensorflow as tf

    from tfprep.train.session import give_back

    for gpu in tf.config.list_physical_devices("GPU"):
        tf.config.experimental.set_memory_growth(gpu, True)
    try:
        model = build_model()
        for size in sizes:
            inputs, targets = make_batch(size)
            for _ in range(steps):
                model.train_on_batch(inputs, targets)
            sender.send(("", None))
            del inputs, targets
            give_back()  # what the smaller batch has freed would count against the next
    except (tf.errors.ResourceExhaustedError, MemoryError) as error:
        sender.send((f"{type(error).__name__}: {str(error)[:200]}", None))
    except Exception as error:
        sender.send(("", f"{type(error).__name__}: {error}"))
