"""What derived inputs share: checks of options, and how they get a mask out of a sample."""

from __future__ import annotations

import numpy as np

from tfprep.errors import RecipeError, SampleError
from tfprep.fields import Array, Sample


def require(holds: bool, rule: str, received: object, way_out: str) -> None:
    if not holds:
        raise RecipeError(f"{rule}, got {received!r}; {way_out}")


def require_class(name: str, value: object) -> None:
    whole = isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= 65535
    require(whole, f"{name} is a class number from 0 to 65535", value, "for example 1")


def require_count(name: str, value: object, low: int = 0) -> None:
    whole = isinstance(value, int) and not isinstance(value, bool) and value >= low
    require(whole, f"{name} is a whole number, at least {low}", value, f"for example {max(low, 5)}")


def require_positive(name: str, value: float) -> None:
    require(bool(0 < value < float("inf")), f"{name} is above 0", value, "for example 20")


def require_distance(name: str, value: float) -> None:
    require(bool(0 <= value < float("inf")), f"{name} is a distance, at least 0", value, "for example 5")


def mask_of(sample: Sample, name: str) -> Array:
    """The mask [H, W] called `name`."""
    if name not in sample:
        raise RecipeError(
            f"a derived input asks for the mask {name!r}, the sample has {sorted(sample)}; name one of them"
        )
    mask = np.asarray(sample[name])
    if mask.ndim != 2 or mask.dtype.kind not in "ui":
        raise SampleError(
            f"a mask is whole numbers [H, W]; {name!r} is {mask.dtype} {list(mask.shape)}", stage="derive", field=name
        )
    return mask
