"""Expressions over the index, against Python's own evaluation row by row."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from tfprep.errors import LoaderError
from tfprep.read.where import rows_where

KEYS = ["day/a", "night/b", "day/c", "night/d", "dusk/e"]
LABELS = [0, 1, 2, 1, 0]
HEIGHTS = [100, 200, 300, 200, 50]
COLUMNS = {"key": pa.chunked_array([KEYS]), "label": pa.chunked_array([LABELS]), "height": pa.chunked_array([HEIGHTS])}
NAMES = ("cat", "dog", "owl")


def column(name):
    if name not in COLUMNS:
        raise LoaderError(f"no column {name!r}")
    return COLUMNS[name]


def rows(where):
    return rows_where(where, column, NAMES, 5).tolist()


@pytest.mark.parametrize(
    "where",
    [
        "label == 1",
        "label != 1 and height >= 100",
        "height < 100 or label == 2",
        "not (label == 1)",
        "label in (0, 2)",
        "label not in [0, 2]",
        "100 <= height < 300",
        "key.startswith('day')",
        "not key.endswith('c') and 'night' not in key",
        "'d' in key",
        "height - 50 > 2 * 50",
        "-height < -150",
        "2 == label",
    ],
)
def test_like_python(where):
    expected = [
        row
        for row in range(5)
        if eval(where, {"key": KEYS[row], "label": LABELS[row], "height": HEIGHTS[row]})  # the tests' own strings
    ]
    assert rows(where) == expected


@pytest.mark.parametrize(
    ("where", "same"),
    [
        ("label == 'dog'", "label == 1"),
        ("label in ('cat', 'owl')", "label in (0, 2)"),
        ("'owl' == label", "label == 2"),
    ],
)
def test_class_names(where, same):
    assert rows(where) == rows(same) != []


def test_expressions_of_pyarrow():
    assert rows((pc.field("label") == 1) & (pc.field("height") > 100)) == [1, 3]


@pytest.mark.parametrize(
    ("where", "says"),
    [
        ("label = 1", "no expression"),
        ("__import__('os').getcwd()", "cannot stand here"),
        ("key.__class__", "cannot stand here"),
        ("label ** 2 == 1", "cannot stand here"),
        ("(lambda: 1)()", "cannot stand here"),
        ("1 == 1", "names no column"),
        ("label == 'fox'", "there is no class 'fox'; there are cat, dog, owl"),
        ("colour == 1", "no column 'colour'"),
        ("key > 3", "where='key > 3'"),
        ("height", "where='height'"),
    ],
)
def test_mistakes(where, says):
    with pytest.raises(LoaderError, match=says.replace("(", "\\(")):
        rows(where)
