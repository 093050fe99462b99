"""Sharpness compared with Pillow bit for bit, blur with SciPy, JPEG with Pillow's encoder, and other ops with their
definitions.
"""

from __future__ import annotations

import io

import numpy as np
import pytest
from PIL import Image, ImageEnhance
from scipy import ndimage

from tfprep.augment import Blur, ChannelShuffle, Cutout, Erasing, Grayscale, JpegArtefacts, MotionBlur, Noise, Sharpness
from tfprep.augment.optics import line_kernel
from tfprep.errors import RecipeError

RNG = np.random.default_rng(0)
NOISE = RNG.integers(0, 256, (61, 47, 3), dtype=np.uint8)
GRAY = np.full((200, 200, 3), 128, np.uint8)


def rng(seed=0):
    return np.random.default_rng(seed)


@pytest.mark.parametrize("factor", [0, 0.4, 1, 1.9, 5])
@pytest.mark.parametrize("size", [(61, 47), (3, 3), (2, 9), (1, 1), (5, 3)])
def test_sharpness_equals_pillow_bit_for_bit(factor, size):
    image = np.ascontiguousarray(NOISE[: size[0], : size[1]])
    expected = np.asarray(ImageEnhance.Sharpness(Image.fromarray(image)).enhance(factor))
    np.testing.assert_array_equal(Sharpness((factor, factor))(image, rng()), expected)


@pytest.mark.parametrize("sigma", [0.3, 1, 4.5])
def test_blur_equals_rounded_scipy(sigma):
    expected = ndimage.gaussian_filter(
        NOISE.astype(float), (sigma, sigma, 0), mode="mirror", radius=int(np.ceil(4 * sigma))
    )
    assert np.abs(Blur((sigma, sigma))(NOISE, rng()) - expected).max() <= 0.501


def test_blur_of_zero_changes_nothing():
    assert Blur((0, 0))(NOISE, rng()) is NOISE


@pytest.mark.parametrize("length", [1, 3, 8.5, 21])
@pytest.mark.parametrize("degrees", [0, 30, 90, 137])
def test_a_line_kernel_lies_along_its_line(length, degrees):
    kernel = line_kernel(length, np.deg2rad(degrees)).astype(float)
    assert kernel.sum() == pytest.approx(1, abs=1e-6)
    np.testing.assert_allclose(kernel, kernel[::-1, ::-1], atol=1e-7)
    middle = kernel.shape[0] // 2
    rows, columns = np.indices(kernel.shape) - middle
    along = columns * np.cos(np.deg2rad(degrees)) - rows * np.sin(np.deg2rad(degrees))
    across = columns * np.sin(np.deg2rad(degrees)) + rows * np.cos(np.deg2rad(degrees))
    assert np.abs(across[kernel > 0]).max(initial=0) <= 1
    # The variance of a row of pixels of this length; a slanted line is up to a pixel wide.
    assert (kernel * along**2).sum() == pytest.approx((length**2 - 1) / 12, rel=0.1, abs=0.3)


def test_motion_blur_along_a_row_is_its_mean():
    out = MotionBlur((5, 5), (0, 0))(NOISE, rng())
    expected = ndimage.uniform_filter1d(NOISE.astype(float), 5, axis=1, mode="mirror")
    assert np.abs(out - expected).max() <= 0.51


def test_motion_blur_of_length_one_changes_nothing():
    np.testing.assert_array_equal(MotionBlur((1, 1))(NOISE, rng()), NOISE)


def test_noise_has_its_standard_deviation():
    out = Noise((8, 8))(GRAY, rng()).astype(float) - 128
    assert out.std() == pytest.approx(np.sqrt(64 + 1 / 12), rel=0.02)
    assert abs(out.mean()) < 0.1
    assert abs(np.corrcoef(out[..., 0].ravel(), out[..., 1].ravel())[0, 1]) < 0.02
    gray = Noise((8, 8), gray=True)(GRAY, rng())
    np.testing.assert_array_equal(gray[..., 0], gray[..., 2])


@pytest.mark.parametrize("level", [0, 255])
def test_noise_stays_within_the_levels(level):
    out = Noise((50, 50))(np.full((30, 30, 3), level, np.uint8), rng()).astype(int)
    assert (out == level).mean() == pytest.approx(
        0.5, abs=0.06
    )  # Half of the noise is clipped at the ends, not wrapped around.
    assert np.abs(out - level).max() < 255


@pytest.mark.parametrize(("quality", "subsampling"), [(20, "420"), (75, "444"), (95, "422")])
def test_jpeg_artefacts_are_those_of_pillows_encoder(quality, subsampling):
    image = np.asarray(Image.fromarray(NOISE[:9, :7]).resize((96, 80), Image.Resampling.BICUBIC))
    buffer = io.BytesIO()
    Image.fromarray(image).save(
        buffer, "JPEG", quality=quality, subsampling={"444": 0, "422": 1, "420": 2}[subsampling]
    )
    expected = np.asarray(Image.open(buffer))
    out = JpegArtefacts((quality, quality), subsampling)(image, rng())
    # The encoders round some coefficients to neighbouring levels; their losses are equal.
    assert np.abs(out.astype(int) - expected).mean() < 1
    ours, pillows = (np.square(made.astype(float) - image).mean() for made in (out, expected))
    assert ours == pytest.approx(pillows, rel=0.15)


def test_jpeg_qualities_are_drawn():
    assert len({JpegArtefacts((10, 90))(NOISE, rng(seed)).tobytes() for seed in range(20)}) > 10


# --- parts missing --------------------------------------------------------------------------------------------------


def test_cutout_is_a_square_that_may_reach_beyond_the_edge():
    areas = []
    for seed in range(200):
        out = Cutout(50, level=9)(GRAY, rng(seed))
        rows, columns = np.nonzero(out[:, :, 0] == 9)
        assert (out[rows.min() : rows.max() + 1, columns.min() : columns.max() + 1] == 9).all()
        areas.append(len(rows))
    assert max(areas) == 2500
    assert min(areas) < 1500
    assert (GRAY == 128).all()


def test_cutout_of_several_holes():
    assert ((Cutout(10, holes=0)(GRAY, rng())) == 128).all()
    out = Cutout(10, holes=3)(GRAY, rng(1))
    assert ndimage.label(out[:, :, 0] == 0)[1] == 3


def test_erasing_draws_area_and_aspect_as_zhong_et_al():
    areas, aspects = [], []
    for seed in range(600):
        out = Erasing(1, area=(0.02, 0.2), level=0)(GRAY, rng(seed))
        rows, columns = np.nonzero(out[:, :, 0] == 0)
        height, width = np.ptp(rows) + 1, np.ptp(columns) + 1
        assert len(rows) == height * width
        areas.append(height * width / 40000)
        aspects.append(np.log(height / width))
    np.testing.assert_allclose(np.quantile(areas, [0.1, 0.5, 0.9]), [0.038, 0.11, 0.182], atol=0.02)
    assert np.median(aspects) == pytest.approx(np.log(0.3 * 3.3) / 2, abs=0.15)
    assert np.exp(max(aspects)) < 3.5


def test_erasing_fills_with_noise_and_follows_its_probability():
    outs = [Erasing(0.25)(GRAY, rng(seed)) for seed in range(400)]
    changed = [out for out in outs if (out != 128).any()]
    assert 70 < len(changed) < 130  # Expected 100, standard deviation 9.
    levels = changed[0][changed[0] != 128]
    assert levels.mean() == pytest.approx(127.5, abs=8)
    assert levels.std() == pytest.approx(73.9, rel=0.1)


# --- channels -------------------------------------------------------------------------------------------------------


def test_grayscale_equals_pillow():
    expected = np.asarray(Image.fromarray(NOISE).convert("L").convert("RGB"))
    np.testing.assert_array_equal(Grayscale(1)(NOISE, rng()), expected)
    assert Grayscale(0)(NOISE, rng()) is NOISE


def test_channel_shuffle_reaches_all_orders():
    orders = {tuple(ChannelShuffle(1)(np.array([[[1, 2, 3]]], np.uint8), rng(seed))[0, 0]) for seed in range(60)}
    assert len(orders) == 6


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Sharpness((2, 1)), r"Sharpness.amount is a range"),
        (lambda: Blur((-1, 1)), r"Blur.sigma_px is a range"),
        (lambda: MotionBlur((0, 5)), r"MotionBlur.length_px is a range"),
        (lambda: Noise((5, 300)), r"Noise.sigma is a range"),
        (lambda: JpegArtefacts((0, 50)), r"JpegArtefacts.quality is a range"),
        (lambda: JpegArtefacts(subsampling="411"), r"JpegArtefacts.subsampling is"),
        (lambda: Cutout(0), r"Cutout.size_px is a whole number"),
        (lambda: Cutout(level=256), r"Cutout.level is from 0 to 255"),
        (lambda: Cutout(holes=-1), r"Cutout.holes is a count"),
        (lambda: Erasing(area=(0, 2)), r"Erasing.area is a range"),
        (lambda: Erasing(aspect=(0, 2)), r"Erasing.aspect is a range"),
        (lambda: Grayscale(3), r"Grayscale.p is a probability"),
        (lambda: ChannelShuffle(3), r"ChannelShuffle.p is a probability"),
    ],
)
def test_wrong_options_raise(make, message):
    with pytest.raises(RecipeError, match=message):
        make()
