"""Colour ops on odd images (one level, two levels, one pixel) and on all grays.

What they do to photos and what they draw is compared in `tests/fidelity`.
"""

import numpy as np
import pytest
from PIL import Image, ImageEnhance, ImageOps

from tfprep.augment import (
    AutoContrast,
    Blur,
    Brightness,
    Contrast,
    Equalize,
    Grayscale,
    Hue,
    Invert,
    MotionBlur,
    Posterize,
    Saturation,
    Sharpness,
    Solarize,
)

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
    "half-way": np.array([[[1] * 3, [2] * 3]], np.uint8),  # a mean gray of 1.5
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


def test_the_range_of_a_factor_ends_at_0():
    assert min(int(Brightness(1.5)(np.full((1, 1, 3), 100, np.uint8), rng(seed)).min()) for seed in range(20)) >= 0
