"""Datasets over Python iterators: which references keep their source alive, and for how long."""

import gc
import threading
import weakref

import numpy as np
import psutil
import pytest

tf = pytest.importorskip("tensorflow")
keras = pytest.importorskip("keras")

from tfprep.load.tensorflow.handover import dataset_of  # noqa: E402 - it imports TensorFlow

SPEC = {"a": tf.TensorSpec((2,), tf.int64), "b": tf.TensorSpec((None,), tf.float32)}


@pytest.fixture(scope="module", autouse=True)
def quick_collections():
    """The collector looks at a million objects of TensorFlow otherwise, in each of a hundred collections."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


def counting(stop=3):
    return ((np.arange(2) + step, np.full(step, step, np.float32)) for step in range(stop))


def numbers(dataset):
    return [(element["a"].numpy().tolist(), element["b"].numpy().tolist()) for element in dataset]


def released(reference):
    """Whether the object is freed after a garbage collection and a call of TensorFlow, which releases arrays then."""
    gc.collect()
    tf.constant(0)
    return reference() is None


def test_elements_are_those_of_the_iterator():
    dataset = dataset_of(counting, SPEC)
    assert dataset.element_spec == SPEC
    expected = [([step, step + 1], [float(step)] * step) for step in range(3)]
    assert numbers(dataset) == numbers(dataset) == expected
    assert numbers(dataset.repeat(2)) == expected * 2
    assert numbers(dataset_of(lambda: counting(0), SPEC)) == []


def test_each_iterator_of_tensorflow_has_its_own():
    dataset = dataset_of(counting, SPEC)
    first, second = iter(dataset), iter(dataset)
    assert [next(it)["a"].numpy()[0] for it in (first, second, first, second)] == [0, 0, 1, 1]


def length(dataset):
    return dataset.reduce(0, lambda count, _: count + 1)


class Source:
    def __call__(self):
        return counting()


def dataset_and_reference():
    source = Source()
    return dataset_of(source, SPEC), weakref.ref(source)


USES = {
    "unused": lambda dataset: None,
    "iterated": list,
    "an iterator that is in use": lambda dataset: next(iter(dataset)),
    "mapped": lambda dataset: list(dataset.map(lambda element: element["a"]).prefetch(2)),
    "in a function": lambda dataset: tf.function(lambda: length(dataset))(),
    "as an argument": tf.function(length),
    "inside another": lambda dataset: list(tf.data.Dataset.range(2).flat_map(lambda _: dataset)),
}


@pytest.mark.parametrize("use", USES)
def test_a_dropped_dataset_releases_its_source(use):
    dataset, reference = dataset_and_reference()
    USES[use](dataset)
    assert not released(reference)
    del dataset
    assert released(reference)


@pytest.mark.parametrize("how", ["flat_map", "interleave", "made inside a map"])
def test_a_dataset_inside_another_keeps_it(how):
    """TensorFlow then has only the variant tensor, and no Python object refers to the dataset."""
    source, of = Source(), tf.data.Dataset.range(2)
    reference = weakref.ref(source)
    if how == "made inside a map":
        outer = of.flat_map(lambda _, source=source: dataset_of(source, SPEC))
    else:
        outer = getattr(of, how)(lambda _, inner=dataset_of(source, SPEC): inner)  # noqa: B008 - once is meant
    del source
    assert not released(reference)
    assert len(numbers(outer)) == 6
    del outer
    assert released(reference)


def test_a_function_keeps_the_dataset_that_it_uses():
    dataset, reference = dataset_and_reference()
    total = tf.function(lambda: length(dataset)).get_concrete_function()
    dataset = None
    assert not released(reference)
    assert total().numpy() == 3


def test_clear_session_leaves_datasets_as_they_are():
    dataset = dataset_of(counting, SPEC)
    before = numbers(dataset)
    keras.utils.clear_session()
    gc.collect()
    assert numbers(dataset) == before
    assert numbers(dataset_of(counting, SPEC)) == before


def test_loaders_that_are_dropped_without_close_leave_nothing(large):
    """Thirty loaders, each with a full cache of 0.8 MB and two open files."""
    process, seen = psutil.Process(), []
    before = set(threading.enumerate())
    for number in range(30):
        loader = large.loader("train", 16, seed=number, cache="decoded").repeat()
        iterator = iter(loader)
        for _ in range(5):
            next(iterator)
        assert len(list(loader.take(2))) == 2
        del loader, iterator
        gc.collect()
        if number in (9, 29):
            tf.constant(0)
            seen.append((process.num_fds(), process.memory_info().rss))
    # The files of the last loader may still be open: a reading thread closes them. Twenty loaders would hold forty.
    assert seen[1][0] - seen[0][0] < 20
    assert seen[1][1] - seen[0][1] < 30 << 20  # All caches and batches together have 60 MB.
    for thread in set(threading.enumerate()) - before:
        if thread.name.startswith("tfprep-read-"):
            thread.join(100)  # it has been asked to end, but may be reading
            assert not thread.is_alive()
