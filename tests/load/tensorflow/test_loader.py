"""The loader as a tf.data.Dataset delivers the batches of the NumPy loader, wherever a dataset can be used."""

import gc
import pickle
import threading
import time

import numpy as np
import pytest

import tfprep
from tfprep import augment
from tfprep.errors import LoaderError, RecordError, StalledPipelineError
from tfprep.load.reader import rows

tf = pytest.importorskip("tensorflow")
keras = pytest.importorskip("keras")


@pytest.fixture
def data(photos):
    return tfprep.open(photos.path)


def same(tensors, arrays):
    """Asserts that a structure of tensors equals one of arrays; text is bytes in TensorFlow."""
    tf.nest.assert_same_structure(tensors, arrays)
    for tensor, array in zip(tf.nest.flatten(tensors), tf.nest.flatten(arrays), strict=True):
        value = tensor.numpy()
        expected = np.array([text.encode() for text in array]) if array.dtype == object else array
        assert value.shape == expected.shape
        assert np.array_equal(value.astype(expected.dtype) if array.dtype == object else value, expected)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"training": False},
        {"inputs": {"a": ["image", "clicks"], "b": "pose"}, "targets": "label"},
        {"inputs": "image", "dtype": "bfloat16", "normalize": True},
        {"fields": ["key", "variant", "caption", "depth"], "hosts": (1, 3)},
        {"start_step": 14, "remainder": "keep"},
    ],
)
def test_the_batches_of_the_numpy_loader(data, options):
    train, arrays = data.loader("train", 8, seed=3, **options), data.numpy_loader("train", 8, seed=3, **options)
    assert isinstance(train, tf.data.Dataset)
    for _ in range(2):
        for tensors, expected in zip(train.map(lambda *element: element), arrays, strict=True):
            same(tensors if len(tensors) > 1 else tensors[0], expected)


def test_shapes_are_known(data):
    assert data.loader("train", 8, fields=["image", "label"]).element_spec == {
        "image": tf.TensorSpec((8, 24, 32, 3), tf.uint8),
        "label": tf.TensorSpec((8,), tf.int64),
    }
    assert data.loader("train", 8, fields=["label"], hosts=(0, 3)).element_spec["label"].shape == (2,)
    assert data.loader("train", 8, fields=["label"], remainder="keep").element_spec["label"].shape.as_list() == [None]
    assert data.loader("train", 10, fields=["label"], training=False).element_spec["label"].shape == (10,)


def test_cardinality(data):
    train = data.loader("train", 8)
    assert len(train) == train.cardinality() == train.steps_per_epoch == 6
    assert train.repeat().cardinality() == tf.data.INFINITE_CARDINALITY
    assert len(train.repeat(3)) == 18
    validation = data.loader("val", 4)
    assert len(validation) == validation.steps_per_epoch == 3
    assert len(list(validation)) == len(list(validation)) == 3
    assert len(data.loader("val", 4, training=False, start_step=2)) == 1


def test_before_map_and_other_datasets(data):
    train = data.loader("train", 8, seed=3, inputs="image", targets="label")
    mapped = train.map(lambda x, y: (tf.cast(x, tf.float32) / 255, tf.one_hot(y, 3))).take(3)
    for (x, y), (image, label) in zip(
        mapped, data.numpy_loader("train", 8, seed=3, inputs="image", targets="label"), strict=False
    ):
        assert np.allclose(x.numpy(), image / np.float32(255))
        assert y.numpy().argmax(1).tolist() == label.tolist()
    for one, other in tf.data.Dataset.zip((train, train)).take(2):  # they begin together, with one epoch
        assert np.array_equal(one[0], other[0])


def test_inside_a_function(data):
    train = data.loader("train", 8, seed=3, inputs="image", targets="label")

    @tf.function
    def total(dataset):
        labels = tf.constant(0, tf.int64)
        for _, y in dataset.take(5):
            labels += tf.reduce_sum(y)
        return labels

    arrays = data.numpy_loader("train", 8, seed=3, inputs="image", targets="label")
    assert total(train).numpy() == sum(y.sum() for _, (_, y) in zip(range(5), arrays, strict=False))


def test_fit(data):
    train = data.loader("train", 8, inputs=["image", "clicks"], targets="label")
    validation = data.loader("val", 4, training=False, inputs=["image", "clicks"], targets="label")
    model = keras.Sequential(
        [
            keras.Input((24, 32, 5), dtype="uint8"),
            data.normalization(["image", "clicks"]),
            keras.layers.Flatten(),
            keras.layers.Dense(3),
        ]
    )
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    history = model.fit(train, epochs=3, validation_data=validation, verbose=0, shuffle=False)
    assert len(history.history["val_loss"]) == 3
    assert train.stats["batches"] == 3 * len(train)
    assert len(train.pipeline.readers) == 1  # One reader for the whole run.


def test_normalization_uses_the_training_split(data, photos):
    layer = data.normalization("image")
    image = np.stack([row["image"] for row in photos.values["val"][0]])
    assert np.allclose(layer(image), (image - [120.0, 128.0, 130.0]) / [10.0, 11.0, 12.0], atol=1e-4)
    with pytest.raises(LoaderError, match="has statistics of image, not of clicks"):
        data.normalization("clicks")
    with pytest.raises(LoaderError, match="no field 'picture'"):
        data.normalization("picture")


def test_batches_that_are_kept_keep_their_pixels(data, photos):
    """A list of 100 batches, a Variable, a cache, and a consumer that is slower than the reader."""
    train = data.loader("train", 8, prefetch=2, fields=["field", "key"], variants=0)

    def right(batch):
        for field, key in zip(batch["field"].numpy(), batch["key"].numpy(), strict=True):
            assert np.array_equal(field, photos.values["train"][0][int(key[-4:])]["field"])

    kept = list(train.repeat().take(100))
    variable = tf.Variable(kept[3]["field"])
    cached = train.repeat().take(10).cache()
    list(cached)
    for number, batch in enumerate(train.repeat().take(20)):
        time.sleep(0.005)
        right(batch)
        if number == 10:
            gc.collect()
    for batch in kept:
        right(batch)
    for batch in cached:
        right(batch)
    assert np.array_equal(variable.numpy(), kept[3]["field"].numpy())


def test_tensors_take_over_the_memory(make_dataset):
    """Nothing is copied: the tensor uses the reader's memory, which is reused once the tensor is freed."""
    from tfprep import codecs

    def make(rng, number):
        return {"image": np.full((128, 128, 3), number, np.uint8)}

    made = make_dataset(samples={"train": 16}, fields=("image",), make=make, codec={"image": codecs.Raw()})
    train, places = tfprep.open(made.path).loader("train", 4, prefetch=2), set()
    for batch in train.repeat().take(100):
        view = np.asarray(memoryview(batch["image"]))
        places.add(view.__array_interface__["data"][0])
        assert len(set(view[:, 0, 0, 0].tolist())) == 4
        del view, batch
    assert all(place % 4096 == 0 for place in places)
    assert len(places) <= 12


def test_images_of_different_sizes_are_ragged(make_dataset):
    from tfprep import codecs

    def make(rng, number):
        height, width = 8 + number, 20 - number
        pixels = rng.integers(0, 256, (height, width, 3), dtype=np.uint8)
        return {
            "image": codecs.Jpeg(90).encode(pixels)[""],
            "boxes": rng.uniform(0, 9, (number % 3, 4)).astype(np.float32),
        }

    options = {
        "codec": {"image": codecs.Original(), "boxes": codecs.Scalar()},
        "kinds": {"image": "image", "boxes": "boxes"},
    }
    made = make_dataset(samples={"train": 7}, fields=("image", "boxes"), make=make, **options)
    row = 0
    for batch in tfprep.open(made.path).loader("train", 3, training=False):
        assert isinstance(batch["image"], tf.RaggedTensor)
        for at in range(batch["image"].shape[0]):
            expected = made.values["train"][0][row]
            assert np.array_equal(batch["image"][at].to_tensor().numpy(), expected["image"])
            boxes = batch["boxes"][at]
            assert np.array_equal(boxes.numpy().reshape(-1, 4), expected["boxes"])
            row += 1
    assert row == 7


def test_report_and_state(data):
    train = data.loader("train", 8, seed=1, start_step=5)
    assert train.step_of(train.state_at(9)) == 9
    assert train.start_step == 5
    assert data.numpy_loader("train", 8, seed=1).step_of(train.state_at(9)) == 9


def test_errors_are_those_of_tfprep(make_dataset):
    made = make_dataset(samples={"train": 12}, fields=("image", "label"), shards=1)
    path = next(made.path.glob("*.tfrecord*"))
    data = bytearray(path.read_bytes())
    data[-6] ^= 1
    path.write_bytes(data)
    train = tfprep.open(made.path).loader("train", 4)
    with pytest.raises(RecordError, match=r"record 11 at byte .*train/0011"):
        list(train)
    with pytest.raises(
        tf.errors.OpError, match=r"(?s)RecordError.*record 11 at byte"
    ):  # Through another dataset, the error is text.
        list(train.take(10))


def test_a_stall_is_an_error(data, monkeypatch):
    opened = threading.Event()
    monkeypatch.setattr(rows, "read_fields", lambda *a, **k: opened.wait(20))
    train = data.loader("train", 8, timeout_s=0.3, verify="always", cache=False)
    with pytest.raises(StalledPipelineError, match=r"no batch for step 0 in 0\.3 s"):
        next(iter(train))
    opened.set()


def test_close_ends_threads_and_frees_memory(data, reading_threads):
    train = data.loader("train", 8)
    iterator = iter(train)
    next(iterator)
    train.close()
    assert not reading_threads()
    with pytest.raises(LoaderError, match="closed"):
        list(iterator)


def test_geometry(data):
    ops = [augment.CenterCrop(16, 16)]
    for tensors, arrays in zip(
        data.loader("val", 4, training=False, geometry=ops, fields=["image", "mask"]),
        data.numpy_loader("val", 4, training=False, geometry=ops, fields=["image", "mask"]),
        strict=True,
    ):
        assert tensors["image"].shape[1:] == (16, 16, 3)
        same(tensors, arrays)


def test_distributed_input(data):
    """Each input pipeline of a strategy reads its own part; this strategy has one."""
    strategy = tf.distribute.MirroredStrategy(["/cpu:0"])

    def make(context):
        return data.loader("train", 8, seed=3, hosts=context, inputs="image", targets="label")

    batch = next(iter(strategy.distribute_datasets_from_function(make)))
    same(batch, next(iter(data.numpy_loader("train", 8, seed=3, inputs="image", targets="label"))))


def test_to_a_device(data):
    train = data.loader("train", 8, seed=3, fields=["image"], prefetch_to_device="/CPU:0")
    batch = next(iter(train))
    assert "CPU:0" in batch["image"].device
    same(batch, next(iter(data.numpy_loader("train", 8, seed=3, fields=["image"]))))


@pytest.mark.parametrize("device", ["/GPU:7", "the card", 3])
def test_an_unknown_device(data, device):
    with pytest.raises(LoaderError, match=r"prefetch_to_device=.*: there is no such device; there are /CPU:0"):
        data.loader("train", 8, prefetch_to_device=device)


STRUCTURES = [
    {},
    {"fields": ["label"]},
    {"inputs": "image"},
    {"inputs": ["image", "clicks"], "targets": "label", "sample_weight": "weight"},
    {"inputs": {"b": "image", "a": ["clicks", "mask"]}, "targets": {"z": "label", "m": "mask"}},
]


@pytest.mark.parametrize("synchronous", [True, False])
@pytest.mark.parametrize("options", STRUCTURES)
def test_elements_equal_those_of_tensorflow(data, options, synchronous):
    """The loader's iterator packs its elements; with `take`, TensorFlow does."""
    before = tf.config.experimental.get_synchronous_execution()
    tf.config.experimental.set_synchronous_execution(synchronous)
    try:
        loader = data.loader("val", 4, training=False, **options)
        own, theirs = list(loader), list(loader.take(9))
    finally:
        tf.config.experimental.set_synchronous_execution(before)
    assert len(own) == len(theirs) == 3
    for one, other in zip(own, theirs, strict=True):
        tf.nest.assert_same_structure(one, other, check_types=True)
        assert type(one) is type(other)
        for a, b in zip(tf.nest.flatten(one), tf.nest.flatten(other), strict=True):
            assert a.dtype == b.dtype
            assert a.shape == b.shape
            assert np.array_equal(a.numpy(), b.numpy())


def test_an_iterator_can_be_handed_to_a_function(data):
    iterator = iter(data.loader("train", 8, seed=3, inputs="image", targets="label").repeat())

    @tf.function
    def following(batches):
        return next(batches)[1]

    expected = iter(data.numpy_loader("train", 8, seed=3, inputs="image", targets="label").repeat())
    for step in range(6):  # In turns here and in the function.
        labels = next(iterator)[1] if step % 2 else following(iterator)
        assert np.array_equal(labels.numpy(), next(expected)[1])
    assert iterator.get_next()[1].numpy().tolist() == next(expected)[1].tolist()


def test_a_pickled_loader_delivers_the_same(photos):
    loader = tfprep.open(photos.path).loader("train", 8, seed=5, start_step=3, fields=["image", "key"])
    copy = pickle.loads(pickle.dumps(loader))
    for one, other in zip(loader.take(3), copy.take(3), strict=True):
        assert np.array_equal(one["key"], other["key"])
        assert np.array_equal(one["image"], other["image"])
