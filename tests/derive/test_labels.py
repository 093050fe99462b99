"""Boundaries beside void, one-hot classes, single objects and instances, with their definitions."""

from __future__ import annotations

import numpy as np
import pytest

from tfprep.derive import (
    Boundaries,
    InstanceBoxes,
    InstanceCenters,
    InstanceClasses,
    InstanceOffsets,
    OneHot,
    OneObject,
)
from tfprep.errors import SampleError

RNG = np.random.default_rng(0)
FINE = RNG.integers(0, 3, (30, 41), dtype=np.uint8)


def of(op, mask, seed=0):
    return op({"mask": mask}, np.random.default_rng(seed))


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


def test_one_hot_refuses_a_class_it_has_no_channel_for():
    with pytest.raises(SampleError, match="'mask' holds the class 2, OneHot has 2 classes and ignores None"):
        of(OneHot(classes=2), FINE)


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


# --- instances --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("op", [InstanceCenters(), InstanceOffsets()])
def test_no_instances(op):
    assert not of(op, np.zeros((6, 7), np.uint8)).any()


def test_no_boxes():
    empty = np.zeros((6, 7), np.uint8)
    assert of(InstanceBoxes(), empty).shape == (0, 4)
    assert InstanceClasses()({"mask": empty, "classes": empty}, np.random.default_rng(0)).shape == (0,)


def test_an_instance_that_covers_all():
    out = of(InstanceOffsets(), np.ones((5, 7), np.uint8))
    assert out[2, 3].tolist() == [0, 0]
    assert out[0, 0].tolist() == [2, 3]
