"""Small datasets of pictures that look like photos, built from files."""

from collections.abc import Callable
from pathlib import Path

import cv2
import numpy as np
import pytest

from tfprep import Recipe, codecs, sources
from tfprep.builder import BuildOptions, build


def photo(number: int, height: int = 96, width: int = 128) -> np.ndarray:
    """A smooth picture with large and small shapes; another one for each number."""
    rng = np.random.default_rng(number)
    layers = [
        cv2.resize(rng.normal(size=(n, n, 3)), (width, height), interpolation=cv2.INTER_CUBIC) / n
        for n in (2, 4, 8, 16, 32)
    ]
    sums = np.sum(layers, axis=0)
    return ((sums - sums.min()) / np.ptp(sums) * 255).astype(np.uint8)


@pytest.fixture(scope="session")
def photo_of() -> Callable[..., np.ndarray]:
    return photo


@pytest.fixture(scope="session")
def build_folder() -> Callable[..., Path]:
    """Builds images in `{split}/{label}/` without hashes or with them."""

    def run(raw: Path, out: Path, *, source=None, store=None, hash=True, name="photos", **options) -> Path:
        recipe = Recipe(
            name=name,
            source=source or sources.Folder("{split}/{label}/**"),
            store=store or {"image": codecs.Png(), "label": codecs.Scalar()},
            **options,
        )
        build(recipe, out, raw, options=BuildOptions(workers=0, hash=hash))
        return out

    return run
