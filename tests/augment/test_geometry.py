"""Ops that set the size, compared with Pillow, torchvision's published definitions and expected counts."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tfprep.augment import (
    Crop,
    Elastic,
    Flip,
    Perspective,
    RandomResizedCrop,
    Resize,
    Rotate,
    Rotate90,
    Scale,
    Shear,
    Translate,
)
from tfprep.augment.transform import Transform, identity
from tfprep.augment.warp import warp_sample


@pytest.mark.parametrize(
    ("op", "size", "expected"),
    [
        (Resize(shorter=64), (640, 480), (85, 64)),
        (Resize(longer=64), (480, 640), (48, 64)),
        (Resize(longer=64), (1, 640), (1, 64)),
        (Resize(50, 70, pad=True), (480, 640), (50, 70)),
        (Resize(longer=64, enlarge=False), (480, 640), (48, 64)),
        (Resize(longer=64, enlarge=False), (30, 40), (30, 40)),
        (Resize(shorter=64, enlarge=False), (30, 400), (30, 400)),
        (Resize(shorter=64, enlarge=False), (128, 256), (64, 128)),
        (Resize(longer=64, pad=True, enlarge=False), (30, 40), (64, 64)),
        (Crop(32, 48), (20, 100), (32, 48)),
        (RandomResizedCrop(32, 48), (20, 100), (32, 48)),
    ],
)
def test_sizes(op, size, expected):
    for generator in (None, np.random.default_rng(0)):
        assert op(size, generator).size == expected


@pytest.mark.parametrize(("size", "window"), [((10, 400), [[194, 0], [207, 10]]), ((400, 10), [[0, 194], [10, 207]])])
def test_random_resized_crop_falls_back_to_the_center(size, window):
    """No window with 8 % of the area of a strip has an allowed aspect ratio: torchvision takes the central one."""
    drawn = RandomResizedCrop(32, 32, scale=(0.9, 1))(size, np.random.default_rng(0))
    np.testing.assert_allclose(drawn.pull(np.array([[0, 0], [32.0, 32]])), window, atol=1)


SIZE = (120, 160)
ALL = [
    Flip(1), Rotate(30), Rotate90(), Scale((0.7, 1.4)), Shear(15, 10), Translate(0.2, 0.2),
    Translate(0.2, 0.2, whole=False), Perspective(0.4), Elastic(150, 12),
]  # fmt: skip


def draws(seed=0):
    return np.random.default_rng(seed)


@settings(max_examples=25)
@given(st.lists(st.sampled_from(ALL), min_size=1, max_size=5), st.integers(0, 10**6))
def test_a_chain_moves_a_point_like_its_steps(ops, seed):
    generators = [draws(seed + number) for number in range(len(ops))]
    points = draws(seed).uniform([50, 40], [110, 80], (5, 2))
    whole, moved = identity(SIZE), points
    for op, generator in zip(ops, generators, strict=True):
        step = op(whole.size, generator)
        moved, whole = step.push(moved), whole.then(step)
    np.testing.assert_allclose(whole.push(points), moved, atol=0.02)


def test_points_beyond_the_horizon_are_not_shown():
    tilted = Transform(np.array([[1, 0, 0], [0, 1, 0], [0, 0.02, 1]]), (100, 160))
    image = np.full((*SIZE, 1), 255, np.uint8)
    sample = {"i": image, "p": np.array([[80, 30, 1]], np.float32)}
    out = warp_sample(sample, {"i": "image", "p": "points"}, tilted)
    # Row y goes to y' = y / (1 + 0.02 y). The last row goes to 35.3; the horizon is at 50, and rows beyond it would
    # be mirrored.
    assert out["i"][1:35, 20].min() == 255
    assert not out["i"][36:].any()
    back = Transform(np.array([[1, 0, 0], [0, 1, 0], [0, -0.02, 1]]), SIZE)
    hidden = warp_sample({"p": np.array([[80, 60, 1]], np.float32)}, {"p": "points"}, back)["p"]
    assert np.isnan(hidden[0, :2]).all()
    assert hidden[0, 2] == 0


@pytest.mark.precise_warps
def test_points_of_a_folded_image_go_where_they_are_seen():
    """A point that lands at p must be the pixel at p, also where the image folds over itself."""
    grid = np.stack(np.meshgrid(np.arange(4, 200, 8) + 0.5, np.arange(4, 160, 8) + 0.5), 2).reshape(-1, 2)
    folds = 0
    for alpha, sigma in ((300, 10), (48, 4), (34, 4)):
        for seed in range(4):
            transform = Elastic(alpha, sigma)((160, 200), draws(seed))
            np.testing.assert_allclose(transform.pull(transform.push(grid)), grid, atol=0.011)
            whole = np.stack(np.meshgrid(np.arange(201.0), np.arange(161.0)), 2)
            right, down = (np.diff(transform.pull(whole), axis=axis) for axis in (1, 0))
            folds += (right[:-1, :, 0] * down[:, :-1, 1] - right[:-1, :, 1] * down[:, :-1, 0] < 0).sum()
    assert folds > 0


def test_a_bend_accepts_empty_points_and_boxes():
    sample = {"p": np.zeros((0, 3), np.float32), "b": np.zeros((0, 4), np.float32)}
    out = warp_sample(sample, {"p": "points", "b": "boxes"}, Elastic()(SIZE, draws()))
    assert out["p"].shape == (0, 3)
    assert out["b"].shape == (0, 4)


def test_resize_after_a_bend_is_antialiased():
    checks = ((np.indices((256, 256)).sum(0) % 2) * 255).astype(np.uint8)[:, :, None]
    transform = Elastic(90, 10)((256, 256), draws()).then(Resize(32, 32)((256, 256), None))
    out = warp_sample({"i": checks}, {"i": "image"}, transform)["i"][4:-4, 4:-4].astype(float)
    assert abs(out.mean() - 127.5) < 3
    assert out.std() < 15


def test_an_image_that_is_not_enlarged_keeps_its_pixels_inside_the_padding():
    image = np.arange(30 * 40 * 3, dtype=np.uint8).reshape(30, 40, 3)
    padded = warp_sample({"image": image}, {"image": "image"}, Resize(64, 50, pad=True, enlarge=False)((30, 40), None))
    assert np.array_equal(padded["image"], np.pad(image, ((17, 17), (5, 5), (0, 0))))
