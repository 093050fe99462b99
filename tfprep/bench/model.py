"""The loader under a real model: `fit` with an `InputMonitor`, which measures the waits for input and names what limits."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from typing import Any

from tfprep.bench.loaders import element_text
from tfprep.bench.run import Bench
from tfprep.errors import LoaderError
from tfprep.load import Data

_TRIED = 10
"""Steps whose time tells how many fill the seconds of a benchmark."""


@dataclass(frozen=True)
class ModelTraining:
    """A `fit` of some seconds: its rate, the share (0 to 1) of the time waiting for input, a batch's wait, and what limits."""

    steps: int
    images_per_s: float
    share: float
    wait_p50_s: float
    wait_p99_s: float
    limit: str

    def lines(self) -> list[str]:
        return [
            f"with your model: {self.images_per_s:,.0f} images/s in fit, which waits for input {self.share:.1%} of the time",
            f"  wait for a batch: {1000 * self.wait_p50_s:.2f} ms median, {1000 * self.wait_p99_s:.2f} ms at the 99th percentile",
            f"  {self.limit}",
        ]


def ready_model(make_model: Callable[[], Any], data: Data, split: str, batch_size: int, **options: Any) -> Any:
    """Make the model and train it for one step, so that mistakes are found before anything is measured.

    Raises:
        LoaderError: If the function does not return a compiled Keras model, or the model does not accept the loader's elements.
    """
    model = compiled(make_model)
    with closing(data.loader(split, batch_size=batch_size, **{"training": True, **options}).repeat()) as loader:
        _fit(model, loader, 1)
    return model


def train_model(model: Any, data: Data, result: Bench, **options: Any) -> ModelTraining:
    """Train a compiled Keras model on the loader, with an `InputMonitor`.

    Args:
        model: A compiled Keras model.
        data: The dataset.
        result: The benchmark of its loader, whose split, batch size, rounds and seconds count here too.
        **options: Options of the loader.

    Raises:
        LoaderError: If the model does not accept the loader's elements.
    """
    from tfprep.train import InputMonitor
    from tfprep.train.monitor.causes import in_words

    seconds, size = result.options.rounds * result.options.seconds, result.options.batch_size
    with (
        closing(data.loader(result.split, batch_size=size, **{"training": True, **options}).repeat()) as loader,
        tempfile.TemporaryDirectory(prefix="tfprep-bench-") as logs,
    ):
        started = time.perf_counter()
        _fit(model, loader, _TRIED)
        steps = max(_TRIED, int(seconds * _TRIED / (time.perf_counter() - started)))
        monitor = InputMonitor(logs)
        _fit(model, loader, steps + 1, monitor)  # the first step does not count: buffers fill
    total = monitor.total()
    assert total is not None  # there were more than two steps
    waits = total.waits
    return ModelTraining(
        steps=waits.batches,
        images_per_s=waits.images_per_s or 0.0,
        share=waits.share or 0.0,
        wait_p50_s=waits.quantile_ms(50) / 1000,
        wait_p99_s=waits.quantile_ms(99) / 1000,
        limit=in_words(total.causes),
    )


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


def _fit(model: Any, loader: Any, steps: int, *callbacks: Any) -> None:
    try:
        model.fit(loader, steps_per_epoch=steps, epochs=1, verbose=0, shuffle=False, callbacks=list(callbacks))
    except LoaderError:
        raise
    except Exception as error:  # whatever a model raises when it is given what it does not take
        raise LoaderError(
            f"the model does not accept the elements of the loader, {element_text(loader.element_spec)}: {_first(error)}; "
            "choose them with --inputs and --targets"
        ) from error


def _kind(value: Any) -> str:
    return "nothing (None)" if value is None else f"a {type(value).__name__}"


def _first(error: BaseException) -> str:
    """The first line that is not empty."""
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
