"""Storage forms: which ones are tried, and what is predicted for them."""

from collections import Counter
from dataclasses import replace
from types import SimpleNamespace

import pytest
from PIL import Image

from tests.photos import write_photos
from tfprep import Recipe, augment, codecs, derive, sources
from tfprep.bench import forms
from tfprep.bench.forms import Built, Form, FormTable, Prediction, _predict, compare_forms, expected_build, forms_of
from tfprep.bench.rounds import Budget
from tfprep.builder import BuildOptions, build
from tfprep.cli.measure import _form_lines
from tfprep.errors import SourceError, TfprepError

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


MAP_KINDS = {"image": "image", "mask": "mask", "distance": "map"}
PHOTO_FORMS = forms_of(PHOTOS, {"image": "image", "label": "label"})


def test_forms_of_photos_store_each_form_once():
    assert [form.name for form in PHOTO_FORMS] == [
        "as the recipe says",
        "images as JPEG 85",
        "images as PNG",
        "images as Zstd",
        "images as raw",
        "original bytes, augmented at load",
    ]


def test_forms_that_a_recipe_refuses_are_left_out():
    """JPEG has 8 bits, and the bytes of the files are not those of the pixels."""
    source = sources.Folder("{label}/*.png", pixels={"image": sources.Pixels(to="uint16")})
    deep = Recipe(name="deep", source=source, store={"image": codecs.Zstd()})
    names = [form.name for form in forms_of(deep, {"image": "image"})]
    assert names == ["as the recipe says", "images as PNG", "images as raw"]


def test_forms_of_masks_and_maps_keep_their_dtypes():
    found = {one.name: one for one in forms_of(MAPS, MAP_KINDS)}
    assert [name for name in found if not found[name].at_load] == [
        "as the recipe says", "images as JPEG 95", "images as JPEG 85", "images as PNG", "images as Zstd",
        "masks and maps as Zstd", "masks and maps as raw", "images as JPEG 95, masks and maps as Zstd", "all as Zstd",
    ]  # fmt: skip
    for name, mask, distance in (
        ("masks and maps as Zstd", codecs.Zstd(), codecs.Zstd(dtype="float16")),
        ("masks and maps as raw", codecs.Raw(), codecs.Raw("float16")),
    ):
        assert found[name].recipe.store == {"image": codecs.Raw(), "mask": mask, "distance": distance}


def test_original_bytes_are_resized_by_the_loader():
    original = PHOTO_FORMS[-1]
    assert original.recipe.geometry == ()
    assert original.recipe.variants == {}
    assert list(original.at_load["geometry"]) == PHOTOS.geometry


def test_derived_inputs_are_stored_or_computed_at_load():
    found = forms_of(MAPS, MAP_KINDS)
    (computed,) = [form for form in found if form.at_load]  # a mask cannot be stored as original bytes
    assert computed.at_load == {"derive": MAPS.derive}
    assert set(computed.recipe.store) == {"image", "mask"}


@pytest.fixture(scope="module")
def raw(tmp_path_factory):
    """48 small images in each of two classes."""
    return write_photos(tmp_path_factory.mktemp("advise"), 96, noise=(8, 8), size=(32, 32))


QUICK = Budget(1, 0.05, 0.0, 2)


def test_a_split_without_samples_raises_before_anything_is_built(raw, tmp_path):
    with pytest.raises(SourceError, match=r"split 'test' has no sample; available: train \(option --split\)"):
        compare_forms(PHOTOS, raw, tmp_path / "scratch", budget=QUICK, split="test")
    assert not (tmp_path / "scratch").exists()


def test_a_recipe_whose_samples_are_all_rejected_raises(raw, tmp_path, monkeypatch):
    def boom(image):
        raise ValueError("boom")

    monkeypatch.setattr(forms, "forms_of", lambda recipe, kinds: [Form("as the recipe says", recipe)])
    with pytest.raises(TfprepError, match=r"no form can be (built|loaded): as the recipe says: .*boom"):
        compare_forms(replace(PHOTOS, geometry=[boom]), raw, tmp_path, samples=16, workers=0, budget=QUICK)


def test_the_predicted_disk_size_is_near_that_of_real_builds(raw, tmp_path, monkeypatch):
    """Within 20 %, predicted from a third of the images."""
    two = [PHOTO_FORMS[0], PHOTO_FORMS[-1]]
    monkeypatch.setattr(forms, "forms_of", lambda *_: two)
    found = compare_forms(PHOTOS, raw, tmp_path / "scratch", samples=32, workers=0, budget=QUICK)
    assert found.samples == 96
    assert found.measured_on == 32
    assert not found.left_out
    for form in two:
        real = build(form.recipe, tmp_path / form.name.replace(" ", "-"), raw, options=BuildOptions(workers=0))
        predicted = next(prediction for prediction in found.predictions if prediction.form == form.name)
        assert predicted.disk_bytes == pytest.approx(real.bytes, rel=0.2), form.name


def test_the_time_of_a_build_grows_with_its_samples():
    split = SimpleNamespace(bytes=100, samples=10, variants=2)
    built = Built(Form("raw", PHOTOS), SimpleNamespace(splits={"train": split}), 10, 100, 2, 3.0, 0.5)
    predicted = _predict(built, 50.0, Counter(train=1000, val=200))
    assert (predicted.disk_bytes, predicted.build_s) == (12_000, 3.0 + 0.5 * 1200 / 2)
    assert predicted.images_per_s == pytest.approx(50.0)


def test_a_form_that_is_larger_than_the_memory_is_noted():
    for disk_bytes, noted in ((1e3, 0), (1e18, 1)):
        table = FormTable(10, 10, (Prediction("raw", 50.0, disk_bytes, 1.0),), {}, "")
        assert sum("at most at the rate of the disk" in line for line in _form_lines(table)) == noted


def test_derived_inputs_are_loaded_with_those_computed_at_load(tmp_path, monkeypatch):
    """Sizes differ by what is stored, and both forms deliver batches."""
    every = forms_of(MAPS, MAP_KINDS)
    monkeypatch.setattr(forms, "forms_of", lambda *_: [every[0], every[-1]])
    for name, mode in (("train", "RGB"), ("trainmask", "L")):
        (tmp_path / "raw" / name).mkdir(parents=True)
        for number in range(8):
            Image.new(mode, (8, 8), number % 2).save(tmp_path / "raw" / name / f"{number}.png")
    found = compare_forms(MAPS, tmp_path / "raw", tmp_path / "scratch", workers=0, budget=QUICK)
    disk = {prediction.form: prediction.disk_bytes for prediction in found.predictions}
    assert not found.left_out
    assert disk["distance computed at load"] < disk["as the recipe says"]


def test_the_expected_size_of_a_build_is_near_that_of_the_real_one(raw, tmp_path):
    nbytes, seconds = expected_build(PHOTOS, raw, 96)
    assert nbytes == pytest.approx(build(PHOTOS, tmp_path / "out", raw, options=BuildOptions(workers=0)).bytes, rel=0.2)
    assert seconds > 0
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
