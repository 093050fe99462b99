"""Sizes, channels and depths of images from their headers, against Pillow."""

import io

import numpy as np
from PIL import Image

from tfprep.images.headers import JPEG, NO_IMAGE, PNG, read_headers

CHANNELS = {"RGB": 3, "L": 1, "CMYK": 4, "LA": 2, "RGBA": 4, "P": 3, "1": 1, "I;16": 1}


def written(mode: str, form: str, size: tuple[int, int], **options) -> bytes:
    file = io.BytesIO()
    Image.new(mode, size).save(file, form, **options)
    return file.getvalue()


def test_headers_of_many_images_at_once():
    cases = [
        *[("JPEG", mode, options) for mode in ("RGB", "L", "CMYK") for options in ({}, {"progressive": True})],
        ("JPEG", "RGB", {"icc_profile": bytes(150_000), "comment": b"c" * 60_000}),
        *[("PNG", mode, {}) for mode in ("RGB", "L", "LA", "RGBA", "P", "1", "I;16")],
        ("BMP", "RGB", {}),
    ]
    sizes = [(300 + number, 70_000 // (number + 7)) for number in range(len(cases))]
    files = [written(mode, form, size, **options) for (form, mode, options), size in zip(cases, sizes, strict=True)]
    length = np.array([len(file) for file in files])
    start = np.cumsum(length) - length
    found = read_headers(np.frombuffer(b"".join(files) + bytes(16), np.uint8), start, length)
    for number, ((form, mode, _), (width, height)) in enumerate(zip(cases, sizes, strict=True)):
        if form == "BMP":
            assert found.format[number] == NO_IMAGE
            continue
        assert found.format[number] == (JPEG if form == "JPEG" else PNG)
        assert (found.height[number], found.width[number]) == (height, width)
        assert found.channels[number] == CHANNELS[mode]
        assert found.bits[number] == (16 if mode == "I;16" else 8)


def test_files_that_are_cut_short_or_damaged_have_no_size():
    jpeg, png = written("RGB", "JPEG", (20, 30)), written("RGB", "PNG", (20, 30))
    files = [
        b"",
        b"\xff",
        jpeg[:3],
        jpeg[:30],
        png[:10],
        b"\xff\xd8\xff" + b"\xff" * 50,
        jpeg[:2] + b"\xff\xe0\0\0" * 40,
    ]
    length = np.array([len(file) for file in files])
    start = np.cumsum(length) - length
    found = read_headers(np.frombuffer(b"".join(files) + bytes(16), np.uint8), start, length)
    assert not found.height.any()
    assert not found.width.any()
