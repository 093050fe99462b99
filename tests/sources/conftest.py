"""Generated trees of files, and a folder for copies of raw files."""

import os
from pathlib import Path

import pytest


@pytest.fixture
def tree(tmp_path):
    """A function that writes the named files below a new root, in the given order, and returns the root."""
    root = tmp_path / "data"
    root.mkdir()

    def make(*paths):
        for path in paths:
            target = os.path.join(root, path)
            os.makedirs(os.path.dirname(target), exist_ok=True)
            with open(target, "wb") as file:
                file.write(b"bytes of " + os.fsencode(path))
        return root

    return make


@pytest.fixture(autouse=True)
def staging(tmp_path, monkeypatch):
    """The folder of copies, empty at first."""
    monkeypatch.setenv("TFPREP_STAGING", str(tmp_path / "staging"))
    return tmp_path / "staging"


def pytest_collection_modifyitems(items):
    """Ignore a warning of NumPy 2 about pycocotools 2.0.11, which calls it in the old way."""
    ignored = "ignore:__array__ implementation doesn't accept a copy keyword:DeprecationWarning"
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.filterwarnings(ignored))
