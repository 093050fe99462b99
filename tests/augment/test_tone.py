"""Tone ops compared with Pillow's ImageOps bit for bit, with their formulas, and with OpenCV."""

from __future__ import annotations

import cv2
import numpy as np
import pytest
from PIL import Image, ImageOps

from tfprep.augment import AutoContrast, Clahe, Equalize, Gamma, Invert, Posterize, Solarize, ToneCurve
from tfprep.errors import RecipeError

RNG = np.random.default_rng(0)
NOISE = RNG.integers(0, 256, (61, 47, 3), dtype=np.uint8)
NARROW = (NOISE // 5 + 60).astype(np.uint8)
SKEWED = np.asarray(255 * (NOISE / 255) ** 3, np.uint8)
PLAIN = np.full((5, 7, 3), (250, 3, 128), np.uint8)
TWO = np.where(NOISE > 200, 7, 9).astype(np.uint8)
RAMP = np.arange(256, dtype=np.uint8)[None, :, None].repeat(3, 2)
IMAGES = [NOISE, NARROW, SKEWED, PLAIN, TWO, RAMP, NOISE[:1, :1]]


def rng(seed=0):
    return np.random.default_rng(seed)


def check(op, reference, image):
    out = op(image, rng())
    assert out.dtype == np.uint8
    np.testing.assert_array_equal(out, np.asarray(reference(Image.fromarray(image))))


@pytest.mark.parametrize("image", IMAGES)
@pytest.mark.parametrize("bits", range(1, 9))
def test_posterize_equals_pillow(image, bits):
    check(Posterize((bits, bits)), lambda im: ImageOps.posterize(im, bits), image)


@pytest.mark.parametrize("image", IMAGES)
@pytest.mark.parametrize("threshold", [0, 1, 127.5, 200, 256])
def test_solarize_equals_pillow(image, threshold):
    check(Solarize((threshold, threshold)), lambda im: ImageOps.solarize(im, threshold), image)


@pytest.mark.parametrize("image", IMAGES)
def test_invert_equalize_and_autocontrast_equal_pillow(image):
    check(Invert(1), ImageOps.invert, image)
    check(Equalize(), ImageOps.equalize, image)
    check(AutoContrast(), ImageOps.autocontrast, image)


@pytest.mark.parametrize("gamma", [0.3, 1.0, 2.2])
def test_gamma_equals_its_formula(gamma):
    out = Gamma((gamma, gamma))(RAMP, rng())[0, :, 0]
    np.testing.assert_array_equal(out, [round(255 * (v / 255) ** gamma) for v in range(256)])
    assert (out[0], out[255]) == (0, 255)


def test_gammas_are_log_uniform():
    draws = [np.log(Gamma((0.5, 2)).curve(rng(seed))[128] / 255) / np.log(128 / 255) for seed in range(2000)]
    assert np.median(draws) == pytest.approx(1, abs=0.06)


def test_tone_curve_bends_each_channel_by_its_shift():
    out = ToneCurve(30)(RAMP, rng())[0].astype(int)
    assert out[0].tolist() == [0, 0, 0]
    assert out[255].tolist() == [255] * 3
    middle = out[127] - 127
    assert np.abs(middle).max() <= 30
    assert len(set(middle.tolist())) == 3
    assert (np.diff(out, axis=0) >= 0).all()


def test_clahe_equals_opencv_on_lightness():
    out = Clahe((2, 2), tiles=4)(SKEWED, rng())
    lab = cv2.cvtColor(SKEWED, cv2.COLOR_RGB2LAB)
    lab[:, :, 0] = cv2.createCLAHE(2, (4, 4)).apply(np.ascontiguousarray(lab[:, :, 0]))
    np.testing.assert_array_equal(out, cv2.cvtColor(lab, cv2.COLOR_LAB2RGB))
    assert out.std() > SKEWED.std() * 0.9


@pytest.mark.parametrize("op", [Invert, Equalize, AutoContrast])
def test_probabilities(op):
    changed = sum(not np.array_equal(op(0.3)(NARROW, rng(seed)), NARROW) for seed in range(300))
    assert 60 < changed < 120  # Expected 90, standard deviation 8.


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Gamma((0, 1)), r"Gamma.gamma is a range"),
        (lambda: Posterize((0, 4)), r"Posterize.bits is a range"),
        (lambda: Posterize((2.5, 4)), r"Posterize.bits are whole numbers"),
        (lambda: Solarize((0, 300)), r"Solarize.threshold is a range"),
        (lambda: Invert(2), r"Invert.p is a probability"),
        (lambda: Equalize(-1), r"Equalize.p is a probability"),
        (lambda: AutoContrast(-1), r"AutoContrast.p is a probability"),
        (lambda: ToneCurve(80), r"ToneCurve.shift is from 0 to 63"),
        (lambda: Clahe((0, 1)), r"Clahe.clip is a range"),
        (lambda: Clahe(tiles=0), r"Clahe.tiles is from 1 to 64"),
    ],
)
def test_wrong_options_raise(make, message):
    with pytest.raises(RecipeError, match=message):
        make()
