"""Records that cannot be read are detected, named, and replaced on request; nothing else changes."""

import errno
import os
from contextlib import nullcontext
from itertools import islice
from pathlib import Path

import numpy as np
import pytest

import tfprep
from tfprep.errors import DatasetError, LoaderError, RecordError
from tfprep.records import masked_crc


@pytest.fixture
def made(make_dataset):
    return make_dataset(samples={"train": 30}, fields=("image", "clicks", "label"), variants=1, shards=2)


def location_of(made, row):
    """(path, offset of the frame, its size, number in the file, offset and size of the image's bytes) of one row."""
    data = tfprep.open(made.path)
    index = data.index("train")
    entry = {name: index.column(name)[row].as_py() for name in index.column_names}
    path = made.path / data.file("train", 0, entry["shard"]).name
    return path, entry["offset"], entry["size"], row % 15, entry["image_offset"], entry["image_size"]


def spoil(path: Path, offset: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(offset)
        file.write(data)


def spoil_image(made, row, *, with_checksum):
    """Writes zeros over an image's bytes. If the checksum is corrected, only decoding can detect it."""
    path, offset, size, _, image, image_size = location_of(made, row)
    spoil(path, image, bytes(image_size))
    if with_checksum:
        payload = path.read_bytes()[offset + 12 : offset + size - 4]
        spoil(path, offset + size - 4, masked_crc(payload).to_bytes(4, "little"))
        made.change_index(row, payload_crc=masked_crc(payload))


def keys(loader, steps):
    return [batch["key"].tolist() for _, batch in zip(range(steps), loader, strict=False)]


def test_a_wrong_checksum_is_named(made):
    spoil_image(made, 20, with_checksum=False)
    path, offset, _, number, *_ = location_of(made, 20)
    loader = tfprep.open(made.path).numpy_loader("train", 8).repeat()
    with pytest.raises(RecordError, match="wrong checksum of the payload \\(key 'train/0020'\\)") as caught:
        keys(loader_with_keys(made), 10)
    assert (caught.value.path, caught.value.record, caught.value.offset) == (str(path), number, offset)
    loader.close()


def loader_with_keys(made, **options):
    loader = tfprep.open(made.path).numpy_loader("train", 8, fields=["image", "clicks", "label", "key"], **options)
    return loader.repeat() if loader.pipeline.training else loader


@pytest.mark.parametrize("verify", ["always", "never"])
def test_an_undecodable_image_is_named(made, verify):
    spoil_image(made, 3, with_checksum=True)
    with pytest.raises(RecordError, match=r"record 3 at byte .*: not an image.* \(key 'train/0003'\)"):
        keys(loader_with_keys(made, verify=verify), 10)


def test_checksums_are_not_compared_if_switched_off(made):
    path, offset, size, *_ = location_of(made, 3)
    spoil(path, offset + size - 4, b"\0\0\0\0")
    keys(loader_with_keys(made, verify="never"), 10)
    with pytest.raises(RecordError, match="wrong checksum"):
        keys(loader_with_keys(made), 10)


@pytest.mark.parametrize(("verify", "sees"), [("first_epoch", False), ("always", True)])
def test_always_detects_later_damage(made, verify, sees):
    batches = iter(loader_with_keys(made, verify=verify, cache=False, prefetch=1))
    for _ in range(8):
        next(batches)
    path, offset, size, *_ = location_of(made, 3)
    spoil(path, offset + size - 4, b"\0\0\0\0")
    expected = pytest.raises(RecordError, match="wrong checksum") if sees else nullcontext()
    with expected:
        list(islice(batches, 8))
    batches.close()


@pytest.mark.parametrize("bytes_left", [100, 12, 5, 0])
def test_a_file_that_ends_early(made, bytes_left):
    path, offset, size, *_ = location_of(made, 14)
    loader = loader_with_keys(made)
    with path.open("r+b") as file:
        file.truncate(offset + min(bytes_left, size - 1))
    with pytest.raises(RecordError, match=r"cut short.*train/0014"):
        keys(loader, 10)
    with pytest.raises(DatasetError, match=rf"{path.name} holds \d+ bytes, tfprep.json says \d+; copy the file again"):
        loader_with_keys(made)
    assert len(keys(loader_with_keys(made, on_bad="skip"), 10)) == 10


FIELDS = [["image"], ["clicks"], ["image", "clicks", "label"]]  # Decoded in place, read in place, and both.


@pytest.mark.parametrize("fields", FIELDS)
def test_a_file_truncated_in_a_later_epoch_raises_and_does_not_crash(made, fields):
    loader = tfprep.open(made.path).numpy_loader("train", 8, fields=fields, cache=False, prefetch=1).repeat()
    batches = iter(loader)
    for _ in range(8):
        next(batches)
    with location_of(made, 0)[0].open("r+b") as file:
        file.truncate(100)
    with pytest.raises(RecordError, match=r"cut short: the file holds .* bytes \(key 'train/00"):
        list(islice(batches, 8))


def broken_sectors(monkeypatch, path, first, last):
    """Makes every read of the bytes [first, last) of the file fail as on a broken disk."""
    real, wanted = os.preadv, os.stat(path).st_ino

    def preadv(descriptor, buffers, offset, *flags):
        stop = offset + sum(memoryview(buffer).nbytes for buffer in buffers)
        if os.fstat(descriptor).st_ino == wanted and offset < last and stop > first:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return real(descriptor, buffers, offset, *flags)

    monkeypatch.setattr(os, "preadv", preadv)


@pytest.mark.parametrize("later", [False, True])
@pytest.mark.parametrize("fields", FIELDS)
def test_a_disk_that_fails(made, monkeypatch, fields, later):
    """It is treated like any bad record: named, or replaced."""
    path, _, _, _, image, _ = location_of(made, 17)
    index = tfprep.open(made.path).index("train")
    clicks = index.column("clicks_offset")[17].as_py()
    options = {"fields": [*fields, "key"], "cache": False, "prefetch": 1, "seed": 3}
    data = tfprep.open(made.path)
    before = keys(data.numpy_loader("train", 8, **options).repeat(), 16)
    raising, skipping = (
        iter(data.numpy_loader("train", 8, on_bad=on_bad, **options).repeat()) for on_bad in ("raise", "skip")
    )
    if later:
        for _ in range(8):
            next(raising), next(skipping)
    start = clicks if fields == ["clicks"] else image
    broken_sectors(monkeypatch, path, start, start + 1)
    with pytest.raises(RecordError, match=r"cannot be read: Input/output error .*key 'train/0017'"):
        list(islice(raising, 8))
    after = list(islice(skipping, 8))
    for old, batch in zip(before[8:] if later else before, after, strict=False):
        new = batch["key"].tolist()
        assert "train/0017" not in new
        assert [key for key, was in zip(new, old, strict=True) if was != "train/0017"] == [
            key for key in old if key != "train/0017"
        ]
        for row, key in enumerate(new):
            values = made.values["train"][0][made.keys["train"].index(key)]
            for field in fields:  # A replacement is complete in every field.
                assert np.array_equal(batch[field][row], values[field]), field


@pytest.mark.parametrize("fields", FIELDS)
def test_a_cache_that_contains_only_some_rows(make_dataset, fields):
    """Some rows of a batch come from the cache; the others are read with their own spans, and their checksums are compared."""
    made = make_dataset(samples={"train": 30}, fields=("image", "clicks", "label"), variants=1, shards=2)
    row = sum(24 * 32 * {"image": 3, "clicks": 2}.get(field, 0) + 64 for field in fields)
    options = {"cache": "decoded", "memory_budget": (4 + 1) * 8 * (row + 64) + 12 * row, "prefetch": 1, "seed": 3}
    loader = tfprep.open(made.path).numpy_loader("train", 8, fields=[*fields, "key"], **options).repeat()
    for batch in islice(loader, 15):
        for number, key in enumerate(batch["key"].tolist()):
            values = made.values["train"][0][made.keys["train"].index(key)]
            for field in fields:
                assert np.array_equal(batch[field][number], values[field]), field
    report = loader.report()["cache"]
    assert 0 < report["records"] == report["capacity"] < 30
    assert loader.stats["records_cached"] > 0


@pytest.mark.parametrize("cold", [False, True])
def test_files_larger_than_memory_are_announced_in_every_epoch(made, monkeypatch, cold):
    asked = []
    monkeypatch.setattr(os, "posix_fadvise", lambda *values: asked.append(values))
    monkeypatch.setattr("tfprep.load.pipeline.available_memory", lambda: 1000 if cold else 1 << 40)
    batches = iter(loader_with_keys(made, cache=False, prefetch=1, memory_budget="1GB", remainder="wrap"))
    for _ in range(8):
        next(batches)
    index = tfprep.open(made.path).index("train")
    places = set(zip(index.column("offset").to_pylist(), index.column("size").to_pylist(), strict=True))
    assert {(offset, size) for _, offset, size, _ in asked} == places
    assert (len(asked) >= 60) == cold
    batches.close()


def test_a_deleted_file(made):
    path, *_ = location_of(made, 0)
    path.unlink()
    with pytest.raises(DatasetError, match="cannot be opened"):
        keys(loader_with_keys(made), 10)


@pytest.mark.parametrize("with_checksum", [False, True])
def test_skipping_replaces_only_the_bad_record(made, with_checksum):
    before = keys(loader_with_keys(made, seed=2), 20)
    for row in (3, 20):
        spoil_image(made, row, with_checksum=with_checksum)
    loader = loader_with_keys(made, seed=2, on_bad="skip")
    after = keys(loader, 20)
    bad = {"train/0003", "train/0020"}
    assert bad <= {key for batch in before for key in batch}
    for old, new in zip(before, after, strict=True):
        assert len(new) == len(old)
        for was, now in zip(old, new, strict=True):
            assert (now == was) if was not in bad else (now not in bad)
    report = loader.report()["bad_records"]
    assert {entry["key"] for entry in report} == bad
    assert {entry["record"] for entry in report} == {3, 5}
    assert loader.stats["bad_records"] == 2
    assert loader.stats["rows_lost"] >= sum(key in bad for batch in before for key in batch)


def test_pixels_and_labels_are_those_of_the_replacement(made):
    spoil_image(made, 3, with_checksum=False)
    loader = loader_with_keys(made, seed=2, on_bad="skip")
    for _, batch in zip(range(12), loader, strict=False):
        for at, key in enumerate(batch["key"]):
            expected = made.values["train"][0][int(key[-4:])]
            assert np.array_equal(batch["image"][at], expected["image"])
            assert np.array_equal(batch["clicks"][at], expected["clicks"])
            assert batch["label"][at] == expected["label"]


def test_replacements_are_reproducible(made):
    spoil_image(made, 3, with_checksum=False)
    runs = [keys(loader_with_keys(made, seed=2, on_bad="skip", threads=n), 12) for n in (1, 3)]
    assert runs[0] == runs[1]
    assert keys(loader_with_keys(made, seed=2, on_bad="skip", start_step=7), 3) == runs[0][7:10]


def test_reading_once_leaves_bad_records_out(made):
    for row in (0, 3, 20):
        spoil_image(made, row, with_checksum=False)
    loader = loader_with_keys(made, training=False, on_bad="skip")
    batches = list(loader)
    assert [len(batch["key"]) for batch in batches] == [6, 8, 7, 6]
    seen = [key for batch in batches for key in batch["key"]]
    assert seen == [key for number, key in enumerate(made.keys["train"]) if number not in (0, 3, 20)]
    for batch in batches:
        for at, key in enumerate(batch["key"]):
            assert np.array_equal(batch["image"][at], made.values["train"][0][int(key[-4:])]["image"])


def test_no_record_is_left_for_replacement(made):
    for row in range(30):
        spoil_image(made, row, with_checksum=False)
    with pytest.raises(LoaderError, match=r"100 records in a row .* because: wrong checksum of the payload"):
        keys(loader_with_keys(made, on_bad="skip"), 1)


@pytest.mark.parametrize("cache", ["decoded", False])
def test_a_cache_does_not_change_replacements(made, cache):
    for row in (3, 20):
        spoil_image(made, row, with_checksum=True)
    runs = [
        keys(loader_with_keys(made, seed=2, on_bad="skip", cache=c, threads=n), 25) for c, n in ((cache, 1), (False, 3))
    ]
    assert runs[0] == runs[1]


@pytest.mark.parametrize("how", ["balance", "weights"])
def test_replacements_follow_the_options(made, how):
    """They have the same class with `balance`, and never a class of weight 0."""
    label = [int(values["label"]) for values in made.values["train"][0]]
    spoil_image(made, 3, with_checksum=False)
    others = dict.fromkeys(set(label) - {label[3]}, 0)
    options = {"balance": "label"} if how == "balance" else {"weights": {**others, label[3]: 1}}
    before, after = (
        [batch["label"].tolist() for batch in islice(loader, 40)]
        for loader in (
            tfprep.open(made.path).numpy_loader("train", 8, fields=["label", "key"], seed=2, **options).repeat(),
            tfprep.open(made.path).numpy_loader("train", 8, seed=2, on_bad="skip", cache=False, **options).repeat(),
        )
    )
    assert after == before


def test_replacements_in_a_mix_are_of_the_same_dataset(make_dataset):
    """Every dataset keeps its share, and a variant that only the other dataset has is never requested."""
    one = make_dataset("one", samples={"train": 20}, fields=("image", "label"))
    other = make_dataset("other", samples={"train": 20}, fields=("image", "label"), variants=3, seed=1)
    for row in range(15):
        spoil_image(one, row, with_checksum=False)
    mixed = tfprep.mix({tfprep.open(one.path): 0.5, tfprep.open(other.path): 0.5})
    loader = mixed.numpy_loader("train", 8, fields=["image", "key"], seed=2, on_bad="skip", cache=False).repeat()
    images = [values["image"] for values in one.values["train"][0]]
    seen = [
        any(np.array_equal(image, values) for values in images)
        for batch in islice(loader, 50)  # 10 epochs.
        for image in batch["image"]
    ]
    assert np.mean(seen) == 0.5
