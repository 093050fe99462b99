"""Centres and offsets of Panoptic-DeepLab compared with SciPy's centre of mass."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import ndimage

from tfprep.derive import InstanceBoxes, InstanceCenters, InstanceClasses, InstanceOffsets, OneInstance
from tfprep.errors import RecipeError

MASK = np.zeros((40, 50), np.uint16)
MASK[3:10, 4:30] = 7
MASK[20:35, 5:9] = 900
MASK[30:35, 9:30] = 900
MASK[15, 40] = 2
MASK[0, 0:9] = 255


def of(op, mask=MASK):
    return op({"mask": mask}, np.random.default_rng(0))


def test_centres_are_gaussians_around_the_centres_of_mass():
    expected = np.zeros(MASK.shape)
    rows, columns = np.indices(MASK.shape)
    for number in (7, 900, 2):
        row, column = ndimage.center_of_mass(number == MASK)
        expected = np.maximum(expected, np.exp(-((rows - row) ** 2 + (columns - column) ** 2) / (2 * 8**2)))
    np.testing.assert_allclose(of(InstanceCenters(void=255)), expected, atol=1e-6)


def test_offsets_lead_from_each_pixel_to_its_centre():
    out = of(InstanceOffsets(void=255))
    assert out.shape == (40, 50, 2)
    assert out.dtype == np.float32
    rows, columns = np.indices(MASK.shape)
    for number in (7, 900, 2):
        row, column = ndimage.center_of_mass(number == MASK)
        inside = number == MASK
        np.testing.assert_allclose((rows + out[:, :, 0])[inside], row, atol=1e-4)
        np.testing.assert_allclose((columns + out[:, :, 1])[inside], column, atol=1e-4)
    assert not out[(MASK == 0) | (MASK == 255)].any()


@pytest.mark.parametrize("op", [InstanceCenters(), InstanceOffsets()])
def test_no_instances(op):
    assert not of(op, np.zeros((6, 7), np.uint8)).any()


def test_boxes_and_classes_of_the_instances():
    boxes = of(InstanceBoxes(void=255))
    assert boxes.dtype == np.float32
    assert boxes.tolist() == [[40, 15, 41, 16], [4, 3, 30, 10], [5, 20, 30, 35]]
    for box, number in zip(boxes, (2, 7, 900), strict=True):
        ((rows, columns),) = ndimage.find_objects((number == MASK).astype(int))
        assert box.tolist() == [columns.start, rows.start, columns.stop, rows.stop]
    classes = np.where(MASK == 900, 5, np.where(MASK == 7, 3, 0)).astype(np.uint8)
    classes[3:6] = 8  # 3 of 7 rows.
    sample = {"mask": MASK, "classes": classes}
    assert InstanceClasses(void=255)(sample, np.random.default_rng(0)).tolist() == [0, 3, 5]
    large = InstanceBoxes(void=255, min_px=2)(sample, np.random.default_rng(0))
    assert large.tolist() == boxes[1:].tolist()
    assert InstanceClasses(void=255, min_px=2)(sample, np.random.default_rng(0)).tolist() == [3, 5]


def test_no_boxes():
    empty = np.zeros((6, 7), np.uint8)
    assert of(InstanceBoxes(), empty).shape == (0, 4)
    assert InstanceClasses()({"mask": empty, "classes": empty}, np.random.default_rng(0)).shape == (0,)


def test_an_instance_that_covers_all():
    out = of(InstanceOffsets(), np.ones((5, 7), np.uint8))
    assert out[2, 3].tolist() == [0, 0]
    assert out[0, 0].tolist() == [2, 3]


def test_wrong_options_raise():
    with pytest.raises(RecipeError, match=r"InstanceCenters.sigma_px is above 0"):
        InstanceCenters(sigma_px=-1)


def test_one_instance_is_drawn_whole_and_each_as_often():
    drawn = [OneInstance(mask="mask", void=255)({"mask": MASK}, np.random.default_rng(n)) for n in range(300)]
    times = {number: sum(np.array_equal(one == 1, number == MASK) for one in drawn) for number in (7, 900, 2)}
    assert sum(times.values()) == 300
    assert min(times.values()) > 60  # 100 each; below 61 in less than one of a million runs
    np.testing.assert_array_equal(drawn[0] > 0, MASK > 0)
    np.testing.assert_array_equal(drawn[0] == 255, MASK == 255)
    assert not (OneInstance(mask="mask", min_px=10_000)({"mask": MASK}, np.random.default_rng(0)) == 1).any()


def test_one_instance_of_a_class():
    classes = np.where(MASK == 900, 5, 1).astype(np.uint8)
    op = OneInstance(mask="mask", void=255, classes="classes", target=5)
    for seed in range(5):
        drawn = op({"mask": MASK, "classes": classes}, np.random.default_rng(seed))
        np.testing.assert_array_equal(drawn == 1, MASK == 900)
