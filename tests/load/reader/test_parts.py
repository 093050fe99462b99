"""Fields on their way into an output are stacked, cast and normalised by the formula."""

import numpy as np
import pytest

from tfprep import codecs
from tfprep.fields import FieldSpec
from tfprep.load.outputs import Output
from tfprep.load.reader.parts import FieldPart


@pytest.mark.parametrize("channels", [1, 2, 3, 4, 5, 17])
@pytest.mark.parametrize("stored", ["uint8", "uint16", "float32"])
@pytest.mark.parametrize("dtype", ["uint8", "float32", "float16"])
@pytest.mark.parametrize("normalized", [False, True])
@pytest.mark.parametrize("first", [0, 2])
def test_a_stack_and_a_part_of_one(rng, channels, stored, dtype, normalized, first):
    """Equals NumPy's result for the whole image bit for bit, for any number of channels per copy."""
    if normalized and dtype == "uint8":
        pytest.skip("fractions are floats")
    whole = channels + first + bool(first)
    mean = tuple(rng.uniform(50, 150, whole).tolist()) if normalized else None
    std = tuple(rng.uniform(1, 60, whole).tolist()) if normalized else None
    output = Output("inputs", ("a", "image", "b"), (5, 7, whole), dtype, mean, std)
    spec = FieldSpec("image", (5, 7, channels), stored)
    part = FieldPart("image", codecs.Raw(), spec, output, (first, first + channels) if first else None)
    value = rng.uniform(0, 250, spec.shape).astype(stored)
    values = {"inputs": np.full((2, 5, 7, whole), 9, dtype)}
    part.place(value, values, 1)
    expected = np.full((2, 5, 7, whole), 9, dtype)
    window = slice(first, first + channels)
    if normalized:
        value = (value - np.float32(mean[window])) / np.float32(std[window])
    expected[1, ..., window] = value.astype(dtype)
    assert values["inputs"].tobytes() == expected.tobytes()


@pytest.fixture
def rng():
    return np.random.default_rng(3)
