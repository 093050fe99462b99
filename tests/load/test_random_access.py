"""Samples by number, compared with TensorFlow's parser and Pillow, and with the values from which the records were written."""

import multiprocessing
import pickle
import shutil
import threading
from contextlib import closing

import numpy as np
import pyarrow.compute as pc
import pytest

import tfprep
from tests.conftest import CODECS, write_dataset
from tests.load.batches import overwrite
from tfprep.errors import DatasetError, LoaderError, RecordError

FIELDS = ["key", "variant", *CODECS]


def same(sample, expected):
    for name in CODECS:
        assert np.array_equal(sample[name], expected[name]), name


@pytest.mark.parametrize("together", [False, True])
def test_every_sample_of_every_variant(photos, data, together):
    samples = data.random_access("train", variant="all", fields=FIELDS)
    assert len(samples) == 150
    same(data.random_access("train", variant=2)[3], photos.values["train"][2][3])
    numbers = np.random.default_rng(0).permutation(150)
    read = samples.__getitems__(numbers) if together else [samples[number] for number in numbers]
    for number, sample in zip(numbers.tolist(), read, strict=True):
        variant, row = divmod(number, 50)
        same(sample, photos.values["train"][variant][row])
        assert (sample["key"], sample["variant"]) == (photos.keys["train"][row], variant)


def test_a_sequence(data):
    samples = data.random_access("val", fields=["key"])
    assert [sample["key"] for sample in samples] == [f"val/{number:04d}" for number in range(11)]
    for number in (11, -12, 1 << 40):
        with pytest.raises(IndexError, match="11 samples"):
            samples[number]
    assert samples[-1] == samples[np.int64(10)] == {"key": "val/0010"}
    assert samples.__getitems__([]) == []
    assert samples.__getitems__([4, 4])[1] == {"key": "val/0004"}
    with pytest.raises(TypeError):
        samples["4"]


def test_folds_and_mixes(data, photos):
    train, validation = data.folds(5, seed=1)[2]
    keys = [sample["key"] for part in (train, validation) for sample in part.random_access(fields=["key"])]
    assert len(validation) == 10
    assert sorted(keys) == photos.keys["train"]
    mixed = tfprep.mix({train: 1, validation: 3})
    assert [sample["key"] for sample in mixed.random_access(fields=["key"])] == keys


@pytest.mark.parametrize(
    "options",
    [
        {"start_step": 2},
        {"where": pc.field("label").isin([0, 2])},
        {"where": pc.field("label") != 1, "hosts": (1, 2)},
        {"weights": {"cat": 3, "dog": 1, "owl": 0}},
        {"where": pc.field("label") != 0, "weights": {"dog": 1, "owl": 4}},
    ],
)
def test_a_batch_sampler_numbers_the_samples_of_a_loader(data, options):
    """Of the split and of a fold, pass after pass; a copy for another process begins with the first step."""
    fields = ["key", "variant"]
    for part in (data.subset("train"), data.folds(5)[0][0]):
        samples = part.random_access(variant="all", fields=fields)
        sampler = part.batch_sampler(batch_size=8, seed=2, **options)
        loader = part.numpy_loader(batch_size=8, seed=2, fields=fields, **options)
        steps = [*sampler, *sampler]
        for numbers, batch in zip(steps, [*loader, *loader], strict=True):
            seen = [(sample["key"], sample["variant"]) for sample in samples.__getitems__(numbers)]
            assert seen == list(zip(batch["key"], batch["variant"], strict=True))
        copied = list(pickle.loads(pickle.dumps(sampler)))
        assert copied == steps[: len(copied)] != []


def test_the_state_of_an_iterator_of_a_batch_sampler(data):
    """The states of the sampler itself are in test_state.py."""
    batches = data.batch_sampler("train", 8, seed=4)
    unread, iterator = iter(batches), iter(batches)
    for _ in range(3):
        next(iterator)
    assert batches.state_dict() == iterator.state_dict() == data.numpy_loader("train", 8, seed=4).state_dict(step=3)
    assert unread.state_dict()["step"] == 0  # of the same epoch, which has been looked at
    with pytest.raises(LoaderError, match="the step of a state is a whole number from 0 to"):
        batches.load_state_dict({**batches.state_dict(), "step": 1 << 60})


def test_a_restored_iterator_that_is_dropped_gives_its_epoch_back(data):
    """As torchdata drops it, after it has read ahead, where the state says that the epoch had ended."""
    batches = data.batch_sampler("train", 8, seed=4)
    state = batches.state_dict(step=6)
    iterator = iter(batches)
    iterator.load_state_dict(state)
    ahead = [next(iterator) for _ in range(4)]
    assert list(batches)[:4] == ahead
    assert list(batches)[:4] != ahead


def test_what_another_selection_reads_has_another_name(data):
    """Grain compares it before it resumes."""
    folds = [train.random_access() for train, _ in data.folds(5)]
    others = [data.random_access("train", **each) for each in ({}, {"variant": 1}, {"fields": ["image"]})]
    assert len({repr(samples) for samples in (*folds, *others)}) == 8
    for samples in (folds[0], others[-1]):
        assert repr(samples) == repr(pickle.loads(pickle.dumps(samples)))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda data: data.batch_sampler("train", 8, fields=["image"]), r"batch_sampler\(\) has no option 'fields'"),
        (
            lambda data: data.batch_sampler("val", 8, hosts=(0, 4)),
            "the last batch holds 3 samples, so that some of the 4 hosts",
        ),
        (
            lambda data: data.random_access("train", variant="rotate"),
            "'all', is a whole number, not 'rotate'",
        ),
        (lambda data: data.random_access("train", variant=3), "there is no variant 3"),
        (lambda data: data.random_access("train", fields=["picture"]), "no field 'picture'"),
    ],
)
def test_wrong_uses(data, call, message):
    with pytest.raises(LoaderError, match=message):
        call(data)


def test_a_record_that_cannot_be_read(tmp_path):
    made = write_dataset(tmp_path / "made", samples={"train": 9}, shards=3, fields=["image", "label"])
    overwrite(made.path / "made-train.tfrecord-00001-of-00003", 40, b"\0\xff\0")
    data = tfprep.open(made.path)
    with pytest.raises(RecordError, match=r"00001-of-00003.*record 0.*train/0003"):
        data.random_access("train")[3]
    samples = data.random_access("train", on_bad="skip", fields=["key", "image"])
    replaced = samples[3]["key"]
    assert replaced != "train/0003"
    assert samples[3]["key"] == replaced
    assert samples.__getitems__([2, 3, 4])[1]["key"] == replaced
    assert [bad["key"] for bad in samples.bad_records] == ["train/0003"]


def test_a_version_that_is_removed_meanwhile(tmp_path):
    made = write_dataset(tmp_path / "made", samples={"train": 9}, shards=3, fields=["image", "label"])
    samples = tfprep.open(made.path).random_access("train", fields=["image"])
    before = samples[1]
    pickled = pickle.dumps(samples)
    shutil.rmtree(made.path)
    assert np.array_equal(samples[1]["image"], before["image"])  # of the file that is open
    with pytest.raises(DatasetError, match="cannot be opened"):
        samples[4]
    with pytest.raises(DatasetError, match="was removed or moved: open"):
        pickle.loads(pickled)


def _labels(samples, numbers, answer):
    answer.put([int(sample["label"]) for sample in samples.__getitems__(numbers)])


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_other_processes(photos, data, method):
    samples = data.random_access("train", fields=["label"])
    samples[0]
    context = multiprocessing.get_context(method)
    answer = context.Queue()
    process = context.Process(target=_labels, args=(samples, [7, 3, 49], answer))
    process.start()
    assert answer.get(timeout=300) == [photos.values["train"][0][row]["label"] for row in (7, 3, 49)]
    process.join()
    assert samples[7]["label"] == photos.values["train"][0][7]["label"]


def test_threads(photos, data):
    samples = data.random_access("train", variant="all")
    wrong = []

    def read(seed):
        for number in np.random.default_rng(seed).permutation(150)[:60].tolist():
            try:
                same(samples[number], photos.values["train"][number // 50][number % 50])
            except BaseException as error:
                wrong.append(error)

    threads = [threading.Thread(target=read, args=(seed,)) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_a_store(photos, s3):
    data = tfprep.open(s3.copy(photos.path))
    samples = data.random_access("train", variant="all", fields=FIELDS)
    for number, sample in zip([149, 3, 70], samples.__getitems__([149, 3, 70]), strict=True):
        same(sample, photos.values["train"][number // 50][number % 50])
    same(samples[8], photos.values["train"][0][8])


def test_the_current_folder_changes_after_a_dataset_was_opened(photos, monkeypatch, tmp_path):
    monkeypatch.chdir(photos.path.parent)
    data = tfprep.open(photos.path.name)
    monkeypatch.chdir(tmp_path)
    assert len(data.random_access("train")[3]) == len(data.fields)
    with closing(data.numpy_loader("train", 8, workers="threads", cache=False)) as loader:
        assert len(list(loader)) == len(loader)
