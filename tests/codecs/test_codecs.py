"""Codecs decode what they encoded, and TensorFlow's ops return the same values as `decode`, bit for bit."""

from __future__ import annotations

import io

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image

from tfprep import codecs
from tfprep.codecs import from_description
from tfprep.errors import DatasetError, RecipeError, SampleError
from tfprep.fields import KINDS, FieldSpec
from tfprep.records import decode, encode

RNG = np.random.default_rng(5)


def smooth(*shape: int) -> np.ndarray:
    return np.asarray(
        Image.fromarray(RNG.integers(0, 256, (4, 5, 3), np.uint8)).resize(shape[1::-1], Image.Resampling.BICUBIC)
    )


def through_a_record(codec, kind, value):
    """Encodes a value, writes an Example, and parses it with TensorFlow and with tfprep; returns both values and the spec."""
    spec = codec.spec(kind, value)
    payload, _ = encode({f"x{suffix}": feature for suffix, feature in codec.encode(value).items()})
    features = decode(payload)
    content = features["x"][0] if isinstance(features["x"], list) else features["x"]
    shape = tuple(map(int, features["x/shape"])) if "x/shape" in features else None
    parsed = tf.io.parse_single_example(payload, codec.tf_features("x", spec))
    return codec.decode(content, spec, shape), codec.tf_decode(parsed, "x", spec).numpy(), spec


EXACT = [
    (codecs.Png(), "image", smooth(31, 45)),
    (codecs.Png(0), "mask", RNG.integers(0, 12, (20, 30), np.uint8)),
    (codecs.Png(9), "mask", RNG.integers(0, 60000, (20, 30), np.uint16)),
    (codecs.Png(), "map", RNG.integers(0, 256, (21, 17, 1), np.uint8)),
    (codecs.Png(), "map", RNG.integers(0, 256, (21, 17, 2), np.uint8)),
    (codecs.Png(), "map", RNG.integers(0, 256, (21, 17, 4), np.uint8)),
    (codecs.Png(), "map", RNG.integers(0, 65536, (21, 17, 3), np.uint16)),
    *[(codecs.Raw(), "map", RNG.integers(0, 2, (3, 4)).astype(dtype)) for dtype in codecs.raw.DTYPES],
    (codecs.Raw(), "map", RNG.normal(size=(7, 5, 3)).astype(np.float16)),
    (codecs.Raw(), "points", np.zeros((0, 2), np.float32)),
    (codecs.Scalar(), "label", np.int64(7)),
    (codecs.Scalar(), "label", np.array([1, 2**62], np.int64)),
    (codecs.Scalar(), "scalar", np.float32(-0.1)),
    (codecs.Scalar(), "boxes", RNG.normal(size=(3, 4)).astype(np.float32)),
]


@pytest.mark.parametrize(
    ("codec", "kind", "value"), EXACT, ids=lambda v: getattr(v, "dtype", v) if not isinstance(v, str) else v
)
def test_exact_codecs_return_the_encoded_value(codec, kind, value):
    ours, theirs, spec = through_a_record(codec, kind, value)
    assert spec == FieldSpec(kind, value.shape, value.dtype.name)
    for got in (ours, theirs):
        assert got.dtype == value.dtype
        assert np.array_equal(got, value)
    assert from_description(codec.describe()) == codec


def test_pillow_reads_png():
    mask = RNG.integers(0, 60000, (20, 30), np.uint16)
    assert np.array_equal(np.asarray(Image.open(io.BytesIO(codecs.Png().encode(mask)[""]))), mask)
    image = smooth(20, 30)
    assert np.array_equal(np.asarray(Image.open(io.BytesIO(codecs.Png().encode(image)[""]))), image)


@pytest.mark.parametrize("subsampling", ["444", "422", "420"])
def test_jpeg_decodes_equally_in_pillow_tensorflow_and_tfprep(subsampling):
    codec, image = codecs.Jpeg(95, subsampling), smooth(61, 83)
    ours, theirs, _ = through_a_record(codec, "image", image)
    pillow = np.asarray(Image.open(io.BytesIO(codec.encode(image)[""])))
    assert np.array_equal(ours, pillow)
    assert np.array_equal(theirs, pillow)
    assert np.abs(ours.astype(int) - image).mean() < 3


@pytest.mark.parametrize("quality", [60, 95, 96])
@pytest.mark.parametrize(("subsampling", "pillows"), [("444", 0), ("422", 1), ("420", 2)])
def test_jpeg_loses_no_more_than_with_pillow(quality, subsampling, pillows):
    """The accurate forward DCT gives the same coefficients as Pillow, whose encoder uses it at every quality."""
    for image in (smooth(61, 83), smooth(61, 83)[:, :, :1]):
        file = io.BytesIO()
        Image.fromarray(image.squeeze()).save(file, "JPEG", quality=quality, subsampling=pillows)
        ours = codecs.Jpeg(quality, subsampling).encode(image)[""]
        assert np.array_equal(np.asarray(Image.open(io.BytesIO(ours))), np.asarray(Image.open(file)))


def test_jpeg_quality_sets_the_standard_tables():
    """Pillow reads the quantisation tables: libjpeg's standard tables scaled to the quality."""
    image = smooth(40, 40)
    file = io.BytesIO()
    Image.fromarray(image).save(file, "JPEG", quality=77)
    ours = Image.open(io.BytesIO(codecs.Jpeg(77).encode(image)[""]))
    assert ours.quantization == Image.open(file).quantization
    assert Image.open(io.BytesIO(codecs.Jpeg(95, "420").encode(image)[""])).layer[0][1:3] == (2, 2)
    assert Image.open(io.BytesIO(codecs.Jpeg(95, "444").encode(image)[""])).layer[0][1:3] == (1, 1)


def test_gray_jpeg_keeps_one_channel():
    gray = smooth(32, 32)[:, :, :1]
    ours, theirs, spec = through_a_record(codecs.Jpeg(), "image", gray)
    assert spec.shape == ours.shape == theirs.shape == (32, 32, 1)
    assert np.array_equal(ours, theirs)


@pytest.mark.parametrize("mode", ["RGB", "L"])
@pytest.mark.parametrize("format", ["JPEG", "PNG"])
def test_original_keeps_the_files_bytes(mode, format):
    file = io.BytesIO()
    Image.fromarray(smooth(30, 41)).convert(mode).save(file, format)
    codec = codecs.Original()
    assert codec.encode(file.getvalue())[""] == file.getvalue()
    ours, theirs, spec = through_a_record(codec, "image", file.getvalue())
    assert spec == FieldSpec("image", (30, 41, 3), "uint8")
    assert np.array_equal(ours, np.asarray(Image.open(file).convert("RGB")))
    assert np.array_equal(theirs, ours)


def test_original_stores_pixels_if_readers_cannot_decode_the_bytes():
    ours, theirs, _ = through_a_record(codecs.Original(), "image", smooth(30, 41))
    assert np.array_equal(ours, theirs)


def test_text():
    ours, theirs, spec = through_a_record(codecs.Text(), "text", "Grüße, 世界")
    assert ours == theirs.decode() == "Grüße, 世界"
    assert spec == FieldSpec("text", (), "string")


def test_raw_casts_by_rounding_and_refuses_what_does_not_fit():
    value = np.array([0.4, 0.6, 254.5, 255.0])
    assert codecs.Raw("uint8").encode(value)[""] == bytes([0, 1, 254, 255])
    with pytest.raises(SampleError, match=r"values from 0\.4 to 256\.0 do not fit into uint8"):
        codecs.Raw("uint8").encode(np.array([0.4, 256.0]))
    with pytest.raises(SampleError, match="do not fit into uint8"):
        codecs.Raw("uint8").encode(np.array([1.0, np.nan]))


@pytest.mark.parametrize(
    ("codec", "value"),
    [
        (codecs.Raw("float16"), np.array([1.0, 70000.0])),
        (codecs.Raw("float16"), np.array([-65520.0], np.float32)),
        (codecs.Raw("float32"), np.array([1e39])),
        (codecs.Raw("float16"), np.array([70000])),
        (codecs.Raw("float16"), np.array([65535], np.uint16)),
        (codecs.Raw("float16"), np.array([1.0, np.inf, 70000.0])),
        (codecs.Raw("complex64"), np.array([1e39j])),
        (codecs.Raw("float32"), np.array([1 + 2j])),
        (codecs.Raw("bool"), np.array([0, 2])),
        (codecs.Scalar(), np.float64(1e39)),
    ],
)
def test_a_value_too_large_for_its_type_raises(codec, value):
    with pytest.raises(SampleError, match="do not fit into"):
        codec.encode(value)


@pytest.mark.parametrize("dtype", ["float16", "float32", "complex64"])
def test_floats_are_rounded_like_numpy_and_infinity_is_kept(dtype):
    value = np.array([0.1, -3.75, 65504.0, np.inf, -np.inf, np.nan])
    assert codecs.Raw(dtype).encode(value)[""] == value.astype(dtype).tobytes()


def test_a_shape_that_differs_is_read_back_from_the_record():
    spec = FieldSpec("map", (None, None), "float32")
    value = RNG.normal(size=(3, 5)).astype(np.float32)
    codec = codecs.Raw()
    payload, _ = encode({f"x{suffix}": feature for suffix, feature in codec.encode(value).items()})
    parsed = tf.io.parse_single_example(payload, codec.tf_features("x", spec))
    assert np.array_equal(codec.tf_decode(parsed, "x", spec).numpy(), value)
    assert np.array_equal(codec.decode(codec.encode(value)[""], spec, (3, 5)), value)
    one_open = FieldSpec("map", (None, 5), "float32")
    assert np.array_equal(codec.decode(codec.encode(value)[""], one_open), value)


@pytest.mark.parametrize(
    ("codec", "value", "message"),
    [
        (codecs.Jpeg(), np.zeros((4, 4, 3), np.uint16), "JPEG holds uint8"),
        (codecs.Jpeg(), np.zeros((4, 4, 2), np.uint8), "JPEG holds uint8"),
        (codecs.Png(), np.zeros((4, 4), np.float32), "PNG holds uint8 and uint16, not float32; store it as Raw"),
        (codecs.Png(), np.zeros((4, 4, 2), np.uint16), "two channels as uint8 only"),
        (codecs.Png(), np.zeros((4, 4, 5), np.uint8), "1 to 4 channels"),
        (codecs.Raw(), np.array(["a"]), "arrays of numbers"),
        (codecs.Scalar(), "seven", "expected a number, found 'seven'"),
        (codecs.Scalar(), np.uint64(2**63), "does not fit into int64"),
        (codecs.Text(), 7, "expected text, found 7"),
    ],
)
def test_a_value_that_a_codec_cannot_store_is_a_sample_error(codec, value, message):
    with pytest.raises(SampleError, match=message):
        codec.encode(value)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: codecs.Jpeg(0), "from 1 to 100, not 0"),
        (lambda: codecs.Jpeg(95, "411"), "'444', '422' or '420', not '411'"),
        (lambda: codecs.Png(10), "from 0 to 9, not 10"),
        (lambda: codecs.Raw("float8"), "not 'float8'"),
        (lambda: codecs.Jpeg().check("m", "mask"), r"'m' is a mask: JPEG changes values; use Png\(\) or Raw\(\)"),
        (lambda: codecs.Png().check("b", "boxes"), "'b' is a boxes"),
        (lambda: codecs.Scalar().check("i", "image"), "'i' is a image"),
        (lambda: codecs.Text().check("i", "label"), "use Scalar"),
        (lambda: codecs.Original().check("m", "mask"), "Original keeps"),
        (lambda: codecs.Raw().check("t", "text"), "use Text"),
    ],
)
def test_wrong_options_are_recipe_errors(make, message):
    with pytest.raises(RecipeError, match=message):
        make()


def test_every_kind_has_a_codec():
    def holds(codec, kind):
        try:
            codec.check("x", kind)
        except RecipeError:
            return False
        return True

    everything = [codecs.Jpeg(), codecs.Png(), codecs.Raw(), codecs.Original(), codecs.Scalar(), codecs.Text()]
    assert all(any(holds(codec, kind) for codec in everything) for kind in KINDS)


def test_an_unknown_codec_says_to_upgrade():
    with pytest.raises(DatasetError, match="newer tfprep"):
        from_description({"codec": "webp"})
