"""A dataset that another build replaces while somebody reads it: old data or `DatasetReplacedError`, never both builds mixed."""

import itertools
import json
import os
import pickle
import shutil
import signal
import threading
import time
from contextlib import closing

import numpy as np
import psutil
import pytest

import tfprep
from tests.load.batches import overwrite
from tests.waiting import wait_until
from tfprep.dataset.manifest import seal
from tfprep.errors import DatasetReplacedError, RecordError
from tfprep.load.reader import files
from tfprep.storage.store import open_store

FIELDS = ("clicks", "label")
SAMPLES = 40
OLD, NEW = 0, 1000
"""Added to the number that `clicks` shows in all its pixels."""


def shown(number):
    """Both channels hold a constant, which together are a number: see `photo_fields`."""
    return np.stack([np.full((24, 32), number % 256), np.full((24, 32), number // 256)], -1).astype(np.uint8)


def numbers(batch):
    values = np.asarray(batch["clicks"]).astype(int)
    assert (values == values[:, :1, :1]).all()
    return values[:, 0, 0, 0] + 256 * values[:, 0, 0, 1]


@pytest.fixture
def builds(make_dataset):
    """Two builds of one form, whose shards have equal names and sizes."""

    def build(name, first):
        def make(rng, number):
            return {"clicks": shown(number + first), "label": number % 3}

        return make_dataset(name, samples={"train": SAMPLES}, shards=10, fields=FIELDS, make=make)

    return build("old", OLD), build("new", NEW)


def publish(new, folder):
    """Replace a dataset as a build does: `tfprep.json` before any shard, and each file by a rename."""
    names = sorted(os.listdir(new.path), key=lambda name: name != "tfprep.json")
    for name in names:
        shutil.copy(new.path / name, folder / f".{name}.tmp")
        os.replace(folder / f".{name}.tmp", folder / name)


def seen_until_replaced(batches, most=400):
    """The numbers of all samples that come before the error."""
    seen = set()
    with pytest.raises(DatasetReplacedError, match=r"open (it|the dataset) again"):
        seen.update(number for _ in range(most) for number in numbers(next(batches)).tolist())
    return seen


@pytest.mark.parametrize("options", [{"on_bad": "skip"}, {"verify": "never"}, {"verify": "always", "on_bad": "skip"}])
def test_threads_that_open_files_again_read_no_other_build(builds, monkeypatch, options):
    monkeypatch.setattr(files.Files.__init__, "__kwdefaults__", {"damaged": None, "limit": 3})
    old, new = builds
    loader = tfprep.open(old.path).numpy_loader("train", 8, cache=False, workers="threads", **options).repeat()
    batches = iter(loader)
    first = [next(batches) for _ in range(10)]  # every record has been read, and so compared, by now
    publish(new, old.path)
    seen = seen_until_replaced(batches) | {number for batch in first for number in numbers(batch).tolist()}
    assert seen == set(range(SAMPLES))
    assert not loader.report()["bad_records"]
    loader.close()


def test_worker_processes_that_start_again_read_no_other_build(builds):
    old, new = builds
    options = {"cache": False, "workers": "processes", "threads": 2, "on_bad": "skip"}
    loader = tfprep.open(old.path).numpy_loader("train", 8, **options).repeat()
    batches = iter(loader)
    wait_until(lambda: next(batches) and loader.report()["workers"]["started"])
    publish(new, old.path)
    for child in psutil.Process().children():
        if any("worker_process" in part for part in child.cmdline()):
            child.send_signal(signal.SIGKILL)
    assert seen_until_replaced(batches) <= set(range(SAMPLES))
    loader.close()


def test_a_loader_on_many_open_files_goes_on_with_old_data(builds):
    old, new = builds
    with closing(tfprep.open(old.path).numpy_loader("train", 8, cache=False, workers="threads").repeat()) as loader:
        batches = iter(loader)
        list(itertools.islice(batches, 10))
        publish(new, old.path)
        assert {number for _ in range(20) for number in numbers(next(batches)).tolist()} == set(range(SAMPLES))


def test_a_first_reading_that_meets_another_build_is_no_bad_record(builds):
    """The files are opened after the publication; `clicks` of both builds have equal places and sizes."""
    old, new = builds
    loader = tfprep.open(old.path).numpy_loader("train", 8, on_bad="skip")
    publish(new, old.path)
    assert seen_until_replaced(iter(loader)) <= set(range(SAMPLES))


def test_a_dataset_that_was_replaced_before_its_loader_was_made(builds):
    old, new = builds
    data = tfprep.open(old.path)
    sent = pickle.dumps(data)
    assert len(numbers(next(iter(pickle.loads(sent).numpy_loader("train", 8))))) == 8
    publish(new, old.path)
    with pytest.raises(DatasetReplacedError, match="was replaced by another build since it was opened; open it again"):
        data.numpy_loader("train", 8)
    with pytest.raises(DatasetReplacedError):
        pickle.loads(sent).numpy_loader("train", 8)
    assert set(numbers(next(iter(tfprep.open(old.path).numpy_loader("train", SAMPLES))))) == {
        *range(NEW, NEW + SAMPLES)
    }


def test_samples_are_those_of_the_build_that_was_opened(builds):
    old, new = builds
    data = tfprep.open(old.path)
    samples = data.samples("train")
    assert next(samples)["clicks"].tolist() == shown(OLD).tolist()
    publish(new, old.path)
    with pytest.raises(DatasetReplacedError):
        next(samples)
    with pytest.raises(DatasetReplacedError):
        next(data.samples("train", positions=[3]))


def test_the_old_build_published_again_is_no_damage(builds, tmp_path):
    """The manifest is equal again, so that only its identity shows that what was read in between was another build."""
    old, new = builds
    shutil.copytree(old.path, tmp_path / "kept")
    data = tfprep.open(old.path)
    publish(new, old.path)
    (old.path / "tfprep.json").write_bytes((tmp_path / "kept" / "tfprep.json").read_bytes())
    with pytest.raises(DatasetReplacedError):
        list(data.samples("train"))


def test_a_file_that_is_written_in_place_has_its_checksums_compared(builds):
    """`cp` over a shard keeps its inode: what differs is a bad record, and what is the same record is read."""
    old, new = builds
    data = tfprep.open(old.path)
    options = {"cache": False, "workers": "threads", "verify": "never"}
    same, other = (iter(data.numpy_loader("train", 8, **options).repeat()) for _ in range(2))
    shards = data.split("train").files[0]
    written_in_place(old.path / shards[0].name, (old.path / shards[0].name).read_bytes())
    assert {number for _ in range(10) for number in numbers(next(same)).tolist()} == set(range(SAMPLES))
    for shard in shards:
        written_in_place(old.path / shard.name, (new.path / shard.name).read_bytes())
    with pytest.raises(RecordError, match="the shard and the index come from different builds"):
        next(other)


def written_in_place(path, content):
    overwrite(path, 0, content)
    os.utime(path, ns=(1, 1))


def test_tensorflow_passes_the_error_on(builds, monkeypatch):
    tf = pytest.importorskip("tensorflow")
    monkeypatch.setattr(files.Files.__init__, "__kwdefaults__", {"damaged": None, "limit": 3})
    old, new = builds
    loader = tfprep.open(old.path).loader("train", 8, cache=False, workers="threads", on_bad="skip").repeat()
    eager, mapped = iter(loader.eager()), iter(loader.map(lambda batch: batch))
    for batches in (eager, mapped):
        list(itertools.islice(batches, 10))
    publish(new, old.path)
    seen_until_replaced(eager)
    with pytest.raises(tf.errors.OpError, match="DatasetReplacedError"):
        list(itertools.islice(mapped, 400))
    loader.close()


@pytest.mark.parametrize("taken", [0, 1, 3])
def test_a_plain_pipeline_ends_where_the_dataset_was_replaced(builds, taken):
    """Without Python in the pipeline: TensorFlow's ops compare the end of `tfprep.json` before and after each shard."""
    tf = pytest.importorskip("tensorflow")
    old, new = builds
    dataset = tfprep.open(old.path).tf_dataset("train", 4, fields=["clicks"], variants=0, shuffle_buffer=None)
    assert sorted(np.concatenate([numbers(batch) for batch in dataset])) == list(range(SAMPLES))
    batches = iter(dataset.repeat())
    before = [numbers(next(batches)) for _ in range(taken)]
    publish(new, old.path)
    with pytest.raises(tf.errors.InvalidArgumentError, match="DatasetReplacedError"):
        before += [numbers(batch) for batch in itertools.islice(batches, 100)]
    with pytest.raises(tf.errors.InvalidArgumentError, match="DatasetReplacedError"):
        list(dataset)
    assert all(set(seen.tolist()) <= set(range(SAMPLES)) for seen in before)


def test_an_object_that_was_replaced_at_its_url(builds, s3):
    """Shards that were copied to a bucket keep their usual names, so that a second copy replaces them."""
    old, new = builds
    data = tfprep.open(s3.copy(old.path))
    loader = data.numpy_loader("train", 8, cache=False, on_bad="skip", memory_budget="2MB").repeat()
    batches = iter(loader)
    list(itertools.islice(batches, 15))
    store = open_store(data.path)
    for shard in data.split("train").files[0]:
        store.write(shard.name, new.path / shard.name)
    assert seen_until_replaced(batches) <= set(range(SAMPLES))
    loader.close()


def test_opening_waits_for_the_end_of_a_publication(builds):
    """In the middle of one, `tfprep.json` names hidden files, which are taken away at its end."""
    old, _ = builds
    path = old.path / "tfprep.json"
    final = path.read_bytes()
    hidden = {name: f".0123456789abcdef.{name}" for name in os.listdir(old.path) if name != "tfprep.json"}
    for name, alias in hidden.items():
        os.link(old.path / name, old.path / alias)
    text = final.decode()
    for name, alias in hidden.items():
        text = text.replace(f'"{name}"', f'"{alias}"')
    document = json.loads(text)
    del document["sha256"]
    path.write_text(seal(document))

    def finish():
        time.sleep(0.2)
        (old.path / "tfprep.json.tmp").write_bytes(final)
        os.replace(old.path / "tfprep.json.tmp", path)
        for alias in hidden.values():
            (old.path / alias).unlink()

    thread = threading.Thread(target=finish)
    thread.start()
    data = tfprep.open(old.path)
    thread.join()
    assert data.manifest.index == "index.parquet"
    assert len(list(data.samples("train"))) == SAMPLES
