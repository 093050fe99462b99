"""A user's Python file is run as it is now, whatever Python's cache of bytecode holds."""

from __future__ import annotations

import os

import pytest

from tfprep.python_file import import_file


def test_an_edit_of_the_same_size_within_a_second_is_seen(tmp_path, monkeypatch):
    monkeypatch.setattr("sys.dont_write_bytecode", False)
    path = tmp_path / "recipe.py"
    for number in (1, 2):
        path.write_text(f"NUMBER = {number}\n")
        os.utime(path, (1_700_000_000, 1_700_000_000))
        assert number == import_file(path, "tfprep_test_recipe").NUMBER
    assert not (tmp_path / "__pycache__").exists()


def test_another_ending_is_refused(tmp_path):
    with pytest.raises(OSError, match=r"its name does not end in \.py"):
        import_file(tmp_path / "recipe.txt", "tfprep_test_recipe")
