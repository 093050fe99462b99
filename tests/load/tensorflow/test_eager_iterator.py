"""The loader in custom training loops: the same batches as through tf.data, with or without a switch to a graph."""

import gc
import itertools
import threading
import time

import numpy as np
import pytest

import tfprep
from tests.waiting import wait_until
from tfprep import codecs
from tfprep.errors import LoaderError
from tfprep.load.reader.assembler import BatchAssembler

tf = pytest.importorskip("tensorflow")

OPTIONS = [
    {},
    {"training": False},
    {"inputs": {"a": ["image", "clicks"], "b": "pose"}, "targets": "label"},
    {"inputs": "image", "dtype": "bfloat16", "normalize": True},
    {"inputs": "image", "dtype": "float16"},
    {"fields": ["key", "variant", "caption", "depth"], "hosts": (1, 3)},
    {"start_step": 12, "remainder": "keep"},
    {"training": False, "start_step": 1, "remainder": "keep"},
]


@pytest.fixture
def data(photos):
    return tfprep.open(photos.path)


def endless(loader):
    """In training the epochs one after another, without an end."""
    return loader.repeat() if loader.pipeline.training else loader


def same(element, other):
    tf.nest.assert_same_structure(element, other)
    for one, two in zip(tf.nest.flatten(element), tf.nest.flatten(other), strict=True):
        assert (one.dtype, one.shape, one.device) == (two.dtype, two.shape, two.device)
        assert np.array_equal(one.numpy(), two.numpy())


def following(iterator):
    return next(iterator)


@pytest.mark.parametrize("options", OPTIONS)
def test_the_batches_equal_those_of_tf_data(data, options):
    """`take` makes a dataset of TensorFlow, which reads through tf.data."""
    elements = list(endless(data.loader("train", 8, seed=3, **options)).take(16))
    loader, count = endless(data.loader("train", 8, seed=3, **options)), 0
    for element, other in zip(loader, elements, strict=False):
        tf.nest.map_structure(lambda tensor, spec: spec.is_compatible_with(tensor), element, loader.element_spec)
        same(element, other)
        count += 1
    assert count == len(elements) > 0


@pytest.mark.parametrize("options", OPTIONS)
def test_an_iterator_that_goes_on_in_a_graph(data, options):
    expected = list(endless(data.loader("train", 8, seed=3, **options)).take(7))
    loader = endless(data.loader("train", 8, seed=3, **options))

    @tf.function
    def loop(iterator):
        return [iterator.get_next() for _ in range(2)]

    iterator = iter(loader)
    steps = [
        lambda: [next(iterator)],
        lambda: [iterator.get_next()],
        lambda: [tf.function(following)(iterator)],
        lambda: loop(iterator),
    ]
    steps += [lambda: [iterator.get_next_as_optional().get_value()], lambda: [next(iterator)]]
    seen = []
    for step in steps:
        if len(seen) + 2 > len(expected):
            break
        seen += step()
    assert len(seen) >= min(len(expected) - 1, 7) > 0
    for element, other in zip(seen, expected, strict=False):
        same(element, other)


def wait_for_threads(reading_threads, count):
    """Threads are asked to end, not waited for: they end a moment later."""
    wait_until(lambda: len(reading_threads()) == count)


def test_the_threads_of_the_loop_end_when_a_graph_goes_on(data, reading_threads):
    loader = data.loader("train", 8, threads=2)
    iterator = iter(loader)
    next(iterator)
    tf.function(following)(iterator)
    gc.collect()
    wait_for_threads(reading_threads, 2)
    del iterator, loader
    gc.collect()
    wait_for_threads(reading_threads, 0)


def test_a_finite_loader_ends(data):
    loader = data.loader("val", 4, training=False)
    iterator = iter(loader)
    assert len([1 for _ in iterator]) == loader.steps_per_epoch
    with pytest.raises(StopIteration):
        next(iterator)
    with pytest.raises(tf.errors.OutOfRangeError):
        iterator.get_next()


def test_tensors_use_the_readers_memory_until_they_are_dropped(make_dataset):
    def make(rng, number):
        return {"image": np.full((128, 128, 3), number, np.uint8)}

    made = make_dataset(samples={"train": 16}, fields=("image",), make=make, codec={"image": codecs.Raw()})
    train, places = tfprep.open(made.path).loader("train", 4, prefetch=2), set()
    for element in itertools.islice(train.repeat(), 100):
        view = np.asarray(memoryview(element["image"]))
        places.add(view.__array_interface__["data"][0])
        assert len(set(view[:, 0, 0, 0].tolist())) == 4
        del view, element
    assert all(place % 4096 == 0 for place in places)
    assert len(places) <= 12
    train = tfprep.open(made.path).loader("train", 4, prefetch=2, seed=3, fields=["image"])
    kept = list(itertools.islice(train.repeat(), 100))
    assert len({np.asarray(memoryview(element["image"])).__array_interface__["data"][0] for element in kept}) == 100
    variable = tf.Variable(kept[50]["image"])
    kept[50] = {"image": tf.identity(variable)}
    again = tfprep.open(made.path).numpy_loader("train", 4, seed=3, fields=["image"])
    for element, other in zip(kept, again.repeat(), strict=False):
        assert np.array_equal(element["image"].numpy(), other["image"])


def test_many_threads_take_from_one_iterator(data):
    loaders = [data.loader("train", 8, seed=3, fields=["key"]).repeat() for _ in range(2)]
    expected = [element["key"].numpy().tolist() for element in loaders[0].take(40)]
    iterator, seen = iter(loaders[1]), []

    def take():
        for _ in range(10):
            seen.append(next(iterator)["key"].numpy().tolist())

    threads = [threading.Thread(target=take) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(seen) == sorted(expected)


def test_functions_that_run_eagerly(data):
    loader = data.loader("train", 8, seed=3, fields=["label"])
    tf.config.run_functions_eagerly(True)
    try:
        iterator = iter(loader)
        got = [tf.function(following)(iterator) for _ in range(3)]
    finally:
        tf.config.run_functions_eagerly(False)
    for element, other in zip(got, data.loader("train", 8, seed=3, fields=["label"]).take(3), strict=True):
        same(element, other)


def test_a_profile_shows_the_wait_for_input(data, tmp_path, monkeypatch):
    from tensorflow.tsl.profiler.protobuf import xplane_pb2

    fill = BatchAssembler.fill
    monkeypatch.setattr(BatchAssembler, "fill", lambda *given: time.sleep(0.02) or fill(*given))
    iterator = iter(data.loader("train", 8, threads=1, cache=False).repeat())
    tf.profiler.experimental.start(str(tmp_path))
    for _ in range(10):
        next(iterator)
    tf.profiler.experimental.stop()
    space = xplane_pb2.XSpace()
    space.ParseFromString(next(tmp_path.rglob("*.xplane.pb")).read_bytes())
    waits = [
        event.duration_ps / 1e12
        for plane in space.planes
        for line in plane.lines
        for event in line.events
        if plane.event_metadata[event.metadata_id].name == "IteratorGetNext"
    ]
    assert len(waits) == 10
    assert 0.2 <= sum(waits) < 5


@pytest.mark.parametrize("use", [following, tf.function(following)], ids=["eager", "in a function"])
def test_a_checkpoint_of_an_iterator(data, tmp_path, use):
    def iterator():
        return iter(data.loader("train", 8, seed=3, fields=["label"]))

    saved = iterator()
    for _ in range(3):
        next(saved)
    tf.train.Checkpoint(iterator=saved).write(str(tmp_path / "checkpoint"))
    expected, restored = next(saved), iterator()
    tf.train.Checkpoint(iterator=restored).restore(str(tmp_path / "checkpoint"))
    same(use(restored), expected)


def test_a_checkpoint_of_an_iterator_that_a_function_reads_is_refused(data, tmp_path):
    iterator = iter(data.loader("train", 8))
    tf.function(following)(iterator)
    with pytest.raises(LoaderError, match=r"Save train\.state_at\(step\)"):
        tf.train.Checkpoint(iterator=iterator).write(str(tmp_path / "checkpoint"))
