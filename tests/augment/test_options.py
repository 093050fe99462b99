"""Options of ops and derived inputs: what is out of range is refused with the rule and the value, by the name of the option."""

import re
from dataclasses import MISSING, fields, is_dataclass
from math import inf, nan

import numpy as np
import pytest

from tfprep import augment, derive
from tfprep.errors import RecipeError

KINDS = [
    kind
    for package in (augment, derive)
    for kind in (getattr(package, name) for name in package.__all__)
    if is_dataclass(kind) and kind not in (augment.Transform, augment.Custom, augment.Resize)
]
NEEDED = {"height": 4, "width": 4, "classes": 3, "count": 1, "op": augment.Flip(), "ops": [augment.Flip()]}
ANY = {"Heatmaps.min_visibility"}
"""Options where every number means something."""
UNBOUNDED = re.compile(
    r".*Crop\.(height|width)|.*\.(sigma_px|width_px|min_px|step_px|margin_px|band_px)|"
    r"Canny\.(low|high)|.*\.(channels|sets|w0|n|n_neg3|classes)|"
    r"(Signed|)Distance\.truncate_px"
)
NUMBERS = [
    (kind, field.name)
    for kind in KINDS
    for field in fields(kind)
    if re.search("int|float|Range|Targets|Dtype|Literal", field.type) and f"{kind.__name__}.{field.name}" not in ANY
]


@pytest.mark.parametrize(("kind", "option"), NUMBERS, ids=lambda value: getattr(value, "__name__", value))
def test_numbers_out_of_range_are_refused_by_the_name_of_their_option(kind, option):
    sized = {"height", "width"} if kind is augment.RandomResizedCrop else set()  # or sizes by epoch
    needed = {
        field.name: NEEDED[field.name] for field in fields(kind) if field.default is MISSING or field.name in sized
    }
    bounded = not UNBOUNDED.fullmatch(f"{kind.__name__}.{option}")
    for wrong in (nan, -1e9, *([10**9] if bounded else [])):
        with pytest.raises(RecipeError, match=rf"{kind.__name__}(\.{option}| in uint8)"):
            kind(**{**needed, option: wrong})
    assert len(NUMBERS) > 90


WRONG = [
    (lambda: augment.Shear(60, 60), "multiply to less than 1"),
    (lambda: augment.Elastic(400, 10), r"Elastic.alpha_px is from 0 to 3 sigma_px² = 300"),
    (lambda: augment.Brightness(20), "Brightness.amount .* 0 <= from <= to <= 10"),
    (lambda: augment.RandAugment(m=31), "RandAugment.m is a whole number from 0 to 30, got 31"),
    (lambda: augment.RandAugment(m=np.int64(9)), r"from 0 to 30, got np.int64\(9\); write int\(...\) around it"),
    (lambda: augment.Posterize((2.5, 4)), "Posterize.bits is a range of whole numbers"),
    (lambda: augment.Flip(1.5), r"Flip.p is a probability from 0 to 1, got 1.5"),
    (lambda: augment.Flip(direction="both"), r"Flip.direction is 'horizontal' or 'vertical', got 'both'"),
    (lambda: augment.Crop(5, 0), r"Crop.width is a whole number of pixels, at least 1, got 0; for example 224"),
    (augment.Resize, "either height and width, or shorter, or longer"),
    (lambda: augment.Resize(5), "either height and width"),
    (lambda: augment.Resize(5, 5, shorter=3), "either height and width"),
    (lambda: augment.Resize(shorter=5, pad=True), "pad needs a size to pad to"),
    (lambda: augment.Resize(20, 30, enlarge=False), "enlarge=False is for shorter, longer or pad"),
    (lambda: augment.Resize(0, 5), r"Resize.height is a whole number of pixels, at least 1, got 0"),
    (lambda: augment.RandomResizedCrop(5, 5, scale=(0, 0)), r"RandomResizedCrop.scale ends above 0"),
    (lambda: augment.RandomResizedCrop(5, 5, eval_fraction=0), r"eval_fraction is a number above 0, at most 1, got 0"),
    (lambda: augment.OneOf([]), r"OneOf.ops is a list of ops"),
    *(
        (lambda weights=wrong: augment.OneOf([augment.Flip()], weights), r"OneOf.weights has one number")
        for wrong in ([1, 2], [0], ["1"], "1", 1.0, [inf], [nan], [-1])
    ),
    *(
        (lambda count=wrong: augment.SomeOf([augment.Flip()], count), r"SomeOf.count is from 0 to the number of ops, 1, got")
        for wrong in (2, (1,), 0.5, (0, 0.5), "1")
    ),
    (lambda: augment.JpegArtifacts((30.5, 90)), "JpegArtifacts.quality is a range of whole numbers"),
    (lambda: derive.OneObject(target=0), "OneObject.target is neither background nor void, got 0"),
    (lambda: derive.OneObject(target=5, void=5), "OneObject.target is neither background nor void, got 5"),
    (lambda: derive.Distance(to="outside"), "Distance.to is 'class', 'inside' or 'boundary', got 'outside'"),
    (lambda: derive.Distance(target=()), "at least one class"),
    (lambda: derive.Distance(normalize=True), "normalize divides by truncate_px"),
    (lambda: derive.Distance(dtype="uint8"), "uint8 needs truncate_px of at most 255"),
    (lambda: derive.Distance(dtype="uint8", truncate_px=300), "uint8 needs truncate_px of at most 255"),
    (lambda: derive.SignedDistance(dtype="uint8"), "SignedDistance in uint8 needs truncate_px"),
    (lambda: derive.Canny(low=200, high=100), "Canny.high is at least low, got 100; for example 400"),
    (lambda: derive.Boundaries(width_px=-1), "Boundaries.width_px is a distance, at least 0, got -1; for example 5"),
    (lambda: derive.InstanceBoxes(void=1.5), "InstanceBoxes.void is a class number from 0 to 65535, got 1.5; for example 1"),
    (lambda: derive.Clicks(truncate_px=300), "Clicks in uint8 needs truncate_px of at most 255, got 300"),
    (lambda: derive.Clicks(n_neg1=(3, 2)), "Clicks.n_neg1 is a range"),
    (lambda: derive.Clicks(strategies=(4,)), "Clicks.strategies is a tuple of 1, 2 and 3"),
    (lambda: derive.Clicks(target=1, void=1), "Clicks.void is not the target's class"),
]  # fmt: skip


@pytest.mark.parametrize(("make", "message"), WRONG)
def test_wrong_options_raise_with_the_rule_and_the_value(make, message):
    with pytest.raises(RecipeError, match=message):
        make()


@pytest.mark.parametrize("op", [derive.ClickMaps, derive.OneInstance])
def test_options_whose_order_changed_are_given_by_name(op):
    with pytest.raises(TypeError, match="positional"):  # 20 was truncate_px, and min_px
        op("clicks", 20)


def test_weights_may_be_an_array():
    assert augment.OneOf([augment.Flip(), augment.Rotate(5)], np.array([1.0, 2.0])).weights.tolist() == [1, 2]
