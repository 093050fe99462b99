"""Properties of every derived input, and odd masks: none, all, void, one pixel; with their definitions."""

import cv2
import numpy as np
import pytest

from tests.addresses import check_equal_bytes
from tfprep import derive
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
    "classes": CLASSES, "none": np.zeros(SIZE, np.uint8), "all": np.ones(SIZE, np.uint8),
    "all void": np.full(SIZE, 255, np.uint8), "one pixel": one_pixel(20, 30), "one in the corner": one_pixel(0, 0),
    "all but one": 1 - one_pixel(20, 30), "one row": np.arange(61, dtype=np.uint8)[None] % 3,
    "one column": np.arange(45, dtype=np.uint8)[:, None] % 3, "one by one": np.ones((1, 1), np.uint8),
    "16 bit": CLASSES.astype(np.uint16) * 1000 + 1,
}  # fmt: skip
OPS = [
    derive.Boundaries(void=255), derive.Boundaries(mode="outer", width_px=2), derive.Canny(),
    derive.ClickMaps(), derive.ClickPoints(void=255, sets=2),
    derive.Clicks(strategies=(1,), void=255), derive.Clicks(strategies=(2,), background=None),
    derive.Clicks(strategies=(3,), dtype="float32"), derive.Distance(void=255),
    derive.Distance(to="inside", truncate_px=20, dtype="uint8"),
    derive.Distance(to="boundary", truncate_px=20, normalize=True), derive.Distance(target=(1, 2), void=255),
    derive.Heatmaps(), derive.InstanceBoxes(void=255),
    derive.InstanceCenters(void=255), derive.InstanceClasses(classes="classes"), derive.InstanceOffsets(void=255),
    derive.OneHot(classes=3, mask="classes"), derive.OneInstance(mask="mask", void=255), derive.OneObject(void=255),
    derive.SignedDistance(void=255), derive.SignedDistance(outline="inner", truncate_px=9, dtype="uint8"),
    derive.Sobel(of="both"), derive.UNetWeights(), derive.UNetWeights(instances=False, inside=True),
]  # fmt: skip


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
def test_derived_inputs_are_defined_for_every_mask_and_random_ones_depend_on_the_key(op):
    assert op.kind in KINDS
    for name, mask in MASKS.items():
        value = made(op, sample_of(mask))
        assert isinstance(value, np.ndarray), name
        assert np.isfinite(value).all(), name
        assert op.kind not in RASTER_KINDS or value.shape[:2] == mask.shape, name
    sample = sample_of(MASKS["classes"])
    check_equal_bytes(lambda arrays: {"x": made(op, arrays)}, sample)
    outs = {op(sample, generator(7, f"key {number}", 1, "derive/x")).tobytes() for number in range(12)}
    drawn = {"ClickPoints", "Clicks", "OneInstance", "OneObject"}
    assert (len(outs) > 1) == (name_of(op) in drawn)


def test_every_derived_input_is_in_the_table():
    assert {name_of(op) for op in OPS} == set(derive.__all__) - {"Derived", "Own"}


def of(op, mask, seed=0):
    return op({"mask": mask}, np.random.default_rng(seed))


@pytest.mark.parametrize("factor", [1, 70_000])
@pytest.mark.parametrize("background", [0, 2])
def test_outer_boundaries_count_void_as_no_object(background, factor):
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
    numbers = np.where(np.isin(mask, (background, 255)), mask, mask * np.int64(factor) + (1 << 24))  # of instances
    op = derive.Boundaries(mode="outer", background=background, void=255)
    np.testing.assert_array_equal(of(op, numbers), expected)


EMPTY, ONE = np.zeros((6, 7), np.uint8), np.zeros((6, 7), np.uint8)
ONE[2, 3] = 7
SEVEN = np.ones((5, 7), np.uint8)
ODD = {
    "one object of none": (derive.OneObject(target=4), EMPTY, EMPTY),
    "one object of another class": (derive.OneObject(target=4), ONE, np.where(ONE, 2, 0)),
    "no centers": (derive.InstanceCenters(), EMPTY, EMPTY),
    "no offsets": (derive.InstanceOffsets(), EMPTY, np.zeros((6, 7, 2))),
    "distances beside a class -1": (derive.Distance(target=1), np.array([[1, -1, -1]]), [[0, 1, 2]]),
    "no small centers": (derive.InstanceCenters(min_px=2), ONE, EMPTY),
    "no small offsets": (derive.InstanceOffsets(min_px=2), ONE, np.zeros((6, 7, 2))),
    "no boxes": (derive.InstanceBoxes(), EMPTY, np.zeros((0, 4))),
    "no classes": (derive.InstanceClasses(), EMPTY, np.zeros(0)),
    "an instance that covers all": (derive.InstanceOffsets(), SEVEN, 3.0 - np.indices((5, 7)).transpose(1, 2, 0) - [1, 0]),
}  # fmt: skip


@pytest.mark.parametrize(("op", "mask", "expected"), ODD.values(), ids=ODD)
def test_odd_masks(op, mask, expected):
    value = op({"mask": mask, "classes": mask}, np.random.default_rng(0))
    np.testing.assert_array_equal(value, expected)


@pytest.mark.parametrize("count", [128, 130, 514])
def test_more_channels_than_opencv_merges(count):
    mask = np.arange(count, dtype=np.uint16).reshape(2, -1)
    np.testing.assert_array_equal(of(derive.OneHot(classes=count), mask), mask[..., None] == np.arange(count))
    assert of(derive.Clicks(sets=count // 2), np.array([[0, 1, 0]], np.uint8)).shape == (1, 3, count)


def test_more_objects_than_a_byte_holds():
    mask = np.zeros((80, 80), np.uint8)
    mask[::2, ::2] = 5
    out = of(derive.OneObject(target=5, void=255), mask)
    assert (out.dtype, (out == 1).sum(), (out == 255).any()) == (np.uint16, 1, False)
    assert len(np.unique(out[mask == 5])) == 1600


def test_more_objects_than_16_bits_hold():
    mask = np.zeros((520, 512), np.uint8)
    mask[::2, ::2] = 5
    with pytest.raises(SampleError, match="'mask' has 66560 objects, uint16 numbers up to 65534"):
        of(derive.OneObject(target=5), mask)


@pytest.mark.parametrize(
    ("op", "sample", "error", "message"),
    [
        (
            derive.ClickMaps(points="points"), {"mask": CLASSES, "points": np.array([[2.5, 2.5]])}, SampleError,
            r"clicks are \[N, 3\] or \[N, 4\]; 'points' is \[1, 2\]",
        ),
        (
            derive.Heatmaps(), {"image": IMAGE, "points": np.ones(3)}, SampleError,
            r"points are \[N, 2\] or .* 'points' is \[3\]",
        ),
        (
            derive.Sobel(), {"image": np.zeros((4, 4, 3))}, SampleError,
            r"an image is uint8 \[H, W, 3\]; 'image' is float64",
        ),
        (derive.Distance(), {"image": IMAGE}, RecipeError, "asks for the field 'mask', the sample has"),
        (derive.Distance(), {"mask": np.zeros((3, 3))}, SampleError, r"whole numbers \[H, W\]; 'mask' is float64"),
        (
            derive.OneHot(classes=2), {"mask": CLASSES}, SampleError,
            "'mask' holds the class 2, OneHot has 2 classes and ignores",
        ),
        (
            derive.OneHot(classes=2), {"mask": np.array([[0, -1, 1]])}, SampleError,
            "class numbers count from 0; the mask holds -1, give void",
        ),
        *(
            (op, {"mask": np.array([[0, -1, 1]]), "classes": CLASSES[:1, :3]}, SampleError, "count from 0; the mask holds -1")
            for op in (derive.InstanceBoxes(), derive.InstanceCenters(), derive.OneInstance(mask="mask"), derive.UNetWeights())
        ),
        (
            derive.InstanceClasses(), {"mask": CLASSES, "classes": np.where(CLASSES == 2, -1, 3)}, SampleError,
            "count from 0; the mask holds -1",
        ),
        (
            derive.ClickMaps(), {"mask": CLASSES, "clicks": np.array([[2.5, 2.5, 1, 0], [4.5, 2.5, 1, 1]])}, SampleError,
            r"of set 0 to 0; 'clicks' holds 1 and set 1: give ClickMaps\(sets=...\)",
        ),
        (
            derive.ClickMaps(points="points"), {"mask": CLASSES, "points": np.array([[2.5, 2.5, 2]])}, SampleError,
            r"a click is 1 \(positive\) or 0 \(negative\), .* 'points' holds 2 and set 0",
        ),
    ],
)  # fmt: skip
def test_wrong_fields_are_named(op, sample, error, message):
    with pytest.raises(error, match=message) as caught:
        op(sample, np.random.default_rng(0))
    assert error is RecipeError or caught.value.stage == "derive"
