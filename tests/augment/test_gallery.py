"""The gallery has a cell for each public op and derived input, and can be drawn."""

import re
from pathlib import Path

import numpy as np
import pytest

from tfprep import augment, derive
from tfprep.recipe.file import import_file

DRAW = Path(__file__).parents[2] / "docs" / "gallery" / "draw.py"


@pytest.fixture(scope="module")
def gallery():
    return import_file(DRAW, "gallery_draw")


def test_every_public_name_has_a_cell(gallery):
    drawn = set(re.findall(r"[A-Z]\w+(?=\()", " ".join([*gallery.GEOMETRY, *gallery.COLOR, *gallery.DERIVED])))
    not_drawn = {"ColorOp", "CutMix", "GeometryOp", "MixUp", "Transform", "Derived", "Own"}
    assert {*augment.__all__, *derive.__all__} - not_drawn == drawn


def test_all_cells_but_the_first_differ_from_the_image(gallery):
    for cells in (gallery.geometry(), gallery.colors()):
        first, *others = cells.values()
        for picture in (first, *others):
            assert picture.dtype == np.uint8
            assert picture.shape[2] == 3
        assert all(other.shape != first.shape or (other != first).any() for other in others)
    assert all(picture.max() > picture.min() for picture in gallery.derived().values())
    for name in ("geometry.jpg", "color.jpg", "derived.jpg"):
        assert (DRAW.parent / name).stat().st_size > 50_000
