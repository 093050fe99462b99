"""The loader as a tf.data.Dataset delivers the batches of the NumPy loader, wherever a dataset or its iterator can be used."""

import gc
import pickle
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import islice

import numpy as np
import pytest

import tfprep
from tests.load.batches import batches, check_same, overwrite, stages
from tfprep import augment
from tfprep.errors import RecordError
from tfprep.load.pipeline import Pipeline

tf = pytest.importorskip("tensorflow")

XY = {"inputs": "image", "targets": "label"}
CUTS = [augment.Flip(), augment.Crop(20, 25), augment.Flip(direction="vertical"), augment.Crop(19, 20)]
OPTIONS = [
    {},
    {"training": False},
    {"fields": ["label"]},
    {"inputs": "image"},
    {"inputs": {"b": ["image", "clicks"], "a": "pose"}, "targets": {"z": "label", "m": "mask"}},
    {"inputs": ["image", "clicks"], "targets": "label", "sample_weight": "weight"},
    {"fields": ["key", "variant", "caption", "depth"], "hosts": (1, 3)},
    {"start_step": 12, "remainder": "keep"},
    {"training": False, "remainder": "keep"},
    {"fields": ["image", "mask"], "geometry": [augment.CenterCrop(16, 16)]},
    {
        "fields": ["image", "depth", "clicks", "field", "label", "key"],
        **stages([*CUTS, augment.MixUp(0.4), augment.CutMix()]),
    },
]


def loader_of(data, **options):
    """The epochs one after another, in evaluation one."""
    loader = data.loader("train", 8, **{"seed": 3, **options})
    return loader.repeat() if options.get("training", True) else loader


WAYS = {
    "an iterator": lambda loader: islice(loader, 14),
    "mapped": lambda loader: loader.take(14).map(lambda *element: element if len(element) > 1 else element[0]),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("options", OPTIONS)
def test_the_batches_of_the_numpy_loader(data, options, way):
    """With the types of TensorFlow's own elements and on its device."""
    expected = batches(data, 14, **options)
    loader = loader_of(data, **options)
    given = list(WAYS[way](loader))
    check_same(expected, given)
    for tensor, spec in zip(tf.nest.flatten(given[0]), tf.nest.flatten(loader.element_spec), strict=True):
        assert spec.is_compatible_with(tensor)
    (theirs,) = loader.take(1)
    tf.nest.assert_same_structure(given[0], theirs, check_types=True)
    assert type(given[0]) is type(theirs)
    devices = [[tensor.device for tensor in tf.nest.flatten(element)] for element in (given[0], theirs)]
    assert devices[0] == devices[1]


def following(iterator):
    return next(iterator)


@pytest.mark.parametrize("options", [OPTIONS[0], OPTIONS[4], OPTIONS[6]])
def test_an_iterator_that_goes_on_in_a_graph(data, options):
    @tf.function
    def loop(iterator):
        return [iterator.get_next() for _ in range(2)]

    iterator = iter(loader_of(data, **options))
    seen = [next(iterator), iterator.get_next(), tf.function(following)(iterator), *loop(iterator)]
    seen += [iterator.get_next_as_optional().get_value()]
    check_same(batches(data, 6, **options), seen)


@pytest.mark.parametrize("options", OPTIONS)
def test_eager_batches_and_batches_by_step(data, options):
    """Tensors of the same types, by public DLPack where it shares the memory."""
    expected = batches(data, 14, **options)
    loader = loader_of(data, **options)
    first = loader.next_step
    check_same(expected, list(islice(loader.eager(), 14)))
    check_same(expected, [loader[first + number] for number in range(len(expected))])
    for element in (next(iter(loader.eager())), loader[first]):
        assert all(isinstance(tensor, tf.Tensor) for tensor in tf.nest.flatten(element))


def test_functions_that_run_eagerly(data):
    iterator = iter(data.loader("train", 8, seed=3, **XY))
    tf.config.run_functions_eagerly(True)
    try:
        check_same(batches(data, 3, **XY), [tf.function(following)(iterator) for _ in range(3)])
    finally:
        tf.config.run_functions_eagerly(False)


def test_many_iterators_of_which_most_are_dropped(data):
    """The window of an iterator that is not read any more is given up, and it goes on if it is read again."""
    train = data.loader("train", 4, seed=3, **XY)
    expected = batches(data, 12, batch_size=4, **XY)
    left = iter(train)
    seen = [next(left)]
    for _ in range(6):
        check_same(expected[:4], list(train.take(4)))
    check_same(expected, seen + list(left))


def test_threads_that_read_a_loader_at_once(data):
    """One waits for its first batch while others take many: it is not taken for an iterator that was dropped."""
    options = {"fields": ["label"], "workers": "threads", "threads": 2, "prefetch": 64}
    train = data.loader("train", 2, **options).repeat().take(150)
    with ThreadPoolExecutor(6) as pool:
        assert list(pool.map(lambda _: sum(1 for _ in train), range(6))) == [150] * 6


def test_compiled_by_xla_without_a_second_trace(data):
    """50 samples would leave a smaller batch of 2, which training drops: all have one shape."""
    keras = pytest.importorskip("keras")
    traces, weights = [], []

    class Counted(keras.layers.Dense):
        def call(self, inputs):
            traces.append(1)
            return super().call(inputs)

    for compiled in (True, False):
        train = data.loader("train", 8, seed=3, **XY)
        keras.utils.set_random_seed(1)
        layers = [keras.layers.Rescaling(1 / 255), keras.layers.GlobalAveragePooling2D(), Counted(3)]
        model = keras.Sequential([keras.Input((24, 32, 3), dtype="uint8"), *layers])
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(keras.optimizers.SGD(0.1), loss, jit_compile=compiled)
        model.fit(train.take(1), verbose=0, shuffle=False)
        count = len(traces)
        model.fit(train, epochs=3, verbose=0, shuffle=False)
        assert len(traces) == count > 0
        weights.append(model.get_weights())
    for one, other in zip(*weights, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-4)


def test_a_loader_of_a_chain_lives_as_long_as_the_chain(data):
    mapped = data.loader("train", 8, seed=3, **XY).map(lambda x, y: (x, y))
    gc.collect()
    check_same(batches(data, 6, **XY), list(mapped))


def test_inside_a_function_and_beside_itself(data):
    train = data.loader("train", 8, seed=3, **XY)

    @tf.function
    def total(dataset):
        labels = tf.constant(0, tf.int64)
        for _, y in dataset.take(5):
            labels += tf.reduce_sum(y)
        return labels

    assert total(train).numpy() == sum(y.sum() for _, y in batches(data, 5, **XY))
    for one, other in tf.data.Dataset.zip((train, train)).take(2):  # they begin together, with one epoch
        assert np.array_equal(one[0], other[0])


def test_shapes_and_cardinality_are_known(data):
    def spec(batch_size=8, **options):
        return data.loader("train", batch_size, **{"fields": ["label"], **options}).element_spec

    assert spec(fields=["image", "label"]) == {
        "image": tf.TensorSpec((8, 24, 32, 3), tf.uint8),
        "label": tf.TensorSpec((8,), tf.int64),
    }
    assert spec(hosts=(0, 3))["label"].shape == (2,)
    assert spec(remainder="keep")["label"].shape.as_list() == [None]
    assert spec(10, training=False)["label"].shape == (10,)
    train, validation = data.loader("train", 8), data.loader("val", 4)
    assert len(train) == train.cardinality() == train.steps_per_epoch == 6
    assert train.repeat().cardinality() == tf.data.INFINITE_CARDINALITY
    assert len(train.repeat(3)) == 18
    assert len(validation) == validation.steps_per_epoch == len(list(validation)) == len(list(validation)) == 3
    with pytest.raises(tf.errors.OpError, match="cannot continue one at step 2"):
        next(iter(data.loader("val", 4, start_step=2)))


def test_images_of_different_sizes_are_ragged(uneven):
    row = 0
    for batch in tfprep.open(uneven.path).loader("train", 8, training=False, fields=["image", "boxes"]):
        assert isinstance(batch["image"], tf.RaggedTensor)
        for image, boxes in zip(batch["image"], batch["boxes"], strict=True):
            expected = uneven.values["train"][0][row]
            assert np.array_equal(image.to_tensor().numpy(), expected["image"])
            assert np.array_equal(boxes.numpy().reshape(-1, 4), expected["boxes"])
            row += 1
    assert row == 60


def test_a_pickled_loader_delivers_the_same(data):
    options = {"start_step": 3, "fields": ["image", "key"]}
    copy = pickle.loads(pickle.dumps(loader_of(data, **options)))
    check_same(batches(data, 3, **options), list(copy.take(3)))


# --- memory -------------------------------------------------------------------------------------------------------------


def place_of(batch):
    return np.asarray(memoryview(batch["image"])).__array_interface__["data"][0]


@pytest.mark.parametrize(
    "way", [lambda loader, count: islice(loader.eager(), count), lambda loader, count: loader.take(count)]
)
def test_tensors_use_the_readers_memory_until_they_are_dropped(large, way):
    """Nothing is copied; a list of 100 batches, a variable and a cache keep their pixels."""
    train, places = large.loader("train", 4, prefetch=2), set()
    for batch in way(train.repeat(), 100):
        places.add(place_of(batch))
        assert len(set(batch["image"].numpy()[:, 0, 0, 0].tolist())) == 4
        del batch
    if way(train, 1).__class__ is islice:  # eager code reads what tf.data delivers through a copy
        assert all(place % 4096 == 0 for place in places)
        assert len(places) <= 12
    train = large.loader("train", 4, prefetch=2, seed=3)
    kept = list(way(train.repeat(), 100))
    assert len({place_of(batch) for batch in kept}) == 100
    variable = tf.Variable(kept[50]["image"])
    kept[50] = {"image": tf.identity(variable)}
    gc.collect()
    check_same(batches(large, 100, batch_size=4), kept)
    cached = large.loader("train", 4, prefetch=2, seed=3).repeat().take(10).cache()
    assert len(list(cached)) == 10
    check_same(batches(large, 10, batch_size=4), list(cached))


# --- errors -------------------------------------------------------------------------------------------------------------


def test_errors_are_those_of_tfprep(make_dataset, at_each_record):
    """The next call raises it again; through tf.data the error is text."""
    made = make_dataset(samples={"train": 12}, fields=("image", "label"), shards=1)
    path = next(made.path.glob("*.tfrecord*"))
    overwrite(path, path.stat().st_size - 6, b"\0\xff")
    train = tfprep.open(made.path).loader("train", 12)
    iterator = iter(train.eager())
    for _ in range(3):
        with pytest.raises(RecordError, match=r"record 11 at byte .*train/0011"):
            next(iterator)
    with pytest.raises(tf.errors.OpError, match=r"(?s)RecordError.*record 11 at byte"):
        list(train.take(10))


def test_to_a_device(data):
    on_device = tf.data.experimental.prefetch_to_device("/CPU:0")
    (batch,) = islice(data.loader("train", 8, seed=3, fields=["image"]).apply(on_device), 1)
    assert "CPU:0" in batch["image"].device
    check_same(batches(data, 1, fields=["image"]), [batch])


# --- profiles ----------------------------------------------------------------------------------------------------------


def test_a_profile_shows_the_wait_for_input(data, tmp_path, monkeypatch):
    from tensorflow.tsl.profiler.protobuf import xplane_pb2

    fill = Pipeline.fill
    monkeypatch.setattr(Pipeline, "fill", lambda *given: time.sleep(0.02 * len(given[1])) or fill(*given))
    iterator = iter(data.loader("train", 8, threads=1, cache=False).repeat().eager())
    tf.profiler.experimental.start(str(tmp_path))
    list(islice(iterator, 10))
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
    assert sum(waits) >= 0.2
