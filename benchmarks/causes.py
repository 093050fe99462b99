"""Causes of slow training, each staged on purpose: which of them `InputMonitor` and `tfprep bench` name.

    python benchmarks/causes.py [--times 3] [--tool monitor] [--cause map ...] [--data DIR] [--json causes.json]

Each cause runs in a process of its own, on 600 images of 224 x 224 pixels: a `.map` behind the loader that sleeps, reads that
sleep, JPEG decoded by one thread, other programs on every processor, a memory budget for one or two batches under reads that
pause now and then, a step that sleeps, and a callback that sleeps. `bench` sees no callbacks, so the last one is for
`InputMonitor` alone.
The machine should be idle otherwise: on a busy one the right answer is that other programs limit. A cause is staged again where
others took more than 15 % of the machine, and the last answer says so.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import psutil

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
sys.path.insert(0, str(Path(__file__).parent))

BATCH = 32
TRIES = 3
BUSY = 0.15
"""Share of the machine from which on other programs spoil an answer."""
MONITOR = {
    "map": "what comes after the loader limits",
    "disk": "reading limits",
    "decode": "decoding limits",
    "processors": "other programs limit",
    "memory": "the loader's memory limits",
    "step": "the step limits",
    "python": "Python between the steps",
}
"""By cause what the summary of `InputMonitor` says."""
BENCH = {
    "map": "map",
    "disk": "reading",
    "decode": "decoding",
    "processors": "processors",
    "memory": "memory",
    "step": "step",
}
"""By cause what `bench` returns as its limit; of the step the limit of the comparison with it."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--times", type=int, default=3, help="How often each cause is staged")
    parser.add_argument("--tool", choices=("monitor", "bench"), help="The one to ask; both by default")
    parser.add_argument("--cause", choices=MONITOR, nargs="+", default=list(MONITOR), help="The causes to stage")
    parser.add_argument("--data", type=Path, help="Folder that keeps the images for the next run")
    parser.add_argument("--json", type=Path, help="File for the answers")
    parser.add_argument("--run", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.run:
        tool, cause, folder = options.run
        print(json.dumps(monitored(cause, Path(folder)) if tool == "monitor" else benched(cause, Path(folder))))
        return
    tools = [
        (name, causes) for name, causes in (("monitor", MONITOR), ("bench", BENCH)) if options.tool in (None, name)
    ]
    answers: dict[str, dict[str, list[str]]] = {name: {} for name, _ in tools}
    with tempfile.TemporaryDirectory() as own_folder:
        folder = options.data or Path(own_folder)
        write_datasets(folder)
        for _, (tool, causes) in itertools.product(range(options.times), tools):
            for cause in (cause for cause in causes if cause in options.cause):
                answers[tool].setdefault(cause, []).append(asked(tool, cause, str(folder)))
                print(tool, cause, answers[tool][cause][-1], flush=True)
    for tool, by_cause in answers.items():
        right = sum(answer == cause for cause, given in by_cause.items() for answer in given)
        print(f"{tool}: {right} of {sum(map(len, by_cause.values()))}")
        for cause, given in by_cause.items():
            print(f"  {cause:10} {', '.join(given)}")
    if options.json:
        options.json.write_text(json.dumps(answers, indent=1))


def write_datasets(folder: Path) -> None:
    from loader_data import write

    from tfprep import codecs

    for name, codec in (("jpeg", codecs.Jpeg(95)), ("raw", codecs.Raw())):
        write(folder / name, codec, 600)


def asked(tool: str, cause: str, folder: str) -> str:
    """The answer; asked up to `TRIES` times where programs that are not staged took more than `BUSY` of the machine."""
    for path in Path(folder).rglob("*.tfrecord-*"):
        path.read_bytes()  # into the page cache, so that no disk but the staged one is slow
    command = [sys.executable, __file__, "--run", tool, cause, folder]
    for _ in range(TRIES):
        busy_s, began = _busy_elsewhere_s(), time.monotonic()
        with busy_processors() if cause == "processors" else nullcontext():
            done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=True)
        others = (_busy_elsewhere_s() - busy_s) / (time.monotonic() - began) / (os.cpu_count() or 1)
        answer = str(json.loads(done.stdout.splitlines()[-1]))
        if others < BUSY:
            return answer
    return f"{answer} (other programs took {others:.0%})"


def _busy_elsewhere_s() -> float:
    """Processor time of all programs but this one and those that it has started and that have ended."""
    machine, own = psutil.cpu_times(), os.times()
    return float(machine.user + machine.nice + machine.system) - sum(own[:4])


# --- the stages of the causes -----------------------------------------------------------------------------------------------


@contextmanager
def busy_processors() -> Iterator[None]:
    """Four programs on each processor. The trainer does not start them: it counts its own children as itself."""
    burn = [sys.executable, "-c", "while True: pass"]
    programs = [subprocess.Popen(burn) for _ in range(4 * (os.cpu_count() or 1))]
    try:
        yield
    finally:
        for program in programs:
            program.kill()
            program.wait()  # so that their time counts as that of this process


@contextmanager
def staged(cause: str) -> Iterator[None]:
    """Slow reads, for the length of the block."""
    read = os.preadv
    if cause in ("disk", "memory"):
        number = itertools.count()

        def slow(*arguments: Any) -> Any:
            if cause == "disk" or next(number) % 320 < 2:  # two records of every ten batches
                time.sleep(0.02 if cause == "disk" else 0.3)
            return read(*arguments)

        os.preadv = slow
    try:
        yield
    finally:
        os.preadv = read


def loader_options(cause: str) -> dict[str, Any]:
    batch_bytes = BATCH * 224 * 224 * 3 + 4096  # with labels, in whole pages
    return {
        "cache": False,
        **({"threads": 1} if cause == "decode" else {}),
        **({"memory_budget": 5 * batch_bytes, "threads": 4} if cause == "memory" else {}),
    }


def dataset_of(cause: str, folder: Path) -> Path:
    return folder / ("jpeg" if cause in ("decode", "processors") else "raw")


def slow_map(*element: Any) -> Any:
    """Sleeps for 50 ms in Python."""
    import tensorflow as tf

    flat = tf.nest.flatten(element)
    label = flat[-1]
    waited = tf.numpy_function(lambda value: (time.sleep(0.05), value)[1], [label], label.dtype)
    flat[-1] = tf.ensure_shape(waited, label.shape)
    packed = tf.nest.pack_sequence_as(element, flat)
    return packed if len(packed) > 1 else packed[0]


# --- who is asked -----------------------------------------------------------------------------------------------------------


def monitored(cause: str, folder: Path) -> str:
    import keras
    import tensorflow as tf

    import tfprep

    class Sleeping(keras.callbacks.Callback):
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            time.sleep(0.05)

    class SlowStep(keras.layers.Layer):
        def call(self, inputs: Any) -> Any:
            waited = tf.numpy_function(lambda value: (time.sleep(0.05), value)[1], [inputs], inputs.dtype)
            return tf.ensure_shape(waited, inputs.shape)

    layers = [keras.layers.Lambda(lambda images: tf.cast(images[:, ::16, ::16], tf.float32)), keras.layers.Flatten()]
    model = keras.Sequential([*layers, *([SlowStep()] if cause in ("step", "memory") else []), keras.layers.Dense(1)])
    model.compile("sgd", "mse", jit_compile=False)
    data = tfprep.open(dataset_of(cause, folder))
    options = {"inputs": "image", "targets": "label", "training": True, **loader_options(cause)}
    train = data.loader("train", BATCH, **options).repeat()
    feed = train.map(slow_map) if cause == "map" else train
    with tempfile.TemporaryDirectory() as logs, staged(cause):
        monitor = tfprep.train.InputMonitor(logs, every_s=1)
        callbacks = [monitor, *([Sleeping()] if cause == "python" else [])]
        model.fit(
            feed,
            steps_per_epoch=300 if cause in ("decode", "processors") else 60,
            epochs=1,
            verbose=0,
            shuffle=False,
            callbacks=callbacks,
        )
    last = monitor.summary.splitlines()[-1]
    if MONITOR["python"] in last:
        return "python"
    return next((name for name, words in MONITOR.items() if words in last), last)


def benched(cause: str, folder: Path) -> str:
    from tfprep.bench.run import BenchOptions, bench

    loader = {**loader_options(cause), "inputs": "image", "targets": "label"}
    with staged(cause):
        options = BenchOptions(
            batch_size=BATCH,
            rounds=1,
            seconds=1.5,
            changes=False,
            loader=loader,
            map_function=slow_map if cause == "map" else None,
        )
        result = bench(dataset_of(cause, folder), options, step_s=0.2 if cause == "step" else None)
    answer = result.against.limit if result.against is not None else result.limit.stage
    return next((name for name, stage in BENCH.items() if stage == answer), answer)


if __name__ == "__main__":
    main()
