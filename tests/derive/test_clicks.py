"""Clicks of odd objects and with other options. Their distribution is compared with Xu et al., CVPR 2016, in `tests/fidelity`."""

import numpy as np
import pytest
from scipy.ndimage import distance_transform_edt

from tfprep.derive import ClickMaps, ClickPoints, Clicks

MASK = np.zeros((120, 160), np.uint8)
MASK[30:80, 40:100] = 8
MASK[10:40, 110:150] = 3
MASK[90:115, 10:60] = 5
MASK[85:89, 100:140] = 255


def rng(seed=0):
    return np.random.default_rng(seed)


def draw(mask=MASK, seed=0, **options):
    """(positive, negative) pixels, (row, column)."""
    return Clicks(target=8, **options).draw(mask, rng(seed))


def at(array, clicks):
    return array[clicks[:, 0], clicks[:, 1]]


def test_clicks_follow_their_options():
    depth, distance, classes = distance_transform_edt(MASK == 8), distance_transform_edt(MASK != 8), set()
    for seed in range(60):
        positive, _ = draw(seed=seed, void=255, n_pos=(3, 3), step_px=20, margin_px=12)
        assert (at(depth, positive) >= 12).all()
        gaps = np.sqrt(((positive[:, None] - positive[None]) ** 2).sum(2))[np.triu_indices(len(positive), 1)]
        assert (gaps >= 20).all()
        assert 1 <= len(positive) <= 3
        near = {"strategies": (1,), "band_px": 15, "n_neg1": (4, 4), "margin_px": 0, "step_px": 3}
        _, negative = draw(seed=seed, void=255, **near)
        assert len(negative) == 4
        assert (at(distance, negative) < 15).all()
        classes |= set(at(MASK, draw(seed=seed, void=255, strategies=(2,), background=None)[1]).tolist())
    assert classes == {0, 3, 5}


@pytest.mark.parametrize(
    ("pixels", "clicks"),
    [
        ([(50, 60)], [(50, 60)]),
        ([(50, 60), (50, 61), (50, 62)], [(50, 60), (50, 61), (50, 62)]),
        ([(10, 9), (10, 10), (10, 11), (9, 10), (11, 10)], [(10, 10)]),
    ],
)
def test_a_thin_object_is_clicked_where_it_is_thickest(pixels, clicks):
    mask = np.zeros((100, 100), np.uint8)
    mask[tuple(np.transpose(pixels))] = 8
    (click,) = draw(mask)[0]
    assert tuple(click) in clicks


def test_objects_that_fill_the_image_or_are_absent():
    for strategy in (1, 2, 3):
        positive, negative = draw(np.full((50, 60), 8), 1, strategies=(strategy,))
        assert 1 <= len(positive) <= 5
        assert len(negative) == 0
    mask = np.where(MASK == 8, 0, MASK)
    for strategy in (1, 3):
        assert (Clicks(target=8, strategies=(strategy,))({"mask": mask}, rng()) == 255).all()
    positive, negative = draw(mask, strategies=(2,), n_neg2=(2, 2), void=255)
    assert len(positive) == 0
    assert set(at(mask, negative)) == {3, 5}
    points = ClickPoints(target=8, strategies=())({"mask": mask}, rng())
    assert points.shape == (0, 4)
    assert (ClickMaps()({"mask": mask, "clicks": points}, rng()) == 255).all()


def test_strategy_3_stops_where_the_band_is_used_up():
    _, negative = draw(np.array([[8, 0, 8, 0, 8]], np.uint8), strategies=(3,))
    assert sorted(negative[:, 1].tolist()) == [1, 3]


def test_clicks_of_an_annotator_may_be_outside_the_image():
    points = np.array([[10.5, 20.5, 1], [300, 20, 1], [5, -1, 0], [np.nan, 3, 0], [-1] * 3, [np.nan] * 3], np.float32)
    out = ClickMaps()({"mask": MASK, "clicks": points}, rng())
    assert np.argwhere(out[:, :, 0] == 0).tolist() == [[20, 10]]
    assert (out[:, :, 1] == 255).all()
    height, width = MASK.shape
    edges = np.array([[0, height, 1], [width, 0, 0]], np.float32)  # what is at 0 is there in a mirror image
    out = ClickMaps()({"mask": MASK, "clicks": edges}, rng())
    assert [np.argwhere(out[:, :, at] == 0).tolist() for at in (0, 1)] == [[[height - 1, 0]], [[0, width - 1]]]
