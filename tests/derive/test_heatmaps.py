"""Heatmaps compared with the Gaussian's formula, extreme points with the definition of DEXTR."""

from __future__ import annotations

import numpy as np
import pytest

from tfprep.derive import ExtremePoints, Heatmaps
from tfprep.errors import SampleError

IMAGE = np.zeros((40, 60, 3), np.uint8)


def draw(points, **options):
    sample = {"image": IMAGE, "points": np.array(points, np.float32)}
    return Heatmaps(**options)(sample, np.random.default_rng(0))


def test_a_point_in_a_pixels_centre_has_value_one():
    assert draw([[20.5, 10.5, 2]])[10, 20, 0] == 1


# --- extreme points -------------------------------------------------------------------------------------------------

MASK = np.zeros((30, 40), np.uint8)
MASK[10:20, 5:35] = 7
MASK[4, 12] = MASK[7, 14] = MASK[25, 30] = MASK[23, 31] = MASK[15, 36] = MASK[13, 2] = 7


def extremes(mask=MASK, seed=0, **options):
    return ExtremePoints(target=7, **options)({"mask": mask}, np.random.default_rng(seed))


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


def test_wrong_points():
    with pytest.raises(SampleError, match=r"points are \[N, 2\] or \[N, 3\]; 'points' is \[3\]"):
        draw([1, 2, 3])
