"""Every public op, derived input and codec has a test in this folder that calls it."""

import importlib
from pathlib import Path

import pytest

from tests.fidelity.public import PUBLIC


def covered():
    names = set()
    for path in Path(__file__).parent.glob("test_*.py"):
        module = importlib.import_module(f"tests.fidelity.{path.stem}")
        for test in vars(module).values():
            marks = list(getattr(test, "pytestmark", [])) if callable(test) else []
            sets = [mark for mark in marks if mark.name == "parametrize"]
            marks += [mark for each in sets for value in each.args[1] for mark in getattr(value, "marks", ())]
            names |= {name for mark in marks if mark.name == "covers" for name in mark.args}
    return names


def test_every_public_name_has_a_test():
    pytest.importorskip("tensorflow")  # the reference of test_codecs.py
    assert len(PUBLIC) >= 66
    missing = sorted(set(PUBLIC) - covered())
    assert not missing, f"no test in tests/fidelity is marked covers({', '.join(map(repr, missing))})"
