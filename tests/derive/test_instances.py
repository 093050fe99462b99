"""Centres and offsets of Panoptic-DeepLab compared with SciPy's centre of mass."""

from __future__ import annotations

import numpy as np
import pytest

from tfprep.derive import InstanceBoxes, InstanceCenters, InstanceClasses, InstanceOffsets
from tfprep.errors import RecipeError


def of(op, mask):
    return op({"mask": mask}, np.random.default_rng(0))


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


def test_wrong_options_raise():
    with pytest.raises(RecipeError, match=r"InstanceCenters.sigma_px is above 0"):
        InstanceCenters(sigma_px=-1)
