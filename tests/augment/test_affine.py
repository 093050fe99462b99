"""Affine, perspective and dense ops, compared point by point with their definitions; the gain of one resampling."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import ndimage

from tfprep.augment import (
    Elastic,
    Flip,
    GridDistortion,
    Perspective,
    Resize,
    Rotate,
    Rotate90,
    Scale,
    Shear,
    Translate,
)
from tfprep.augment.geometry import homography
from tfprep.augment.transform import Transform, identity
from tfprep.augment.warp import warp_sample

SIZE = (120, 160)
ALL = [
    Flip(1),
    Rotate(30),
    Rotate90(),
    Scale((0.7, 1.4)),
    Shear(15, 10),
    Translate(0.2, 0.2),
    Translate(0.2, 0.2, whole=False),
    Perspective(0.4),
    Elastic(150, 12),
    GridDistortion(4, 0.2),
]


def rng(seed=0):
    return np.random.default_rng(seed)


@pytest.mark.parametrize("op", ALL, ids=repr)
def test_equal_generators_give_equal_transforms(op):
    points = rng().uniform(20, 100, (9, 2))
    first, again, other = (op(SIZE, rng(seed)).push(points) for seed in (1, 1, 4))
    np.testing.assert_array_equal(first, again)
    if not isinstance(op, Flip):
        assert (first != other).any()


@pytest.mark.parametrize("op", ALL, ids=repr)
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.precise_warps
def test_pull_undoes_push(op, seed):
    points = rng(seed).uniform([30, 30], [130, 90], (200, 2))
    transform = op(SIZE, rng(seed)).then(Perspective(0.2)(SIZE, rng(seed + 9)))
    np.testing.assert_allclose(transform.pull(transform.push(points)), points, atol=0.01)


@settings(max_examples=25)
@given(st.lists(st.sampled_from(ALL), min_size=1, max_size=5), st.integers(0, 10**6))
def test_a_chain_moves_a_point_like_its_steps(ops, seed):
    generators = [rng(seed + number) for number in range(len(ops))]
    points = rng(seed).uniform([50, 40], [110, 80], (5, 2))
    whole, moved = identity(SIZE), points
    for op, generator in zip(ops, generators, strict=True):
        step = op(whole.size, generator)
        moved, whole = step.push(moved), whole.then(step)
    np.testing.assert_allclose(whole.push(points), moved, atol=0.02)


def test_homography_maps_its_four_points():
    source = np.array([[0, 0], [10, 1], [9, 12], [-1, 8]], float)
    target = np.array([[3, 3], [20, 5], [18, 17], [2, 15]], float)
    np.testing.assert_allclose(Transform(homography(source, target), SIZE).push(source), target, atol=1e-9)


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
    behind = warp_sample({"p": np.array([[80, 60, 1]], np.float32)}, {"p": "points"}, back)["p"]
    assert np.isnan(behind[0, :2]).all()
    assert behind[0, 2] == 0


# --- dense ----------------------------------------------------------------------------------------------------------


def test_points_of_a_folded_image_go_where_they_are_seen():
    """A point that lands at p must be what is drawn at p, also where the image folds over itself."""
    grid = np.stack(np.meshgrid(np.arange(4, 200, 8) + 0.5, np.arange(4, 160, 8) + 0.5), 2).reshape(-1, 2)
    folds = 0
    for alpha, sigma in ((300, 10), (48, 4), (34, 4)):
        for seed in range(4):
            transform = Elastic(alpha, sigma)((160, 200), rng(seed))
            np.testing.assert_allclose(transform.pull(transform.push(grid)), grid, atol=0.011)
            whole = np.stack(np.meshgrid(np.arange(201.0), np.arange(161.0)), 2)
            right, down = (np.diff(transform.pull(whole), axis=axis) for axis in (1, 0))
            folds += (right[:-1, :, 0] * down[:, :-1, 1] - right[:-1, :, 1] * down[:, :-1, 0] < 0).sum()
    assert folds > 0


def test_a_bend_accepts_empty_points_and_boxes():
    sample = {"p": np.zeros((0, 3), np.float32), "b": np.zeros((0, 4), np.float32)}
    out = warp_sample(sample, {"p": "points", "b": "boxes"}, Elastic()(SIZE, rng()))
    assert out["p"].shape == (0, 3)
    assert out["b"].shape == (0, 4)


def test_grid_distortion_keeps_the_edge_and_never_folds():
    for seed in range(10):
        transform = GridDistortion(5, 0.249)(SIZE, rng(seed))
        edge = np.array([[0, 0], [160, 0], [0, 77.7], [40.4, 120], [160, 120]], float)
        np.testing.assert_allclose(transform.pull(edge), edge, atol=1e-4)
        grid = np.stack(np.meshgrid(np.arange(161.0), np.arange(121.0)), 2)
        source = transform.pull(grid)
        right, down = np.diff(source, axis=1)[:-1], np.diff(source, axis=0)[:, :-1]
        assert (right[..., 0] * down[..., 1] - right[..., 1] * down[..., 0]).min() > 0


def test_boxes_are_refitted_around_bent_sides():
    box = np.array([[40, 30, 120, 90]], np.float32)
    for seed in range(8):
        transform = Elastic(400, 14)(SIZE, rng(seed))
        inside = np.zeros(SIZE, np.uint8)
        inside[30:90, 40:120] = 1
        out = warp_sample({"m": inside, "b": box}, {"m": "mask", "b": "boxes"}, transform)
        rows, columns = np.nonzero(out["m"])
        seen = [columns.min(), rows.min(), columns.max() + 1, rows.max() + 1]
        assert np.abs(out["b"][0] - seen).max() <= 2


def test_one_resampling_keeps_more_detail_than_one_per_step():
    """PSNR to the image after a rotation there and back in five steps."""
    image = ndimage.gaussian_filter(rng().random((200, 200)), 1.2)
    image = ((image - image.min()) / np.ptp(image) * 255).astype(np.float32)
    steps = [
        Rotate((12, 12)),
        Scale((1.1, 1.1)),
        Shear((5, 5), 0),
        Shear((-5, -5), 0),
        Scale((1 / 1.1,) * 2),
        Rotate((-12, -12)),
    ]
    whole, stepwise = identity((200, 200)), image
    for op in steps:
        transform = op((200, 200), rng())
        whole = whole.then(transform)
        stepwise = warp_sample({"m": stepwise}, {"m": "map"}, transform)["m"]
    once = warp_sample({"m": image}, {"m": "map"}, whole)["m"]
    inner = slice(50, -50), slice(50, -50)
    errors = [np.square(out[inner] - image[inner]).mean() for out in (once, stepwise)]
    psnr = 10 * np.log10(255**2 / np.maximum(errors, 1e-9))
    assert psnr[0] > 60
    assert psnr[1] < 40


# --- boxes dropped --------------------------------------------------------------------------------------------------


def test_boxes_with_little_visible_area_are_dropped_with_their_labels():
    sample = {
        "image": np.zeros((*SIZE, 3), np.uint8),
        "boxes": np.array([[0, 0, 20, 20], [30, 30, 50, 50], [100, 100, 120, 120]], np.float32),
        "labels": np.array([4, 5, 6]),
        "scores": [0.1, 0.2, 0.3],
    }
    kinds = {"image": "image", "boxes": "boxes", "labels": "label", "scores": "scalar"}
    shifted = Transform(np.array([[1.0, 0, -15], [0, 1, 0], [0, 0, 1]]), (110, 80))
    for least, kept in ((0.0, [4, 5, 6]), (0.2, [4, 5]), (0.26, [5]), (1.0, [5])):
        out = warp_sample(sample, kinds, shifted, min_visible=least, row_fields={"boxes": ["labels", "scores"]})
        assert out["labels"].tolist() == kept
        assert len(out["boxes"]) == len(out["scores"]) == len(kept)
    np.testing.assert_allclose(out["boxes"], [[15, 30, 35, 50]])


def test_resize_after_a_bend_is_antialiased():
    checks = ((np.indices((256, 256)).sum(0) % 2) * 255).astype(np.uint8)[:, :, None]
    transform = Elastic(90, 10)((256, 256), rng()).then(Resize(32, 32)((256, 256), None))
    out = warp_sample({"i": checks}, {"i": "image"}, transform)["i"][4:-4, 4:-4].astype(float)
    assert abs(out.mean() - 127.5) < 3
    assert out.std() < 15
