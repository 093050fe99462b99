"""Ops that set the size, compared with Pillow, torchvision's published definitions and expected counts."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tfprep.augment import CenterCrop, Crop, Flip, RandomResizedCrop, Resize, Rotate, Scale
from tfprep.errors import RecipeError

SIZES = st.tuples(st.integers(1, 300), st.integers(1, 300))


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


@given(SIZES)
def test_letterbox_shows_the_whole_image_in_the_centre(size):
    transform = Resize(50, 70, pad=True)(size, None)
    (x0, y0), (x1, y1) = transform.push(np.array([[0, 0], size[::-1]], float))
    for low, high, length in ((x0, x1, 70), (y0, y1, 50)):
        assert -1e-9 <= low <= high <= length + 1e-9
        assert -1e-9 <= (length - high) - low <= 1 + 1e-9  # An odd pixel of padding comes last.
        assert abs(low - round(low)) < 1e-9
    assert (x1 - x0 > 70 - 1e-9) or (y1 - y0 > 50 - 1e-9)


# torchvision.transforms.functional.center_crop: round((image - crop) / 2), padding (crop - image) // 2 first.
@pytest.mark.parametrize(
    ("length", "crop", "start"), [(10, 4, 3), (11, 4, 4), (9, 4, 2), (4, 4, 0), (4, 7, -1), (4, 8, -2), (4, 9, -2)]
)
def test_center_crop_equals_torchvision(length, crop, start):
    assert window(CenterCrop(crop, crop)((length, length), None))[:2] == (start, start)


def test_crop_takes_every_position_equally_often():
    generator = np.random.default_rng(1)
    tops = [window(Crop(8, 5)((12, 5), generator))[0] for _ in range(5000)]
    counts = np.bincount(np.array(tops, int), minlength=5)
    assert len(counts) == 5
    assert counts.min() > 850  # Expected 1000 each, standard deviation 28.


def test_crop_without_a_generator_is_the_centre():
    assert window(Crop(8, 6)((13, 31), None)) == window(CenterCrop(8, 6)((13, 31), None))


@given(SIZES, st.integers(0, 10**6))
def test_random_resized_crop_stays_inside(size, seed):
    transform = RandomResizedCrop(32, 32)(size, np.random.default_rng(seed))
    top, left, height, width = np.round(window(transform), 6)
    assert top >= 0
    assert left >= 0
    assert top + height <= size[0]
    assert left + width <= size[1]
    assert all(value == int(value) for value in (top, left, height, width))


def test_random_resized_crop_draws_area_and_aspect_as_szegedy_et_al():
    """Where every draw fits (small areas of a large image), areas are uniform and aspect ratios log-uniform."""
    generator = np.random.default_rng(2)
    op = RandomResizedCrop(32, 32, scale=(0.05, 0.25))
    windows = np.array([window(op((1000, 1000), generator)) for _ in range(4000)])
    area, aspect = windows[:, 2] * windows[:, 3] / 1e6, windows[:, 3] / windows[:, 2]
    for draws, low, high in ((area, 0.05, 0.25), (np.log(aspect), np.log(3 / 4), np.log(4 / 3))):
        quantiles = np.quantile(draws, [0.1, 0.5, 0.9])
        np.testing.assert_allclose(quantiles, low + np.array([0.1, 0.5, 0.9]) * (high - low), atol=0.03 * (high - low))


@pytest.mark.parametrize(("size", "expected"), [((10, 400), (0, 194, 10, 13)), ((400, 10), (194, 0, 13, 10))])
def test_random_resized_crop_falls_back_to_the_centre(size, expected):
    """No window with 8 % of the area of a strip has an allowed aspect ratio: torchvision takes the central one."""
    drawn = RandomResizedCrop(32, 32, scale=(0.9, 1))(size, np.random.default_rng(0))
    np.testing.assert_allclose(window(drawn), expected, atol=1)


def test_random_resized_crop_unaugmented_is_resize_256_crop_224():
    top, left, height, width = window(RandomResizedCrop(224, 224)((512, 768), None))
    assert (height, width) == (pytest.approx(448), pytest.approx(448))
    assert (top, left) == (pytest.approx(32), pytest.approx(160))


@pytest.mark.parametrize("op", [Flip(1), Rotate(30), Scale((2, 3))])
def test_unaugmented_affine_ops_do_nothing(op):
    np.testing.assert_array_equal(op((20, 30), None).matrix, np.eye(3))


def test_flip_follows_its_probability():
    generator = np.random.default_rng(3)
    flips = sum(Flip(0.3)((5, 5), generator).matrix[0, 0] < 0 for _ in range(2000))
    assert 540 < flips < 660  # Expected 600, standard deviation 20.


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
