"""Independent parts of the build: packed columns, numbers of shards, counts and sums."""

import os
import re
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tfprep import sources
from tfprep.builder import plan, samples
from tfprep.builder.plan import SHARD_BYTES, _default_shards
from tfprep.builder.samples import arrange, collect_samples, limit_samples
from tfprep.builder.sums import class_counts, image_moments
from tfprep.codecs.raw import require_bfloat16
from tfprep.errors import SampleError, SourceError
from tfprep.seeding import sample_hash
from tfprep.sources import Entry, Listing, read_files


class Numbered:
    """A source of samples with these keys, splits and values, without files."""

    def __init__(self, samples):
        self.samples = samples

    def scan(self, root):
        entries = (Entry(key, split, (f"none/{key}",), (value,)) for key, split, value in self.samples)
        return Listing({"image": "image", "label": "label"}, ("image",), ("label",), entries)


@given(
    st.dictionaries(
        st.text(st.characters(exclude_characters="\0/", exclude_categories=["Cs"]), min_size=1, max_size=9),
        st.tuples(st.sampled_from(["test", "train", "val"]), st.one_of(st.integers(), st.text(max_size=3), st.none())),
        max_size=60,
    ),
    st.integers(1, 7),
    st.sampled_from([1, 7, 1 << 19]),
    st.one_of(st.none(), st.integers(1, 40)),
)
def test_samples_arranged_on_disk_equal_those_sorted_in_memory(samples, shards, block, limit):
    """Keys, values and splits of any kind, in blocks of any size, with a limit: sorted lists give the same tasks."""
    listed = [(key, split, value) for key, (split, value) in samples.items()]
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory() as root:
        patch.setattr("tfprep.builder.samples.BLOCK", block)
        patch.setattr("tfprep.builder.samples._IN_MEMORY_BYTES", 100)
        table = limit_samples(collect_samples(Numbered(listed).scan(root), Path(root), 3), limit)
        chosen = sorted(listed, key=lambda sample: sample_hash(3, sample[0]))[: limit or len(listed)]
        names = sorted({split for _, split, _ in chosen}, key=lambda name: (name != "train", name))
        assert table.names == tuple(names)
        arranged = arrange(table, dict.fromkeys(names, shards))
        expected = {
            (name, shard): [
                (key, [f"none/{key}"], [value], "FileNotFoundError")
                for key, split, value in chosen
                if split == name and sample_hash(3, key) % shards == shard
            ]
            for name in names
            for shard in range(shards)
        }
        found = {shard: [sample[:4] for sample in arranged.samples(*shard)] for shard in arranged.starts}
        assert found == expected
        assert len(arranged) == len(chosen)


def test_default_shards_have_at_most_64_mib_and_divide_among_16_workers(tmp_path):
    for count, megabytes, shards in [
        (0, 0, 1), (40, 1, 1), (300, 40, 9), (700, 13, 4), (512, 60, 15), (512, 64, 16), (512, 16 * 64, 16),
        (512, 16 * 64 + 1, 32), (900, 33 * 64, 48),
    ]:  # fmt: skip
        assert _default_shards(count, megabytes << 20) == shards
    (tmp_path / "a").mkdir()
    for number in range(100):  # one huge file does not make thousands of shards
        path = tmp_path / "a" / f"{number}.jpg"
        path.touch()
        os.truncate(path, (200 << 30) if number == 7 else 1 << 20)  # sparse
    table = collect_samples(sources.Folder().scan(tmp_path), tmp_path, 0)
    assert table.totals(1 << 62)["train"] == (100, (200 << 30) + (99 << 20))
    assert _default_shards(*table.totals(SHARD_BYTES)["train"]) == 3


@pytest.mark.parametrize("classes", [2, 1000])
@pytest.mark.parametrize("shape", [(), (3,), (40, 50)])
def test_class_counts_equal_a_direct_count(classes, shape):
    numbers = np.array(np.random.default_rng(0).integers(-1, classes + 2, shape))
    numbers[numbers == classes] = (1 << 63) - 1  # void may be any number
    counts, flat = class_counts(numbers, classes), numbers.reshape(-1).tolist()
    assert all(counts.get(number, 0) == flat.count(number) for number in range(classes))
    assert sum(counts.values()) == sum(0 <= number < classes for number in flat)


@pytest.mark.parametrize("dtype", ["uint8", "uint16", "bool", "int64", "bfloat16"])
@pytest.mark.parametrize("shape", [(1, 1, 3), (37, 211, 3), (64, 64, 1), (9, 8, 2), (21, 34, 4), (21, 34, 7)])
def test_sums_of_pixels_are_exact(shape, dtype):
    require_bfloat16()
    image = np.random.default_rng(1).integers(0, {"uint16": 65536, "uint8": 256}.get(dtype, 2), shape).astype(dtype)
    moments = image_moments(image)
    whole = image.reshape(-1, shape[2]).astype(np.int64)
    assert moments.pixels == shape[0] * shape[1]
    assert moments.sums == pytest.approx(whole.sum(0).tolist(), rel=1e-12 if dtype == "bfloat16" else 0)
    assert moments.squares == pytest.approx((whole**2).sum(0).tolist(), rel=1e-12 if dtype == "bfloat16" else 0)


def test_helpers_write_a_listing_as_this_process_does(tmp_path, monkeypatch):
    monkeypatch.setattr(samples, "CHUNK", 2)
    source = Numbered([(f"{number}.png", "train", number) for number in range(31)])
    parts = {}
    for cpus in (1, 3):
        monkeypatch.setattr(samples, "usable_cpus", lambda cpus=cpus: cpus)
        parts[cpus] = list(samples.write_listing(source.scan(tmp_path), tmp_path, 3))
    assert len(parts[3]) == 16
    assert parts[3] == parts[1]


@pytest.mark.parametrize("path", ["a\0b.png", "", "a//3+4//key\0"])
def test_a_path_that_no_file_has_is_one_path(tmp_path, path):
    """Its sample is rejected when it is read."""
    listing = Listing({"image": "image"}, ("image",), (), iter([Entry("key", "train", (path,))]))
    arranged = arrange(collect_samples(listing, tmp_path, 0), {"train": 1})
    ((_, (shown,), *_),) = arranged.samples("train", 0)
    assert "\0" not in shown
    with pytest.raises(SampleError):
        read_files(tmp_path, ("image",), Entry("key", "train", (shown,)))


COUNTS = "whose files are ('image',) and values ('label',)"
WRONG_ENTRIES = [
    (("key", "train", ("a", "b"), (3,)), COUNTS),
    (("key", "train", "a.png", (3,)), COUNTS),
    (("key", "train", ("a",), ()), COUNTS),
    ((5, "train", ("a",), (3,)), "Key, split and files are texts"),
    (("\udcff", "train", ("a",), (3,)), "surrogates not allowed"),
    (("key", "train", (Path("a"),), (3,)), "expected str instance, PosixPath found"),
    (("key", "train", ("a",), (np.int64(3),)), "int64 is not JSON serializable. Key, split and files are texts, and values"),
]  # fmt: skip


@pytest.mark.parametrize(("parts", "message"), WRONG_ENTRIES)
def test_an_entry_of_a_users_source_that_is_not_a_sample_is_named(tmp_path, parts, message):
    good, wrong = Entry("good", "train", ("a",), (1,)), Entry(*parts)
    listing = Listing({"image": "image", "label": "label"}, ("image",), ("label",), iter([good, wrong, good]))
    with pytest.raises(SourceError, match=f"^{re.escape(str(wrong))} is not a sample.*{re.escape(message)}"):
        collect_samples(listing, tmp_path, 0)


@pytest.mark.parametrize(
    ("number", "warns"), [("4.13.0", True), ("4.10.0-dev", True), ("5.0.0", False), ("10.1", False)]
)
def test_a_build_with_an_opencv_that_rounds_warps_warns(monkeypatch, number, warns):
    """Version 4 of OpenCV has 32 fractions of a pixel (INTER_BITS = 5 in imgproc.hpp)."""
    monkeypatch.setattr(plan.cv2, "__version__", number)
    assert plan.warning_of_opencv().startswith(f"OpenCV {number} rounds warps to 1/32 pixel") == warns
