"""Records that cannot be read are detected, named, and replaced on request; nothing else changes."""

import errno
import os
from contextlib import nullcontext
from itertools import islice

import numpy as np
import pytest

import tfprep
from tests.load.batches import batches, check_same, keys, overwrite
from tfprep import codecs
from tfprep.errors import DatasetError, LoaderError, RecordError
from tfprep.records import masked_crc

ALL = ["image", "clicks", "label"]
FIELDS = [["image"], ["clicks"], ALL]  # Decoded in place, read in place, and both.


@pytest.fixture
def made(make_dataset):
    return make_dataset(samples={"train": 30}, fields=ALL, variants=1, shards=2)


def location_of(made, row):
    """The shard of a row, and what the index says of the row."""
    data = tfprep.open(made.path)
    entry = data.index("train").slice(row, 1).to_pylist()[0]
    return made.path / data.file("train", 0, entry["shard"]).name, entry


def spoil_image(made, *rows, with_checksum=False):
    """Writes zeros over the bytes of images. If the checksum is corrected, only decoding can detect it."""
    for row in rows:
        path, entry = location_of(made, row)
        overwrite(path, entry["image_offset"], bytes(entry["image_size"]))
        if with_checksum:
            end = entry["offset"] + entry["size"] - 4
            payload = path.read_bytes()[entry["offset"] + 12 : end]
            overwrite(path, end, masked_crc(payload).to_bytes(4, "little"))
            made.change_index(row, payload_crc=masked_crc(payload))


def spoil_checksum(made, row):
    path, entry = location_of(made, row)
    overwrite(path, entry["offset"] + entry["size"] - 4, bytes(4))


def read(made, count, fields=ALL, **options):
    return batches(tfprep.open(made.path), count, fields=[*fields, "key"], **options)


def stream(made, fields=ALL, **options):
    """Batches without an end that are not read far ahead."""
    options = {"cache": False, "prefetch": 1, "seed": 3, **options}
    return tfprep.open(made.path).numpy_loader("train", 8, fields=[*fields, "key"], **options).repeat()


def check_values(made, read, fields=ALL):
    """Every value of these batches is that of the record that the batch names."""
    for batch in read:
        for row, key in enumerate(batch["key"].tolist()):
            for field in fields:
                assert np.array_equal(batch[field][row], made.values["train"][0][int(key[-4:])][field]), field


def test_a_wrong_checksum_is_named(made):
    spoil_image(made, 20)
    path, entry = location_of(made, 20)
    with pytest.raises(RecordError, match="wrong checksum of the payload \\(key 'train/0020'\\)") as caught:
        read(made, 10)
    assert (caught.value.path, caught.value.record, caught.value.offset) == (str(path), 5, entry["offset"])


@pytest.mark.parametrize("verify", ["always", "never"])
def test_an_undecodable_image_is_named(made, verify):
    spoil_image(made, 3, with_checksum=True)
    with pytest.raises(RecordError, match=r"record 3 at byte .*: not an image.* \(key 'train/0003'\)"):
        read(made, 10, verify=verify)


@pytest.mark.parametrize("codec", [codecs.Raw(), codecs.Zstd()])
@pytest.mark.parametrize(
    ("stored", "damaged", "message"),
    [
        (b"\n", b"\xff", "not a tf.train.Example"),
        (b"depth/shape", b"depth/shade", "needs the record's own FIELD/shape"),
        (b"\x05depth", b"\x05death", "0 values of 'depth'"),
        (b"\x18\x21", b"\x18\x22", r"expected 1632 of uint16 \[24, 34\]"),
    ],
)
def test_an_example_without_an_array_of_any_size_is_named_and_skipped(make_dataset, codec, stored, damaged, message):
    """The whole Example is decoded where several sides of an array differ."""

    def make(rng, number):
        return {"depth": rng.integers(0, 9, (24 + number % 2, 32 + number % 3)).astype(np.uint16)}

    made = make_dataset(samples={"train": 30}, fields=["depth"], make=make, codec={"depth": codec})
    path, entry = location_of(made, 4)
    payload = path.read_bytes()[entry["offset"] + 12 :][: entry["size"] - 16]
    overwrite(path, entry["offset"] + 12, payload.replace(stored, damaged, 1))
    with pytest.raises(RecordError, match=rf"record 4 at byte .*{message}.* \(key 'train/0004'\)"):
        read(made, 10, ["depth"], verify="never")
    kept = read(made, 10, ["depth"], verify="never", on_bad="skip")
    assert "train/0004" not in keys(kept)
    check_values(made, kept, ["depth"])


@pytest.mark.parametrize(
    ("verify", "at_first", "later"), [("never", False, False), ("first_epoch", True, False), ("always", True, True)]
)
def test_when_checksums_are_compared(made, verify, at_first, later):
    batches = iter(stream(made, verify=verify))
    for _ in range(8):
        next(batches)
    spoil_checksum(made, 3)
    wrong = pytest.raises(RecordError, match="wrong checksum")
    with wrong if later else nullcontext():
        list(islice(batches, 8))
    with wrong if at_first else nullcontext():
        read(made, 10, verify=verify)


@pytest.mark.parametrize("bytes_left", [100, 12, 5, 0])
def test_a_file_that_ends_early(made, bytes_left):
    path, entry = location_of(made, 14)
    loader = stream(made, verify="always")
    os.truncate(path, entry["offset"] + min(bytes_left, entry["size"] - 1))
    with pytest.raises(RecordError, match=r"cut short.*train/0014"):
        list(islice(loader, 10))
    with pytest.raises(
        DatasetError, match=rf"{path.name} holds \d+ bytes, manifest.json says \d+; copy the file again"
    ):
        read(made, 1)
    assert len(read(made, 10, on_bad="skip")) == 10


@pytest.mark.parametrize("fields", FIELDS)
def test_a_file_truncated_in_a_later_epoch_raises_and_does_not_crash(made, fields):
    batches = iter(stream(made, fields))
    for _ in range(8):
        next(batches)
    os.truncate(location_of(made, 0)[0], 100)
    with pytest.raises(RecordError, match=r"cut short: the file holds .* bytes \(key 'train/00"):
        list(islice(batches, 8))


def test_a_deleted_file(made):
    location_of(made, 0)[0].unlink()
    with pytest.raises(DatasetError, match="cannot be opened"):
        read(made, 10)


def without(lists, bad):
    """The keys but those of bad records, with the places of all."""
    return [(at, row, key) for at, each in enumerate(lists) for row, key in enumerate(each) if key not in bad]


def check_replaced(before, after, bad):
    """Every batch has its size and its other samples at their places."""
    assert set().union(*before) >= bad
    assert not set().union(*after) & bad
    assert [len(each) for each in after] == [len(each) for each in before]
    assert set(without(before, bad)) <= set(without(after, ()))


@pytest.mark.parametrize("later", [False, True])
@pytest.mark.parametrize("fields", FIELDS)
def test_a_disk_that_fails(made, monkeypatch, fields, later):
    """Each read of one byte fails as on a broken disk: it is named, or replaced, like any bad record."""
    path, entry = location_of(made, 17)
    place = entry["clicks_offset" if fields == ["clicks"] else "image_offset"]
    real, wanted = os.preadv, os.stat(path).st_ino

    def preadv(descriptor, buffers, offset, *flags):
        stop = offset + sum(memoryview(buffer).nbytes for buffer in buffers)
        if os.fstat(descriptor).st_ino == wanted and offset <= place < stop:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return real(descriptor, buffers, offset, *flags)

    before = keys(islice(stream(made, fields), 16))
    raising, skipping = (iter(stream(made, fields, on_bad=on_bad)) for on_bad in ("raise", "skip"))
    for _ in range(8 * later):
        next(raising), next(skipping)
    monkeypatch.setattr(os, "preadv", preadv)
    with pytest.raises(RecordError, match=r"cannot be read: Input/output error .*key 'train/0017'"):
        list(islice(raising, 8))
    after = list(islice(skipping, 8))
    check_replaced(before[8 * later :][:8], keys(after), {"train/0017"})
    check_values(made, after, fields)


@pytest.mark.parametrize("weights", [None, np.arange(30) % 4])
@pytest.mark.parametrize("fields", FIELDS)
def test_a_cache_that_contains_only_some_rows(made, fields, weights):
    """Some rows of a batch come from the cache, with weights some twice; the others are read with their own spans and checks."""
    row = sum(24 * 32 * {"image": 3, "clicks": 2}.get(field, 0) for field in fields)
    budget = (4 + 1) * 8 * (row + 128) + 12 * row
    loader = stream(made, fields, cache="decoded", memory_budget=budget, weights=weights)
    check_values(made, islice(loader, 15), fields)
    report = loader.report()
    assert 0 < report["cache"]["records"] == report["cache"]["capacity"] < 22
    assert report["memory"]["batches_bytes"] + report["cache"]["capacity"] * row <= budget
    assert loader.stats["records_cached"] > 0


@pytest.mark.parametrize("cold", [False, True])
def test_files_larger_than_memory_are_announced_in_every_epoch(made, monkeypatch, cold):
    asked = []
    monkeypatch.setattr(os, "posix_fadvise", lambda *values: asked.append(values))
    monkeypatch.setattr("tfprep.load.plan.available_memory", lambda: 1000 if cold else 1 << 40)
    list(islice(stream(made, memory_budget="1GB", remainder="keep"), 8))
    index = tfprep.open(made.path).index("train").to_pylist()
    assert {(offset, size) for _, offset, size, _ in asked} == {(entry["offset"], entry["size"]) for entry in index}
    assert (len(asked) >= 60) == cold


@pytest.mark.parametrize("with_checksum", [False, True])
def test_skipping_replaces_only_the_bad_record(made, with_checksum):
    """With all fields of the replacement; the same ones with any number of threads, without a cache, and after a resume."""
    before = keys(read(made, 20))
    spoil_image(made, 3, 20, with_checksum=with_checksum)
    bad = {"train/0003", "train/0020"}
    loader = stream(made, on_bad="skip", cache="decoded")
    after = list(islice(loader, 20))
    check_replaced(before, keys(after), bad)
    check_values(made, after)
    report = loader.report()["bad_records"]
    assert ({entry["key"] for entry in report}, {entry["record"] for entry in report}) == (bad, {3, 5})
    assert loader.stats["bad_records"] == 2
    assert loader.stats["rows_lost"] >= sum(key in bad for batch in before for key in batch)
    check_same(after, read(made, 20, on_bad="skip", cache=False, threads=3))
    check_same(after[7:10], read(made, 3, on_bad="skip", start_step=7))


def test_reading_once_leaves_bad_records_out(made):
    spoil_image(made, 0, 3, 20)
    found = read(made, None, training=False, on_bad="skip")
    assert [len(batch["key"]) for batch in found] == [6, 8, 7, 6]
    expected = [key for number, key in enumerate(made.keys["train"]) if number not in (0, 3, 20)]
    assert [key for each in keys(found) for key in each] == expected
    check_values(made, found)


def test_no_record_is_left_for_replacement(made):
    spoil_image(made, *range(30))
    with pytest.raises(LoaderError, match=r"100 records in a row .* because: wrong checksum of the payload"):
        read(made, 1, on_bad="skip")


@pytest.mark.parametrize("how", ["balance", "weights"])
def test_replacements_follow_the_options(made, how):
    """They have the same class with `balance`, and never a class of weight 0."""
    labels = [int(values["label"]) for values in made.values["train"][0]]
    options = {"weights": {label: float(label == labels[3]) for label in set(labels)}}
    if how == "balance":
        options = {"balance": "label"}
    before = read(made, 40, ["label"], **options)
    spoil_image(made, 3)
    after = read(made, 40, on_bad="skip", cache=False, **options)
    assert [batch["label"].tolist() for batch in after] == [batch["label"].tolist() for batch in before]


def test_replacements_in_a_mix_are_of_the_same_dataset(make_dataset):
    """Every dataset keeps its share, and a variant that only the other dataset has is never requested."""
    one = make_dataset("one", samples={"train": 20}, fields=("image", "label"))
    other = make_dataset("other", samples={"train": 20}, fields=("image", "label"), variants=3, seed=1)
    spoil_image(one, *range(15))
    mixed = tfprep.mix({tfprep.open(one.path): 0.5, tfprep.open(other.path): 0.5})
    own = {values["image"].tobytes() for values in one.values["train"][0]}
    images = [
        image for batch in batches(mixed, 50, fields=["image"], on_bad="skip", cache=False) for image in batch["image"]
    ]
    assert np.mean([image.tobytes() in own for image in images]) == 0.5
