"""The variants of one raw sample: its steps equal the ops applied one by one, and every fault is a SampleError with its stage."""

import gc
import io
import weakref
from collections import Counter
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image

from tests.photos import written
from tfprep import Recipe, augment, codecs, images, sources
from tfprep.augment.transform import identity
from tfprep.augment.warp import warp_sample
from tfprep.builder.make_sample import SampleMaker
from tfprep.errors import BuildError, SampleError
from tfprep.seeding import generator

KINDS = {"image": "image", "mask": "mask", "boxes": "boxes", "names": "label"}
RNG = np.random.default_rng(0)


def noise(height, width):
    coarse = Image.fromarray(np.random.default_rng(1).integers(0, 256, (height // 10, width // 10, 3), np.uint8))
    return np.asarray(coarse.resize((width, height), Image.Resampling.BICUBIC))


IMAGE = noise(60, 80)
JPEG = written(noise(64, 80), "JPEG")
RAW = {
    "image": IMAGE, "mask": RNG.integers(0, 3, (60, 80), np.uint8), "boxes": [[2, 2, 20, 20], [70, 50, 79, 59]],
    "names": [4, 7],
}  # fmt: skip


def maker(kinds=KINDS, classes=None, **options):
    return SampleMaker(
        Recipe("r", sources.Folder(), **{"store": {"image": codecs.Raw()}, **options}), kinds, classes or {}
    )


def made(variant=1, raw=RAW, kinds=KINDS, **options):
    """One variant."""
    (sample,) = maker(kinds, **options).made("key", raw, [variant])
    return sample


def stored(raw, kinds, classes=None, count=1, *, pixels=True, **options):
    """The first variants with what is stored of them."""
    one = maker(kinds, classes, **options)
    return [
        SimpleNamespace(values=values, **dict(zip(("features", "specs"), one.encode(values, raw), strict=True)))
        for values in one.made("k", raw, range(count), pixels=pixels)
    ]


@pytest.fixture
def decodes(monkeypatch):
    """The reductions and sizes of the images that are decoded."""
    calls, real = [], images.decode_image

    def decode(data, *, reduced=1, **options):
        pixels = real(data, reduced=reduced, **options)
        calls.append((reduced, pixels.shape[:2]))
        return pixels

    monkeypatch.setattr(images, "decode_image", decode)
    return calls


# --- decoding -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["JPEG", "PNG"])
def test_a_variant_does_not_depend_on_how_many_there_are(form, decodes):
    raw = {"image": written(noise(600, 803), form)}
    crop = maker({"image": "image"}, geometry=[augment.RandomResizedCrop(64, 64, scale=(0.004, 1))])
    single = [next(crop.made("k", raw, [variant]))["image"] for variant in range(12)]
    scales = {reduced for reduced, _ in decodes}
    assert len(scales) == (4 if form == "JPEG" else 1)
    decodes.clear()
    together = [sample["image"] for sample in crop.made("k", raw, range(12))]
    assert sorted(reduced for reduced, _ in decodes) == sorted(scales), "variants of one scale share one decode"
    np.testing.assert_array_equal(single, together)


def test_small_targets_are_decoded_small_unless_the_recipe_or_a_mask_forbids_it(decodes):
    raw, small = {"image": written(noise(120, 160), "JPEG")}, {"geometry": [augment.Resize(15, 20)]}
    stored(raw, {"image": "image"}, **small)
    stored(raw, {"image": "image"}, **small, dct_downscale=False)
    stored({**raw, "mask": written(np.zeros((120, 160), np.uint8))}, {"image": "image", "mask": "mask"}, **small)
    stored(raw, {"image": "image"}, geometry=[augment.Resize(100, 125)])
    assert [size for _, size in decodes] == [(15, 20), (120, 160), (120, 160), (120, 160)]


def test_variant_zero_is_unaugmented_and_others_depend_only_on_key_and_number():
    crop = maker({"image": "image"}, geometry=[augment.Crop(20, 20)], color=[augment.Brightness(0.3)])
    first, *others = [one["image"] for one in crop.made("k", {"image": JPEG}, range(4))]
    np.testing.assert_array_equal(first, images.decode_image(JPEG)[22:42, 30:50])
    assert len({other.tobytes() for other in others}) == 3
    for key, same in (("k", True), ("other key", False)):
        (again,) = crop.made(key, {"image": JPEG}, [2])
        assert np.array_equal(again["image"], others[1]) == same
    assert set(crop.seconds) == {"decode", "geometry", "color"}
    before = dict(crop.seconds)
    list(crop.made("k", {"image": JPEG}, range(2)))
    assert all(crop.seconds[stage] > seconds > 0 for stage, seconds in before.items())


@pytest.mark.parametrize(
    ("kinds", "raw", "message"),
    [
        *(({"label": "label"}, {"label": n}, f"class {n} is outside the list of 2 classes") for n in (-1, 2, 900)),
        ({"mask": "mask"}, {"mask": written(np.full((8, 8), 255, np.uint8))}, "class 255 is outside the list of 2"),
        ({"age": "scalar"}, {"age": None}, "it has no value"),
        ({"age": "scalar"}, {"age": [1.0, None]}, "one of its numbers is empty or NaN"),
        ({"label": "label"}, {"label": 0.75}, "a label is a class number, or a list of them, not 0.75"),
        (
            {"tags": "label"},
            {"tags": [[1], [0]]},
            r"expected a label, whole numbers: one class, or \[K\], got int64 \[2, 1\]",
        ),
        (
            {"boxes": "boxes"},
            {"boxes": [[1, 2, 3, 4, 5, 6, 7, 8]]},
            r"expected boxes, numbers \[N, 4\], got float32 \[1, 8\]",
        ),
        (
            {"boxes": "boxes"},
            {"boxes": [[0, 0, None, 4]]},
            "one of the boxes has no number, or NaN or infinity, for a coordinate",
        ),
        ({"points": "points"}, {"points": [[1, 2, 3, 4]]}, r"expected points, .* got float32 \[1, 4\]"),
    ],
)
def test_a_value_that_cannot_be(kinds, raw, message):
    (name,) = kinds
    store = {name: codecs.Png() if name == "mask" else codecs.Scalar()}
    with pytest.raises(SampleError, match=message) as caught:
        stored(raw, kinds, {name: ("a", "b")}, store=store)
    assert (caught.value.stage, caught.value.field) == ("decode", name)
    if name == "mask":
        assert stored(raw, kinds, {name: ("a", "b")}, store=store, fill={"mask": 255}), "the fill value is allowed"
    if name == "label":
        assert stored({"label": 1}, kinds, {name: ("a", "b")}, store=store)[0].values["label"] == 1
    if name == "boxes":
        assert stored({"boxes": [1, 2, 3, 4]}, kinds, store=store)[0].values["boxes"].tolist() == [[1, 2, 3, 4]]


def test_an_image_with_nan_is_not_stored():
    """It would have no mean, and the manifest holds no NaN."""
    with pytest.raises(SampleError, match="the image holds NaN or infinity"):
        stored({"image": np.full((2, 2, 3), np.nan, np.float32)}, {"image": "image"})


ORIGINAL = {"kinds": {"image": "image"}, "store": {"image": codecs.Original()}, "pixels": False}


def test_a_kept_original_is_not_decoded(decodes):
    (one,) = stored({"image": JPEG}, **ORIGINAL)
    assert (one.features["image"], one.specs["image"].shape, decodes) == (JPEG, (64, 80, 3), [])


def test_a_damaged_original_is_not_stored():
    png = written(RNG.integers(0, 256, (30, 30, 3), np.uint8))
    for data, cuts in ((JPEG, (3, 10, 500)), (png, (1, 2, 3, 10, 500))):
        for cut in cuts:
            with pytest.raises(SampleError, match="not a whole"):
                stored({"image": data[:-cut]}, **ORIGINAL)
    for cut in (1, 2):  # All pixels are there, but other readers want the end marker.
        (made,) = stored({"image": JPEG[:-cut]}, **ORIGINAL)
        kept = Image.open(io.BytesIO(made.features["image"]))
        assert np.array_equal(np.asarray(kept), np.asarray(Image.open(io.BytesIO(JPEG))))


# --- geometry and color ------------------------------------------------------------------------------------------------------


def test_geometry_without_draws_is_asked_for_once_for_all_images_of_one_size():
    asked = []

    def half(size, draws):
        asked.append((size, draws is None))
        return augment.Resize(size[0] // 2, size[1] // 2)(size, None)

    halves = maker({"image": "image"}, geometry=[half])
    for image in (IMAGE, IMAGE[::-1], np.repeat(IMAGE, 2, axis=0), IMAGE):
        height, width = image.shape[:2]
        transform = augment.Resize(height // 2, width // 2)((height, width), None)
        expected = warp_sample({"image": image}, {"image": "image"}, transform)["image"]
        for sample in halves.made("key", {"image": image}, [0, 1]):
            assert np.array_equal(sample["image"], expected)
    small, large = (60, 80), (120, 80)
    assert Counter(asked) == {(small, True): 1, (large, True): 1, (small, False): 3, (large, False): 1}


def test_transforms_are_not_kept_beyond_their_variant():
    """The grid of an elastic transform takes megabytes."""
    grids = []

    def elastic(size, generator):
        transform = augment.Elastic()(size, generator or np.random.default_rng(0))
        grids.extend(weakref.ref(bend) for _, bend in transform.bends)
        return transform

    bent = maker({"image": "image"}, geometry=[elastic, augment.Crop(20, 20)])
    for number in range(3):
        list(bent.made("k", {"image": np.zeros((40 + number, 40, 3), np.uint8)}, range(4)))
    gc.collect()
    assert [grid() for grid in grids] == [None] * 12


@pytest.mark.parametrize("policy", [augment.RandAugment(n=3, m=12), augment.TrivialAugment()])
def test_draws_are_those_of_the_ops_name_and_number(policy):
    """Those of geometry and color of a policy are the same; tone curves that are joined give the bytes of one after the other;
    a derived input sees neither color nor the draws of others."""
    ops = [
        augment.Brightness(0.4), augment.Contrast(0.4), augment.Gamma((0.7, 1.5)),
        augment.Posterize((3, 6)), augment.Invert(), augment.Blur(), augment.Solarize(), augment.Hue(0.1),
        augment.Brightness(0.2),
    ]  # fmt: skip
    derived = {"copy": lambda sample, draws: sample["image"]}
    geometry = [augment.Rotate(20), policy]
    policy_step = f"geometry/{type(policy).__name__}/0"
    for variant in range(1, 8):
        transform = identity((60, 80)).then(geometry[0]((60, 80), generator(0, "key", variant, "geometry/Rotate/0")))
        transform = transform.then(policy((60, 80), generator(0, "key", variant, policy_step)))
        expected = warp_sample({"image": IMAGE, "mask": RAW["mask"]}, KINDS, transform, fill={"mask": 9})
        image = expected["image"]
        for number, op in enumerate(policy.color_ops(generator(0, "key", variant, policy_step))):
            image = op(image, generator(0, "key", variant, f"{policy_step}/{number}"))
        steps = [f"{type(op).__name__}/0" for op in ops[:-1]] + ["Brightness/1"]
        for step, op in zip(steps, ops, strict=True):
            image = op(image, generator(0, "key", variant, f"color/{step}"))
        rows = {"boxes": ["names"]}
        sample = made(variant, geometry=geometry, color=ops, derive=derived, fill={"mask": 9}, row_fields=rows)
        assert np.array_equal(sample["image"], image)
        assert np.array_equal(sample["mask"], expected["mask"])
        assert np.array_equal(sample["copy"], expected["image"])


# --- functions of users ------------------------------------------------------------------------------------------------------


def broken(sample, draws):
    raise RuntimeError("no idea")


def imports(image, draws):
    import not_there  # noqa: F401


def writes_in_place(sample, draws):
    sample["image"][:] = 0
    return np.zeros(sample["image"].shape[:2], np.float32)


def sets_a_field(sample, draws):
    sample["image"] = np.zeros_like(sample["image"])
    return np.zeros(sample["image"].shape[:2], np.float32)


def inverts_in_place(image, draws):
    image[:] = 255 - image
    return image


READ_ONLY = r"read-only|does not support item assignment"


CUT = augment.Custom(lambda sample, draws: {**sample, "image": sample["image"][:9]})
ONE_SIZE = "images, masks and maps of one height and width: 'image' has the shape"
WRONG_FUNCTIONS = [
    ({"geometry": [augment.Custom(broken)]}, "RuntimeError: no idea", "geometry"),
    ({"geometry": [augment.Custom(lambda sample, draws: 3)]}, "a Custom function returns a mapping", "geometry"),
    (
        {"geometry": [lambda size, draws: size]},
        "returns a Transform, this one returned tuple; augment.Custom",
        "geometry",
    ),
    ({"geometry": [CUT, augment.Flip(1)]}, ONE_SIZE, "geometry"),
    ({"color": [broken]}, "RuntimeError: no idea", "color"),
    ({"color": [lambda image, draws: image / 2]}, "a color op returns uint8", "color"),
    ({"color": [lambda image, draws: np.ma.masked_equal(image, 0)]}, "this one returned MaskedArray", "color"),
    ({"color": [imports]}, r"^color of 'color/imports/0': ModuleNotFoundError", None),
    ({"derive": {"x": writes_in_place}}, READ_ONLY, "derive"),
    ({"derive": {"x": sets_a_field}}, READ_ONLY, "derive"),
    ({"color": [inverts_in_place]}, READ_ONLY, "color"),
    ({"geometry": [augment.Flip(0.5)], "derive": {"x": writes_in_place}}, READ_ONLY, "derive"),
]


@pytest.mark.parametrize(("options", "message", "stage"), WRONG_FUNCTIONS)
def test_a_wrong_function_of_a_user_is_a_sample_error_with_its_stage(options, message, stage):
    """It cannot change what others use; an import that fails, which no sample can help, ends the build."""
    with pytest.raises(SampleError if stage else BuildError, match=message) as caught:
        list(maker(**options).made("key", {**RAW, "image": IMAGE.copy()}, [1, 2]))
    assert getattr(caught.value, "stage", None) == stage


def test_a_function_of_the_whole_sample_may_write_into_its_own():
    def mirrors_in_place(sample, draws):
        sample["image"][:] = sample["image"][:, ::-1].copy()
        sample["names"] = sample["names"] + 1
        return sample

    custom = maker(geometry=[augment.Custom(mirrors_in_place)])
    first, *samples = custom.made("key", {**RAW, "image": IMAGE.copy()}, range(4))
    assert np.array_equal(first["image"], IMAGE)
    for sample in samples:
        assert np.array_equal(sample["image"], IMAGE[:, ::-1])
        assert sample["names"].tolist() == [5, 8]


FORMS = [
    ("image", np.zeros((60, 80, 3), bool), r"an image, uint8, uint16 or float32 \[H, W, C\], got bool \[60, 80, 3\]"),
    ("image", np.zeros((60, 80), np.uint8), r"got uint8 \[60, 80\]"),
    ("image", np.zeros((60, 80, 3), ">u2"), r"got >u2 \[60, 80, 3\]"),
    ("mask", np.zeros((60, 80), np.float32), "a mask, whole numbers"),
    ("map", np.zeros(3), r"a map, .* got float64 \[3\]"),
    ("map", np.zeros((60, 80), object), "got object"),
    ("map", [[1.0]], "got list"),
    ("map", np.full((60, 80), np.nan), "NaN or infinity"),
    ("map", np.ma.masked_invalid(np.full((60, 80), np.nan)), "masked values"),
    ("map", np.zeros((5, 80)), r"height and width \(60, 80\)"),
    ("label", np.zeros((2, 2), int), r"a label, .* one class, or \[K\], got int64 \[2, 2\]"),
    ("label", np.float32(1), "a label"),
    ("boxes", np.zeros((3, 5)), r"boxes, .*\[N, 4\], got float64 \[3, 5\]"),
    ("points", np.zeros(4), "points"),
    ("scalar", "text", "got str"),
    ("text", 3, "expected a str, got int"),
    ("label", np.int64(3), None),
    ("label", np.arange(3), None),
    ("scalar", np.float32(0.5), None),
    ("text", "x", None),
    ("map", np.zeros((60, 80), bool), None),
    ("map", np.ma.array(np.zeros((60, 80), np.uint8), mask=False), None),
]


@pytest.mark.parametrize(("kind", "value", "message"), FORMS)
def test_a_derived_input_has_the_form_of_its_kind(kind, value, message):
    def function(sample, draws):
        return value

    function.kind = kind
    if message is None:
        assert np.array_equal(made(0, derive={"d": function})["d"], value)
        return
    with pytest.raises(SampleError, match=message) as caught:
        made(0, derive={"d": function})
    assert (caught.value.stage, caught.value.field) == ("derive", "d")
