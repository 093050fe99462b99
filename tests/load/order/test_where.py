"""Expressions over the index compared with Python's own evaluation of each row."""

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from tfprep.errors import LoaderError
from tfprep.load.order.where import rows_where

KEYS = ["day/a", "night/b", "day/c", "night/d", "dusk/e"]
LABELS = [0, 1, 2, 1, 0]
HEIGHTS = [100, 200, 300, 200, 50]
COLUMNS = {"key": pa.chunked_array([KEYS]), "label": pa.chunked_array([LABELS])}
COLUMNS |= {"height": pa.chunked_array([HEIGHTS], pa.uint32()), "rain": pa.chunked_array([[1, None, 0, 2, None]])}
RATES = [0.1, 0.2, 0.3, 0.7, 0.9]
COLUMNS |= {"rate": pa.chunked_array([RATES], pa.float32())}
NAMES = ("cat", "dog", "owl")


def column(name):
    if name not in COLUMNS:
        raise LoaderError(f"no column {name!r}")
    return COLUMNS[name]


def rows(where, names=NAMES):
    return rows_where(where, column, names, 5).tolist()


@pytest.mark.parametrize(
    "where",
    [
        "label == 1", "label != 1 and height >= 100", "height < 100 or label == 2", "not (label == 1)",
        "label in (0, 2)", "label not in [0, 2]", "100 <= height < 300", "key.startswith('day')",
        "not key.endswith('c') and 'night' not in key", "'d' in key", "height > -150", "2 == label",
        "height in (200.5, 100)", "height not in (-1, 2.0e2)", "height in (4294967396,)",
        "rate <= 0.1", "rate > 0.1", "0.3 <= rate <= 0.7", "rate == 0.3 or 0.9 == rate", "rate in (0.1, 0.7)", "rate < 1",
    ],
)  # fmt: skip
def test_expressions_select_the_rows_that_python_selects(where):
    columns = zip(KEYS, LABELS, HEIGHTS, RATES, strict=True)
    values = [dict(zip(("key", "label", "height", "rate"), row, strict=True)) for row in columns]
    assert rows(where) == [row for row in range(5) if eval(where, values[row])]  # These strings are defined above.


@pytest.mark.parametrize(
    ("where", "same"),
    [
        ("label == 'dog'", "label == 1"),
        ("label in ('cat', 'owl')", "label in (0, 2)"),
        ("'owl' == label", "label == 2"),
        ("rain not in (1, 2)", "rain == 0"),  # a row without a value is left out
        ("not rain in (1,)", "rain != 1"),
    ],
)
def test_class_names_and_missing_values(where, same):
    assert rows(where) == rows(same) != []


def test_expressions_of_pyarrow():
    assert rows((pc.field("label") == 1) & (pc.field("height") > 100)) == [1, 3]


@pytest.mark.parametrize(
    ("where", "says"),
    [
        ("__import__('os').getcwd()", "cannot stand here"),
        ("key.__class__", "cannot stand here"),
        ("height * 2 > 300", "cannot stand here"),
        ("(lambda: 1)()", "cannot stand here"),
        ("1 == 1", "names no column"),
        ("height", "where='height'"),
    ],
)
def test_wrong_expressions_raise(where, says):
    with pytest.raises(LoaderError, match=says.replace("(", "\\(")):
        rows(where)


def test_a_class_without_names_says_the_way_out():
    with pytest.raises(
        LoaderError, match=r"no class names, so write the number \(label == 3\); tfprep index takes names by"
    ):
        rows("label == 'fox'", names=())


HOSTILE = {
    "a number of many digits": "height == " + "9" * 5000,
    "more than 64 bits": f"height == {2**63}",
    "nested too deeply": "(" * 5000 + "height" + ")" * 5000,
    "signs without end": "-" * 50_000 + "height > 0",
    "too long": "key in (" + "'a'," * 100_000 + ")",
    "a NUL": "key == 'a\0b'",
    "half a surrogate pair": "key == '\\ud800'",
    "half a surrogate pair in the text": "key == '\ud800'",
    "a column that is not a truth value": "label + 1",
    "text that contains nothing": "'a' in 'abc'",
    "a list in a list": "label in ((1, 2), (3,))",
    "a number in text": "3 in key",
    "not of a number": "not 3",
    "minus text": "height > -'a'",
    "and of numbers": "label and 3",
    "a pattern that is a column": "key.startswith(key)",
    "bytes": "key == b'a'",
    "a complex number": "label == 1j",
    "an ellipsis": "key == ...",
    "a walrus": "(label := 3) == 3",
    "an f-string": "key == f'{label}'",
    "a list compared": "label == [1, 2]",
    "nothing": "",
    "lines": "label == 1\nimport os",
}


@pytest.mark.parametrize("what", HOSTILE)
def test_hostile_text_is_a_short_loader_error(what):
    with pytest.raises(LoaderError) as error:
        rows(HOSTILE[what])
    assert len(str(error.value)) < 1500


def test_long_chains_are_evaluated():
    """Arrow evaluates recursively: a chain of ten thousand comparisons would overflow its stack."""
    assert rows(" or ".join(["height==200"] * 6000)) == [1, 3]
    assert rows("0 <= height <= 300 or key in (" + "'x'," * 20_000 + ")") == [0, 1, 2, 3, 4]
