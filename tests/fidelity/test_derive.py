"""Derived inputs: SciPy, scikit-image, NumPy and the formulas of the papers; void; the distributions of draws."""

from collections import Counter

import numpy as np
import pytest
from scipy import ndimage
from skimage.feature import canny
from skimage.segmentation import find_boundaries

from tests.fidelity.public import check_counts, check_uniform, derived, variants
from tfprep import augment
from tfprep.derive import (
    Boundaries,
    Canny,
    ClickMaps,
    ClickPoints,
    Clicks,
    Distance,
    Heatmaps,
    InstanceBoxes,
    InstanceCenters,
    InstanceClasses,
    InstanceOffsets,
    OneHot,
    OneInstance,
    OneObject,
    SignedDistance,
    Sobel,
    UNetWeights,
)

H, W = SHAPE = (90, 120)
VOID = 255
edt = ndimage.distance_transform_edt


def classes(seed=0, void=True):
    """Blobs of the classes 0 to 4, and some of void."""
    rng = np.random.default_rng(seed)
    blobs = ndimage.gaussian_filter(rng.normal(size=SHAPE), 6)
    mask = np.digitize(blobs, np.quantile(blobs, [0.3, 0.5, 0.7, 0.85])).astype(np.uint8)
    if void:
        holes = ndimage.gaussian_filter(rng.normal(size=SHAPE), 4)
        mask[holes > np.quantile(holes, 0.9)] = VOID
    return mask


MASK = classes()
NONE, ALL = np.zeros(SHAPE, np.uint8), np.full(SHAPE, 2, np.uint8)
IS, NOT_VOID = MASK == 2, MASK != VOID
OTHER = ~IS & NOT_VOID
PHOTO = np.clip(
    ndimage.gaussian_filter(np.random.default_rng(3).normal(size=(*SHAPE, 3)), (3, 3, 0)) * 500 + 128, 0, 255
).astype(np.uint8)


def to(region):
    return edt(~region)


def neighbors(region):
    """Pixels with one of their 4 neighbors in the region."""
    return ndimage.binary_dilation(region, ndimage.generate_binary_structure(2, 1)) & ~region


INNER = IS & neighbors(OTHER)
SIGNED = np.where(IS, 0.5 - to(~IS), to(IS) - 0.5)
CUT = np.clip(SIGNED, -6, 6)
DISTANCES = [
    (Distance(target=2), to(IS)),
    (Distance(target=2, truncate_px=7), np.minimum(to(IS), 7)),
    (Distance(target=2, truncate_px=20, dtype="uint8"), np.rint(np.minimum(to(IS), 20))),
    (Distance(target=2, truncate_px=20, dtype="uint8", normalize=True), np.rint(np.minimum(to(IS), 20) * 255 / 20)),
    (Distance(target=2, truncate_px=20, normalize=True), np.minimum(to(IS), 20) / 20),
    (Distance(target=2, truncate_px=7, dtype="uint16"), np.rint(np.minimum(to(IS), 7))),
    (Distance(target=2, truncate_px=8, dtype="uint16", normalize=True), np.rint(np.minimum(to(IS), 8) * 65535 / 8)),
    (Distance(target=2, truncate_px=2, dtype="float16"), np.minimum(to(IS), 2).astype(np.float16)),
    (Distance(target=(2, 3)), np.stack([to(IS), to(MASK == 3)], 2)),
    (Distance(target=2, to="inside"), np.where(IS, to(~IS), 0)),
    (Distance(target=2, to="inside", void=VOID), np.where(IS, to(OTHER), 0)),
    (Distance(target=2, to="boundary"), to(IS & neighbors(~IS))),
    (Distance(target=2, to="boundary", void=VOID), to(INNER)),
    (SignedDistance(target=2), SIGNED),
    (SignedDistance(target=2, outline="inner"), np.where(IS, 1 - to(~IS), to(IS))),
    (SignedDistance(target=2, void=VOID), np.where(NOT_VOID, np.where(IS, 0.5 - to(OTHER), to(IS) - 0.5), 0)),
    (SignedDistance(target=2, truncate_px=6), CUT),
    (SignedDistance(target=2, truncate_px=6, normalize=True), CUT / 6),
    (SignedDistance(target=2, truncate_px=6, dtype="uint16"), np.rint(32768 + 32767 / 6 * CUT)),
    (SignedDistance(target=2, truncate_px=6, dtype="uint8"), np.rint(128 + 127 / 6 * CUT)),
]


@pytest.mark.parametrize(
    ("op", "expected"),
    [pytest.param(*case, marks=pytest.mark.covers(type(case[0]).__name__), id=repr(case[0])) for case in DISTANCES],
)
def test_distances_are_scipys(op, expected):
    made = derived(op, mask=MASK)[0]
    assert made.dtype == op.dtype
    np.testing.assert_allclose(made, expected, atol=1e-3)


@pytest.mark.covers("Distance", "SignedDistance")
def test_distances_to_nothing():
    beside_void = np.array([[4, 4, VOID]], np.uint8)
    diagonal = np.hypot(*SHAPE)
    for op, mask, level in (
        (Distance(target=2), NONE, diagonal),
        (Distance(target=2, truncate_px=9), NONE, 9),
        (Distance(target=2), ALL, 0),
        (Distance(target=2, to="boundary"), ALL, diagonal),
        (Distance(target=2, to="boundary", truncate_px=5, normalize=True, dtype="uint8"), NONE, 255),
        (Distance(target=2, to="inside"), NONE, 0),
        (Distance(target=2, to="inside"), ALL, diagonal),
        (Distance(target=2, to="inside", truncate_px=9), ALL, 9),
        (SignedDistance(target=2, truncate_px=9), NONE, 9),
        (SignedDistance(target=2, truncate_px=9), ALL, -9),
        (SignedDistance(target=2, truncate_px=9, dtype="uint8"), ALL, 1),
        (SignedDistance(target=2, truncate_px=9, dtype="uint8"), NONE, 255),
        (SignedDistance(target=2), NONE, diagonal),
        (SignedDistance(target=2), ALL, -diagonal),
        (SignedDistance(target=2, outline="inner"), NONE, 0),
        (SignedDistance(target=4, void=VOID, truncate_px=9), beside_void, [[-9, -9, 0]]),
        (SignedDistance(target=1, void=VOID, truncate_px=9), beside_void, [[9, 9, 0]]),
        (SignedDistance(target=1, void=VOID, truncate_px=9, dtype="uint8"), beside_void, [[255, 255, 128]]),
        (Distance(target=4, to="boundary", void=VOID, truncate_px=9), beside_void, 9),
        (UNetWeights(), NONE, 1),
        (UNetWeights(), np.ones(SHAPE, np.uint8), 1),
    ):
        np.testing.assert_allclose(derived(op, mask=mask)[0], level, rtol=1e-5)


@pytest.mark.covers("Distance")
def test_derived_inputs_come_from_the_warped_mask_and_keep_void():
    """The distance is that of the warped mask, not the warped distance; pixels from outside the image are void."""
    made = variants(
        {"mask": MASK}, {"mask": "mask"}, geometry=[augment.Rotate((30, 30))], fill={"mask": VOID},
        derive={"d": Distance(target=2, to="inside", void=VOID), "hot": OneHot(5, ignore=VOID)},
    )[0]  # fmt: skip
    mask = made["mask"]
    assert (mask[:5, :5] == VOID).all()
    assert set(np.unique(mask)) <= set(np.unique(MASK))
    np.testing.assert_allclose(made["d"], np.where(mask == 2, to((mask != 2) & (mask != VOID)), 0), atol=1e-3)
    np.testing.assert_array_equal(made["hot"].sum(2) == 0, mask == VOID)


# --- clicks -------------------------------------------------------------------------------------------------------------

SCENE = np.zeros((120, 160), np.uint8)
SCENE[30:80, 40:100] = 2
SCENE[10:40, 110:150] = 3
SCENE[90:115, 10:60] = 5
SCENE[84:89, 60:140] = VOID


def sets_of_clicks(count=300, **options):
    """(positive, negative) pixels, (row, column), of each of `count` draws; strategy by strategy they follow Xu et al."""
    for table in derived(ClickPoints(target=2, void=VOID, **options), count, mask=SCENE):
        assert ((table[:, :2] % 1) == 0.5).all()
        pixels = table[:, 1::-1].astype(int)
        yield pixels[table[:, 2] == 1], pixels[table[:, 2] == 0]


def gaps(clicks):
    return np.sqrt(((clicks[:, None] - clicks[None]) ** 2).sum(2))[np.triu_indices(len(clicks), 1)]


@pytest.mark.covers("ClickPoints")
def test_positive_clicks_are_xus():
    depth, counts, rows = edt(SCENE == 2), Counter(), []
    for positive, _ in sets_of_clicks():
        assert (depth[tuple(positive.T)] >= 5).all()
        assert (gaps(positive) >= 10).all()
        counts[len(positive)] += 1
        rows.append(positive[0])
    check_counts([counts[n] for n in range(1, 6)])
    assert set(counts) == {1, 2, 3, 4, 5}
    check_uniform(np.array(rows)[:, 0] + 0.5, 34, 76)  # all pixels 5 from the edge of rows 30 to 79
    check_uniform(np.array(rows)[:, 1] + 0.5, 44, 96)


@pytest.mark.covers("ClickPoints")
def test_negative_clicks_are_xus():
    distance = to(SCENE == 2)
    counts = Counter()
    for _, negative in sets_of_clicks(strategies=(1,)):
        at = distance[tuple(negative.T)]
        assert ((at >= 5) & (at < 40)).all()
        assert (SCENE[tuple(negative.T)] != VOID).all()
        assert (gaps(negative) >= 10).all()
        counts[len(negative)] += 1
    check_counts([counts[n] for n in range(11)])
    counts.clear()
    for _, negative in sets_of_clicks(strategies=(2,)):
        on = SCENE[tuple(negative.T)]
        assert set(on) <= {3, 5}
        for other in (3, 5):
            assert (edt(other == SCENE)[tuple(negative[on == other].T)] >= 5).all()
        counts[int((on == 3).sum())] += 1
    check_counts([counts[n] for n in range(6)])
    band = (distance > 0) & (distance < 40) & (SCENE != VOID)
    to_rest = edt(~((SCENE == 2) | (distance >= 40)))
    for _, negative in sets_of_clicks(40, strategies=(3,)):
        assert len(negative) == 10
        assert band[tuple(negative.T)].all()
        nearest = np.where(band, to_rest, 0)
        for number, click in enumerate(negative):
            if number:
                assert nearest[tuple(click)] == pytest.approx(nearest.max(), abs=1e-4), "not the farthest pixel"
            rows, columns = np.indices(SCENE.shape)
            nearest = np.minimum(nearest, np.hypot(rows - click[0], columns - click[1]))


@pytest.mark.covers("ClickPoints")
def test_each_strategy_is_as_likely():
    """Only strategy 3 gives ten clicks, 2 none in the band; 1 is told from 2 by what it clicks."""
    found = Counter()
    for _, negative in sets_of_clicks(600, n_neg1=(1, 9), n_neg2=(1, 5)):
        on_objects = set(SCENE[tuple(negative.T)]) <= {3, 5}
        found[3 if len(negative) == 10 and not on_objects else 2 if on_objects and len(negative) > 1 else 1] += 1
    check_counts([found[1], found[2], found[3]])


@pytest.mark.covers("Clicks", "ClickMaps", "ClickPoints")
def test_click_maps_are_distances_to_the_clicks():
    def expected(table, sets, truncate):
        maps = []
        for number in range(sets):
            for positive in (1, 0):
                free = np.ones(SCENE.shape, bool)
                for x, y, *_ in table[(table[:, 2] == positive) & (table[:, 3] == number)]:
                    free[int(y), int(x)] = False
                maps.append(np.full(SCENE.shape, truncate) if free.all() else np.minimum(edt(free), truncate))
        return np.stack(maps, 2)

    options = {"target": 2, "void": VOID, "sets": 2}
    derive = {"clicks": ClickPoints(**options), "maps": ClickMaps(sets=2)}
    for made in variants({"mask": SCENE}, {"mask": "mask"}, 5, derive=derive):
        np.testing.assert_array_equal(made["maps"], np.rint(expected(made["clicks"], 2, 255)))
    points = np.array([[5.5, 6.5, 1], [50.5, 40.5, 0], [20.5, 60.5, 1], [900, 3, 1]], np.float32)
    ours = derived(ClickMaps(dtype="float32", truncate_px=60), mask=SCENE, clicks=points)[0]
    whole = expected(np.pad(points[:3], ((0, 0), (0, 1))), 1, 60)
    np.testing.assert_allclose(ours, whole, atol=1e-3)
    for maps in derived(Clicks(target=2, strategies=()), 5, mask=SCENE):
        assert (maps[:, :, 1] == 255).all()
        clicked = np.argwhere(maps[:, :, 0] == 0)
        assert 1 <= len(clicked) <= 5
        np.testing.assert_array_equal(
            maps[:, :, 0],
            np.rint(
                np.minimum(255, np.min([np.hypot(*(np.indices(SCENE.shape) - c[:, None, None])) for c in clicked], 0))
            ),
        )


# --- points -------------------------------------------------------------------------------------------------------------


def gaussian(x, y, sigma, shape=SHAPE):
    rows, columns = np.mgrid[: shape[0], : shape[1]] + 0.5
    return np.exp(-((columns - x) ** 2 + (rows - y) ** 2) / (2 * sigma**2))


@pytest.mark.covers("Heatmaps")
def test_heatmaps_are_gaussians():
    points = np.array([[30.5, 20.5, 1], [60.2, 50.9, 2], [10.0, 70.0, 0], [61.0, 52.0, 1]], np.float32)
    each = [gaussian(x, y, 3) * (visible >= 1) for x, y, visible in points]
    cases = [
        (Heatmaps(sigma_px=3), np.stack(each, 2), 1e-6),
        (Heatmaps(sigma_px=3, channels=1), np.max(each, 0)[:, :, None], 1e-6),
        (Heatmaps(sigma_px=3, channels=2), np.stack([np.max(each[::2], 0), np.max(each[1::2], 0)], 2), 1e-6),
        (Heatmaps(sigma_px=3, dtype="uint8"), np.rint(255 * np.stack(each, 2)), 0),
        (Heatmaps(sigma_px=3, min_visibility=2), np.stack(each, 2) * (points[:, 2] >= 2), 1e-6),
    ]
    for op, expected, allowed in cases:
        np.testing.assert_allclose(derived(op, image=PHOTO, points=points)[0], expected, atol=allowed, err_msg=repr(op))


# --- labels -------------------------------------------------------------------------------------------------------------


@pytest.mark.covers("Boundaries")
def test_boundaries_are_scikit_images():
    plain = classes(void=False)
    thick = find_boundaries(plain, connectivity=1, mode="thick")
    for op, expected in (
        (Boundaries(), thick),
        (Boundaries(mode="inner"), thick & (plain != 0)),
        (Boundaries(mode="outer"), find_boundaries(plain, connectivity=1, mode="outer", background=0)),
        (Boundaries(width_px=3), to(thick) <= 3),
    ):
        np.testing.assert_array_equal(derived(op, mask=plain)[0], expected, err_msg=repr(op))
    with_void = np.zeros(SHAPE, bool)
    for a, b in ((np.s_[1:], np.s_[:-1]), (np.s_[:, 1:], np.s_[:, :-1])):
        differ = (MASK[a] != MASK[b]) & (MASK[a] != VOID) & (MASK[b] != VOID)
        with_void[a] |= differ
        with_void[b] |= differ
    np.testing.assert_array_equal(derived(Boundaries(void=VOID), mask=MASK)[0], with_void)


@pytest.mark.covers("OneHot")
def test_one_hot_is_numpys_eye():
    expected = np.where(NOT_VOID[:, :, None], np.eye(5)[np.where(NOT_VOID, MASK, 0)], 0)
    np.testing.assert_array_equal(derived(OneHot(5, ignore=VOID), mask=MASK)[0], expected)
    plain = classes(void=False)
    np.testing.assert_array_equal(derived(OneHot(5, ignore=3), mask=plain)[0], np.diag([1, 1, 1, 0, 1])[plain])


@pytest.mark.covers("OneObject")
def test_one_object_is_any_of_scipys_components():
    parts, count = ndimage.label(IS, np.ones((3, 3)))
    sizes = np.bincount(parts.ravel())
    large = [number for number in range(1, count + 1) if sizes[number] >= 30]
    assert 3 <= len(large) < count or len(large) == count >= 3
    drawn = Counter()
    for made in derived(OneObject(target=2, min_px=30, void=VOID), 40 * len(large), mask=MASK):
        number = parts[made == 1][0]
        np.testing.assert_array_equal(made == 1, parts == number)
        np.testing.assert_array_equal(made == VOID, MASK == VOID)
        np.testing.assert_array_equal(made == 0, MASK == 0)
        drawn[int(number)] += 1
    check_counts([drawn[number] for number in large])
    others = {int(v) for v in np.unique(made)} - {0, 1, VOID}
    total = sum(ndimage.label(label == MASK, np.ones((3, 3)))[1] for label in (1, 2, 3, 4))
    assert len(others) == total - 1


# --- instances ----------------------------------------------------------------------------------------------------------

INSTANCES = MASK.astype(np.uint16)
for _class, _number in ((1, 3), (2, 7), (3, 900), (4, 2)):
    INSTANCES[_class == MASK] = _number
NUMBERS = [2, 3, 7, 900]
CENTERS = {
    number: (y + 0.5, x + 0.5)
    for number, (y, x) in zip(NUMBERS, ndimage.center_of_mass(np.ones(SHAPE), INSTANCES, NUMBERS), strict=True)
}
PIXELS = {number: int((number == INSTANCES).sum()) for number in NUMBERS}
LEAST = sorted(PIXELS.values())[1]
LARGE = [number for number in NUMBERS if PIXELS[number] >= LEAST]


@pytest.mark.covers("InstanceCenters", "InstanceOffsets")
def test_centers_and_offsets_are_scipys_centers_of_mass():
    heat = np.max([gaussian(x, y, 5) for y, x in CENTERS.values()], axis=0)
    np.testing.assert_allclose(derived(InstanceCenters(sigma_px=5, void=VOID), mask=INSTANCES)[0], heat, atol=1e-5)
    expected = np.zeros((*SHAPE, 2))
    for number, (y, x) in CENTERS.items():
        rows, columns = np.nonzero(number == INSTANCES)
        expected[rows, columns] = np.stack([y - rows - 0.5, x - columns - 0.5], 1)
    np.testing.assert_allclose(derived(InstanceOffsets(void=VOID), mask=INSTANCES)[0], expected, atol=1e-3)


@pytest.mark.covers("InstanceBoxes", "InstanceClasses")
def test_boxes_and_classes_of_instances():
    labels = (PHOTO[:, :, 0] // 64).astype(np.uint8)
    for least, numbers in ((1, NUMBERS), (LEAST, LARGE)):
        found = [ndimage.find_objects((number == INSTANCES).astype(int))[0] for number in numbers]
        boxes = [(s[1].start, s[0].start, s[1].stop, s[0].stop) for s in found]
        options = {"min_px": least, "void": VOID}
        np.testing.assert_array_equal(derived(InstanceBoxes(**options), mask=INSTANCES)[0], boxes)
        majority = [np.bincount(labels[number == INSTANCES]).argmax() for number in numbers]
        assert len(set(majority)) > 1
        np.testing.assert_array_equal(derived(InstanceClasses(**options), mask=INSTANCES, classes=labels)[0], majority)


@pytest.mark.covers("OneInstance")
def test_one_instance_is_any_of_the_numbers():
    drawn = Counter()
    for made in derived(OneInstance("mask", min_px=LEAST, void=VOID), 150, mask=INSTANCES):
        number = int(INSTANCES[made == 1][0])
        expected = np.select([number == INSTANCES, INSTANCES == VOID, INSTANCES == 0], [1, VOID, 0], 2)
        np.testing.assert_array_equal(made, expected)
        drawn[number] += 1
    check_counts([drawn[number] for number in LARGE])
    assert set(drawn) == set(LARGE)
    labels = np.where((INSTANCES == 2) | (INSTANCES == 900), 7, 3).astype(np.uint8)
    only = derived(OneInstance("mask", classes="classes", target=7, void=VOID), 60, mask=INSTANCES, classes=labels)
    assert {int(INSTANCES[made == 1][0]) for made in only} == {2, 900}


@pytest.mark.covers("UNetWeights")
def test_unet_weights_are_equation_2():
    """Ronneberger et al., MICCAI 2015, on SciPy's distances."""
    cells, _ = ndimage.label(classes(1, void=False) == 3, np.ones((3, 3)))
    void = classes(1) == VOID
    numbered = cells.astype(np.uint8)
    with_void = np.where(void, VOID, numbered).astype(np.uint8)

    def reference(cells, void, inside_too, balanced):
        numbers = [n for n in np.unique(cells) if n]
        two = np.sort([to(cells == n) for n in numbers], axis=0)[:2].sum(0)
        inside, counted = cells > 0, ~void
        outside = counted & ~inside
        total = counted.sum()
        balance = np.where(inside, total / (2 * inside.sum()), total / (2 * outside.sum())) if balanced else 1
        gaps = 10 * np.exp(-(two**2) / (2 * 5**2))
        return np.where(void, 0, balance + (gaps if inside_too else np.where(inside, 0, gaps)))

    nothing = np.zeros(SHAPE, bool)
    seen = np.where(void, 0, numbered)
    for op, mask, expected in (
        (UNetWeights(), numbered, reference(numbered, nothing, False, True)),
        (UNetWeights(inside=True, balance=False), numbered, reference(numbered, nothing, True, False)),
        (UNetWeights(instances=False), (numbered > 0).astype(np.uint8), reference(numbered, nothing, False, True)),
        (UNetWeights(void=VOID), with_void, reference(seen, void, False, True)),
    ):
        np.testing.assert_allclose(derived(op, mask=mask)[0], expected, atol=2e-3, err_msg=repr(op))
    one = (numbered == numbered.max()).astype(np.uint8)
    assert len(np.unique(derived(UNetWeights(), mask=one)[0])) == 2  # a single cell has no gap


# --- filters ------------------------------------------------------------------------------------------------------------


def luma(image):
    """ITU-R BT.601, rounded."""
    return np.rint(image @ np.array([0.299, 0.587, 0.114]))


@pytest.mark.covers("Sobel")
def test_sobel_is_scipys():
    right, down = (ndimage.sobel(luma(PHOTO), axis, mode="reflect") / 8 for axis in (1, 0))
    np.testing.assert_allclose(derived(Sobel(of="both"), image=PHOTO)[0], np.stack([right, down], 2), atol=0.26)
    np.testing.assert_allclose(derived(Sobel(), image=PHOTO)[0], np.hypot(right, down), atol=0.36)


@pytest.mark.covers("Canny")
def test_canny_marks_the_edges_of_scikit_image():
    """On a scene of plain regions, whose edges do not depend on details of smoothing, to one pixel."""
    image = np.repeat(np.array([30, 0, 200, 90, 0, 140], np.uint8)[np.where(SCENE == VOID, 0, SCENE)][:, :, None], 3, 2)
    ours = derived(Canny(low=100, high=200), image=image)[0] == 1
    theirs = canny(image[:, :, 0] / 255, sigma=0.7, low_threshold=0.05, high_threshold=0.1)
    assert ours.sum() > 300
    assert to(theirs)[ours].max() <= 2
    assert to(ours)[theirs].max() <= 2
    faint = np.where(SCENE == 2, 40, 30).astype(np.uint8)[:, :, None].repeat(3, 2)  # |gx| + |gy| = 4 * 10
    assert not derived(Canny(low=10, high=60), image=faint)[0].any()
    assert derived(Canny(low=10, high=35), image=faint)[0].any()
