"""A small dataset of tfprep, for what callbacks report about its loader."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

RECIPE = """
from tfprep import Recipe, codecs, sources
RECIPE = Recipe(name="tiny", source=sources.Folder(), store={"image": codecs.Png(), "label": codecs.Scalar()})
"""


@pytest.fixture(scope="session")
def built(tmp_path_factory: Any) -> Path:
    """The folder of a built dataset: 64 images of 12 x 10 pixels, two classes."""
    from tfprep.builder import BuildOptions, build
    from tfprep.recipe.file import load_recipe

    root: Path = tmp_path_factory.mktemp("monitor")
    draws = np.random.default_rng(0)
    for number in range(64):
        path = root / "raw" / "train" / "ab"[number % 2] / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(draws.integers(0, 256, (12, 10, 3), np.uint8)).save(path)
    (root / "recipe.py").write_text(RECIPE)
    build(load_recipe(root / "recipe.py"), root / "out", root / "raw", options=BuildOptions(workers=0))
    return root / "out"
