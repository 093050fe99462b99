"""What a lossy codec changes: the peak signal-to-noise ratio of stored images, measured on samples of a recipe."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from tfprep.bench.advise.forms import codec_name
from tfprep.bench.advise.samples import RawSamples
from tfprep.codecs import Jpeg
from tfprep.errors import SampleError
from tfprep.recipe import Recipe

SAMPLES = 24


@dataclass(frozen=True)
class Loss:
    """The loss of one field: PSNR in dB between an image before encoding and the decoded one, over `samples` images."""

    field: str
    codec: str
    median_db: float
    least_db: float
    samples: int

    @property
    def words(self) -> str:
        return (
            f"'{self.field}' as {self.codec} loses detail: PSNR {self.median_db:.1f} dB in the median of {self.samples} "
            f"images, {self.least_db:.1f} dB at worst"
        )


def losses(recipe: Recipe, root: Path, split: str) -> tuple[Loss, ...]:
    """Measure each field that the recipe stores as JPEG, on variant 0 of the first samples; empty where there is none."""
    lossy = [name for name, codec in recipe.store.items() if isinstance(codec, Jpeg)]
    if not lossy:
        return ()
    raw = RawSamples.of(recipe, root, split)
    found: dict[str, list[float]] = {name: [] for name in lossy}
    for number in range(min(SAMPLES, len(raw))):
        try:
            sample = raw.made(number, 0)
        except SampleError:  # a build rejects it, and says so
            continue
        for name in lossy:
            found[name].append(psnr_db(sample[name], _decoded(raw, name, sample[name])))
    return tuple(
        Loss(name, codec_name(recipe.store[name]), median(values), min(values), len(values))
        for name, values in found.items()
        if values
    )


def psnr_db(one: Any, other: Any) -> float:
    """PSNR of two uint8 arrays: 10 log10(255² / mean squared error); infinite for equal ones."""
    error = float(np.mean((np.asarray(one, np.float64) - np.asarray(other, np.float64)) ** 2))
    return 10 * float(np.log10(255**2 / error)) if error else float("inf")


def _decoded(raw: RawSamples, name: str, value: Any) -> Any:
    codec = raw.recipe.store[name]
    return codec.decode(codec.encode(value)[""], raw.spec(name, value))
