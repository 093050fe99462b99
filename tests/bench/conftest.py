"""Small datasets that are built in this process, one for all tests of a kind."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tfprep import Recipe, codecs, limits, sources
from tfprep.builder import BuildOptions, build
from tfprep.codecs import Codec
from tfprep.load import Data
from tfprep.load import open as open_data

SAMPLES = 96


@pytest.fixture(autouse=True)
def idle_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """No other program seems to run: a verdict about a staged cause must not depend on what else this machine does."""
    now = limits.CpuTimes.now
    monkeypatch.setattr(limits.CpuTimes, "now", lambda: replace(now(), others=0.0))


def make_dataset(folder: Path, codec: Codec, size: int, samples: int = SAMPLES) -> Data:
    """`samples` images of noise, `size` x `size`, in two classes, stored by `codec`."""
    draws = np.random.default_rng(0)
    for label in ("cat", "dog"):
        (folder / "raw" / label).mkdir(parents=True)
        for number in range(samples // 2):
            pixels = draws.integers(0, 256, (size, size, 3)).astype(np.uint8)
            Image.fromarray(pixels).save(folder / "raw" / label / f"{number:03d}.png", compress_level=1)
    recipe = Recipe("noise", sources.Folder("{label}/*.png"), {"image": codec, "label": codecs.Scalar()})
    build(recipe, folder / "built", folder / "raw", options=BuildOptions(workers=0))
    return open_data(folder / "built")


@pytest.fixture(scope="session")
def raw_data(tmp_path_factory: pytest.TempPathFactory) -> Data:
    return make_dataset(tmp_path_factory.mktemp("raw"), codecs.Raw(), 16)


@pytest.fixture(scope="session")
def png_data(tmp_path_factory: pytest.TempPathFactory) -> Data:
    return make_dataset(tmp_path_factory.mktemp("png"), codecs.Png(), 384, 24)


@pytest.fixture(scope="session")
def jpeg_data(tmp_path_factory: pytest.TempPathFactory) -> Data:
    return make_dataset(tmp_path_factory.mktemp("jpeg"), codecs.Jpeg(95), 48)
