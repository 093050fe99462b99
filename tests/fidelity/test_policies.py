"""Policies: which ops of the papers' tables were applied is read off the result, by Pillow and by where points went."""

from collections import Counter
from itertools import combinations, product

import numpy as np
import pytest
from PIL import Image, ImageEnhance, ImageOps
from scipy import ndimage, stats

from tests.fidelity.public import FALSE_ALARM, check_counts, check_share, check_uniform, colored, variants
from tfprep.augment import (
    Brightness,
    Flip,
    Invert,
    Maybe,
    OneOf,
    RandAugment,
    Rotate,
    SomeOf,
    Translate,
    TrivialAugment,
)

SIZE = (40, 56)
_rng = np.random.default_rng(0)
IMAGE = np.clip(
    125 + ndimage.gaussian_filter(_rng.normal(size=(*SIZE, 3)), (4, 4, 0)) * 500 + _rng.normal(size=(*SIZE, 3)) * 8,
    12,
    235,
).astype(np.uint8)
PIL = Image.fromarray(IMAGE)
DOTS = np.array([[28, 20], [38, 20], [28, 30]], np.float32)
OPS = ["Identity", "ShearX", "ShearY", "TranslateX", "TranslateY", "Rotate", "Brightness", "Color", "Contrast"]
OPS += ["Sharpness", "Posterize", "Solarize", "AutoContrast", "Equalize"]
FACTORS = {
    "Brightness": ImageEnhance.Brightness, "Color": ImageEnhance.Color, "Contrast": ImageEnhance.Contrast,
    "Sharpness": ImageEnhance.Sharpness,
}  # fmt: skip
NARROW = {"shear": 0.3, "x": 150 / 331 * 56, "y": 150 / 331 * 40, "degrees": 30, "factor": 0.9, "bits": 4}
WIDE = {"shear": 0.99, "x": 32, "y": 32, "degrees": 135, "factor": 0.99, "bits": 2}
"""The greatest magnitudes: AutoAugment's table 6, which RandAugment uses, and TrivialAugment's wide space."""


def geometric(most, name, share):
    """Where the dots go: shears and turns about the center, shifts by whole pixels."""
    x, y = DOTS.astype(float).T - [[28], [20]]
    if name == "ShearX":
        x = x + most["shear"] * share * y
    if name == "ShearY":
        y = y + most["shear"] * share * x
    if name == "TranslateX":
        x = x + round(min(most["x"], 56) * share)
    if name == "TranslateY":
        y = y + round(min(most["y"], 40) * share)
    if name == "Rotate":
        c, s = np.cos(np.radians(most["degrees"] * share)), np.sin(np.radians(most["degrees"] * share))
        x, y = c * x + s * y, -s * x + c * y
    return np.stack([x + 28, y + 20], 1)


def tonal(most, name, share, pil=PIL):
    """The image as Pillow makes it."""
    if name in FACTORS:
        return FACTORS[name](pil).enhance(1 + most["factor"] * share)
    if name == "Posterize":
        return ImageOps.posterize(pil, 8 - round((8 - most["bits"]) * abs(share)))
    if name == "Solarize":
        # torchvision: linspace(255, 0, 31)[magnitude]; Pillow inverts levels from the threshold on
        return ImageOps.solarize(pil, 255 - 255 * round(abs(share) * 30) / 30)
    return {"AutoContrast": ImageOps.autocontrast, "Equalize": ImageOps.equalize}.get(name, lambda image: image)(pil)


SIGNED = [*OPS[1:6], *FACTORS]
UNSIGNED = ["Posterize", "Solarize"]


def table(most, magnitudes):
    """Every possible result of one op: its (name, magnitude, sign), its points, and the bytes of its image (None: any)."""
    keys, points, images = [], [], []
    for name in OPS:
        plain = name not in (*SIGNED, *UNSIGNED)
        for magnitude in (0,) if plain else magnitudes:
            for sign in (1, -1) if name in SIGNED else (1,):
                share, moves = sign * magnitude / 30, name in OPS[1:6]
                keys.append((name, magnitude, sign))
                points.append(geometric(most, name, share) if moves else DOTS)
                images.append(None if moves and share else np.asarray(tonal(most, name, share)).tobytes())
    return keys, np.array(points), images


def recognized(out, results):
    """The ops that explain a result."""
    keys, points, images = results
    near = np.abs(out["points"] - points).max((1, 2)) < 2e-3
    made = out["image"].tobytes()
    return [keys[place] for place in np.flatnonzero(near) if images[place] in (None, made)]


def drawn_by(op, count):
    return variants({"image": IMAGE, "points": DOTS}, {"image": "image", "points": "points"}, count, geometry=[op])


@pytest.mark.covers("RandAugment")
@pytest.mark.parametrize("m", [0, 8, 9, 10, 20, 22, 30])
def test_rand_augment_applies_the_papers_ops_at_the_papers_strength(m):
    results = table(NARROW, [m])
    drawn = [recognized(out, results) for out in drawn_by(RandAugment(1, m), 280)]
    assert all(drawn), f"{sum(not each for each in drawn)} of 280 results are none of the paper's"
    if m in (9, 20):
        names = Counter(each[0][0] for each in drawn)
        check_counts([names[name] for name in OPS])
        signs = [each[0][2] for each in drawn if each[0][0] in SIGNED]
        check_share([sign == 1 for sign in signs], 0.5)


@pytest.mark.covers("RandAugment")
def test_rand_augment_applies_n_ops_in_their_order():
    """Only color ops are compared: for (9 / 14)² of the draws of two ops both are."""
    most, share, pairs = NARROW, 15 / 30, set()
    signed = [
        (name, sign * share) for name in OPS if name not in OPS[:6] for sign in ((1, -1) if name in FACTORS else (1,))
    ]
    for (first, one), (second, two) in product(signed, signed):
        pairs.add(np.asarray(tonal(most, second, two, tonal(most, first, one))).tobytes())
    still = [out for out in drawn_by(RandAugment(2, 15), 300) if np.abs(out["points"] - DOTS).max() < 1e-3]
    assert stats.binomtest(len(still), 300, (9 / 14) ** 2).pvalue > FALSE_ALARM
    assert sum(out["image"].tobytes() in pairs for out in still) > 0.5 * len(still)  # (8 / 9)² are expected


@pytest.mark.covers("TrivialAugment")
def test_trivial_augment_draws_one_wide_op_and_its_magnitude():
    results = table(WIDE, range(31))
    names, shares = Counter(), []
    for out in drawn_by(TrivialAugment(), 600):
        found = recognized(out, results)
        assert found, "a result that is none of the paper's"
        kinds = {key[0] for key in found}
        names["Identity" if "Identity" in kinds else found[0][0]] += 1
        if len(kinds) == 1 and found[0][0] in ("Rotate", "ShearX", "ShearY"):
            shares.append(found[0][1] * found[0][2])
    # Magnitude 0 does nothing: 1 of 31 of the signed ops and of Posterize and Solarize looks like Identity.
    plain = [1 / 14 * 30 / 31 if name in (*SIGNED, *UNSIGNED) else 1 / 14 for name in OPS]
    plain[0] += 11 / 14 / 31
    check_counts([names[name] for name in OPS], np.array(plain) / sum(plain))
    check_uniform(np.array(shares) + np.random.default_rng(0).uniform(-0.5, 0.5, len(shares)), -30.5, 30.5)


@pytest.mark.covers("Maybe", "OneOf", "SomeOf")
def test_policies_keep_the_colors_of_policies_inside():
    """RandAugment of color and geometry inside other policies, in a recipe's geometry: its color half must not be lost."""
    results = table(NARROW, [20])
    for outer in (Maybe(RandAugment(1, 20), 1), OneOf([RandAugment(1, 20)]), SomeOf([RandAugment(1, 20)], 1)):
        drawn = [recognized(out, results) for out in drawn_by(outer, 150)]
        assert all(drawn)
        colored_ones = [each[0][0] for each in drawn if each[0][0] not in OPS[:6]]
        assert len(colored_ones) > 50  # 86 are expected of 150, with a deviation of 6
        assert len(set(colored_ones)) == 8


def step(number):
    """A color op that writes its number after those already there."""

    def op(image, generator):
        image = image.copy()
        image[0, int((image[0, :, 0] > 0).sum()), 0] = number
        return image

    return op


def taken(op, count=400):
    made = colored(op, np.zeros((1, 8, 3), np.uint8), count)
    return [tuple(int(n) for n in image[0, :, 0] if n) for image in made]


@pytest.mark.covers("Maybe", "OneOf", "SomeOf")
def test_policies_of_colors_draw_as_they_say():
    check_share([len(each) == 1 for each in taken(Maybe(step(1), 0.3))], 0.3)
    chosen = taken(OneOf([step(1), step(2), step(3)], [1, 2, 5]), 600)
    check_counts([chosen.count((n,)) for n in (1, 2, 3)], [1 / 8, 2 / 8, 5 / 8])
    chosen = taken(OneOf([step(1), step(2)]))
    check_counts([chosen.count((n,)) for n in (1, 2)])
    four = [step(n) for n in (1, 2, 3, 4)]
    chosen = taken(SomeOf(four, 2), 600)
    check_counts([chosen.count(pair) for pair in combinations((1, 2, 3, 4), 2)])
    lengths = Counter(map(len, taken(SomeOf(four, (0, 3)))))
    check_counts([lengths[n] for n in range(4)])
    orders = Counter(taken(SomeOf(four[:3], 3, shuffle=True), 600))
    assert len(orders) == 6
    check_counts(list(orders.values()))


@pytest.mark.covers("Maybe", "OneOf", "SomeOf")
def test_policies_of_geometry_draw_as_they_say():
    def dots(op, count=400):
        return [tuple(np.rint(each["points"][0]).astype(int)) for each in drawn_by(op, count)]

    right, down = Translate((0.25, 0.25), 0.0), Translate(0.0, (0.25, 0.25))
    check_share([each == (42, 20) for each in dots(Maybe(right, 0.7))], 0.7)
    made = Counter(dots(OneOf([right, down], [3, 1])))
    check_counts([made[42, 20], made[28, 30]], [0.75, 0.25])
    made = Counter(dots(SomeOf([right, down], (0, 2)), 600))
    check_counts([made[28, 20], made[42, 20], made[28, 30], made[42, 30]], [1 / 3, 1 / 6, 1 / 6, 1 / 3])
    # The order of the list: first mirrored, then shifted.
    assert set(dots(SomeOf([Flip(1), right], 2), 20)) == {(42, 20)}
    assert set(dots(SomeOf([right, Flip(1)], 2), 20)) == {(14, 20)}


@pytest.mark.covers("Maybe", "OneOf")
def test_ops_inside_draw_their_own_numbers():
    """An op inside a policy has its whole range, whatever the policy drew before it."""
    white = np.full((1, 1, 3), 255, np.uint8)
    levels = [image[0, 0, 0] for image in colored(Maybe(Brightness((0.2, 0.9)), 0.5), white, 900)]
    check_uniform(np.clip([level for level in levels if level < 255], 51, 229.5), 51, 229.5)
    made = drawn_by(OneOf([Rotate(40), Rotate(40)]), 600)
    right = np.array([each["points"][1] - each["points"][0] for each in made])
    check_uniform(np.degrees(np.arctan2(-right[:, 1], right[:, 0])), -40.01, 40.01)
    check_share([image[0, 0, 0] == 0 for image in colored(OneOf([Invert(0.5), Invert(0.5)]), white, 400)], 0.5)
