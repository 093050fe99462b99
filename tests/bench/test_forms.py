"""Storage forms: which ones are tried, what is predicted for them, and which one is recommended."""

import io
from dataclasses import replace

import numpy as np
import pytest
import skimage.metrics
from PIL import Image

from tests.photos import write_photos
from tfprep import Recipe, augment, codecs, derive, sources
from tfprep.bench.forms import Goals, Prediction, choose, compare_forms, expected_build, forms_of, losses, written
from tfprep.bench.rounds import Budget
from tfprep.builder import BuildOptions, build
from tfprep.errors import RecipeError, SourceError, TfprepError

PHOTOS = Recipe(
    name="photos", source=sources.Folder("{label}/*.png"), geometry=[augment.CenterCrop(24, 24), augment.Flip()],
    variants={"train": 2}, store={"image": codecs.Jpeg(95), "label": codecs.Scalar()},
)  # fmt: skip
MAPS = Recipe(
    name="maps",
    source=sources.Paired(image="{split}/*.png", mask="{split}mask/*.png"),
    derive={"distance": derive.Distance(mask="mask", target=1)},
    store={"image": codecs.Raw(), "mask": codecs.Png(), "distance": codecs.Raw("float16")},
)


def names(recipe, **kinds):
    return [form.name for form in forms_of(recipe, kinds)]


def test_forms_of_photos_store_each_form_once():
    assert names(PHOTOS, image="image", label="label") == [
        "as the recipe says", "images as JPEG 85", "images as PNG", "images as Zstd", "images as raw", "original bytes",
    ]  # fmt: skip


def test_forms_of_masks_and_maps_keep_their_dtypes():
    found = {one.name: one for one in forms_of(MAPS, {"image": "image", "mask": "mask", "distance": "map"})}
    assert [name for name in found if "computed" not in name] == [
        "as the recipe says", "images as JPEG 95", "images as JPEG 85", "images as PNG", "images as Zstd",
        "masks and maps as Zstd", "masks and maps as raw", "images as JPEG 95, masks and maps as Zstd", "all as Zstd",
    ]  # fmt: skip
    for name, mask, distance in (
        ("masks and maps as Zstd", codecs.Zstd(), codecs.Zstd(dtype="float16")),
        ("masks and maps as raw", codecs.Raw(), codecs.Raw("float16")),
    ):
        assert found[name].recipe.store == {"image": codecs.Raw(), "mask": mask, "distance": distance}
    (line,) = written(found["masks and maps as Zstd"])
    assert '"mask": codecs.Zstd(), "distance": codecs.Zstd(dtype=\'float16\')' in line


def test_original_bytes_are_resized_by_the_loader():
    original = forms_of(PHOTOS, {"image": "image", "label": "label"})[-1]
    assert original.recipe.geometry == ()
    assert original.recipe.variants == {}
    assert list(original.load_geometry) == PHOTOS.geometry


def test_derived_inputs_stored_or_computed():
    found = forms_of(MAPS, {"image": "image", "mask": "mask", "distance": "map"})
    computed = [form for form in found if form.computed]
    assert len(computed) == 2
    assert all("distance" not in form.recipe.store for form in computed)
    assert not any(form.load_geometry for form in found)  # A mask cannot be stored as original bytes.


def prediction(name, rate, disk, build_s):
    return Prediction(name, "", rate, disk, build_s)


FOUND = [prediction("raw", 9000, 9e9, 3600), prediction("jpeg", 3000, 1e9, 1800), prediction("png", 500, 5e9, 7200)]


@pytest.mark.parametrize(
    ("goals", "chosen", "reason"),
    [
        (Goals(), "raw", "the fastest form"),
        (Goals(images_per_s=2000), "jpeg", "the smallest form that is fast enough"),
        (Goals(images_per_s=5000), "raw", "the smallest form that is fast enough"),
        (Goals(disk_bytes=2e9), "jpeg", "the fastest form within the limits"),
        (Goals(hours=0.75), "jpeg", "the fastest form within the limits"),
        (Goals(images_per_s=5000, disk_bytes=2e9), "raw", "9 of 2 GB"),
        (Goals(images_per_s=99_000), "raw", "9,000 of 99,000 images/s"),
        (Goals(disk_bytes=5e8), "jpeg", "this one comes closest (1 of 0.5 GB)"),
        (Goals(hours=0.1), "jpeg", "this one comes closest (0.5 of 0.1 hours)"),
    ],
)
def test_the_recommendation_and_its_reason(goals, chosen, reason):
    found, why = choose(FOUND, goals)
    assert found.form == chosen
    assert reason in why


@pytest.fixture(scope="module")
def raw(tmp_path_factory):
    """48 small images in each of two classes."""
    return write_photos(tmp_path_factory.mktemp("advise"), 96, noise=(8, 8), size=(32, 32))


QUICK = Budget(1, 0.05, 0.0, 2)


def test_a_single_form_can_be_chosen(raw, tmp_path):
    found = compare_forms(PHOTOS, raw, tmp_path, samples=16, workers=0, budget=QUICK, only=["images as raw"])
    assert [one.form for one in found.predictions] == ["images as raw"]
    assert found.chosen == "images as raw"
    assert found.lines == ('in the recipe: store={"image": codecs.Raw(), "label": codecs.Scalar()},',)
    assert found.lost == ()


@pytest.mark.parametrize(
    ("name", "lines"),
    [
        ("images as JPEG 85", ['in the recipe: store={"image": codecs.Jpeg(quality=85), "label": codecs.Scalar()},']),
        (
            "original bytes",
            [
                'in the recipe: store={"image": codecs.Original(), "label": codecs.Scalar()},',
                "in the recipe: no geometry=, color= and variants=",
                "in the trainer: data.loader(..., geometry=[...])",
            ],
        ),
    ],
)
def test_the_lines_to_write(name, lines):
    found = next(one for one in forms_of(PHOTOS, {"image": "image", "label": "label"}) if one.name == name)
    assert list(written(found)) == lines


def test_what_jpeg_loses_by_scikit_image(raw):
    """PSNR of Pillow's encoding and decoding of the same pixels, with the same quality and subsampling."""
    plain = replace(PHOTOS, geometry=(), variants={}, store={**PHOTOS.store, "image": codecs.Jpeg(85)})
    expected = []
    for path in raw.rglob("*.png"):
        image, file = Image.open(path).convert("RGB"), io.BytesIO()
        image.save(file, "JPEG", quality=85, subsampling="4:2:0")
        pixels = np.asarray(image), np.asarray(Image.open(file))
        expected.append(skimage.metrics.peak_signal_noise_ratio(*pixels, data_range=255))
    (loss,) = losses(plain, raw, "train")
    assert (loss.field, loss.codec, loss.samples) == ("image", "JPEG 85", 24)
    assert min(expected) - 0.3 <= loss.least_db <= loss.median_db <= max(expected)
    assert loss.median_db == pytest.approx(np.median(expected), abs=0.5)
    assert f"PSNR {loss.median_db:.1f} dB" in loss.words
    assert losses(replace(plain, store={**PHOTOS.store, "image": codecs.Png()}), raw, "train") == ()


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        (
            {"only": ["zip"]},
            RecipeError,
            "no form 'zip' for this recipe; available: as the recipe says, images as JPEG 85",
        ),
        ({"split": "test"}, SourceError, r"split 'test' has no sample; available: train \(option --split\)"),
    ],
)
def test_unknown_names_raise_before_anything_is_built(raw, tmp_path, options, error, message):
    with pytest.raises(error, match=message):
        compare_forms(PHOTOS, raw, tmp_path / "scratch", budget=QUICK, **options)
    assert not (tmp_path / "scratch").exists()


def test_a_recipe_whose_samples_are_all_rejected_raises(raw, tmp_path):
    too_large = replace(PHOTOS, geometry=[boom])
    with pytest.raises(TfprepError, match=r"no form can be (built|loaded): .*boom"):
        compare_forms(
            too_large, raw, tmp_path, samples=16, workers=0, budget=QUICK, only=["images as raw", "images as PNG"]
        )


def boom(image):
    raise ValueError("boom")


def test_the_predicted_disk_size_is_near_that_of_real_builds(raw, tmp_path):
    """Within 20 %, predicted from a third of the images."""
    found = compare_forms(PHOTOS, raw, tmp_path / "scratch", samples=32, workers=0, budget=QUICK)
    assert found.samples == 96
    assert found.measured_on == 32
    assert not found.left_out
    for form in forms_of(PHOTOS, {"image": "image", "label": "label"}):
        real = build(form.recipe, tmp_path / form.name.replace(" ", "-"), raw, options=BuildOptions(workers=0))
        predicted = next(one for one in found.predictions if one.form == form.name)
        assert predicted.disk_bytes == pytest.approx(real.bytes, rel=0.2), form.name


def test_the_time_of_a_build_grows_with_its_samples():
    from collections import Counter
    from types import SimpleNamespace

    from tfprep.bench.forms import Built, Form, _predict

    split = SimpleNamespace(bytes=100, samples=10, variants=2)
    built = Built(Form("raw", PHOTOS, PHOTOS), SimpleNamespace(splits={"train": split}), 10, 100, 2, 3.0, 0.5)
    predicted = _predict(built, 50.0, Counter(train=1000, val=200))
    assert (predicted.disk_bytes, predicted.build_s) == (12_000, 3.0 + 0.5 * 1200 / 2)
    assert predicted.images_per_s == pytest.approx(50.0)


def test_the_expected_size_of_a_build_is_near_that_of_the_real_one(raw, tmp_path):
    nbytes, seconds = expected_build(PHOTOS, raw, 96)
    assert nbytes == pytest.approx(build(PHOTOS, tmp_path / "out", raw, options=BuildOptions(workers=0)).bytes, rel=0.2)
    assert seconds > 0
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
