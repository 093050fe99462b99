"""Checks that the options of ops share: each raises a RecipeError with the rule, the value received and the way out."""

from __future__ import annotations

from math import isfinite
from typing import TypeAlias

from tfprep.errors import RecipeError

Range: TypeAlias = tuple[float, float]


def require(holds: bool, rule: str, received: object, way_out: str) -> None:
    if not holds:
        raise RecipeError(f"{rule}, got {received!r}; {way_out}")


def require_pixels(name: str, value: object) -> None:
    whole = isinstance(value, int) and not isinstance(value, bool) and value >= 1
    require(whole, f"{name} is a whole number of pixels, at least 1", value, "for example 224")


def require_probability(name: str, value: float) -> None:
    require(0 <= value <= 1, f"{name} is a probability from 0 to 1", value, "for example 0.5")


def require_range(name: str, value: Range, low: float, high: float) -> None:
    """Two finite numbers, the smaller first, both from `low` to `high`."""
    pair = isinstance(value, tuple) and len(value) == 2 and all(isfinite(end) for end in value)
    rule = f"{name} is a range (from, to) with {low:g} <= from <= to <= {high:g}"
    require(pair and low <= value[0] <= value[1] <= high, rule, value, "give two numbers in that order")


def around(centre: float, amount: float | Range) -> Range:
    """`amount` as a range: one number means `centre` ± that number."""
    if isinstance(amount, tuple):
        return amount
    return (centre - amount, centre + amount)


def require_positive_number(name: str, value: float) -> None:
    require(isfinite(value) and value > 0, f"{name} is above 0", value, "for example 1")
