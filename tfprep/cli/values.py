"""Values of options with a unit. Functions, because click's own class of types differs between its versions."""

from __future__ import annotations

import math

import click

UNITS = {"": 1.0, "b": 1.0, "kb": 1e3, "mb": 1e6, "gb": 1e9, "tb": 1e12}


def share(value: str) -> float:
    """Return a share of a whole, such as `1%` or `0.01`, as a number from 0 to 1."""
    try:
        number = float(value.removesuffix("%")) / (100 if value.endswith("%") else 1)
    except ValueError:
        number = math.nan
    if not 0 <= number <= 1:
        raise click.BadParameter(f"expected a share such as 1% or 0.01, not {value!r}")
    return number


def byte_count(value: str) -> float:
    """Return a number of bytes, such as `200GB` or `1.5TB`, in decimal units."""
    text = value.strip().lower().removesuffix("ytes")
    digits = text.rstrip("bkmgt ")
    try:
        number = float(digits) * UNITS[text[len(digits) :].strip()]
    except (ValueError, KeyError):
        number = math.nan
    if not 0 < number < math.inf:
        raise click.BadParameter(f"expected bytes such as 200GB, not {value!r}")
    return number
