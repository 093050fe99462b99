"""Color ops: Pillow, SciPy, scikit-image and formulas, and the distributions of draws."""

import io
from math import log

import numpy as np
import pytest
from PIL import Image, ImageEnhance, ImageOps
from scipy import ndimage, special
from skimage import color

from tests.fidelity.public import (
    FALSE_ALARM,
    check_counts,
    check_share,
    check_uniform,
    colored,
    variants,
    window_of,
)
from tests.photos import written
from tfprep.augment import (
    AutoContrast,
    Blur,
    Brightness,
    Clahe,
    ColorJitter,
    Contrast,
    Equalize,
    Erasing,
    Gamma,
    Grayscale,
    Hue,
    Invert,
    JpegArtifacts,
    Noise,
    Posterize,
    Saturation,
    Sharpness,
    Solarize,
)


def picture(seed=0, size=(60, 76)):
    """Smooth colors with some noise, from 10 to 240, so that AutoContrast and Equalize have something to do."""
    rng = np.random.default_rng(seed)
    smooth = ndimage.gaussian_filter(rng.normal(size=(*size, 3)), (6, 6, 0))
    noisy = 125 + smooth * 40 / smooth.std() + rng.normal(size=(*size, 3)) * 8
    return np.clip(noisy, 10, 240).astype(np.uint8)


IMAGE = picture()
PIL = Image.fromarray(IMAGE)
RAMP = np.arange(256, dtype=np.uint8)[None, :, None].repeat(3, 2)


def turned(share):
    hsv = color.rgb2hsv(IMAGE)
    hsv[:, :, 0] = (hsv[:, :, 0] + share) % 1
    return color.hsv2rgb(hsv) * 255


def blurred(sigma):
    planes = [ndimage.gaussian_filter(IMAGE[:, :, c].astype(float), sigma, mode="mirror", truncate=4) for c in range(3)]
    return np.stack(planes, axis=2)


def jpeg(image, quality, subsampling=2):
    return np.asarray(Image.open(io.BytesIO(written(image, "JPEG", quality=quality, subsampling=subsampling))))


NOISE = np.random.default_rng(0).integers(0, 256, (61, 47, 3), dtype=np.uint8)
LEVELS = np.arange(0, 256, 3, dtype=np.uint8)
IMAGES = {
    "photo": IMAGE, "noise": NOISE, "dark": NOISE // 4, "narrow": NOISE // 5 + 60,
    "skewed": np.asarray(255 * (NOISE / 255) ** 3, np.uint8), "plain": np.full((5, 7, 3), (250, 3, 128), np.uint8),
    "two levels": np.where(NOISE > 200, 7, 9).astype(np.uint8),
    "a mean of 1.5": np.array([[[1] * 3, [2] * 3]], np.uint8), "ramp": RAMP, "one pixel": NOISE[:1, :1],
    "grid of colors": np.stack(np.meshgrid(LEVELS, LEVELS, LEVELS), -1).reshape(86, -1, 3),
}  # fmt: skip
ENHANCED = {
    Brightness: ImageEnhance.Brightness, Contrast: ImageEnhance.Contrast, Saturation: ImageEnhance.Color,
    Sharpness: ImageEnhance.Sharpness,
}  # fmt: skip


def jitter(op, amount):
    """A ColorJitter that changes what this op changes, and nothing else."""
    return ColorJitter(**{"brightness": 0, "contrast": 0, "saturation": 0, op.__name__.lower(): amount})


PILLOW = [
    (Invert(1), ImageOps.invert),
    (Equalize(), ImageOps.equalize),
    (AutoContrast(), ImageOps.autocontrast),
    (Grayscale(1), lambda image: image.convert("L").convert("RGB")),
    *[(Posterize((bits, bits)), lambda image, bits=bits: ImageOps.posterize(image, bits)) for bits in (1, 2, 3, 8)],
    *[(Solarize((at, at)), lambda image, at=at: ImageOps.solarize(image, at)) for at in (0, 99, 128, 256)],
    *[
        (op((factor, factor)), lambda image, enhance=enhance, factor=factor: enhance(image).enhance(factor))
        for op, enhance in ENHANCED.items()
        for factor in (0, 0.3, 1, 1.7, 4)
    ],
]


@pytest.mark.covers(
    "Invert", "Equalize", "AutoContrast", "Grayscale", "Posterize", "Solarize", "Brightness", "Contrast"
)
@pytest.mark.covers("Saturation", "Sharpness")
@pytest.mark.parametrize("name", IMAGES)
def test_ops_equal_pillow_bit_for_bit(name):
    for op, reference in PILLOW:
        expected = np.asarray(reference(Image.fromarray(IMAGES[name])))
        np.testing.assert_array_equal(colored(op, IMAGES[name])[0], expected, err_msg=repr(op))


EXACT = [
    (Gamma((2, 2)), np.rint(255 * (IMAGE / 255) ** 2), 0),
    (Gamma((0.5, 0.5)), np.rint(255 * (IMAGE / 255) ** 0.5), 0),
    *[(Hue((share, share)), turned(share), 0.51) for share in (-0.5, -0.1, 0.0, 0.03, 0.25)],
    *[(Blur((sigma, sigma)), blurred(sigma) if sigma else IMAGE, 1 if sigma else 0) for sigma in (0, 0.7, 1.5, 3.0)],
    *[(JpegArtifacts((40, 40), name), jpeg(IMAGE, 40, n), 0) for n, name in enumerate(("444", "422", "420"))],
    (Noise((0, 0)), IMAGE, 0),
]


@pytest.mark.covers(*{type(op).__name__ for op, *_ in EXACT})
def test_ops_of_one_strength_equal_their_reference():
    for op, expected, allowed in EXACT:
        difference = np.abs(colored(op, IMAGE)[0].astype(float) - expected).max()
        assert difference <= allowed + 1e-9, op
    np.testing.assert_array_equal(colored(Hue((0.3, 0.3)), RAMP)[0], RAMP)


# --- strengths ----------------------------------------------------------------------------------------------------------


@pytest.mark.covers("Brightness", "Contrast", "Saturation", "Sharpness", "Gamma", "Solarize", "Posterize", "Hue")
@pytest.mark.covers("ColorJitter")
def test_strengths_are_drawn_from_their_ranges():
    gray = int(Image.new("RGB", (1, 1), (160, 60, 60)).convert("L").getpixel((0, 0)))
    halves = np.full((1, 2, 3), 28, np.uint8)
    halves[0, 1] = 228  # The mean is 128, and 228 becomes 128 + 100 f.
    spike = np.full((5, 5, 3), 100, np.uint8)
    spike[2, 2] = 165  # Its smooth version is 100 + 65 * 5 / 13 = 125.
    for op, image, (row, column), low, high in (
        (Brightness((0.2, 0.9)), np.full((1, 1, 3), 255, np.uint8), (0, 0), 51, 229.5),
        (Brightness(0.3), np.full((1, 1, 3), 190, np.uint8), (0, 0), 133, 247),
        (Contrast((0.1, 1.2)), halves, (0, 1), 138, 248),
        (jitter(Brightness, 0.3), np.full((1, 1, 3), 190, np.uint8), (0, 0), 133, 247),
        (jitter(Contrast, (0.1, 1.2)), halves, (0, 1), 138, 248),
        (Saturation((0.1, 1.9)), np.array([[[160, 60, 60]]], np.uint8), (0, 0), gray + 7, gray + 1.9 * (160 - gray)),
        (Sharpness((0.0, 3.0)), spike, (2, 2), 124.5, 245),
    ):
        levels = [float(made[row, column, 0]) for made in colored(op, image, 600)]
        check_uniform(np.clip(np.array(levels) + 0.5, low, high), low, high)  # results are cut to whole levels
    made = np.array([image[0, 100, 0] / 255 for image in colored(Gamma((0.5, 2.0)), RAMP, 600)])
    check_uniform(np.clip(np.log(np.log(made) / np.log(100 / 255)), -log(2), log(2)), -log(2), log(2))
    thresholds = [np.argmax(image[0, :, 0] != RAMP[0, :, 0]) for image in colored(Solarize((100, 200)), RAMP, 600)]
    check_uniform(np.array(thresholds) - 0.5, 99.5, 200)
    bits = [len(np.unique(image)).bit_length() - 1 for image in colored(Posterize((3, 6)), RAMP, 400)]
    check_counts([bits.count(n) for n in (3, 4, 5, 6)])
    hue = [color.rgb2hsv(image)[0, 0, 0] for image in colored(Hue(0.3), np.array([[[255, 0, 0]]], np.uint8), 600)]
    check_uniform(np.clip((np.array(hue) + 0.5) % 1 - 0.5, -0.3, 0.3), -0.3, 0.3)


@pytest.mark.covers("Grayscale", "Invert", "Equalize", "AutoContrast")
@pytest.mark.parametrize("p", [0.3, 0.8])
def test_ops_happen_with_their_probability(p):
    small = IMAGE[:30, :30]
    for op in (Grayscale(p), Invert(p), Equalize(p), AutoContrast(p)):
        made = colored(op, small, 400)
        check_share([not np.array_equal(image, small) for image in made], p)


@pytest.mark.covers("ColorJitter")
@pytest.mark.parametrize("name", ["photo", "dark"])
def test_color_jitter_is_pillows_blend_to_one_level(name):
    for op in (Brightness, Contrast, Saturation):
        for factor in (0.3, 1, 1.7):
            expected = np.asarray(ENHANCED[op](Image.fromarray(IMAGES[name])).enhance(factor)).astype(int)
            difference = np.abs(colored(jitter(op, (factor, factor)), IMAGES[name])[0] - expected).max()
            assert difference <= 1, (op, factor)


@pytest.mark.covers("ColorJitter")
def test_color_jitter_takes_all_orders_and_its_probability():
    small = IMAGE[:30, :30]
    check_share([(made != small).any() for made in colored(ColorJitter(p=0.3), small, 600)], 0.3)
    made = colored(ColorJitter(0, (3.0, 3.0), (0.0, 0.0)), small, 40)  # contrast, then gray; or gray, then contrast
    assert len({image.tobytes() for image in made}) == 2
    assert max(np.ptp(image.astype(int), axis=2).max() for image in made) <= 1  # gray


@pytest.mark.covers("Clahe")
@pytest.mark.parametrize("clip", [100.0, 2.0])
def test_clahe_of_one_tile_is_zuiderveld_s_clipped_equalization(clip):
    """'Contrast Limited Adaptive Histogram Equalization', Graphics Gems IV, 1994, on L* of a gray image."""
    levels = np.clip(np.random.default_rng(0).normal(120, 12, (64, 64)), 60, 180).astype(np.uint8)
    gray = levels[:, :, None].repeat(3, 2)
    ours = color.rgb2lab(colored(Clahe((clip, clip), 1), gray)[0])[:, :, 0]
    lightness = np.rint(color.rgb2lab(gray)[:, :, 0] * 2.55).astype(int)
    counts = np.bincount(lightness.ravel(), minlength=256).astype(float)
    most = max(int(clip * counts.sum() / 256), 1)
    excess = np.maximum(counts - most, 0).sum()
    table = np.cumsum(np.minimum(counts, most) + excess / 256) * 255 / counts.sum()
    assert np.abs(ours - table[lightness] / 2.55).mean() < 1.2
    assert np.abs(ours - table[lightness] / 2.55).max() < 4


@pytest.mark.covers("Clahe")
def test_clahe_equalises_tile_by_tile():
    """A dark and a bright half, each with its own faint pattern: with many tiles both patterns are amplified."""
    pattern = np.random.default_rng(1).integers(0, 12, (64, 64)).astype(np.uint8)
    halves = pattern + np.where(np.arange(64) < 32, 40, 200).astype(np.uint8)
    gray = halves[:, :, None].repeat(3, 2)
    one, many = (colored(Clahe((40, 40), tiles), gray)[0][:, :, 0].astype(float) for tiles in (1, 8))
    for part in (np.s_[8:-8, 4:20], np.s_[8:-8, 44:60]):
        assert many[part].std() > 1.6 * one[part].std()
        assert np.corrcoef(many[part].ravel(), pattern[part].ravel())[0, 1] > 0.8


# --- lenses and sensors -------------------------------------------------------------------------------------------------


@pytest.mark.covers("Blur")
def test_blurs_draw_their_strength_uniformly():
    # The middle of a blurred edge of 0 and 240 has the slope 240 / (sigma sqrt(2 pi)).
    edge = np.zeros((3, 60, 3), np.uint8)
    edge[:, 30:] = 240
    slopes = [int(image[1, 31, 0]) - int(image[1, 28, 0]) for image in colored(Blur((1.0, 4.0)), edge, 400)]
    at = np.linspace(0.5, 5, 2000)
    expected = [240 * (special.ndtr(1.5 / s) - special.ndtr(-1.5 / s)) for s in at]
    check_uniform(np.clip(np.interp(-np.array(slopes), -np.array(expected), at), 1, 4), 1, 4)


@pytest.mark.covers("Noise")
def test_noise_is_normal_independent_and_of_the_drawn_strength():
    """Dvoretzky, Kiefer and Wolfowitz: the empirical distribution is within sqrt(ln(2 / p) / 2n) of the true one."""
    gray = np.full((120, 150, 3), 128, np.uint8)
    noise = colored(Noise((20, 20)), gray)[0].astype(int) - 128
    levels = np.arange(-100, 100)
    empirical = np.array([(noise <= level).mean() for level in levels])
    allowed = np.sqrt(np.log(2 / FALSE_ALARM) / (2 * noise.size))
    assert np.abs(empirical - special.ndtr((levels + 0.5) / 20)).max() < allowed
    flat = noise.reshape(-1, 3)
    assert np.abs(np.corrcoef(flat.T)[np.triu_indices(3, 1)]).max() < 0.04  # 5 / sqrt(18,000)
    for axis in (0, 1):
        one, other = np.moveaxis(noise, axis, 0)[:-1].ravel(), np.moveaxis(noise, axis, 0)[1:].ravel()
        assert abs(np.corrcoef(one, other)[0, 1]) < 0.025
    same = colored(Noise((20, 20), gray=True), gray)[0]
    assert (same == same[:, :, :1]).all()
    assert (same.astype(float) - 128).std() == pytest.approx(20, rel=0.03)
    small = np.full((40, 40, 3), 128, np.uint8)
    deviations = [(image.astype(float) - 128).std() for image in colored(Noise((5, 25)), small, 300)]
    check_uniform(np.clip(deviations, 5, 25), 5, 25)
    assert colored(Noise((200, 200)), gray)[0].min() == 0  # cut, not wrapped
    black = colored(Noise((10, 10)), gray * 0)[0]
    assert black.max() < 100
    assert (black == 0).mean() == pytest.approx(0.52, abs=0.02)


@pytest.mark.covers("JpegArtifacts")
def test_jpeg_artifacts_draw_each_quality_equally_often():
    image = IMAGE[:24, :24]
    references = {quality: jpeg(image, quality) for quality in range(28, 36)}
    found = [
        next(quality for quality, reference in references.items() if np.array_equal(reference, made))
        for made in colored(JpegArtifacts((30, 33)), image, 200)
    ]
    check_counts([found.count(quality) for quality in (30, 31, 32, 33)])


@pytest.mark.covers("Erasing")
def test_erasing_draws_zhong_s_rectangles():
    image = np.full((60, 90, 3), 200, np.uint8)
    made = colored(Erasing(0.6, (0.05, 0.2), (0.5, 1.5), level=0), image, 700)
    check_share([(each != 200).any() for each in made], 0.6)
    windows = [window_of(each[:, :, 0] == 0) for each in made if (each != 200).any()]
    top, left, height, width = np.transpose(windows).astype(float)
    check_uniform(np.clip(height * width / (60 * 90), 0.05, 0.2), 0.05, 0.2)
    check_uniform(np.clip(np.log(height / width), log(0.5), log(1.5)), log(0.5), log(1.5))
    check_uniform(top / (60 - height), 0, 1)
    check_uniform(left / (90 - width), 0, 1)
    noise = colored(Erasing(1, (0.3, 0.3), (1, 1)), image)[0]
    check_counts(np.bincount(noise[(noise != 200).any(2)].ravel() // 16, minlength=16))


def test_all_images_of_a_sample_get_the_same_change_and_masks_none():
    sample = {"image": IMAGE, "second": IMAGE, "mask": IMAGE[:, :, 0]}
    kinds = {"image": "image", "second": "image", "mask": "mask"}
    ops = [Brightness(0.5), Noise(), Hue(), Erasing(1)]
    first, second = variants(sample, kinds, 2, color=ops)
    np.testing.assert_array_equal(first["image"], first["second"])
    np.testing.assert_array_equal(first["mask"], sample["mask"])
    assert (first["image"] != second["image"]).any()
    plain = variants(sample, kinds, first=0, color=ops)[0]
    np.testing.assert_array_equal(plain["image"], IMAGE)


def test_a_chain_is_its_ops_in_order():
    """Tone curves are joined into one table; the order and the ops between them must not be lost."""
    chain = [
        Invert(1), Brightness((0.5, 0.5)), Posterize((3, 3)), Contrast((1.5, 1.5)), Solarize((90, 90)), Gamma((2, 2)),
    ]  # fmt: skip
    expected = ImageEnhance.Brightness(ImageOps.invert(PIL)).enhance(0.5)
    expected = ImageEnhance.Contrast(ImageOps.posterize(expected, 3)).enhance(1.5)
    expected = np.rint(255 * (np.asarray(ImageOps.solarize(expected, 90)) / 255) ** 2)
    np.testing.assert_array_equal(colored(chain, IMAGE)[0], expected)
