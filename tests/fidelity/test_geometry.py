"""Geometry ops: markers that are drawn into an image and found again, against formulas; every field against the others.

Two fields tell where each output pixel comes from: the map `where` holds the coordinates of its own pixel centers, which linear
interpolation keeps exactly, and the map `inside` is 1. So nothing here reads a matrix of tfprep.
"""

from math import cos, pi, radians, sin, sqrt, tan

import numpy as np
import pytest
from PIL import Image
from scipy import ndimage

from tests.fidelity.public import area_shares, check_counts, check_share, check_uniform, variants
from tfprep.augment import (
    CenterCrop,
    Crop,
    Custom,
    Elastic,
    Flip,
    Maybe,
    OneOf,
    Perspective,
    RandomResizedCrop,
    Resize,
    Rotate,
    Rotate90,
    Scale,
    Shear,
    SomeOf,
    Translate,
)
from tfprep.errors import SampleError

H, W = SIZE = (96, 128)
KINDS = {
    "image": "image", "where": "map", "inside": "map", "mask": "mask", "box_mask": "mask", "boxes": "boxes",
    "points": "points",
}  # fmt: skip
BOX = (40, 30, 84, 62)
MARKERS = np.array([[50.5, 40.5], [80.5, 44.5], [58.5, 60.5]])
POINTS = np.array(
    [[10.2, 12.5, 1], [64.0, 48.0, 2], [100.3, 20.1, 1], [30.7, 80.9, 2], [118.0, 88.0, 1], [70.1, 60.6, 0]]
)
VOID = 255


def scene(size=SIZE, seed=0):
    height, width = size
    rng = np.random.default_rng(seed)
    noise = ndimage.gaussian_filter(rng.normal(size=(height, width, 3)), (3, 3, 0))
    image = np.clip(128 + noise * 60 / noise.std(), 0, 255).astype(np.uint8)
    y, x = np.mgrid[:height, :width] + 0.5
    blobs = ndimage.gaussian_filter(rng.normal(size=size), 5)
    mask = np.digitize(blobs, np.quantile(blobs, [0.25, 0.5, 0.75])).astype(np.uint8)
    box_mask = np.zeros(size, np.uint8)
    box_mask[BOX[1] : BOX[3], BOX[0] : BOX[2]] = 1
    return {
        "image": image, "where": np.stack([x, y], -1).astype(np.float32), "inside": np.ones(size, np.float32),
        "mask": mask, "box_mask": box_mask, "boxes": np.array([BOX], np.float32), "points": POINTS.astype(np.float32),
    }  # fmt: skip


def interpolated(raster, x, y):
    """Linear interpolation at continuous coordinates."""
    planes = np.moveaxis(raster.astype(float).reshape(*raster.shape[:2], -1), 2, 0)
    return np.stack(
        [ndimage.map_coordinates(plane, [y - 0.5, x - 0.5], order=1, mode="nearest") for plane in planes], -1
    )


# --- formulas -----------------------------------------------------------------------------------------------------------


def about_center(a, b, c, d):
    return lambda x, y: (W / 2 + a * (x - W / 2) + b * (y - H / 2), H / 2 + c * (x - W / 2) + d * (y - H / 2))


C, S = cos(radians(25)), sin(radians(25))
MOVES = {
    "Flip": (Flip(1), lambda x, y: (W - x, y), SIZE),
    "Flip, vertical": (Flip(1, "vertical"), lambda x, y: (x, H - y), SIZE),
    # Counter-clockwise as seen, y pointing down.
    "Rotate": (Rotate((25, 25)), about_center(C, S, -S, C), SIZE),
    "Scale": (Scale((1.25, 1.25)), about_center(1.25, 0, 0, 1.25), SIZE),
    "Scale, smaller": (Scale((0.75, 0.75)), about_center(0.75, 0, 0, 0.75), SIZE),
    "Shear": (Shear((20, 20), (-10, -10)), about_center(1, tan(radians(20)), tan(radians(-10)), 1), SIZE),
    "Translate": (Translate((0.06, 0.06), (-0.1, -0.1)), lambda x, y: (x + round(0.06 * W), y + round(-0.1 * H)), SIZE),
    "Translate, part of a pixel": (
        Translate((0.06, 0.06), (-0.1, -0.1), whole=False),
        lambda x, y: (x + 0.06 * W, y - 0.1 * H),
        SIZE,
    ),
    "CenterCrop": (CenterCrop(70, 90), lambda x, y: (x - 19, y - 13), (70, 90)),
    "CenterCrop, padded": (CenterCrop(120, 160), lambda x, y: (x + 16, y + 12), (120, 160)),
    "Resize, smaller": (Resize(72, 100), lambda x, y: (x * 100 / W, y * 72 / H), (72, 100)),
    "Resize, larger": (Resize(200, 150), lambda x, y: (x * 150 / W, y * 200 / H), (200, 150)),
    "Resize, shorter": (Resize(shorter=48), lambda x, y: (x / 2, y / 2), (48, 64)),
    "Resize, letterbox": (Resize(longer=64, pad=True), lambda x, y: (x / 2, y / 2 + 8), (64, 64)),
    "Custom": (
        Custom(lambda sample, generator: {**sample, **{name: sample[name][:, 8:] for name in KINDS if np.ndim(sample[name]) > 2}
                                          , **{name: sample[name][:, 8:] for name in ("inside", "mask", "box_mask")},
                                          "points": sample["points"] - np.float32([8, 0, 0]),
                                          "boxes": sample["boxes"] - np.float32([8, 0, 8, 0])}),
        lambda x, y: (x - 8, y), (H, W - 8),
    ),
}  # fmt: skip


@pytest.mark.covers("Flip", "Rotate", "Scale", "Shear", "Translate", "CenterCrop", "Resize", "Custom")
def test_markers_points_boxes_and_masks_lie_where_the_formula_says():
    for name, (op, formula, size) in MOVES.items():
        sample = scene()
        y, x = np.mgrid[:H, :W] + 0.5
        spots = [np.exp(-((x - mx) ** 2 + (y - my) ** 2) / (2 * 2.0**2)) for mx, my in MARKERS]
        sample["image"] = np.rint(255 * np.stack(spots, -1)).astype(np.uint8)
        discs = [np.hypot(x - mx, y - my) < 6 for mx, my in MARKERS]
        sample["mask"] = np.select(discs, [1, 2, 3], 0).astype(np.uint8)
        out = variants(sample, KINDS, geometry=[op], fill={"mask": 0, "box_mask": 0})[0]
        assert out["image"].shape[:2] == size, name
        rows, columns = np.mgrid[: size[0], : size[1]] + 0.5
        for number, (mx, my) in enumerate(MARKERS):
            expected = np.array(formula(mx, my))
            light, disc = out["image"][:, :, number].astype(float), out["mask"] == number + 1
            found = np.array([(light * columns).sum(), (light * rows).sum()]) / light.sum()
            np.testing.assert_allclose(found, expected, atol=0.05, err_msg=f"{name}: the image")
            np.testing.assert_allclose([columns[disc].mean(), rows[disc].mean()], expected, atol=0.51, err_msg=name)
        px, py = formula(POINTS[:, 0], POINTS[:, 1])
        np.testing.assert_allclose(out["points"][:, :2], np.stack([px, py], 1), atol=1e-3, err_msg=f"{name}: points")
        seen = (px >= 0) & (px < size[1]) & (py >= 0) & (py < size[0])
        assert out["points"][:, 2].tolist() == np.where(seen, POINTS[:, 2], 0).tolist(), name
        corners = np.array([formula(BOX[i], BOX[j]) for i in (0, 2) for j in (1, 3)])
        expected = np.clip([*corners.min(0), *corners.max(0)], 0, [size[1], size[0]] * 2)
        np.testing.assert_allclose(out["boxes"][0], expected, atol=1e-3, err_msg=f"{name}: boxes")


@pytest.mark.covers("Rotate")
def test_rotation_is_pillows():
    image = scene()["image"]
    ours = variants({"image": image}, {"image": "image"}, geometry=[Rotate((25, 25))])[0]["image"]
    pillow = np.asarray(Image.fromarray(image).rotate(25, Image.Resampling.BILINEAR))
    inner = np.s_[30:-30, 40:-40]
    assert np.abs(ours[inner].astype(int) - pillow[inner]).max() <= 1


@pytest.mark.covers("Rotate90")
def test_quarter_turns_are_numpys_and_equally_likely():
    sample = scene()
    made = variants(sample, KINDS, 200, geometry=[Rotate90()])
    turns = []
    for out in made:
        turn = next(k for k in range(4) if np.array_equal(out["image"], np.rot90(sample["image"], k)))
        turns.append(turn)
        np.testing.assert_array_equal(out["mask"], np.rot90(sample["mask"], turn))
        np.testing.assert_allclose(out["where"][5, 7], np.rot90(sample["where"], turn)[5, 7])
        x0, y0, x1, y1 = (round(float(v)) for v in out["boxes"][0])
        assert out["box_mask"][y0:y1, x0:x1].all()
        assert out["box_mask"].sum() == (y1 - y0) * (x1 - x0)
    check_counts([turns.count(k) for k in range(4)])


# --- all fields together ------------------------------------------------------------------------------------------------

TRACKED = [
    Flip(), Rotate(40), Rotate90(), Scale((1.0, 1.6)), Shear(15, 10), Translate(0.2, 0.2),
    Translate(0.2, 0.2, whole=False), Perspective(0.5), Elastic(120, 10), Crop(60, 70),
    CenterCrop(70, 80), RandomResizedCrop(110, 130, scale=(0.3, 0.7)), Resize(130, 150), Maybe(Flip(1), 0.5),
    OneOf([Flip(1), Shear(20, 0)]), SomeOf([Flip(1), Rotate(20), Crop(80, 90)], 2),
]  # fmt: skip
CHAINS = [[op] for op in TRACKED] + [
    [Rotate(20), Scale((1.2, 1.5)), Crop(90, 110), Flip()],
    [Perspective(0.2), Elastic(60, 8), Rotate90()],
    [Custom(lambda sample, generator: sample), Flip(1), Custom(lambda sample, generator: sample), Rotate(10)],
]


def chain_name(ops):
    return " ".join(type(op).__name__ for op in ops)


@pytest.mark.parametrize(
    "ops",
    [
        pytest.param(ops, marks=pytest.mark.covers(*{type(op).__name__ for op in ops}), id=chain_name(ops))
        for ops in CHAINS
    ],
)
@pytest.mark.precise_warps
def test_every_field_follows_the_same_map(ops):
    sample, points_seen, boxes_seen = scene(), 0, 0
    for out in variants(sample, KINDS, 6, geometry=ops, fill=dict.fromkeys(("mask", "box_mask"), VOID)):
        x, y = out["where"][:, :, 0], out["where"][:, :, 1]
        height, width = x.shape
        known = ndimage.binary_erosion(out["inside"] > 0.9999, iterations=2)
        known[[0, 1, -2, -1]] = False
        known[:, [0, 1, -2, -1]] = False
        assert known.sum() > 800
        rows, columns = (np.clip(np.floor(v).astype(int), 0, n - 1) for v, n in ((y, H), (x, W)))
        on_edge = (np.abs(x - np.rint(x)) < 0.02) | (np.abs(y - np.rint(y)) < 0.02)
        for name in ("mask", "box_mask"):
            differ = known & ~on_edge & (out[name] != sample[name][rows, columns])
            assert not differ.any(), f"{name}: {differ.sum()} pixels"
            lost = ndimage.binary_erosion(out["inside"] == 0, iterations=2)
            assert (out[name][lost] == VOID).all(), f"{name}: outside is void"
        image = interpolated(sample["image"], x, y)
        difference = np.abs(out["image"] - image)[known]
        # Ops that shrink a part of the image average there; a shift by a tenth of a pixel has a mean of 1.
        assert difference.max() < 12
        assert difference.mean() < 0.8
        for (px, py, visible), (ox, oy, was) in zip(out["points"], sample["points"], strict=True):
            within = 0 <= px < width and 0 <= py < height
            assert visible == (was if within else 0)
            if 3 < px < width - 3 and 3 < py < height - 3 and known[int(py), int(px)]:
                np.testing.assert_allclose(
                    interpolated(out["where"], np.array([px]), np.array([py]))[0], [ox, oy], atol=0.06
                )
                points_seen += 1
        pixels = np.argwhere(out["box_mask"] == 1)
        if len(pixels):
            extent = np.array([*pixels.min(0)[::-1], *(pixels.max(0)[::-1] + 1)])
            whole = extent[0] > 0 and extent[1] > 0 and extent[2] < width and extent[3] < height
            # A corner outside the output makes the box larger than what is seen of it.
            beyond = np.abs(out["boxes"][0] - extent) if whole else (out["boxes"][0] - extent) * [1, 1, -1, -1]
            assert beyond.max() < 1.6, (out["boxes"], extent)
            boxes_seen += whole
    assert points_seen >= 5
    assert boxes_seen >= 1


def test_unaugmented_ops_show_the_image_as_it_is():
    sample = scene()
    for op in TRACKED[:9]:
        out = variants(sample, KINDS, first=0, geometry=[op])[0]
        for name, value in sample.items():
            np.testing.assert_array_equal(out[name], value, err_msg=f"{op}: {name}")


# --- outside the image, shrinking ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("border", "mode"), [("reflect", "symmetric"), ("replicate", "edge"), ("constant", "constant")]
)
def test_borders_are_numpys(border, mode):
    """Wider than the image, where a mirror shows it several times, as well; and of a turn by next to nothing."""
    sample = {name: scene()[name] for name in ("image", "mask", "inside")}
    kinds = {name: KINDS[name] for name in sample}
    fill = {"image": (10, 20, 30), "mask": VOID, "inside": -2.5}
    turned = [Scale((1.001, 1.001)), Rotate((1e-3, 1e-3)), CenterCrop(120, 160)]
    for chain, pad, off, most in (
        ([CenterCrop(120, 160)], (12, 16), 0, 0),
        ([CenterCrop(400, 128)], (152, 0), 0, 0),
        (turned, (12, 16), 6, 0.06),
    ):
        out = variants(sample, kinds, geometry=chain, border=border, fill=fill)[0]
        for name, value in sample.items():
            padding = [(side, side) for side in (*pad, 0)][: value.ndim]
            expected = np.pad(value, padding, mode)
            if mode == "constant":
                expected[np.pad(np.zeros(SIZE, bool), padding[:2], constant_values=True)] = fill[name]
            share = (np.abs(out[name].astype(float) - expected) > off).mean()
            assert share <= most, f"{name}, {border}: {share:.3f} of the pixels differ"


@pytest.mark.covers("Resize")
def test_shrinking_averages_areas():
    image = np.random.default_rng(0).integers(0, 256, (*SIZE, 3), dtype=np.uint8)
    for size in ((40, 50), (32, 64), (95, 127), (96, 127), (1, 1)):
        out = variants({"image": image}, {"image": "image"}, geometry=[Resize(*size)])[0]["image"]
        down, along = (area_shares(length, 0, length, count) for length, count in zip(SIZE, size, strict=True))
        assert np.abs(out - np.einsum("ai,ijc,bj->abc", down, image.astype(float), along, optimize=True)).max() <= 0.51


@pytest.mark.covers("Scale", "Rotate")
def test_shrinking_while_turning_does_not_alias():
    """White noise of deviation s, averaged over the n pixels that an output pixel covers, deviates by about s / sqrt(n)."""
    noise = np.random.default_rng(0).integers(0, 256, (400, 400, 3), dtype=np.uint8)
    chain = [Rotate((30, 30)), Scale((0.25, 0.25)), CenterCrop(60, 60)]
    out = variants({"image": noise}, {"image": "image"}, geometry=chain)[0]["image"].astype(float)
    assert out.std() < 1.3 * noise.std() / 4
    assert out.mean() == pytest.approx(noise.mean(), abs=2)


# --- draws --------------------------------------------------------------------------------------------------------------

DOTS = np.array([[0, 0], [16, 0], [0, 16]], np.float32)


def moved(op, count=600, size=(16, 16), dots=DOTS):
    """Where the op puts three dots, in `count` variants: float64 [count, 3, 2]."""
    sample = {"image": np.zeros((*size, 3), np.uint8), "points": np.asarray(dots, np.float32)}
    made = variants(sample, {"image": "image", "points": "points"}, count, geometry=[op])
    return np.array([each["points"] for each in made], float)


@pytest.mark.covers("Flip", "Maybe")
@pytest.mark.parametrize("p", [0.5, 0.2])
def test_flips_happen_with_their_probability(p):
    for op in (Flip(p), Maybe(Flip(1), p)):
        check_share(moved(op)[:, 0, 0] == 16, p)
    assert (moved(Flip(p))[:, :, 1] == DOTS[:, 1]).all()
    vertical = moved(Flip(p, "vertical"))
    check_share(vertical[:, 0, 1] == 16, p)
    assert (vertical[:, :, 0] == DOTS[:, 0]).all()


@pytest.mark.covers("Rotate", "Scale", "Shear", "Translate")
def test_ranges_are_drawn_uniformly():
    def along(op):
        dots = moved(op)
        return (dots[:, 1] - dots[:, 0]) / 16, (dots[:, 2] - dots[:, 0]) / 16

    for degrees, low, high in ((30, -30, 30), ((10, 50), 10, 50)):
        right, _ = along(Rotate(degrees))
        check_uniform(np.degrees(np.arctan2(-right[:, 1], right[:, 0])), low - 1e-4, high + 1e-4)
    right, down = along(Scale((0.5, 2.0)))
    check_uniform(right[:, 0], 0.5, 2.0)
    np.testing.assert_allclose(right[:, 0], down[:, 1], rtol=1e-5)
    right, down = along(Shear(30, (5, 20)))
    check_uniform(np.degrees(np.arctan(down[:, 0])), -30, 30)
    check_uniform(np.degrees(np.arctan(right[:, 1])), 5, 20)
    assert abs(np.corrcoef(down[:, 0], right[:, 1])[0, 1]) < 0.2  # 4.9 standard deviations of 600 independent pairs
    for whole in (False, True):
        dots = moved(Translate((-0.25, 0.5), 0.3, whole=whole), size=(100, 200))
        check_uniform(dots[:, 0, 0], -50 - whole / 2, 100 + whole / 2)
        check_uniform(dots[:, 0, 1], -30 - whole / 2, 30 + whole / 2)
        assert (dots == np.rint(dots)).all() == whole


@pytest.mark.covers("Perspective")
def test_perspective_shows_four_uniform_points_in_its_corners():
    """The corners are found by the homography that four other points define (Hartley and Zisserman, 2004, section 4.1)."""
    size, distortion = (200, 300), 0.5
    dots = np.array([[100, 60], [200, 60], [200, 140], [100, 140], [150, 100]], float)
    corners = np.array([[0, 0], [300, 0], [300, 200], [0, 200]], float)
    shares = []
    for out in moved(Perspective(distortion), 300, size, dots):
        rows = []
        for (u, v), (x, y) in zip(out[:4], dots[:4], strict=True):  # from the output to the input
            rows += [[u, v, 1, 0, 0, 0, -x * u, -x * v, -x], [0, 0, 0, u, v, 1, -y * u, -y * v, -y]]
        back = np.linalg.svd(np.array(rows))[2][-1].reshape(3, 3)
        through = np.column_stack([np.vstack([corners, out[4]]), np.ones(5)]) @ back.T
        *seen, middle = through[:, :2] / through[:, 2:]
        np.testing.assert_allclose(middle, dots[4], atol=0.05)
        inwards = np.abs(seen - corners) / [150, 100]
        assert ((np.array(seen) >= -0.05) & (np.array(seen) <= [300.05, 200.05])).all()
        shares.append(inwards)
    check_uniform(np.clip(np.ravel(shares), 0, distortion), 0, distortion)


@pytest.mark.covers("Crop", "CenterCrop")
def test_crops_are_equally_likely_at_every_position():
    made = -moved(Crop(4, 9), 1500, (8, 12))[:, 0]
    positions = [tuple(each) for each in made.astype(int)]
    check_counts([positions.count((x, y)) for y in range(5) for x in range(4)])
    assert len(set(positions)) == 20
    # Unaugmented, and where the image is smaller: the center, as torchvision's CenterCrop has it.
    sample = {"image": np.arange(8 * 12 * 3, dtype=np.uint8).reshape(8, 12, 3)}
    plain = variants(sample, {"image": "image"}, first=0, geometry=[Crop(4, 9)])[0]["image"]
    np.testing.assert_array_equal(plain, sample["image"][2:6, 2:11])
    wide = variants(sample, {"image": "image"}, geometry=[Crop(4, 15)])[0]["image"]
    assert not wide[:, 0].any()
    assert not wide[:, -2:].any()
    assert wide[:, 1:-2].any()


@pytest.mark.covers("Elastic")
def test_elastic_offsets_are_smoothed_uniform_noise():
    """Simard et al.: uniform numbers in ± 1 have the variance 1/3; a Gaussian of sigma divides it by 4 pi sigma², and gives a
    correlation of exp(-d² / 4 sigma²) at the distance d."""
    alpha, sigma, size = 60.0, 8.0, (256, 320)
    y, x = np.mgrid[: size[0], : size[1]] + 0.5
    sample = {"where": np.stack([x, y], -1).astype(np.float32)}
    made = variants(sample, {"where": "map"}, 12, geometry=[Elastic(alpha, sigma)], border="replicate")
    offsets = np.array([each["where"] - sample["where"] for each in made])[:, 30:-30, 30:-30]
    expected = alpha / (2 * sigma * sqrt(3 * pi))
    assert offsets.std() == pytest.approx(expected, rel=0.08)
    assert abs(offsets.mean()) < 0.15 * expected
    assert abs(np.corrcoef(offsets[..., 0].ravel(), offsets[..., 1].ravel())[0, 1]) < 0.12
    for d in (8, 16):
        across = np.corrcoef(offsets[:, :, :-d].ravel(), offsets[:, :, d:].ravel())[0, 1]
        down = np.corrcoef(offsets[:, :-d].ravel(), offsets[:, d:].ravel())[0, 1]
        np.testing.assert_allclose([across, down], np.exp(-(d**2) / (4 * sigma**2)), atol=0.1)


# --- rows of points and boxes -------------------------------------------------------------------------------------------


def test_left_and_right_are_exchanged_in_mirror_images_alone():
    """Two faces of nose, left eye and right eye; row 1 stays the left eye."""
    faces = np.array([[5, 5, 2], [7, 4, 2], [3, 4, 1], [12, 9, 1], [14, 8, 2], [10, 8, 2]], np.float32)
    sample = {"image": np.zeros((20, 16, 3), np.uint8), "points": faces}
    options = {"flip_indices": {"points": (0, 2, 1)}}
    nothing = Custom(lambda sample, generator: sample)
    kinds = {"image": "image", "points": "points"}
    mirrored = faces[[0, 2, 1, 3, 5, 4]] * [-1, 1, 1] + [16, 0, 0]
    cases = {
        "mirrored": ([Flip(1)], mirrored),
        "mirrored twice": ([Flip(1), Flip(1)], faces),
        "turned by half": ([Flip(1), Flip(1, "vertical")], faces * [-1, -1, 1] + [16, 20, 0]),
        "turned at once": ([Rotate((180, 180))], faces * [-1, -1, 1] + [16, 20, 0]),
        "mirrored before a function": ([Flip(1), nothing, Resize(20, 16)], mirrored),
        "mirrored before and after a function": ([Flip(1), nothing, Flip(1)], faces),
        "upside down": ([Flip(1, "vertical")], faces[[0, 2, 1, 3, 5, 4]] * [1, -1, 1] + [0, 20, 0]),
        "moved": ([Translate((-0.125, -0.125), 0.0)], faces - [2, 0, 0]),
    }
    for name, (ops, expected) in cases.items():
        out = variants(sample, kinds, geometry=ops, **options)[0]["points"]
        np.testing.assert_allclose(out, expected, atol=1e-5, err_msg=name)
        one_row_each = variants({**sample, "points": faces.reshape(2, 3, 3)}, kinds, geometry=ops, **options)[0][
            "points"
        ]
        np.testing.assert_array_equal(one_row_each, out.reshape(2, 3, 3), err_msg=name)
    with pytest.raises(SampleError, match="3 rows for each object; 5 points are not a multiple of it") as caught:
        variants({**sample, "points": faces[:5]}, kinds, geometry=[Flip(1)], **options)
    assert (caught.value.stage, caught.value.field) == ("geometry", "points")
    without = variants(sample, kinds, geometry=[Flip(1)])[0]["points"]
    np.testing.assert_allclose(without, faces * [-1, 1, 1] + [16, 0, 0], atol=1e-5)


def test_boxes_that_are_hardly_visible_go_with_their_rows():
    boxes = np.array([[0, 0, 10, 10], [20, 20, 30, 40], [4, 0, 14, 10], [90, 90, 99, 99], [1, 40, 7, 60]], np.float32)
    labels = np.array([1, 2, 3, 4, 5])  # of the last box nothing is visible
    sample = {"image": np.zeros((100, 100, 3), np.uint8), "boxes": boxes, "labels": labels}
    kinds = {"image": "image", "boxes": "boxes", "labels": "label"}
    shift = Translate((-0.08, -0.08), (0.05, 0.05))
    for least, kept in ((0.7, [1]), (0.58, [1, 2]), (0.5, [1, 2, 3]), (0.15, [0, 1, 2, 3]), (0, [0, 1, 2, 3])):
        out = variants(sample, kinds, geometry=[shift], min_visible=least, row_fields={"boxes": ["labels"]})[0]
        expected = np.clip(np.add(boxes, [-8, 5, -8, 5]), 0, 100)
        shares = np.prod(expected[:, 2:] - expected[:, :2], axis=1) / np.prod(boxes[:, 2:] - boxes[:, :2], axis=1)
        assert np.flatnonzero((shares >= least) & (shares > 0)).tolist() == kept
        np.testing.assert_allclose(out["boxes"], expected[kept])
        assert out["labels"].tolist() == labels[kept].tolist()


def test_a_mask_shows_void_outside_of_the_image_or_is_refused():
    sample, shift = {"mask": np.full((50, 50), 3, np.uint8)}, Translate((-0.08, -0.08), (0.1, 0.1))
    with pytest.raises(SampleError, match="fill"):
        variants(sample, {"mask": "mask"}, geometry=[shift])
    out = variants(sample, {"mask": "mask"}, geometry=[shift], fill={"mask": 11})[0]["mask"]
    np.testing.assert_array_equal(out, np.pad(sample["mask"][5:, 4:], ((5, 0), (0, 4)), constant_values=11))
