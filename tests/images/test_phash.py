"""The perceptual hash against the package ImageHash."""

import io

import cv2
import numpy as np
import pytest
from PIL import Image

from tfprep.images import perceptual_hash

imagehash = pytest.importorskip("imagehash")


def reference(pixels: np.ndarray) -> int:
    return int(str(imagehash.phash(Image.fromarray(pixels))), 16)


def distance(a: int, b: int) -> int:
    return (a ^ b).bit_count()


def photo(rng: np.random.Generator, height: int, width: int) -> np.ndarray:
    """A picture with the spectrum of photos: amplitudes fall with the frequency (Field 1987)."""
    coarse = [cv2.resize(rng.normal(size=(n, n, 3)), (width, height), interpolation=cv2.INTER_CUBIC) / n
              for n in (2, 4, 8, 16, 32)]  # fmt: skip
    sums = np.sum(coarse, axis=0)
    return ((sums - sums.min()) / np.ptp(sums) * 255).astype(np.uint8)


def test_a_picture_is_near_its_hash_in_imagehash():
    rng = np.random.default_rng(1)
    sizes = [(224, 224), (375, 500), (500, 375), (64, 64), (33, 190)]
    distances = []
    for height, width in sizes * 8:
        pixels = photo(rng, height, width)
        distances.append(distance(perceptual_hash(pixels), reference(pixels)))
    assert max(distances) <= 4
    assert np.mean(distances) < 2


def test_bytes_of_a_file_have_nearly_the_hash_of_their_pixels():
    pixels = photo(np.random.default_rng(2), 600, 800)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "JPEG", quality=95)
    assert distance(perceptual_hash(file.getvalue()), perceptual_hash(pixels)) <= 2


def test_plain_pictures_of_one_size_share_a_hash():
    hashes = {perceptual_hash(np.full((50, 70, 3), level, np.uint8)) for level in (1, 30, 128, 255)}
    assert len(hashes) == 1


@pytest.mark.parametrize("dtype", ["uint16", "float32", "float64", "int32"])
def test_deeper_pixels_have_nearly_the_hash_of_eight_bits(dtype):
    pixels = photo(np.random.default_rng(5), 100, 120)
    assert distance(perceptual_hash(pixels.astype(dtype) * 200), perceptual_hash(pixels)) <= 2
    assert distance(perceptual_hash(pixels[:, :, [0, 1, 2, 0]].astype(dtype)), perceptual_hash(pixels[:, :, :1])) <= 2


def test_other_pictures_are_far_away():
    rng = np.random.default_rng(3)
    hashes = [perceptual_hash(photo(rng, 100, 120)) for _ in range(30)]
    assert min(distance(a, b) for n, a in enumerate(hashes) for b in hashes[:n]) > 8
