"""Images and strings that another tool wrote, against TensorFlow's own ops."""

import io
import zlib

import numpy as np
import pytest
from PIL import Image

from tfprep.codecs import Columns, Encoded, Texts
from tfprep.errors import RecipeError, SampleError
from tfprep.fields import FieldSpec

tf = pytest.importorskip("tensorflow")

RNG = np.random.default_rng(3)
COLOUR = Image.fromarray(RNG.integers(0, 256, (21, 34, 3), np.uint8))
ALPHA = Image.fromarray(RNG.integers(0, 256, (21, 34, 4), np.uint8))
GRAY_ALPHA = Image.fromarray(RNG.integers(0, 256, (21, 34, 2), np.uint8), "LA")
DEEP = Image.fromarray(RNG.integers(0, 65536, (21, 34), np.uint16))


def written(image: Image.Image, form: str) -> bytes:
    file = io.BytesIO()
    image.save(file, form)
    return file.getvalue()


IMAGES = [COLOUR, COLOUR.convert("L"), ALPHA, GRAY_ALPHA, COLOUR.quantize(16), COLOUR.convert("1")]


def check(content: bytes, channels: int, expected: np.ndarray) -> None:
    """All ways of decoding give the pixels that are expected."""
    spec = FieldSpec("image", (None, None, channels), "uint8")
    assert np.array_equal(Encoded().decode(content, spec), expected)
    out = np.zeros((21, 34, channels), np.uint8)
    Encoded().decode_into(np.frombuffer(content, np.uint8), FieldSpec("image", (21, 34, channels), "uint8"), out)
    assert np.array_equal(out, expected)
    if channels != 2:
        assert np.array_equal(Encoded().tf_decode({"f": tf.constant(content)}, "f", spec), expected)


@pytest.mark.parametrize("channels", [1, 3, 4])
@pytest.mark.parametrize("image", IMAGES, ids=lambda image: image.mode)
def test_pngs_are_those_of_tensorflow(image, channels):
    if channels == 4 and image.mode in ("P", "1"):
        pytest.skip("of fewer than 8 bits, TensorFlow makes an alpha of 1 or 15, which is not opaque")
    content = written(image, "PNG")
    if channels == 1 and image.mode in ("RGB", "RGBA", "P"):  # TensorFlow would compute gray
        with pytest.raises(SampleError, match="channels, expected 1"):
            Encoded().decode(content, FieldSpec("image", (None, None, channels), "uint8"))
        return
    check(content, channels, tf.io.decode_png(content, channels=channels).numpy())


def test_gray_with_alpha_keeps_its_two_channels():
    check(written(GRAY_ALPHA, "PNG"), 2, np.asarray(GRAY_ALPHA))


def test_masks_and_16_bits():
    content = written(DEEP, "PNG")
    expected = tf.io.decode_png(content, dtype=tf.uint16).numpy()
    assert np.array_equal(Encoded().decode(content, FieldSpec("image", (None, None, 1), "uint16")), expected)
    assert np.array_equal(Encoded().decode(content, FieldSpec("mask", (None, None), "uint16")), expected[..., 0])
    with pytest.raises(SampleError, match="a PNG of uint16, expected uint8"):
        Encoded().decode(content, FieldSpec("image", (None, None, 1), "uint8"))
    mask = np.zeros((21, 34), np.uint8)
    Encoded().decode_into(written(COLOUR.convert("L"), "PNG"), FieldSpec("mask", (21, 34), "uint8"), mask)
    assert np.array_equal(mask, np.asarray(COLOUR.convert("L")))


def test_what_is_no_image():
    spec = FieldSpec("image", (21, 34, 3), "uint8")
    for content in (b"", b"GIF89a" + bytes(30), written(COLOUR, "BMP")):
        with pytest.raises(SampleError, match="neither a JPEG nor a PNG"):
            Encoded().decode(content, spec)
    with pytest.raises(SampleError, match="expected"):
        Encoded().decode_into(written(COLOUR.resize((10, 10)), "PNG"), spec, np.zeros((21, 34, 3), np.uint8))
    with pytest.raises(SampleError, match="expected"):
        Encoded().decode_into(written(COLOUR.resize((10, 10)), "JPEG"), spec, np.zeros((21, 34, 3), np.uint8))
    bomb = bytearray(written(COLOUR, "PNG"))
    bomb[16:24] = (60_000).to_bytes(4, "big") * 2
    bomb[29:33] = zlib.crc32(bomb[12:29]).to_bytes(4, "big")
    with pytest.raises(SampleError, match="pixels"):
        Encoded().decode(bytes(bomb), FieldSpec("image", (None, None, 3), "uint8"))


def test_they_are_for_reading():
    for codec in (Encoded(), Texts(), Columns(["a"])):
        with pytest.raises(RecipeError, match="TFRecords of other tools"):
            codec.encode(None)
