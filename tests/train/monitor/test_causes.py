"""Causes of slow training: each is named with its evidence, and with advice that is not followed yet; and stages of pipelines."""

import json
import time
from dataclasses import replace

import numpy as np
import pytest

import tfprep
from tests.waiting import wait_until
from tfprep import train
from tfprep.limits import CpuTimes
from tfprep.load.threads import forget_loader, note_loader

keras = pytest.importorskip("keras")
from tfprep.train.monitor import samples  # noqa: E402
from tfprep.train.monitor.causes import verdict_of  # noqa: E402
from tfprep.train.monitor.waits import Waits  # noqa: E402

READER = {"wait_s": 9.0, "read_s": 1.0, "decode_s": 1.0, "idle_s": 1.0, "records_read": 500.0, "records_cached": 0.0}
CACHE = {"cache_records": 300.0, "cache_capacity": 600.0, "cache_of": 600.0}


def _sample(seconds, readers, stages=(), pipeline=(), waited_s=0.0, steps=100, cpu=(0.0, 0.0, 0.0), **numbers):
    """Totals after some seconds; `cpu` is what this program took, what its threads waited for, and what others took."""
    numbers["stages"] = tuple(_stage(name, busy_s) for name, busy_s in stages)
    numbers["pipeline"] = samples.Pipeline(*pipeline)
    waits = Waits(seconds, steps, waited_s, 8 * steps, 0.0, np.full(steps, waited_s / max(steps, 1)))
    return samples.Sample(1000.0 + seconds, 0, waits, CpuTimes(*cpu), 2, readers=readers, **numbers)


def _verdict(spent):
    return verdict_of(spent.since(_sample(0.0, {}, steps=0)), 0.1)


def _stage(name, busy_s):
    return samples.Stage(name, 0, 0, 1000, busy_s, 0, 1)


def _reader(**changes):
    return {**READER, "batches_ready": 0.0, "prefetch": 8.0, "threads": 2.0, **changes}


MEMORY = {"decode_s": 4.0, "idle_s": 15.0, "prefetch": 1.0}
"""Two threads of the reader that wait for room for most of ten seconds."""
READY = _reader(wait_s=0.5, batches_ready=16.0)  # with those of the next epoch, more than the reader prepares for one
"""The reader's consumer waited for 0.5 s while the step waited for 10 s: the reader's batches were ready."""
SLOW_MAP = (("1/Prefetch", 0.1), ("2/Map", 9.0))
CASES = [
    # kind, sample, a part of the text, a part of the advice, and advice that is already followed or not supported
    ("hand-over", {"readers": READY}, "limits: 16 batches are ready in the reader", "larger batches", "`.map`"),
    ("map", {"readers": READY, "pipeline": (("Map", "Loader"),)}, "ready in the reader", "num_parallel_calls", "Python"),
    ("map", {"readers": READY, "pipeline": (("Prefetch", "ParallelMap"),)}, "", "into the recipe", "num_parallel_calls"),
    ("python map", {"readers": READY, "pipeline": (("Map",), ("Map",))}, "calls Python", "TensorFlow ops", "num_parallel"),
    ("read", {"readers": _reader(read_s=18.0)}, "reading limits", "faster disk", "memory_budget"),
    ("read", {"readers": _reader(read_s=18.0, **{**CACHE, "cache_of": 900.0})}, "", "raise memory_budget", "cache="),
    ("fetch", {"readers": _reader(read_s=18.0, requests=40.0)}, "40 requests", "local disk", "faster disk"),
    ("fetch", {"readers": _reader(decode_s=4.0, idle_s=18.0, requests=9.0)}, "s waiting", "local disk", "codec"),
    ("decode", {"readers": _reader(decode_s=18.0)}, "18.0 s decoding on 2 threads", "tfprep bench --forms", "Raise threads"),
    ("decode", {"readers": _reader(decode_s=18.0, ops=1.0)}, "decoding with ops on 2", "to the recipe", "--forms"),
    ("decode", {"readers": _reader(decode_s=9.0, threads=1.0)}, "on 1 thread", "Raise threads: 1 of 2", "--forms"),
    ("decode", {"readers": _reader(decode_s=18.0, **{**CACHE, "cache_of": 900.0})}, "", "the cache has room for 67%", "codec"),
    ("copy", {"readers": _reader(records_read=0.0, records_cached=500.0)}, "from its cache", "fields", "uint8"),
    ("filling", {"readers": _reader(idle_s=18.0, prefetch=2.0, **CACHE)}, "300 of 600 images", "", "memory_budget"),
    ("memory", {"readers": _reader(idle_s=18.0, prefetch=1.0)}, "room for 1 batches", "memory_budget (or prefetch)", "disk"),
    # Threads of this process waited for a processor for 14 s, while other programs used 1.5 of 2 processors.
    (
        "processors", {"readers": _reader(decode_s=18.0), "cpu": (5.0, 14.0, 15.0)},
        "they take 1.5 of 2 processors (75%), and this one gets 0.5, so that the input lacks a processor for up to 70%",
        "End or move", "memory_budget",
    ),
    ("map", {"readers": {}, "stages": SLOW_MAP}, "its stage 2/Map (9.00 ms an element)", "tfprep build", "prefetch"),
    ("map", {"readers": {}, "stages": SLOW_MAP, "pipeline": (("Map",),)}, "2/Map", "num_parallel_calls", "ops"),
    (
        "map", {"readers": {}, "stages": SLOW_MAP, "pipeline": (("Prefetch", "ParallelMap"),)},
        "2/Map", "tfprep build", "num_parallel",
    ),
    (
        "python map",
        {"readers": {}, "stages": SLOW_MAP, "pipeline": (("ParallelMap",), ("ParallelMap",)), "cpu": (9.0, 0.0, 0.0)},
        "calls Python for each element", "with TensorFlow ops", "num_parallel",
    ),
    (
        "filling", {"readers": {}, "stages": (("1/MemoryCacheImpl", 0.1), ("2/Map", 9.0))},
        "the first epoch fills `.cache()`", "", "num_parallel",
    ),
    ("unknown", {"readers": {}, "pipeline": (("Map",),)}, "autotune is off", "enabled on", "prefetch"),
    ("unknown", {"readers": {}}, "an iterator of Python", "", "autotune"),
    # The stage that worked is gone, as that of a generator is at the end of an epoch.
    ("unknown", {"readers": {}, "stages": (("2/FlatMap", 0.1), ("3/Generator", 0.0))}, "not noted its work", "", "autotune"),
]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=lambda case: case[0])
def test_each_cause_of_a_slow_input_is_named(tf, case):
    kind, options, text, advice, followed = case
    cause = _verdict(_sample(10.0, waited_s=10.0, **options)).causes[0]
    assert (cause.kind, text in cause.text, advice in cause.advice) == (kind, True, True), cause
    assert followed not in cause.advice, cause


@pytest.mark.parametrize(
    ("cpu", "reader", "kinds"),
    [
        # Own threads that wait for each other are not taken for other programs.
        ((19.0, 8.0, 1.0), {}, ["decode"]),
        # Two programs that take as much as this one: both are named, the staged one first.
        ((10.0, 8.0, 10.0), {}, ["decode", "processors"]),
        # One thread beside two programs gets 0.67 of a processor: without them it would be half as fast again, and limit.
        ((6.7, 3.3, 13.3), {"decode_s": 9.0, "threads": 1.0}, ["decode", "processors"]),
        ((4.0, 15.0, 16.0), {}, ["processors", "decode"]),
        # The step's own threads wait for processors, but those of the loader wait for room.
        ((6.0, 20.0, 14.0), MEMORY, ["memory"]),
        # Threads that mostly sleep do not lack a processor: together they need only 0.7 of one.
        ((1.0, 6.0, 19.0), {}, ["decode"]),
    ],
)
def test_other_programs_are_named_beside_what_they_slow_down(tf, cpu, reader, kinds):
    verdict = _verdict(_sample(10.0, _reader(**{"decode_s": 18.0, **reader}), waited_s=10.0, cpu=cpu))
    assert [cause.kind for cause in verdict.causes] == kinds
    assert verdict.limit.count(". As well, ") == len(kinds) - 1


@pytest.mark.parametrize(
    ("times", "kinds"),
    [
        ({}, ["step"]),
        ({"between_s": 9.0}, ["python"]),
        ({"between_s": 1.0}, ["step"]),
        ({"steps": 100, "traces": 100}, ["retracing"]),
        ({"steps": 100, "traces": 1}, ["step"]),
        ({"steps": 100, "traces": 30, "compile_s": 8.0}, ["retracing"]),
        ({"steps": 100, "traces": 30, "compile_s": 0.2}, ["step"]),
        ({"steps": 100, "traces": 3, "compile_s": 8.0}, ["step"]),
        ({"validation_s": 10.0}, ["validation"]),
        ({"validation_s": 5.0, "between_s": 8.0}, ["python", "validation"]),
    ],
)
def test_what_limits_where_the_step_hardly_waits(tf, times, kinds):
    causes = _verdict(_sample(10.0, {}, waited_s=0.1, **times)).causes
    assert [cause.kind for cause in causes] == kinds
    assert all("a faster input would save at most 1%" in cause.text for cause in causes)


def test_the_ops_of_a_loader_are_named_beside_its_decoding(tf, photos, tmp_path):
    for ops, expected in (([], 0.0), ([tfprep.augment.Resize(64, 64)], 1.0)):
        loader = tfprep.open(photos.path).numpy_loader("train", 8, seed=0, geometry=ops)
        with train.InputMonitor(tmp_path, every_s=60) as monitor:
            for _ in monitor.watch(loader):
                pass
        assert monitor.samples[-1].readers["ops"] == expected


def test_a_slow_map_after_the_loader(tf, photos, tmp_path):
    def slow(label):
        time.sleep(0.05)
        return label

    def mapped(image, label):
        done = tf.ensure_shape(tf.numpy_function(slow, [label], label.dtype), label.shape)
        return tf.cast(image, tf.float32), done

    loader = tfprep.open(photos.path).loader("train", batch_size=8, seed=0, inputs="image", targets="label")
    model = keras.Sequential([keras.layers.Flatten(), keras.layers.Dense(3)])
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    monitor = train.InputMonitor(tmp_path, every_s=0.3)
    data = loader.repeat().map(mapped)
    model.fit(data, steps_per_epoch=20, verbose=0, callbacks=[monitor], shuffle=False)
    assert "what comes after the loader limits" in monitor.summary
    assert "calls Python for each element" in monitor.summary
    lines = [json.loads(line) for line in (tmp_path / "input.jsonl").read_text().splitlines()]
    last = [line for line in lines if "readers" in line][-1]
    assert last["readers"]["batches"] >= 20
    assert last["stages"] == [], "the loader's own options turn autotune off"
    assert "python map" in {line["warning"]["cause"] for line in lines if "warning" in line}


def test_the_loader_of_a_validation_is_not_that_of_a_custom_loop(tf, photos, tmp_path):
    val = tfprep.open(photos.path).numpy_loader("val", 8)
    with train.InputMonitor(tmp_path, every_s=60) as monitor:
        for _ in monitor.watch(iter([1, 2, 3])):
            note_loader(val)  # as a Keras loader does in `evaluate`
        forget_loader()
    assert monitor.samples[-1].readers == {}


def test_only_the_functions_of_the_user_count_as_python(tf, photos):
    """The loader's own hand-over calls Python too."""
    train = tfprep.open(photos.path).loader("train", batch_size=8, seed=0, inputs="image", targets="label")
    ops = train.map(lambda image, label: (tf.cast(image, tf.float32), label))
    python = ops.map(lambda image, label: (image, tf.numpy_function(abs, [label], label.dtype)))
    assert samples.pipeline_of(iter(ops)) == samples.Pipeline(("Map", "TensorFlowLoader"), ())
    assert samples.pipeline_of(iter(python)).python == ("Map",)


def test_a_step_that_fit_traces_again_and_again(tf, tmp_path):
    """Batches of another width each time; the model takes their mean."""
    model = tf.keras.Sequential([tf.keras.layers.GlobalAveragePooling1D(), tf.keras.layers.Dense(4)])
    model.compile("sgd", "mse")
    monitor = train.InputMonitor(tmp_path, every_s=60)
    for width in range(3, 7):
        data = tf.data.Dataset.from_tensors((tf.ones([4, width, 8]), tf.ones([4, 4]))).repeat(3)
        model.fit(data, verbose=0, shuffle=False, callbacks=[monitor])
    assert monitor.samples[-1].traces >= 2, "Keras relaxes the shape at the second width"


def test_python_between_the_steps(tf, dense, slow_step, tmp_path):
    monitor = train.InputMonitor(tmp_path, every_s=60)
    data = tf.data.Dataset.from_tensors((tf.ones([4, 8]), tf.ones([4, 4]))).repeat(12).prefetch(4)
    dense.fit(data, verbose=0, shuffle=False, callbacks=[slow_step(0.05), monitor])
    assert "Python between the steps takes " in monitor.summary
    assert "steps_per_execution" in monitor.summary


@pytest.mark.parametrize(
    ("waited_s", "between_s", "kinds"),
    [(0.5, 0.1, ["step"]), (3.0, 1.0, ["decode"]), (3.0, 5.0, ["python", "decode"]), (3.0, 2.6, ["decode"])],
)
def test_the_larger_share_of_the_time_comes_first(tf, waited_s, between_s, kinds):
    for cpu, more in (((0.0, 0.0, 0.0), []), ((4.0, 15.0, 16.0), ["processors"])):
        reader = _reader(decode_s=18.0, wait_s=waited_s)
        causes = _verdict(_sample(10.0, reader, waited_s=waited_s, between_s=between_s, cpu=cpu)).causes
        assert sorted(cause.kind for cause in causes) == sorted([*kinds, *more])
        assert more or [cause.kind for cause in causes] == kinds


def test_stages_that_repeat_makes_again_are_summed_up_over_the_samples(monkeypatch):
    """Three samples: `repeat` makes the map again before the second, and in the third it is gone."""

    def stage(name, produced, busy_s):
        return replace(_stage(name, busy_s), elements=2, produced=produced)

    looks = [
        (),
        (stage("1/BatchV2", 100, 0.2), stage("3/Map", 1000, 4.0)),
        (stage("1/BatchV2", 101, 0.3), stage("3/Map", 10, 0.1)),
        (stage("1/BatchV2", 200, 0.4),),
    ]
    monkeypatch.setattr(samples, "stages", lambda look: looks[look])
    totals = samples.StageTotals()
    *_, total = (totals.look(number) for number in range(4))
    assert [(one.name, one.produced, round(one.busy_s, 9), one.elements) for one in total] == [
        ("1/BatchV2", 200, 0.4, 2),
        ("3/Map", 1010, 4.1, 0),
    ]


def test_the_elements_and_bytes_of_each_buffer(tf):
    iterator = iter(tf.data.Dataset.range(1000).shuffle(100).batch(4).prefetch(2))
    next(iterator)

    def full():
        now = {stage.name: stage for stage in samples.stages(iterator)}
        return now if now["1/Prefetch"].elements == 2 else None

    now = wait_until(full)
    assert list(now) == ["1/Prefetch", "2/BatchV2", "3/Shuffle", "4/Range"]
    # The buffer refills before it passes an element on; after that, it has room for one.
    assert (now["3/Shuffle"].elements, now["3/Shuffle"].bytes) == (99, 99 * 8)
    assert now["1/Prefetch"].bytes == 2 * 4 * 8
    options = tf.data.Options()
    options.autotune.enabled = False
    assert samples.stages(iter(tf.data.Dataset.range(3).with_options(options))) == ()


def test_the_slowest_stage_is_the_one_that_spent_the_most_time(pairs):
    began = time.perf_counter()
    iterator = iter(pairs(40, lambda number: 0.01).shuffle(4).batch(4).prefetch(1))
    for _ in range(5):
        next(iterator)
    now = samples.slowest(samples.stages(iterator))
    assert now is not None
    assert now.kind == "Map"
    assert 0.008 * now.produced < now.busy_s < time.perf_counter() - began
