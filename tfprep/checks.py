"""Checks of options: those of ops and derived inputs raise a RecipeError with the rule, the value and the fix; those of loaders
a LoaderError."""

from __future__ import annotations

import operator
from math import inf, isfinite
from numbers import Integral, Real
from typing import Any, TypeAlias, TypeGuard, cast

from tfprep.errors import LoaderError, RecipeError

Range: TypeAlias = tuple[float, float]


def require(holds: bool, rule: str, received: object, fix: str) -> None:
    """Raises a RecipeError unless `holds`: '{rule}, got {received}; {fix}'."""
    if not holds:
        raise RecipeError(f"{rule}, got {received!r}; {fix}")


def require_number(
    name: str,
    value: object,
    low: float,
    high: float = inf,
    *,
    above: bool = False,
    what: str = "a number",
    example: float = 1,
) -> None:
    """A finite number from `low` (or `above` it) to `high`."""
    fits = is_number(value) and (low < value if above else low <= value) and value <= high and isfinite(value)
    ends = f" above {low:g}" if above else f", at least {low:g}" if high == inf else f" from {low:g} to {high:g}"
    require(
        fits,
        f"{name} is {what}{ends}{f', at most {high:g}' if above and high < inf else ''}",
        value,
        f"for example {example:g}",
    )


def require_whole(
    name: str, value: object, low: int, high: float = inf, *, what: str = "a whole number", example: int = 1
) -> None:
    """An int from `low` to `high`. One of NumPy would give a recipe another fingerprint."""
    whole = isinstance(value, int) and not isinstance(value, bool) and low <= value <= high
    ends = f", at least {low}" if high == inf else f" from {low} to {high}"
    of_numpy = isinstance(value, Integral) and not isinstance(value, int)
    require(
        whole, f"{name} is {what}{ends}", value, "write int(...) around it" if of_numpy else f"for example {example}"
    )


def require_classes(op: object, *options: str) -> None:
    """Each of these options is a class number, or None."""
    for option in options:
        if (value := getattr(op, option)) is not None:
            require_class(f"{type(op).__name__}.{option}", value)


def require_class(name: str, value: object) -> None:
    require_whole(name, value, 0, 65535, what="a class number")


def require_count(name: str, value: object, low: int = 0) -> None:
    require_whole(name, value, low, example=max(low, 5))


def require_pixels(name: str, value: object) -> None:
    require_whole(name, value, 1, what="a whole number of pixels", example=224)


def require_positive(name: str, value: object, example: float = 20) -> None:
    require_number(name, value, 0, above=True, example=example)


def require_distance(name: str, value: object) -> None:
    require_number(name, value, 0, what="a distance", example=5)


def require_probability(name: str, value: object) -> None:
    require_number(name, value, 0, 1, what="a probability", example=0.5)


def require_range(name: str, value: Range, low: float, high: float) -> None:
    """Two finite numbers, the smaller first, both from `low` to `high`."""
    pair = isinstance(value, tuple) and len(value) == 2 and all(is_number(end) and isfinite(end) for end in value)
    rule = f"{name} is a range (from, to) with {low:g} <= from <= to <= {high:g}"
    require(pair and low <= value[0] <= value[1] <= high, rule, value, "give two numbers in that order")


def require_counts(name: str, value: tuple[int, int], low: int = 0, high: float = inf) -> None:
    """Two whole numbers, the smaller first, both from `low` to `high`."""
    require_range(name, value, low, high)
    require(
        all(isinstance(end, int) for end in value), f"{name} is a range of whole numbers", value, "for example (4, 8)"
    )


def around(center: float, amount: float | Range) -> Range:
    """`amount` as a range: a single number means `center` ± that number. Anything else is left to `require_range`."""
    return (center - amount, center + amount) if is_number(amount) else cast(Range, amount)


def is_number(value: object) -> TypeGuard[float]:
    """Return True if it is a real number; True and False, which Python counts as numbers, are not."""
    return isinstance(value, Real) and not isinstance(value, bool)


# --- options of loaders


def whole_number(name: str, value: Any, least: int | None = None, most: int | None = None) -> int:
    """Return an argument, which may be a number of NumPy's, as a Python int; LoaderError unless it is from `least` to `most`."""
    try:
        number = None if isinstance(value, bool) else operator.index(value)
    except TypeError:  # such as an array of several
        number = None
    if number is None or (least is not None and number < least) or (most is not None and number > most):
        rule = "a whole number" if least is None else f"a whole number from {least}"
        rule += f" to {most:,}" if most is not None and number is not None and number > most else ""
        raise LoaderError(f"{name} is {rule}, not {value!r}")
    return number


def column_name(name: str, value: Any) -> str:
    """Return the name of a column that an argument gives; LoaderError if it is not text."""
    if not isinstance(value, str):
        raise LoaderError(f"{name} is the name of a column of the index, not {value!r}")
    return value
