"""Outputs that are kept in the smaller form that is stored, and cast or normalised on their way out of the cache."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tfprep.fields import FieldSpec
from tfprep.load.outputs import Output, row_bytes

FEW_CHANNELS = 4
"""Up to this many channels are copied one at a time: NumPy copies an array of pixels of 3 bytes into every fifth, say, pixel by
pixel, which takes five times as long (1.07 ms against 0.23 for 360 x 480). At 16 channels the opposite holds."""


@dataclass(frozen=True)
class Cast:
    """Makes the rows of an output from those of its stored form: same shape, stored dtype, not normalised."""

    stored: Output
    output: Output

    def rows(self, values: Mapping[str, Any], rows: Iterable[int]) -> None:
        """Fill these rows of the output."""
        stored, target = values[self.stored.name], values[self.output.name]
        for row in rows:
            write(self.output, stored[row : row + 1][0, ...], target[row : row + 1][0, ...])


def smaller_forms(outputs: Sequence[Output], specs: Mapping[str, FieldSpec]) -> list[Cast]:
    """The outputs whose stored form takes fewer bytes than what is delivered."""
    casts = []
    for output in outputs:
        dtypes = [specs[name].dtype for name in output.fields if name in specs]
        if not dtypes or "string" in dtypes:
            continue
        stored = replace(
            output, name=f"{output.name} as stored", dtype=np.result_type(*dtypes).name, mean=None, std=None
        )
        if row_bytes(stored) < row_bytes(output):
            casts.append(Cast(stored, output))
    return casts


def write(
    output: Output, value: Any, target: Any, first: int = 0, last: int | None = None, *, part: bool = False
) -> None:
    """Write a value as the channels [first, last) of an output, cast and normalised; `part`: these are not all."""
    if value.ndim == 3 and value.shape[2] <= FEW_CHANNELS and (part or output.mean is not None):
        for channel in range(value.shape[2]):
            content = normalised(output, value[..., channel], first + channel, first + channel + 1)
            np.copyto(target[..., channel], content, casting="unsafe")
    else:
        np.copyto(target, normalised(output, value, first, last), casting="unsafe")


def normalised(output: Output, value: Any, first: int = 0, last: int | None = None) -> Any:
    """(value - mean) / std of the channels [first, last); a value [H, W] is one channel."""
    if output.mean is None or output.std is None:
        return value
    mean, std = (np.array(numbers[first:last], np.float32) for numbers in (output.mean, output.std))
    return (value - mean) / std
