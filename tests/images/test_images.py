"""Decoding of image bytes compared with Pillow and OpenCV, and which files are refused."""

import io
import itertools
import struct
import subprocess
import sys
import zlib
from pathlib import Path

import cv2
import numpy as np
import pytest
import tifffile
from PIL import Image, ImageOps, features

from tests.photos import oriented, written
from tfprep import images
from tfprep.errors import SampleError
from tfprep.images.pillow import check_pixels

RNG = np.random.default_rng(7)
RGB = cv2.GaussianBlur(RNG.integers(0, 256, (30, 44, 3)).astype(np.float32), (0, 0), 1.5).astype(np.uint8)


def by_pillow(data):
    """The reference: Pillow's conversion of the upright image, over white where it is transparent."""
    image = ImageOps.exif_transpose(Image.open(io.BytesIO(data)))
    if image.has_transparency_data:
        rgba = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", rgba.size, "white"), rgba)
    return np.asarray(image.convert("RGB"))


def decoded_or_refused(data):
    """The pixels, or the reason why the file is refused."""
    try:
        return images.decode_image(data)
    except SampleError as error:
        return str(error)


def chunk(name, body):
    return struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))


def ihdr(height, width, bits=8, color=2):
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, bits, color, 0, 0, 0))


def png(rows, height, width, bits, color, extra=b""):
    """A PNG of these rows of bytes. Pillow cannot write 16 bits in color, or gray of 1, 2 and 4 bits."""
    body = zlib.compress(b"".join(b"\0" + row for row in rows))
    return ihdr(height, width, bits, color) + extra + chunk(b"IDAT", body) + chunk(b"IEND", b"")


def png16(array, extra=b""):
    """A PNG of uint16 [H, W, C] with 1 to 4 channels."""
    height, width, channels = array.shape
    rows = [row.astype(">u2").tobytes() for row in array]
    return png(rows, height, width, 16, {1: 0, 2: 4, 3: 2, 4: 6}[channels], extra)


def pillow_reads(data):
    try:
        Image.open(io.BytesIO(data)).load()
    except OSError:
        return False
    return True


YCBCR = written(Image.fromarray(RGB).convert("YCbCr"), "TIFF")


def tiff(array, **options):
    file = io.BytesIO()
    tifffile.imwrite(file, array, **options)
    return file.getvalue()


FORMATS = {
    "JPEG": written(RGB, "JPEG", quality=90),
    "progressive JPEG": written(RGB, "JPEG", progressive=True),
    "gray JPEG": written(RGB[:, :, 0], "JPEG"),
    "JPEG 4:4:4": written(RGB, "JPEG", subsampling=0),
    "CMYK JPEG": written(Image.fromarray(RGB).convert("CMYK"), "JPEG"),
    "JPEG kept as RGB": written(RGB, "JPEG", keep_rgb=True),
    "MPO": written(RGB, "MPO", save_all=True, append_images=[Image.new("RGB", (20, 10))]),
    "PNG": written(RGB, "PNG"),
    "gray PNG": written(RGB[:, :, 0], "PNG"),
    "bilevel PNG": written(RGB[:, :, 0] > 128, "PNG"),
    "palette PNG": written(Image.fromarray(RGB).quantize(40), "PNG"),
    "palette with a transparent color": written(Image.fromarray(RGB).quantize(40), "PNG", transparency=3),
    "palette with alpha": written(Image.fromarray(RGB).quantize(40), "PNG", transparency=bytes(range(0, 240, 6))),
    "RGBA PNG": written(np.dstack([RGB, RGB[:, :, 0]]), "PNG"),
    "gray with alpha": written(Image.fromarray(np.dstack([RGB[:, :, 0], RGB[:, :, 1]]), "LA"), "PNG"),
    "RGB with a transparent color": written(RGB, "PNG", transparency=tuple(int(v) for v in RGB[3, 4])),
    "GIF": written(Image.fromarray(RGB).quantize(60), "GIF"),
    "transparent GIF": written(Image.fromarray(RGB).quantize(60), "GIF", transparency=5),
    "BMP": written(RGB, "BMP"),
    "TIFF": written(RGB, "TIFF"),
    "TIFF with LZW": written(RGB, "TIFF", compression="tiff_lzw"),
    "planar TIFF": tiff(RGB.transpose(2, 0, 1), photometric="rgb", planarconfig="separate"),
    "CMYK TIFF": written(Image.fromarray(RGB).convert("CMYK"), "TIFF"),
    **(
        {"YCbCr TIFF": YCBCR} if pillow_reads(YCBCR) else {}
    ),  # Pillow 12.3, the last one for Python 3.10, treats its own file as truncated.
    "WebP": written(RGB, "WEBP"),
    "WebP with alpha": written(np.dstack([RGB, RGB[:, :, 2]]), "WEBP", lossless=True),
    "PPM": written(RGB, "PPM"),
    "PGM": written(RGB[:, :, 0], "PPM"),
    **({"AVIF": written(RGB, "AVIF")} if "avif" in features.get_supported() else {}),
    **({"JPEG 2000": written(RGB, "JPEG2000")} if features.check("jpg_2000") else {}),
}


@pytest.mark.parametrize("name", FORMATS)
def test_decoding_equals_pillow_bit_for_bit(name):
    data = FORMATS[name]
    decoded = images.decode_image(data)
    assert (decoded.dtype, decoded.flags.c_contiguous) == (np.uint8, True)
    np.testing.assert_array_equal(decoded, by_pillow(data))
    assert images.image_size(data) == decoded.shape[:2]


@pytest.mark.parametrize("orientation", range(1, 9))
def test_the_orientation_of_masks_and_16_bit_images(orientation):
    """The first pixel of the upright image is the one that Pillow puts first."""
    gray = np.arange(30 * 44, dtype=np.uint16).reshape(30, 44) * 40
    data = written(gray, "PNG", exif=oriented(orientation))
    expected = np.asarray(ImageOps.exif_transpose(Image.open(io.BytesIO(data))))
    np.testing.assert_array_equal(images.decode_mask(data), expected)
    data = png16(RGB.astype(np.uint16) * 257, chunk(b"eXIf", oriented(orientation).tobytes()[6:]))
    expected = by_pillow(written(RGB, "PNG", exif=oriented(orientation)))
    np.testing.assert_array_equal(images.decode_pixels(data) // 257, expected)
    np.testing.assert_array_equal(images.decode_pixels(written(RGB, "PNG", exif=oriented(orientation))), expected)


def test_the_size_of_a_png_is_read_without_its_pixels(monkeypatch):
    from PIL import PngImagePlugin

    monkeypatch.setattr(PngImagePlugin.PngImageFile, "load", lambda image: pytest.fail("the pixels were decoded"))
    data = png16(RGB.astype(np.uint16))
    assert images.image_size(data) == images.stored_size(data) == RGB.shape[:2]
    assert not images.keeps_original(data)


@pytest.mark.parametrize("before", [True, False])
def test_orientations_of_a_png_before_and_after_its_pixels(before):
    data = FORMATS["PNG"]
    at = data.index(b"IDAT" if before else b"IEND") - 4
    data = data[:at] + chunk(b"eXIf", oriented(6).tobytes()[6:]) + data[at:]
    with Image.open(io.BytesIO(data)) as image:
        assert image.getexif()[0x0112] == 6
    assert images.image_size(data) == RGB.shape[1::-1]
    np.testing.assert_array_equal(images.decode_image(data), by_pillow(data))


@pytest.mark.parametrize("channels", [1, 2, 3, 4])
def test_16_bits_are_refused_where_8_are_made(channels):
    wide = RNG.integers(0, 65536, (9, 11, channels)).astype(np.uint16)
    forms = [".tiff", ".pgm" if channels == 1 else ".ppm"] if channels in (1, 3) else []
    files = [png16(wide), *(cv2.imencode(form, wide)[1].tobytes() for form in forms)]
    for data in files:
        with pytest.raises(SampleError, match=r"16 bits per channel, and 8 would be lost; keep them"):
            images.decode_image(data)


@pytest.mark.parametrize("options", [{"compression": "zlib"}, {"tile": (16, 16)}, {"rowsperstrip": 8}])
def test_a_16_bit_tiff_whose_blocks_are_too_short_is_refused(options):
    wide = RNG.integers(0, 65536, (33, 21, 3)).astype(np.uint16)
    data = bytearray(tiff(wide, photometric="rgb", **options))
    with tifffile.TiffFile(io.BytesIO(data)) as file:
        sizes = file.pages[0].tags["TileByteCounts" if "tile" in options else "StripByteCounts"]
        kind, offset = sizes.dtype, sizes.valueoffset
    struct.pack_into("<I" if kind == 4 else "<H", data, offset, 60)
    with pytest.raises(SampleError, match="not a whole TIFF"):
        images.decode_pixels(bytes(data))


@pytest.mark.parametrize("alpha", ["assocalpha", "unassalpha", "unspecified"])
def test_the_fourth_channel_of_a_tiff(alpha):
    """The formula of alpha compositing over white; premultiplied colors are already multiplied."""
    color = RNG.integers(0, 256, (33, 21, 3)).astype(np.float64)
    share = RNG.integers(255 // 4, 256, (33, 21, 1)) / 255
    stored = color * share if alpha == "assocalpha" else color
    array = np.rint(np.concatenate([stored, share * 255], axis=2)).astype(np.uint8)
    expected = color if alpha == "unspecified" else color * share + 255 * (1 - share)
    decoded = images.decode_image(tiff(array, photometric="rgb", extrasamples=[alpha]))
    # Pillow divides premultiplied colors by alpha again, rounded down.
    np.testing.assert_allclose(decoded, expected, atol=2.6)


@pytest.mark.parametrize("bits", [1, 2, 4])
def test_masks_of_few_bits_keep_their_numbers(bits):
    levels = RNG.integers(0, 1 << bits, (6, 9)).astype(np.uint8)
    rows = [np.packbits(np.unpackbits(row[:, None], axis=1)[:, -bits:].reshape(-1)).tobytes() for row in levels]
    data = png(rows, 6, 9, bits, 0)
    np.testing.assert_array_equal(images.decode_mask(data), levels)
    assert images.decode_mask(data).dtype == np.uint8
    np.testing.assert_array_equal(images.decode_image(data)[:, :, 0], levels * (255 // ((1 << bits) - 1)))


@pytest.mark.parametrize("white", [7, 255, 1000, 65535])
@pytest.mark.parametrize("binary", [True, False])
def test_pgm_masks_keep_their_numbers_for_any_maximum(white, binary):
    numbers = RNG.integers(0, white + 1, (5, 7))
    head = f"P{5 if binary else 2}\n# a comment\n7 5\n{white}\n".encode()
    wide = numbers.astype(">u2" if white > 255 else np.uint8)
    data = head + (wide.tobytes() if binary else " ".join(map(str, numbers.reshape(-1))).encode() + b"\n")
    np.testing.assert_array_equal(images.decode_mask(data), numbers)


def npy(array):
    file = io.BytesIO()
    np.save(file, array, allow_pickle=True)
    return file.getvalue()


@pytest.mark.parametrize(
    "array",
    [
        RNG.normal(size=(5, 6)).astype(np.float32),
        RNG.integers(0, 9, (5, 6, 3)),
        np.zeros((4, 4), bool),
        RNG.integers(0, 9, (5, 6)).astype(">u2"),
    ],
)
def test_maps_from_numpy_files(array):
    data = npy(array)
    np.testing.assert_array_equal(images.decode_map(data), array)
    assert images.decode_map(data).dtype == array.dtype.newbyteorder("=")
    assert images.image_size(data) == array.shape[:2]
    for cut in (1, 20, len(data) - 8):
        with pytest.raises(SampleError, match="not a whole NumPy file"):
            images.decode_map(data[:-cut])


@pytest.mark.parametrize(
    ("dtype", "byteorder", "photometric"),
    [
        *itertools.product(["bool", "uint8", "float32"], "<>", ["minisblack", "miniswhite"]),
        *[("uint16", "<", "minisblack"), ("uint16", ">", "minisblack"), ("uint16", "<", "miniswhite")],
    ],
)
def test_maps_and_masks_from_tiffs_hold_the_numbers_of_the_file(dtype, byteorder, photometric):
    """Pillow inverts those of 1 and 8 bits whose 0 is white, and leaves 16 bits in the order of the file."""
    numbers = RNG.integers(0, 2 if dtype == "bool" else 200, (12, 15)).astype(dtype)
    data = tiff(numbers, byteorder=byteorder, photometric=photometric)
    np.testing.assert_array_equal(tifffile.imread(io.BytesIO(data)), numbers)
    decoders = [images.decode_map, *([] if dtype == "float32" else [images.decode_mask])]
    for decoded in (decode(data) for decode in decoders):
        np.testing.assert_array_equal(decoded, numbers)
        assert decoded.dtype.isnative


def _bits_of_jpeg2000(mode, bits):
    """A JPEG 2000 whose header gives its first component this number of bits."""
    data = bytearray(written(Image.new(mode, (64, 64)), "JPEG2000"))
    data[data.index(b"\xff\x4f\xff\x51") + 42] = bits - 1
    return bytes(data)


DEEP = np.random.default_rng(0).integers(0, 1 << 16, (4, 5, 3)).astype(np.uint16)


@pytest.mark.parametrize(
    "data",
    [
        cv2.imencode(".png", DEEP)[1].tobytes(),
        cv2.imencode(".ppm", DEEP)[1].tobytes(),
        tiff(DEEP, photometric="rgb"),
        tiff(np.array([[3, -1]], np.int8)),
        tiff(np.array([[3, 1 << 31]], np.uint32)),
        _bits_of_jpeg2000("RGB", 16),
        _bits_of_jpeg2000("I;16", 15),
    ],
    ids=["png", "ppm", "tiff", "int8", "uint32", "color", "15 bits"],
)
def test_numbers_that_pillow_changes_are_refused(data):
    with pytest.raises(SampleError, match=r"Pillow (makes|would make) .*save it as"):
        images.decode_map(data)
    if b"ftypjp2" in data:
        with pytest.raises(SampleError, match=r"JPEG 2000 of . x 1. bits"):
            images.decode_pixels(data)


def test_an_image_of_signed_numbers_does_not_become_8_bits():
    """Pillow makes 255 of -1, white of what is darkest."""
    for byteorder in "<>":
        data = tiff(np.array([[3, -1]], np.int8), byteorder=byteorder)
        with pytest.raises(SampleError, match=r"its numbers are signed.*sources.Pixels\(\)"):
            images.decode_image(data)
        np.testing.assert_array_equal(images.decode_pixels(data)[:, :, 0], [[3, -1]])


def test_numbers_that_pillow_keeps():
    for array in (np.array([[3, 127]], np.int8), np.array([[3, 1 << 30]], np.uint32), np.array([[-3, 9]], np.int16)):
        np.testing.assert_array_equal(images.decode_map(tiff(array)), array)


def test_numpy_files_with_wrong_headers_or_code_are_refused():
    header = npy(np.zeros((4, 4)))[:128].replace(b"(4, 4), }", b"(100, 100, 100000), }").rstrip(b" \n")
    for data, message in (
        (header.ljust(127) + b"\n" + bytes(128), "not a whole NumPy file: 128 of 8000000000 bytes of pixels are there"),
        (npy(np.array([[print]], dtype=object)), r"not a whole NumPy file: .*(allow_pickle|bytes of pixels)"),
        (npy(np.zeros(4)), r"a map is \[H, W\] or \[H, W, C\], this NumPy file has shape \(4,\)"),
    ):
        with pytest.raises(SampleError, match=message):
            images.decode_map(data)


@pytest.mark.filterwarnings("ignore")  # of Pillow, about damage and size
@pytest.mark.parametrize("name", [name for name in FORMATS if name not in ("MPO",)])
def test_a_file_cut_at_any_byte_is_refused_or_has_all_its_pixels(name):
    data = FORMATS[name]
    whole = images.decode_image(data)
    step = 1 if len(data) < 1200 else 7
    outcomes = [decoded_or_refused(data[:length]) for length in range(0, len(data), step)]
    refused = [outcome for outcome in outcomes if isinstance(outcome, str)]
    assert all(reason.startswith(("not a", "the file is empty", "not an image")) for reason in refused)
    assert all(np.array_equal(outcome, whole) for outcome in outcomes if not isinstance(outcome, str))
    assert len(refused) >= (len(data) - 20) // step


@pytest.mark.parametrize("form", ["GIF", "PNG", "WEBP", "TIFF"])
def test_several_frames_are_refused(form):
    frames = [Image.new("RGB", (8, 8), color) for color in ("red", "green", "blue")]
    data = written(frames[0], form, save_all=True, append_images=frames[1:])
    for decode in (images.decode_image, images.decode_mask, images.image_size):
        with pytest.raises(SampleError, match=f"{form} holds 3 frames, expected one image"):
            decode(data)


def test_decompression_bombs_are_refused_by_their_header():
    jpeg = bytearray(FORMATS["JPEG"])
    place = jpeg.index(b"\xff\xc0") + 5
    jpeg[place : place + 4] = struct.pack(">HH", 50_000, 50_000)
    bmp = bytearray(FORMATS["BMP"])
    bmp[18:26] = struct.pack("<ii", 50_000, 50_000)
    png = ihdr(50_000, 50_000) + bytes(4) + b"IDAT" + bytes(40)
    for data in (png, bytes(jpeg), bytes(bmp), b"P6 50000 50000 255\n"):
        for decode in (images.decode_image, images.image_size):
            with pytest.raises(SampleError, match=r"limit of 178,?956,?970|not a whole image"):
                decode(data)
    just_below = images.MAX_PIXELS // 2
    assert Image.MAX_IMAGE_PIXELS * 2 == images.MAX_PIXELS
    check_pixels(2, just_below)
    with pytest.raises(SampleError, match="more than the limit"):
        check_pixels(2, just_below + 1)


@pytest.mark.filterwarnings("ignore")  # of Pillow, about damage and size
@pytest.mark.parametrize(("channels", "bits", "side"), [(4, 16, 8191), (4, 8, 11585), (3, 16, 9459), (3, 8, 13377)])
def test_the_limit_counts_channels_and_bits(channels, bits, side):
    """From a PNG's header: 537 MB of decoded pixels."""

    def header_of(side):
        return ihdr(side, side, bits, {3: 2, 4: 6}[channels]) + chunk(b"IDAT", b"") + chunk(b"IEND", b"")

    assert side**2 * channels * bits // 8 <= images.MAX_BYTES < (side + 1) ** 2 * channels * bits // 8
    assert images.image_size(header_of(side)) == (side, side)
    with pytest.raises(SampleError, match=r"limit of [0-9]"):
        images.image_size(header_of(side + 1))


MEMORY = """
import re, sys
from tfprep import images
def peak():  # of this program only: the peak of getrusage is inherited from the process that started it
    return 1024 * int(re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read())[1])
images.decode_pixels(open(sys.argv[1], "rb").read())
for name in sys.argv[2:]:
    data = open(name, "rb").read()
    before = peak()
    size = images.decode_pixels(data).nbytes
    print((peak() - before) / size)
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="the peak of memory is read from /proc")
def test_decoding_needs_little_more_than_the_pixels(tmp_path):
    """Memory in units of the result: the decoder's array, the result, and some megabytes. Each is larger than the last."""
    names = []
    for dtype, channels, side in (("uint8", 4, 30), ("uint8", 4, 2000), ("uint16", 3, 3000)):
        names.append(str(tmp_path / f"{len(names)}.png"))
        pixels = cv2.imencode(".png", np.full((side, side, channels), 99, dtype))[1]
        Path(names[-1]).write_bytes(pixels.tobytes())
    shares = subprocess.run([sys.executable, "-c", MEMORY, *names], capture_output=True, text=True, check=True).stdout
    assert all(float(share) < 3.5 for share in shares.split())
    assert float(shares.split()[0]) > 0.9


def test_a_text_bomb_in_a_png():
    """A compressed text chunk of 100 MB."""
    text = chunk(b"zTXt", b"Comment\0\0" + zlib.compress(b"\0" * 100_000_000))
    data = FORMATS["PNG"][:33] + text + FORMATS["PNG"][33:]
    outcome = decoded_or_refused(data)
    assert np.array_equal(outcome, RGB) or outcome.startswith("not a whole image")


@pytest.mark.parametrize(
    "data", [b"%!PS-Adobe-3.0 EPSF-3.0\n", b"", b"GIF", b"<svg/>", b"\0" * 400, b"RIFF\0\0\0\0WAVE"]
)
def test_files_that_are_not_images(data):
    with pytest.raises(SampleError, match=r"not an image: no known format|the file is empty|not a whole image"):
        images.decode_image(data)


def odd_jpegs():
    """JPEGs that make libjpeg warn, by the kind of warning."""
    data = FORMATS["JPEG"]
    frame, scan = data.index(b"\xff\xc0"), data.index(b"\xff\xda")
    icc = b"\xff\xe2" + struct.pack(">H", 22) + b"ICC_PROFILE\0\x05\x03junk\0\0"
    profile = written(RGB, "JPEG", icc_profile=b"x" * 100)
    return {
        "stray bytes before a segment": data[:frame] + b"\0\1\2\3" + data[frame:],
        "stray bytes before the scan": data[:scan] + b"\0" * 40 + data[scan:],
        "a color profile in the wrong order": data[:2] + icc + data[2:],
        "a color profile whose first part is missing": profile.replace(b"FILE\0\1\1", b"FILE\0\2\1"),
        "an unknown JFIF revision": data.replace(b"JFIF\0\1\1", b"JFIF\0\7\1"),
        "a scan with odd parameters": data.replace(b"\0\x3f\0", b"\0\x3e\0", 1),
        "stray bytes before the end": data[:-2] + b"\x12\x34\x56" + data[-2:],
    }


@pytest.mark.parametrize("kind", odd_jpegs())
def test_a_jpeg_that_pillow_reads_is_read_by_build_and_reader(kind):
    data = odd_jpegs()[kind]
    expected = by_pillow(data)
    np.testing.assert_array_equal(images.decode_image(data), expected)
    np.testing.assert_array_equal(images.decode_stored_jpeg(data, channels=3), expected)
    out = np.zeros_like(expected)
    images.decode_stored_jpeg(memoryview(data), channels=3, out=out)
    np.testing.assert_array_equal(out, expected)
    assert images.decode_image(data, reduced=2).shape in (expected.shape, (15, 22, 3))
    with Image.open(io.BytesIO(data)) as image:
        image.draft("L", image.size)
        np.testing.assert_array_equal(
            images.decode_stored_jpeg(data, channels=1)[:, :, 0], np.asarray(image.convert("L"))
        )


def test_a_jpeg_with_a_flipped_bit_decodes_as_in_pillow():
    """Pillow and TensorFlow ignore warnings of libjpeg; so do a build and a loader."""
    data = FORMATS["JPEG"]
    start = data.index(b"\xff\xda") + 14
    outcomes = []
    for place in range(start, len(data) - 2, 3):
        broken = bytearray(data)
        broken[place] ^= 0xFF
        outcomes.append(decoded_or_refused(bytes(broken)))
        if isinstance(outcomes[-1], str):
            assert not pillow_reads(bytes(broken))
        else:
            np.testing.assert_array_equal(outcomes[-1], by_pillow(bytes(broken)))
    assert any(not isinstance(outcome, str) for outcome in outcomes)


def test_bytes_after_the_end_are_ignored():
    for name in ("JPEG", "PNG"):
        np.testing.assert_array_equal(
            images.decode_image(FORMATS[name] + b"trailing"), images.decode_image(FORMATS[name])
        )


def test_a_plain_jpeg_is_certain_to_decode():
    for options in ({}, {"subsampling": 0}, {"optimize": True}, {"restart_marker_blocks": 1}, {"comment": b"\xff\xd9"}):
        assert images.certain_to_decode(written(RGB, "JPEG", **options))
    assert images.certain_to_decode(written(RGB[:, :, 0], "JPEG"))
    others = [
        written(RGB, "JPEG", progressive=True), FORMATS["PNG"], FORMATS["JPEG"] + b"trailing", FORMATS["JPEG"][:-1],
        b"",
    ]  # fmt: skip
    assert not any(map(images.certain_to_decode, others))


@pytest.mark.parametrize("options", [{}, {"subsampling": 0, "restart_marker_blocks": 2}, {"progressive": True}])
def test_what_is_certain_to_decode_does(options):
    """One byte after the other is damaged: in the tables of the header, and in the scan."""
    data, certain = written(RGB, "JPEG", **options), 0
    for number in range(2 * len(data)):
        broken = bytearray(data)
        broken[number % len(data)] = int(RNG.integers(256))
        if images.certain_to_decode(bytes(broken)) and images.keeps_original(bytes(broken)):
            certain += 1
            assert not isinstance(decoded_or_refused(bytes(broken)), str)
    assert certain > len(data) or "progressive" in options


def test_a_png_with_a_wrong_checksum_is_not_kept_as_it_is_and_noted():
    """Pillow does not look at the checksum of pixels; TensorFlow refuses a wrong one."""
    import tensorflow as tf

    data = FORMATS["PNG"]
    assert images.keeps_original(data)
    at = data.index(b"IEND") - 8
    broken = data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]
    with images.decoder_warnings() as found:
        np.testing.assert_array_equal(images.decode_image(broken), images.decode_image(data))
    assert found == ["a checksum of the PNG is wrong: it is damaged"]
    assert not images.keeps_original(broken)
    with pytest.raises(tf.errors.InvalidArgumentError):
        tf.io.decode_png(broken)


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize(("factor", "expected"), [(1, (60, 88)), (2, (30, 44)), (4, (15, 22)), (8, (8, 11))])
def test_a_reduced_jpeg_has_the_pixels_of_its_average(factor, expected, orientation):
    """Pixel i averages pixels k·i to k·(i + 1) of the upright image. If an incomplete block would come first, the whole image
    is decoded."""
    smooth = cv2.resize(RGB[:5, :7], (88, 60), interpolation=cv2.INTER_LINEAR)
    data = written(smooth, "JPEG", exif=oriented(orientation), quality=100, subsampling=0)
    whole = images.decode_image(data)
    decoded = images.decode_image(data, reduced=factor)
    if orientation in (1, 5) or factor < 8:
        assert decoded.shape[:2] == (expected if orientation < 5 else expected[::-1])
        height, width = (side // factor * factor for side in whole.shape[:2])
        averages = whole[:height, :width].reshape(height // factor, factor, width // factor, factor, 3).mean((1, 3))
        inner = decoded[: height // factor, : width // factor].astype(float)
        assert np.abs(inner - averages).mean() < 2
    else:
        np.testing.assert_array_equal(decoded, whole)
