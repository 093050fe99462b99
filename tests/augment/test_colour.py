"""Colour ops on odd images (one level, two levels, one pixel), on all grays, and with wrong options.

What they do to photos and what they draw is compared in `tests/fidelity`.
"""

from __future__ import annotations

import colorsys

import cv2
import numpy as np
import pytest
from PIL import Image, ImageEnhance, ImageOps

from tfprep.augment import (
    AutoContrast,
    Blur,
    Brightness,
    ChannelShuffle,
    Clahe,
    Contrast,
    Cutout,
    Equalize,
    Erasing,
    Gamma,
    Grayscale,
    Hue,
    Invert,
    JpegArtefacts,
    MotionBlur,
    Noise,
    Posterize,
    Saturation,
    Sharpness,
    Solarize,
    ToneCurve,
)
from tfprep.augment.colour import gray, mean_gray
from tfprep.errors import RecipeError

NOISE = np.random.default_rng(0).integers(0, 256, (61, 47, 3), dtype=np.uint8)
RAMP = np.arange(256, dtype=np.uint8)[None, :, None].repeat(3, 2)
SKEWED = np.asarray(255 * (NOISE / 255) ** 3, np.uint8)
IMAGES = {
    "noise": NOISE,
    "dark": (NOISE // 4).astype(np.uint8),
    "narrow": (NOISE // 5 + 60).astype(np.uint8),
    "skewed": SKEWED,
    "plain": np.full((5, 7, 3), (250, 3, 128), np.uint8),
    "two levels": np.where(NOISE > 200, 7, 9).astype(np.uint8),
    "ramp": RAMP,
    "one pixel": NOISE[:1, :1],
}
PILLOW = [
    (Invert(1), ImageOps.invert),
    (Equalize(), ImageOps.equalize),
    (AutoContrast(), ImageOps.autocontrast),
    (Posterize((2, 2)), lambda image: ImageOps.posterize(image, 2)),
    (Solarize((128, 128)), lambda image: ImageOps.solarize(image, 128)),
    (Grayscale(1), lambda image: image.convert("L").convert("RGB")),
    *[
        (op((factor, factor)), lambda image, enhance=enhance, factor=factor: enhance(image).enhance(factor))
        for op, enhance in (
            (Brightness, ImageEnhance.Brightness),
            (Contrast, ImageEnhance.Contrast),
            (Saturation, ImageEnhance.Color),
            (Sharpness, ImageEnhance.Sharpness),
        )
        for factor in (0, 0.3, 1, 1.7, 4)
    ],
]


def rng(seed=0):
    return np.random.default_rng(seed)


@pytest.mark.parametrize("name", IMAGES)
def test_ops_equal_pillow_bit_for_bit(name):
    for op, reference in PILLOW:
        expected = np.asarray(reference(Image.fromarray(IMAGES[name])))
        np.testing.assert_array_equal(op(IMAGES[name], rng()), expected, err_msg=repr(op))


def test_ops_that_change_nothing():
    assert Blur((0, 0))(NOISE, rng()) is NOISE
    np.testing.assert_array_equal(MotionBlur((1, 1))(NOISE, rng()), NOISE)
    np.testing.assert_array_equal(Hue((0.3, 0.3))(RAMP, rng()), RAMP)


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


def test_clahe_equals_opencv_on_lightness():
    out = Clahe((2, 2), tiles=4)(SKEWED, rng())
    lab = cv2.cvtColor(SKEWED, cv2.COLOR_RGB2LAB)
    lab[:, :, 0] = cv2.createCLAHE(2, (4, 4)).apply(np.ascontiguousarray(lab[:, :, 0]))
    np.testing.assert_array_equal(out, cv2.cvtColor(lab, cv2.COLOR_LAB2RGB))
    assert out.std() > SKEWED.std() * 0.9


@pytest.mark.parametrize("op", [Brightness(0.5), Contrast(0.5), Saturation(0.5), Hue(0.2)])
def test_ops_depend_on_their_generator_and_do_not_change_the_image(op):
    before = NOISE.copy()
    first, again, other = (op(NOISE, np.random.default_rng(seed)) for seed in (1, 1, 2))
    np.testing.assert_array_equal(first, again)
    assert (first != other).any()
    np.testing.assert_array_equal(NOISE, before)


def test_the_range_of_a_factor_ends_at_0():
    assert min(int(Brightness(1.5)(np.full((1, 1, 3), 100, np.uint8), rng(seed)).min()) for seed in range(20)) >= 0


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
        (lambda: Sharpness((2, 1)), "Sharpness.amount is a range"),
        (lambda: Blur((-1, 1)), "Blur.sigma_px is a range"),
        (lambda: MotionBlur((0, 5)), "MotionBlur.length_px is a range"),
        (lambda: Noise((5, 300)), "Noise.sigma is a range"),
        (lambda: JpegArtefacts((0, 50)), "JpegArtefacts.quality is a range"),
        (lambda: JpegArtefacts(subsampling="411"), "JpegArtefacts.subsampling is"),
        (lambda: Cutout(0), "Cutout.size_px is a whole numbe"),
        (lambda: Cutout(level=256), "Cutout.level is from 0 to 255"),
        (lambda: Cutout(holes=-1), "Cutout.holes is a count"),
        (lambda: Erasing(area=(0, 2)), "Erasing.area is a range"),
        (lambda: Erasing(aspect=(0, 2)), "Erasing.aspect is a range"),
        (lambda: Grayscale(3), "Grayscale.p is a probability"),
        (lambda: ChannelShuffle(3), "ChannelShuffle.p is a probability"),
        (lambda: Gamma((0, 1)), "Gamma.gamma is a range"),
        (lambda: Posterize((0, 4)), "Posterize.bits is a range"),
        (lambda: Posterize((2.5, 4)), "Posterize.bits are whole numbers"),
        (lambda: Solarize((0, 300)), "Solarize.threshold is a range"),
        (lambda: Invert(2), "Invert.p is a probability"),
        (lambda: Equalize(-1), "Equalize.p is a probability"),
        (lambda: AutoContrast(-1), "AutoContrast.p is a probability"),
        (lambda: ToneCurve(80), "ToneCurve.shift is from 0 to 63"),
        (lambda: Clahe((0, 1)), "Clahe.clip is a range"),
        (lambda: Clahe(tiles=0), "Clahe.tiles is from 1 to 64"),
    ],
)
def test_wrong_options_raise(make, message):
    with pytest.raises(RecipeError, match=message):
        make()
