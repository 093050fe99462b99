"""Colour ops compared with Pillow (bit for bit) and colorsys."""

from __future__ import annotations

import colorsys

import numpy as np
import pytest
from PIL import Image, ImageEnhance

from tfprep.augment import Brightness, Contrast, Hue, Saturation
from tfprep.augment.colour import gray, mean_gray
from tfprep.errors import RecipeError

RNG = np.random.default_rng(0)
NOISE = RNG.integers(0, 256, (61, 47, 3), dtype=np.uint8)
DARK = (NOISE // 4).astype(np.uint8)
PLAIN = np.full((5, 7, 3), (250, 3, 128), np.uint8)
IMAGES = [NOISE, DARK, PLAIN, NOISE[:1, :1]]
FACTORS = [0.0, 0.3, 0.8, 1.0, 1.2, 1.7, 3.0]


@pytest.mark.parametrize("image", IMAGES)
@pytest.mark.parametrize("factor", FACTORS)
@pytest.mark.parametrize(
    ("op", "enhance"),
    [(Brightness, ImageEnhance.Brightness), (Contrast, ImageEnhance.Contrast), (Saturation, ImageEnhance.Color)],
)
def test_enhancements_equal_pillow_bit_for_bit(op, enhance, factor, image):
    ours = op((factor, factor))(image, np.random.default_rng(0))
    np.testing.assert_array_equal(ours, np.asarray(enhance(Image.fromarray(image)).enhance(factor)))
    assert ours.dtype == np.uint8


def test_gray_equals_pillow_for_a_grid_of_colours():
    levels = np.arange(0, 256, 3, dtype=np.uint8)
    grid = np.stack(np.meshgrid(levels, levels, levels), -1).reshape(86, -1, 3)
    np.testing.assert_array_equal(gray(grid), np.asarray(Image.fromarray(grid).convert("L")))


def test_mean_gray_rounds_half_up():
    assert mean_gray(np.array([[[1] * 3, [2] * 3]], np.uint8)) == 2


@pytest.mark.parametrize("share", [-0.5, -0.1, 0.0, 0.03, 0.25, 0.5])
def test_hue_equals_colorsys_within_half_a_level(share):
    image = NOISE[:20, :20]
    ours = Hue((share, share))(image, np.random.default_rng(0)).astype(float)
    for row in range(20):
        for column in range(20):
            hue, saturation, value = colorsys.rgb_to_hsv(*(image[row, column] / 255))
            expected = np.array(colorsys.hsv_to_rgb((hue + share) % 1, saturation, value)) * 255
            assert np.abs(ours[row, column] - expected).max() <= 0.51


def test_hue_does_not_change_grays():
    ramp = np.arange(256, dtype=np.uint8)[None, :, None].repeat(3, 2)
    np.testing.assert_array_equal(Hue((0.3, 0.3))(ramp, np.random.default_rng(0)), ramp)


@pytest.mark.parametrize("op", [Brightness(0.5), Contrast(0.5), Saturation(0.5), Hue(0.2)])
def test_ops_depend_on_their_generator_and_do_not_change_the_image(op):
    before = NOISE.copy()
    first, again, other = (op(NOISE, np.random.default_rng(seed)) for seed in (1, 1, 2))
    np.testing.assert_array_equal(first, again)
    assert (first != other).any()
    np.testing.assert_array_equal(NOISE, before)


def test_a_single_amount_is_a_range_around_one():
    white = np.full((1, 1, 3), 100, np.uint8)
    generator = np.random.default_rng(0)
    values = [int(Brightness(0.2)(white, generator)[0, 0, 0]) for _ in range(500)]
    assert min(values) in (80, 81)
    assert max(values) in (118, 119)
    assert Brightness(1.5)(white, generator).min() >= 0  # The range ends at 0.


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Brightness(-0.1), "Brightness.amount"),
        (lambda: Brightness(20), "Brightness.amount .* 0 <= from <= to <= 10"),
        (lambda: Contrast((0, 10.5)), "Contrast.amount"),
        (lambda: Saturation(50), "Saturation.amount"),
        (lambda: Contrast((2, 1)), "Contrast.amount"),
        (lambda: Saturation((-1, 1)), "Saturation.amount"),
        (lambda: Hue(0.6), "Hue.amount"),
    ],
)
def test_wrong_options_raise(make, message):
    with pytest.raises(RecipeError, match=message):
        make()
