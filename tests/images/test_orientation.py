"""The orientation read from a JPEG's bytes equals the one that Pillow reads, in intact and damaged files."""

import io
import random
import struct
import warnings

import numpy as np
import pytest
from PIL import Image

from tfprep.images import exif_orientation
from tfprep.images.headers import JPEG, NO_IMAGE, PNG, read_headers
from tfprep.images.jpeg import upright

PIXELS = Image.fromarray(np.zeros((8, 8, 3), np.uint8))


def jpeg(exif=b"", **options):
    file = io.BytesIO()
    PIXELS.save(file, "JPEG", exif=exif, **options)
    return file.getvalue()


def directory(entries, order="<", at=8):
    """An EXIF segment with entries (tag, type, count, value of 4 bytes)."""
    head = {"<": b"II*\0", ">": b"MM\0*"}[order] + struct.pack(f"{order}I", at)
    body = b"".join(struct.pack(f"{order}HHI", *entry[:3]) + entry[3] for entry in entries)
    return b"Exif\0\0" + head + b"\0" * (at - 8) + struct.pack(f"{order}H", len(entries)) + body + b"\0" * 4


def by_pillow(data):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return int(Image.open(io.BytesIO(data)).getexif().get(0x0112, 1))


def applied(orientation):
    """Only eight numbers mean something (CIPA DC-008, 4.6.5.1.6); Pillow's `exif_transpose` turns nothing for others."""
    return orientation if 1 <= orientation <= 8 else 1


MAKE = (0x010F, 2, 4, b"abc\0")
PLAIN = {
    "none": (b"", 1),
    "another tag": (directory([MAKE]), 1),
    "no entry": (directory([]), 1),
    "further on": (directory([MAKE, (0x0112, 3, 1, struct.pack("<HH", 6, 0))], at=30), 6),
    "big-endian": (directory([(0x0112, 3, 1, struct.pack(">HH", 8, 0))], ">"), 8),
    "out of range": (directory([(0x0112, 3, 1, struct.pack("<HH", 9, 0))]), 1),
}
ODD = {
    "given twice": directory([(0x0112, 3, 1, struct.pack("<HH", n, 0)) for n in (3, 5)]),
    "beside a value outside": directory([(0x010F, 2, 900, b"abc\0"), (0x0112, 3, 1, struct.pack("<HH", 6, 0))]),
    "beside an unknown type": directory([(0x010F, 99, 1, b"abc\0"), (0x0112, 3, 1, struct.pack("<HH", 6, 0))]),
    "as a long": directory([(0x0112, 4, 1, struct.pack("<I", 6))]),
    "of two values": directory([(0x0112, 3, 2, struct.pack("<HH", 6, 3))]),
    "cut short": directory([MAKE, (0x0112, 3, 1, struct.pack("<HH", 6, 0))])[:-14],
    "directory outside": b"Exif\0\0II*\0" + struct.pack("<I", 5000),
    "no byte order": b"Exif\0\0XX*\0" + bytes(20),
}


@pytest.mark.parametrize("name", PLAIN)
def test_a_plain_entry(name):
    exif, expected = PLAIN[name]
    assert exif_orientation(jpeg(exif)) == applied(by_pillow(jpeg(exif))) == expected


@pytest.mark.parametrize("name", ODD)
def test_an_unusual_entry(name):
    try:
        expected = by_pillow(jpeg(ODD[name]))
    except Exception:
        return  # Pillow does not accept it as an image.
    assert exif_orientation(jpeg(ODD[name])) == expected


def test_xmp_and_repeated_segments():
    xmp = b'<x:xmpmeta xmlns:x="adobe:ns:meta/"><rdf:Description tiff:Orientation="3"/></x:xmpmeta>'
    assert exif_orientation(jpeg(xmp=xmp)) == by_pillow(jpeg(xmp=xmp)) == 3
    one = directory([(0x0112, 3, 1, struct.pack("<HH", 6, 0))])
    segment = b"\xff\xe1" + struct.pack(">H", len(one) + 2) + one
    data = jpeg()
    twice = data[:2] + segment + segment + data[2:]
    assert exif_orientation(twice) == by_pillow(twice)


def test_damaged_headers_give_the_same_orientation_as_pillow():
    rng = random.Random(0)
    whole = jpeg(PLAIN["further on"][0])
    compared = 0
    for _ in range(3000):
        data = bytearray(whole)
        for _ in range(rng.randint(1, 3)):
            data[rng.randrange(2, 110)] = rng.randrange(256)
        try:
            expected, found = applied(by_pillow(bytes(data))), exif_orientation(bytes(data))
        except Exception:
            continue
        compared += 1
        assert found == expected, bytes(data[:110])
    assert compared > 500


@pytest.mark.parametrize("dtype", ["uint8", "uint16", "float32", "int32", "float64", "bool"])
def test_arrays_of_every_type_and_depth_are_turned(dtype):
    for shape in ((5, 7), (1, 7), (5, 7, 1), (5, 7, 3), (6, 1, 4), (5, 7, 9)):
        pixels = (np.random.default_rng(0).random(shape) * 200).astype(dtype)
        for orientation, quarters in ((1, 0), (3, 2), (6, -1), (8, 1)):
            turned = upright(pixels, orientation)
            np.testing.assert_array_equal(turned, np.rot90(pixels, quarters), strict=True)
            assert turned.flags.c_contiguous


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
