"""The elements of each buffer of a pipeline, and the stage that stopped."""

import threading
import time

import numpy as np
import pytest


class Stuck:
    """Element 23 stays in the stage that makes it until `look` has read the stages."""

    def __init__(self):
        self.inside, self.go_on = threading.Event(), threading.Event()

    def at_23(self, number):
        if (number == 23).any():
            self.inside.set()
            self.go_on.wait(30)
        return number

    def look(self, dataset, steps):
        from tfprep.train.monitor.pipeline import stages

        iterator = iter(dataset)
        consumer = threading.Thread(target=lambda: [next(iterator) for _ in range(steps)], daemon=True)
        consumer.start()
        assert self.inside.wait(30)
        time.sleep(0.2)  # The stages after it pass on what they have.
        now = stages(iterator)
        self.go_on.set()
        consumer.join()
        return now


def test_the_elements_and_bytes_of_each_buffer(tf):
    from tfprep.train.monitor.pipeline import stages

    iterator = iter(tf.data.Dataset.range(1000).shuffle(100).batch(4).prefetch(2))
    next(iterator)
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        now = {stage.kind: stage for stage in stages(iterator)}
        if now["Prefetch"].elements == 2:
            break
        time.sleep(0.02)
    # The buffer refills before it passes an element on; after that, it has room for one.
    assert now["Shuffle"].elements == 99
    assert now["Shuffle"].bytes == 99 * 8
    assert now["Prefetch"].elements == 2
    assert now["Prefetch"].bytes == 2 * 4 * 8
    assert [stage.name for stage in stages(iterator)] == ["1/Prefetch", "2/BatchV2", "3/Shuffle", "4/Range"]


def test_without_autotune_there_are_no_stages(tf):
    from tfprep.train.monitor.pipeline import stages

    options = tf.data.Options()
    options.autotune.enabled = False
    assert stages(iter(tf.data.Dataset.range(3).with_options(options))) == ()


CASES = [
    "map_in_a_fused_batch", "map_before_a_fused_batch", "map_in_a_fused_batch_behind_a_generator",
    "map_in_a_fused_batch_behind_a_map", "map", "parallel_map", "map_after_batch", "generator", "filter_behind_a_map",
]  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_the_stage_that_stopped_is_named(tf, pairs, case):
    from tfprep.train.monitor.pipeline import stopped

    stuck = Stuck()

    def late(number):
        return tf.ensure_shape(tf.numpy_function(stuck.at_23, [number], tf.int64), number.shape)

    def generate():
        for number in range(100):
            yield int(stuck.at_23(np.int64(number)))

    numbers = tf.data.Dataset.range(100)
    scalar = tf.TensorSpec([], tf.int64)
    generated = tf.data.Dataset.from_generator(lambda: iter(range(1, 100)), output_signature=scalar)
    datasets = {
        "map": (numbers.map(late).shuffle(2).batch(4).prefetch(2), "Map"),
        "parallel_map": (numbers.map(late, num_parallel_calls=2).shuffle(4).batch(4), "ParallelMapV2"),
        "map_after_batch": (numbers.batch(4).map(late).prefetch(1), "Map"),
        "generator": (
            tf.data.Dataset.from_generator(generate, output_signature=scalar).batch(4).prefetch(1),
            "Generator",
        ),
        "map_in_a_fused_batch": (numbers.map(late).batch(4).prefetch(1), "MapAndBatch"),
        "map_before_a_fused_batch": (
            numbers.map(late).map(lambda number: number + 1, num_parallel_calls=2).batch(4),
            "Map",
        ),
        # Counts do not tell a map that works from one that waits for its source.
        "map_in_a_fused_batch_behind_a_generator": (generated.map(late).batch(4).prefetch(1), "MapAndBatch Generator"),
        "map_in_a_fused_batch_behind_a_map": (
            generated.map(lambda number: number + 1, num_parallel_calls=2).map(late).batch(4).prefetch(1),
            "MapAndBatch",
        ),
        "filter_behind_a_map": (numbers.map(late).filter(lambda number: number % 2 == 0).batch(4), "Map"),
    }
    dataset, expected = datasets[case]
    now = stuck.look(dataset, 8 if case != "filter_behind_a_map" else 5)
    where = stopped(now)
    assert " ".join(stage.kind for stage in where) == expected, [
        (stage.name, stage.produced, stage.elements) for stage in now
    ]


def test_the_slowest_stage_is_the_one_that_spent_the_most_time(pairs):
    from tfprep.train.monitor.pipeline import slowest, stages

    iterator = iter(pairs(40, lambda number: 0.01).shuffle(4).batch(4).prefetch(1))
    for _ in range(5):
        next(iterator)
    now = slowest(stages(iterator))
    assert now is not None
    assert now.kind == "Map"
    assert 8 < 1e3 * now.busy_s / now.produced < 40
