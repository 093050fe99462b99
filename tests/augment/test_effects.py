"""What geometry ops say of themselves, `effects`, against what they do to points of a frame."""

import numpy as np
import pytest

from tfprep import Recipe, augment, codecs, sources
from tfprep.augment.transform import effects_of
from tfprep.errors import RecipeError
from tfprep.fields import EFFECTS
from tfprep.recipe.checks import check_kinds

SIZE = (60, 80)
OPS = [
    augment.Resize(30, 50), augment.Resize(50, 50, pad=True), augment.CenterCrop(40, 90), augment.Crop(30, 30),
    augment.RandomResizedCrop(32, 32), augment.Flip(), augment.Flip(0.5, "vertical"), augment.Rotate(20), augment.Rotate90(),
    augment.Scale(), augment.Shear(15), augment.Translate(), augment.Translate(whole=False), augment.Perspective(),
    augment.Elastic(), augment.RandAugment(), augment.TrivialAugment(),
    augment.OneOf([augment.Flip(), augment.Crop(30, 30)]), augment.SomeOf([augment.Resize(20, 20), augment.Rotate(5)], 1),
    augment.Maybe(augment.Flip(1)),
]  # fmt: skip


def seen(transform):
    """The effects of one transform: by where a grid of points goes."""
    x, y = np.meshgrid(np.linspace(1, SIZE[1] - 1, 9), np.linspace(1, SIZE[0] - 1, 9))
    points = np.stack([x, y], -1)
    moved = transform.push(points)
    right, down = np.diff(moved, axis=1)[:-1] / np.diff(points, axis=1)[:-1, :, :1], np.diff(moved, axis=0)[:, :-1]
    down = down / np.diff(points, axis=0)[:, :-1, 1:]
    effects = set()
    if (right[..., 0] * down[..., 1] - right[..., 1] * down[..., 0] < 0).any():
        effects.add("flip")
    straight = max(np.abs(right[..., 1]).max(), np.abs(down[..., 0]).max()) < 1e-4
    uniform = max(np.ptp(right[..., 0]), np.ptp(down[..., 1])) < 1e-4
    if not (straight and uniform) or (right[0, 0, 0] < 0 and down[0, 0, 1] < 0):  # both: a half turn
        return effects | {"warp"}
    if not np.allclose(np.abs([right[0, 0, 0], down[0, 0, 1]]), 1, atol=1e-4):
        effects.add("resize")
    corners = transform.push(np.array([[0.0, 0], SIZE[::-1]]))
    low, high = corners.min(0), corners.max(0)
    if "resize" not in effects and not np.allclose(low, low.round(), atol=1e-4):
        effects.add("warp")  # between pixels
    if effects <= {"flip"} and not (np.allclose(low, 0) and np.allclose(high, SIZE[::-1]) and transform.size == SIZE):
        effects.add("crop")
    return effects


@pytest.mark.parametrize("op", OPS, ids=str)
def test_an_op_says_what_it_does(op):
    found = set()
    for number in range(60):
        found |= seen(op(SIZE, np.random.default_rng(number)))
    assert found <= effects_of(op), "it does more than it says"
    assert effects_of(op) - found <= {"crop"}, (
        "it says what it never does"
    )  # every rotation cuts: `seen` says "warp" only


def test_an_op_that_says_nothing_may_do_anything():
    assert effects_of(lambda size, generator: None) == effects_of(augment.Custom(print)) == EFFECTS
    assert effects_of(augment.OneOf([augment.Flip(), lambda size, generator: None])) == EFFECTS


def test_every_op_says_it():
    named = {type(op).__name__ for op in OPS}
    ops = {name for name in augment.__all__ if hasattr(getattr(augment, name), "effects")}
    assert ops <= named
    assert {"Flip", "Elastic", "RandAugment"} <= ops


class Mirror:
    """A user's op that mirrors."""

    def __init__(self, effects):
        self.effects = effects

    def __call__(self, size, generator):
        return augment.Flip(1).window(size, np.random.default_rng(0)).transform()


@pytest.mark.parametrize("effects", ["flip", ("flips",), {"crop", "mirror"}])
def test_effects_that_are_none_are_refused(effects):
    """The rows of points would be taken for those of an image that is not mirrored."""
    store = {"image": codecs.Png(), "points": codecs.Scalar()}
    for op in (Mirror(effects), augment.Maybe(Mirror(effects))):
        recipe = Recipe("r", sources.Folder(), store, geometry=[op])
        with pytest.raises(RecipeError, match="holds names of crop, flip, resize, warp; that of"):
            check_kinds(vars(recipe), {"image": "image", "points": "points"})
