"""The relay passes on exactly the elements of its source, and its clock reports how long each element took."""

import gc
import threading
import time

import numpy as np
import pytest

CANCELLABLE = [False, True]


@pytest.fixture
def relayed(tf):
    """`relayed(source, **options)` is a `Relay` of an iterator over the source."""
    from tfprep.train.monitor.relay import Relay

    return lambda source, **options: Relay(iter(source), **options)


def quiet(dataset):
    """The dataset without autotune, which may wait for a minute when an iterator is dropped."""
    import tensorflow as tf

    options = tf.data.Options()
    options.autotune.enabled = False
    return dataset.with_options(options)


@pytest.mark.parametrize("cancellable", CANCELLABLE)
def test_the_relay_passes_on_elements_of_any_structure(relayed, tf, cancellable):
    lengths = tf.RaggedTensor.from_row_lengths(tf.range(10), [1, 2, 3, 4])
    parts = {"a": [1, 2, 3, 4], "b": (["x", "y", "z", "w"], lengths)}
    dataset = quiet(tf.data.Dataset.from_tensor_slices(parts).batch(3))
    relay = relayed(dataset, cancellable=cancellable)
    assert relay.iterator.element_spec == dataset.element_spec
    for got, expected in zip(relay.iterator, dataset, strict=True):
        tf.nest.map_structure(np.testing.assert_array_equal, _plain(tf, got), _plain(tf, expected))
    assert relay.clock.read().images == 4


def _plain(tf, element):
    return [np.asarray(part) for part in tf.nest.flatten(element, expand_composites=True)]


@pytest.mark.parametrize("cancellable", CANCELLABLE)
def test_a_seeded_shuffle_gives_the_same_order_as_without_a_relay(relayed, tf, cancellable):
    """The relay must not open a second iterator, which would draw another seed."""

    def epochs(through):
        dataset = quiet(tf.data.Dataset.range(50).shuffle(50, seed=3))
        return [[int(number) for number in through(iter(dataset))] for _ in range(2)]

    assert epochs(lambda it: relayed(it, cancellable=cancellable).iterator) == epochs(lambda it: it)


@pytest.mark.parametrize("cancellable", CANCELLABLE)
def test_the_clock_reports_the_waits(relayed, pairs, cancellable):
    relay = relayed(quiet(pairs(6, lambda n: 0.15 if n == 3 else 0.0).batch(1)), cancellable=cancellable)
    next(relay.iterator)
    before = relay.clock.read()
    for _ in range(4):
        next(relay.iterator)
    reading = relay.clock.read()
    waits = reading.waits_since(before.answered)
    assert waits.shape == (4,)
    assert waits[2] == pytest.approx(0.15, abs=0.1)
    assert max(waits[[0, 1, 3]]) < 0.1
    assert reading.wait_s_since(before.answered) == pytest.approx(waits.sum())
    assert reading.images == 5
    assert reading.pending_s(time.time()) == 0.0


def test_pending_grows_while_the_consumer_waits(relayed, tf, pairs):
    relay = relayed(quiet(pairs(2, lambda number: 0.6).batch(1)))
    consumer = threading.Thread(target=next, args=(relay.iterator,))
    consumer.start()
    time.sleep(0.35)
    assert 0.05 < relay.clock.read().pending_s(time.time()) < 0.6
    assert relay.clock.read().answered == 0
    consumer.join()
    assert relay.clock.read().pending_s(time.time()) == 0.0


def test_an_error_of_the_source_is_raised(relayed, tf):
    checked = tf.data.Dataset.range(3).map(
        lambda x: tf.debugging.check_numerics(1.0 / tf.cast(x - 1, tf.float32), "here")
    )
    dataset = quiet(checked)
    plain = relayed(dataset)
    next(plain.iterator)
    with pytest.raises(tf.errors.InvalidArgumentError, match="here"):
        next(plain.iterator)
    through_a_thread = relayed(dataset, cancellable=True)
    next(through_a_thread.iterator)
    with pytest.raises(tf.errors.OpError):
        next(through_a_thread.iterator)
    assert "here" in str(through_a_thread.error)


def test_waits_that_leave_the_ring_count_with_their_mean():
    from tfprep.train.monitor.clock import RING, ClockReading

    reading = ClockReading(answered=2 * RING, images=0, asked_at=0.0, ring=np.full(RING, 0.5))
    assert reading.waits_since(0).size == RING
    assert reading.wait_s_since(0) == pytest.approx(RING)
    assert ClockReading(answered=3, images=0, asked_at=0.0, ring=np.arange(RING) * 1.0).waits_since(1).tolist() == [
        1.0,
        2.0,
    ]


@pytest.mark.parametrize("cancellable", CANCELLABLE)
def test_a_request_is_noted_before_the_source_runs(relayed, tf, cancellable):
    """All ops of an element run in one thread, in one order: a source that never returns must not run first."""
    asked, go_on = threading.Event(), threading.Event()

    def stuck(number):
        asked.set()
        go_on.wait(20)
        return number

    numbers = tf.data.Dataset.range(1).map(lambda number: tf.numpy_function(stuck, [number], tf.int64))
    relay = relayed(quiet(numbers), cancellable=cancellable)
    consumer = threading.Thread(target=next, args=(relay.iterator,))
    consumer.start()
    assert asked.wait(20)
    pending_s = relay.clock.read().pending_s(time.time() + 5.0)
    go_on.set()
    consumer.join()
    assert 5.0 <= pending_s < 25.0


@pytest.mark.parametrize("cancellable", CANCELLABLE)
def test_closing_the_relay_frees_the_source(relayed, tf, cancellable):
    """It must not wait for the garbage collector, since a shuffle buffer may take most of the memory."""
    gone = threading.Event()

    def numbers():
        try:
            yield from range(100)
        finally:
            gone.set()

    dataset = quiet(tf.data.Dataset.from_generator(numbers, output_signature=tf.TensorSpec([], tf.int64)))
    gc.freeze()  # whatever other tests have left, which may wait for autotune
    gc.disable()
    try:
        relay = relayed(dataset, cancellable=cancellable)
        assert [int(next(relay.iterator)) for _ in range(3)] == [0, 1, 2]
        assert not gone.is_set()
        relay.close()
        del relay
        assert gone.wait(10)
    finally:
        gc.enable()
