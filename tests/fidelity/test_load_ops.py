"""Ops at load against the published algorithms, written again: windows and pixels.

The map `where` holds the coordinates of its own pixel centers, which averages and linear interpolation keep: it says which window
of the stored sample an element shows.
"""

from math import exp, log, sqrt

import numpy as np
import pytest
from scipy import stats

import tfprep.load
from tests.conftest import write_dataset
from tests.fidelity.public import FALSE_ALARM, area_shares, check_counts
from tests.load.batches import batches, joined, stages
from tfprep import augment, codecs, load

H, W = SIZE = (40, 56)
COUNT = 50
KINDS = {"where": "map", "image": "image"}
CODECS = {"where": codecs.Raw(), "image": codecs.Png()}


def fields(rng, number):
    y, x = np.mgrid[:H, :W] + 0.5
    return {
        "where": np.stack([x, y], -1).astype(np.float32),
        "image": rng.integers(0, 256, (*SIZE, 3), dtype=np.uint8),
    }


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    options = {"make": fields, "kinds": KINDS, "codec": CODECS}
    return write_dataset(tmp_path_factory.mktemp("ops") / "made", samples={"train": COUNT, "val": 4}, **options)


@pytest.fixture(scope="module")
def data(made):
    return tfprep.load.open(made.path)


def column(data, name, ops, count=COUNT, split="train", **options):
    """A field of `count` samples."""
    options = {"batch_size": COUNT, "fields": [name], **stages(ops), "order": "sequential", "seed": 0, **options}
    return joined(batches(data, -(-count // COUNT), split, **options))[name]


def windows(where):
    """[N, 4]: left, top, width and height of the window that each `where` shows; those of a mirror image are negative."""
    rows = []
    for axis, values in ((0, where[:, 0, :, 0]), (1, where[:, :, 0, 1])):
        length = values.shape[1]
        inner = slice(length // 4, -(length // 4))  # the outermost pixels of an enlarged image are repeated
        at = np.arange(length) + 0.5
        slope, start = np.polyfit(at[inner], values[:, inner].T.astype(float), 1)
        rows.append((axis, start, slope * length))
    (_, left, width), (_, top, height) = rows
    return np.stack([left, top, width, height], 1)


# --- RandomResizedCrop: torchvision.transforms.RandomResizedCrop.get_params -----------------------------------------------------


def published_windows(rng, count, scale, ratio):
    """Left, top, width and height, as torchvision draws them: all of it written again."""
    for _ in range(count):
        for _ in range(10):
            area = H * W * rng.uniform(*scale)
            aspect = exp(rng.uniform(log(ratio[0]), log(ratio[1])))
            w, h = round(sqrt(area * aspect)), round(sqrt(area / aspect))
            if 0 < w <= W and 0 < h <= H:
                yield rng.integers(0, W - w + 1), rng.integers(0, H - h + 1), w, h
                break
        else:
            if ratio[0] > W / H:
                w, h = W, round(W / ratio[0])
            elif ratio[1] < W / H:
                w, h = round(H * ratio[1]), H
            else:
                w, h = W, H
            yield (W - w) // 2, (H - h) // 2, w, h


@pytest.mark.covers("RandomResizedCrop")
@pytest.mark.parametrize(("scale", "ratio"), [((0.08, 1.0), (3 / 4, 4 / 3)), ((0.5, 1.0), (2.0, 3.0))])
def test_windows_are_torchvisions(data, scale, ratio):
    drawn = windows(column(data, "where", [augment.RandomResizedCrop(16, 16, scale, ratio)], 5000, seed=5))
    expected = np.array(list(published_windows(np.random.default_rng(0), 5000, scale, ratio)), float)
    np.testing.assert_allclose(drawn, np.rint(drawn), atol=0.3)  # an average of few pixels is not quite in their middle
    drawn = np.rint(drawn)
    derived = [(each[:, 2] * each[:, 3], each[:, 2] / each[:, 3]) for each in (drawn, expected)]
    for ours, theirs in [*zip(drawn.T, expected.T, strict=True), *zip(*derived, strict=True)]:
        assert stats.ks_2samp(ours, theirs, method="asymp").pvalue > FALSE_ALARM


def along(length, start, window, count):
    """The weights [count, length] of an axis: areas where it shrinks, linear between its pixel centers where it grows."""
    if count <= window:
        return area_shares(length, start, start + window, count)
    centers = np.clip(start + (np.arange(count) + 0.5) * window / count - 0.5, start, start + window - 1)
    return np.clip(1 - np.abs(centers[:, None] - np.arange(length)), 0, None)


@pytest.mark.covers("RandomResizedCrop")
def test_pixels_are_areas_or_linear(made, data):
    ops = [augment.RandomResizedCrop(20, 24, (0.1, 1.0), (0.4, 2.5))]
    drawn = np.rint(windows(column(data, "where", ops))).astype(int)
    pixels = column(data, "image", ops)
    kinds = set()
    for row, (left, top, width, height) in enumerate(drawn):
        rows, columns = along(H, top, height, 20), along(W, left, width, 24)
        stored = made.values["train"][0][row]["image"].astype(float)
        expected = np.einsum("yh,hwc,xw->yxc", rows, stored, columns)
        assert np.abs(pixels[row] - np.rint(expected)).max() <= 1, (row, left, top, width, height)
        kinds.add((height > 20, width > 24))
    assert len(kinds) == 4  # both axes shrink, both grow, one of them grows


EVALUATED = [
    ([augment.RandomResizedCrop(16, 16)], (10, 2, 35, 35)),  # 0.875 of the largest square
    ([augment.RandomResizedCrop(16, 16, eval_fraction=1.0)], (8, 0, 40, 40)),
    ([augment.Resize(20, 28)], (0, 0, W, H)),
    ([augment.Resize(shorter=20), augment.CenterCrop(16, 16)], (12, 4, 32, 32)),
    ([augment.CenterCrop(16, 16)], (20, 12, 16, 16)),
    ([augment.Resize(shorter=20), augment.Flip(1.0), augment.CenterCrop(16, 16)], (12, 4, 32, 32)),
]


@pytest.mark.covers("RandomResizedCrop", "CenterCrop", "Resize")
def test_evaluation_takes_the_center(data):
    for ops, expected in EVALUATED:
        drawn = windows(column(data, "where", ops, split="val"))
        np.testing.assert_allclose(drawn, np.broadcast_to(expected, drawn.shape), atol=0.3)
        if not isinstance(ops[0], augment.RandomResizedCrop):  # the same in training, but for flips
            drawn = np.abs(windows(column(data, "where", ops))[:, 2:])
            np.testing.assert_allclose(drawn, np.broadcast_to(expected[2:], drawn.shape), atol=0.3)


@pytest.mark.covers("Buckets")
def test_buckets_are_covered(data):
    """40 x 56 pixels lie nearest to 16 x 24; covering it, 16 of the 17.1 rows and all columns are seen."""
    loader = data.numpy_loader("val", 4, fields=["where"], bucket=load.Buckets([(24, 16), (16, 24), (20, 20)]))
    (batch,) = loader
    left, top, width, height = np.rint(windows(batch["where"])[0])
    assert batch["where"].shape == (4, 16, 24, 2)
    assert (left, width) == (0, W)
    assert abs(height - 16 * W / 24) <= 1
    assert abs(top + height / 2 - H / 2) <= 1.5


def test_ops_draw_independently(data):
    """The window says nothing about the flip, and the sample before nothing about the next."""
    drawn = windows(column(data, "where", [augment.RandomResizedCrop(16, 16), augment.Flip()], 2000))
    area, flipped = np.abs(drawn[:, 2] * drawn[:, 3]), drawn[:, 2] < 0
    large = area > np.median(area)
    check_counts(
        [np.sum(large & flipped), np.sum(large & ~flipped), np.sum(~large & flipped), np.sum(~large & ~flipped)]
    )
    assert abs(stats.spearmanr(area[:-1], area[1:]).statistic) < 0.12
