"""Properties of every derived input, and odd masks: none, all, void, one pixel; with their definitions."""

import cv2
import numpy as np
import pytest

from tfprep import derive
from tfprep.derive import (
    Boundaries,
    ExtremePoints,
    Heatmaps,
    InstanceBoxes,
    InstanceCenters,
    InstanceClasses,
    InstanceOffsets,
    OneHot,
    OneObject,
    Sobel,
)
from tfprep.errors import RecipeError, SampleError
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
def test_derived_inputs_are_defined_for_every_mask(op):
    assert op.kind in KINDS
    for name, mask in MASKS.items():
        sample = sample_of(mask)
        before = {field: value.copy() for field, value in sample.items()}
        value = made(op, sample)
        assert isinstance(value, np.ndarray), name
        assert np.isfinite(value).all(), name
        assert op.kind not in RASTER_KINDS or value.shape[:2] == mask.shape, name
        for field, array in before.items():
            np.testing.assert_array_equal(sample[field], array, err_msg=name)


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
    (lambda: derive.Clicks(target=-1), "Clicks.target is a class number"),
    (lambda: derive.Clicks(truncate_px=300), "Clicks in uint8 needs truncate_px of at most 255, got 300"),
    (lambda: derive.Clicks(truncate_px=0), "Clicks.truncate_px is above 0"),
    (lambda: derive.Clicks(n_pos=5), "Clicks.n_pos is a range"),
    (lambda: derive.Clicks(n_neg1=(3, 2)), "Clicks.n_neg1 is a range"),
    (lambda: derive.Clicks(n_neg3=-1), "Clicks.n_neg3 is a whole number"),
    (lambda: derive.Clicks(step_px=-1), "Clicks.step_px is a distance"),
    (lambda: derive.Clicks(strategies=(4,)), "Clicks.strategies is a tuple of 1, 2 and 3"),
    (lambda: derive.Clicks(dtype="int8"), "Clicks.dtype is one of"),
    (lambda: derive.Clicks(target=1, void=1), "Clicks.void is not the target's class"),
    (lambda: derive.Clicks(background=-2), "Clicks.background is a class number"),
]


@pytest.mark.parametrize(("make", "message"), WRONG)
def test_wrong_options_raise(make, message):
    with pytest.raises(RecipeError, match=message):
        make()


def of(op, mask, seed=0):
    return op({"mask": mask}, np.random.default_rng(seed))


@pytest.mark.parametrize("background", [0, 2])
def test_outer_boundaries_count_void_as_no_object(background):
    """Boundary pixels are background next to an object, and object pixels near two different objects; void is neither."""
    mask = np.random.default_rng(3).choice(np.array([0, 1, 2, 3, 255], np.uint8), (20, 24))
    expected = np.zeros(mask.shape, np.uint8)
    for row, column in np.ndindex(mask.shape):
        own = mask[row, column]
        cross = [(row + 1, column), (row - 1, column), (row, column + 1), (row, column - 1)]
        four = {int(mask[at]) for at in cross if 0 <= at[0] < 20 and 0 <= at[1] < 24} - {int(own), 255}
        eight = mask[max(0, row - 1) : row + 2, max(0, column - 1) : column + 2]
        objects = set(eight.ravel().tolist()) - {background, 255}
        touches = own == background or len(objects) > 1
        expected[row, column] = own != 255 and bool(four) and touches
    np.testing.assert_array_equal(of(Boundaries(mode="outer", background=background, void=255), mask), expected)


def test_one_object_of_none():
    out = of(OneObject(target=4), CLASSES)
    assert (out != 1).all()
    assert not (of(OneObject(target=4), np.zeros((4, 4), np.uint8))).any()


def test_more_objects_than_a_byte_holds():
    mask = np.zeros((80, 80), np.uint8)
    mask[::2, ::2] = 5
    out = of(OneObject(target=5, void=255), mask)
    assert out.dtype == np.uint16
    assert (out == 1).sum() == 1
    assert not (out == 255).any()
    assert len(np.unique(out[mask == 5])) == 1600


def test_no_instances():
    empty = np.zeros((6, 7), np.uint8)
    assert not any(of(op, empty).any() for op in (InstanceCenters(), InstanceOffsets()))
    assert of(InstanceBoxes(), empty).shape == (0, 4)
    assert InstanceClasses()({"mask": empty, "classes": empty}, np.random.default_rng(0)).shape == (0,)


def test_an_instance_that_covers_all():
    out = of(InstanceOffsets(), np.ones((5, 7), np.uint8))
    assert out[2, 3].tolist() == [0, 0]
    assert out[0, 0].tolist() == [2, 3]


def test_extreme_points_of_nothing_and_of_one_pixel():
    one = np.zeros((5, 5), np.uint8)
    one[2, 3] = 7
    assert of(ExtremePoints(target=7), one * 0).tolist() == [[0, 0, 0]] * 4
    assert of(ExtremePoints(target=7), one).tolist() == [[3.5, 2.5, 1]] * 4


@pytest.mark.parametrize(
    ("op", "sample", "error", "message"),
    [
        (
            Heatmaps(),
            {"image": IMAGE, "points": np.ones(3)},
            SampleError,
            r"points are \[N, 2\] or .* 'points' is \[3\]",
        ),
        (Sobel(), {"image": np.zeros((4, 4, 3))}, SampleError, r"an image is uint8 \[H, W, 3\]; 'image' is float64"),
        (derive.Distance(), {"image": IMAGE}, RecipeError, "asks for the field 'mask', the sample has"),
        (derive.Distance(), {"mask": np.zeros((3, 3))}, SampleError, r"whole numbers \[H, W\]; 'mask' is float64"),
        (
            OneHot(classes=2),
            {"mask": CLASSES},
            SampleError,
            "'mask' holds the class 2, OneHot has 2 classes and ignores",
        ),
    ],
)
def test_wrong_fields_are_named(op, sample, error, message):
    with pytest.raises(error, match=message) as caught:
        op(sample, np.random.default_rng(0))
    assert error is RecipeError or caught.value.stage == "derive"
