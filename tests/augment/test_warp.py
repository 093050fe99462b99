"""One resampling of every field, compared with brute force, SciPy and Pillow."""

import itertools

import numpy as np
import pytest
from PIL import Image
from scipy import ndimage

from tests.addresses import check_equal_bytes
from tests.fidelity.public import area_shares
from tfprep.augment import CenterCrop, Crop, Flip, RandomResizedCrop, Resize, Rotate, Scale
from tfprep.augment.transform import Transform, about_center, identity, scaling, translation
from tfprep.augment.warp import reduction_for, warp_sample
from tfprep.errors import SampleError
from tfprep.optional import cv2

RNG = np.random.default_rng(0)
IMAGE = RNG.integers(0, 256, (37, 53, 3), dtype=np.uint8)
SMOOTH = np.asarray(Image.fromarray(IMAGE[:5, :7]).resize((210, 150), Image.Resampling.BICUBIC))
MASK = RNG.integers(1, 9, (37, 53), dtype=np.uint8)
KINDS = {"image": "image", "mask": "mask", "map": "map", "points": "points", "boxes": "boxes"}


def compose(size, *ops, seed=0):
    generator = np.random.default_rng(seed)
    transform = identity(size)
    for op in ops:
        transform = transform.then(op(transform.size, generator))
    return transform


def warped(array, transform, kind="image", **options):
    return warp_sample({"x": array}, {"x": kind}, transform, **options)["x"]


@pytest.mark.parametrize("dtype", ["uint8", "uint16", "int32", "int64", "float16", "float32", "float64", "bool"])
def test_every_flip_and_quarter_turn_is_exact(dtype):
    array = RNG.integers(0, 2, (9, 12, 6)).astype(dtype)
    for turns in range(4):
        for mirror in (False, True):
            expected = np.rot90(array[:, ::-1] if mirror else array, turns)
            angle, size = np.deg2rad(90 * turns), expected.shape[:2]
            turn = np.array([[np.cos(angle), np.sin(angle)], [-np.sin(angle), np.cos(angle)]])
            centered = about_center(turn @ np.diag([-1.0 if mirror else 1.0, 1.0]), (9, 12)).matrix
            transform = Transform(translation((size[1] - 12) / 2, (size[0] - 9) / 2) @ centered, size)
            np.testing.assert_array_equal(warped(array, transform, "map"), expected, strict=True)
            assert transform.mirrors == mirror


def test_a_point_on_an_edge_is_visible_in_the_mirror_image_too():
    points = np.array([[0, 3, 2], [53, 37, 1], [20, 0, 2], [-0.1, 3, 2], [20, 37.1, 1]], np.float32)
    mirrored = warp_sample({"image": IMAGE, "points": points}, KINDS, compose((37, 53), Flip(1)))["points"]
    np.testing.assert_allclose(mirrored[:, :2], points[:, :2] * [-1, 1] + [53, 0], atol=1e-5)
    assert mirrored[:, 2].tolist() == [2, 1, 2, 0, 0]


def test_a_flip_commutes_with_shrinking():
    resize, flip = Resize(16, 17), Flip(1)
    np.testing.assert_array_equal(
        warped(np.ascontiguousarray(IMAGE[:, ::-1]), resize((37, 53), None)),
        warped(IMAGE, compose((37, 53), resize, flip)),
    )


@pytest.mark.parametrize("channels", [1, 2, 3, 4, 5, 9, 129, 513])
def test_any_number_of_channels(channels):
    """Also more than OpenCV takes: each channel is warped as by itself."""
    array = RNG.random((20, 22, channels)).astype(np.float32)
    for op in (Flip(1), Rotate((30, 30)), Scale((0.3, 0.3)), Resize(7, 8), Resize(40, 44), Crop(30, 30)):
        transform = compose((20, 22), op)
        out = warped(array, transform, "map", fill={"x": tuple(float(c) for c in range(channels))})
        assert out.shape == (*transform.size, channels)
        for c in {*range(min(channels, 9)), 127, 128, channels - 1} & {*range(channels)}:
            single = warped(np.ascontiguousarray(array[:, :, c]), transform, "map", fill={"x": float(c)})
            np.testing.assert_allclose(out[:, :, c], single, atol=1e-5)


def test_whole_number_maps_are_rounded_and_floats_kept():
    array = np.array([[0, 1], [1, 2]], np.int64)
    assert warped(array, Resize(1, 1)((2, 2), None), "map").tolist() == [[1]]
    for dtype in ("int32", "uint32", "int64", "uint64"):  # float32 holds the largest number plus 1
        highest = np.full((6, 6), np.iinfo(dtype).max, dtype)
        np.testing.assert_array_equal(warped(highest, Resize(3, 3)((6, 6), None), "map"), highest[:3, :3])
    half = np.array([[0, 1], [0, 0]], np.float16)
    out = warped(half, Resize(1, 1)((2, 2), None), "map")
    assert out.dtype == np.float16
    assert out.tolist() == [[0.25]]


CHAINS = {
    "resize": [Resize(20, 31)], "enlarge": [Resize(50, 80)], "mixed": [Resize(50, 20)], "crop": [Crop(20, 30)],
    "pad": [Crop(50, 30)], "letterbox": [Resize(40, 40, pad=True)],
    "crop-resize-flip": [RandomResizedCrop(24, 24), Flip(1)], "rotate": [Rotate((17, 17))],
    "all": [Flip(1), Rotate((-25, -25)), Scale((1.3, 1.3)), Crop(25, 25)],
}  # fmt: skip


@pytest.mark.parametrize("factor", [2, 4, 8])
@pytest.mark.parametrize("window", [(0, 150, 0, 210), (3, 149, 10, 201), (8, 136, 16, 208)])
@pytest.mark.parametrize("size", [(150, 210), (149, 207)])
def test_a_reduced_raster_is_averaged_over_exactly_the_window(factor, window, size):
    picture = SMOOTH[: size[0], : size[1]]
    top, bottom, left, right = window[0], min(window[1], size[0]), window[2], min(window[3], size[1])
    height, width = (bottom - top) // factor, (right - left) // factor
    rows, columns = -(-size[0] // factor) * factor - size[0], -(-size[1] // factor) * factor - size[1]
    padded = np.pad(picture, ((0, rows), (0, columns), (0, 0)), "edge")
    small = padded.reshape(len(padded) // factor, factor, -1, factor, 3).mean((1, 3)).astype(np.float32)
    matrix = scaling(width / (right - left), height / (bottom - top)) @ translation(-left, -top)
    out = warped(small, Transform(matrix, (height, width)), "map", size=size, reduced=factor)
    down = area_shares(len(small), top / factor, bottom / factor, height)
    along = area_shares(small.shape[1], left / factor, right / factor, width)
    np.testing.assert_allclose(
        out, np.einsum("ai,bj,ijc->abc", down, along, small.astype(float), optimize=True), atol=1e-3
    )


@pytest.mark.parametrize("size", [(321, 340), (58, 244)])
def test_a_reduced_image_and_its_mask_end_at_the_same_pixels(size):
    for seed in range(60):
        transform = compose(size, Scale((0.2, 0.5)), seed=seed)
        reduced = reduction_for(transform)
        white = np.full((*(-(-side // reduced) for side in size), 3), 255, np.uint8)
        sample = {"image": white, "mask": np.ones(size, np.uint8)}
        options = {"size": size, "reduced": reduced, "fill": {"mask": 0}}
        out = warp_sample(sample, {"image": "image", "mask": "mask"}, transform, **options)
        np.testing.assert_array_equal(out["image"][:, :, 0] > 0, out["mask"] > 0)


def test_a_matrix_that_was_changed_is_seen():
    transform = Transform(np.eye(3), IMAGE.shape[:2])
    np.testing.assert_array_equal(warped(IMAGE, transform), IMAGE)
    assert reduction_for(transform) == 1
    transform.matrix[0, 2] = 3
    np.testing.assert_array_equal(warped(IMAGE, transform)[:, 3:], IMAGE[:, :-3])
    transform.matrix[:2, :2] /= 4
    assert reduction_for(transform) == 4


def test_a_whole_box_is_visible_where_its_resized_sides_are_rounded():
    for size, output in itertools.product(range(1, 60), range(1, 60)):
        box = np.array([[0, 0, size, size]], np.float32)
        resized = warped(box, Resize(output, output)((size, size), None), "boxes", size=(size, size), min_visible=1.0)
        np.testing.assert_array_equal(resized, [[0, 0, output, output]])


def test_reduction_for_depends_on_the_largest_scale():
    scales = [1.2, 1, 0.51, 0.5, 0.26, 0.25, 0.126, 0.125, 0.01]
    reductions = [reduction_for(Transform(scaling(scale / 3, scale), (9, 9))) for scale in scales]
    assert reductions == [1, 1, 1, 2, 2, 4, 4, 8, 8]
    assert reduction_for(compose((100, 100), Rotate((40, 40)), Scale((0.5, 0.5)))) == 2
    far_edge_is_magnified = np.array([[1, 0, 0], [0, 1, 0], [0, -0.005, 1]]) @ scaling(0.4, 0.4)
    assert reduction_for(Transform(far_edge_is_magnified, (50, 50))) == 1


@pytest.mark.parametrize("scale", [0.7, 0.9])
def test_rotation_with_shrinking_is_antialiased(scale):
    """Compared with SciPy's linear interpolation, averaged over 8 x 8 points per output pixel."""
    noise = np.random.default_rng(1).integers(0, 256, (64, 64)).astype(np.float32)
    transform = compose((64, 64), Rotate((17, 17)), Scale((scale, scale)))
    fine = (np.arange(64 * 8) + 0.5) / 8
    xy = transform.pull(np.stack(np.meshgrid(fine, fine), axis=-1))
    points = ndimage.map_coordinates(noise, [xy[..., 1] - 0.5, xy[..., 0] - 0.5], order=1, mode="nearest")
    expected = points.reshape(64, 8, 64, 8).mean((1, 3))
    inner = np.s_[16:48, 16:48]
    out = warped(noise, transform, "map")
    assert np.sqrt(np.mean((out - expected)[inner] ** 2)) < 8  # 25 without averaging.


@pytest.mark.parametrize("dtype", ["int8", "int16", ">u2", "int32", "uint32", "int64", "uint64"])
def test_masks_of_any_type_show_the_same_pixels_when_turned(dtype):
    """Their numbers are the largest of the type; float64 does not hold those of 64 bits."""
    of_class = np.array([np.iinfo(dtype).max - number for number in range(9)], dtype)
    of_class[0] = 0
    for degrees in np.linspace(1, 89, 40):
        turned = compose((37, 53), Rotate((degrees, degrees)))
        out = warped(of_class[MASK], turned, "mask", fill={"x": 0})
        assert out.dtype == dtype
        np.testing.assert_array_equal(out, of_class[warped(MASK, turned, "mask", fill={"x": 0})])


def test_boxes_without_area_are_not_dropped_beside_rows_of_which_nothing_is_known():
    sample = {
        "image": IMAGE,
        "boxes": np.array([[1, 1, 5, 5], [7, 7, 7, 9]]),
        "labels": np.arange(2),
        "label": np.int64(1),
    }
    kinds, mirror = (
        {"image": "image", "boxes": "boxes", "labels": "label", "label": "label"},
        compose((37, 53), Flip(1)),
    )
    with pytest.raises(SampleError, match=r"write row_fields={'boxes': \['labels'\]}, or \[\] if not"):
        warp_sample(sample, kinds, mirror)
    for rows, kept in ({"boxes": ["labels"]}, [0]), ({"boxes": []}, [0, 1]):
        out = warp_sample(sample, kinds, mirror, row_fields=rows)
        assert (out["boxes"].tolist(), out["labels"].tolist()) == ([[48, 1, 52, 5]], kept)


TURNED = compose((37, 53), Rotate((5, 5)))
WRONG = [
    (IMAGE, "mask", identity((37, 53)), {}, r"a mask is \[H, W\]"),
    (np.zeros((2, 3)), "boxes", identity((37, 53)), {}, r"boxes are \[N, 4\]"),
    (IMAGE, "image", TURNED, {"fill": {"x": (1, 2)}}, "one per channel"),
    *(
        (IMAGE, "image", TURNED, {"fill": {"x": fill}}, "fill is .*, which uint8 does not hold; give a whole number")
        for fill in (0.5, 256, -1, (0.485, 0.456, 0.406), float("nan"))
    ),
    *(
        (IMAGE, "image", Transform(matrix, size), {}, "a size of at least 1 x 1 and a matrix that can be inverted")
        for matrix, size in ((np.diag([0.0, 1, 1]), (37, 53)), (np.eye(3), (0, 53)), (np.eye(3), (37, 0)))
    ),
    *(
        (IMAGE, "image", Transform(np.full((3, 3), bad), (37, 53)), {}, "a matrix that can be inverted")
        for bad in (np.nan, np.inf)
    ),
]


@pytest.mark.parametrize(("array", "kind", "transform", "options", "message"), WRONG)
def test_what_cannot_be_warped_is_named(array, kind, transform, options, message):
    with pytest.raises(SampleError, match=message) as caught:
        warped(array, transform, kind, **options)
    assert caught.value.stage == "geometry"
    assert caught.value.field == ("" if "inverted" in message else "x")


def test_a_long_thin_image_is_not_made_so_large_that_it_takes_gigabytes():
    thin, enlarge = np.zeros((2, 20_000, 3), np.uint8), Resize(shorter=256)
    with pytest.raises(SampleError, match="makes 2560000 x 256 pixels of an image of 20000 x 2") as caught:
        warped(thin, enlarge((2, 20_000), None))
    assert caught.value.stage == "geometry"
    middle = enlarge((2, 20_000), None).then(CenterCrop(224, 224)((256, 2_560_000), None))
    assert warped(thin, middle).shape == (224, 224, 3)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("fill", [0.1, float("nan")])
def test_floats_are_filled_with_fractions_and_nan(dtype, fill):
    pytest.importorskip("ml_dtypes")  # it gives NumPy bfloat16
    larger = warped(IMAGE[..., 0].astype(dtype), identity((38, 54)), "map", fill={"x": fill}).astype(float)
    np.testing.assert_allclose(larger[-1], fill, rtol=1e-2)
    quarter = warped(np.array([[0, 1], [0, 0]], dtype), Resize(1, 1)((2, 2), None), "map")
    assert (quarter.dtype, float(quarter[0, 0])) == (dtype, 0.25)


def test_a_lack_of_memory_is_no_fault_of_the_sample(monkeypatch):
    resize, enlarged = cv2.resize, Resize(7, 7)((2, 2), None)
    monkeypatch.setattr(cv2, "resize", lambda image, size, **options: resize(image, (1 << 30, 1 << 30), **options))
    with pytest.raises(MemoryError, match=r"cannot warp an array of shape \(2, 2, 3\): .*Insufficient memory"):
        warp_sample({"image": np.zeros((2, 2, 3), np.uint8)}, {"image": "image"}, enlarged)


@pytest.mark.parametrize("name", CHAINS)
def test_equal_bytes_at_any_memory_address_and_with_any_number_of_threads(name):
    transform = compose((37, 53), *CHAINS[name], seed=3)
    arrays = {"image": IMAGE, "mask": MASK, "map": RNG.random((37, 53)).astype(np.float32)}
    check_equal_bytes(lambda sample: warp_sample(sample, KINDS, transform, fill={"mask": 9}), arrays)
