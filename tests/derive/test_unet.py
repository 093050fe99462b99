"""U-Net's weight map compared with equation 2 of Ronneberger et al. 2015, with SciPy's transform of every cell."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import ndimage

from tfprep.derive import UNetWeights
from tfprep.derive.distance import two_nearest
from tfprep.errors import RecipeError


def scattered(seed, count, size=(90, 110)):
    generator = np.random.default_rng(seed)
    cells = np.zeros(size, np.uint16)
    for number in range(1, count + 1):
        row, column, radius = generator.uniform(0, size[0]), generator.uniform(0, size[1]), generator.uniform(2, 9)
        rows, columns = np.indices(size)
        disc = (rows - row) ** 2 + (columns - column) ** 2 < radius**2
        cells[disc & (cells == 0)] = number * 7  # Numbers need not be consecutive.
    return cells


def weights(cells, **options):
    return UNetWeights(**options)({"mask": cells}, np.random.default_rng(0))


def test_the_two_nearest_cells_equal_scipy_within_the_reach():
    cells = scattered(3, 12)
    distances = np.sort([ndimage.distance_transform_edt(cells != n) for n in np.unique(cells[cells > 0])], axis=0)
    for ours, exact in zip(two_nearest(cells, 30), distances, strict=False):
        near = exact <= 29.9
        np.testing.assert_allclose(ours[near], exact[near], atol=1e-4)
        assert (ours[exact > 30.1] == np.inf).all()


def test_balance_gives_both_sides_the_same_sum():
    cells = scattered(5, 4)
    out = weights(cells, w0=0)
    inside = cells > 0
    assert out[inside].sum() == pytest.approx(out[~inside].sum(), rel=1e-5)
    assert out.sum() == pytest.approx(cells.size, rel=1e-5)


@pytest.mark.parametrize("number", [0, 1])
def test_no_cell_and_one_that_covers_all(number):
    assert (weights(np.full((8, 9), number, np.uint8)) == 1).all()


def test_wrong_options_raise():
    with pytest.raises(RecipeError, match=r"UNetWeights.sigma_px is above 0, got 0"):
        UNetWeights(sigma_px=0)
    with pytest.raises(RecipeError, match=r"UNetWeights.w0 is at least 0, got -1"):
        UNetWeights(w0=-1)
