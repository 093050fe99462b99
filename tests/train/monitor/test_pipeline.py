"""The elements of each buffer of a pipeline, and the slowest stage."""

import time


def test_the_elements_and_bytes_of_each_buffer(tf):
    from tfprep.train.monitor.samples import stages

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
    from tfprep.train.monitor.samples import stages

    options = tf.data.Options()
    options.autotune.enabled = False
    assert stages(iter(tf.data.Dataset.range(3).with_options(options))) == ()


def test_the_slowest_stage_is_the_one_that_spent_the_most_time(pairs):
    from tfprep.train.monitor.samples import slowest, stages

    iterator = iter(pairs(40, lambda number: 0.01).shuffle(4).batch(4).prefetch(1))
    for _ in range(5):
        next(iterator)
    now = slowest(stages(iterator))
    assert now is not None
    assert now.kind == "Map"
    assert 8 < 1e3 * now.busy_s / now.produced < 40
