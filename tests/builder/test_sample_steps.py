"""Policies, whole-sample functions, tone curves and boxes in a recipe equal their steps applied one by one."""

from collections import Counter
from dataclasses import replace

import cv2
import numpy as np
import pytest
from PIL import Image

import tfprep
from tfprep import Recipe, augment, codecs, derive, sources
from tfprep.augment.transform import identity
from tfprep.augment.warp import warp_sample
from tfprep.builder import BuildOptions
from tfprep.builder.shards.make_sample import SampleMaker
from tfprep.errors import RecipeError, SampleError
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


def test_geometry_without_draws_is_asked_for_once_for_all_images_of_one_size():
    asked = []

    def half(size, draws):
        asked.append((size, draws is None))
        return augment.Resize(size[0] // 2, size[1] // 2)(size, None)

    recipe = Recipe("r", sources.Folder(), {"image": codecs.Png()}, geometry=[half])
    maker = SampleMaker(recipe, {"image": "image"}, {})
    for image in (IMAGE, IMAGE[::-1], np.repeat(IMAGE, 2, axis=0), IMAGE):
        height, width = image.shape[:2]
        transform = augment.Resize(height // 2, width // 2)((height, width), None)
        expected = warp_sample({"image": image}, {"image": "image"}, transform)["image"]
        for sample in maker.made("key", {"image": image}, [0, 1]):
            assert np.array_equal(sample["image"], expected)
    small, large = (60, 80), (120, 80)
    assert Counter(asked) == {(small, True): 1, (large, True): 1, (small, False): 3, (large, False): 1}


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
        augment.ToneCurve(),
        augment.Posterize((3, 6)),
        augment.Invert(),
        augment.Blur(),
        augment.Solarize(),
        augment.Hue(0.1),
        augment.Brightness(0.2),
    ]
    image = IMAGE
    steps = [f"{type(op).__name__}/0" for op in ops[:-1]] + ["Brightness/1"]
    for step, op in zip(steps, ops, strict=True):
        image = op(image, generator(0, "key", 3, f"colour/{step}"))
    assert np.array_equal(made(3, colour=ops)["image"], image)


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


STACKED = Recipe(
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


def built(recipe, raw, out):
    return tfprep.build(recipe, out, raw, options=BuildOptions(workers=0))


@pytest.mark.parametrize("variant", [0, 1, 2])
def test_a_stack_holds_the_channels_of_its_fields_in_their_order(raw, tmp_path, variant):
    """After colour ops, in every variant, from the built to the batch."""
    assert built(STACKED, raw, tmp_path / "out").rejects == 0
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
        built(replace(STACKED, stack=stack, store={"image": codecs.Raw()}), raw, tmp_path / "out")


def test_fields_of_another_dtype_are_rejected_by_name(raw, tmp_path):
    recipe = replace(STACKED, derive={"clicks": derive.Distance(mask="mask", target=1)})
    with pytest.raises(tfprep.errors.TooManyRejectsError, match="the fields of a stack have one dtype"):
        built(recipe, raw, tmp_path / "out")


def test_a_stack_follows_an_op_at_load_only_if_its_fields_do(raw, tmp_path):
    directed = {"clicks": derive.Sobel(image="image", of="both")}
    recipe = replace(STACKED, derive=directed, stack={"x": ("clicks", "clicks")}, store={"x": codecs.Raw()})
    built(recipe, raw, tmp_path / "out")
    with pytest.raises(tfprep.errors.LoaderError, match="directions"):
        tfprep.open(tmp_path / "out").numpy_loader("train", 4, at_load=[tfprep.load.RandomFlip()])
