"""Decoding: Pillow's pixels of the same files, formulas for depths and transparency, the place of reduced pixels."""

import io
import itertools

import imagehash
import numpy as np
import pytest
from PIL import Image, ImageOps
from scipy import ndimage

from tests.fidelity.public import variants
from tests.photos import natural, oriented, written
from tfprep import images
from tfprep.augment import Resize
from tfprep.errors import SampleError

RNG = np.random.default_rng(0)


def smooth(height, width, channels=3, seed=0):
    noise = ndimage.gaussian_filter(np.random.default_rng(seed).normal(size=(height, width, channels)), (5, 5, 0))
    return np.clip(128 + noise * 50 / noise.std(), 0, 255).astype(np.uint8)


RGB = smooth(45, 61)
PIL = Image.fromarray(RGB)


def opened(data):
    return Image.open(io.BytesIO(data))


@pytest.mark.parametrize("orientation", range(10))
@pytest.mark.parametrize("kind", ["JPEG", "CMYK", "PNG", "TIFF", "WEBP"])
def test_images_stand_upright_as_in_pillow(kind, orientation):
    options = {"lossless": True} if kind == "WEBP" else {}
    image, form = (PIL.convert("CMYK"), "JPEG") if kind == "CMYK" else (PIL, kind)
    data = written(image, form, exif=oriented(orientation), **options)
    expected = np.asarray(ImageOps.exif_transpose(opened(data)).convert("RGB"))
    assert expected.shape[:2] == ((61, 45) if 5 <= orientation <= 8 else (45, 61))
    np.testing.assert_array_equal(images.decode_image(data), expected)
    assert images.image_size(data) == expected.shape[:2]
    turned = 2 <= orientation <= 8
    assert images.keeps_original(data) == (kind in ("JPEG", "PNG") and not turned)
    if kind == "JPEG":
        assert images.exif_orientation(data) == (orientation if turned else 1)
        assert images.stored_size(data) == (45, 61)


@pytest.mark.parametrize("color", [(255, 255, 255), (0, 0, 255)])
def test_transparency_shows_the_background(color):
    """Other color models and formats are compared with Pillow in `tests/images`."""
    rgba = Image.fromarray(np.dstack([RGB, smooth(45, 61, 1, 2)]))
    expected = Image.alpha_composite(Image.new("RGBA", rgba.size, color), rgba).convert("RGB")
    options = {} if color == (255, 255, 255) else {"background": color}
    np.testing.assert_array_equal(images.decode_image(written(rgba), **options), np.asarray(expected))
    with pytest.raises(SampleError):
        images.decode_image(written(rgba), background=None)


def test_sixteen_bits_are_kept_or_refused():
    deep = np.arange(65536, dtype=np.uint16).reshape(256, 256)
    color = RNG.integers(0, 65536, (20, 30, 3), dtype=np.uint16)
    for data, pixels in ((written(Image.fromarray(deep)), deep[:, :, None]), (images.encode_png(color, 3), color)):
        np.testing.assert_array_equal(images.decode_pixels(data), pixels)
        with pytest.raises(SampleError):
            images.decode_image(data)


def test_masks_keep_their_numbers():
    numbers = RNG.integers(0, 256, (20, 30), dtype=np.uint8)
    few, deep = numbers % 7, RNG.integers(0, 65536, (20, 30), dtype=np.uint16)
    palette = Image.fromarray(few).convert("P")
    palette.putpalette([v for n in range(256) for v in (255 - n, n * 3 % 256, 9)])
    for name, data, expected in (
        ("gray", written(Image.fromarray(numbers)), numbers),
        ("palette", written(palette), few),
        ("bits", written(Image.fromarray(few > 3)), few > 3),
        ("16 bits", written(Image.fromarray(deep)), deep),
        ("four levels", written(Image.fromarray(few % 4), bits=2), few % 4),
        ("16 levels", written(Image.fromarray(numbers % 16), bits=4), numbers % 16),
        ("tiff", written(Image.fromarray(numbers), "TIFF", compression="tiff_deflate"), numbers),
        ("16-bit tiff", written(Image.fromarray(deep), "TIFF"), deep),
        ("bmp", written(Image.fromarray(numbers), "BMP"), numbers),
        ("gif", written(palette, "GIF", optimize=False, palette=palette.getpalette()), few),
        ("palette with transparency", written(palette, transparency=0), few),
    ):
        decoded = images.decode_mask(data)
        np.testing.assert_array_equal(decoded, expected, err_msg=name)
        assert decoded.dtype == (np.uint16 if "16" in name and "levels" not in name else np.uint8)
    with pytest.raises(SampleError):
        images.decode_mask(written(PIL))


def test_pixels_keep_their_channels():
    alpha = np.dstack([RGB, RGB[:, :, :1]])
    for image, expected in ((PIL.getchannel("R"), RGB[:, :, :1]), (PIL, RGB), (Image.fromarray(alpha), alpha)):
        np.testing.assert_array_equal(images.decode_pixels(written(image)), expected, err_msg=image.mode)
    frames = [Image.fromarray(RGB[:, :, 0] // n) for n in (1, 2, 3)]
    pages = written(frames[0], "TIFF", save_all=True, append_images=frames[1:])
    for page, frame in enumerate(frames):
        np.testing.assert_array_equal(images.decode_pixels(pages, page)[:, :, 0], np.asarray(frame))
    with pytest.raises(SampleError):
        images.decode_pixels(pages)


@pytest.mark.parametrize("reduced", [2, 4, 8])
@pytest.mark.parametrize("orientation", [1, 3, 6, 8])
def test_reduced_pixels_are_pillows(reduced, orientation):
    """libjpeg's scaled DCT, as Pillow's `draft` gives it: ceil(side / k) pixels."""
    picture = Image.fromarray(smooth(160, 240))
    data = written(picture, "JPEG", quality=90, exif=oriented(orientation))
    image = opened(data)
    image.draft("RGB", (240 // reduced, 160 // reduced))
    assert image.size == (240 // reduced, 160 // reduced)
    expected = np.asarray(ImageOps.exif_transpose(image))
    np.testing.assert_array_equal(images.decode_image(data, reduced=reduced), expected)


def test_a_reduced_decode_does_not_move_the_image():
    """A build decodes at 1/8 what it then shrinks 10 times: the result lies where the area average of the whole image lies, to a
    twentieth of an output pixel, which is half a pixel of the photo."""
    big = np.asarray(Image.fromarray(smooth(40, 56, seed=4)).resize((563, 401), Image.Resampling.BICUBIC))
    data = written(Image.fromarray(big), "JPEG", quality=98, subsampling=0)
    whole = np.asarray(opened(data))
    for height, width in ((40, 56), (67, 90), (100, 140)):
        ours = variants({"image": data}, {"image": "image"}, geometry=[Resize(height, width)])[0]["image"].astype(float)
        plain = variants({"image": whole}, {"image": "image"}, geometry=[Resize(height, width)])[0]["image"].astype(
            float
        )
        assert np.sqrt(np.mean((ours - plain) ** 2)) < 4
        for axis in (0, 1):
            slope = np.gradient(plain, axis=axis)[2:-2, 2:-2]
            shift = (slope * (ours - plain)[2:-2, 2:-2]).sum() / (slope**2).sum()
            assert abs(shift) < 0.05


def test_a_png_without_its_end_is_an_error():
    with pytest.raises(SampleError):
        images.decode_image(written(PIL)[:-12])


def distance(picture, other):
    return (images.perceptual_hash(picture) ^ images.perceptual_hash(other)).bit_count()


def test_the_perceptual_hash_is_nearly_imagehashs():
    """ImageHash uses another filter, which changes bits of frequencies near their median."""
    sizes = [(224, 224), (375, 500), (500, 375), (64, 64), (33, 190), (32, 32)] * 8
    pictures = [natural(number, *size) for number, size in enumerate(sizes)]
    theirs = [int(str(imagehash.phash(Image.fromarray(picture))), 16) for picture in pictures]
    bits = [(images.perceptual_hash(ours) ^ other).bit_count() for ours, other in zip(pictures, theirs, strict=True)]
    assert max(bits) <= 4
    assert np.mean(bits) < 2
    assert min(distance(a, b) for a, b in itertools.combinations(pictures[:30], 2)) > 8


def test_a_picture_has_nearly_one_hash_in_all_its_forms():
    picture = natural(2, 300, 400)
    assert distance(written(Image.fromarray(picture), "JPEG", quality=95), picture) <= 2
    for dtype in ("uint16", "float32", "float64", "int32"):
        assert distance(picture.astype(dtype) * 200, picture) <= 2
        assert distance(picture[:, :, [0, 1, 2, 0]].astype(dtype), picture[:, :, :1]) <= 2
    assert len({images.perceptual_hash(np.full((50, 70, 3), level, np.uint8)) for level in (1, 30, 128, 255)}) == 1
