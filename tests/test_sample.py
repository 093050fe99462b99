"""One raw sample to its variants, without a build around it."""

from __future__ import annotations

import io

import numpy as np
import pytest
from PIL import Image

from tfprep import Recipe, augment, codecs, derive, images, sources
from tfprep.errors import SampleError
from tfprep.sample import SampleMaker


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


def test_variant_zero_is_the_unaugmented_form_and_the_others_depend_on_key_and_number_alone():
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


@pytest.mark.parametrize("factor", [2, 4, 8])
def test_what_decoding_small_changes_is_bounded(factor):
    """Against decoding whole and averaging: stated in `Recipe.dct_downscale`'s documentation for photos."""
    height, width = 32 * factor, 40 * factor
    raw = {"image": jpeg((height, width))}
    geometry = [augment.Resize(32, 40)]
    (small,) = maker({"image": "image"}, geometry=geometry).variants("k", raw, 1)
    (whole,) = maker({"image": "image"}, geometry=geometry, dct_downscale=False).variants("k", raw, 1)
    difference = np.abs(small.values["image"].astype(int) - whole.values["image"].astype(int))
    assert small.values["image"].shape == (32, 40, 3)
    assert difference.mean() < 3


@pytest.mark.parametrize("label", [-1, 2, 900])
def test_a_label_outside_the_classes(label):
    made = maker({"label": "label"}, {"label": ("a", "b")}, store={"label": codecs.Scalar()})
    with pytest.raises(SampleError, match=f"class {label} is outside the list of 2 classes") as caught:
        list(made.variants("k", {"label": label}, 1))
    assert (caught.value.stage, caught.value.field) == ("decode", "label")
    assert next(made.variants("k", {"label": 1}, 1)).values["label"] == 1


def test_the_number_that_fills_is_no_strange_class():
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
def test_an_original_cut_short_is_found_without_pixels(cut):
    made = maker({"image": "image"}, store={"image": codecs.Original()})
    for data in (jpeg((64, 80)), png(np.random.default_rng(0).integers(0, 256, (30, 30, 3)).astype(np.uint8))):
        with pytest.raises(SampleError, match="not a whole"):
            list(made.variants("k", {"image": data[:-cut]}, 1, pixels=False))
