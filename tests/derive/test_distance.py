"""Distance maps compared with SciPy's distance_transform_edt and Kervadec's published code, and U-Net's weights with their
equation."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import ndimage
from scipy.ndimage import distance_transform_edt

from tfprep.derive import Distance, SignedDistance, UNetWeights
from tfprep.derive.distance import two_nearest
from tfprep.errors import RecipeError, SampleError

RNG = np.random.default_rng(0)
SPOTS = (RNG.random((61, 83)) > 0.97).astype(np.uint8) * 4
BLOB = np.zeros((40, 50), np.uint8)
BLOB[10:30, 0:25] = 4
BLOB[20:25, 5:9] = 0
NONE, ALL = np.zeros((6, 8), np.uint8), np.full((6, 8), 4, np.uint8)


def of(op, mask):
    return op({"mask": mask}, np.random.default_rng(0))


@settings(max_examples=40)
@given(st.integers(1, 20), st.integers(1, 20), st.floats(0, 1), st.integers(0, 999))
def test_distance_is_the_brute_force_minimum(height, width, density, seed):
    mask = (np.random.default_rng(seed).random((height, width)) < density).astype(np.uint8)
    out = of(Distance(target=1, truncate_px=12), mask)
    rows, columns = np.indices(mask.shape)
    expected = np.full(mask.shape, 12.0)
    for row, column in np.argwhere(mask == 1):
        expected = np.minimum(expected, np.hypot(rows - row, columns - column))
    np.testing.assert_allclose(out, expected, atol=1e-4)


def test_truncated_normalised_and_typed():
    exact = distance_transform_edt(SPOTS != 4)
    cut = np.minimum(exact, 7)
    np.testing.assert_allclose(of(Distance(target=4, truncate_px=7), SPOTS), cut, atol=1e-4)
    np.testing.assert_allclose(of(Distance(target=4, truncate_px=7, normalise=True), SPOTS), cut / 7, atol=1e-4)
    for dtype, highest in (("uint8", 255), ("uint16", 65535)):
        whole = of(Distance(target=4, truncate_px=7, dtype=dtype), SPOTS)
        assert whole.dtype == dtype
        np.testing.assert_array_equal(whole, np.rint(cut))
        scaled = of(Distance(target=4, truncate_px=7, normalise=True, dtype=dtype), SPOTS)
        assert np.abs(scaled - cut / 7 * highest).max() <= 0.51
        assert scaled.max() == highest
    half = of(Distance(target=4, dtype="float16"), SPOTS)
    assert half.dtype == np.float16


def test_an_absent_target():
    diagonal = np.hypot(6, 8)
    for mask, to in ((NONE, "class"), (ALL, "boundary"), (NONE, "boundary")):
        np.testing.assert_allclose(of(Distance(target=4, to=to), mask), diagonal, rtol=1e-6)
        assert (of(Distance(target=4, to=to, truncate_px=5), mask) == 5).all()
        assert (of(Distance(target=4, to=to, truncate_px=5, normalise=True, dtype="uint8"), mask) == 255).all()
    assert (of(Distance(target=4, to="class"), ALL) == 0).all()
    assert (of(Distance(target=4, to="inside"), NONE) == 0).all()
    np.testing.assert_allclose(of(Distance(target=4, to="inside"), ALL), diagonal, rtol=1e-6)


def test_void_is_neither_inside_nor_outside():
    mask = np.array([[4, 4, 4, 255, 255, 0, 0]], np.uint8)
    assert of(Distance(target=4, to="inside", void=255), mask).tolist() == [[5, 4, 3, 0, 0, 0, 0]]
    assert of(Distance(target=4, to="inside"), mask).tolist() == [[3, 2, 1, 0, 0, 0, 0]]
    assert of(Distance(target=4, to="boundary", void=255, truncate_px=9), mask).tolist() == [[9] * 7]
    assert of(SignedDistance(target=4, void=255), mask).tolist() == [[-4.5, -3.5, -2.5, 0, 0, 2.5, 3.5]]


def test_void_is_zero_if_the_class_is_absent_or_covers_all():
    mask = np.array([[4, 4, 255]], np.uint8)
    assert of(SignedDistance(target=4, void=255, truncate_px=9), mask).tolist() == [[-9, -9, 0]]
    assert of(SignedDistance(target=1, void=255, truncate_px=9), mask).tolist() == [[9, 9, 0]]
    assert of(SignedDistance(target=1, void=255, truncate_px=9, dtype="uint8"), mask).tolist() == [[255, 255, 128]]


# --- signed ---------------------------------------------------------------------------------------------------------


def kervadec(mask):
    """`one_hot2dist` of LIVIAETS/boundary-loss (MIT), for one class: distance(neg) * neg - (distance(pos) - 1) * pos."""
    positive = mask.astype(bool)
    if not positive.any():
        return np.zeros(mask.shape)
    negative = ~positive
    return distance_transform_edt(negative) * negative - (distance_transform_edt(positive) - 1) * positive


def test_signed_distance_of_none_and_all():
    assert (of(SignedDistance(target=4, truncate_px=9), NONE) == 9).all()
    assert (of(SignedDistance(target=4, truncate_px=9), ALL) == -9).all()
    np.testing.assert_allclose(of(SignedDistance(target=4), ALL), -10, rtol=1e-6)
    assert (of(SignedDistance(target=4, truncate_px=9, dtype="uint8"), ALL) == 1).all()
    assert (of(SignedDistance(target=4, truncate_px=9, dtype="uint8"), NONE) == 255).all()


@pytest.mark.parametrize(("dtype", "zero", "half"), [("uint8", 128, 127), ("uint16", 32768, 32767)])
def test_signed_distance_in_whole_numbers(dtype, zero, half):
    signed = np.clip(kervadec(BLOB == 4), -6, 6)
    out = of(SignedDistance(target=4, outline="inner", truncate_px=6, dtype=dtype), BLOB)
    assert out.dtype == dtype
    assert np.abs(out - (zero + half * signed / 6)).max() <= 0.51
    assert (out[signed == 0] == zero).all()


def test_signed_distance_normalised():
    out = of(SignedDistance(target=4, truncate_px=6, normalise=True), BLOB)
    assert (out.min(), out.max()) == (-1, 1)


def test_a_missing_mask_and_a_wrong_one():
    with pytest.raises(RecipeError, match="asks for the field 'mask', the sample has"):
        Distance()({"image": BLOB}, np.random.default_rng(0))
    with pytest.raises(SampleError, match=r"whole numbers \[H, W\]; 'mask' is float64") as caught:
        of(Distance(), np.zeros((3, 3)))
    assert (caught.value.stage, caught.value.field) == ("derive", "mask")


# --- U-Net's weights --------------------------------------------------------------------------------------------------


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
