"""U-Net's weight map compared with equation 2 of Ronneberger et al. 2015, with SciPy's transform of every cell."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import ndimage

from tfprep.derive import UNetWeights
from tfprep.derive.unet import two_nearest
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


def paper(cells, w0=10.0, sigma=5.0):
    """The second term of equation 2, with a full transform for each cell."""
    numbers = np.unique(cells[cells > 0])
    if len(numbers) < 2:
        return np.zeros(cells.shape)
    distances = np.sort([ndimage.distance_transform_edt(cells != number) for number in numbers], axis=0)
    return w0 * np.exp(-((distances[0] + distances[1]) ** 2) / (2 * sigma**2))


def weights(cells, **options):
    return UNetWeights(**options)({"mask": cells}, np.random.default_rng(0))


@pytest.mark.parametrize(("seed", "count"), [(0, 2), (1, 5), (2, 40)])
@pytest.mark.parametrize(("w0", "sigma"), [(10, 5), (3, 2)])
def test_the_second_term_is_equation_2(seed, count, w0, sigma):
    cells = scattered(seed, count)
    everywhere = weights(cells, w0=w0, sigma_px=sigma, balance=False, inside=True)
    assert everywhere.dtype == np.float32
    np.testing.assert_allclose(everywhere, 1 + paper(cells, w0, sigma), atol=1e-5)
    background = weights(cells, w0=w0, sigma_px=sigma, balance=False)
    np.testing.assert_allclose(background, 1 + paper(cells, w0, sigma) * (cells == 0), atol=1e-5)


def test_the_two_nearest_cells_equal_scipy_within_the_reach():
    cells = scattered(3, 12)
    distances = np.sort([ndimage.distance_transform_edt(cells != n) for n in np.unique(cells[cells > 0])], axis=0)
    for ours, exact in zip(two_nearest(cells, 30), distances, strict=False):
        near = exact <= 29.9
        np.testing.assert_allclose(ours[near], exact[near], atol=1e-4)
        assert (ours[exact > 30.1] == np.inf).all()


def test_components_of_a_foreground_are_the_cells():
    cells = scattered(4, 6)
    parts, _ = ndimage.label(cells > 0, np.ones((3, 3)))
    np.testing.assert_allclose(
        weights((cells > 0).astype(np.uint8), instances=False, balance=False),
        1 + paper(parts) * (parts == 0),
        atol=1e-5,
    )


def test_balance_gives_both_sides_the_same_sum():
    cells = scattered(5, 4)
    out = weights(cells, w0=0)
    inside = cells > 0
    assert out[inside].sum() == pytest.approx(out[~inside].sum(), rel=1e-5)
    assert out.sum() == pytest.approx(cells.size, rel=1e-5)


@pytest.mark.parametrize("number", [0, 1])
def test_no_cell_and_one_that_covers_all(number):
    assert (weights(np.full((8, 9), number, np.uint8)) == 1).all()


def test_one_cell_has_no_gap():
    cells = np.zeros((20, 20), np.uint8)
    cells[5, 5] = 3
    assert (weights(cells, balance=False) == 1).all()


def test_wrong_options_raise():
    with pytest.raises(RecipeError, match=r"UNetWeights.sigma_px is above 0, got 0"):
        UNetWeights(sigma_px=0)
    with pytest.raises(RecipeError, match=r"UNetWeights.w0 is at least 0, got -1"):
        UNetWeights(w0=-1)


def test_void_pixels_are_no_cell_and_weigh_nothing():
    cells = scattered(3, 6)
    with_void = cells.copy()
    with_void[10:30, 20:50] = 255
    void = with_void == 255
    made = weights(with_void, void=255, balance=False)
    assert (made[void] == 0).all()
    np.testing.assert_array_equal(made[~void], weights(np.where(void, 0, with_void), balance=False)[~void])
    balanced = weights(with_void, void=255, w0=0)
    assert balanced[(with_void > 0) & ~void].sum() == pytest.approx(balanced[with_void == 0].sum(), rel=1e-4)
