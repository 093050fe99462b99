"""Ops that set the size, compared with Pillow, torchvision's published definitions and expected counts."""

from __future__ import annotations

import numpy as np
import pytest

from tfprep.augment import CenterCrop, Crop, Flip, RandomResizedCrop, Resize, Rotate, Scale


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
