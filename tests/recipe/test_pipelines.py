"""Each recipe in `pipelines/` loads, makes samples of generated scenes, and treats void and sky as its task needs."""

import functools
from pathlib import Path

import cv2
import numpy as np
import pytest
from scipy import ndimage

from tests.photos import written
from tfprep.builder.make_sample import SampleMaker
from tfprep.recipe.file import load_recipe

PIPELINES = Path(__file__).parents[2] / "pipelines"
OTHER_SOURCES = {"coco_detection", "coco_clicks", "ct_slices"}
"""Recipes for annotations and for DICOM, which `test_sources_of_pipelines.py` builds."""
RECIPES = sorted({path.stem for path in PIPELINES.glob("*.py") if "RECIPE" in path.read_text()} - OTHER_SOURCES)
SKY, BUILDING, ROAD, CAR, VOID = 0, 1, 3, 8, 11


def street(number):
    """Class numbers as in CamVid, uint8 [360, 480]: sky, buildings, a road with two cars, and void between them."""
    rng = np.random.default_rng(number)
    mask = np.full((360, 480), SKY, np.uint8)
    mask[120:220] = BUILDING
    mask[220:] = ROAD
    mask[210:226] = VOID
    for x in rng.integers(80, 400, 2):
        cv2.ellipse(mask, (int(x), 250), (52, 36), 0, 0, 360, VOID, -1)
        cv2.ellipse(mask, (int(x), 250), (46, 30), 0, 0, 360, CAR, -1)
    return mask


@functools.cache
def samples(name, count=4):
    """Three variants of each of `count` scenes, as the recipe makes them, once for all tests."""
    recipe = load_recipe(PIPELINES / f"{name}.py")
    kinds = {"image": "image", "label": "label"} if "label" in recipe.store else {"image": "image", "mask": "mask"}
    maker, made = SampleMaker(recipe, kinds, {}), []
    for number in range(count):
        mask = street(number)
        image = np.random.default_rng(number).integers(0, 256, (*mask.shape, 3), np.uint8)
        values = {
            "image": written(image, "JPEG"),
            "mask": written(mask % 4 if name == "demo" else mask, "PNG"),
            "label": 0,
        }
        fields = {field: values[field] for field in kinds}
        for sample in maker.made(f"{number}", fields, range(3)):
            maker.encode(sample, fields)
            made.append(sample)
    return made


@pytest.mark.parametrize("name", RECIPES)
def test_every_recipe_of_the_project_makes_samples(name):
    recipe = load_recipe(PIPELINES / f"{name}.py")
    assert len(samples(name)) == 12
    assert all(set(recipe.store) <= set(sample) for sample in samples(name))


def test_void_has_no_weight_in_everything():
    """A map of weights tells where the loss counts: nowhere in void, also where a rotation filled with it, and elsewhere."""
    void = 0
    for sample in samples("camvid_everything"):
        weights, mask = sample["weights"], sample["mask"]
        assert (weights[mask == VOID] == 0).all()
        assert (weights[mask != VOID] > 0).all()
        void += (mask == VOID).sum()
    assert void > 1000


def test_the_distance_to_the_roads_boundary_ignores_void():
    """Neither the void of the annotation nor the fill of a rotation counts as an edge: compared with SciPy's distance to
    known other classes."""
    rotated = 0
    for sample in samples("camvid"):
        mask, signed = sample["mask"], sample["road"]
        road = mask == ROAD
        others = ~road & (mask != VOID)
        expected = 0.5 - ndimage.distance_transform_edt(~others)
        np.testing.assert_allclose(signed[road], expected[road], atol=0.01)
        rotated += bool((mask[0] == VOID).any())
    assert rotated


@pytest.mark.parametrize("name", ["camvid_everything", "camvid_clicks"])
def test_no_click_falls_into_void(name):
    on = [int(sample["mask"][row, column]) for sample in samples(name) for row, column, _ in clicks_of(sample)]
    assert VOID not in on
    assert len(on) > 50


def test_clicks_fall_into_the_sky_too():
    """Sky has class number 0, which is the background by default, an object on which strategy 2 never clicks."""
    classes = [
        int(sample["mask"][row, column])
        for sample in samples("camvid_clicks", 24)
        for row, column, _ in clicks_of(sample)
    ]
    assert classes.count(SKY) > 0.2 * classes.count(BUILDING) > 0
    positive = [
        int(sample["mask"][r, c]) for sample in samples("camvid_clicks", 4) for r, c, kind in clicks_of(sample) if kind
    ]
    assert set(positive) == {CAR}


def clicks_of(sample):
    """(row, column, positive) of each click, from its coordinates or from the zeros of its distance map."""
    if "points" in sample:
        return [(int(y), int(x), bool(positive)) for x, y, positive, _ in sample["points"]]
    zeros = np.argwhere(sample["clicks"] == 0)
    return [(row, column, channel == 0) for row, column, channel in zeros]
