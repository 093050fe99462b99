"""A pass is an epoch and the next pass the next one, in every framework, whatever a consumer does with its iterators.

What passes deliver is compared with the batch sampler: epoch e of a run is the steps [e n, e n + n).
"""

import itertools
import sys
import threading

import numpy as np
import pytest

import tfprep
from tests.conftest import write_dataset
from tests.load.batches import flat, keys
from tfprep.errors import LoaderError

tf = pytest.importorskip("tensorflow")
keras = pytest.importorskip("keras")

STEPS = 6
"""50 samples in batches of 8: two are left out."""
LABELS = {"seed": 3, "inputs": "clicks", "targets": "label"}


@pytest.fixture(scope="module")
def numbers(data):
    """The numbers of the samples of each step of ten epochs, counted over all variants."""
    sampler = data.batch_sampler("train", 8, seed=3)
    return [numbers for _ in range(10) for numbers in sampler]


@pytest.fixture(scope="module")
def expected(numbers):
    return [[f"train/{number % 50:04d}" for number in step] for step in numbers]


@pytest.fixture(params=["numpy_loader", "loader"])
def make(data, request):
    return lambda **options: getattr(data, request.param)("train", 8, seed=3, fields=["key"], **options)


@pytest.fixture
def train(make):
    return make()


def epoch(expected, number):
    return expected[number * STEPS : (number + 1) * STEPS]


def taken(batches, count):
    return keys(itertools.islice(batches, count))


def test_each_pass_is_the_next_epoch(train, expected):
    assert len(train) == train.steps_per_epoch == STEPS
    for number in range(3):
        assert train.next_step == number * STEPS
        assert keys(train) == epoch(expected, number)


def test_a_pass_uses_its_epoch_with_its_ninth_or_its_last_batch(data):
    """In batches of 4, an epoch has 12 steps. The passes that begin before that share the epoch."""
    expected = keys(itertools.islice(data.numpy_loader("train", 4, seed=3, fields=["key"]).repeat(), 60))
    train = data.numpy_loader("train", 4, seed=3, fields=["key"])
    iter(train)  # never read
    for count in (1, 3, 8):
        assert taken(train, count) == expected[:count]
        assert train.next_step == 0
    assert taken(train, 9) == expected[:9]
    assert taken(train, 12) == expected[12:24]
    one, other = zip(*zip(train, train, strict=True), strict=True)  # they begin together
    assert keys(one) == keys(other) == expected[24:36]
    one, other = iter(train), iter(train)  # read one after the other
    assert [keys(one), keys(other)] == [expected[36:48], expected[48:60]]


def test_the_last_batch_of_a_short_epoch_uses_it(data, expected):
    train = data.numpy_loader("train", 8, seed=3, fields=["key"])
    assert taken(train, STEPS - 1) == epoch(expected, 0)[:-1]
    assert taken(train, STEPS) == epoch(expected, 0)
    assert taken(train, 1) == epoch(expected, 1)[:1]


def test_an_epoch_by_its_number(make, train, expected):
    for number in (5, 0, 2):
        train.set_epoch(number)
        assert keys(train) == epoch(expected, number)
    assert keys(train) == epoch(expected, 3)
    train.set_epoch(7)
    assert train.next_step == 7 * STEPS
    for number in (-1, 1.5, True, "2", 2**40):
        with pytest.raises(LoaderError, match="epoch is a whole number from 0"):
            train.set_epoch(number)
    with pytest.raises(LoaderError, match=r"set_epoch\(\) is for training"):
        make(training=False).set_epoch(1)


def test_a_pass_that_began_before_an_epoch_was_set_does_not_move_it(train, expected):
    before = iter(train)
    next(before)
    train.set_epoch(0)
    list(before)
    assert keys(train) == epoch(expected, 0)


def test_a_stream_that_is_left(data, expected):
    stream = data.numpy_loader("train", 8, seed=3, fields=["key"]).repeat()
    assert taken(stream, STEPS + 2) == expected[: STEPS + 2]
    assert stream.next_step == STEPS  # only two batches of the second epoch are read: no more than a look
    assert taken(stream, STEPS + 3) == expected[STEPS : 2 * STEPS + 3]
    assert stream.next_step == 3 * STEPS  # more than a look: the rest of the third one is left


def test_the_stream_of_epochs(make, expected):
    stream = make().repeat()
    assert taken(stream, STEPS + 2) == expected[: STEPS + 2]
    twice = make().repeat(2)
    assert len(twice) == 2 * STEPS
    assert keys(twice) == expected[: 2 * STEPS]
    assert twice.next_step == 2 * STEPS
    for count in (0, -2, 1.5, True, "2"):
        with pytest.raises(LoaderError, match=r"the number of epochs.* is a whole number from 1"):
            twice.repeat(count)
    with pytest.raises(TypeError):
        len(stream)


@pytest.mark.parametrize("start", [0, STEPS, 4, STEPS - 1])
def test_passes_from_a_start_step_on(data, make, expected, start):
    """A pass from within an epoch ends where the epoch ends; with tf.data, which was promised a length, each has that length."""
    train = make(start_step=start)
    assert len(train) == STEPS
    end = start + STEPS if isinstance(train, tf.data.Dataset) else STEPS * (start // STEPS + 1)
    assert [keys(train), keys(train)] == [expected[start:end], expected[end : end + STEPS]]
    assert train.next_step == end + STEPS
    assert keys(make(start_step=start).repeat(2)) == expected[start : end + STEPS]
    eager = data.loader("train", 8, seed=3, fields=["key"], start_step=start).eager()
    assert keys(eager) == expected[start : STEPS * (start // STEPS + 1)]


def test_a_batch_by_its_step(make, expected):
    train = make()
    for step in (17, 0, 5, 6):
        assert keys([train[step]]) == expected[step : step + 1]
    assert keys(train) == epoch(expected, 0)  # which changed nothing
    epochs = train.epochs(2)
    assert len(epochs) == 2 * STEPS
    assert keys(epochs) == expected[: 2 * STEPS] != keys([*epochs][:STEPS] * 2)
    for wrong, error in ((-1, IndexError), (2 * STEPS, IndexError), ("1", TypeError)):
        with pytest.raises(error):
            epochs[wrong]
    for step in (-1, 2**36, 2**62, 2**70):  # positions are numbers of 64 bits
        with pytest.raises(IndexError, match="numbered from 0 to 68,719,476,735; there is no"):
            train[step]
    for count in (2**33, 10**30, np.array([1, 2])):
        with pytest.raises(LoaderError, match=r"the number of epochs.* is a whole number from 1"):
            train.repeat(count)
    val = make(training=False)
    assert keys([val[step] for step in range(len(val))]) == keys(val)
    with pytest.raises(IndexError, match="numbered from 0 to 6; there is no 7"):
        val[7]


def test_evaluation_reads_the_same_in_each_pass(make):
    val = make(training=False)
    assert len(val) == 7
    first = keys(val)
    assert flat(first) == [f"train/{number:04d}" for number in range(50)]
    assert taken(val, 5) == first[:5]
    assert keys(val) == first
    assert val.next_step == 0


def test_chains_of_tf_data(data, expected, tmp_path):
    def loader(batch_size=8, **options):
        return data.loader("train", batch_size, seed=3, fields=["key"], **options)

    mapped = loader().map(lambda batch: batch)
    assert [keys(mapped), keys(mapped)] == [epoch(expected, 0), epoch(expected, 1)]
    assert keys(loader().map(lambda batch: batch).repeat(2)) == expected[: 2 * STEPS]
    assert len(mapped) == len(loader().prefetch(2)) == STEPS
    part = loader(4, remainder="drop").take(10)  # more than a look
    first, second = (flat(keys(part)) for _ in range(2))
    assert first == flat(expected)[:40]
    assert len(second) == 40
    assert set(second) != set(first)
    cached = loader().cache()
    assert keys(cached) == keys(cached) == epoch(expected, 0)
    assert len(list(loader().unbatch().batch(12))) == 4
    loader().save(str(tmp_path / "saved"))
    assert keys(tf.data.Dataset.load(str(tmp_path / "saved"))) == epoch(expected, 0)


def test_one_reader_serves_all_passes(data, reading_threads):
    train = data.numpy_loader("train", 8, threads=2, cache=False, workers="threads")
    list(train)
    threads = reading_threads()
    list(train)
    assert reading_threads() == threads
    assert len(threads) == 2
    train.close()
    assert not reading_threads()


def test_what_was_read_ahead_of_the_last_batch_is_that_of_the_next_pass(make):
    train, passes, ahead = make(cache=False, workers="threads", prefetch=3), 5, 4
    assert [len(list(train)) for _ in range(passes)] == [STEPS] * passes
    assert train.stats["records_read"] <= (passes * STEPS + ahead) * 8


def test_after_an_error_the_next_pass_reads_anew(data, at_each_record):
    faults = [RuntimeError("once")]

    def fail_once():
        if faults:
            raise faults.pop()

    at_each_record(fail_once)
    train = data.numpy_loader("train", 8, cache=False, verify="always", workers="threads")
    with pytest.raises(RuntimeError, match="once"):
        list(train)
    assert len(list(train)) == STEPS


def test_threads_that_share_an_iterator_take_one_epoch(train, expected):
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for number in range(5):
            batches, found = iter(train), []
            threads = [threading.Thread(target=lambda i=batches, t=found: t.extend(i)) for _ in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            assert sorted(keys(found)) == sorted(epoch(expected, number))
    finally:
        sys.setswitchinterval(interval)


# --- Keras --------------------------------------------------------------------------------------------------------------


class Seen(keras.callbacks.Callback):
    """The first pixels of the batches that a model was trained on, by epoch: they tell the sample and its variant."""

    def __init__(self):
        super().__init__()
        self.epochs = []

    def on_epoch_begin(self, epoch, logs=None):
        self.epochs.append([])

    def check(self, numbers, sizes):
        assert [len(batches) for batches in self.epochs] == sizes
        expected = [[number % 50 + 1000 * (number // 50) for number in step] for step in numbers[: sum(sizes)]]
        assert [batch for batches in self.epochs for batch in batches] == expected


def model_noting(seen):
    """An eager model that notes the samples of each batch."""

    class Model(keras.Sequential):
        def train_step(self, batch):
            seen.epochs[-1].append((np.asarray(batch[0])[:, 0, 0].astype(int) @ [1, 256]).tolist())
            return super().train_step(batch)

    model = Model([keras.Input((24, 32, 2)), keras.layers.Flatten(), keras.layers.Dense(3)])
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True), run_eagerly=True)
    return model


FITS = {
    "the loader": (lambda train: train, {}, [[6, 6, 6]]),
    "one fit after another": (lambda train: train, {}, [[6], [6]]),
    "mapped": (lambda train: train.map(lambda x, y: (x, y)).prefetch(2), {}, [[6, 6, 6]]),
    "half an epoch": (lambda train: train, {"steps_per_epoch": 3}, [[3, 3, 3]]),
    "a part that does not divide the epoch": (lambda train: train, {"steps_per_epoch": 4}, [[4, 2, 4]]),
    "the stream": (lambda train: train.repeat(), {"steps_per_epoch": 5}, [[5, 5, 5]]),
    "two epochs": (lambda train: train.repeat(2), {}, [[12]]),
}


@pytest.mark.filterwarnings(
    "ignore:Your input ran out of data"
)  # Keras ends the second of the epochs that are not divided
@pytest.mark.parametrize("name", FITS)
def test_fit_reads_epoch_after_epoch(data, numbers, name):
    """No batch is lost or read twice."""
    way, options, fits = FITS[name]
    train, seen = data.loader("train", 8, **LABELS), Seen()
    val = data.loader("val", 8, inputs="clicks", targets="label")
    model = model_noting(seen)
    model.evaluate(val, verbose=0)
    options = {"verbose": 0, "shuffle": False, "validation_data": val, **options}
    for sizes in fits:
        model.fit(way(train), epochs=len(sizes), callbacks=[seen], **options)
    seen.check(numbers, [size for sizes in fits for size in sizes])


def test_the_batch_that_keras_takes_to_build_a_model_uses_no_epoch(data):
    """Under a strategy `fit` takes one, and TensorFlow some more in advance for the devices."""
    train, seen = data.loader("train", 8, **LABELS), []
    note = keras.callbacks.LambdaCallback(
        on_train_begin=lambda logs: seen.append(train.next_step),
        on_epoch_end=lambda epoch, logs: seen.append(train.next_step),
    )
    with tf.distribute.MirroredStrategy(["CPU:0"]).scope():
        model = keras.Sequential([keras.layers.Flatten(), keras.layers.Dense(3)])
        model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    model.fit(train, epochs=2, verbose=0, shuffle=False, callbacks=[note])
    assert seen == [0, STEPS, 2 * STEPS]


# --- what is training ---------------------------------------------------------------------------------------------------

PURPOSES = dict.fromkeys(["train", "train2017", "trainval", "Training"], True)
PURPOSES |= dict.fromkeys(["val", "valid_1", "Validation", "dev", "test_dev", "test2007", "holdout", "eval"], False)
PURPOSES |= dict.fromkeys(["all", "extra", "value", "unlabeled", "fold0"])


@pytest.fixture(scope="module")
def splits(tmp_path_factory):
    samples = dict.fromkeys(PURPOSES, 4)
    return tfprep.open(write_dataset(tmp_path_factory.mktemp("splits") / "d", samples=samples, fields=("label",)).path)


@pytest.mark.parametrize("split", PURPOSES)
def test_the_name_of_a_split_says_what_it_is_for(splits, split):
    if PURPOSES[split] is None:
        with pytest.raises(LoaderError, match=f"'{split}' does not say .* training=True .* training=False"):
            splits.numpy_loader(split, 2)
    else:
        loader = splits.numpy_loader(split, 2)
        assert f"training={PURPOSES[split]}" in repr(loader)
        assert loader.report()["training"] is PURPOSES[split]
    for training in (True, False):
        assert splits.numpy_loader(split, 2, training=training).report()["training"] is training


def test_folds_and_mixes(data):
    train, validation = data.folds(5)[0]
    assert train.numpy_loader(batch_size=8).report()["training"]
    assert not validation.numpy_loader(batch_size=8).report()["training"]
    with pytest.raises(LoaderError, match=r"for training and for evaluation are read, .*: add training=True"):
        tfprep.mix({train: 1, validation: 1}).numpy_loader("train", 8)


def test_what_an_epoch_leaves_out_is_said(data, photos, caplog):
    loader = data.numpy_loader("train", 8, fields=["key"])
    assert "6 steps of 8; 2 samples left out, other ones each time" in repr(loader)
    assert loader.report()["left_out_per_epoch"] == 2
    left = [set(photos.keys["train"]) - set(flat(keys(loader))) for _ in range(5)]
    assert {len(each) for each in left} == {2}
    assert len(set().union(*left)) > 2
    few = data.numpy_loader("train", 64, fields=["key"])  # there is no full batch to keep, so nothing is dropped
    assert [len(batch) for batch in keys(few)] == [50]
    assert few.report()["left_out_per_epoch"] == 0
    assert "batch_size=64 is larger than the 50 samples of an epoch" in caplog.text


def test_passes_that_see_the_same_batches_again_and_again_are_named(photos, caplog):
    """As of Lightning with limit_train_batches=5."""
    loader = tfprep.open(photos.path).numpy_loader("train", 4, fields=["key"])
    assert len(loader) > 9
    with caplog.at_level("WARNING", logger="tfprep.load"):
        for epoch in range(10):
            loader.set_epoch(epoch)
            taken(loader, 5)
        assert not caplog.messages
        seen = [taken(loader, 5) for _ in range(6)]
    assert all(each == seen[0] for each in seen)
    (message,) = caplog.messages
    assert "4 passes in a row began with step 108 and have the same batches" in message


def test_a_sampler_that_takes_the_same_steps_in_each_epoch_is_named(photos, caplog):
    """As of DataLoader(loader, batch_size=None), which takes a class with a length and items for a dataset of one epoch."""
    data = tfprep.open(photos.path)
    for training in (False, True):
        loader = data.numpy_loader("train", 8, fields=["key"], training=training)
        for source in (loader.epochs(2) if training else loader, loader):
            with caplog.at_level("WARNING", logger="tfprep.load"):
                epochs = [[list(source[step]["key"]) for step in range(len(source))] for _ in range(2)]
            assert epochs[0] == epochs[1]
            assert bool(caplog.messages) == (training and source is loader)
    assert "step 0 comes again after the last step of an epoch, with the same batch" in caplog.text
    assert list(loader.epochs(2)[len(loader)]["key"]) != epochs[0][0]


def test_a_short_epoch_that_a_look_could_use_up_is_named_where_passes_are_epochs(data, caplog):
    with caplog.at_level("WARNING", logger="tfprep.load"):
        next(iter(data.loader("train", 8, **LABELS).repeat()))
        assert not caplog.messages
        train = data.loader("train", 8, **LABELS)
        for _ in range(2):
            next(iter(train))
    assert [
        text for text in caplog.messages if "has only 6 steps" in text and "repeat(), steps_per_epoch=6)" in text
    ] == caplog.messages
    assert len(caplog.messages) == 1


def test_a_loader_that_another_thread_closes_while_a_batch_is_counted(data):
    """The next call says so at once."""

    class Closing(dict):
        def __setitem__(self, name, value):
            super().__setitem__(name, value)
            loader.close()

    loader = data.numpy_loader("train", 8, workers="threads", timeout_s=20)
    steps = iter(loader.repeat())
    next(steps)
    loader.pipeline.counts = Closing(loader.pipeline.counts)
    next(steps)
    with pytest.raises(LoaderError, match="the loader is closed"):
        next(steps)
