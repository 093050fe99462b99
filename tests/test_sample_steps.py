"""Policies, whole-sample functions, tone curves and boxes in a recipe: the same as their parts put together by hand."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image

from tfprep import Recipe, augment, codecs, sources
from tfprep.augment.transform import identity
from tfprep.augment.warp import warp_sample
from tfprep.errors import SampleError
from tfprep.sample import SampleMaker
from tfprep.seeding import generator

KINDS = {"image": "image", "mask": "mask", "boxes": "boxes", "names": "label"}
RNG = np.random.default_rng(0)
IMAGE = np.asarray(
    Image.fromarray(RNG.integers(0, 256, (6, 8, 3), np.uint8)).resize((80, 60), Image.Resampling.BICUBIC)
)
RAW = {
    "image": IMAGE,
    "mask": RNG.integers(0, 3, (60, 80), np.uint8),
    "boxes": [[2, 2, 20, 20], [70, 50, 79, 59]],
    "names": [4, 7],
}


def made(variant: int = 1, **options):
    recipe = Recipe("r", sources.Folder(), {"image": codecs.Png()}, **options)
    (sample,) = SampleMaker(recipe, KINDS, {}).made("key", RAW, [variant])
    return sample


@pytest.mark.parametrize("policy", [augment.RandAugment(n=3, m=12), augment.TrivialAugment()])
def test_both_halves_of_a_policy_use_the_same_draws(policy):
    step = f"geometry/{type(policy).__name__}/0"
    for variant in range(1, 12):
        transform = identity((60, 80)).then(policy((60, 80), generator(0, "key", variant, step)))
        expected = warp_sample({"image": IMAGE, "mask": RAW["mask"]}, KINDS, transform)
        image = expected["image"]
        for number, op in enumerate(policy.colour_ops(generator(0, "key", variant, step))):
            image = op(image, generator(0, "key", variant, f"{step}/{number}"))
        sample = made(variant, geometry=[policy])
        assert np.array_equal(sample["image"], image)
        assert np.array_equal(sample["mask"], expected["mask"])
    assert np.array_equal(made(0, geometry=[policy])["image"], IMAGE)


def swap(sample, draws):
    return {**sample, "image": sample["image"][:, :, ::-1], "names": sample["names"] + draws.integers(10, 20)}


def test_a_function_of_the_whole_sample_stands_between_ops():
    ops = [augment.Crop(40, 50), augment.Custom(swap), augment.Crop(20, 30)]
    sample = made(1, geometry=ops)
    assert sample["image"].shape == (20, 30, 3)
    plain = made(1, geometry=[ops[0], ops[2]])
    assert np.array_equal(sample["image"], plain["image"][:, :, ::-1])
    assert np.array_equal(sample["mask"], plain["mask"])
    assert (sample["names"] >= 14).all()
    assert np.array_equal(made(0, geometry=ops)["names"], RAW["names"])


def broken(sample, draws):
    raise RuntimeError("no idea")


@pytest.mark.parametrize(
    ("options", "message", "stage"),
    [
        ({"geometry": [augment.Custom(broken)]}, "RuntimeError: no idea", "geometry"),
        ({"geometry": [augment.Custom(lambda sample, draws: 3)]}, "a Custom function returns a mapping", "geometry"),
        ({"colour": [broken]}, "RuntimeError: no idea", "colour"),
        ({"colour": [lambda image, draws: image / 2]}, "a colour op returns uint8", "colour"),
    ],
)
def test_what_a_users_function_does_wrong_is_a_reject_with_its_stage(options, message, stage):
    with pytest.raises(SampleError, match=message) as caught:
        made(1, **options)
    assert caught.value.stage == stage


def test_tone_curves_that_collapse_give_the_bytes_of_one_after_the_other():
    ops = [
        augment.Brightness(0.4),
        augment.Contrast(0.4),
        augment.Gamma((0.7, 1.5)),
        augment.Hue(0.1),
        augment.Brightness(0.2),
    ]
    image = IMAGE
    for step, op in zip(("Brightness/0", "Contrast/0", "Gamma/0", "Hue/0", "Brightness/1"), ops, strict=True):
        image = op(image, generator(0, "key", 3, f"colour/{step}"))
    assert np.array_equal(made(3, colour=ops)["image"], image)


def test_boxes_that_are_cropped_away_go_with_what_stands_beside_them():
    sample = made(0, geometry=[augment.CenterCrop(50, 60)], min_visible=0.3, beside={"boxes": ["names"]})
    assert sample["names"].tolist() == [4]
    assert sample["boxes"].tolist() == [[0, 0, 10, 15]]
    assert len(made(0, geometry=[augment.CenterCrop(50, 60)])["boxes"]) == 2


def test_adding_an_op_leaves_the_draws_of_the_others():
    before = made(2, geometry=[augment.Rotate(20)], colour=[augment.Brightness(0.5)])
    after = made(
        2, geometry=[augment.Flip(0.0), augment.Rotate(20)], colour=[augment.Brightness(0.5), augment.Contrast((1, 1))]
    )
    assert np.array_equal(before["image"], after["image"])
