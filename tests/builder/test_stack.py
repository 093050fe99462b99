"""`Recipe(stack=...)`: the channels of several fields as one stored array."""

from __future__ import annotations

from dataclasses import replace

import cv2
import numpy as np
import pytest

import tfprep
from tfprep import Recipe, augment, codecs, derive, sources
from tfprep.builder import BuildOptions
from tfprep.errors import RecipeError

RECIPE = Recipe(
    name="stacked",
    source=sources.Paired(image="image/*.png", mask="mask/*.png"),
    geometry=[augment.Flip(p=0.5)],
    derive={"clicks": derive.Clicks(mask="mask", target=1)},
    colour=[augment.Brightness(0.3)],
    stack={"x": ("image", "mask", "clicks")},
    variants={"train": 3},
    store={"x": codecs.Raw(), "image": codecs.Raw(), "mask": codecs.Raw(), "clicks": codecs.Raw()},
)


@pytest.fixture
def raw(tmp_path):
    rng = np.random.default_rng(0)
    for number in range(6):
        image, mask = rng.integers(0, 256, (20, 30, 3), np.uint8), np.zeros((20, 30), np.uint8)
        mask[5:12, 8 : 15 + number] = 1
        for name, pixels in (("image", image), ("mask", mask)):
            (tmp_path / "raw" / name).mkdir(parents=True, exist_ok=True)
            cv2.imwrite(str(tmp_path / "raw" / name / f"{number}.png"), pixels)
    return tmp_path / "raw"


def build(recipe, raw, out):
    return tfprep.build(recipe, out, raw, options=BuildOptions(workers=0))


@pytest.mark.parametrize("variant", [0, 1, 2])
def test_a_stack_holds_the_channels_of_its_fields_in_their_order(raw, tmp_path, variant):
    """After colour ops, in every variant, from the build to the batch."""
    assert build(RECIPE, raw, tmp_path / "out").rejects == 0
    data = tfprep.open(tmp_path / "out")
    assert data.fields["x"].shape == (20, 30, 6)
    for batch in data.numpy_loader("train", 4, training=False, variants=variant):
        expected = np.concatenate([batch["image"], batch["mask"][..., np.newaxis], batch["clicks"]], axis=-1)
        np.testing.assert_array_equal(batch["x"], expected)


@pytest.mark.parametrize(
    ("stack", "message"),
    [
        ({"x": ("image", "depth")}, "there is no field 'depth'"),
        ({"image": ("image", "mask")}, "there is a field 'image' already"),
        ({"x": ("image",)}, "a list of two or more field names"),
        ({"x": "image"}, "a list of two or more field names"),
    ],
)
def test_a_stack_that_cannot_be(raw, tmp_path, stack, message):
    with pytest.raises(RecipeError, match=message):
        build(replace(RECIPE, stack=stack, store={"image": codecs.Raw()}), raw, tmp_path / "out")


def test_fields_of_another_dtype_are_rejected_by_name(raw, tmp_path):
    recipe = replace(RECIPE, derive={"clicks": derive.Distance(mask="mask", target=1)})
    with pytest.raises(tfprep.errors.TooManyRejectsError, match="the fields of a stack have one dtype"):
        build(recipe, raw, tmp_path / "out")


def test_a_stack_follows_an_op_at_load_only_if_its_fields_do(raw, tmp_path):
    directed = {"clicks": derive.Sobel(image="image", of="both")}
    recipe = replace(RECIPE, derive=directed, stack={"x": ("clicks", "clicks")}, store={"x": codecs.Raw()})
    build(recipe, raw, tmp_path / "out")
    with pytest.raises(tfprep.errors.LoaderError, match="directions"):
        tfprep.open(tmp_path / "out").numpy_loader("train", 4, at_load=[tfprep.load.RandomFlip()])
