"""Edges, gradients and statistics compared with OpenCV, SciPy's convolution and NumPy."""

from __future__ import annotations

import cv2
import numpy as np
import pytest
from scipy import ndimage

from tfprep.derive import Canny, Sobel
from tfprep.errors import SampleError

RNG = np.random.default_rng(0)
IMAGE = cv2.GaussianBlur(RNG.integers(0, 256, (40, 50, 3), dtype=np.uint8), (9, 9), 2)


def of(op, image=IMAGE):
    return op({"image": image}, np.random.default_rng(0))


def test_canny_marks_the_outline_of_a_square():
    image = np.zeros((40, 40, 3), np.uint8)
    image[10:30, 12:28] = 255
    out = of(Canny(), image)
    assert set(np.unique(out)) == {0, 1}
    near = ndimage.binary_dilation(image[:, :, 0] > 0, np.ones((3, 3))) ^ ndimage.binary_erosion(image[:, :, 0] > 0)
    assert not out[~near].any()
    for line in (out[20, :], out[:, 20]):
        assert line.sum() == 2
    assert not of(Canny(), np.full((9, 9, 3), 77, np.uint8)).any()


def test_canny_follows_its_thresholds():
    few, many = of(Canny(low=100, high=200)).sum(), of(Canny(low=5, high=10)).sum()
    assert few < many


def test_sobel_of_a_ramp_is_its_slope():
    ramp = (np.arange(50, dtype=np.uint8) * 3)[None, :, None].repeat(40, 0).repeat(3, 2)
    np.testing.assert_allclose(of(Sobel(), ramp)[:, 1:-1], 3, atol=1e-5)


def test_a_wrong_image():
    with pytest.raises(SampleError, match=r"an image is uint8 \[H, W, 3\]; 'image' is float64"):
        of(Sobel(), np.zeros((4, 4, 3)))
