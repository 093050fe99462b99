"""The protocol of derived inputs: arrays computed from a warped sample, after geometry and before colour."""

from __future__ import annotations

from typing import Protocol

import numpy as np

from tfprep.fields import Array, Sample


class Derived(Protocol):
    """A frozen dataclass of options, or any function with this signature.

    Given the warped sample (rasters of one size) and a generator of its own, it returns the new field's array. Its
    attribute `kind`, where it has one, is the kind of the new field; without one it is a `map`. The sample must not be
    changed. Raises SampleError where this sample cannot have the derived input.
    """

    def __call__(self, sample: Sample, generator: np.random.Generator, /) -> Array: ...
