"""What derived inputs say of themselves, `follows`, against deriving them from the moved sample."""

import cv2
import numpy as np
import pytest

from tfprep import derive
from tfprep.derive.inputs import follows_of, reads_of
from tfprep.errors import RecipeError
from tfprep.fields import EFFECTS

RNG = np.random.default_rng(0)
MASK = np.kron(RNG.integers(0, 4, (6, 8)), np.ones((8, 8))).astype(np.uint8)
IMAGE = cv2.resize(RNG.integers(0, 256, (12, 16, 3), np.uint8), (64, 48), interpolation=cv2.INTER_CUBIC)
CLICKS = np.array([[10.5, 20.5, 1, 0], [40.5, 30.5, 0, 0]], np.float32)
SAMPLE = {"image": IMAGE, "mask": MASK, "classes": MASK, "points": CLICKS[:, :3], "clicks": CLICKS}
EXACT = [
    derive.Distance(target=2), derive.Distance(target=(1, 2), to="boundary"), derive.SignedDistance(target=1),
    derive.UNetWeights(), derive.ClickMaps(), derive.Boundaries(width_px=2), derive.OneHot(4),
    derive.Heatmaps(channels=1), derive.Heatmaps(channels=3), derive.Sobel(), derive.Sobel(of="both"),
    derive.InstanceCenters(), derive.InstanceOffsets(),
]  # fmt: skip
"""Those without draws whose values are arrays of pixels or numbers."""
DRAWN = {
    "ClickPoints",
    "Clicks",
    "OneObject",
    "OneInstance",
    "InstanceBoxes",
    "InstanceClasses",
    "Canny",
}


def moved(sample, move, to):
    points = {name: np.column_stack([to(sample[name][:, :2]), sample[name][:, 2:]]) for name in ("points", "clicks")}
    return {**{name: move(value) for name, value in sample.items() if name not in points}, **points}


def mirrored(sample):
    return moved(sample, lambda value: value[:, ::-1].copy(), lambda xy: np.array([64, 0]) + xy * [-1, 1])


def doubled(sample):
    return moved(sample, lambda value: value.repeat(2, 0).repeat(2, 1), lambda xy: xy * 2)


@pytest.mark.parametrize("op", EXACT, ids=str)
def test_a_mirror_image_of_the_map_is_the_map_of_the_mirror_image_or_it_does_not_follow(op):
    draws = np.random.default_rng(0)
    whole, of_mirror = op(SAMPLE, draws), op(mirrored(SAMPLE), draws)
    expected = whole if op.kind == "scalar" else whole[:, ::-1]
    heat_of_three = getattr(op, "channels", None) == 3  # its channels are exchanged, which the values do not show
    same = np.allclose(of_mirror, expected, atol=1e-5) and not heat_of_three
    assert same == ("flip" in follows_of(op))


@pytest.mark.parametrize("op", EXACT, ids=str)
def test_a_map_that_counts_in_pixels_does_not_follow_a_resize(op):
    whole, of_double = op(SAMPLE, np.random.default_rng(0)), op(doubled(SAMPLE), np.random.default_rng(0))
    if isinstance(op, derive.Heatmaps | derive.InstanceCenters):  # blobs of another width: they follow as a picture
        return
    expected = whole if op.kind == "scalar" else whole.repeat(2, 0).repeat(2, 1)
    if not np.allclose(of_double, expected, atol=1e-5):
        assert "resize" not in follows_of(op)


def test_every_derived_input_says_what_it_is_and_what_it_reads():
    tested = {type(op).__name__ for op in EXACT} | DRAWN | {"Own", "Derived"}
    assert tested == set(derive.__all__)
    for name in tested - {"Own", "Derived"}:
        kind = getattr(derive, name)
        op = kind(4) if name == "OneHot" else kind()
        assert follows_of(op) <= EFFECTS
        assert isinstance(op.follows, frozenset)
        assert reads_of(op)
        assert all(isinstance(field, str) for field in reads_of(op))
    assert not follows_of(derive.ClickPoints()), "coordinates of a scalar do not move"
    assert follows_of(derive.OneObject()) == follows_of(derive.InstanceBoxes()) == EFFECTS


def test_a_function_of_ones_own():
    own = derive.Own(lambda sample, draws: sample["mask"] * 2, "mask", {"flip", "crop"}, reads=["mask"])
    assert np.array_equal(own(SAMPLE, None), MASK * 2)
    assert (own.kind, follows_of(own), reads_of(own)) == ("mask", {"crop", "flip"}, {"mask"})
    assert not follows_of(derive.Own(print))
    assert not follows_of(print)
    assert reads_of(derive.Own(print)) is reads_of(print) is None
    for wrong in (
        {"follows": {"rotate"}},
        {"follows": "crop"},
        {"kind": "picture"},
        {"reads": "mask"},
        {"function": 3},
    ):
        with pytest.raises(RecipeError, match=r"Own"):
            derive.Own(**{"function": print, **wrong})
