"""Lists of class names."""

from __future__ import annotations

from typing import Any

from tfprep.errors import RecipeError


def check_classes(classes: Any, where: str) -> tuple[str, ...]:
    """Return `classes` as a tuple; RecipeError unless it is a list of different names."""
    if not isinstance(classes, tuple | list) or not all(isinstance(name, str) and name for name in classes):
        raise RecipeError(f"{where}: expected a tuple of class names; got {classes!r}")
    names = tuple(classes)
    if fault := next(filter(None, map(class_name_fault, names)), ""):
        raise RecipeError(f"{where}: {fault}")
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise RecipeError(f"{where}: expected each class once; {', '.join(map(repr, twice))} comes twice")
    return names


def class_name_fault(name: str) -> str:
    """Say why this cannot be the name of a class; "" where it can be.

    TensorFlow Datasets keeps class names in a text file, one on each line, and drops the spaces around them.
    """
    if name == name.strip() and name.isprintable():
        return ""
    return f"a class name has no spaces around it, no line breaks and no control characters; got {name!r}"
