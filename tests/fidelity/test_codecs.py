"""Codecs: what Pillow writes and reads, what TensorFlow's parser and decoders read, and the arrays themselves."""

import io
import tracemalloc
from contextlib import suppress

import numcodecs
import numpy as np
import pytest
from PIL import Image
from scipy import ndimage

from tests.examples import example, serialized
from tests.photos import oriented, written
from tfprep import codecs
from tfprep.codecs import Boxes, Encoded, Jpeg, Original, Png, Raw, Scalar, Text, Texts, Zstd
from tfprep.errors import RecipeError, SampleError
from tfprep.fields import FieldSpec

tf = pytest.importorskip("tensorflow")

RNG = np.random.default_rng(0)
RGB = np.clip(ndimage.gaussian_filter(RNG.normal(size=(37, 50, 3)), (3, 3, 0)) * 400 + 128, 0, 255).astype(np.uint8)
GRAY = RGB[:, :, :1]
DEEP = RNG.integers(0, 65536, (21, 17, 3), dtype=np.uint16)
PIL = Image.fromarray(RGB)


def decoded(codec, kind, value, spec=None):
    """The value after encoding, by tfprep's decode, by its `decode_into`, and by TensorFlow from an Example."""
    return decoded_features(codec, codec.encode(value), spec or codec.spec(kind, value))


def decoded_features(codec, features, spec):
    shape = tuple(map(int, features["/shape"])) if "/shape" in features else None
    ours = [codec.decode(features[""], spec, shape)]
    if hasattr(codec, "decode_into") and not isinstance(features[""], np.ndarray):
        out = np.full(ours[0].shape, 7, ours[0].dtype)
        codec.decode_into(features[""], spec, out)
        ours.append(out)
    whole = serialized({f"x{k}": v for k, v in features.items()})
    parsed = tf.io.parse_single_example(whole, codec.tf_features("x", spec))
    return [*ours, codec.tf_decode(parsed, "x", spec).numpy()]


@pytest.mark.covers("Jpeg")
@pytest.mark.parametrize(("name", "number"), [("444", 0), ("422", 1), ("420", 2)])
@pytest.mark.parametrize("quality", [30, 90, 97])
def test_jpegs_are_pillows(quality, name, number):
    reference = np.asarray(Image.open(io.BytesIO(written(PIL, "JPEG", quality=quality, subsampling=number))))
    for pixels in decoded(Jpeg(quality, name), "image", RGB):
        np.testing.assert_array_equal(pixels, reference)
    gray = np.asarray(Image.open(io.BytesIO(written(Image.fromarray(GRAY[:, :, 0]), "JPEG", quality=quality))))
    for pixels in decoded(Jpeg(quality), "image", GRAY):
        np.testing.assert_array_equal(pixels[:, :, 0], gray)


@pytest.mark.covers("Png")
@pytest.mark.parametrize("level", [0, 3, 9])
def test_pngs_hold_every_number(level):
    four = [0, 1, 2, 0]
    for value in (RGB, GRAY, RGB[:, :, 0], RGB[:, :, four], RGB[:, :, :2], DEEP, DEEP[:, :, 0], DEEP[:, :, four]):
        for pixels in decoded(Png(level), "map", value):
            assert pixels.dtype == value.dtype
            np.testing.assert_array_equal(pixels, value)
    stored = Png(level).encode(RGB)[""]
    np.testing.assert_array_equal(np.asarray(Image.open(io.BytesIO(stored))), RGB)
    assert (len(stored) > RGB.size) == (level == 0)


RAWS = ["bool", "uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64"]
RAWS += ["float16", "float32", "float64"]


@pytest.mark.covers("Raw")
@pytest.mark.parametrize("dtype", RAWS)
def test_raw_holds_little_endian_bytes_in_c_order(dtype):
    value = (
        RNG.integers(0, 2, (3, 4, 2)).astype(dtype) if dtype == "bool" else RNG.normal(0, 50, (3, 4, 2)).astype(dtype)
    )
    for array in decoded(Raw(), "map", value):
        np.testing.assert_array_equal(array, value)
    features = Raw().encode(np.asfortranarray(value))
    assert features[""] == value.astype(value.dtype.newbyteorder("<")).tobytes("C")
    assert features["/shape"].tolist() == [3, 4, 2]
    big = Raw().encode(value.astype(value.dtype.newbyteorder(">")))
    assert big[""] == features[""]


@pytest.mark.covers("Zstd")
@pytest.mark.parametrize("smooth", [False, True])  # rows that grow are stored as their differences
@pytest.mark.parametrize("dtype", [*RAWS, "bfloat16"])
def test_zstd_holds_every_number(dtype, smooth):
    pytest.importorskip("ml_dtypes")  # it gives NumPy bfloat16
    codec, forms = Zstd(), set()
    for shape in [(), (0,), (5, 0, 3), (1,), (1, 7), (33, 17), (33, 17, 3), (9, 8, 16), (200, 64)]:
        numbers = np.cumsum(np.ones(shape), 0) if smooth and shape else RNG.normal(0, 50, shape)
        value = np.asarray(numbers > 9 if dtype == "bool" else numbers).astype(dtype)
        if np.issubdtype(dtype, np.inexact) and value.size > 2:
            value.flat[:2] = np.nan, -np.inf
        for one in (value, value.T.copy().T, value[::-1] if value.ndim else value):
            features = codec.encode(one)
            forms.add(features[""][0])
            assert features["/shape"].tolist() == list(shape)
            for array in (
                codec.decode(features[""], codec.spec("map", one)),
                codec.decode(np.frombuffer(features[""], np.uint8), FieldSpec("map", (None,) * one.ndim, dtype), shape),
            ):
                assert (array.dtype, array.shape, array.tobytes()) == (one.dtype, one.shape, one.tobytes())
        if dtype != "bfloat16":
            big = codec.encode(value.astype(value.dtype.newbyteorder(">")))
            assert big[""] == codec.encode(value)[""]
    assert not smooth or dtype == "bool" or 1 in forms


@pytest.mark.covers("Zstd")
def test_the_frames_of_zstd_are_those_of_blosc():
    """By numcodecs and NumPy only: what shuffles is in the frame, what is added up is in the first byte."""
    steps = np.cumsum(RNG.integers(0, 9, (50, 40)), 0).astype(np.uint16)
    mask = (ndimage.gaussian_filter(RNG.normal(size=(64, 64)), 6) > 0).astype(np.uint8)
    for value, rows in ((steps, 1), (mask, 0)):
        content = Zstd().encode(value)[""]
        stored = np.frombuffer(numcodecs.blosc.decompress(content[1:]), value.dtype).reshape(value.shape)
        assert content[0] == rows
        np.testing.assert_array_equal(np.cumsum(stored, 0, value.dtype) if rows else stored, value)
        assert len(content) < 0.7 * len(Png().encode(value)[""])


@pytest.mark.covers("Zstd")
def test_damaged_fields_of_zstd_are_sample_errors_and_take_no_memory():
    value = np.cumsum(RNG.integers(0, 3, (64, 64, 2)), 0).astype(np.uint8)
    codec, spec = Zstd(), FieldSpec("map", (64, 64, 2), "uint8")
    content = codec.encode(value)[""]
    huge = content[:5] + (2**31 - 1).to_bytes(4, "little") + content[9:]
    for wrong in (b"", b"\0", b"\x02" + content[1:], content[:-1], content + b"\0", content[:17], huge, b"\0" * 40):
        for open_spec, shape in ((spec, None), (FieldSpec("map", (None, None, 2), "uint8"), (64, 64, 2))):
            with pytest.raises(SampleError):
                codec.decode(wrong, open_spec, shape)
    tracemalloc.start()
    ratio = (len(content) - 1) * 2**15  # what this number of bytes can hold
    possible = content[:5] + ratio.to_bytes(4, "little") + content[9:]
    for hostile, of, shape, message in (
        (possible, spec, None, f"an array of {ratio} bytes, expected 8192 of uint8"),
        (
            content,
            FieldSpec("map", (None, None, 2), "uint8"),
            (1 << 20, 1 << 20, 2),
            "an array of 8192 bytes, expected 2199",
        ),
        (content, FieldSpec("map", (None, None, 2), "uint8"), (-64, -64, 2), r"expected 8192 of uint8 \[-64, -64, 2\]"),
        (huge, FieldSpec("map", (None, 64, 2), "uint8"), None, "are not an array stored as Zstd"),
        (content, spec, (64, 128), r"of the shape \[64, 128\], expected \[64, 64, 2\]"),
        (content, FieldSpec("map", (None, 64, 2), "uint8"), (32, 128, 2), r"\[32, 128, 2\], expected \[None, 64, 2\]"),
    ):
        with pytest.raises(SampleError, match=message):
            codec.decode(hostile, of, shape)
    assert tracemalloc.get_traced_memory()[1] < 1 << 20
    tracemalloc.stop()
    for position in range(len(content)):  # no damage ends the process
        for flipped in (1, 128):
            damaged = bytearray(content)
            damaged[position] ^= flipped
            with suppress(SampleError):
                codec.decode(bytes(damaged), spec)


@pytest.mark.covers("Raw")
def test_raw_casts_to_the_nearest_or_refuses():
    value = np.array([0.5, 1.5, 2.4, 254.6])
    for dtype in ("uint8", "int16", "float16"):
        expected = np.rint(value) if dtype != "float16" else value
        np.testing.assert_array_equal(decoded(Raw(dtype), "map", value)[0], expected.astype(dtype))
    for dtype, wrong in (("uint8", 256.0), ("uint8", -1), ("int8", 128), ("uint16", np.nan)):
        with pytest.raises(SampleError):
            Raw(dtype).encode(np.array([wrong]))


@pytest.mark.covers("Scalar")
@pytest.mark.parametrize(
    "value", [7, np.array([1, -(2**62)]), 0.1, np.float32([[1.5, -2], [3, 4]]), np.uint8(255), True]
)
def test_scalars_are_int64_or_float32(value):
    expected = np.asarray(value, np.float32 if np.asarray(value).dtype.kind == "f" else np.int64)
    for number in decoded(Scalar(), "scalar", value):
        assert np.asarray(number).dtype == expected.dtype
        np.testing.assert_array_equal(number, expected)
    with pytest.raises(SampleError):
        Scalar().encode(np.uint64(2**63))


@pytest.mark.covers("Text")
@pytest.mark.parametrize("value", ["", "Grüße, 北京 🐟", "a\0b", "line\nline"])
def test_texts_are_utf8(value):
    ours, theirs = decoded(Text(), "text", value)
    assert ours == value
    assert theirs == value.encode("utf-8")


@pytest.mark.covers("Texts")
def test_lists_of_strings_are_read_as_tensorflow_reads_them():
    words = ["one", "", "Grüße", "x" * 300]
    whole = example({"x": [word.encode() for word in words]})
    content = whole.features.feature["x"].bytes_list.SerializeToString()
    for length in (4, None):
        spec = FieldSpec("text", (length,), "string")
        assert Texts().decode(content, spec) == words
        parsed = tf.io.parse_single_example(whole.SerializeToString(), Texts().tf_features("x", spec))
        assert [word.decode() for word in Texts().tf_decode(parsed, "x", spec).numpy()] == words
    with pytest.raises(SampleError):
        Texts().decode(content, FieldSpec("text", (3,), "string"))


@pytest.mark.covers("Boxes")
@pytest.mark.parametrize("rows", [0, 1, 3])
@pytest.mark.parametrize("content", [written(PIL, "JPEG"), written(PIL, "PNG")])
def test_boxes_are_shares_times_the_sides_of_the_image(rows, content):
    names = [f"box/{side}" for side in ("xmin", "ymin", "xmax", "ymax")]
    shares = RNG.random((rows, 4)).astype(np.float32)
    features = {**dict(zip(names, shares.T, strict=True)), "image": content} if rows else {"image": content}
    flat = {"boxes": shares[:, [1, 0, 3, 2]].ravel(), "image": content} if rows else {"image": content}
    spec, expected = FieldSpec("boxes", (None, 4), "float32"), shares * np.array([50, 37, 50, 37], np.float32)
    for codec, record in (
        (Boxes(names, "rel_xyxy", "image"), features),
        (Boxes(["boxes"], "rel_yxyx", "image"), flat),
    ):
        decoded_features = {name: [value] if name == "image" else value for name, value in record.items()}
        np.testing.assert_allclose(codec.decode(decoded_features, spec), expected, rtol=1e-6)
        parsed = tf.io.parse_single_example(serialized(record), codec.tf_features("boxes", spec))
        np.testing.assert_allclose(codec.tf_decode(parsed, "boxes", spec), expected, rtol=1e-6)
    with pytest.raises(SampleError, match="sides of the same boxes differ in number: 2 of 'box/xmin', 0 of 'box/ymin'"):
        Boxes(names, "xyxy").decode({"box/xmin": [1, 2]}, spec)
    for wrong in ((names[:2], "xyxy", ""), (names, "rel_xyxy", ""), (names, "xyxy", "image"), (names, "corners", "")):
        with pytest.raises(RecipeError):
            Boxes(*wrong)


@pytest.mark.covers("Original")
def test_original_keeps_the_files_bytes():
    for data in (written(PIL, "JPEG", quality=80), written(PIL, "PNG")):
        assert Original().encode(data)[""] == data
        reference = np.asarray(Image.open(io.BytesIO(data)))
        for pixels in decoded(Original(), "image", data, FieldSpec("image", (37, 50, 3), "uint8")):
            np.testing.assert_array_equal(pixels, reference)
    assert Original().spec("image", data) == FieldSpec("image", (37, 50, 3), "uint8")
    np.testing.assert_array_equal(np.asarray(Image.open(io.BytesIO(Original().encode(RGB)[""]))), RGB)


ENCODED = {
    "jpeg": written(PIL, "JPEG", quality=85),
    "turned jpeg": written(PIL, "JPEG", quality=85, exif=oriented(6)),
    "gray jpeg": written(PIL.convert("L"), "JPEG"),
    "png": written(PIL, "PNG"),
    "gray png": written(PIL.convert("L"), "PNG"),
    "gray png with alpha": written(Image.fromarray(RGB[:, :, :2].copy(), "LA"), "PNG"),
    "png with alpha": written(Image.fromarray(RGB[:, :, [0, 1, 2, 1]]), "PNG"),
    "palette": written(PIL.quantize(16), "PNG"),
    "bits of gray png": written(PIL.convert("1"), "PNG"),
}


# TensorFlow computes gray, which tfprep refuses, and of fewer than 8 bits an alpha of 1 or 15.
CASES = [(name, 1) for name in ENCODED if "jpeg" in name or "gray" in name] + [(name, 3) for name in ENCODED]
CASES += [(name, 4) for name in ENCODED if name[:4] not in ("pale", "bits")]


@pytest.mark.covers("Encoded")
@pytest.mark.parametrize(("name", "channels"), CASES)
def test_encoded_images_are_what_tensorflow_decodes(name, channels):
    """With libjpeg's accurate DCT; the orientation of EXIF is not applied. A JPEG's alpha is opaque."""
    data, spec = ENCODED[name], FieldSpec("image", (37, 50, channels), "uint8")
    if "jpeg" in name:
        reference = tf.io.decode_jpeg(data, channels=min(channels, 3), dct_method="INTEGER_ACCURATE").numpy()
        if channels == 4:
            out = np.zeros(spec.shape, np.uint8)
            Encoded().decode_into(data, spec, out)
            np.testing.assert_array_equal(out, np.dstack([reference, np.full((37, 50), 255)]))
            np.testing.assert_array_equal(Encoded().decode(data, spec), out)
            return
    else:
        reference = tf.io.decode_png(data, channels=channels).numpy()
    for pixels in decoded_features(Encoded(), {"": data}, spec):
        np.testing.assert_array_equal(pixels, reference)


@pytest.mark.covers("Encoded")
def test_encoded_masks_and_16_bits_keep_their_numbers():
    deep, two = DEEP[:, :, 0], FieldSpec("image", (37, 50, 2), "uint8")
    np.testing.assert_array_equal(Encoded().decode(ENCODED["gray png with alpha"], two), RGB[:, :, :2])
    for data, spec, expected in (
        (ENCODED["gray png"], FieldSpec("mask", (37, 50), "uint8"), np.asarray(PIL.convert("L"))),
        (written(Image.fromarray(deep), "PNG"), FieldSpec("mask", (21, 17), "uint16"), deep),
        (written(Image.fromarray(deep), "PNG"), FieldSpec("image", (21, 17, 1), "uint16"), deep[:, :, None]),
    ):
        for pixels in decoded_features(Encoded(), {"": data}, spec):
            np.testing.assert_array_equal(pixels, expected)


@pytest.mark.covers("Raw")
def test_raw_holds_bfloat16_as_tensorflow_rounds_it():
    values = np.random.default_rng(0).normal(size=(5, 3)).astype(np.float32) * 1000
    expected = tf.cast(values, tf.bfloat16)
    for found in decoded(Raw("bfloat16"), "scalar", values):
        np.testing.assert_array_equal(found.astype(np.float32), tf.cast(expected, tf.float32).numpy())
        assert found.dtype.name == "bfloat16"
    with pytest.raises(SampleError, match="do not fit into bfloat16"):
        Raw("bfloat16").encode(np.array([1e39]))


def test_every_codec_comes_back_from_its_description():
    plain = [Jpeg(81, "444"), Png(7), Raw("float16"), Raw(), Scalar(), Text(), Original(), Encoded(), Texts()]
    for codec in (*plain, Boxes(["a"], "xyxy")):
        assert codecs.from_description(codec.describe()) == codec
