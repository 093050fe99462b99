"""Generated trees of files."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest


@pytest.fixture
def tree(tmp_path: Path) -> Callable[..., Path]:
    """A function that writes the named files below a new root, in the given order, and returns the root."""
    root = tmp_path / "data"
    root.mkdir()

    def make(*paths: str) -> Path:
        for path in paths:
            target = os.path.join(root, path)
            os.makedirs(os.path.dirname(target), exist_ok=True)
            with open(target, "wb") as file:
                file.write(b"bytes of " + os.fsencode(path))
        return root

    return make
