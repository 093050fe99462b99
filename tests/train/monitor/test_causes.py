"""Seven causes of slow training, each produced on purpose: each is named with its own advice."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

IDLE_MACHINE = {"rss": 0, "available": 0, "swap_used": 0, "swapped_in": 0, "swapped_out": 0, "cpus": 2}
READER = {"wait_s": 9.0, "read_s": 1.0, "decode_s": 1.0, "idle_s": 1.0, "records_read": 500.0, "records_cached": 0.0}


def _sample(seconds: float, readers: dict[str, float], stages: Any = (), **machine: float) -> Any:
    from tfprep.train.monitor.samples import MachineState, Sample

    numbers: Any = {**IDLE_MACHINE, **machine}
    return Sample(1000.0 + seconds, 0, None, MachineState(**numbers), stages, readers)


def _stage(name: str, busy_s: float) -> Any:
    from tfprep.train.monitor.stages import Stage

    return Stage(name, 0, 0, 1000, busy_s, 0, 1, 1.0)


def _reader(**changes: float) -> dict[str, float]:
    return {**READER, "batches_ready": 0.0, "prefetch": 8.0, "threads": 2.0, **changes}


CASES: dict[str, tuple[dict[str, Any], str]] = {
    # The reader's consumer waited for 0.5 s while the step waited for 10 s: the reader's batches were ready.
    "behind the loader": (
        {"readers": _reader(wait_s=0.5, batches_ready=8.0)},
        "8 of 8 batches are ready in the reader",
    ),
    "read": ({"readers": _reader(read_s=18.0)}, "reading limits"),
    "decode": ({"readers": _reader(decode_s=18.0)}, "decoding limits"),
    "copy": ({"readers": _reader(decode_s=18.0, records_read=0.0, records_cached=500.0)}, "from its cache"),
    "memory": ({"readers": _reader(idle_s=18.0, prefetch=1.0)}, "room for 1 batches in advance"),
    # Threads of this process waited for a processor for 8 s, while other programs used 1.5 of 2 processors.
    "processors": (
        {"readers": _reader(decode_s=18.0), "cpu_wait_s": 8.0, "cpu_others_s": 15.0, "cpu_s": 5.0},
        "they take 1.5 of 2 processors, and this one gets 0.5",
    ),
    "stage": ({"readers": {}, "stages": (_stage, "2/Map", 9.0)}, "most of all its stage 2/Map (9.00 ms an element)"),
    "unknown": ({"readers": {}}, "autotune is off"),
}


@pytest.mark.parametrize("kind", CASES)
def test_each_cause_of_a_slow_input_is_named(tf: Any, kind: str) -> None:
    from tfprep.train.monitor.causes import input_cause

    options, text = dict(CASES[kind][0]), CASES[kind][1]
    if "stages" in options:
        make, name, busy_s = options["stages"]
        options["stages"] = (make(name, busy_s), make("1/Prefetch", 0.1))
    before = _sample(0.0, dict.fromkeys(options["readers"], 0.0))
    cause = input_cause(_sample(10.0, **options), before, waited_s=10.0)
    assert (cause.kind, text in cause.text) == (kind, True), cause


def test_own_threads_that_wait_for_each_other_are_not_taken_for_other_programs(tf: Any) -> None:
    from tfprep.train.monitor.causes import input_cause

    now = _sample(10.0, _reader(decode_s=18.0), cpu_wait_s=8.0, cpu_others_s=1.0, cpu_s=19.0)
    assert input_cause(now, _sample(0.0, {}), waited_s=10.0).kind == "decode"


def test_threads_that_mostly_sleep_do_not_lack_a_processor(tf: Any) -> None:
    """On a busy machine each thread waits when it wakes, but together they need only 0.7 of a processor."""
    from tfprep.train.monitor.causes import input_cause

    now = _sample(10.0, _reader(wait_s=0.5, batches_ready=8.0), cpu_wait_s=6.0, cpu_others_s=19.0, cpu_s=1.0)
    assert input_cause(now, _sample(0.0, {}), waited_s=10.0).kind == "behind the loader"


def test_each_cause_has_its_own_advice(tf: Any) -> None:
    from tfprep.train.monitor.causes import input_cause, step_cause

    causes = []
    for options, _ in CASES.values():
        changed = {**options, "stages": (_stage("2/Map", 9.0),) if "stages" in options else ()}
        before = _sample(0.0, dict.fromkeys(changed["readers"], 0.0))
        causes.append(input_cause(_sample(10.0, **changed), before, waited_s=10.0))
    causes += [step_cause(0.01, 0.9), step_cause(0.01, 0.0)]
    assert len({cause.kind for cause in causes}) == len({cause.advice for cause in causes}) == len(CASES) + 2


SCRIPT = """
import os, sys, time
import tensorflow as tf, keras, tfprep
from tfprep.train import InputMonitor
train = tfprep.open(sys.argv[1]).loader("train", batch_size=8, seed=0, inputs="image", targets="label")

def slow(number):
    time.sleep(0.05)
    return number

def behind(image, label):
    done = tf.ensure_shape(tf.numpy_function(slow, [label], label.dtype), label.shape)
    return tf.cast(image, tf.float32), done

model = keras.Sequential([keras.layers.Flatten(), keras.layers.Dense(2)])
model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
reader = train if os.environ["TFPREP_PUBLIC_TENSORFLOW"] == "1" else None
monitor = InputMonitor(sys.argv[2], every_s=0.3, reader=reader)
model.fit(train.repeat().map(behind), steps_per_epoch=30, verbose=2, callbacks=[monitor], shuffle=False)
"""


@pytest.mark.parametrize("public", ["0", "1"], ids=["private", "public"])
def test_a_slow_map_behind_the_loader(built: Path, tmp_path: Path, public: str) -> None:
    """Runs in a new process whose TensorFlow log is read: TensorFlow logs each request for a model while autotuning is off.
    Without TensorFlow's private names the loader is passed as `reader`, and one request per iterator remains."""
    command = [sys.executable, "-c", SCRIPT, str(built), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, check=True, env=_environment(public))
    assert done.stderr.count("analytical model") <= int(public)
    assert "InputMonitor: what comes after the loader limits: " in done.stdout
    lines = [json.loads(line) for line in (tmp_path / "input.jsonl").read_text().splitlines()]
    samples = [line for line in lines if "readers" in line]
    assert samples[-1]["readers"]["batches"] >= 30
    assert [stage["name"] for stage in samples[-1]["stages"]] == ["1/Reader"]
    assert "behind the loader" in {line["warning"]["cause"] for line in lines if "warning" in line}


def _environment(public: str) -> dict[str, str]:
    return {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "0", "TFPREP_PUBLIC_TENSORFLOW": public}


def test_python_between_the_steps(tf: Any, dense: Any, tmp_path: Path) -> None:
    import time

    import keras

    from tfprep.train import InputMonitor

    class SlowPython(keras.callbacks.Callback):  # type: ignore[misc]
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            time.sleep(0.05)

    monitor = InputMonitor(tmp_path, every_s=60)
    data = tf.data.Dataset.from_tensors((tf.ones([4, 8]), tf.ones([4, 4]))).repeat(12).prefetch(4)
    dense.fit(data, verbose=0, shuffle=False, callbacks=[SlowPython(), monitor])
    assert "Python between the steps takes " in monitor.summary
    assert "steps_per_execution" in monitor.summary


def test_the_watchdog_says_that_batches_are_ready_behind_a_stuck_map(tf: Any, built: Path) -> None:
    import threading

    import tfprep
    from tfprep.errors import StalledPipelineError
    from tfprep.train import Watchdog

    go_on = threading.Event()

    def wait(label: Any) -> Any:
        go_on.wait(60)
        return label

    train = tfprep.open(built).loader("train", batch_size=8, seed=0, inputs="image", targets="label")
    stuck = train.map(lambda image, label: tf.numpy_function(wait, [label], label.dtype))
    try:
        with pytest.raises(
            StalledPipelineError, match=r"stopped behind the loader: \d+ batches are ready in its reader"
        ):
            next(Watchdog(1.0).watch(stuck))
    finally:
        go_on.set()
