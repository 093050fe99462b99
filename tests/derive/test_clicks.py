"""Clicks and click maps compared pixel by pixel with the definitions of Xu et al., CVPR 2016."""

import numpy as np
import pytest
from scipy.ndimage import distance_transform_edt

from tfprep.derive import ClickMaps, ClickPoints, Clicks
from tfprep.errors import RecipeError

MASK = np.zeros((120, 160), np.uint8)
MASK[30:80, 40:100] = 8
MASK[10:40, 110:150] = 3
MASK[90:115, 10:60] = 5
MASK[85:89, 100:140] = 255
SEEDS = range(60)


def draws(mask=MASK, **options):
    op = Clicks(target=8, void=255, **options)
    for seed in SEEDS:
        yield op.draw(mask, np.random.default_rng(seed))


def gaps(clicks):
    offsets = clicks[:, None] - clicks[None]
    return np.sqrt((offsets**2).sum(2))[np.triu_indices(len(clicks), 1)]


def at(array, clicks):
    return array[clicks[:, 0], clicks[:, 1]]


# --- maps -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("dtype", "truncate_px"), [("uint8", 255), ("uint8", 40), ("uint16", 255), ("float32", 1000)])
def test_both_maps_belong_to_the_same_clicks(dtype, truncate_px):
    op = Clicks(target=8, dtype=dtype, truncate_px=truncate_px)
    for seed in range(6):
        out = op({"mask": MASK}, np.random.default_rng(seed))
        assert out.shape == (120, 160, 2)
        assert out.dtype == dtype
        for channel, clicks in enumerate(op.draw(MASK, np.random.default_rng(seed))):
            zero = np.ones(MASK.shape)
            zero[clicks[:, 0], clicks[:, 1]] = 0
            exact = np.minimum(distance_transform_edt(zero) if len(clicks) else np.inf, truncate_px) + zero * 0
            whole = exact if dtype == "float32" else np.rint(exact)
            np.testing.assert_allclose(out[:, :, channel], whole, atol=1e-4)


# --- positive clicks ------------------------------------------------------------------------------------------------


def test_positive_clicks_follow_the_distance_options():
    depth = distance_transform_edt(MASK == 8)
    for positive, _ in draws(n_pos=(3, 3), step_px=20, margin_px=12):
        assert (at(depth, positive) >= 12).all()
        assert (gaps(positive) >= 20).all()
        assert 1 <= len(positive) <= 3


@pytest.mark.parametrize("pixels", [[(50, 60)], [(50, 60), (50, 61), (50, 62)]])
def test_a_thin_object_is_clicked_where_it_is_thickest(pixels):
    mask = np.zeros((100, 100), np.uint8)
    for row, column in pixels:
        mask[row, column] = 8
    positive, _ = Clicks(target=8).draw(mask, np.random.default_rng(0))
    assert len(positive) == 1
    assert tuple(positive[0]) in pixels


def test_a_plus_is_clicked_in_its_centre():
    mask = np.zeros((20, 20), np.uint8)
    mask[10, 9:12] = mask[9:12, 10] = 8
    positive, _ = Clicks(target=8).draw(mask, np.random.default_rng(0))
    assert positive.tolist() == [[10, 10]]


def test_an_object_that_fills_the_image_has_positive_clicks_only():
    for strategy in (1, 2, 3):
        positive, negative = Clicks(target=8, strategies=(strategy,)).draw(
            np.full((50, 60), 8), np.random.default_rng(1)
        )
        assert 1 <= len(positive) <= 5
        assert len(negative) == 0


def test_an_absent_target_has_no_positive_clicks_and_no_band():
    mask = np.where(MASK == 8, 0, MASK)
    for strategy in (1, 3):
        out = Clicks(target=8, strategies=(strategy,))({"mask": mask}, np.random.default_rng(0))
        assert (out == 255).all()
    positive, negative = Clicks(target=8, strategies=(2,), n_neg2=(2, 2), void=255).draw(mask, np.random.default_rng(0))
    assert len(positive) == 0
    assert set(at(mask, negative)) == {3, 5}


# --- negative clicks ------------------------------------------------------------------------------------------------


def test_strategy_1_follows_its_options():
    distance = distance_transform_edt(MASK != 8)
    for _, negative in draws(strategies=(1,), band_px=15, n_neg1=(4, 4), margin_px=0, step_px=3):
        assert len(negative) == 4
        assert (at(distance, negative) < 15).all()


def test_strategy_2_can_treat_the_background_as_an_object():
    classes = {int(c) for _, negative in draws(strategies=(2,), background=None) for c in at(MASK, negative)}
    assert classes == {0, 3, 5}


def test_strategy_3_stops_where_the_band_is_used_up():
    mask = np.full((1, 5), 8, np.uint8)
    mask[0, 1] = mask[0, 3] = 0
    _, negative = Clicks(target=8, strategies=(3,)).draw(mask, np.random.default_rng(0))
    assert sorted(negative[:, 1].tolist()) == [1, 3]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"target": -1}, "Clicks.target is a class number"),
        ({"truncate_px": 300}, "Clicks in uint8 needs truncate_px of at most 255, got 300"),
        ({"truncate_px": 0}, "Clicks.truncate_px is above 0"),
        ({"n_pos": 5}, "Clicks.n_pos is a range"),
        ({"n_neg1": (3, 2)}, "Clicks.n_neg1 is a range"),
        ({"n_neg3": -1}, "Clicks.n_neg3 is a whole number"),
        ({"step_px": -1}, "Clicks.step_px is a distance"),
        ({"strategies": (4,)}, "Clicks.strategies is a tuple of 1, 2 and 3"),
        ({"dtype": "int8"}, "Clicks.dtype is one of"),
        ({"void": 1}, "Clicks.void is not the target's class"),
        ({"background": -2}, "Clicks.background is a class number"),
    ],
)
def test_wrong_options_raise_with_the_rule(options, message):
    with pytest.raises(RecipeError, match=message):
        Clicks(**{"target": 1, **options})


# --- as coordinates -------------------------------------------------------------------------------------------------


def test_clicks_of_an_annotator_may_be_outside_the_image():
    points = np.array([[10.5, 20.5, 1], [300, 20, 1], [5, -1, 0], [np.nan, 3, 0]], np.float32)
    out = ClickMaps()({"mask": MASK, "clicks": points}, np.random.default_rng(0))
    assert np.argwhere(out[:, :, 0] == 0).tolist() == [[20, 10]]
    assert (out[:, :, 1] == 255).all()


def test_no_clicks_have_no_rows():
    points = ClickPoints(target=8, strategies=())({"mask": MASK * 0}, np.random.default_rng(0))
    assert points.shape == (0, 4)
    assert (ClickMaps()({"mask": MASK, "clicks": points}, np.random.default_rng(0)) == 255).all()
