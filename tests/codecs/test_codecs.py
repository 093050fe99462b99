"""What codecs refuse, and open shapes. What they store is compared with Pillow, NumPy and TensorFlow in `tests/fidelity`."""

import zlib
from dataclasses import dataclass

import numpy as np
import pytest
from PIL import Image

from tests.photos import written
from tfprep import codecs
from tfprep.codecs import Boxes, Encoded, Jpeg, Original, Png, Raw, Scalar, Text, Texts, Zstd
from tfprep.errors import BuildError, DatasetError, RecipeError, SampleError
from tfprep.fields import KINDS, FieldSpec


def test_a_shape_that_differs_is_read_back_from_the_record():
    tf = pytest.importorskip("tensorflow")
    spec = FieldSpec("map", (None, None), "float32")
    value = np.random.default_rng(5).normal(size=(3, 5)).astype(np.float32)
    features = Raw().encode(value)
    parsed = {"x": tf.constant(features[""]), "x/shape": tf.constant(features["/shape"])}
    assert np.array_equal(Raw().tf_decode(parsed, "x", spec).numpy(), value)
    assert np.array_equal(Raw().decode(features[""], spec, (3, 5)), value)
    assert np.array_equal(Raw().decode(features[""], FieldSpec("map", (None, 5), "float32")), value)


def test_a_subclass_is_described_as_the_codec_that_reads_it():
    @dataclass(frozen=True)
    class Noted(Jpeg):
        note: str = "ours"

    assert Noted(90).describe() == Jpeg(90).describe() == {"codec": "jpeg", "quality": 90, "subsampling": "420"}


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_floats_are_rounded_like_numpy_and_infinity_is_kept(dtype):
    value = np.array([0.1, -3.75, 65504.0, np.inf, -np.inf, np.nan])
    assert Raw(dtype).encode(value)[""] == value.astype(dtype).tobytes()


@pytest.mark.parametrize(
    ("codec", "value", "message"),
    [
        (Raw("uint8"), np.array([0.4, 256.0]), r"values from 0\.4 to 256\.0 do not fit into uint8"),
        (Raw("uint8"), np.array([1.0, np.nan]), "do not fit into uint8"),
        (Raw("int32"), np.array([2.0**31], np.float32), r"to 2147483648\.0 do not fit into int32"),
        (Raw("int64"), np.array([2.0**63]), "do not fit into int64"),
        (Raw("uint64"), np.array([2.0**64]), "do not fit into uint64"),
        (Raw("int32"), np.array([np.inf], np.float16), "to inf do not fit into int32"),
        (Raw("float16"), np.array([1.0, 70000.0]), "do not fit into"),
        (Raw("float16"), np.array([-65520.0], np.float32), "do not fit into"),
        (Raw("float32"), np.array([1e39]), "do not fit into"),
        (Raw("float16"), np.array([70000]), "do not fit into"),
        (Raw("float16"), np.array([65535], np.uint16), "do not fit into"),
        (Raw("float16"), np.array([1.0, np.inf, 70000.0]), "do not fit into"),
        (Raw("float32"), np.array([1 + 2j]), "only arrays of numbers can be stored so, not complex128"),
        (Raw("bool"), np.array([0, 2]), "do not fit into"),
        (Scalar(), np.float64(1e39), "do not fit into"),
        (Jpeg(), np.zeros((4, 4, 3), np.uint16), "JPEG holds uint8"),
        (Jpeg(), np.zeros((4, 4, 2), np.uint8), "JPEG holds uint8"),
        (
            Png(),
            np.zeros((4, 4), np.float32),
            r"uint8 or uint16 with 1 to 4 channels, not float32 .*; use Zstd\(\) or Raw\(\)",
        ),
        (Png(), np.zeros((4, 4, 2), np.uint16), "two channels as uint8 only"),
        (Png(), np.zeros((4, 4, 5), np.uint8), "1 to 4 channels"),
        (
            Png(),
            np.zeros((1_000_001, 1, 2), np.uint8),
            r"sides of up to 1,000,000 pixels, not \[1000001, 1, 2\]; use Zstd",
        ),
        (Raw(), np.array(["a"]), "arrays of numbers"),
        (Zstd(), np.array(["a"]), "arrays of numbers"),
        (Zstd(dtype="uint8"), np.array([256]), "do not fit into uint8"),
        (
            Zstd(),
            np.broadcast_to(np.float64(0), (1 << 14, 1 << 14)),
            "up to 2,147,483,631 bytes, this one has 2,147,483,648",
        ),
        (Scalar(), "seven", "expected a number, found 'seven'"),
        (Scalar(), np.uint64(2**63), "does not fit into int64"),
        (Text(), 7, "expected text, found 7"),
    ],
)
def test_a_value_that_a_codec_cannot_store_is_a_sample_error(codec, value, message):
    with pytest.raises(SampleError, match=message):
        codec.encode(value)


@pytest.mark.parametrize("name", ["CLEVEL", "SHUFFLE", "TYPESIZE", "COMPRESSOR", "BLOCKSIZE", "SPLITMODE"])
def test_the_environment_does_not_change_what_blosc_stores(monkeypatch, name):
    monkeypatch.setenv(f"BLOSC_{name}", "1")
    with pytest.raises(BuildError, match=f"takes BLOSC_{name} from the environment, .*; unset it"):
        Zstd().encode(np.zeros((4, 4), np.uint8))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Jpeg(0), "from 1 to 100, got 0"),
        (lambda: Jpeg("95"), "a whole number from 1 to 100, got '95'"),
        (lambda: Jpeg(95.5), "a whole number from 1 to 100, got 95.5"),
        (lambda: Jpeg(95, "411"), "'444', '422' or '420', not '411'"),
        (lambda: Png(10), "from 0 to 9, got 10"),
        (lambda: Raw("float8"), "not 'float8'"),
        (lambda: Zstd(0), "from 1 to 9, not 0"),
        (lambda: Zstd(dtype="float8"), r"Zstd\(dtype=...\) is one of bool, .*, not 'float8'"),
        (lambda: Zstd().check("l", "label"), r"'l' has the kind label: use Scalar\(\)"),
        (
            lambda: Jpeg().check("m", "mask"),
            r"'m' has the kind mask: JPEG changes values; use Zstd\(\), Png\(\) or Raw\(\)",
        ),
        (lambda: Png().check("b", "boxes"), r"'b' has the kind boxes: use Scalar\(\)"),
        (lambda: Scalar().check("t", "text"), r"'t' has the kind text: use Text\(\)"),
        (lambda: Scalar().check("i", "image"), "'i' has the kind image"),
        (lambda: Text().check("i", "label"), "use Scalar"),
        (lambda: Original().check("m", "mask"), "Original keeps"),
        (lambda: Raw().check("t", "text"), "use Text"),
        *[
            (lambda codec=codec: codec.encode(None), "TFRecords of other")
            for codec in (Encoded(), Texts(), Boxes(["a"], "xyxy"))
        ],
    ],
)
def test_wrong_options_are_recipe_errors(make, message):
    with pytest.raises(RecipeError, match=message):
        make()


def test_every_kind_has_a_codec_and_an_unknown_codec_says_to_upgrade():
    def holds(codec, kind):
        try:
            codec.check("x", kind)
        except RecipeError:
            return False
        return True

    assert all(any(holds(codec, kind) for codec in (Jpeg(), Raw(), Scalar(), Text())) for kind in KINDS)
    with pytest.raises(DatasetError, match="newer tfprep"):
        codecs.from_description({"codec": "webp"})


def empty(form, size=(34, 21)):
    return written(Image.new("RGB", size), form)


BOMB = bytearray(empty("PNG"))
BOMB[16:24] = (60_000).to_bytes(4, "big") * 2
BOMB[29:33] = zlib.crc32(BOMB[12:29]).to_bytes(4, "big")
JPEG_BOMB = bytearray(empty("JPEG"))
_SIZE = JPEG_BOMB.index(b"\xff\xc0") + 5
JPEG_BOMB[_SIZE : _SIZE + 4] = (20_000).to_bytes(2, "big") * 2


@pytest.mark.parametrize(
    ("codec", "content", "spec", "message"),
    [
        (Raw(), b"12345", ("map", (None,), "uint16"), r"an array of 5 bytes, expected 4 of uint16 \[2\]"),
        (Raw(), b"12345", ("map", (2, 2), "uint8"), r"an array of 5 bytes, expected 4 of uint8 \[2, 2\]"),
        (Raw(), b"1234", ("map", (None, None), "uint8"), "needs the record's own FIELD/shape"),
        (Encoded(), b"", ("image", (21, 34, 3), "uint8"), "neither a JPEG nor a PNG"),
        (Encoded(), b"GIF89a" + bytes(30), ("image", (21, 34, 3), "uint8"), "neither a JPEG nor a PNG"),
        (Encoded(), empty("BMP"), ("image", (21, 34, 3), "uint8"), "neither a JPEG nor a PNG"),
        *[
            (codec, bytes(bomb), ("image", shape, "uint8"), "0 x .*0 pixels are more than the limit of 178,956,970")
            for codec, bomb in ((Encoded(), BOMB), (Png(), BOMB), (Encoded(), JPEG_BOMB), (Jpeg(), JPEG_BOMB))
            for shape in ((None, None, 3), (21, 34, 3))
        ],
        (
            Encoded(),
            written(Image.new("I;16", (34, 21))),
            ("image", (None, None, 1), "uint8"),
            "a PNG of uint16, expected uint8",
        ),
        (Encoded(), empty("JPEG"), ("image", (None, None, 3), "uint16"), "a JPEG of uint8, expected uint16"),
        (Encoded(), empty("PNG"), ("image", (None, None, 1), "uint8"), "channels, expected 1"),
    ],
)
def test_contents_that_are_not_what_they_should_be_are_sample_errors(codec, content, spec, message):
    with pytest.raises(SampleError, match=message):
        codec.decode(content, FieldSpec(*spec))


@pytest.mark.parametrize("form", ["PNG", "JPEG"])
def test_an_image_of_another_size_does_not_fit_into_a_batch(form):
    spec = FieldSpec("image", (21, 34, 3), "uint8")
    with pytest.raises(SampleError, match="expected"):
        Encoded().decode_into(empty(form, (10, 10)), spec, np.zeros((21, 34, 3), np.uint8))
