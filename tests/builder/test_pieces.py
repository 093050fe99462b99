"""Independent parts of the build: packed columns, numbers of shards, counts and sums."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tfprep.builder import run, versions
from tfprep.builder.accumulate import class_counts, image_moments
from tfprep.builder.plan import _default_shards
from tfprep.builder.samples import SampleTable, column, joined
from tfprep.builder.shard import sampled_originals


@given(st.lists(st.lists(st.binary(max_size=5), max_size=6), max_size=5), st.randoms())
def test_a_packed_column_equals_its_list(parts, random):
    whole = [text for part in parts for text in part]
    packed = joined(column(part) for part in parts)
    assert [packed[row] for row in range(len(packed))] == whole
    rows = [random.randrange(len(whole)) for _ in range(4)] if whole else []
    assert packed.take(np.array(rows, np.int64)) == [whole[row] for row in rows]


@pytest.mark.parametrize(
    ("samples", "megabytes", "shards"),
    [
        (0, 0, 1),
        (40, 1, 1),
        (300, 40, 9),
        (512, 60, 16),
        (512, 16 * 64, 16),
        (512, 16 * 64 + 1, 32),
        (900, 33 * 64, 48),
        (10, 33 * 64, 10),
    ],
)
def test_default_shards_have_at_most_64_mib_and_divide_among_16_workers(samples, megabytes, shards):
    sizes = np.full(max(samples, 1), (megabytes << 20) // max(samples, 1))
    sizes[0] += (megabytes << 20) - sizes.sum()
    zeros = np.zeros(len(sizes), np.uint64)
    assert _default_shards(SampleTable({}, zeros, zeros, zeros.astype(np.int16), sizes, ("train",)), 0) == shards


@pytest.mark.parametrize("classes", [2, 1000])
@pytest.mark.parametrize("shape", [(), (3,), (40, 50)])
def test_class_counts_equal_a_direct_count(classes, shape):
    lowest = 0 if len(shape) == 2 else -1  # A mask has no negative numbers, a label may have them.
    numbers = np.random.default_rng(0).integers(lowest, classes + 2, shape)
    counts, flat = class_counts(numbers, classes), numbers.reshape(-1).tolist()
    assert all(counts[number] == flat.count(number) for number in range(classes))
    assert sum(counts.values()) == sum(0 <= number < classes for number in flat)


@pytest.mark.parametrize("shape", [(1, 1, 3), (37, 211, 3), (64, 64, 1)])
def test_sums_of_pixels_are_exact(shape):
    image = np.random.default_rng(1).integers(0, 256, shape, np.uint8)
    moments = image_moments(image)
    whole = image.reshape(-1, shape[2]).astype(np.int64)
    assert moments.pixels == shape[0] * shape[1]
    assert moments.sums == tuple(whole.sum(0).tolist())
    assert moments.squares == tuple((whole**2).sum(0).tolist())


@pytest.mark.parametrize(("shards", "images"), [(1, 16), (8, 16), (16, 8), (63, 3), (64, 2), (5000, 2)])
def test_the_number_of_originals_of_a_shard_that_are_decoded(shards, images):
    assert sampled_originals(shards) == images


def test_one_huge_file_does_not_make_thousands_of_shards():
    sizes = np.full(100, 1 << 20)
    sizes[7] = 200 << 30
    zeros = np.zeros(100, np.uint64)
    assert _default_shards(SampleTable({}, zeros, zeros, zeros.astype(np.int16), sizes, ("train",)), 0) == 3


@pytest.mark.parametrize(
    ("number", "warns"), [("4.13.0", True), ("4.10.0-dev", True), ("5.0.0", False), ("10.1", False)]
)
def test_an_opencv_that_rounds_warps_is_named(monkeypatch, number, warns):
    """Version 4 of OpenCV has 32 fractions of a pixel (INTER_BITS = 5 in imgproc.hpp)."""
    monkeypatch.setattr(versions.cv2, "__version__", number)
    assert versions.warning_of_opencv().startswith(f"OpenCV {number} rounds warps to 1/32 pixel") is warns


def test_a_build_with_such_an_opencv_warns_once(monkeypatch, site):
    monkeypatch.setattr(run, "warning_of_opencv", lambda: "OpenCV 4 rounds warps")
    with pytest.warns(UserWarning, match="rounds warps") as caught:
        site.fill(2, 1).build()
    assert len(caught) == 1
