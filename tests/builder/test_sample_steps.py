"""Policies, whole-sample functions, tone curves and boxes in a recipe equal their steps applied one by one."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image

from tfprep import Recipe, augment, codecs, derive, sources
from tfprep.augment.transform import identity
from tfprep.augment.warp import warp_sample
from tfprep.builder.shards.make_sample import SampleMaker
from tfprep.errors import SampleError
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
def test_geometry_and_colour_of_a_policy_use_the_same_draws(policy):
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


def test_a_function_of_the_whole_sample_can_be_between_ops():
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
def test_a_wrong_result_of_a_users_function_is_a_reject_with_its_stage(options, message, stage):
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


def test_boxes_that_are_cropped_away_are_dropped_with_their_rows():
    sample = made(0, geometry=[augment.CenterCrop(50, 60)], min_visible=0.3, row_fields={"boxes": ["names"]})
    assert sample["names"].tolist() == [4]
    assert sample["boxes"].tolist() == [[0, 0, 10, 15]]
    assert len(made(0, geometry=[augment.CenterCrop(50, 60)])["boxes"]) == 2


COCO = (0, 2, 1, 4, 3, 6, 5, 8, 7, 10, 9, 12, 11, 14, 13, 16, 15)
"""Nose, then left and right eye, ear, shoulder, elbow, wrist, hip, knee and ankle."""


def people(variant: int, **options):
    """Two people with 17 key points each, and the heatmaps of every kind of point."""
    points = np.column_stack([RNG.permutation(80)[:34] + 0.5, RNG.permutation(60)[:34] + 0.5, np.full(34, 2.0)])
    maps = {"maps": derive.Heatmaps(sigma_px=0.3, channels=17)}
    recipe = Recipe(
        "r", sources.Folder(), {"image": codecs.Png()}, derive=maps, flip_indices={"points": COCO}, **options
    )
    maker = SampleMaker(recipe, {"image": "image", "points": "points"}, {})
    (sample,) = maker.made("key", {"image": IMAGE, "points": points}, [variant])
    return points, sample


@pytest.mark.parametrize(
    ("ops", "mirror"),
    [
        ([augment.Flip(1)], lambda x, y: (80 - x, y)),
        ([augment.Flip(1, "vertical")], lambda x, y: (x, 60 - y)),
        (
            [augment.Flip(1), augment.Custom(lambda sample, draws: sample), augment.Resize(60, 80)],
            lambda x, y: (80 - x, y),
        ),
    ],
)
def test_left_and_right_change_places_in_a_mirror_image(ops, mirror):
    points, sample = people(1, geometry=ops)
    for kind in range(17):
        partner = COCO[kind]
        peaks = {mirror(x, y) for x, y, _ in points[partner::17]}
        assert {(x + 0.5, y + 0.5) for y, x in np.argwhere(sample["maps"][:, :, kind] > 0.99)} == peaks


@pytest.mark.parametrize(
    "ops",
    [
        [augment.Flip(1), augment.Flip(1, "vertical")],
        [augment.Flip(1), augment.Custom(lambda sample, draws: sample), augment.Flip(1, "vertical")],
        [augment.Rotate((180, 180))],
    ],
)
def test_two_mirrors_rotate_and_exchange_nothing(ops):
    points, sample = people(1, geometry=ops)
    np.testing.assert_allclose(sample["points"][:, :2], [80, 60] - points[:, :2], atol=1e-4)


def test_an_incomplete_object_has_no_partners():
    recipe = Recipe(
        "r", sources.Folder(), {"image": codecs.Png()}, geometry=[augment.Flip(1)], flip_indices={"p": COCO}
    )
    maker = SampleMaker(recipe, {"image": "image", "p": "points"}, {})
    with pytest.raises(SampleError, match="17 rows for each object; 20 points are no multiple of it") as caught:
        list(maker.made("key", {"image": IMAGE, "p": np.ones((20, 2))}, [1]))
    assert (caught.value.stage, caught.value.field) == ("geometry", "p")


def test_adding_an_op_does_not_change_the_draws_of_others():
    before = made(2, geometry=[augment.Rotate(20)], colour=[augment.Brightness(0.5)])
    after = made(
        2, geometry=[augment.Flip(0.0), augment.Rotate(20)], colour=[augment.Brightness(0.5), augment.Contrast((1, 1))]
    )
    assert np.array_equal(before["image"], after["image"])


def _writes_in_place(sample, draws):
    sample["image"][:] = 0
    return np.zeros(sample["image"].shape[:2], np.float32)


def _sets_a_field(sample, draws):
    sample["image"] = np.zeros_like(sample["image"])
    return np.zeros(sample["image"].shape[:2], np.float32)


def _inverts_in_place(image, draws):
    image[:] = 255 - image
    return image


@pytest.mark.parametrize(
    "options",
    [
        {"derive": {"x": _writes_in_place}},
        {"derive": {"x": _sets_a_field}},
        {"colour": [_inverts_in_place]},
        {"geometry": [augment.Flip(0.5)], "derive": {"x": _writes_in_place}},
    ],
)
def test_a_function_cannot_change_what_others_use(options):
    maker = SampleMaker(Recipe("r", sources.Folder(), {"image": codecs.Png()}, **options), KINDS, {})
    with pytest.raises(SampleError, match=r"read-only|does not support item assignment"):
        list(maker.made("key", {**RAW, "image": IMAGE.copy()}, [1, 2]))


def _mirrors_in_place(sample, draws):
    sample["image"][:] = sample["image"][:, ::-1].copy()
    sample["names"] = sample["names"] + 1
    return sample


def test_a_function_of_the_whole_sample_may_write_into_its_own():
    recipe = Recipe("r", sources.Folder(), {"image": codecs.Png()}, geometry=[augment.Custom(_mirrors_in_place)])
    decoded = {**RAW, "image": IMAGE.copy()}
    samples = list(SampleMaker(recipe, KINDS, {}).made("key", decoded, range(4)))
    assert np.array_equal(samples[0]["image"], IMAGE)
    for sample in samples[1:]:
        assert np.array_equal(sample["image"], IMAGE[:, ::-1])
        assert sample["names"].tolist() == [5, 8]
