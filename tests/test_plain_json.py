"""Indented JSON is, byte for byte, that of the standard library."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pytest

from tfprep.plain_json import indented

DOCUMENTS = [
    {},
    [],
    {"a": [], "b": {}, "c": ()},
    {"text": 'größe "quoted"\n\u2028\x7f', "\udcff": None, "numbers": [1, -2.5, 1e300, True, False, 10**30]},
    {np.str_("größe"): np.str_("größe"), "number": np.float64(0.1)},
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

    @cached_property
    def total(self) -> int:
        return sum(self.sizes)


def test_a_dataclass_is_the_object_of_its_fields():
    file = File("a", (1, 2))
    assert file.total == 3, "it is kept beside the fields"
    assert json.loads(indented({"file": file})) == {"file": {"name": "a", "sizes": [1, 2]}}


def test_a_key_that_is_no_text_is_named():
    with pytest.raises(TypeError, match="not 17"):
        indented({"a": [{17: "b"}]})
