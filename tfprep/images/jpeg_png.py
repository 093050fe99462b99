"""JPEG and PNG, the formats that shards hold: JPEG through simplejpeg (libjpeg-turbo, bit-identical to Pillow), and through
Pillow where simplejpeg refuses; PNG of arrays with 1 to 4 channels of 8 or 16 bits through OpenCV.

simplejpeg takes every warning of libjpeg for an error: a few stray bytes between two segments, a damaged color profile, an
unknown JFIF revision. Pillow and TensorFlow decode such files. Building and reading share these functions, so a file that a
build accepts is one that a loader decodes.

The EXIF orientation is found in a JPEG's bytes, seven times as fast as by opening the image. EXIF is a TIFF directory in an APP1
segment: byte order, offset of the directory, number of entries, 12 bytes an entry: tag, type, count, value (CIPA DC-008
section 4.6.2). `read_header` reads size and channels in the same way (ITU-T T.81, B.2.2), also of PNG (IHDR).
"""

from __future__ import annotations

import io
import struct
import warnings
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NamedTuple

import numpy as np
import simplejpeg
from PIL import Image

from tfprep.errors import MissingDependencyError, SampleError
from tfprep.fields import Array, ImageArray, Size
from tfprep.images.pillow import (
    JPEG_END,
    PNG_START,
    check_pixels,
    check_settings,
    is_jpeg,
    known_orientation,
    note_turned,
    opened,
    pillow_orientation,
    rgb_pixels,
    warn,
)
from tfprep.optional import HAS_OPENCV, cv2

SCAN = 0xDA
"""The code of the marker before the data of the pixels (ITU-T T.81, table B.1)."""
_SEQUENTIAL = {0xC0, 0xC1}
"""The codes of the markers (ITU-T T.81, table B.1) of sequential frames with Huffman coding."""
_PLAIN_SEGMENTS = {*_SEQUENTIAL, 0xC4, 0xDB, 0xDD, SCAN}
"""Frame, Huffman tables, quantization tables, restart interval and scan: all that a sequential JPEG needs."""
_COMMENTS = {*range(0xE0, 0xF0), 0xFE}
"""Application data and comments, which decide nothing about the pixels' data."""
_IN_SCAN = np.isin(np.arange(256), [0x00, *range(0xD0, 0xD8), 0xFF])
"""What follows a byte FF in a scan's data: FF 00 is the byte FF, FF D0 to FF D7 are restarts, and FF may fill up."""
_KEEPS_FIRST_PIXEL = (1, 5)
"""The orientations whose first pixel in the file is the first one of the upright image."""


_PNG_HEADER_BYTES = 33
_CHANNELS_OF_COLOR_TYPE = 1, 0, 3, 3, 2, 0, 4, 0
"""By PNG color type; a palette (3) becomes RGB."""


class Header(NamedTuple):
    """What a header says: "jpeg" or "png", height and width in pixels, channels, bits per channel; 0 where it is damaged."""

    format: str
    height: int = 0
    width: int = 0
    channels: int = 0
    bits: int = 0


def read_header(data: bytes) -> Header | None:
    """Read the header of a file; None if it does not begin like a JPEG or a PNG."""
    if data.startswith(PNG_START) and len(data) >= _PNG_HEADER_BYTES:
        width, height = int.from_bytes(data[16:20], "big"), int.from_bytes(data[20:24], "big")
        return Header("png", height, width, _CHANNELS_OF_COLOR_TYPE[data[25] & 7], 16 if data[24] == 16 else 8)
    if not is_jpeg(data):
        return None
    for code, start, _ in jpeg_segments(data):
        if 0xC0 <= code <= 0xCF and code not in (0xC4, 0xC8, 0xCC) and start + 6 <= len(data):
            height, width = (int.from_bytes(data[at : at + 2], "big") for at in (start + 1, start + 3))
            return Header("jpeg", height, width, data[start + 5], data[start])
    return Header("jpeg")


def jpeg_segments(data: bytes) -> list[tuple[int, int, int]]:
    """Return the code of each marker of a JPEG up to the scan, and start and end of its segment's content."""
    segments: list[tuple[int, int, int]] = []
    at, code = 2, 0
    while code != SCAN and at + 4 <= len(data) and data[at] == 0xFF:
        code = data[at + 1]
        if code == 0xFF:  # a fill byte
            at += 1
            continue
        end = at + 2 + int.from_bytes(data[at + 2 : at + 4], "big")
        segments.append((code, at + 4, end))
        at = end
    return segments


def jpeg_header(data: bytes) -> tuple[int, int, str] | None:
    """Height, width and color space as they are stored; None for the rare JPEG that simplejpeg does not read (chroma
    sampled in an unusual way, a damaged header), about which Pillow decides."""
    try:
        height, width, colorspace, _ = simplejpeg.decode_jpeg_header(data, strict=False)
    except (ValueError, KeyError):
        return None
    check_pixels(height, width)
    return int(height), int(width), str(colorspace)


def exif_orientation(data: bytes) -> int:
    """The EXIF orientation of a JPEG, 1 to 8; 1 where it has none. As with Pillow, XMP counts where EXIF has none."""
    orientation = orientation_of(data)
    if orientation is not None:
        return orientation
    with opened(data) as image:
        return pillow_orientation(image, data)


def decode_jpeg(data: bytes, size: Size, reduced: int) -> ImageArray:
    """The upright pixels uint8 [H, W, 3] of a JPEG whose header says `size`, decoded at 1 / `reduced` where that is possible."""
    orientation = exif_orientation(data)
    if orientation not in _KEEPS_FIRST_PIXEL and any(side % reduced for side in size):
        reduced = 1
    height, width = (0, 0) if reduced == 1 else (-(-size[0] // reduced), -(-size[1] // reduced))
    try:
        pixels = simplejpeg.decode_jpeg(data, min_height=height, min_width=width, min_factor=reduced)
    except (ValueError, KeyError) as error:
        if lacks_end(data):
            warn("the end marker of the JPEG is missing")
            return decode_jpeg(data + JPEG_END, size, reduced)
        with opened(data) as image:
            pixels = rgb_pixels(image)
        warn(str(error))
    return upright(pixels, orientation)


def lacks_end(data: bytes) -> bool:
    """Return True if all pixels of a sequential JPEG of one scan are there, and only the marker of its end is not.

    Of a progressive JPEG nobody knows how many scans were to follow.
    """
    if _without_scan_data(data + JPEG_END) is None:  # also where there is an end
        return False
    try:
        simplejpeg.decode_jpeg(data + JPEG_END, "GRAY", min_height=1, min_width=1, min_factor=8)
    except (ValueError, KeyError):
        return False
    return True


def certain_to_decode(data: bytes) -> bool:
    """Return True if a file is certain to decode, at a tenth of the cost of decoding it; False where that is not known.

    Damage inside the data of a scan changes pixels, but is not an error to libjpeg; damage to what surrounds the scan is. So the
    segments of a sequential JPEG are decoded without the scan's data. Other JPEGs and other formats give False.
    """
    segments = _without_scan_data(data) if is_jpeg(data) else None
    if segments is None:
        return False
    try:
        simplejpeg.decode_jpeg(segments, "GRAY", min_height=1, min_width=1, min_factor=8)
    except (ValueError, KeyError) as error:
        # libjpeg's warning, the last one, that the scan's data is missing. With an error, another message stands here.
        return "premature end of data segment" in str(error)
    return False  # without data there is always the warning


def _without_scan_data(data: bytes) -> bytes | None:
    """The segments of a sequential JPEG of one scan, from its first to its last byte; None for any other."""
    segments = jpeg_segments(data)
    codes = [code for code, _, _ in segments]
    if SCAN not in codes or {*codes} - _PLAIN_SEGMENTS - _COMMENTS or sum(code in _SEQUENTIAL for code in codes) != 1:
        return None
    at = segments[-1][2]
    scan = np.frombuffer(data, np.uint8, offset=min(at, len(data)))
    marks = np.flatnonzero(scan[:-1] == 0xFF)  # a twentieth of the time of a regular expression
    marks = marks[~_IN_SCAN[scan[marks + 1]]]
    if not marks.size or data[at + int(marks[0]) :] != JPEG_END:
        return None
    # The code of a marker is in the two bytes before the length of its segment.
    kept = [data[start - 4 : end] for code, start, end in segments if code not in _COMMENTS]
    return b"".join([data[:2], *kept, JPEG_END])


def decode_stored_jpeg(
    data: Any, *, channels: int | None, out: ImageArray | None = None, reduced: int = 1
) -> ImageArray:
    """A stored JPEG as uint8 [H, W, channels], whatever its orientation: none is written by `encode_jpeg`.

    Args:
        data: the file as bytes or a buffer of them.
        channels: 1 for gray, 3 (or None) for RGB.
        out: an array of the image's size, C-contiguous, to decode into.
        reduced: with `out` of ceil(size / `reduced`), the JPEG is decoded at 1 / `reduced`. The rare one that simplejpeg does not
            read is returned whole.

    Raises:
        SampleError: the file cannot be decoded, has more than `MAX_PIXELS`, or its size is not that of `out`.
    """
    if out is None:
        jpeg_header(data)  # more pixels than are decoded are an error
    try:
        least = out.shape[:2] if out is not None and reduced > 1 else (0, 0)
        pixels: ImageArray = simplejpeg.decode_jpeg(
            data,
            "GRAY" if channels == 1 else "RGB",
            min_height=least[0],
            min_width=least[1],
            min_factor=reduced,
            buffer=out,
        )
    except (ValueError, KeyError):
        with opened(bytes(data)) as image:
            if channels == 1:
                image.draft("L", image.size)  # libjpeg's own gray, the luma channel, instead of a conversion from RGB
            pixels = np.asarray(image.convert("L"))[:, :, None] if channels == 1 else rgb_pixels(image)
        if reduced > 1:
            return pixels
        if out is not None and pixels.shape == out.shape:
            np.copyto(out, pixels)
    if out is not None and pixels.shape != out.shape:
        expected = f"{out.shape[1]} x {out.shape[0]}"
        raise SampleError(f"a JPEG of {pixels.shape[1]} x {pixels.shape[0]} pixels, expected {expected}")
    return pixels


def encode_jpeg(image: ImageArray, quality: int, subsampling: str) -> bytes:
    """uint8 [H, W, 3] RGB, or [H, W] or [H, W, 1] gray, as the same JPEG that Pillow writes."""
    # OpenCV takes libjpeg-turbo's accurate DCT. simplejpeg (TurboJPEG) takes the fast one below a quality of 96: at 95 that
    # loses 0.3 dB at 4:2:0 and 1.4 dB at 4:4:4.
    gray = image.ndim == 2 or image.shape[2] == 1
    pixels = np.ascontiguousarray(image) if gray else cv2.cvtColor(image, cv2.COLOR_RGB2BGR)
    options = [cv2.IMWRITE_JPEG_QUALITY, quality]
    if not gray:
        options += [cv2.IMWRITE_JPEG_SAMPLING_FACTOR, getattr(cv2, f"IMWRITE_JPEG_SAMPLING_FACTOR_{subsampling}")]
    try:
        written, data = cv2.imencode(".jpg", pixels, options)
    except cv2.error:
        written = False
    if not written:
        raise SampleError(
            f"JPEG cannot hold {list(image.shape[:2])} pixels: 65,500 a side at most; use Zstd(), Png() or Raw()"
        )
    return bytes(data)


_EXIF = b"Exif\0\0"
_ORIENTATION = 0x0112
_MARKER_APP1 = 0xE1
_TURNS: dict[int, Callable[[Array], Array]] = {
    2: lambda a: a[:, ::-1],
    3: lambda a: a[::-1, ::-1],
    4: lambda a: a[::-1],
    5: lambda a: a.swapaxes(0, 1),
    6: lambda a: a.swapaxes(0, 1)[:, ::-1],
    7: lambda a: a.swapaxes(0, 1)[::-1, ::-1],
    8: lambda a: a.swapaxes(0, 1)[::-1],
}


_ROTATIONS = {3: 1, 6: 0, 8: 2}
"""OpenCV's numbers (ROTATE_180 and the quarter turns) of the orientations that cameras write: a quarter of the time of NumPy."""
_FAST, _CV_CHANNELS = (np.uint8, np.uint16, np.float32), 4


def upright(pixels: Array, orientation: int) -> Array:
    """[H, W] or [H, W, C] turned as an EXIF orientation from 1 to 8 says, in memory of its own order."""
    if orientation not in _TURNS:
        return pixels
    note_turned(True)
    turned = _TURNS[orientation](pixels)
    if orientation in _ROTATIONS and HAS_OPENCV and pixels.dtype in _FAST and pixels.shape[2:] <= (_CV_CHANNELS,):
        rotated: Array = cv2.rotate(pixels, _ROTATIONS[orientation])
        return rotated.reshape(turned.shape)
    return np.ascontiguousarray(turned)


def as_stored(pixels: Array, orientation: int) -> Array:
    """[H, W] or [H, W, C] that was turned upright as it is in the file: the inverse of `upright`."""
    pixels = upright(pixels, {6: 8, 8: 6}.get(orientation, orientation))
    note_turned(False)
    return pixels


def orientation_of(data: bytes) -> int | None:
    """The orientation of a JPEG, 1 where it has none; None where Pillow must decide: the file does not say it as one plain entry
    of EXIF, but in several segments, in XMP, or in a damaged directory."""
    found = jpeg_segments(data)
    if not found or found[-1][0] != SCAN:
        return None
    segments = [(start, end) for code, start, end in found if code == _MARKER_APP1]
    exif = [(start, end) for start, end in segments if data.startswith(_EXIF, start)]
    in_xmp = any(data.find(b"tiff:Orientation", start, end) >= 0 for start, end in segments)
    if not exif and not in_xmp:
        return 1
    if in_xmp or len(exif) > 1:
        return None
    directory = Image.Exif()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            directory.load(data[slice(*exif[0])])
            orientation = directory.get(_ORIENTATION, 1)
    except (ValueError, SyntaxError, struct.error, KeyError, OSError):
        return None
    return known_orientation(orientation) if isinstance(orientation, int) else None


# --- PNG ----------------------------------------------------------------------------------------------------------------

_GRAY_ALPHA = 4
"""The color type of gray and alpha in a PNG's header, byte 25."""

_LONGEST_SIDE = 1_000_000
"""libpng's own limit, with which OpenCV reads and writes. Pillow writes more, which OpenCV does not read."""


def encode_png(array: Array, level: int) -> bytes:
    """uint8 [H, W] or [H, W, C] with 1 to 4 channels, or uint16 with 1, 3 or 4, as a PNG. Two channels are stored as gray and
    alpha. `level` is zlib's, 0 to 9. Raises SampleError for any other array."""
    if max(array.shape[:2], default=0) > _LONGEST_SIDE:
        raise SampleError(
            f"PNG has sides of up to {_LONGEST_SIDE:,} pixels, not {list(array.shape)}; use Zstd() or Raw()"
        )
    if array.ndim == 3 and array.shape[2] == 2:
        if array.dtype != np.uint8:
            rule = f"PNG holds two channels as uint8 only, not {array.dtype}"
            raise SampleError(f"{rule}; use Zstd() or Raw(), or one field a channel")
        file = io.BytesIO()
        Image.fromarray(np.ascontiguousarray(array), "LA").save(file, "PNG", compress_level=level)
        return file.getvalue()
    written, options = False, [cv2.IMWRITE_PNG_COMPRESSION, level]
    if array.dtype in (np.uint8, np.uint16):
        with suppress(cv2.error):
            written, data = cv2.imencode(".png", np.ascontiguousarray(_swap_rgb(array)), options)
    if not written:
        raise SampleError(
            f"PNG holds uint8 or uint16 with 1 to 4 channels, not {array.dtype} {list(array.shape)}; use Zstd() or Raw()"
        )
    return bytes(data)


def check_png_size(data: Any) -> None:
    """Raises SampleError where the header of a PNG, as bytes or a buffer of them, has more than `MAX_PIXELS`."""
    width, height = (int.from_bytes(bytes(data[at : at + 4]), "big") for at in (16, 20))
    if len(data) >= 24:
        check_pixels(height, width)


def decode_png(data: bytes) -> Array:
    """uint8 or uint16 [H, W, C] of what `encode_png` wrote. Raises SampleError."""
    check_png_size(data)
    if not HAS_OPENCV:  # Pillow has no form for several channels of 16 bits
        if len(data) > 25 and data[24] == 16 and data[25] != 0:
            rule = "a PNG of several channels of 16 bits needs OpenCV"
            raise MissingDependencyError(f"{rule}: pip install 'tfprep[opencv]'")
        check_settings()
        try:
            with Image.open(io.BytesIO(data), formats=["PNG"]) as image:
                pixels = np.array(image)
        except (OSError, SyntaxError, ValueError) as error:
            raise SampleError("not a whole PNG image") from error
        return pixels if pixels.ndim == 3 else pixels[:, :, None]
    array = by_opencv(data)
    # OpenCV repeats the gray of a pair of channels three times.
    return array[:, :, [0, 3]] if len(data) > 25 and data[25] == _GRAY_ALPHA else array


def by_opencv(data: bytes) -> Array:
    """The numbers [H, W, C] of a file in the order of its channels, whatever its orientation. Raises SampleError."""
    array = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_UNCHANGED) if data else None
    if array is None:
        raise SampleError("not a whole image")
    return _swap_rgb(array if array.ndim == 3 else array[:, :, None])


def _swap_rgb(array: Array) -> Array:
    """RGB to OpenCV's BGR and back; other numbers of channels stay as they are."""
    if array.ndim == 3 and array.shape[2] == 3:
        return array[:, :, ::-1]
    if array.ndim == 3 and array.shape[2] == 4:
        return array[:, :, [2, 1, 0, 3]]
    return array
