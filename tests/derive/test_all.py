"""Properties of every derived input: it is defined for every mask, has the same bytes each time, and does not change the
sample.
"""

from __future__ import annotations

import cv2
import numpy as np
import pytest

from tfprep import derive
from tfprep.errors import RecipeError
from tfprep.fields import KINDS, RASTER_KINDS
from tfprep.seeding import generator

SIZE = (45, 61)
RNG = np.random.default_rng(0)
IMAGE = RNG.integers(0, 256, (*SIZE, 3), dtype=np.uint8)
CLASSES = cv2.resize(RNG.integers(0, 4, (6, 8), dtype=np.uint8), SIZE[::-1], interpolation=cv2.INTER_NEAREST)


def one_pixel(row, column):
    mask = np.zeros(SIZE, np.uint8)
    mask[row, column] = 1
    return mask


MASKS = {
    "classes": CLASSES,
    "none": np.zeros(SIZE, np.uint8),
    "all": np.ones(SIZE, np.uint8),
    "all void": np.full(SIZE, 255, np.uint8),
    "one pixel": one_pixel(20, 30),
    "one in the corner": one_pixel(0, 0),
    "all but one": 1 - one_pixel(20, 30),
    "one row": np.arange(61, dtype=np.uint8)[None] % 3,
    "one column": np.arange(45, dtype=np.uint8)[:, None] % 3,
    "one by one": np.ones((1, 1), np.uint8),
    "16 bit": CLASSES.astype(np.uint16) * 1000 + 1,
}
OPS = [
    derive.Boundaries(void=255),
    derive.Boundaries(mode="outer", width_px=2),
    derive.Canny(),
    derive.ChannelStatistics(),
    derive.ClickMaps(),
    derive.ClickPoints(void=255, sets=2),
    derive.Clicks(strategies=(1,), void=255),
    derive.Clicks(strategies=(2,), background=None),
    derive.Clicks(strategies=(3,), dtype="float32"),
    derive.Distance(void=255),
    derive.Distance(to="inside", truncate_px=20, dtype="uint8"),
    derive.Distance(to="boundary", truncate_px=20, normalise=True),
    derive.Distance(target=(1, 2), void=255),
    derive.ExtremePoints(),
    derive.GeodesicDistance(),
    derive.Heatmaps(),
    derive.InstanceBoxes(void=255),
    derive.InstanceCenters(void=255),
    derive.InstanceClasses(classes="classes"),
    derive.InstanceOffsets(void=255),
    derive.OneHot(classes=3, mask="classes"),
    derive.OneInstance(mask="mask", void=255),
    derive.OneObject(void=255),
    derive.SignedDistance(void=255),
    derive.SignedDistance(outline="inner", truncate_px=9, dtype="uint8"),
    derive.Sobel(of="both"),
    derive.UNetWeights(),
    derive.UNetWeights(instances=False, inside=True),
]


def name_of(op):
    return type(op).__name__


def sample_of(mask):
    height, width = mask.shape
    return {
        "image": np.ascontiguousarray(np.resize(IMAGE, (height, width, 3))),
        "mask": mask,
        "classes": (mask % 3).astype(np.uint8),
        "points": np.array([[0.5, 0.5, 1], [width - 0.1, height / 2, 2], [-3, 4, 0]], np.float32),
        "clicks": np.array([[0.5, 0.5, 1, 0], [width / 2, height / 2, 0, 0]], np.float32),
    }


def made(op, sample):
    return op(sample, generator(7, "key", 1, "derive/x"))


@pytest.mark.parametrize("op", OPS, ids=name_of)
@pytest.mark.parametrize("name", MASKS)
def test_derived_inputs_are_defined_for_every_mask(op, name):
    sample = sample_of(MASKS[name])
    before = {field: value.copy() for field, value in sample.items()}
    value = made(op, sample)
    assert isinstance(value, np.ndarray)
    assert np.isfinite(value).all()
    assert op.kind in KINDS
    if op.kind in RASTER_KINDS:
        assert value.shape[:2] == MASKS[name].shape
    for field, array in before.items():
        np.testing.assert_array_equal(sample[field], array)


@pytest.mark.parametrize("op", OPS, ids=name_of)
def test_equal_bytes_at_any_memory_address_and_with_any_number_of_threads(op):
    sample = sample_of(MASKS["classes"])
    expected = made(op, sample).tobytes()
    threads = cv2.getNumThreads()
    try:
        for number, offset in ((1, 1), (2, 7), (4, 32), (3, 50)):
            cv2.setNumThreads(number)
            moved = {field: elsewhere(value, offset) for field, value in sample.items()}
            assert made(op, moved).tobytes() == expected
    finally:
        cv2.setNumThreads(threads)


def elsewhere(array, offset):
    """The same array at another memory address, aligned only to its items."""
    buffer = np.empty(array.nbytes + 512, np.uint8)
    start = (-buffer.ctypes.data) % 64 + offset * array.itemsize
    moved = buffer[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
    moved[...] = array
    return moved


@pytest.mark.parametrize("op", OPS, ids=name_of)
def test_random_derived_inputs_depend_on_the_key(op):
    sample = sample_of(MASKS["classes"])
    outs = {op(sample, generator(7, f"key {number}", 1, "derive/x")).tobytes() for number in range(12)}
    drawn = {"ClickPoints", "Clicks", "ExtremePoints", "OneInstance", "OneObject"}
    assert (len(outs) > 1) == (name_of(op) in drawn)


def test_every_derived_input_is_in_the_table():
    assert {name_of(op) for op in OPS} == set(derive.__all__) - {"Derived"}


WRONG = [
    (lambda: derive.Distance(to="outside"), "Distance.to is 'class', 'inside' or 'boundary', got 'outside'"),
    (lambda: derive.Distance(target=-1), "Distance.target is a class number"),
    (lambda: derive.Distance(target=()), "at least one class"),
    (lambda: derive.Distance(truncate_px=0), "Distance.truncate_px is above 0"),
    (lambda: derive.Distance(normalise=True), "normalise divides by truncate_px"),
    (lambda: derive.Distance(dtype="uint8"), "uint8 needs truncate_px of at most 255"),
    (lambda: derive.Distance(dtype="uint8", truncate_px=300), "uint8 needs truncate_px of at most 255"),
    (lambda: derive.Distance(dtype="int8"), "Distance.dtype is one of"),
    (lambda: derive.Distance(void=1.5), "Distance.void is a class number"),
    (lambda: derive.SignedDistance(dtype="uint8"), "SignedDistance in uint8 needs truncate_px"),
    (lambda: derive.SignedDistance(outline="outer"), "SignedDistance.outline is"),
    (lambda: derive.SignedDistance(normalise=True), "normalise divides by truncate_px"),
    (lambda: derive.Canny(low=200, high=100), "Canny.high is at least low, got 100; for example 400"),
    (lambda: derive.Canny(aperture=4), "Canny.aperture is 3, 5 or 7"),
    (lambda: derive.Sobel(of="angle"), "Sobel.of is"),
    (lambda: derive.Heatmaps(sigma_px=0), "Heatmaps.sigma_px is above 0"),
    (lambda: derive.Heatmaps(channels=0), "Heatmaps.channels is a whole number"),
    (lambda: derive.Heatmaps(dtype="int8"), "Heatmaps.dtype is"),
    (lambda: derive.ExtremePoints(jitter_px=-1), "ExtremePoints.jitter_px is a whole number"),
    (lambda: derive.ExtremePoints(target=-1), "ExtremePoints.target is a class number"),
    (lambda: derive.Boundaries(mode="subpixel"), "Boundaries.mode is"),
    (lambda: derive.Boundaries(width_px=-1), "Boundaries.width_px is a distance"),
    (lambda: derive.OneHot(classes=0), "OneHot.classes is a whole number"),
    (lambda: derive.OneObject(min_px=0), "OneObject.min_px is a whole number"),
    (lambda: derive.GeodesicDistance(edge_weight_px=-1), "edge_weight_px is a distance"),
    (lambda: derive.GeodesicDistance(truncate_px=0), "truncate_px is above 0"),
    (lambda: derive.GeodesicDistance(scans=0), "scans is a whole number"),
    (lambda: derive.InstanceCenters(sigma_px=-1), r"InstanceCenters.sigma_px is above 0"),
    (lambda: derive.UNetWeights(sigma_px=0), "UNetWeights.sigma_px is above 0, got 0"),
    (lambda: derive.UNetWeights(w0=-1), "UNetWeights.w0 is at least 0, got -1"),
]


@pytest.mark.parametrize(("make", "message"), WRONG)
def test_wrong_options_raise(make, message):
    with pytest.raises(RecipeError, match=message):
        make()
