"""Policies, automatic augmentation (compared with the papers' tables), chains, and properties of all ops."""

import numpy as np
import pytest

from tfprep import augment
from tfprep.augment import (
    Blur,
    Crop,
    Custom,
    Flip,
    Gamma,
    Hue,
    Maybe,
    OneOf,
    RandAugment,
    Resize,
    Rotate,
    Scale,
    SomeOf,
    TrivialAugment,
)
from tfprep.augment.chain import apply_geometry
from tfprep.errors import RecipeError
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


KINDS = {"image": "image", "mask": "mask"}


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

# --- every op -------------------------------------------------------------------------------------------------------

NOT_COLOUR = (
    "ColourOp Transform GeometryOp Custom Maybe OneOf SomeOf CenterCrop Crop Elastic Flip GridDistortion Resize"
)
NOT_COLOUR += " Perspective RandAugment RandomResizedCrop Rotate Rotate90 Scale Shear Translate TrivialAugment"
OPTIONS = {"ChannelShuffle": [1], "Cutout": [10], "Erasing": [1], "Grayscale": [1], "Invert": [1]}
COLOURS = [
    *[getattr(augment, name)(*OPTIONS.get(name, ())) for name in sorted({*augment.__all__} - {*NOT_COLOUR.split()})],
    OneOf([Blur(), Gamma()]),
    SomeOf([Blur(), Gamma(), Hue()], 2),
]


@pytest.mark.parametrize("op", COLOURS, ids=lambda op: type(op).__name__)
def test_equal_keys_give_equal_bytes_of_an_unchanged_image_at_any_memory_address(op):
    for image in (IMAGE, IMAGE[:1, :1], np.full((300, 7, 3), 255, np.uint8)):
        before = image.copy()
        expected = op(image, keyed(7, "key", 1, "colour/0"))
        assert (expected.shape, expected.dtype) == (image.shape, np.uint8)
        np.testing.assert_array_equal(image, before)
        for offset in range(1, 20, 3):
            elsewhere = np.empty(image.size + 64, np.uint8)[offset : offset + image.size].reshape(image.shape)
            elsewhere[...] = image
            np.testing.assert_array_equal(op(elsewhere, keyed(7, "key", 1, "colour/0")), expected)


WRONG = [
    (lambda: augment.Shear(85), r"Shear.x_degrees is a range"),
    (lambda: augment.Shear(60, 60), "multiply to less than 1"),
    (lambda: augment.Translate(2), r"Translate.x is a range"),
    (lambda: augment.Perspective(1), r"Perspective.distortion is from 0 to 0.6"),
    (lambda: augment.Elastic(90, 0.5), r"Elastic.sigma_px is at least 1"),
    (lambda: augment.Elastic(400, 10), r"Elastic.alpha_px is from 0 to 3 sigma_px² = 300"),
    (lambda: augment.GridDistortion(1), r"GridDistortion.cells is at least 2"),
    (lambda: augment.GridDistortion(5, 0.3), r"GridDistortion.amount is from 0 to below 0.25"),
    (lambda: augment.Brightness(-0.1), "Brightness.amount"),
    (lambda: augment.Brightness(20), "Brightness.amount .* 0 <= from <= to <= 10"),
    (lambda: augment.Contrast((0, 10.5)), "Contrast.amount"),
    (lambda: augment.Saturation(50), "Saturation.amount"),
    (lambda: augment.Contrast((2, 1)), "Contrast.amount"),
    (lambda: augment.Saturation((-1, 1)), "Saturation.amount"),
    (lambda: augment.Hue(0.6), "Hue.amount"),
    (lambda: augment.Sharpness((2, 1)), "Sharpness.amount is a range"),
    (lambda: augment.Blur((-1, 1)), "Blur.sigma_px is a range"),
    (lambda: augment.MotionBlur((0, 5)), "MotionBlur.length_px is a range"),
    (lambda: augment.Noise((5, 300)), "Noise.sigma is a range"),
    (lambda: augment.JpegArtefacts((0, 50)), "JpegArtefacts.quality is a range"),
    (lambda: augment.JpegArtefacts(subsampling="411"), "JpegArtefacts.subsampling is"),
    (lambda: augment.Cutout(0), "Cutout.size_px is a whole numbe"),
    (lambda: augment.Cutout(level=256), "Cutout.level is from 0 to 255"),
    (lambda: augment.Cutout(holes=-1), "Cutout.holes is a count"),
    (lambda: augment.Erasing(area=(0, 2)), "Erasing.area is a range"),
    (lambda: augment.Erasing(aspect=(0, 2)), "Erasing.aspect is a range"),
    (lambda: augment.Grayscale(3), "Grayscale.p is a probability"),
    (lambda: augment.ChannelShuffle(3), "ChannelShuffle.p is a probability"),
    (lambda: augment.Gamma((0, 1)), "Gamma.gamma is a range"),
    (lambda: augment.Posterize((0, 4)), "Posterize.bits is a range"),
    (lambda: augment.Posterize((2.5, 4)), "Posterize.bits are whole numbers"),
    (lambda: augment.Solarize((0, 300)), "Solarize.threshold is a range"),
    (lambda: augment.Invert(2), "Invert.p is a probability"),
    (lambda: augment.Equalize(-1), "Equalize.p is a probability"),
    (lambda: augment.AutoContrast(-1), "AutoContrast.p is a probability"),
    (lambda: augment.ToneCurve(80), "ToneCurve.shift is from 0 to 63"),
    (lambda: augment.Clahe((0, 1)), "Clahe.clip is a range"),
    (lambda: augment.Clahe(tiles=0), "Clahe.tiles is from 1 to 64"),
    (augment.Resize, "either height and width, or shorter, or longer"),
    (lambda: augment.Resize(5), "either height and width"),
    (lambda: augment.Resize(5, 5, shorter=3), "either height and width"),
    (lambda: augment.Resize(shorter=5, pad=True), "pad needs a size to pad to"),
    (lambda: augment.Resize(0, 5), r"Resize.height is a whole number of pixels, at least 1, got 0"),
    (lambda: augment.Resize(longer=2.5), r"Resize.longer is a whole number"),
    (lambda: augment.Crop(5, -1), r"Crop.width is a whole number"),
    (lambda: augment.CenterCrop(True, 1), r"CenterCrop.height"),
    (lambda: augment.RandomResizedCrop(5, 5, scale=(0.5, 1.5)), r"RandomResizedCrop.scale is a range"),
    (lambda: augment.RandomResizedCrop(5, 5, scale=(0, 0)), r"RandomResizedCrop.scale ends above 0"),
    (lambda: augment.RandomResizedCrop(5, 5, ratio=(2, 1)), r"RandomResizedCrop.ratio is a range"),
    (lambda: augment.RandomResizedCrop(5, 5, eval_fraction=0), r"RandomResizedCrop.eval_fraction"),
    (lambda: augment.Flip(1.5), r"Flip.p is a probability from 0 to 1, got 1.5"),
    (lambda: augment.Flip(direction="both"), r"Flip.direction is 'horizontal' or 'vertical', got 'both'"),
    (lambda: augment.Rotate(-5), r"Rotate.degrees is a range"),
    (lambda: augment.Rotate((10, float("nan"))), r"Rotate.degrees is a range"),
    (lambda: augment.Scale((0, 1)), r"Scale.factor is a range"),
    (lambda: augment.Maybe(augment.Flip(), 2), r"Maybe.p is a probability"),
    (lambda: augment.OneOf([]), r"OneOf.ops is a list of ops"),
    (lambda: augment.OneOf([augment.Flip()], [1, 2]), r"OneOf.weights has one number"),
    (lambda: augment.SomeOf([augment.Flip()], 2), r"SomeOf.count is from 0 to the number of ops, 1, got 2"),
    (lambda: augment.RandAugment(2, 31), r"RandAugment.m is a whole number from 0 to 30, got 31"),
    (lambda: augment.RandAugment(-1), r"RandAugment.n is a count"),
    (lambda: augment.AugMix(0), r"AugMix.severity is from 1 to 10"),
    (lambda: augment.AugMix(width=0), r"AugMix.width is at least 1"),
    (lambda: augment.AugMix(depth=0), r"AugMix.depth is 'random'"),
    (lambda: augment.AugMix(alpha=0), r"AugMix.alpha is above 0"),
]


@pytest.mark.parametrize(("make", "message"), WRONG)
def test_wrong_options_raise_with_the_rule_and_the_value(make, message):
    with pytest.raises(RecipeError, match=message):
        make()
