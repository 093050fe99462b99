"""Codecs decode what they encoded, and TensorFlow's ops return the same values as `decode`, bit for bit."""

import numpy as np
import pytest

from tfprep import codecs
from tfprep.codecs import from_description
from tfprep.errors import DatasetError, RecipeError, SampleError
from tfprep.fields import KINDS, FieldSpec
from tfprep.records import encode

tf = pytest.importorskip("tensorflow")

RNG = np.random.default_rng(5)


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
        (
            codecs.Png(),
            np.zeros((4, 4), np.float32),
            r"PNG holds uint8 and uint16, not float32; store it as Zstd\(\) or Raw\(\)",
        ),
        (codecs.Png(), np.zeros((4, 4, 2), np.uint16), "two channels as uint8 only"),
        (codecs.Png(), np.zeros((4, 4, 5), np.uint8), "1 to 4 channels"),
        (codecs.Raw(), np.array(["a"]), "arrays of numbers"),
        (codecs.Zstd(), np.array(["a"]), "arrays of numbers"),
        (codecs.Zstd(dtype="uint8"), np.array([256]), "do not fit into uint8"),
        (codecs.Scalar(), "seven", "expected a number, found 'seven'"),
        (codecs.Scalar(), np.uint64(2**63), "does not fit into int64"),
        (codecs.Text(), 7, "expected text, found 7"),
        (
            codecs.TopK(3),
            np.zeros((2, 3), np.float32),
            r"one score a class, \[classes\] of numbers, not float32 \[2, 3\]",
        ),
        (codecs.TopK(3), np.array([1.0, np.nan]), "finite scores"),
        (codecs.TopK(3, None), np.array([3.0, 1.0]), "holds probabilities; these sum to 4"),
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
        (lambda: codecs.TopK(0), "from 1 on, not 0"),
        (lambda: codecs.TopK(3, 0.0), "a number above 0, or None"),
        (lambda: codecs.TopK(3).check("i", "image"), "TopK holds scalar"),
        (lambda: codecs.Zstd(0), "from 1 to 9, not 0"),
        (lambda: codecs.Zstd(predict="columns"), "'auto', 'none' or 'rows', not 'columns'"),
        (lambda: codecs.Zstd(dtype="float8"), r"Zstd\(dtype=...\) is one of bool, .*, not 'float8'"),
        (lambda: codecs.Zstd().check("l", "label"), r"'l' is a label: use Scalar\(\)"),
        (
            lambda: codecs.Jpeg().check("m", "mask"),
            r"'m' is a mask: JPEG changes values; use Zstd\(\), Png\(\) or Raw\(\)",
        ),
        (lambda: codecs.Png().check("b", "boxes"), r"'b' is a boxes: use Scalar\(\)"),
        (lambda: codecs.Scalar().check("t", "text"), r"'t' is a text: use Text\(\)"),
        (lambda: codecs.Scalar().check("i", "image"), "'i' is a image"),
        (lambda: codecs.Text().check("i", "label"), "use Scalar"),
        (lambda: codecs.Original().check("m", "mask"), "Original keeps"),
        (lambda: codecs.Raw().check("t", "text"), "use Text"),
    ],
)
def test_wrong_options_are_recipe_errors(make, message):
    with pytest.raises(RecipeError, match=message):
        make()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"123", "3 bytes, expected 8 of the 2 largest of 5 classes"),
        (np.array([1, 1], "<u2").tobytes() + bytes(4), "not 2 different ones below 5"),
        (np.array([1, 5], "<u2").tobytes() + bytes(4), "not 2 different ones below 5"),
    ],
)
def test_damaged_class_scores_are_a_sample_error(content, message):
    with pytest.raises(SampleError, match=message):
        codecs.TopK(2).decode(content, FieldSpec("scalar", (5,), "float32"))


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
