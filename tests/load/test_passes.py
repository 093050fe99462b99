"""A pass is an epoch and the next pass the next one, in every framework, whatever a consumer does with its iterators.

What passes deliver is compared with the schedule: epoch e of a run is the steps [e n, e n + n).
"""

import itertools
import sys
import threading
import warnings

import numpy as np
import pytest

import tfprep
from tfprep.errors import LoaderError

tf = pytest.importorskip("tensorflow")
keras = pytest.importorskip("keras")

STEPS = 6
"""50 samples in batches of 8: two are left out."""


@pytest.fixture(scope="module")
def data(photos):
    return tfprep.open(photos.path)


@pytest.fixture(scope="module")
def expected(data):
    """The keys of each step of ten epochs, from the schedule."""
    pipeline = data.numpy_loader("train", 8, seed=3, fields=["key"]).pipeline
    names = np.array(pipeline.table.column("key").to_pylist())
    return [names[indices.row].tolist() for indices in pipeline.schedule.batch_indices(range(10 * STEPS))]


KINDS = {
    "numpy": lambda data, **options: data.numpy_loader("train", 8, seed=3, fields=["key"], **options),
    "direct": lambda data, **options: data.loader("train", 8, seed=3, fields=["key"], **options),
}


@pytest.fixture(params=["numpy", "direct"])
def kind(request):
    return request.param


@pytest.fixture
def train(data, kind):
    return KINDS[kind](data)


def keys(batches):
    return [
        [key.decode() if isinstance(key, bytes) else key for key in np.asarray(batch["key"]).tolist()]
        for batch in batches
    ]


def epoch(expected, number):
    return expected[number * STEPS : (number + 1) * STEPS]


def test_each_pass_is_the_next_epoch(train, expected):
    assert len(train) == train.steps_per_epoch == STEPS
    for number in range(3):
        assert train.next_step == number * STEPS
        assert keys(train) == epoch(expected, number)


def test_each_iterator_that_is_read_is_the_next_epoch(train, expected):
    iter(train)  # never read
    for number, count in enumerate((1, 3, STEPS - 1, STEPS)):
        assert keys(itertools.islice(train, count)) == epoch(expected, number)[:count]
    one, other = zip(*zip(train, train, strict=True), strict=True)
    assert [keys(one), keys(other)] == [epoch(expected, 4), epoch(expected, 5)]


def test_an_epoch_by_its_number(train, expected):
    for number in (5, 0, 2):
        assert keys(train.at_epoch(number)) == epoch(expected, number)
    assert keys(train) == epoch(expected, 3)
    assert train.at_epoch(7).next_step == 7 * STEPS
    for number in (-1, 1.5, True, "2", 2**40):
        with pytest.raises(LoaderError, match="epochs are numbered from 0 to 4,294,967,295"):
            train.at_epoch(number)


def test_evaluation_has_no_epochs(data, kind):
    with pytest.raises(LoaderError, match=r"at_epoch\(\) is for training"):
        KINDS[kind](data, training=False).at_epoch(1)


def test_a_stream_that_is_left_in_the_middle_of_an_epoch(data, kind, expected):
    stream = KINDS[kind](data).repeat()
    assert keys(itertools.islice(stream, STEPS + 2)) == expected[: STEPS + 2]
    assert stream.next_step == 2 * STEPS
    assert keys(itertools.islice(stream, 2)) == epoch(expected, 2)[:2]


def test_an_iterator_that_is_read_later_delivers_the_next_epoch(train, expected):
    one, other = iter(train), iter(train)
    assert keys(one) == epoch(expected, 0)
    assert keys(other) == epoch(expected, 1)


def test_the_stream_of_epochs(data, kind, expected):
    assert keys(itertools.islice(KINDS[kind](data).repeat(), 3 * STEPS)) == expected[: 3 * STEPS]
    twice = KINDS[kind](data).repeat(2)
    assert len(twice) == 2 * STEPS
    assert keys(twice) == expected[: 2 * STEPS]
    assert twice.next_step == 2 * STEPS
    for count in (0, -2, 1.5, True, "2"):
        with pytest.raises(LoaderError, match="takes a number of epochs from 1"):
            twice.repeat(count)


@pytest.mark.parametrize("start", [0, STEPS, 4, STEPS - 1])
def test_passes_from_a_start_step_on(data, kind, expected, start):
    """A pass from within an epoch ends where the epoch ends."""
    train = KINDS[kind](data, start_step=start)
    assert len(train) == STEPS
    end = STEPS * (start // STEPS + 1)
    assert [keys(train), keys(train)] == [expected[start:end], expected[end : end + STEPS]]
    assert train.next_step == end + STEPS
    twice = KINDS[kind](data, start_step=start).repeat(2)
    assert keys(twice) == expected[start : end + STEPS]


def test_evaluation_reads_the_same_in_each_pass(data, kind):
    val = KINDS[kind](data, training=False)
    assert len(val) == 7
    first = keys(val)
    assert [key for batch in first for key in batch] == sorted(key for batch in first for key in batch)
    assert keys(itertools.islice(val, 5)) == first[:5]
    assert keys(val) == first
    assert val.next_step == 0


def test_chains_of_tf_data(data, expected):
    def loader():
        return KINDS["direct"](data)

    mapped = loader().map(lambda batch: batch)
    assert [keys(mapped), keys(mapped)] == [epoch(expected, 0), epoch(expected, 1)]
    assert keys(loader().map(lambda batch: batch).repeat(2)) == expected[: 2 * STEPS]
    assert len(mapped) == len(loader().prefetch(2)) == STEPS
    halves = [key for batch in expected[: 2 * STEPS] for key in batch]
    part = data.loader("train", 4, seed=3, fields=["key"], remainder="drop").take(10)  # more than a look
    first, second = ([key for batch in keys(part) for key in batch] for _ in range(2))
    assert first == halves[:40]
    assert len(second) == 40
    assert set(second) != set(first)
    cached = loader().cache()
    assert keys(cached) == keys(cached) == epoch(expected, 0)
    samples = loader().unbatch().batch(12)
    assert len(list(samples)) == 4


def test_a_loader_is_saved_as_one_epoch(data, expected, tmp_path):
    KINDS["direct"](data).save(str(tmp_path / "saved"))
    assert keys(tf.data.Dataset.load(str(tmp_path / "saved"))) == epoch(expected, 0)


def test_one_reader_serves_all_passes(data):
    train = KINDS["numpy"](data, threads=2, cache=False)
    list(train)
    (reader,) = train.pipeline.readers
    list(train)
    assert train.pipeline.readers == [reader]
    train.close()
    assert reader.stopped


def test_after_an_error_the_next_pass_reads_anew(data, monkeypatch):
    train = KINDS["numpy"](data, cache=False)
    list(train)
    for reader in train.pipeline.readers:
        reader.stop(LoaderError("stopped"))
    assert len(list(train)) == STEPS


# --- Keras --------------------------------------------------------------------------------------------------------------


class Seen(keras.callbacks.Callback):
    """The first pixels of the batches that a model was trained on, by epoch: they tell the sample and its variant."""

    def __init__(self):
        super().__init__()
        self.epochs = []

    def on_epoch_begin(self, epoch, logs=None):
        self.epochs.append([])


def numbers_of(clicks):
    low, high = np.moveaxis(np.asarray(clicks)[:, 0, 0].astype(int), -1, 0)
    return (low + 256 * high).tolist()


def model_noting(seen):
    """An eager model that notes the samples of each batch."""

    class Model(keras.Sequential):
        def train_step(self, batch):
            seen.epochs[-1].append(numbers_of(batch[0]))
            return super().train_step(batch)

    model = Model([keras.Input((24, 32, 2)), keras.layers.Flatten(), keras.layers.Dense(3)])
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True), run_eagerly=True)
    return model


@pytest.fixture(scope="module")
def numbers(data):
    loader = data.numpy_loader("train", 8, seed=3, fields=["clicks"]).repeat()
    batches = itertools.islice(loader, 4 * STEPS)
    return [numbers_of(batch["clicks"]) for batch in batches]


FITS = {
    "the loader": (lambda train: train, {}, [6, 6, 6]),
    "mapped": (lambda train: train.map(lambda x, y: (x, y)), {}, [6, 6, 6]),
    "prefetched": (lambda train: train.map(lambda x, y: (x, y)).prefetch(2), {}, [6, 6, 6]),
    "steps of an epoch": (lambda train: train, {"steps_per_epoch": 6}, [6, 6, 6]),
    "half an epoch": (lambda train: train, {"steps_per_epoch": 3}, [3, 3, 3]),
    "the stream": (lambda train: train.repeat(), {"steps_per_epoch": 5}, [5, 5, 5]),
    "two epochs": (lambda train: train.repeat(2), {"epochs": 1}, [12]),
}


@pytest.mark.parametrize("name", FITS)
def test_fit_reads_epoch_after_epoch(data, numbers, name):
    way, options, sizes = FITS[name]
    train, seen = data.loader("train", 8, seed=3, inputs="clicks", targets="label"), Seen()
    val = data.loader("val", 8, inputs="clicks", targets="label")
    model = model_noting(seen)
    model.evaluate(val, verbose=0)
    fit = {"epochs": 3, "verbose": 0, "shuffle": False, "validation_data": val, **options}
    model.fit(way(train), callbacks=[seen], **fit)
    assert [len(batches) for batches in seen.epochs] == sizes
    assert [batch for batches in seen.epochs for batch in batches] == numbers[: sum(sizes)]


def test_steps_per_epoch_that_does_not_divide_the_epoch(data, numbers):
    """Keras ends the second of its epochs early and says why; no batch is lost or read twice."""
    train, seen = data.loader("train", 8, seed=3, inputs="clicks", targets="label"), Seen()
    with pytest.warns(UserWarning, match=r"may need to use the `\.repeat\(\)`"):
        model_noting(seen).fit(train, steps_per_epoch=4, epochs=3, verbose=0, shuffle=False, callbacks=[seen])
    assert [len(batches) for batches in seen.epochs] == [4, 2, 4]
    assert [batch for batches in seen.epochs for batch in batches] == numbers[:10]


def test_two_fits_go_on_one_after_another(data, numbers):
    train, seen = data.loader("train", 8, seed=3, inputs="clicks", targets="label"), Seen()
    model = model_noting(seen)
    for _ in range(2):
        model.fit(train, verbose=0, shuffle=False, callbacks=[seen])
    assert [batch for batches in seen.epochs for batch in batches] == numbers[: 2 * STEPS]


# --- what is training ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("split", "training"),
    [("train", True), ("train2017", True), ("trainval", True), ("Training", True)]
    + [(name, False) for name in ("val", "valid_1", "Validation", "dev", "test_dev", "test2007", "holdout", "eval")],
)
def test_the_name_of_a_split_says_what_it_is_for(make_dataset, split, training):
    data = tfprep.open(make_dataset(samples={split: 4}, fields=("image", "label")).path)
    loader = data.numpy_loader(split, 2)
    assert loader.pipeline.training is training
    assert ("training=True" if training else "training=False") in repr(loader)
    assert loader.report()["training"] is training
    assert data.numpy_loader(split, 2, training=not training).pipeline.training is not training


@pytest.mark.parametrize("split", ["all", "extra", "value", "unlabeled", "fold0"])
def test_a_name_that_says_nothing_is_an_error(make_dataset, split):
    data = tfprep.open(make_dataset(samples={split: 4}, fields=("image", "label")).path)
    with pytest.raises(LoaderError, match=f"'{split}' does not say .* training=True .* training=False"):
        data.numpy_loader(split, 2)
    assert len(data.numpy_loader(split, 2, training=True)) == 2


def test_folds_and_mixes(data):
    train, validation = data.folds(5)[0]
    assert train.numpy_loader(8).pipeline.training
    assert not validation.numpy_loader(8).pipeline.training
    with pytest.raises(LoaderError, match=r"is for training and for evaluation: add training=True"):
        tfprep.mix({train: 1, validation: 1}).numpy_loader("train", 8)


def test_what_an_epoch_leaves_out_is_said(data):
    loader = data.numpy_loader("train", 8, fields=["key"])
    assert "6 steps of 8; 2 samples are left out, other ones each time" in repr(loader)
    assert loader.report()["left_out_per_epoch"] == 2
    left = [
        set(loader.pipeline.table.column("key").to_pylist()) - {k for b in loader for k in b["key"]} for _ in range(5)
    ]
    assert all(len(keys) == 2 for keys in left)
    assert len(set().union(*left)) > 2


def test_fewer_samples_than_a_batch(data):
    """There is no full batch to keep, so nothing is dropped."""
    loader = data.numpy_loader("train", 64)
    assert [len(batch["key"]) for batch in data.numpy_loader("train", 64, fields=["key"])] == [50]
    assert loader.report()["left_out_per_epoch"] == 0


def test_the_loader_is_quiet(data):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        list(data.loader("train", 8, fields=["key"]))


def test_the_batch_that_keras_takes_to_build_a_model_uses_no_epoch(data, numbers):
    """Under a strategy `fit` takes one, and TensorFlow some more in advance for the devices."""
    train, seen = data.loader("train", 8, seed=3, inputs="clicks", targets="label"), []

    class Next(keras.callbacks.Callback):
        def on_train_begin(self, logs=None):
            seen.append(train.next_step)

        def on_epoch_end(self, epoch, logs=None):
            seen.append(train.next_step)

    with tf.distribute.MirroredStrategy(["CPU:0"]).scope():
        model = keras.Sequential([keras.layers.Flatten(), keras.layers.Dense(3)])
        model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    model.fit(train, epochs=2, verbose=0, shuffle=False, callbacks=[Next()])
    assert seen == [0, STEPS, 2 * STEPS]


def test_threads_that_share_an_iterator_take_one_epoch(train, expected):
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for number in range(5):
            batches, taken = iter(train), []
            threads = [threading.Thread(target=lambda i=batches, t=taken: t.extend(i)) for _ in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            assert sorted(keys(taken)) == sorted(epoch(expected, number))
    finally:
        sys.setswitchinterval(interval)
