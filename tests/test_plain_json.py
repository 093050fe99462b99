"""Indented JSON is, byte for byte, that of the standard library."""

from __future__ import annotations

import json
from dataclasses import dataclass

import pytest

from tfprep.plain_json import indented

DOCUMENTS = [
    {},
    [],
    {"a": [], "b": {}, "c": ()},
    {"text": 'größe "quoted"\n\u2028\x7f', "\udcff": None, "numbers": [1, -2.5, 1e300, True, False, 10**30]},
    [[1, [2, [3, {"deep": [[], [{}]]}]]], "a"],
    "text",
    3,
    {"files": {"train": [[{"name": "a", "records": 3}], []]}, "rows": [1, 2, 3]},
]


@pytest.mark.parametrize("ensure_ascii", [True, False])
@pytest.mark.parametrize("document", DOCUMENTS)
def test_it_is_that_of_the_standard_library(document, ensure_ascii):
    assert indented(document, ensure_ascii=ensure_ascii) == json.dumps(document, indent=1, ensure_ascii=ensure_ascii)


@dataclass(frozen=True)
class File:
    name: str
    sizes: tuple[int, ...]


def test_a_dataclass_is_the_object_of_its_fields():
    assert json.loads(indented({"file": File("a", (1, 2))})) == {"file": {"name": "a", "sizes": [1, 2]}}
