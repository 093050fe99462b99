"""Policies, automatic augmentation (compared with the papers' tables), chains, and properties of all ops."""

import numpy as np
import pytest

from tests.addresses import check_equal_bytes
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
    Resize,
    SomeOf,
)
from tfprep.augment.chain import apply_geometry
from tfprep.errors import SampleError
from tfprep.recipe.sample import Stages
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


def test_the_draws_of_an_op_do_not_depend_on_other_ops():
    """The same choice with another first op: the draws of the second op do not change."""

    def thirsty(image, generator):
        generator.random(1000)
        return image

    for seed in range(10):
        first = SomeOf([mark(1), mark(2)], 2)(IMAGE, rng(seed))
        second = SomeOf([thirsty, mark(2)], 2)(IMAGE, rng(seed))
        np.testing.assert_array_equal(first[0, 1:3, 0], second[0, 1:3, 0])


def test_policies_without_draws_have_one_size():
    assert Maybe(Crop(8, 9), 0.1)(SIZE, None).size == OneOf([Crop(8, 9), Resize(8, 9)])(SIZE, None).size == (8, 9)


KINDS = {"image": "image", "mask": "mask"}


NOT_COLOR = {"ColorOp", "CutMix", "Custom", "GeometryOp", "MixUp", "Transform"}
KINDS_OF_COLOR = [
    kind
    for kind in (getattr(augment, name) for name in sorted({*augment.__all__} - NOT_COLOR))
    if not hasattr(kind, "effects")
]
COLORS = [kind(p=1) if hasattr(kind, "p") else kind() for kind in KINDS_OF_COLOR]
COLORS += [augment.ColorJitter(hue=0.2), OneOf([Blur(), Gamma()]), SomeOf([Blur(), Gamma(), Hue()], 2)]


def made(image, **stages):
    return Stages({"image": "image"}, **stages).make({"image": image}, lambda step: rng())["image"]


@pytest.mark.parametrize("op", COLORS, ids=lambda op: type(op).__name__)
def test_gray_images_keep_one_channel_of_what_rgb_becomes(op):
    gray = IMAGE[:, :, :1]
    out = made(gray, color=[op])
    assert out.shape == gray.shape
    if type(op).__name__ != "Erasing":
        np.testing.assert_array_equal(out, made(np.repeat(gray, 3, axis=2), color=[op])[:, :, :1])


@pytest.mark.parametrize("table", [np.arange(256) * 1.5, np.arange(256), np.zeros((3, 256), np.uint8)])
def test_a_table_of_another_type_is_an_error(table):
    """Its numbers would be cut off."""
    tone = type("Tone", (), {"curve": lambda self, generator: table})()
    for color in ([tone], [Gamma(), tone]):
        with pytest.raises(SampleError, match=r"Tone.curve returns uint8 \[256\] or \[256, 3\]"):
            made(IMAGE, color=color)


def test_policies_of_geometry_turn_images_of_any_type():
    deep = IMAGE.astype(np.float32) / 255
    for op in (Maybe(Flip(p=1), p=1), OneOf([Flip(p=1)]), SomeOf([Maybe(Flip(p=1), p=1)], count=1)):
        np.testing.assert_array_equal(made(deep, geometry=[op]), deep[:, ::-1])
    filled = made(deep, color=[Maybe(augment.Erasing(p=1, level=7), p=1)])
    assert set(np.unique(filled[filled != deep])) == {7}
    others = deep, IMAGE.astype(np.uint16), np.dstack([IMAGE, IMAGE[:, :, 0]])
    for other in others:
        for stages in ({"geometry": [Maybe(augment.RandAugment())]}, {"color": [Maybe(Gamma())]}):
            with pytest.raises(SampleError, match=f"Maybe is defined for uint8 .* this image is {other.dtype}"):
                made(other, **stages)
    gray = made(IMAGE[:, :, :1], geometry=[augment.RandAugment(n=20)])
    assert gray.shape == (*SIZE, 1)


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
    masked = {**sample, "mask": np.ma.masked_equal(IMAGE[:, :, 0], IMAGE[0, 0, 0])}
    with pytest.raises(SampleError, match=r"masked values.*'mask'"):
        apply_geometry(sample, KINDS, [(Custom(lambda *_: masked), rng())])


# --- every op -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("op", COLORS, ids=lambda op: type(op).__name__)
def test_equal_keys_give_equal_bytes_of_an_unchanged_image_at_any_memory_address(op):
    for image in (IMAGE, IMAGE[:1, :1], np.full((300, 7, 3), 255, np.uint8)):
        made = op(image, keyed(7, "key", 1, "color/0"))
        assert (made.shape, made.dtype) == (image.shape, np.uint8)
        check_equal_bytes(
            lambda arrays: {"image": op(arrays["image"], keyed(7, "key", 1, "color/0"))}, {"image": image}
        )
