"""Lists of class names."""

from __future__ import annotations

from typing import Any

from tfprep.errors import RecipeError


def check_classes(classes: Any, where: str) -> tuple[str, ...]:
    """`classes` as a tuple, where it is a list of different names."""
    if not isinstance(classes, tuple | list) or not all(isinstance(name, str) and name for name in classes):
        raise RecipeError(f"{where}: expected a tuple of class names; got {classes!r}")
    names = tuple(classes)
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise RecipeError(f"{where}: expected each class once; {', '.join(map(repr, twice))} comes twice")
    return names
