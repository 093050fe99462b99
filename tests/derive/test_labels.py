"""Boundaries compared with scikit-image's find_boundaries; one-hot classes and single objects with their definitions."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import ndimage
from skimage.segmentation import find_boundaries

from tfprep.derive import Boundaries, OneHot, OneObject
from tfprep.errors import RecipeError, SampleError

RNG = np.random.default_rng(0)
COARSE = RNG.integers(0, 4, (8, 10), dtype=np.uint8).repeat(6, 0).repeat(5, 1)
FINE = RNG.integers(0, 3, (30, 41), dtype=np.uint8)
BLOB = np.zeros((30, 40), np.uint16)
BLOB[8:20, 0:15] = 300
BLOB[8:20, 15:30] = 301


def of(op, mask, seed=0):
    return op({"mask": mask}, np.random.default_rng(seed))


@pytest.mark.parametrize("mask", [COARSE, FINE, BLOB, np.zeros((5, 5), np.uint8), np.full((5, 5), 2, np.uint8)])
@pytest.mark.parametrize("mode", ["thick", "inner", "outer"])
def test_boundaries_equal_scikit_image(mask, mode):
    out = of(Boundaries(mode=mode), mask)
    assert out.dtype == np.uint8
    np.testing.assert_array_equal(out, find_boundaries(mask, connectivity=1, mode=mode))


def test_boundaries_grow_by_a_distance():
    thin = find_boundaries(BLOB, connectivity=1)
    grown = of(Boundaries(width_px=3), BLOB)
    np.testing.assert_array_equal(grown, ndimage.distance_transform_edt(~thin) <= 3)
    assert not of(Boundaries(width_px=3), np.zeros((5, 5), np.uint8)).any()


def test_void_has_no_boundaries():
    mask = np.array([[1, 1, 255, 2, 2, 3]], np.uint8)
    assert of(Boundaries(void=255), mask).tolist() == [[0, 0, 0, 0, 1, 1]]


@pytest.mark.parametrize("background", [0, 2])
def test_outer_boundaries_count_void_as_no_object(background):
    """Boundary pixels are background next to an object, and object pixels near two different objects; void is neither."""
    mask = np.random.default_rng(3).choice(np.array([0, 1, 2, 3, 255], np.uint8), (20, 24))
    expected = np.zeros(mask.shape, np.uint8)
    for row, column in np.ndindex(mask.shape):
        own = mask[row, column]
        cross = [(row + 1, column), (row - 1, column), (row, column + 1), (row, column - 1)]
        four = {int(mask[at]) for at in cross if 0 <= at[0] < 20 and 0 <= at[1] < 24} - {int(own), 255}
        eight = mask[max(0, row - 1) : row + 2, max(0, column - 1) : column + 2]
        objects = set(eight.ravel().tolist()) - {background, 255}
        touches = own == background or len(objects) > 1
        expected[row, column] = own != 255 and bool(four) and touches
    np.testing.assert_array_equal(of(Boundaries(mode="outer", background=background, void=255), mask), expected)


@pytest.mark.parametrize("dtype", ["uint8", "uint16"])
def test_one_hot(dtype):
    mask = np.where(FINE == 2, 255, FINE).astype(dtype)
    out = of(OneHot(classes=2, ignore=255), mask)
    assert out.shape == (30, 41, 2)
    assert out.dtype == np.uint8
    for number in range(2):
        np.testing.assert_array_equal(out[:, :, number], number == FINE)


def test_one_hot_can_ignore_a_class():
    out = of(OneHot(classes=3, ignore=1), FINE)
    assert not out[:, :, 1].any()
    np.testing.assert_array_equal(out.sum(2), FINE != 1)


def test_one_hot_refuses_a_class_it_has_no_channel_for():
    with pytest.raises(SampleError, match="'mask' holds the class 2, OneHot has 2 classes and ignores None"):
        of(OneHot(classes=2), FINE)


def test_one_object_draws_each_component_equally_often():
    mask = np.zeros((30, 60), np.uint8)
    mask[2:8, 2:8] = mask[10:20, 2:8] = mask[5:9, 20:40] = mask[25, 50] = 4
    mask[15:20, 30:50] = 2
    mask[0, :] = 255
    parts, count = ndimage.label(mask == 4, np.ones((3, 3)))
    drawn = []
    for seed in range(300):
        out = of(OneObject(target=4, min_px=2, void=255), mask, seed)
        chosen = np.unique(parts[out == 1])
        assert len(chosen) == 1
        np.testing.assert_array_equal(out == 1, parts == chosen[0])
        assert (out[0] == 255).all()
        assert set(np.unique(out)) - {0, 255, 1} <= set(range(2, 7))
        np.testing.assert_array_equal(out == 0, mask == 0)
        drawn.append(int(chosen[0]))
    assert count == 4
    counts = np.bincount(drawn, minlength=5)[1:]
    assert sorted(counts)[0] == 0  # The single pixel is too small.
    assert sorted(counts)[1] > 70  # Expected 100 each, standard deviation 8.


def test_one_object_of_none():
    out = of(OneObject(target=4), FINE)
    assert (out != 1).all()
    assert not (of(OneObject(target=4), np.zeros((4, 4), np.uint8))).any()


def test_more_objects_than_a_byte_holds():
    mask = np.zeros((80, 80), np.uint8)
    mask[::2, ::2] = 5
    out = of(OneObject(target=5, void=255), mask)
    assert out.dtype == np.uint16
    assert (out == 1).sum() == 1
    assert not (out == 255).any()
    assert len(np.unique(out[mask == 5])) == 1600


def test_wrong_options_raise():
    for make, message in (
        (lambda: Boundaries(mode="subpixel"), "Boundaries.mode is"),
        (lambda: Boundaries(width_px=-1), "Boundaries.width_px is a distance"),
        (lambda: OneHot(classes=0), "OneHot.classes is a whole number"),
        (lambda: OneObject(min_px=0), "OneObject.min_px is a whole number"),
    ):
        with pytest.raises(RecipeError, match=message):
            make()
