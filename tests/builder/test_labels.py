"""Boxes and masks of random recipes, compared with a geometry of their own."""

import pytest

from tests.builder import random_geometry


@pytest.mark.parametrize("seed", [0, 6, 13])  # turned and zoomed; shifted, most boxes dropped; cut and slanted
def test_no_box_without_area_and_no_invented_class(seed, tmp_path):
    recipe, faults = random_geometry.check_recipe(seed, tmp_path)
    assert not faults, recipe
