"""Checks that the options of ops and derived inputs share: each raises a RecipeError with the rule, the value and the way out."""

from __future__ import annotations

from math import isfinite
from numbers import Real
from typing import TypeAlias

from tfprep.errors import RecipeError

Range: TypeAlias = tuple[float, float]


def require(holds: bool, rule: str, received: object, way_out: str) -> None:
    """Raises a RecipeError unless `holds`: '{rule}, got {received}; {way_out}'."""
    if not holds:
        raise RecipeError(f"{rule}, got {received!r}; {way_out}")


def require_class(name: str, value: object) -> None:
    require(_is_whole(value, 0, 65535), f"{name} is a class number from 0 to 65535", value, "for example 1")


def require_count(name: str, value: object, low: int = 0) -> None:
    require(_is_whole(value, low), f"{name} is a whole number, at least {low}", value, f"for example {max(low, 5)}")


def require_pixels(name: str, value: object) -> None:
    require(_is_whole(value, 1), f"{name} is a whole number of pixels, at least 1", value, "for example 224")


def require_positive(name: str, value: float, example: float = 20) -> None:
    require(isfinite(value) and value > 0, f"{name} is above 0", value, f"for example {example:g}")


def require_not_negative(name: str, value: float) -> None:
    require(isfinite(value) and value >= 0, f"{name} is at least 0", value, "for example 10")


def require_distance(name: str, value: float) -> None:
    require(isfinite(value) and value >= 0, f"{name} is a distance, at least 0", value, "for example 5")


def require_probability(name: str, value: float) -> None:
    require(is_number(value) and 0 <= value <= 1, f"{name} is a probability from 0 to 1", value, "for example 0.5")


def require_range(name: str, value: Range, low: float, high: float) -> None:
    """Two finite numbers, the smaller first, both from `low` to `high`."""
    pair = isinstance(value, tuple) and len(value) == 2 and all(is_number(end) and isfinite(end) for end in value)
    rule = f"{name} is a range (from, to) with {low:g} <= from <= to <= {high:g}"
    require(pair and low <= value[0] <= value[1] <= high, rule, value, "give two numbers in that order")


def around(centre: float, amount: float | Range) -> Range:
    """`amount` as a range: a single number means `centre` ± that number."""
    if isinstance(amount, tuple):
        return amount
    require(is_number(amount), "an amount is a number or a range (from, to)", amount, "for example 0.2")
    return centre - amount, centre + amount


def is_number(value: object) -> bool:
    """Tells if it is a real number; True and False, which Python counts as numbers, are none."""
    return isinstance(value, Real) and not isinstance(value, bool)


def _is_whole(value: object, low: int, high: float = float("inf")) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and low <= value <= high
