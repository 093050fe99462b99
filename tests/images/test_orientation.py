"""The orientation that a JPEG's bytes give equals the one that Pillow reads, in intact and damaged files; and headers."""

import io
import random
import struct
import warnings

import numpy as np
import pytest
from PIL import Image

from tests.photos import written
from tfprep.images import exif_orientation
from tfprep.images.jpeg_png import read_header, upright


def empty(form, **options):
    return written(Image.new("RGB", (8, 8)), form, **options)


def directory(entries, order="<", at=8):
    """An EXIF segment with entries (tag, type, count, value of 4 bytes)."""
    head = {"<": b"II*\0", ">": b"MM\0*"}[order] + struct.pack(f"{order}I", at)
    body = b"".join(struct.pack(f"{order}HHI", *entry[:3]) + entry[3] for entry in entries)
    return b"Exif\0\0" + head + b"\0" * (at - 8) + struct.pack(f"{order}H", len(entries)) + body + b"\0" * 4


def by_pillow(data):
    """Only eight numbers mean something (CIPA DC-008, 4.6.5.1.6); Pillow's `exif_transpose` turns nothing for others."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        orientation = int(Image.open(io.BytesIO(data)).getexif().get(0x0112, 1))
    return orientation if 1 <= orientation <= 8 else 1


def orientation_of(value, order="<", kind=3, count=1):
    return 0x0112, kind, count, struct.pack(f"{order}HH", value, 0)


MAKE = (0x010F, 2, 4, b"abc\0")
FURTHER_ON = directory([MAKE, orientation_of(6)], at=30)
PLAIN = {
    "none": (b"", 1), "another tag": (directory([MAKE]), 1), "no entry": (directory([]), 1),
    "further on": (FURTHER_ON, 6), "big-endian": (directory([orientation_of(8, ">")], ">"), 8),
    "out of range": (directory([orientation_of(9)]), 1),
}  # fmt: skip
ODD = {
    "given twice": directory([orientation_of(3), orientation_of(5)]),
    "beside a value outside": directory([(0x010F, 2, 900, b"abc\0"), orientation_of(6)]),
    "beside an unknown type": directory([(0x010F, 99, 1, b"abc\0"), orientation_of(6)]),
    "as a long": directory([orientation_of(6, kind=4)]),
    "of two values": directory([orientation_of(6, count=2)]),
    "cut short": directory([MAKE, orientation_of(6)])[:-14],
    "directory outside": b"Exif\0\0II*\0" + struct.pack("<I", 5000),
    "no byte order": b"Exif\0\0XX*\0" + bytes(20),
}
XMP = b'<x:xmpmeta xmlns:x="adobe:ns:meta/"><rdf:Description tiff:Orientation="3"/></x:xmpmeta>'


@pytest.mark.parametrize(
    ("exif", "expected"), [*PLAIN.values(), *((exif, None) for exif in ODD.values())], ids=[*PLAIN, *ODD]
)
def test_the_orientation_of_exif(exif, expected):
    data = empty("JPEG", exif=exif)
    try:
        reference = by_pillow(data)
    except Exception:
        assert expected is None  # Pillow does not accept it as an image.
        return
    assert exif_orientation(data) == reference
    assert expected in (None, reference)


def test_the_orientation_of_xmp_repeated_and_late_segments():
    data, exif = empty("JPEG"), directory([orientation_of(6)])
    segment = b"\xff\xe1" + struct.pack(">H", len(exif) + 2) + exif
    twice = data[:2] + segment + segment + data[2:]
    late = empty("JPEG", exif=exif, icc_profile=b"p" * 120_000)
    for one, expected in ((empty("JPEG", xmp=XMP), 3), (twice, by_pillow(twice)), (late, 6)):
        assert exif_orientation(one) == by_pillow(one) == expected


def test_damaged_headers_give_the_same_orientation_as_pillow():
    draws, whole, compared = random.Random(0), empty("JPEG", exif=FURTHER_ON), 0
    for _ in range(3000):
        data = bytearray(whole)
        for _ in range(draws.randint(1, 3)):
            data[draws.randrange(2, 110)] = draws.randrange(256)
        try:
            expected, found = by_pillow(bytes(data)), exif_orientation(bytes(data))
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


@pytest.mark.parametrize(
    ("form", "modes", "options"),
    [
        ("JPEG", ("RGB", "L", "CMYK"), {}),
        ("JPEG", ("RGB", "L", "CMYK"), {"progressive": True, "icc_profile": bytes(150_000)}),
        ("PNG", ("RGB", "L", "LA", "RGBA", "P", "1", "I;16"), {}),
    ],
)
def test_headers_say_size_channels_and_bits(form, modes, options):
    for mode in modes:
        header = read_header(written(Image.new(mode, (300, 7)), form, **options))
        assert header == (form.lower(), 7, 300, CHANNELS[mode], 16 if mode == "I;16" else 8)


def test_files_that_are_cut_short_or_damaged_have_no_size():
    jpeg, png = empty("JPEG"), empty("PNG")
    damaged = [b"\xff\xd8\xff" + b"\xff" * 50, jpeg[:2] + b"\xff\xe0\0\0" * 40]
    for data in (b"", b"\xff", jpeg[:3], jpeg[:30], png[:10], *damaged):
        header = read_header(data)
        assert header is None or (header.height, header.width) == (0, 0)
