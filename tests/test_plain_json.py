"""Dataclasses to JSON, and JSON to dataclasses of the types that they declare."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Any, Literal

import pytest

from tfprep.plain_json import from_json, indented


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


def test_what_has_no_form_in_json_is_an_error():
    with pytest.raises(TypeError, match="has no form in JSON"):
        indented({"a": [{17}]})


@dataclass(frozen=True)
class Inner:
    shape: tuple[int | None, ...]
    kind: Literal["image", "mask"]


@dataclass(frozen=True)
class Outer:
    name: str
    share: float
    inner: Inner | None
    by_name: Mapping[str, Mapping[str, Inner]]
    rows: Sequence[Any]
    flag: bool = False


OUTER = Outer("ü", 2, Inner((None, 3), "mask"), {"a": {"b": Inner((), "image")}}, (1, "x", [None]))


@pytest.mark.parametrize("value", [OUTER, replace(OUTER, inner=None, share=0.5, flag=True)])
def test_a_dataclass_survives_json(value):
    assert from_json(Outer, json.loads(json.dumps(asdict(value)))) == value


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"name": 3}, "name is text, not 3"),
        ({"share": True}, "share is a number, not True"),
        ({"flag": 1}, "flag is true or false, not 1"),
        ({"inner": {"shape": [None, 1.5], "kind": "mask"}}, r"inner\.shape\[1\] is a whole number, not 1\.5"),
        ({"inner": {"shape": [1], "kind": "map"}}, r"inner\.kind is one of image, mask, not 'map'"),
        ({"inner": {"shape": [1]}}, r"inner\.kind is missing"),
        ({"more": 1}, "more is unknown"),
        ({"by_name": [1]}, "by_name is an object, not list"),
        ({"by_name": {"a": {"b\n": 3}}}, r"by_name\.a\.b\n is an object, not 3"),
    ],
)
def test_what_is_no_such_dataclass_is_refused(change, message):
    with pytest.raises(ValueError, match=f"^{message}$"):
        from_json(Outer, {**json.loads(json.dumps(asdict(OUTER))), **change})
