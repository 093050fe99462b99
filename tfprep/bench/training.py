"""The loader beside a training: steps that sleep, or `fit` of a real model, watched by an `InputMonitor`; and a recipe that is
computed in every epoch, which a dataset is compared with.

A step that sleeps takes time but no CPU, like a step on an accelerator.
"""

from __future__ import annotations

import re
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tfprep.bench.rounds import Candidate, settle
from tfprep.builder.make_sample import SampleMaker
from tfprep.codecs import Raw
from tfprep.errors import LoaderError, SourceError
from tfprep.fields import FieldSpec
from tfprep.load import Data
from tfprep.recipe import Recipe
from tfprep.sources.source import read_files

if TYPE_CHECKING:
    from tfprep.train.monitor.causes import Verdict

TOLERATED = 0.05
"""The share of the time that a training may wait for input while the step still counts as what limits."""
_TRIED, _MOST_STEPS = 10, 10**9
"""The least and the largest number of steps of a training."""
_SETTLE_STEPS = 5
"""Steps that do not count, beside those of the batches that the loader has prefetched: they would hide what limits."""


@dataclass(frozen=True)
class Iteration:
    """One pass over a loader, with what the loader has: its counters, and `close`, which stops its threads."""

    loader: Any
    batches: Iterator[Any]

    def __iter__(self) -> Iterator[Any]:
        return self.batches

    def __next__(self) -> Any:
        return next(self.batches)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.loader, name)

    def cache_bytes(self) -> float:
        """The bytes in the loader's cache."""
        return float(self.stats["cache_bytes"])


def loader_candidate(data: Data, split: str, batch_size: int, *, name: str = "tfprep", **options: Any) -> Candidate:
    """The loader in an eager loop. Opening it imports TensorFlow."""

    def begin() -> Iteration:
        loader = data.loader(split, batch_size=batch_size, **{"training": True, **options})
        loader = loader.repeat() if loader.pipeline.plan.training else loader
        return Iteration(loader, iter(loader.eager()))

    return Candidate(name, begin)


@contextmanager
def _monitor(tolerated: float) -> Iterator[Any]:
    from tfprep.train import InputMonitor

    with tempfile.TemporaryDirectory(prefix="tfprep-bench-") as logs:
        yield InputMonitor(logs, wait_share=tolerated)


def train_with_step(
    candidate: Candidate, step_s: float, *, seconds: float = 5.0, tolerated: float = TOLERATED
) -> Verdict:
    """Run a training loop for some seconds whose step sleeps (0 takes batches as fast as they come), and find what limits it.

    Up to the share `tolerated` of waiting, 0 to 1, the step is what limits.
    """
    iteration: Any = candidate.open()
    with closing(iteration), _monitor(tolerated) as monitor:
        next(iteration)
        settle(iteration)
        for _ in islice(iteration, _SETTLE_STEPS + int(iteration.loader.stats["prefetch"])):
            time.sleep(step_s)
        with monitor:
            started = time.perf_counter()
            for number, _ in enumerate(monitor.watch(iteration), 1):
                time.sleep(step_s)
                if number >= _TRIED and time.perf_counter() - started > seconds:
                    break
    return _verdict(monitor)


def ready_model(make_model: Callable[[], Any], data: Data, split: str, batch_size: int, **options: Any) -> Any:
    """Make the model and train it for one step, so that mistakes are found before anything is measured.

    Raises:
        LoaderError: If the function does not return a compiled Keras model, or the model does not accept the loader's elements.
    """
    import keras
    import tensorflow as tf

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
    if getattr(model, "distribute_strategy", None) not in (None, tf.distribute.get_strategy()):
        raise LoaderError("--model: waits are not measured under a distribution strategy; make the model without one")
    with closing(data.loader(split, batch_size=batch_size, **{"training": True, **options}).repeat()) as loader:
        _fit(model, loader, 1)
    return model


def train_with_model(
    model: Any,
    data: Data,
    split: str,
    batch_size: int,
    *,
    seconds: float = 5.0,
    tolerated: float = TOLERATED,
    **options: Any,
) -> Verdict:
    """Train a compiled Keras model for some seconds on the loader, and find what limits it; as `train_with_step`.

    Raises:
        LoaderError: If the model does not accept the loader's elements.
    """
    import keras

    ends_at: list[float] = []

    def stop(batch: int, logs: Any) -> None:
        if not ends_at:  # the first step, which traces, does not count
            ends_at.append(time.perf_counter() + seconds)
        elif batch >= _TRIED and time.perf_counter() > ends_at[0]:
            model.stop_training = True

    with (
        closing(data.loader(split, batch_size=batch_size, **{"training": True, **options}).repeat()) as loader,
        _monitor(tolerated) as monitor,
    ):
        _fit(model, loader, _SETTLE_STEPS + int(loader.stats["prefetch"]))
        _fit(model, loader, _MOST_STEPS, monitor, keras.callbacks.LambdaCallback(on_train_batch_end=stop))
    return _verdict(monitor)


def _verdict(monitor: Any) -> Verdict:
    total: Verdict | None = monitor.total()
    assert total is not None  # there were at least _TRIED steps
    return total


def _fit(model: Any, loader: Any, steps: int, *callbacks: Any) -> None:
    try:
        model.fit(loader, steps_per_epoch=steps, epochs=1, verbose=0, shuffle=False, callbacks=list(callbacks))
    except LoaderError:
        raise
    except Exception as error:  # whatever a model raises when it is given what it does not take
        raise LoaderError(
            f"the model does not accept the elements of the loader, {_structure(loader.element_spec)}: {_first(error)}; "
            "choose them with --inputs and --targets"
        ) from error


def _kind(value: Any) -> str:
    return "nothing (None)" if value is None else f"a {type(value).__name__}"


def _first(error: BaseException) -> str:
    """The first line that is not empty, after Keras's own, which says where."""
    lines = [line.strip() for line in re.sub(r"\x1b\[\d*m", "", str(error)).splitlines() if line.strip()]
    told = (line for line in lines if not line.startswith("Exception encountered when calling "))
    return next(told, str(error) or type(error).__name__)


def _structure(spec: Any) -> str:
    """The structure of an element, such as `{image: uint8 [8, 16, 16, 3], label: int64 [8]}`."""
    if isinstance(spec, dict):
        return "{" + ", ".join(f"{name}: {_structure(value)}" for name, value in spec.items()) + "}"
    if isinstance(spec, tuple):
        return "(" + ", ".join(_structure(value) for value in spec) + ")"
    return f"{spec.dtype.name} {[*spec.shape]}"


# --- a recipe as a pipeline that computes its samples in every epoch, without a build: what a dataset is compared with -


def on_the_fly(recipe: Recipe, root: Path, split: str = "train", batch_size: int = 32, seed: int = 0) -> Any:
    """An endless `tf.data.Dataset` of dicts of the stored fields, [B, ...] each. Every epoch shows another variant.

    The functions are tfprep's own, so the pixels equal those of a build; only the time of their computation differs.

    Raises:
        SourceError: If the split has no sample. TensorFlow raises where images of a batch differ in size.
    """
    import tensorflow as tf

    listing = recipe.source.scan(root)
    recipe.check_fields(listing)
    every = list(listing.entries)
    entries = [entry for entry in every if entry.split == split]
    if not entries:
        available = ", ".join(sorted({entry.split for entry in every})) or "no sample at all"
        raise SourceError(f"{root}: split {split!r} has no sample; available: {available}")
    maker = SampleMaker(recipe, listing.kinds, dict(listing.classes))

    def made(index: int, variant: int) -> dict[str, Any]:
        entry = entries[index]
        values = dict(zip(listing.values, entry.values, strict=True))
        sample = next(maker.made(entry.key, {**read_files(root, listing.files, entry), **values}, [variant]))
        return {name: sample[name] for name in recipe.store}

    kinds = {**maker.kinds, **recipe.derived_kinds()}
    first = made(0, 0)
    specs = {name: codec.spec(kinds[name], first[name]) for name, codec in recipe.store.items()}
    variants = recipe.variants_of(split)
    dtypes = [tf.dtypes.as_dtype(spec.dtype) for spec in specs.values()]

    def compute(count: Any, number: Any) -> list[Any]:
        sample = made(int(number), (int(count) // len(entries) + int(number)) % variants)
        return [_as_stored(sample[name], spec) for name, spec in specs.items()]

    def map_one(count: Any, number: Any) -> dict[str, Any]:
        values = tf.py_function(compute, [count, number], dtypes)
        return {
            name: tf.ensure_shape(value, spec.shape) for (name, spec), value in zip(specs.items(), values, strict=True)
        }

    numbers = tf.data.Dataset.range(len(entries)).shuffle(len(entries), seed=seed).repeat().enumerate()
    plain = tf.autograph.experimental.do_not_convert(map_one)
    mapped = numbers.map(plain, num_parallel_calls=tf.data.AUTOTUNE)
    return mapped.batch(batch_size, drop_remainder=True).prefetch(tf.data.AUTOTUNE)


def _as_stored(value: Any, spec: FieldSpec) -> Any:
    """Return a value with the dtype on disk: without a copy where it has it, which would count against the recipe."""
    if spec.dtype == "string" or np.asarray(value).dtype.name == spec.dtype:
        return value if isinstance(value, str) else np.asarray(value, order="C")
    raw = Raw(spec.dtype)  # rounds, and refuses what does not fit
    return raw.decode(raw.encode(value)[""], spec)
