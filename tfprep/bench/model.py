"""The loader under a real model: the additional time of its steps over steps on one batch in memory.

`fit` runs on a batch that is kept in memory and on the loader, in turns. The difference is the wait for input and the share of
the processor that input takes. On an accelerator the second part is zero.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from typing import Any

import numpy as np

from tfprep.bench.loaders import element_text
from tfprep.bench.rounds import Spread
from tfprep.bench.run import LOADER, Bench
from tfprep.errors import LoaderError
from tfprep.load import Data


@dataclass(frozen=True)
class ModelComparison:
    """Seconds per step in `fit` on a batch in memory and on the loader, and the `share` of the time that input adds.

    The wait for a batch is the time of a step on the loader beyond the median step on a batch in memory.
    """

    step_s: float
    step_with_loader_s: float
    share: Spread
    predicted: float
    wait_p50_s: float
    wait_p99_s: float

    def lines(self) -> list[str]:
        return [
            f"compared with your model: a step takes {1000 * self.step_s:.1f} ms on a batch in memory, "
            f"{1000 * self.step_with_loader_s:.1f} ms on the loader",
            f"  input costs {self.share.median:.1%} of the time ({self.share.least:.1%} to {self.share.greatest:.1%}; "
            f"predicted: {self.predicted:.1%})",
            f"  wait for a batch: {1000 * self.wait_p50_s:.2f} ms median, {1000 * self.wait_p99_s:.2f} ms at the "
            "99th percentile",
        ]


@dataclass(frozen=True)
class FitTimes:
    """One run of `fit`: the seconds of each step, and the CPU seconds of all steps."""

    steps: tuple[float, ...]
    cpu_s: float

    @property
    def step_s(self) -> float:
        return sum(self.steps) / len(self.steps)


def ready_model(make_model: Callable[[], Any], data: Data, split: str, batch_size: int, **options: Any) -> Any:
    """Make the model and train it for one step, so that mistakes are found before anything is measured.

    Raises:
        LoaderError: If the function does not return a compiled Keras model, or the model does not accept the loader's elements.
    """
    model = compiled(make_model)
    loader = data.loader(split, batch_size=batch_size, **{"training": True, **options}).repeat()
    try:
        _fit(model, loader, 1)
    finally:
        loader.close()
    return model


def compare_with_model(model: Any, data: Data, result: Bench, **options: Any) -> ModelComparison:
    """Train a compiled Keras model on one batch in memory and on the loader, in turns.

    Args:
        model: A compiled Keras model.
        data: The dataset.
        result: The benchmark of its loader, whose split, batch size, rounds and seconds count here too.
        **options: Options of the loader.

    Raises:
        LoaderError: If the model does not accept the loader's elements.
    """
    size, rounds = result.options.batch_size, result.options.rounds
    loader = data.loader(result.split, batch_size=size, **{"training": True, **options}).repeat()
    try:
        kept = loader.take(1).cache().repeat()
        _fit(model, kept, 3)
        _fit(model, loader, 3)
        steps = max(5, int(result.options.seconds / _fit(model, kept, 10).step_s))
        pairs = [(_fit(model, kept, steps), _fit(model, loader, steps)) for _ in range(rounds)]
    finally:
        loader.close()
    batch_cpu_s = result.rounds.of(LOADER, "cpu_ms").median / 1000 * size
    return compared(pairs, result.batch_s, batch_cpu_s, result.machine.cores)


def compiled(make_model: Callable[[], Any]) -> Any:
    """The model that the function returns. Raises LoaderError if that is not a compiled Keras model."""
    import keras

    if not callable(make_model):
        raise LoaderError(
            f"--model names a function without arguments that returns a compiled Keras model, not {_kind(make_model)}"
        )
    try:
        model = make_model()
    except Exception as error:
        raise LoaderError(f"--model: the function raised {type(error).__name__}: {_first(error)}") from error
    if not isinstance(model, keras.Model):
        raise LoaderError(
            f"--model: the function returned {_kind(model)}; it should return a compiled Keras model (is `return` missing?)"
        )
    if getattr(model, "optimizer", None) is None:
        raise LoaderError("--model: the model is not compiled; call model.compile(...) before it is returned")
    return model


def compared(pairs: list[tuple[FitTimes, FitTimes]], batch_s: float, batch_cpu_s: float, cores: int) -> ModelComparison:
    """The result of rounds of runs on a batch in memory and on the loader."""
    alone = median(one.step_s for one, _ in pairs)
    cpu_s = median(one.cpu_s / len(one.steps) for one, _ in pairs)
    shares = [1 - one.step_s / max(one.step_s, other.step_s) for one, other in pairs]
    usual = [median(one.steps) for one, _ in pairs]
    waits = [max(0.0, step - kept) for kept, (_, other) in zip(usual, pairs, strict=True) for step in other.steps]
    together = max(alone, batch_s, (cpu_s + batch_cpu_s) / cores)
    return ModelComparison(
        alone,
        median(other.step_s for _, other in pairs),
        Spread.of(shares),
        1 - alone / together,
        float(np.percentile(waits, 50)),
        float(np.percentile(waits, 99)),
    )


def _fit(model: Any, dataset: Any, steps: int) -> FitTimes:
    """Train for `steps` steps. The first step of an epoch is left out, as it waits for buffers to fill."""
    import keras

    class Clock(keras.callbacks.Callback):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.ends: list[float] = []
            self.cpu: list[float] = []

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            self.ends.append(time.perf_counter())
            self.cpu.append(time.process_time())

    clock = Clock()
    try:
        model.fit(dataset, steps_per_epoch=steps + 1, epochs=1, verbose=0, shuffle=False, callbacks=[clock])
    except LoaderError:
        raise
    except Exception as error:  # whatever a model raises when it is given what it does not take
        raise LoaderError(
            f"the model does not accept the elements of the loader, {element_text(dataset.element_spec)}: {_first(error)}; "
            "choose them with --inputs and --targets"
        ) from error
    return FitTimes(tuple(later - earlier for earlier, later in pairwise(clock.ends)), clock.cpu[-1] - clock.cpu[0])


def _kind(value: Any) -> str:
    return "nothing (None)" if value is None else f"a {type(value).__name__}"


def _first(error: BaseException) -> str:
    """The first line that is not empty."""
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
