"""Causes of slow training, each staged on purpose: which of them `InputMonitor` and `tfprep bench` name, and what they advise.

    python benchmarks/causes.py [--times 1] [--burners 0] [--cause decode ...] [--jax PYTHON] [--json causes.json]

Twelve causes: the epoch that fills a cache, JPEG decoded by one thread, reads that sleep, a map that calls Python, a map of
TensorFlow ops, a memory budget for one or two batches under uneven reads, a step that computes, a callback that sleeps, eight
other programs on every processor, a step that is traced again and again, a store with a latency, and validation.

They are staged after tfprep's loader, on TensorFlow and on JAX (--jax names an interpreter that has it), and after plain
tf.data on TensorFlow. A process for each input and backend answers one cause after the other, on 600 images of 224 x 224
pixels; `bench` is asked for the causes that it can see. An answer is right if its first cause is the staged one and it advises
nothing that is done already. --burners runs programs beside everything that take a processor each.
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
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import harness
import loader_data

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

BATCH = 32
IMAGES = 600
LATENCY_MS = 300
SLEEP_S = 0.04
STEPS = {"disk": 25, "step": 25, "decode": 150, "processors": 150}
"""By cause the steps of a training, some seconds each; 40 of the others."""
TFPREP = {
    "filling": "filling", "decode": "decode", "disk": "read", "python map": "python map", "map": "map", "memory": "memory",
    "step": "step", "callback": "python", "processors": "processors", "retracing": "retracing", "remote": "fetch",
    "validation": "validation",
}  # fmt: skip
"""By cause the kind that `InputMonitor` names for tfprep's loader."""
PLAIN = {**TFPREP, "decode": "map", "disk": "stage"}
"""With plain tf.data: a map decodes, and a generator reads. A memory budget and a store are the loader's own."""
BENCH = {
    "filling": "copy or hand-over", "decode": "decode", "disk": "read", "memory": "memory", "step": "step",
    "processors": "processors",
}  # fmt: skip
"""By cause what `bench` names as its limit; of the step the limit of the comparison with it. With a full cache, copying rows or
handing them to TensorFlow takes longer, which depends on the machine."""
NOT_STAGED = {
    ("plain", "tensorflow"): {"memory", "remote"},
    ("tfprep", "jax"): {"python map", "map"},
    ("tfprep", "tensorflow"): set(),
}
FOLLOWED = ("num_parallel_calls", "Raise threads")
"""Advice that every pipeline here follows already; a loader of one thread is the exception."""


def main() -> None:
    options = harness.arguments(
        __doc__ or "", cause=(list(TFPREP), "Causes to stage"), times=(1, "How often each cause is staged"),
        burners=(0, "Programs that take a processor each beside everything"), jax=(sys.executable, "Interpreter with JAX"),
        run=([], argparse.SUPPRESS),
    )  # fmt: skip
    if options.run:
        tool, source, place = options.run
        ask = partial(monitored, source) if tool == "monitor" else benched
        harness.serve(lambda cause: json.dumps(ask(cause, Path(place))))
        return
    answers: list[dict[str, Any]] = []
    with loader_data.datasets(IMAGES) as folder, burning(options.burners):
        for tool, source, backend, causes in trainings(options):
            given = answered(options, tool, source, backend, causes * options.times, folder)
            answers += given
            wrong = ", ".join(f"{one['cause']} as {one['kind']}" for one in given if not one["right"])
            print(f"{tool}, {source}, {backend}: {len(given)} causes; wrong: {wrong or 'none'}", flush=True)
    print(f"{sum(answer['right'] for answer in answers)} of {len(answers)} right")
    harness.finish(options, {"times": options.times, "burners": options.burners, "answers": answers})


def trainings(options: argparse.Namespace) -> Iterator[tuple[str, str, str, list[str]]]:
    """Tool, input, backend and causes of each training process."""
    for (source, backend), not_staged in NOT_STAGED.items():
        packages = installed(options.jax if backend == "jax" else sys.executable)
        if backend not in packages:
            print(f"{source} on {backend}: left out, {backend} is not installed")
            continue
        left_out = not_staged | (set() if "obstore" in packages else {"remote"})
        yield "monitor", source, backend, [cause for cause in options.cause if cause not in left_out]
    yield "bench", "tfprep", "tensorflow", [cause for cause in options.cause if cause in BENCH]


def installed(interpreter: str) -> set[str]:
    code = "import importlib.util as u; print(*[m for m in ('jax', 'tensorflow', 'obstore') if u.find_spec(m)])"
    return set(subprocess.run([interpreter, "-c", code], capture_output=True, text=True, check=True).stdout.split())


def answered(
    options: argparse.Namespace, tool: str, source: str, backend: str, causes: list[str], folder: Path
) -> list[dict[str, Any]]:
    """What a tool names as the first of each cause, in which words, and whether that is right."""
    command = [options.jax if backend == "jax" else sys.executable, __file__, "--run", tool, source, folder]
    expected = BENCH if tool == "bench" else PLAIN if source == "plain" else TFPREP
    answers, process = [], None
    with harness.store(folder, LATENCY_MS) as (_, store):
        for cause in causes:
            for path in folder.rglob("*.tfrecord-*"):
                path.read_bytes()  # into the page cache, so that no disk but the staged one is slow
            started = time.perf_counter()
            with burning(8 * (os.cpu_count() or 1) if cause == "processors" else 0):
                try:
                    process = process or harness.Process(command, {"KERAS_BACKEND": backend, **store})
                    process.tell(cause)
                    kind, text = json.loads(process.answer())
                except (OSError, RuntimeError) as error:
                    kind, text, process = "failed", str(error), None
            repeated = [
                words for words in FOLLOWED if words in text and (words != "Raise threads" or cause != "decode")
            ]
            right = kind in expected[cause].split(" or ") and not repeated
            answers.append({
                "tool": tool, "input": source, "backend": backend, "cause": cause, "kind": kind, "text": text,
                "already_done": repeated, "seconds": round(time.perf_counter() - started, 1), "right": right,
            })  # fmt: skip
            print("right" if right else "WRONG", json.dumps(answers[-1]), flush=True)
    if process is not None:
        process.close()
    return answers


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
        "inputs": "image", "targets": "label", "training": True,
        **({} if cause == "filling" else {"cache": False}),
        **{"decode": {"threads": 1}, "memory": {"memory_budget": 5 * batch_bytes, "threads": 8}, "remote": {"threads": 2}}.get(
            cause, {}
        ),
    }  # fmt: skip


def form_of(cause: str) -> str:
    return "jpeg" if cause in ("decode", "processors", "filling") else "raw"


def dataset_of(cause: str, folder: Path) -> Any:
    return f"s3://bench/{form_of(cause)}" if cause == "remote" else folder / form_of(cause)


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


def mapped(dataset: Any, cause: str) -> Any:
    """The dataset with the map of a cause."""
    import tensorflow as tf

    if cause == "python map":
        return dataset.map(lambda images, labels: (images, asleep(labels)), num_parallel_calls=1).prefetch(2)
    if cause == "map":
        busy_map = dataset.map(lambda images, labels: (busy(images), labels), num_parallel_calls=tf.data.AUTOTUNE)
        return busy_map.prefetch(2)
    return dataset


def input_of(source: str, cause: str, folder: Path, backend: str) -> Any:
    import tfprep

    if source == "plain":
        return plain(cause, folder)
    data = tfprep.open(dataset_of(cause, folder))
    loader_kind = data.keras_loader if backend == "jax" else data.loader
    loader = loader_kind("train", BATCH, **loader_options(cause))
    train = loader if cause == "filling" else loader.repeat()
    return train if backend == "jax" else mapped(train, cause)


def plain(cause: str, folder: Path) -> Any:
    """A pipeline of tf.data as its guide writes it: parallel maps, and a prefetch at its end."""
    import tensorflow as tf

    import tfprep

    form = form_of(cause)
    files = sorted(str(path) for path in tfprep.open(folder / form).path.glob("*.tfrecord-*") if path.suffix != ".idx")
    features = {"image": tf.io.FixedLenFeature([], tf.string), "label": tf.io.FixedLenFeature([], tf.int64)}

    def parsed(record: Any) -> Any:
        example = tf.io.parse_single_example(record, features)
        if form == "jpeg":
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
    return mapped(dataset.batch(BATCH, drop_remainder=True), cause).prefetch(2)


# --- who is asked -----------------------------------------------------------------------------------------------------------


def monitored(source: str, cause: str, folder: Path) -> tuple[str, str]:
    """The kind of the first cause that `InputMonitor` names, and its words."""
    import keras

    import tfprep

    backend = keras.backend.backend()
    feed = input_of(source, cause, folder, backend)
    validation = input_of(source, cause, folder, backend) if cause == "validation" else None
    with tempfile.TemporaryDirectory() as logs, slow_reads(cause):
        monitor = tfprep.train.InputMonitor(logs, every_s=1)
        if cause == "retracing":
            retraced(monitor, feed, backend)
        else:
            fitted(monitor, feed, validation, cause)
        total = monitor.total()
    return (total.cause if total else "none"), monitor.summary


def fitted(monitor: Any, feed: Any, validation: Any, cause: str) -> None:
    import keras

    class Sleeping(keras.callbacks.Callback):
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            time.sleep(SLEEP_S)

    heavy, jax = cause in ("step", "memory"), keras.backend.backend() == "jax"

    class Strided(keras.layers.Layer):
        def call(self, images: Any) -> Any:
            return keras.ops.cast(images[:, ::8, ::8] if heavy else images[:, ::16, ::16], "float32")

    wide = 16 if jax and cause == "memory" else 64  # JAX computes them five times as long
    convolutions = [keras.layers.Conv2D(wide, 5, activation="relu") for _ in range(2)] if heavy else []
    model = keras.Sequential([Strided(), *convolutions, keras.layers.Flatten(), keras.layers.Dense(1)])
    model.compile("sgd", "mse", jit_compile=jax)
    options: dict[str, Any] = {"steps_per_epoch": STEPS.get(cause, 40)}
    if cause == "filling":
        options = {}  # an epoch from the beginning to the end
    elif cause == "validation":
        options = {"steps_per_epoch": 10, "validation_data": validation, "validation_steps": 60, "epochs": 3}
    callbacks = [monitor, *([Sleeping()] if cause == "callback" else [])]
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
        options = BenchOptions(batch_size=BATCH, rounds=1, seconds=0.8, loader=loader)
        result = bench(dataset_of(cause, folder), options, step_s=0.2 if cause == "step" else None)
    found = result.against or result.limit
    return found.cause, found.limit


if __name__ == "__main__":
    main()
