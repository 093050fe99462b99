"""The public names exist, and each package lists its exports."""

from __future__ import annotations

import importlib

import pytest

import tfprep
from tfprep import errors

PACKAGES = [
    "augment", "builder", "codecs", "dataset", "derive", "load", "recipe", "records", "sources", "train",
]  # fmt: skip


def test_public_names_exist():
    for name in tfprep.__all__:
        assert getattr(tfprep, name) is not None
    assert dir(tfprep) == sorted(tfprep.__all__)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = tfprep.nothing


@pytest.mark.parametrize("package", PACKAGES)
def test_every_package_lists_what_it_exports(package):
    if package == "train":
        pytest.importorskip("keras")
    module = importlib.import_module(f"tfprep.{package}")
    assert module.__doc__
    for name in module.__all__:
        assert hasattr(module, name), name
    assert list(module.__all__) == sorted(module.__all__)


def test_every_error_is_a_tfprep_error():
    raised = [value for value in vars(errors).values() if isinstance(value, type) and issubclass(value, Exception)]
    assert all(issubclass(value, errors.TfprepError) for value in raised)
    for value in raised:
        assert value.__name__ in (errors.__doc__ or ""), f"{value.__name__} is missing from the tree in errors.py"


@pytest.mark.parametrize("value", [b"x" * 260_000, "a//" + "y" * 3_000_000])
def test_an_error_does_not_print_a_long_value(value):
    with pytest.raises(errors.RecipeError) as raised:
        tfprep.sources.Folder(value)
    assert len(str(raised.value)) < 20_100
    assert str(raised.value).startswith("Folder: image: expected a path")
    assert "characters left out" in str(raised.value)
