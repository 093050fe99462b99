"""Policies, automatic augmentation (compared with the papers' tables), chains, and properties of all ops."""

from __future__ import annotations

from collections import Counter
from fractions import Fraction
from math import ceil

import numpy as np
import pytest
from PIL import Image, ImageOps

from tfprep import augment
from tfprep.augment import (
    AugMix,
    Blur,
    Brightness,
    Contrast,
    Crop,
    Custom,
    Flip,
    Gamma,
    Hue,
    Invert,
    Maybe,
    OneOf,
    Posterize,
    RandAugment,
    Resize,
    Rotate,
    Scale,
    Solarize,
    SomeOf,
    ToneCurve,
    Translate,
    TrivialAugment,
)
from tfprep.augment.automatic import NARROW, OPS, TONAL, WIDE
from tfprep.augment.chain import apply_colours, apply_geometry
from tfprep.augment.transform import identity
from tfprep.augment.warp import warp_sample
from tfprep.errors import RecipeError, SampleError
from tfprep.seeding import generator as keyed

SIZE = (40, 50)
IMAGE = np.random.default_rng(0).integers(0, 256, (*SIZE, 3), dtype=np.uint8)


def rng(seed=0):
    return np.random.default_rng(seed)


def mark(number):
    """An op that appends its number."""

    def op(image, generator):
        out = image.copy()
        out[0, 0, 0] = number
        out[0, 1:3, 0] = generator.integers(0, 256, 2)
        return out

    return op


def number(image):
    return int(image[0, 0, 0])


# --- OneOf, SomeOf, Maybe -------------------------------------------------------------------------------------------


def test_one_of_draws_equally_often_or_by_weight():
    equal = Counter(number(OneOf([mark(1), mark(2)])(IMAGE, rng(seed))) for seed in range(600))
    assert 240 < equal[1] < 360
    weighted = Counter(number(OneOf([mark(1), mark(2)], [3, 1])(IMAGE, rng(seed))) for seed in range(600))
    assert 400 < weighted[1] < 500


def test_maybe_follows_its_probability():
    happened = sum(number(Maybe(mark(300 - 256), 0.2)(IMAGE * 0, rng(seed))) == 44 for seed in range(600))
    assert 85 < happened < 155  # Expected 120, standard deviation 10.


def test_some_of_takes_distinct_ops_in_order():
    seen = Counter()

    def note(n):
        def op(image, generator):
            image = image.copy()
            image[0, number(image) + 1, 1] = n
            image[0, 0, 0] += 1
            return image

        return op

    for seed in range(300):
        out = SomeOf([note(n) for n in (1, 2, 3, 4)], 2)(IMAGE * 0, rng(seed))
        assert number(out) == 2
        seen[tuple(out[0, 1:3, 1].tolist())] += 1
    assert set(seen) == {(a, b) for a in range(1, 5) for b in range(a + 1, 5)}
    assert min(seen.values()) > 25  # Expected 50 each.
    counts = {number(SomeOf([note(n) for n in (1, 2, 3)], (0, 3))(IMAGE * 0, rng(seed))) for seed in range(60)}
    assert counts == {0, 1, 2, 3}
    shuffled = {
        tuple(SomeOf([note(1), note(2)], 2, shuffle=True)(IMAGE * 0, rng(s))[0, 1:3, 1].tolist()) for s in range(30)
    }
    assert shuffled == {(1, 2), (2, 1)}


@pytest.mark.parametrize("policy", [OneOf, lambda ops: SomeOf(ops, 1), lambda ops: Maybe(ops[0], 1)])
def test_policies_can_be_mixed_with_geometry_ops(policy):
    op = policy([Flip(1), Rotate((30, 30)), Translate(0.5, 0.5)])
    drawn = op(SIZE, rng(3))
    alone = [Flip(1), Rotate((30, 30)), Translate(0.5, 0.5)]
    assert drawn.size == SIZE
    assert (drawn.matrix != np.eye(3)).any()
    assert any(np.allclose(drawn.matrix[:2, :2], one(SIZE, rng(9)).matrix[:2, :2]) for one in alone)
    np.testing.assert_array_equal(op(SIZE, None).matrix, np.eye(3))


def test_policies_nest():
    op = OneOf([SomeOf([Rotate((5, 5)), Scale((2, 2))], 2), Maybe(Flip(1), 1)])
    kinds = {tuple(np.sign(op(SIZE, rng(seed)).matrix[0, :1])) for seed in range(20)}
    assert kinds == {(1.0,), (-1.0,)}


def test_unaugmented_policies_keep_the_size_that_their_ops_give():
    assert Maybe(Crop(8, 9), 0.1)(SIZE, None).size == (8, 9)
    assert OneOf([Crop(8, 9), Resize(8, 9)])(SIZE, None).size == (8, 9)


def test_the_draws_of_an_op_do_not_depend_on_other_ops():
    """The same choice with another first op: the draws of the second op do not change."""

    def thirsty(image, generator):
        generator.random(1000)
        return image

    for seed in range(10):
        first = SomeOf([mark(1), mark(2)], 2)(IMAGE, rng(seed))
        second = SomeOf([thirsty, mark(2)], 2)(IMAGE, rng(seed))
        np.testing.assert_array_equal(first[0, 1:3, 0], second[0, 1:3, 0])


# --- RandAugment, TrivialAugment: the papers' tables ----------------------------------------------------------------

# AutoAugment (Cubuk et al. 2019), table 6, also used by RandAugment: the greatest magnitude of each op.
TABLE_6 = {
    "ShearX": 0.3,
    "ShearY": 0.3,
    "TranslateX": 150 / 331,
    "TranslateY": 150 / 331,
    "Rotate": 30,
    "Solarize": 0,
    "Posterize": 4,
    "Contrast": 1.9,
    "Color": 1.9,
    "Brightness": 1.9,
    "Sharpness": 1.9,
}
# TrivialAugment (Müller and Hutter 2021), the wide space; lengths in pixels.
WIDE_TABLE = {
    **TABLE_6,
    "ShearX": 0.99,
    "ShearY": 0.99,
    "TranslateX": 32,
    "TranslateY": 32,
    "Rotate": 135,
    "Posterize": 2,
}
WIDE_TABLE |= dict.fromkeys(("Contrast", "Color", "Brightness", "Sharpness"), 1.99)


def strength(magnitudes, name, magnitude, sign=1, size=(331, 331)):
    """The strength of an op, measured from its effect."""
    if name in ("Identity", "AutoContrast", "Equalize"):
        return None
    if name not in TONAL:
        matrix = magnitudes.geometry(name, magnitude, sign, size)(size, rng()).matrix
        if name == "Rotate":
            return np.degrees(np.arctan2(matrix[0, 1], matrix[0, 0]))
        return {"ShearX": matrix[0, 1], "ShearY": matrix[1, 0], "TranslateX": matrix[0, 2], "TranslateY": matrix[1, 2]}[
            name
        ]
    op = magnitudes.colour(name, magnitude, sign)
    return {"Posterize": lambda: op.bits[0], "Solarize": lambda: op.threshold[0]}.get(name, lambda: op.amount[0])()


@pytest.mark.parametrize("name", TABLE_6)
def test_magnitudes_are_those_of_the_papers(name):
    for magnitudes, table, unit in ((NARROW, TABLE_6, 331), (WIDE, WIDE_TABLE, 1)):
        scale = unit if name.startswith("Translate") else 1
        assert strength(magnitudes, name, 30) == pytest.approx(table[name] * scale, abs=0.51 if scale == 331 else 1e-6)
    signed = name not in ("Solarize", "Posterize")
    if signed:
        nothing = 1 if name in TONAL else 0
        assert strength(NARROW, name, 0) == pytest.approx(nothing)
        assert strength(NARROW, name, 30, -1) - nothing == pytest.approx(nothing - strength(NARROW, name, 30))
    else:
        assert strength(NARROW, name, 0) == {"Solarize": 255, "Posterize": 8}[name]


def test_solarize_has_the_papers_threshold_at_every_magnitude():
    """Magnitude m of 30 inverts the levels from 255 (30 - m) / 30 on, in exact fractions, by Pillow's `ImageOps.solarize`."""
    levels = np.repeat(np.arange(256, dtype=np.uint8)[None, :, None], 3, axis=2)
    for magnitude in range(31):
        threshold = Fraction(255 * (30 - magnitude), 30)
        expected = ImageOps.solarize(Image.fromarray(levels), ceil(threshold))
        for magnitudes in (NARROW, WIDE):
            made = magnitudes.colour("Solarize", magnitude, 1)(levels, rng())
            np.testing.assert_array_equal(made, np.asarray(expected), err_msg=str(magnitude))


# torchvision 0.2x, RandAugment._augmentation_space: 8 - (arange(31) / (30 / 4)).round()
def test_posterize_bits_by_magnitude():
    bits = [strength(NARROW, "Posterize", magnitude) for magnitude in range(31)]
    assert bits == [8 - round(magnitude / 7.5) for magnitude in range(31)]


def test_rand_augment_draws_its_14_ops_equally_often():
    counts = Counter(one.name for seed in range(3500) for one in RandAugment(2, 9).draw(rng(seed)))
    assert set(counts) == set(OPS)
    assert len(OPS) == 14
    assert min(counts.values()) > 420  # Expected 500 each, standard deviation 22.
    assert max(counts.values()) < 580


def test_trivial_augment_draws_one_op_and_its_magnitude():
    drawn = [TrivialAugment().draw(rng(seed)) for seed in range(2000)]
    assert {len(one) for one in drawn} == {1}
    assert {one[0].name for one in drawn} == set(OPS)
    assert set(Counter(one[0].magnitude for one in drawn)) == set(range(31))
    assert {one[0].sign for one in drawn} == {1, -1}


@pytest.mark.parametrize("policy", [RandAugment(3, 20), TrivialAugment()])
def test_geometry_and_colour_of_a_policy_use_one_draw(policy):
    for seed in range(50):
        drawn = policy.draw(rng(seed))
        transform, colours = policy(SIZE, rng(seed)), policy.colour_ops(rng(seed))
        tonal = [one for one in drawn if one.name in TONAL]
        assert len(colours) == len(tonal)
        if not any(one.name not in (*TONAL, "Identity") for one in drawn):
            np.testing.assert_array_equal(transform.matrix, np.eye(3))
        for op in colours:
            assert op(IMAGE, rng()).shape == IMAGE.shape
    np.testing.assert_array_equal(policy(SIZE, None).matrix, np.eye(3))


@pytest.mark.parametrize("policy", [RandAugment(3, 20), TrivialAugment()])
def test_a_nested_policy_keeps_geometry_and_colour(policy):
    """The geometry and the colours are those of the inner policy with the draws that it received."""

    class Spy:
        def __call__(self, size, generator):
            return seen.append(generator.bit_generator.state["state"]["key"].tolist()) or policy(size, generator)

        def colour_ops(self, generator):
            seen.append(generator.bit_generator.state["state"]["key"].tolist())
            return policy.colour_ops(generator)

    colours = 0
    for outer in (Maybe(Spy(), 0.6), OneOf([Flip(), Spy()]), SomeOf([Spy(), Flip(), Spy()], 2, shuffle=True)):
        for nested in (outer, Maybe(outer, 0.9), OneOf([outer])):
            for seed in range(20):
                seen: list[object] = []
                nested(SIZE, rng(seed))
                geometry, seen = seen, []
                drawn = nested.colour_ops(rng(seed))
                assert seen == geometry  # The same inner policies in the same order with the same draws.
                assert bool(seen) or not drawn
                colours += len(drawn)
    assert colours > 50
    assert Maybe(Flip()).colour_ops(rng()) == ()


# --- AugMix ---------------------------------------------------------------------------------------------------------


def test_augmix_gives_an_image_and_another_each_time():
    outs = [AugMix()(IMAGE, rng(seed)) for seed in range(10)]
    assert all((out.shape, out.dtype) == (IMAGE.shape, np.uint8) for out in outs)
    assert len({out.tobytes() for out in outs}) == 10


def test_augmix_follows_the_paper():
    """With chains that do nothing the mixture equals the image for all weights."""
    for seed in range(20):
        op = AugMix(width=4, depth=2)
        object.__setattr__(op, "_chain", lambda image, generator: image)
        np.testing.assert_array_equal(op(IMAGE, rng(seed)), IMAGE)


def test_augmix_grows_with_its_severity():
    def change(severity):
        return np.mean([np.abs(AugMix(severity)(IMAGE, rng(s)).astype(int) - IMAGE).mean() for s in range(30)])

    assert change(1) < change(10)


# --- chains ---------------------------------------------------------------------------------------------------------


def test_runs_of_tone_curves_collapse_to_the_same_bytes():
    ops = [
        Brightness(0.3),
        Gamma((0.5, 2)),
        ToneCurve(),
        Contrast(0.3),
        Posterize((3, 6)),
        Invert(),
        Blur(),
        Solarize(),
        Hue(),
    ]
    for seed in range(10):
        step_by_step = IMAGE
        for place, op in enumerate(ops):
            step_by_step = op(step_by_step, rng(seed + place))
        steps = [(op, rng(seed + place)) for place, op in enumerate(ops)]
        np.testing.assert_array_equal(apply_colours(IMAGE, steps), step_by_step)
    assert apply_colours(IMAGE, []) is IMAGE


KINDS = {"image": "image", "mask": "mask"}


def test_geometry_is_one_resampling():
    sample = {"image": IMAGE, "mask": IMAGE[:, :, 0]}
    ops = [Rotate(20), Scale((0.5, 0.9)), Crop(30, 30)]
    out = apply_geometry(sample, KINDS, [(op, rng(place)) for place, op in enumerate(ops)], fill={"mask": 255})
    transform = identity(SIZE)
    for place, op in enumerate(ops):
        transform = transform.then(op(transform.size, rng(place)))
    expected = warp_sample(sample, KINDS, transform, fill={"mask": 255})
    for name in KINDS:
        np.testing.assert_array_equal(out[name], expected[name])


def test_a_custom_function_stands_between_geometry_ops():
    def halve(sample, generator):
        return {**sample, "image": sample["image"][::2, ::2], "mask": sample["mask"][::2, ::2]}

    sample = {"image": IMAGE, "mask": IMAGE[:, :, 0]}
    steps = [(Flip(1), rng()), (Custom(halve), rng()), (Crop(10, 10), rng(1))]
    out = apply_geometry(sample, KINDS, steps)
    top, left = (int(-shift) for shift in Crop(10, 10)((20, 25), rng(1)).matrix[1::-1, 2])
    np.testing.assert_array_equal(out["image"], IMAGE[:, ::-1][::2, ::2][top : top + 10, left : left + 10])
    unchanged = apply_geometry(sample, KINDS, [(Custom(halve), None)])
    assert unchanged["image"] is IMAGE
    always = apply_geometry(sample, KINDS, [(Custom(halve, always=True), None)])
    assert always["image"].shape == (20, 25, 3)


def test_a_custom_function_that_returns_no_sample():
    with pytest.raises(SampleError, match="a Custom function returns a mapping, this one returned ndarray"):
        apply_geometry({"image": IMAGE}, KINDS, [(Custom(lambda sample, generator: IMAGE), rng())])


def test_an_albumentations_pipeline_is_a_custom_function(monkeypatch):
    monkeypatch.setenv("NO_ALBUMENTATIONS_UPDATE", "1")
    albumentations = pytest.importorskip("albumentations")
    pipeline = albumentations.Compose([albumentations.HorizontalFlip(p=1)], seed=0)

    def run(sample, generator):
        pipeline.set_random_seed(int(generator.integers(1 << 31)))
        return {**sample, **pipeline(image=sample["image"], mask=sample["mask"])}

    out = apply_geometry({"image": IMAGE, "mask": IMAGE[:, :, 0]}, KINDS, [(Custom(run), rng())])
    np.testing.assert_array_equal(out["image"], IMAGE[:, ::-1])
    np.testing.assert_array_equal(out["mask"], IMAGE[:, ::-1, 0])


# --- every op -------------------------------------------------------------------------------------------------------

COLOURS = [
    augment.AugMix(),
    augment.AutoContrast(),
    augment.Blur(),
    augment.Brightness(),
    augment.ChannelShuffle(1),
    augment.Clahe(),
    augment.Contrast(),
    augment.Cutout(10),
    augment.Equalize(),
    augment.Erasing(1),
    augment.Gamma(),
    augment.Grayscale(1),
    augment.Hue(),
    augment.Invert(1),
    augment.JpegArtefacts(),
    augment.MotionBlur(),
    augment.Noise(),
    augment.Posterize(),
    augment.Saturation(),
    augment.Sharpness(),
    augment.Solarize(),
    augment.ToneCurve(),
    OneOf([Blur(), Gamma()]),
    SomeOf([Blur(), Gamma(), Hue()], 2),
]


@pytest.mark.parametrize("op", COLOURS, ids=lambda op: type(op).__name__)
def test_colour_ops_keep_shape_and_dtype_and_do_not_change_the_image(op):
    for image in (IMAGE, IMAGE[:1, :1], np.full((300, 7, 3), 255, np.uint8)):
        before = image.copy()
        out = op(image, keyed(7, "key", 1, "colour/0"))
        assert (out.shape, out.dtype) == (image.shape, np.uint8)
        np.testing.assert_array_equal(image, before)


@pytest.mark.parametrize("op", COLOURS, ids=lambda op: type(op).__name__)
def test_equal_keys_give_equal_bytes_at_any_memory_address(op):
    expected = op(IMAGE, keyed(7, "key", 1, "colour/0"))
    for offset in range(1, 20, 3):
        buffer = np.empty(IMAGE.size + 64, np.uint8)
        elsewhere = buffer[offset : offset + IMAGE.size].reshape(IMAGE.shape)
        elsewhere[...] = IMAGE
        np.testing.assert_array_equal(op(elsewhere, keyed(7, "key", 1, "colour/0")), expected)


def test_every_public_colour_op_is_in_the_table():
    with_policies = {type(op).__name__ for op in COLOURS} | {"Maybe", "ColourOp", "Transform", "GeometryOp", "Custom"}
    geometry = {name for name in augment.__all__ if name not in with_policies}
    transforms = {
        "CenterCrop",
        "Crop",
        "Elastic",
        "Flip",
        "GridDistortion",
        "Perspective",
        "RandAugment",
        "RandomResizedCrop",
    }
    assert geometry == transforms | {"Resize", "Rotate", "Rotate90", "Scale", "Shear", "Translate", "TrivialAugment"}


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Maybe(Flip(), 2), r"Maybe.p is a probability"),
        (lambda: OneOf([]), r"OneOf.ops is a list of ops"),
        (lambda: OneOf([Flip()], [1, 2]), r"OneOf.weights has one number"),
        (lambda: SomeOf([Flip()], 2), r"SomeOf.count is from 0 to the number of ops, 1, got 2"),
        (lambda: RandAugment(2, 31), r"RandAugment.m is a whole number from 0 to 30, got 31"),
        (lambda: RandAugment(-1), r"RandAugment.n is a count"),
        (lambda: AugMix(0), r"AugMix.severity is from 1 to 10"),
        (lambda: AugMix(width=0), r"AugMix.width is at least 1"),
        (lambda: AugMix(depth=0), r"AugMix.depth is 'random'"),
        (lambda: AugMix(alpha=0), r"AugMix.alpha is above 0"),
    ],
)
def test_wrong_options_raise(make, message):
    with pytest.raises(RecipeError, match=message):
        make()
