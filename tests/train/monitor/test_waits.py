"""A timed iterator passes on exactly the elements of its source, and its clock tells how long each one took."""

import gc
import threading
import time

import numpy as np
import pytest

from tfprep import train

keras = pytest.importorskip("keras")
tf = pytest.importorskip("tensorflow")
from tfprep.train.monitor.waits import TimedIterator, WaitClock, timed_tensors  # noqa: E402


@pytest.fixture
def timed():
    """`timed(source)`: an iterator over the source, as a compiled step gets it, and the clock that notes its waits."""

    def make(source):
        clock, iterator = WaitClock(), iter(source)
        clock.resume()
        return (timed_tensors if hasattr(iterator, "element_spec") else TimedIterator)(iterator, clock), clock

    return make


def quiet(dataset):
    """The dataset without autotune, which may wait for a minute when an iterator is dropped."""
    options = tf.data.Options()
    options.autotune.enabled = False
    return dataset.with_options(options)


@pytest.mark.parametrize("first", "abc")
def test_elements_of_any_structure_pass(timed, first):
    """Images are counted by the first component, ragged or sparse ones too."""
    parts = {
        "a": [1, 2, 3, 4],
        "b": (tf.RaggedTensor.from_row_lengths(tf.range(10), [1, 2, 3, 4]), ["x", "y", "z", "w"]),
        "c": tf.sparse.from_dense([[1, 0], [0, 2], [0, 0], [3, 0]]),
    }
    parts["0"] = parts.pop(first)
    dataset = quiet(tf.data.Dataset.from_tensor_slices(parts).batch(3))
    batches, clock = timed(dataset)
    assert batches.element_spec == dataset.element_spec
    for got, expected in zip(batches, dataset, strict=True):
        tf.nest.map_structure(np.testing.assert_array_equal, _plain(got), _plain(expected))
    reading = clock.read()
    assert (reading.batches, reading.images) == (2, 4)


def _plain(element):
    return [np.asarray(part) for part in tf.nest.flatten(element, expand_composites=True)]


def test_images_are_counted_where_the_first_component_is_none(timed):
    batches, clock = timed(quiet(tf.data.Dataset.from_tensor_slices(np.ones([6, 3])).batch(4).map(lambda x: (None, x))))
    assert [(x is None, len(y)) for x, y in batches] == [(True, 4), (True, 2)]
    assert (clock.read().batches, clock.read().images) == (2, 6)


def _late(seconds):
    def batches():
        for number in range(6):
            time.sleep(seconds if number == 3 else 0.0)
            yield np.ones([1, 2])

    return batches()


@pytest.mark.parametrize("kind", ["tf.data", "python"])
def test_the_clock_tells_each_wait(timed, pairs, kind):
    source = quiet(pairs(6, lambda n: 0.15 if n == 3 else 0.0).batch(1)) if kind == "tf.data" else _late(0.15)
    batches, clock = timed(source)
    next(batches)
    before = clock.read()
    for _ in range(4):
        next(batches)
    waits = clock.read().since(before)
    assert (waits.batches, waits.images, waits.pending_s) == (4, 4, 0.0)
    assert waits.each_s[2] > 0.1
    assert waits.waited_s == pytest.approx(waits.each_s.sum())
    assert waits.window_s >= waits.waited_s
    assert waits.each_s.base is None  # it keeps no waits of before


def test_a_wait_that_crosses_a_border_counts_on_both_sides(timed):
    """A request is noted before the source runs: a source that never returns must not run first."""
    asked, go_on = threading.Event(), threading.Event()

    def stuck(number):
        asked.set()
        go_on.wait(20)
        return number

    batches, clock = timed(quiet(tf.data.Dataset.range(1).map(lambda n: tf.numpy_function(stuck, [n], tf.int64))))
    before = clock.read()
    consumer = threading.Thread(target=next, args=(batches,))
    consumer.start()
    assert asked.wait(20)
    time.sleep(0.1)
    border = clock.read()
    time.sleep(0.1)
    go_on.set()
    consumer.join()
    first, second = border.since(before), clock.read().since(border)
    assert (first.batches, second.batches) == (0, 1)
    assert 0.1 <= first.waited_s == first.pending_s < first.window_s + 0.001
    assert second.waited_s == pytest.approx(second.each_s[0] - first.waited_s)


def test_time_outside_of_the_training_does_not_count():
    clock, began_s = WaitClock(), time.perf_counter()
    clock.asking()
    clock.pause()
    paused_s = time.perf_counter()
    time.sleep(0.05)
    assert clock.read() == type(clock.read())()
    assert clock.read().as_json() == {}
    outside_s = time.perf_counter() - paused_s
    clock.resume()
    clock.answered(3)
    assert clock.read().window_s <= time.perf_counter() - began_s - outside_s
    assert (clock.read().batches, clock.read().images, clock.read().waited_s) == (1, 3, 0.0)


def test_the_time_between_the_epochs_of_a_loop_does_not_count(tmp_path):
    """A batch of images of several sizes is a list."""
    with train.InputMonitor(tmp_path, every_s=60) as monitor:
        for _ in range(2):
            for _ in monitor.watch([{"image": [np.ones([5, n + 1]) for n in range(3)]}] for _ in range(2)):
                pass
            time.sleep(0.3)  # a validation
    waits = monitor.samples[-1].waits
    assert (waits.batches, waits.images) == (4, 12)
    assert waits.window_s < 0.3


def test_an_error_of_the_source_is_raised(timed):
    numbers = tf.data.Dataset.range(3)
    batches, _ = timed(
        quiet(numbers.map(lambda x: tf.debugging.check_numerics(1.0 / tf.cast(x - 1, "float32"), "here")))
    )
    next(batches)
    with pytest.raises(tf.errors.InvalidArgumentError, match="here"):
        next(batches)


def test_dropping_the_iterator_frees_the_source(timed):
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
        batches, _ = timed(dataset)
        assert [int(next(batches)) for _ in range(3)] == [0, 1, 2]
        assert not gone.is_set()
        del batches
        assert gone.wait(10)
    finally:
        gc.enable()


def test_the_end_of_the_data_inside_of_a_step_is_not_a_wait(dense, pairs, tmp_path):
    """A call of three steps gets two batches, and asks for a third."""

    class Pending(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            self.seconds = self.model.train_function.clock.read().pending_s

    dense.compile("sgd", "mse", steps_per_execution=3)
    pending = Pending()
    callbacks = [train.InputMonitor(tmp_path, every_s=60), pending]
    dense.fit(quiet(pairs(8).batch(4)), verbose=0, shuffle=False, callbacks=callbacks)
    assert pending.seconds == 0.0
