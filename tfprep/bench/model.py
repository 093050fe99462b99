"""The loader under a real model: how much longer do its steps take than with a batch that is always there?

`fit` runs on one batch kept in memory, then on the loader, in turns. What the second takes longer is waiting for input, or
sharing the processor with it: to a trainer they are the same. On an accelerator the second part is nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from typing import Any

from tfprep.bench.measure import Spread
from tfprep.errors import LoaderError
from tfprep.load import Data


@dataclass(frozen=True)
class AgainstModel:
    """`share` of the time of a step in `fit` that it takes longer than on a batch in memory; seconds a step of both."""

    step_s: float
    step_with_loader_s: float
    share: Spread
    predicted: float

    def lines(self) -> list[str]:
        return [
            f"against your model: a step takes {1000 * self.step_s:.1f} ms on a batch in memory, "
            f"{1000 * self.step_with_loader_s:.1f} ms on the loader",
            f"  input costs {self.share.median:.1%} of the time ({self.share.least:.1%} to {self.share.greatest:.1%}; "
            f"predicted: {self.predicted:.1%})",
        ]


def against_model(
    make_model: Callable[[], Any],
    data: Data,
    split: str,
    batch_size: int,
    *,
    batch_s: float,
    batch_cpu_s: float,
    cores: int,
    rounds: int = 3,
    seconds: float = 3.0,
    **options: Any,
) -> AgainstModel:
    """Train what `make_model` returns, a compiled Keras model. `batch_s` and `batch_cpu_s` are the loader's own time and CPU
    time for a batch: with them is predicted.

    LoaderError where the loader's elements are not what `fit` takes (name `inputs` and `targets`).
    """
    model = make_model()
    if getattr(model, "optimizer", None) is None:
        raise LoaderError("--model names a function that returns a compiled Keras model")
    loader = data.loader(split, batch_size=batch_size, **options)
    try:
        kept = loader.take(1).cache().repeat()
        _fit(model, kept, 3)
        _fit(model, loader, 3)
        step_s, _ = _fit(model, kept, 10)
        steps = max(5, int(seconds / step_s))
        pairs = [(_fit(model, kept, steps), _fit(model, loader, steps)) for _ in range(rounds)]
    finally:
        loader.close()
    alone = median(one[0] for one, _ in pairs)
    cpu_s = median(one[1] for one, _ in pairs)
    shares = [1 - one[0] / max(one[0], other[0]) for one, other in pairs]
    together = max(alone, batch_s, (cpu_s + batch_cpu_s) / cores)
    return AgainstModel(alone, median(other[0] for _, other in pairs), Spread.of(shares), 1 - alone / together)


def _fit(model: Any, dataset: Any, steps: int) -> tuple[float, float]:
    """Wall and CPU seconds a step, the first of an epoch left out: it waits for buffers to fill."""
    import keras

    class Clock(keras.callbacks.Callback):  # type: ignore[misc]
        started = cpu = 0.0

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            if batch == 0:
                self.started, self.cpu = time.perf_counter(), time.process_time()

    clock = Clock()
    try:
        model.fit(dataset, steps_per_epoch=steps + 1, epochs=1, verbose=0, shuffle=False, callbacks=[clock])
    except (ValueError, TypeError) as error:
        raise LoaderError(f"the model cannot be fitted on the loader: {str(error).splitlines()[0]}") from error
    return (time.perf_counter() - clock.started) / steps, (time.process_time() - clock.cpu) / steps
