"""Heatmaps compared with the Gaussian's formula, extreme points with the definition of DEXTR."""

from __future__ import annotations

import numpy as np
import pytest

from tfprep.derive import ExtremePoints, Heatmaps
from tfprep.errors import RecipeError, SampleError

IMAGE = np.zeros((40, 60, 3), np.uint8)


def draw(points, **options):
    sample = {"image": IMAGE, "points": np.array(points, np.float32)}
    return Heatmaps(**options)(sample, np.random.default_rng(0))


def gaussian(x, y, sigma):
    columns, rows = np.meshgrid(np.arange(60) + 0.5, np.arange(40) + 0.5)
    return np.exp(-((columns - x) ** 2 + (rows - y) ** 2) / (2 * sigma**2))


@pytest.mark.parametrize("sigma", [0.5, 2.0, 7.3])
@pytest.mark.parametrize("point", [(20.5, 10.5), (3.2, 38.9), (-4.0, 20.0), (59.9, 0.0), (70.0, 45.0)])
def test_a_heatmap_equals_the_formula(point, sigma):
    out = draw([[*point, 1]], sigma_px=sigma)
    assert out.shape == (40, 60, 1)
    assert out.dtype == np.float32
    np.testing.assert_allclose(out[:, :, 0], gaussian(*np.float32(point), sigma), atol=1e-7)


def test_a_point_in_a_pixels_centre_has_value_one():
    assert draw([[20.5, 10.5, 2]])[10, 20, 0] == 1


def test_each_point_has_its_channel_or_shares_one_by_maximum():
    points = [[10, 10, 1], [30, 20, 1], [12, 11, 1], [50, 5, 1]]
    singles = [gaussian(x, y, 3) for x, y, _ in points]
    np.testing.assert_allclose(draw(points, sigma_px=3), np.stack(singles, 2), atol=1e-7)
    people = draw(points, sigma_px=3, channels=2)
    np.testing.assert_allclose(people[:, :, 0], np.maximum(singles[0], singles[2]), atol=1e-7)
    np.testing.assert_allclose(people[:, :, 1], np.maximum(singles[1], singles[3]), atol=1e-7)
    np.testing.assert_allclose(draw(points, sigma_px=3, channels=1)[:, :, 0], np.max(singles, 0), atol=1e-7)


def test_invisible_points_are_not_drawn():
    points = [[10, 10, 0], [20, 20, 1], [30, 30, 2], [np.nan, 5, 2]]
    drawn = draw(points).any((0, 1)).tolist()
    assert drawn == [False, True, True, False]
    assert draw(points, min_visibility=2).any((0, 1)).tolist() == [False, False, True, False]
    assert draw(np.zeros((0, 3)), channels=3).shape == (40, 60, 3)
    assert draw([[10, 10]]).max() > 0.9  # Without a third column all points are visible.


def test_heatmap_in_levels():
    out = draw([[20.2, 10.7, 1]], dtype="uint8")
    np.testing.assert_array_equal(out[:, :, 0], np.rint(gaussian(np.float32(20.2), np.float32(10.7), 2) * 255))


# --- extreme points -------------------------------------------------------------------------------------------------

MASK = np.zeros((30, 40), np.uint8)
MASK[10:20, 5:35] = 7
MASK[4, 12] = MASK[7, 14] = MASK[25, 30] = MASK[23, 31] = MASK[15, 36] = MASK[13, 2] = 7


def extremes(mask=MASK, seed=0, **options):
    return ExtremePoints(target=7, **options)({"mask": mask}, np.random.default_rng(seed))


def test_extreme_points_are_the_ends_of_the_object():
    out = extremes(jitter_px=0)
    assert out.dtype == np.float32
    np.testing.assert_array_equal(out, [[2.5, 13.5, 1], [12.5, 4.5, 1], [36.5, 15.5, 1], [30.5, 25.5, 1]])


def test_extreme_points_with_jitter_lie_near_the_end_in_the_object():
    drawn = np.stack([extremes(seed=seed, jitter_px=5) for seed in range(100)])
    columns, rows = np.floor(drawn[:, :, 0]).astype(int), np.floor(drawn[:, :, 1]).astype(int)
    assert (MASK[rows, columns] == 7).all()
    for point, values, end in ((0, columns, 2), (1, rows, 4), (2, columns, 36), (3, rows, 25)):
        assert np.abs(values[:, point] - end).max() <= 5
        assert len(set(values[:, point].tolist())) > 1


def test_extreme_points_of_nothing_and_of_one_pixel():
    assert extremes(np.zeros((5, 5), np.uint8)).tolist() == [[0, 0, 0]] * 4
    one = np.zeros((5, 5), np.uint8)
    one[2, 3] = 7
    assert extremes(one).tolist() == [[3.5, 2.5, 1]] * 4


def test_dextrs_gaussian_is_ten_pixels_wide_at_half_height():
    """The expression exp(-4 ln 2 d² / 10²) of their code has this σ."""
    out = draw([[20.5, 10.5, 1]], sigma_px=4.2466, channels=1)[:, :, 0]
    assert out[10, 25] == pytest.approx(0.5, abs=1e-4)
    assert out[15, 20] == pytest.approx(0.5, abs=1e-4)


def test_wrong_options_raise():
    for make, message in (
        (lambda: Heatmaps(sigma_px=0), "Heatmaps.sigma_px is above 0"),
        (lambda: Heatmaps(channels=0), "Heatmaps.channels is a whole number"),
        (lambda: Heatmaps(dtype="int8"), "Heatmaps.dtype is"),
        (lambda: ExtremePoints(jitter_px=-1), "ExtremePoints.jitter_px is a whole number"),
        (lambda: ExtremePoints(target=-1), "ExtremePoints.target is a class number"),
    ):
        with pytest.raises(RecipeError, match=message):
            make()
    with pytest.raises(SampleError, match=r"points are \[N, 2\] or \[N, 3\]; 'points' is \[3\]"):
        draw([1, 2, 3])
