"""Ops that set the size, compared with Pillow, torchvision's published definitions and expected counts."""

from __future__ import annotations

import numpy as np
import pytest

from tfprep.augment import CenterCrop, Crop, Flip, RandomResizedCrop, Resize, Rotate, Scale
from tfprep.errors import RecipeError


def window(transform):
    """Top, left, height and width of the source window of an axis-aligned transform."""
    (x0, y0), (x1, y1) = transform.pull(np.array([[0, 0], transform.size[::-1]], float))
    return y0, x0, y1 - y0, x1 - x0


@pytest.mark.parametrize(
    ("op", "size", "expected"),
    [
        (Resize(20, 30), (100, 90), (20, 30)),
        (Resize(shorter=64), (480, 640), (64, 85)),
        (Resize(shorter=64), (640, 480), (85, 64)),
        (Resize(longer=64), (480, 640), (48, 64)),
        (Resize(longer=64), (1, 640), (1, 64)),
        (Resize(longer=64, pad=True), (480, 640), (64, 64)),
        (Resize(50, 70, pad=True), (480, 640), (50, 70)),
        (CenterCrop(32, 48), (20, 100), (32, 48)),
        (Crop(32, 48), (20, 100), (32, 48)),
        (RandomResizedCrop(32, 48), (20, 100), (32, 48)),
        (Flip(1), (20, 100), (20, 100)),
        (Rotate(5), (20, 100), (20, 100)),
        (Scale((2, 2)), (20, 100), (20, 100)),
    ],
)
def test_sizes(op, size, expected):
    for generator in (None, np.random.default_rng(0)):
        assert op(size, generator).size == expected


# torchvision.transforms.functional.center_crop: round((image - crop) / 2), padding (crop - image) // 2 first.
@pytest.mark.parametrize(
    ("length", "crop", "start"), [(10, 4, 3), (11, 4, 4), (9, 4, 2), (4, 4, 0), (4, 7, -1), (4, 8, -2), (4, 9, -2)]
)
def test_center_crop_equals_torchvision(length, crop, start):
    assert window(CenterCrop(crop, crop)((length, length), None))[:2] == (start, start)


@pytest.mark.parametrize(("size", "expected"), [((10, 400), (0, 194, 10, 13)), ((400, 10), (194, 0, 13, 10))])
def test_random_resized_crop_falls_back_to_the_centre(size, expected):
    """No window with 8 % of the area of a strip has an allowed aspect ratio: torchvision takes the central one."""
    drawn = RandomResizedCrop(32, 32, scale=(0.9, 1))(size, np.random.default_rng(0))
    np.testing.assert_allclose(window(drawn), expected, atol=1)


@pytest.mark.parametrize("op", [Crop(8, 8), RandomResizedCrop(8, 8), Flip(), Rotate(), Scale()])
def test_ops_draw_the_same_number_of_values_whatever_the_size(op):
    states = []
    for size in ((4, 4), (8, 500), (300, 200)):
        generator = np.random.default_rng(4)
        op(size, generator)
        states.append(generator.random())
    assert len(set(states)) == 1


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (Resize, "either height and width, or shorter, or longer"),
        (lambda: Resize(5), "either height and width"),
        (lambda: Resize(5, 5, shorter=3), "either height and width"),
        (lambda: Resize(shorter=5, pad=True), "pad needs a size to pad to"),
        (lambda: Resize(0, 5), r"Resize.height is a whole number of pixels, at least 1, got 0"),
        (lambda: Resize(longer=2.5), r"Resize.longer is a whole number"),
        (lambda: Crop(5, -1), r"Crop.width is a whole number"),
        (lambda: CenterCrop(True, 1), r"CenterCrop.height"),
        (lambda: RandomResizedCrop(5, 5, scale=(0.5, 1.5)), r"RandomResizedCrop.scale is a range"),
        (lambda: RandomResizedCrop(5, 5, scale=(0, 0)), r"RandomResizedCrop.scale ends above 0"),
        (lambda: RandomResizedCrop(5, 5, ratio=(2, 1)), r"RandomResizedCrop.ratio is a range"),
        (lambda: RandomResizedCrop(5, 5, eval_fraction=0), r"RandomResizedCrop.eval_fraction"),
        (lambda: Flip(1.5), r"Flip.p is a probability from 0 to 1, got 1.5"),
        (lambda: Flip(direction="both"), r"Flip.direction is 'horizontal' or 'vertical', got 'both'"),
        (lambda: Rotate(-5), r"Rotate.degrees is a range"),
        (lambda: Rotate((10, float("nan"))), r"Rotate.degrees is a range"),
        (lambda: Scale((0, 1)), r"Scale.factor is a range"),
    ],
)
def test_wrong_options_raise_with_the_rule_and_the_value(make, message):
    with pytest.raises(RecipeError, match=message):
        make()
