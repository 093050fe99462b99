"""Without the raw files, everything that can be read is saved as a whole dataset, and the rest is named."""

from __future__ import annotations

import json
import shutil
from collections import Counter

import numpy as np
import pytest
import tensorflow as tf

from tfprep.builder.repair import repair
from tfprep.dataset import open_dataset
from tfprep.dataset.verify import verify
from tfprep.errors import DatasetError


@pytest.fixture
def damaged(full):
    """A dataset with labels, masks and maps, two variants, and a reject; its raw files are gone."""
    full.add("train/cat/broken", 1).write_bytes(b"")
    full.build()
    shutil.rmtree(full.data)
    return full.out


def by_key(out, split, variant=0):
    data = open_dataset(out)
    keys = data.index(split, variant, ["key"])["key"].to_pylist()
    return dict(zip(keys, data.samples(split, variant), strict=True))


def keys_of(out, split, shard):
    rows = open_dataset(out).index(split, 0, ["key", "shard"]).to_pylist()
    return [row["key"] for row in rows if row["shard"] == shard]


def place_of(out, split, variant, shard, record):
    rows = open_dataset(out).index(split, variant, ["shard", "offset", "size"]).to_pylist()
    row = [row for row in rows if row["shard"] == shard][record]
    return out / open_dataset(out).file(split, variant, shard).name, row["offset"], row["size"]


def flip(path, *places):
    content = bytearray(path.read_bytes())
    for place in places:
        content[place] ^= 4
    path.write_bytes(content)


def check_rest(before, rest, lost):
    """The rest holds all samples but these, with equal values, in a dataset that is whole in all its parts."""
    assert list(verify(rest)) == []
    data, old = open_dataset(rest), open_dataset(before)
    for split, info in data.splits.items():
        for variant in range(info.variants):
            assert by_key(rest, split, variant).keys() == by_key_of_index(old, split) - set(lost)
        labels, pixels = Counter(), Counter()
        for sample in data.samples(split):
            labels[int(sample["label"])] += 1
            pixels.update(sample["mask"].reshape(-1).tolist())
        assert data.manifest.class_counts["label"][split] == (labels[0], labels[1])
        assert data.manifest.class_counts["mask"][split] == (pixels[0], pixels[1], pixels[2])
    lines = [json.loads(line) for line in (rest / "rejects.jsonl").read_text().splitlines()]
    assert [line["key"] for line in lines if line["stage"] == "repair"] == lost
    assert data.manifest.rejects == len(lines) == 1 + len(lost)


def by_key_of_index(data, split):
    return set(data.index(split, 0, ["key"])["key"].to_pylist())


def test_the_rest_is_a_whole_dataset(damaged, tmp_path):
    images = {key: sample["image"] for key, sample in by_key(damaged, "train", 1).items()}
    path, offset, size = place_of(damaged, "train", 1, 2, 1)
    flip(path, offset + size // 2)  # a record of a variant
    path, offset, _ = place_of(damaged, "train", 0, 0, 2)
    path.write_bytes(path.read_bytes()[: offset + 20])  # a shard that was cut off
    path, _, _ = place_of(damaged, "train", 0, 3, 0)
    path.unlink()  # a shard that is gone
    lost = [*keys_of(damaged, "train", 0)[2:], keys_of(damaged, "train", 2)[1], *keys_of(damaged, "train", 3)]
    summary = repair(damaged, rest=tmp_path / "rest")
    assert summary.rest_samples == 30 - len(lost)
    check_rest(damaged, tmp_path / "rest", lost)
    saved = by_key(tmp_path / "rest", "train", 1)
    assert all(np.array_equal(sample["image"], images[key]) for key, sample in saved.items())
    pixels = np.concatenate([one["image"].reshape(-1, 3) for one in by_key(tmp_path / "rest", "train").values()])
    statistics = open_dataset(tmp_path / "rest").manifest.statistics["image"]
    assert np.allclose(statistics.mean, pixels.mean(0))
    assert np.allclose(statistics.std, pixels.std(0))
    shards = sorted(str(path) for path in (tmp_path / "rest").glob("tiny-train.tfrecord-*-of-?????"))
    assert sum(1 for _ in tf.data.TFRecordDataset(shards)) == 24 - len(lost)
    assert sorted(summary.lost_samples) == sorted(lost)


def test_shards_that_are_whole_are_linked(damaged, tmp_path):
    path, offset, size = place_of(damaged, "val", 0, 1, 0)
    flip(path, offset + size // 2)
    repair(damaged, rest=tmp_path / "rest")
    check_rest(damaged, tmp_path / "rest", [keys_of(damaged, "val", 1)[0]])
    for shard in range(4):
        name = open_dataset(damaged).file("train", 1, shard).name
        assert (tmp_path / "rest" / name).samefile(damaged / name)
    assert (
        open_dataset(tmp_path / "rest").manifest.statistics == open_dataset(damaged).manifest.statistics
    )  # of the training split, which lost nothing


def test_lengths_and_checksums_of_records_follow_from_the_index(damaged, tmp_path):
    """No raw files are needed for the 16 bytes around a payload, nor for bytes after the last record."""
    path, offset, size = place_of(damaged, "train", 0, 1, 1)
    before = path.read_bytes()
    flip(path, offset + 3, offset + 9, offset + size - 1)
    path.write_bytes(path.read_bytes() + b"more")
    summary = repair(damaged, rest=tmp_path / "rest")
    assert summary.mended == (path.name,)
    assert not summary.lost
    assert path.read_bytes() == before
    assert not (tmp_path / "rest").exists()


def test_nothing_is_left(damaged, tmp_path):
    for path in damaged.glob("tiny-*.tfrecord-*-of-?????"):
        path.unlink()
    with pytest.raises(DatasetError, match="nothing is left to save"):
        repair(damaged, rest=tmp_path / "rest")
    (tmp_path / "rest").mkdir()
    (tmp_path / "rest" / "mine").write_text("")
    with pytest.raises(DatasetError, match="is not empty"):
        repair(damaged, rest=tmp_path / "rest")
