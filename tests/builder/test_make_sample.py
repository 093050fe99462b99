"""The variants of one raw sample, without a build."""

import gc
import io
import weakref
import zlib

import cv2
import numpy as np
import pytest
from PIL import Image

from tfprep import Recipe, augment, codecs, derive, images, sources
from tfprep.builder.shards.make_sample import SampleMaker
from tfprep.errors import BuildError, SampleError


def jpeg(size=(64, 80), **options):
    height, width = size
    y, x = np.mgrid[:height, :width]
    pixels = np.stack([x * 255 // width, y * 255 // height, (x + y) % 256], -1).astype(np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "JPEG", quality=95, **options)
    return file.getvalue()


def png(array):
    file = io.BytesIO()
    Image.fromarray(array).save(file, "PNG")
    return file.getvalue()


def maker(kinds, classes=None, **options):
    recipe = Recipe("r", sources.Folder(), **{"store": {"image": codecs.Raw()}, **options})
    return SampleMaker(recipe, kinds, classes or {})


def test_an_image_is_decoded_once_for_all_variants(monkeypatch):
    decoded = []
    real = images.decode_image
    monkeypatch.setattr(images, "decode_image", lambda data, **options: decoded.append(1) or real(data, **options))
    made = maker({"image": "image"}, geometry=[augment.Crop(20, 20)], variants={"train": 5})
    assert len(list(made.variants("k", {"image": jpeg()}, 5))) == 5
    assert len(decoded) == 1


def noise_jpeg(size):
    noise = np.random.default_rng(1).integers(0, 256, (*size, 3)).astype(np.uint8)
    file = io.BytesIO()
    Image.fromarray(noise).resize(size[::-1], Image.Resampling.BICUBIC).save(file, "JPEG", quality=95)
    return file.getvalue()


@pytest.mark.parametrize(
    "image", [noise_jpeg((600, 803)), png(np.zeros((300, 400, 3), np.uint8) + np.arange(3, dtype=np.uint8))]
)
def test_a_variant_does_not_depend_on_how_many_there_are(image, monkeypatch):
    decoded = []
    real = images.decode_image

    def decode(data, *, reduced=1, background=None):
        decoded.append(reduced)
        return real(data, reduced=reduced, background=background)

    monkeypatch.setattr(images, "decode_image", decode)
    made = maker({"image": "image"}, geometry=[augment.RandomResizedCrop(64, 64, scale=(0.004, 1))])
    raw = {"image": image}
    alone = [next(made.made("k", raw, [variant]))["image"] for variant in range(12)]
    scales = set(decoded)
    assert len(scales) == (4 if images.is_jpeg(image) else 1)
    decoded.clear()
    together = [sample["image"] for sample in made.made("k", raw, range(12))]
    assert sorted(decoded) == sorted(scales), "variants of one scale share one decode"
    for one, other in zip(alone, together, strict=True):
        np.testing.assert_array_equal(one, other)


def test_a_failed_import_inside_nested_stages_ends_the_build():
    def colour(image, generator):
        import not_there  # noqa: F401

    made = maker({"image": "image"}, colour=[colour])
    with pytest.raises(BuildError, match=r"^colour of 'colour/colour/0': ModuleNotFoundError"):
        list(made.made("k", {"image": jpeg()}, [1]))


def counted(op):
    """The op, and the sizes that it was called with."""
    sizes = []
    return lambda size, generator: sizes.append(size) or op(size, generator), sizes


def test_images_of_several_sizes_have_transforms_of_their_own():
    made = maker({"image": "image"}, geometry=[augment.Resize(32, 40)])
    for size in [(64, 80), (96, 80), (64, 80)]:
        raw = {"image": png(np.random.default_rng(0).integers(0, 256, (*size, 3), np.uint8))}
        (image,) = (sample["image"] for sample in made.made("k", raw, [0]))
        expected = cv2.resize(images.decode_image(raw["image"]), (40, 32), interpolation=cv2.INTER_AREA)
        np.testing.assert_array_equal(image, expected)


def test_transforms_are_not_kept_beyond_their_variant():
    """The grid of an elastic transform takes megabytes."""
    grids = []

    def elastic(size, generator):
        transform = augment.Elastic()(size, generator or np.random.default_rng(0))
        grids.extend(weakref.ref(bend) for _, bend in transform.bends)
        return transform

    made = maker({"image": "image"}, geometry=[elastic, augment.Crop(20, 20)])
    for number in range(3):
        list(made.made("k", {"image": png(np.zeros((40 + number, 40, 3), np.uint8))}, range(4)))
    gc.collect()
    assert [grid() for grid in grids] == [None] * 12


def test_variant_zero_is_unaugmented_and_others_depend_only_on_key_and_number():
    made = maker({"image": "image"}, geometry=[augment.Crop(20, 20)], colour=[augment.Brightness(0.3)])
    raw = {"image": jpeg()}
    first, *others = [stored.values["image"] for stored in made.variants("k", raw, 4)]
    np.testing.assert_array_equal(first, images.decode_image(raw["image"])[22:42, 30:50])
    assert len({other.tobytes() for other in others}) == 3
    (again,) = made.made("k", raw, [2])
    np.testing.assert_array_equal(again["image"], others[1])
    (elsewhere,) = made.made("other key", raw, [2])
    assert not np.array_equal(elsewhere["image"], others[1])


def test_small_targets_are_decoded_small_unless_the_recipe_or_a_mask_forbids_it(monkeypatch):
    sizes = []
    real = images.decode_image
    monkeypatch.setattr(
        images, "decode_image", lambda data, **options: sizes.append((out := real(data, **options)).shape[:2]) or out
    )
    geometry = [augment.Resize(16, 20)]
    raw = {"image": jpeg((128, 160))}
    list(maker({"image": "image"}, geometry=geometry).variants("k", raw, 1))
    list(maker({"image": "image"}, geometry=geometry, dct_downscale=False).variants("k", raw, 1))
    masked = maker({"image": "image", "mask": "mask"}, geometry=geometry)
    list(masked.variants("k", {**raw, "mask": png(np.zeros((128, 160), np.uint8))}, 1))
    enlarged = maker({"image": "image"}, geometry=[augment.Resize(100, 125)])
    list(enlarged.variants("k", raw, 1))
    assert sizes == [(16, 20), (128, 160), (128, 160), (128, 160)]


@pytest.mark.parametrize("label", [-1, 2, 900])
def test_a_label_outside_the_classes(label):
    made = maker({"label": "label"}, {"label": ("a", "b")}, store={"label": codecs.Scalar()})
    with pytest.raises(SampleError, match=f"class {label} is outside the list of 2 classes") as caught:
        list(made.variants("k", {"label": label}, 1))
    assert (caught.value.stage, caught.value.field) == ("decode", "label")
    assert next(made.variants("k", {"label": 1}, 1)).values["label"] == 1


def test_the_fill_value_is_an_allowed_class():
    raw = {"image": jpeg((8, 8)), "mask": png(np.full((8, 8), 255, np.uint8))}
    kinds, classes = {"image": "image", "mask": "mask"}, {"mask": ("a", "b")}
    store = {"mask": codecs.Png()}
    assert next(maker(kinds, classes, store=store, fill={"mask": 255}).variants("k", raw, 1))
    with pytest.raises(SampleError, match="class 255 is outside the list of 2 classes"):
        next(maker(kinds, classes, store=store).variants("k", raw, 1))


def test_a_missing_value_is_named():
    made = maker({"age": "scalar"}, store={"age": codecs.Scalar()})
    with pytest.raises(SampleError, match="the listing has no value for it"):
        next(made.variants("k", {"age": None}, 1))


def test_derived_inputs_come_from_the_warped_mask_before_colour():
    mask = np.zeros((24, 24), np.uint8)
    mask[4:9, 4:9] = 1
    made = maker(
        {"image": "image", "mask": "mask"}, geometry=[augment.Flip(p=1.0)], colour=[augment.Brightness(0.5)],
        derive={"distance": derive.Distance(mask="mask", target=1), "copy": lambda sample, generator: sample["image"]},
        store={"distance": codecs.Raw(), "copy": codecs.Raw()},
    )  # fmt: skip
    raw = {"image": jpeg((24, 24)), "mask": png(mask)}
    plain, flipped = [stored.values for stored in made.variants("k", raw, 2)]
    np.testing.assert_array_equal(flipped["mask"], plain["mask"][:, ::-1])
    np.testing.assert_allclose(flipped["distance"], plain["distance"][:, ::-1], atol=1e-5)
    np.testing.assert_array_equal(flipped["copy"], images.decode_image(raw["image"])[:, ::-1])


def test_seconds_add_up_by_stage():
    made = maker({"image": "image"}, geometry=[augment.Crop(20, 20)])
    list(made.variants("k", {"image": jpeg()}, 2))
    assert set(made.seconds) == {"decode", "geometry", "encode"}
    assert all(seconds > 0 for seconds in made.seconds.values())
    before = dict(made.seconds)
    list(made.variants("k", {"image": jpeg()}, 2))
    assert all(made.seconds[stage] > before[stage] for stage in before)


def test_a_kept_original_is_not_decoded(monkeypatch):
    monkeypatch.setattr(images, "decode_image", lambda data, **options: pytest.fail("decoded"))
    made = maker({"image": "image"}, store={"image": codecs.Original()})
    (stored,) = made.variants("k", {"image": jpeg((64, 80))}, 1, pixels=False)
    assert stored.features["image"] == jpeg((64, 80))
    assert stored.specs["image"].shape == (64, 80, 3)


@pytest.mark.parametrize("cut", [1, 2, 3, 10, 500])
def test_an_original_cut_short_is_a_reject(cut):
    made = maker({"image": "image"}, store={"image": codecs.Original()})
    for data in (jpeg((64, 80)), png(np.random.default_rng(0).integers(0, 256, (30, 30, 3)).astype(np.uint8))):
        with pytest.raises(SampleError, match="not a whole"):
            list(made.variants("k", {"image": data[:-cut]}, 1, pixels=False))


def test_a_damaged_original_is_stored_only_if_it_can_be_read():
    """A build without pixels accepts what `Original.decode` reads, and nothing else; damage behind a right checksum counts."""
    made = maker({"image": "image"}, store={"image": codecs.Original()})
    draws = np.random.default_rng(0)
    whole = png(cv2.resize(draws.integers(0, 256, (5, 5, 3)).astype(np.uint8), (16, 12)))
    start, stop = whole.index(b"IDAT"), whole.index(b"IEND") - 8
    refused = 0
    for at in range(start + 4, stop):
        broken = bytearray(whole)
        broken[at] ^= 1 << int(draws.integers(8))
        if at % 2:
            broken[stop : stop + 4] = zlib.crc32(broken[start:stop]).to_bytes(4, "big")
        try:
            (stored,) = made.variants("k", {"image": bytes(broken)}, 1, pixels=False)
        except SampleError:
            refused += 1
            with pytest.raises(SampleError):
                images.decode_image(bytes(broken))
        else:
            kept = bytes(stored.features["image"])
            assert np.array_equal(images.decode_image(kept), images.decode_image(bytes(broken)))
    assert refused > 100


@pytest.mark.parametrize(
    ("kind", "value", "message"),
    [
        (
            "image",
            np.zeros((64, 80, 3), bool),
            r"an image, uint8, uint16 or float32 \[H, W, C\], got bool \[64, 80, 3\]",
        ),
        ("image", np.zeros((64, 80), np.uint8), r"got uint8 \[64, 80\]"),
        ("mask", np.zeros((64, 80), np.float32), "a mask, whole numbers"),
        ("map", np.zeros(3), r"a map, .* got float64 \[3\]"),
        ("map", np.zeros((64, 80), object), "got object"),
        ("map", [[1.0]], "got list"),
        ("map", np.full((64, 80), np.nan), "NaN or infinity"),
        ("map", np.zeros((5, 80)), r"height and width \(64, 80\)"),
        ("label", np.zeros((2, 2), int), r"a label, .* one class, or \[K\], got int64 \[2, 2\]"),
        ("label", np.float32(1), "a label"),
        ("boxes", np.zeros((3, 5)), r"boxes, .*\[N, 4\], got float64 \[3, 5\]"),
        ("points", np.zeros(4), "points"),
        ("scalar", "text", "got str"),
        ("text", 3, "expected a str, got int"),
    ],
)
def test_a_derived_input_of_another_form_than_its_kind(kind, value, message):
    def function(sample, generator):
        return value

    function.kind = kind
    made = maker({"image": "image"}, derive={"d": function})
    with pytest.raises(SampleError, match=message) as caught:
        list(made.made("k", {"image": jpeg()}, [0]))
    assert (caught.value.stage, caught.value.field) == ("derive", "d")


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("label", np.int64(3)),
        ("label", np.arange(3)),
        ("scalar", np.float32(0.5)),
        ("text", "x"),
        ("map", np.zeros((64, 80), bool)),
    ],
)
def test_a_derived_input_of_the_right_form(kind, value):
    def function(sample, generator):
        return value

    function.kind = kind
    (sample,) = maker({"image": "image"}, derive={"d": function}).made("k", {"image": jpeg()}, [0])
    assert np.array_equal(sample["d"], value)
