"""The code in README and docs runs as printed: recipes build, and the training script trains."""

import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import tfprep
from tests.docs import pages
from tfprep.builder import BuildOptions, build
from tfprep.recipe.file import load_recipe

keras = pytest.importorskip("keras")

ROOT = Path(__file__).parents[2]
BLOCKS = [
    pytest.param(block, id=f"{page.stem}-{number}")
    for page in (ROOT / "README.md", ROOT / "docs" / "recipes.md")
    for number, block in enumerate(re.findall(r"```python\n(.*?)```", page.read_text(), re.S))
]
RECIPES = [block for block in BLOCKS if "RECIPE =" in block.values[0]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Class folders, and images with masks, large enough for every recipe."""
    root = tmp_path_factory.mktemp("docs")
    draws = np.random.default_rng(0)
    for number in range(24):
        image = Image.fromarray(draws.integers(0, 256, (6, 8, 3), np.uint8)).resize(
            (340, 330), Image.Resampling.BICUBIC
        )
        mask = Image.fromarray(draws.choice([0, 8], (5, 5)).astype(np.uint8)).resize(
            (340, 330), Image.Resampling.NEAREST
        )
        for path, picture in (
            (root / "classes" / "ab"[number % 2] / f"{number}.jpg", image),
            (root / "pairs" / "train" / f"{number}.png", image),
            (root / "pairs" / "trainannot" / f"{number}.png", mask),
        ):
            path.parent.mkdir(parents=True, exist_ok=True)
            picture.save(path)
    return root


@pytest.mark.parametrize("block", pages.blocks("sources.md"))
def test_every_source_of_the_page_is_made_as_printed(block):
    """Without raw files: what these sources read is in tests/sources."""
    exec(compile(block, "docs/sources.md", "exec"), {})


@pytest.mark.parametrize("block", RECIPES)
def test_every_recipe_builds(block, folder, tmp_path):
    (tmp_path / "recipe.py").write_text(block)
    recipe = load_recipe(tmp_path / "recipe.py")
    data = folder / ("pairs" if "mask" in recipe.store else "classes")
    summary = build(recipe, tmp_path / "out", data, options=BuildOptions(workers=0))
    assert summary.rejected == 0
    assert summary.samples == 24


def test_the_recipe_of_the_readme_invents_no_sky(tmp_path):
    """Masks as in CamVid, where 0 is sky and 11 is void, without either: what a rotation uncovers becomes void. That all other
    pixels keep their class is in tests/fidelity."""
    (tmp_path / "recipe.py").write_text(next(one.values[0] for one in RECIPES if "mask=" in one.values[0]))
    rng = np.random.default_rng(0)
    for number in range(4):
        mask = rng.integers(1, 11, (6, 8)).astype(np.uint8).repeat(60, 0).repeat(60, 1)
        for folder, pixels in (("train", rng.integers(0, 256, (360, 480, 3), np.uint8)), ("trainannot", mask)):
            (tmp_path / "raw" / folder).mkdir(parents=True, exist_ok=True)
            Image.fromarray(pixels).save(tmp_path / "raw" / folder / f"{number}.png")
    recipe = load_recipe(tmp_path / "recipe.py")
    build(recipe, tmp_path / "out", tmp_path / "raw", options=BuildOptions(workers=0))
    data = tfprep.open(tmp_path / "out")
    masks = [
        np.stack([sample["mask"] for sample in data.samples("train", n)]) for n in range(data.split("train").variants)
    ]
    assert all((variant != 0).all() for variant in masks)
    assert not (masks[0] == 11).any()
    assert sum((variant == 11).sum() for variant in masks[1:]) > 1000


def test_the_trainer_of_the_readme_trains(folder, tmp_path, monkeypatch):
    (trainer,) = [block.values[0] for block in BLOCKS if "model.fit" in block.values[0]]
    assert len([line for line in trainer.splitlines() if line and "import" not in line]) <= 10
    recipe = next(block.values[0] for block in RECIPES if 'name="photos"' in block.values[0])
    (tmp_path / "recipe.py").write_text(recipe.replace("224, 224", "32, 32"))
    build(tmp_path / "recipe.py", tmp_path / "out" / "photos", folder / "classes", options=BuildOptions(workers=0))
    monkeypatch.chdir(tmp_path)
    exec(compile(trainer, "README.md", "exec"), {})
