"""Causes of slow training, each staged on purpose: which of them `InputMonitor` and `tfprep bench` name, and what they advise.

    python benchmarks/causes.py [--times 1] [--burners 0] [--tool monitor] [--input tfprep] [--backend jax] [--cause decode ...]
                                [--jax PYTHON] [--data DIR] [--json causes.json]

Twelve causes: the epoch that fills a cache, JPEG decoded by one thread, reads that sleep, a map that calls Python, a map of
TensorFlow ops, a memory budget for one or two batches under uneven reads, a step that computes, a callback that sleeps, eight
other programs on every processor, a step that is traced again and again, a store with a latency, and validation.

They are staged behind tfprep's loader and behind plain tf.data, on TensorFlow and on JAX (--jax names an interpreter that has it;
plain tf.data on JAX needs both). A process for each input and backend answers one cause after the other, on 600 images of
224 x 224 pixels; `bench` is asked for the causes that it can see. An answer is right if its first cause is the staged one and it
advises nothing that is done already. --burners runs programs beside everything that take a processor each.
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
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

import harness

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
HERE = Path(__file__).parent

BATCH = 32
IMAGES = 600
LATENCY_MS = 300
SLEEP_S = 0.04
STEPS = {"filling": IMAGES // BATCH, "disk": 25, "step": 25, "decode": 150, "processors": 150}
"""By cause the steps of a training, some seconds each; 40 of the others."""
TFPREP = {
    "filling": "filling", "decode": "decode", "disk": "read", "python map": "python map", "map": "map", "memory": "memory",
    "step": "step", "callback": "python", "processors": "processors", "retracing": "retracing", "remote": "fetch",
    "validation": "validation",
}  # fmt: skip
"""By cause the kind that `InputMonitor` names behind tfprep's loader."""
PLAIN = {**TFPREP, "decode": "map", "disk": "stage"}
"""Behind plain tf.data: a map decodes, and a generator reads. A memory budget and a store are the loader's own."""
BENCH = {
    "filling": "copying", "decode": "decoding", "disk": "reading", "python map": "map", "memory": "memory", "step": "step",
    "processors": "processors",
}  # fmt: skip
"""By cause what `bench` returns as its limit; of the step the limit of the comparison with it."""
NOT_STAGED = {
    ("plain", "tensorflow"): {"memory", "remote"},
    ("plain", "jax"): {"memory", "remote", "retracing"},
    ("tfprep", "jax"): {"python map", "map"},
    ("tfprep", "tensorflow"): set(),
}
FOLLOWED = ("num_parallel_calls", "end the pipeline with prefetch", "Deliver uint8", "deliver uint8", "Raise threads")
"""Advice that every pipeline here follows already; a loader of one thread is the exception."""


def _more(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--tool", choices=("monitor", "bench"), help="The one to ask; both by default")
    parser.add_argument("--input", choices=("tfprep", "plain"), help="The input of the training; both by default")
    parser.add_argument("--backend", choices=("tensorflow", "jax"), help="Keras's backend; both by default")
    parser.add_argument("--cause", choices=TFPREP, nargs="+", default=list(TFPREP), help="The causes to stage")
    parser.add_argument("--data", type=Path, help="Folder that keeps the images for the next run")
    parser.add_argument("--run", nargs=3, help=argparse.SUPPRESS)


def main() -> None:
    options = harness.arguments(
        __doc__ or "", _more,
        times=(1, "How often each cause is staged"), burners=(0, "Programs that take a processor each beside everything"),
        jax=(sys.executable, "Interpreter with JAX"),
    )  # fmt: skip
    if options.run:
        tool, source, folder = options.run
        for line in sys.stdin:
            cause = line.strip()
            found = monitored(source, cause, Path(folder)) if tool == "monitor" else benched(cause, Path(folder))
            print(json.dumps(found), flush=True)
        return
    answers: list[dict[str, Any]] = []
    with ExitStack() as stack:
        folder = options.data or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        write_datasets(folder)
        stack.enter_context(burning(options.burners))
        began = time.perf_counter()
        for (tool, source, backend), cells_of_one in itertools.groupby(cells(options), key=lambda cell: cell[:3]):
            causes = [cause for *_, cause in cells_of_one]
            with closing(Trainer(options, tool, source, backend, folder)) as trainer:
                for cause in causes * options.times:
                    answers.append(trainer.answer(cause))
                    print("right" if answers[-1]["right"] else "WRONG", json.dumps(answers[-1]), flush=True)
        print(f"{(time.perf_counter() - began) / options.times:.0f} s a round")
    print(f"{sum(answer['right'] for answer in answers)} of {len(answers)} right", flush=True)
    for (tool, source, backend), given in itertools.groupby(
        sorted(answers, key=lambda one: (one["tool"], one["input"], one["backend"])),
        key=lambda one: (one["tool"], one["input"], one["backend"]),
    ):
        listed = list(given)
        wrong = [f"{one['cause']} as {one['kind']}" for one in listed if not one["right"]]
        print(
            f"  {tool}, {source}, {backend}: {len(listed) - len(wrong)} of {len(listed)}; wrong: {', '.join(wrong) or 'none'}"
        )
    harness.finish(options, {"times": options.times, "burners": options.burners, "answers": answers})


def cells(options: argparse.Namespace) -> list[tuple[str, str, str, str]]:
    """Tool, input, backend and cause of each question."""
    found = []
    for source, backend in itertools.product(("tfprep", "plain"), ("tensorflow", "jax")):
        if options.input not in (None, source) or options.backend not in (None, backend):
            continue
        needed = {backend} | ({"tensorflow"} if source == "plain" else set())
        there = installed(options.jax if backend == "jax" else sys.executable)
        missing = needed - there
        if missing:
            print(f"{source} on {backend}: left out, {', '.join(sorted(missing))} is not installed")
            continue
        left_out = NOT_STAGED[source, backend] | (set() if "obstore" in there else {"remote"})
        causes = [cause for cause in options.cause if cause not in left_out]
        found += [("monitor", source, backend, cause) for cause in causes]
    if options.backend in (None, "tensorflow") and options.input in (None, "tfprep"):
        found += [("bench", "tfprep", "tensorflow", cause) for cause in options.cause if cause in BENCH]
    return [cell for cell in found if options.tool in (None, cell[0])]


def installed(interpreter: str) -> set[str]:
    code = "import importlib.util as u; print([m for m in ('jax', 'tensorflow', 'obstore') if u.find_spec(m)])"
    done = subprocess.run([interpreter, "-c", code], capture_output=True, text=True, check=True)
    return set(json.loads(done.stdout.replace("'", '"')))


def write_datasets(folder: Path) -> None:
    from loader_data import write

    from tfprep import codecs

    for name, codec in (("jpeg", codecs.Jpeg(95)), ("raw", codecs.Raw())):
        write(folder / name, codec, IMAGES)


class Trainer:
    """A process that trains with one input on one backend, one staged cause after the other."""

    def __init__(self, options: argparse.Namespace, tool: str, source: str, backend: str, folder: Path) -> None:
        self._cell = {"tool": tool, "input": source, "backend": backend}
        self._folder = folder
        python = options.jax if backend == "jax" else sys.executable
        self._command = [python, __file__, "--run", tool, source, str(folder)]
        self._environment = {**os.environ, "KERAS_BACKEND": backend, "PYTHONPATH": str(HERE.parent)}
        with ExitStack() as stack:
            self._environment |= dict(stack.enter_context(harness.store(folder, LATENCY_MS))[1])
            self._errors = stack.enter_context(tempfile.TemporaryFile("w+"))
            self._stack = stack.pop_all()
        self._process: subprocess.Popen[str] | None = None

    def answer(self, cause: str) -> dict[str, Any]:
        """What the tool names as the first cause, in which words, and whether that is right."""
        for path in self._folder.rglob("*.tfrecord-*"):
            path.read_bytes()  # into the page cache, so that no disk but the staged one is slow
        if self._process is None:
            pipes: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": self._errors}
            self._process = subprocess.Popen(self._command, text=True, env=self._environment, **pipes)
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        started = time.perf_counter()
        with burning(8 * (os.cpu_count() or 1) if cause == "processors" else 0):
            self._process.stdin.write(f"{cause}\n")
            self._process.stdin.flush()
            line = next((line for line in self._process.stdout if line.startswith('["')), "")
        if line:
            kind, text = json.loads(line)
        else:
            self._errors.seek(0)
            kind, text = "failed", self._errors.read()[-600:]
            self._process.wait()
            self._process = None
        tool, source = self._cell["tool"], self._cell["input"]
        expected = BENCH[cause] if tool == "bench" else (PLAIN if source == "plain" else TFPREP)[cause]
        repeated = [words for words in FOLLOWED if words in text and (words != "Raise threads" or cause != "decode")]
        return {
            **self._cell, "cause": cause, "kind": kind, "text": text, "already_done": repeated,
            "seconds": round(time.perf_counter() - started, 1), "right": kind == expected and not repeated,
        }  # fmt: skip

    def close(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        self._stack.close()


@contextmanager
def burning(count: int) -> Iterator[None]:
    """Programs that compute. The trainer does not start them: it counts its own children as itself."""
    code = "import os\nparent = os.getppid()\nwhile os.getppid() == parent: pass"  # none outlives a benchmark that is killed
    programs = [subprocess.Popen([sys.executable, "-c", code]) for _ in range(count)]
    try:
        yield
    finally:
        for program in programs:
            program.kill()
            program.wait()


# --- the stages of the causes -----------------------------------------------------------------------------------------------


@contextmanager
def slow_reads(cause: str) -> Iterator[None]:
    """Slow reads, for the length of the block."""
    read, number = os.preadv, itertools.count()

    def slow(*arguments: Any) -> Any:
        if cause != "memory" or next(number) % 320 < 2:  # two records of every ten batches
            time.sleep(0.6 if cause == "memory" else 0.01)
        return read(*arguments)

    if cause in ("disk", "memory", "filling"):
        os.preadv = slow
    try:
        yield
    finally:
        os.preadv = read


def loader_options(cause: str) -> dict[str, Any]:
    batch_bytes = BATCH * 224 * 224 * 3 + 4096  # with labels, in whole pages
    return {
        "inputs": "image",
        "targets": "label",
        "training": True,
        **({} if cause == "filling" else {"cache": False}),
        **({"threads": 1} if cause == "decode" else {}),
        **({"memory_budget": 5 * batch_bytes, "threads": 8} if cause == "memory" else {}),
        **({"threads": 2} if cause == "remote" else {}),
    }


def dataset_of(cause: str, folder: Path) -> Any:
    name = "jpeg" if cause in ("decode", "processors", "filling") else "raw"
    return f"s3://bench/{name}" if cause == "remote" else folder / name


def asleep(value: Any) -> Any:
    """Returns `value` after a while, in Python."""
    import tensorflow as tf

    return tf.ensure_shape(tf.numpy_function(lambda v: (time.sleep(SLEEP_S), v)[1], [value], value.dtype), value.shape)


def busy(images: Any) -> Any:
    """Images that TensorFlow ops have worked on for some 50 ms."""
    import tensorflow as tf

    small = tf.cast(images, tf.float32)
    for _ in range(6):
        small = tf.nn.depthwise_conv2d(small, tf.ones([5, 5, 3, 1]) / 25, [1, 1, 1, 1], "SAME")
    return tf.cast(small, tf.uint8)


def input_of(source: str, cause: str, folder: Path, backend: str) -> tuple[Any, int]:
    """The input, and its steps an epoch."""
    import tfprep

    steps = STEPS.get(cause, 40)
    if source == "plain":
        return plain(cause, folder), steps
    data = tfprep.open(dataset_of(cause, folder))
    if backend == "jax":
        loader = data.keras_loader("train", BATCH, **loader_options(cause))
        return (loader if cause == "filling" else loader.repeat()), steps
    import tensorflow as tf

    train = data.loader("train", BATCH, **loader_options(cause))
    train = train if cause == "filling" else train.repeat()
    if cause == "python map":
        mapped = train.map(lambda images, labels: (images, asleep(labels)), num_parallel_calls=1)
        return mapped.prefetch(2), steps
    if cause == "map":
        mapped = train.map(lambda images, labels: (busy(images), labels), num_parallel_calls=tf.data.AUTOTUNE)
        return mapped.prefetch(2), steps
    return train, steps


def plain(cause: str, folder: Path) -> Any:
    """A pipeline of tf.data as its guide writes it: parallel maps, and a prefetch at its end."""
    import tensorflow as tf

    name = "jpeg" if cause in ("decode", "processors", "filling") else "raw"
    files = sorted(str(path) for path in (folder / name).glob("*.tfrecord-*") if path.suffix != ".idx")
    features = {"image": tf.io.FixedLenFeature([], tf.string), "label": tf.io.FixedLenFeature([], tf.int64)}

    def parsed(record: Any) -> Any:
        example = tf.io.parse_single_example(record, features)
        if name == "jpeg":
            image = tf.ensure_shape(tf.io.decode_jpeg(example["image"], channels=3), [224, 224, 3])
            if cause == "decode":  # as a map that decodes large photos and makes them small
                image = tf.cast(tf.image.resize(tf.image.resize(image, [896, 896]), [224, 224]), tf.uint8)
        else:
            image = tf.reshape(tf.io.decode_raw(example["image"], tf.uint8), [224, 224, 3])
        return image, example["label"]

    records = tf.data.TFRecordDataset(files)
    if cause in ("disk", "filling"):
        kept = list(records.as_numpy_iterator())

        def slow() -> Iterator[bytes]:
            for record in kept:
                time.sleep(0.003)
                yield record

        records = tf.data.Dataset.from_generator(slow, output_signature=tf.TensorSpec([], tf.string))
    threads = 1 if cause == "decode" else tf.data.AUTOTUNE
    dataset = records.map(parsed, num_parallel_calls=threads)
    dataset = dataset.cache() if cause == "filling" else dataset.repeat()
    dataset = dataset.batch(BATCH, drop_remainder=True)
    if cause == "python map":
        dataset = dataset.map(lambda images, labels: (images, asleep(labels)), num_parallel_calls=1)
    if cause == "map":
        dataset = dataset.map(lambda images, labels: (busy(images), labels), num_parallel_calls=tf.data.AUTOTUNE)
    return dataset.prefetch(2)


# --- who is asked -----------------------------------------------------------------------------------------------------------


def monitored(source: str, cause: str, folder: Path) -> tuple[str, str]:
    """The kind of the first cause that `InputMonitor` names, and its words."""
    import keras

    import tfprep

    backend = keras.backend.backend()
    feed, steps = input_of(source, cause, folder, backend)
    with tempfile.TemporaryDirectory() as logs, slow_reads(cause):
        monitor = tfprep.train.InputMonitor(logs, every_s=1)
        if cause == "retracing":
            retraced(monitor, feed, backend)
        else:
            fitted(monitor, feed, steps, cause)
        total = monitor.total()
    return (total.causes[0].kind if total else "none"), monitor.summary


def fitted(monitor: Any, feed: Any, steps: int, cause: str) -> None:
    import keras

    class Sleeping(keras.callbacks.Callback):
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            time.sleep(SLEEP_S)

    class Strided(keras.layers.Layer):
        def call(self, images: Any) -> Any:
            return keras.ops.cast(
                images[:, ::8, ::8] if cause in ("step", "memory") else images[:, ::16, ::16], "float32"
            )

    wide = (
        64 if cause == "step" or keras.backend.backend() == "tensorflow" else 16
    )  # JAX computes them five times as long
    heavy = [keras.layers.Conv2D(wide, 5, activation="relu"), keras.layers.Conv2D(wide, 5, activation="relu")]
    layers = [Strided(), *(heavy if cause in ("step", "memory") else []), keras.layers.Flatten(), keras.layers.Dense(1)]
    model = keras.Sequential(layers)
    model.compile("sgd", "mse", jit_compile=keras.backend.backend() == "jax")
    callbacks = [monitor, *([Sleeping()] if cause == "callback" else [])]
    whole = cause == "filling"  # an epoch from the beginning to the end
    options = {} if whole else {"steps_per_epoch": steps if cause != "validation" else 10}
    if cause == "validation":
        options |= {"validation_data": feed, "validation_steps": 60, "epochs": 3}
    model.fit(feed, verbose=0, shuffle=False, callbacks=callbacks, **options)


def retraced(monitor: Any, feed: Any, backend: str) -> None:
    """A step that gets images of another width each time."""
    if backend == "jax":
        import jax
        from jax import numpy

        step = jax.jit(lambda images: numpy.sum(numpy.sin(images.astype("float32"))))
    else:
        import tensorflow as tf

        step = tf.function(lambda images: tf.reduce_sum(tf.sin(tf.cast(images, tf.float32))), reduce_retracing=False)
    with monitor:
        watched = monitor.watch(feed, step=step if backend == "tensorflow" else None)
        for number, (images, _) in zip(range(60), watched, strict=False):
            step(images[:, : 8 + number])


def benched(cause: str, folder: Path) -> tuple[str, str]:
    """The limit that `bench` names, and its words."""
    from tfprep.bench.run import BenchOptions, bench

    loader = {name: value for name, value in loader_options(cause).items() if name != "training"}
    with slow_reads(cause):
        options = BenchOptions(
            batch_size=BATCH,
            rounds=1,
            seconds=0.8,
            changes=False,
            loader=loader,
            map_function=(lambda images, labels: (images, asleep(labels))) if cause == "python map" else None,
        )
        result = bench(dataset_of(cause, folder), options, step_s=0.2 if cause == "step" else None)
    if result.against is not None:
        return result.against.cause, result.against.limit
    return result.limit.stage, result.limit.words


if __name__ == "__main__":
    main()
