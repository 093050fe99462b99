"""The rate of `keras_loader` on each backend, as a share of `numpy_loader`, and what `jax_loader` hides of the transfers.

    python benchmarks/backends.py [--count 2000] [--rounds 7] [--seconds 1] [--json backends.json]

Each backend runs in a process of its own, because KERAS_BACKEND is fixed when Keras is imported. `numpy_loader` and the iterator
that Keras pulls from (NumPy arrays on JAX, tensors on PyTorch, a `tf.data.Dataset` on TensorFlow) take turns, in another order
each round; the table has the median of the ratios within a round, the least and the greatest. Records are JPEG of quality
95 and raw uint8, of 224 x 224 pixels; caches are off. Backends that are not installed are left out, and named.

For the transfers, steps alternate between a batch that is on the CPU device already, batches that are copied there when they are
needed, and batches that the queue of `jax_loader` copies two ahead. A step waits for its batch and then sleeps for 10 ms, which
takes time but no processor, as a step on an accelerator does.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import harness
import loader_data

BACKENDS = ("tensorflow", "jax", "torch")
BATCH = 64
STEP_S, STEPS = 0.01, 20


def main() -> None:
    options = harness.arguments(
        __doc__ or "", count=(2000, "Number of images"), rounds=(7, "Number of rounds"), seconds=(1.0, "Seconds of each turn"),
        backend=("", argparse.SUPPRESS), folder=(Path, argparse.SUPPRESS),
    )  # fmt: skip
    if options.backend:
        print(json.dumps(measured(options)))
        return
    figures: dict[str, Any] = {
        "arguments": {"count": options.count, "rounds": options.rounds, "seconds": options.seconds}
    }
    with loader_data.datasets(options.count) as folder:
        command = [sys.executable, __file__, "--folder", str(folder), "--rounds", str(options.rounds)]
        for backend in BACKENDS:
            if importlib.util.find_spec(backend) is None:
                print(f"{backend}: not installed, left out")
                continue
            environment = {**os.environ, "KERAS_BACKEND": backend, "TF_CPP_MIN_LOG_LEVEL": "3"}
            done = subprocess.run(
                [*command, "--seconds", str(options.seconds), "--backend", backend],
                env=environment, stdout=subprocess.PIPE, text=True, check=True,
            )  # fmt: skip
            figures[backend] = json.loads(done.stdout.splitlines()[-1])
            print(backend, json.dumps(figures[backend], indent=1))
    harness.finish(options, figures)


def measured(options: argparse.Namespace) -> dict[str, Any]:
    import tfprep

    figures = {
        form: shares(tfprep.open(options.folder / form), options.rounds, options.seconds) for form in ("jpeg", "raw")
    }
    if options.backend == "jax":
        figures["transfers"] = transfers(tfprep.open(options.folder / "raw"), options.rounds)
    return figures


# --- the share of numpy_loader --------------------------------------------------------------------------------------------


def shares(data: Any, rounds: int, seconds: float) -> dict[str, Any]:
    import keras

    names = {"inputs": "image", "targets": "label", "cache": False, "training": True}
    plain = data.numpy_loader("train", BATCH, **names).repeat()
    loader = data.keras_loader("train", BATCH, **names).repeat()
    opened: dict[str, Callable[[], Any]] = {
        "tensorflow": loader.get_tf_dataset,
        "jax": loader.get_jax_iterator,
        "torch": loader.get_torch_dataloader,
    }
    contestants = {"numpy_loader": iter(plain), "keras_loader": iter(opened[keras.backend.backend()]())}
    turns = {name: partial(images_per_s, batches, seconds) for name, batches in contestants.items()}
    rates = harness.in_turns(turns, rounds, warm_up=1)  # the first round fills buffers
    ratios = [ours / theirs for ours, theirs in zip(rates["keras_loader"], rates["numpy_loader"], strict=True)]
    return {
        "images_per_s": {name: median(values) for name, values in rates.items()},
        "ratio": {"median": median(ratios), "least": min(ratios), "greatest": max(ratios)},
    }


def images_per_s(batches: Iterator[Any], seconds: float) -> float:
    """The rate in a turn that begins at rest: prefetched batches of the time before do not count."""
    for _ in range(12):
        next(batches)
    count, began = 0, time.perf_counter()
    while (passed := time.perf_counter() - began) < seconds:
        next(batches)
        count += BATCH
    return count / passed


# --- transfers --------------------------------------------------------------------------------------------------------------


def transfers(data: Any, rounds: int) -> dict[str, Any]:
    """The time of a step with its batch, in milliseconds, and the share of the transfers that the steps hide."""
    import jax

    from tfprep.load.jax_loader import AHEAD, TransferredAhead

    options = {"fields": ["image"], "cache": "decoded", "training": True}
    loader = data.numpy_loader("train", BATCH, **options).repeat()

    def transfer(element: Any) -> Any:
        """On a CPU device JAX takes over aligned memory, whatever `may_alias` says; a GPU, and other memory, needs a copy."""
        return jax.device_put(element["image"].reshape(-1)[8:])

    batches = iter(loader)
    resident = transfer(next(batches)).block_until_ready()
    ahead = TransferredAhead(map(transfer, iter(loader)), AHEAD, lambda on_the_way: None)
    feeds: dict[str, Callable[[], Any]] = {
        "on the device": lambda: (next(batches), resident)[1],
        "when needed": lambda: transfer(next(batches)),
        "two ahead": lambda: next(ahead),
    }

    def step_s(feed: Callable[[], Any]) -> float:
        began = time.perf_counter()
        for _ in range(STEPS):
            feed().block_until_ready()
            time.sleep(STEP_S)
        return (time.perf_counter() - began) / STEPS

    took = harness.in_turns({name: partial(step_s, feed) for name, feed in feeds.items()}, rounds, warm_up=1)
    extra = {
        name: [with_it - without for with_it, without in zip(took[name], took["on the device"], strict=True)]
        for name in ("when needed", "two ahead")
    }
    hidden = 1 - median(extra["two ahead"]) / median(extra["when needed"])
    return {"step_ms": {name: 1e3 * median(values) for name, values in took.items()}, "hidden": hidden}


if __name__ == "__main__":
    main()
