"""Wrong geometry, color, views, buckets and mixing of a loader: each error says the rule, and what to do. Those of boxes are in
test_warps.py, those of derived inputs in test_ahead_or_at_load.py."""

import re

import numpy as np
import pytest

import tfprep
from tests.conftest import write_dataset
from tfprep import Recipe, augment, codecs, derive, load, sources
from tfprep.augment.transform import Transform, scaling
from tfprep.errors import LoaderError, RecipeError, RecordError
from tfprep.load import LoaderOptions

BY_THEMSELVES = [
    (lambda: augment.MixUp(0), "a number above 0"),
    (lambda: augment.MixUp(2000), "at most 1000"),
    (lambda: augment.CutMix(float("nan")), "a number above 0"),
    (lambda: augment.CutMix(p=-0.1), "probability from 0 to 1"),
    (lambda: augment.ColorJitter(40), "ColorJitter.brightness is a range"),
    (lambda: augment.ColorJitter(hue=0.6), "ColorJitter.hue is a range"),
    (lambda: augment.ColorJitter(p=2), "probability from 0 to 1"),
    (lambda: augment.ColorJitter("a"), "ColorJitter.brightness is a range"),
    (lambda: augment.Rotate("a"), "Rotate.degrees is a range"),
    (lambda: LoaderOptions(geometry=[augment.Custom("f")]), r"geometry\[0\]: expected an op or a function, not Custom"),
    (lambda: augment.RandomResizedCrop(224), "a whole number of pixels"),
    (lambda: augment.RandomResizedCrop(8, 8, sizes={0: 8}), "in place of height and width"),
    (lambda: augment.RandomResizedCrop(sizes={0: 8, -1: 9}), "pixels by the epoch"),
    (lambda: augment.RandomResizedCrop(sizes={0: (8, 9, 3)}), "pixels by the epoch"),
    (lambda: augment.RandomResizedCrop(sizes={0: 8.5}), "a whole number of pixels"),
    (lambda: augment.RandomResizedCrop(sizes=[8]), "pixels by the epoch"),
    (lambda: augment.RandomResizedCrop(sizes={1: 8}), "the first one 0"),
    (lambda: augment.RandomResizedCrop(sizes={}), "the first one 0"),
    (lambda: augment.RandomResizedCrop(sizes=7), "the first one 0"),
    (lambda: load.Buckets([]), "one size at least"),
    (lambda: load.Buckets([(5, 0)]), "pixels"),
    (lambda: load.Buckets([5]), "size at least"),
    (lambda: load.Buckets([(np.int64(24), 32)]), "as Python's int, .* not .*int64"),
    (lambda: load.Buckets(5), "a list of one size at least"),
    (lambda: load.Buckets([(8, 8), (16, 16)]), "differ in their aspect ratios"),
]


@pytest.mark.parametrize(("make", "rule"), BY_THEMSELVES)
def test_an_op_with_wrong_options(make, rule):
    with pytest.raises((RecipeError, LoaderError), match=rule):
        make()


GROWING = augment.RandomResizedCrop(sizes={0: 8, 2: (12, 16)})


@pytest.mark.parametrize("op", [GROWING, augment.OneOf([augment.Flip(), GROWING])])
def test_sizes_by_epoch_are_not_for_a_recipe(op):
    with pytest.raises(RecipeError, match="sizes by epoch"):
        Recipe("r", sources.Folder(), {"image": codecs.Png()}, geometry=[op])


BUCKET = {"bucket": load.Buckets([(16, 32), (24, 24), (32, 16)])}
IMAGE = {"fields": ["image"]}
LABELED = {"fields": ["image", "label"]}
VIEWS = "views gives a number of views and their ops by name"
FLIP = augment.Flip()
USES = [
    ({"geometry": FLIP}, "geometry: expected a list of ops"),
    ({"geometry": ["flip"]}, r"geometry\[0\]: expected an op or a function"),
    ({"geometry": [augment.Flip]}, r"call it: Flip\(\)"),
    ({"geometry": [augment.ColorJitter()]}, r"changes colors; it belongs in color=\[...\]"),
    ({"geometry": [augment.MixUp()]}, "expected an op or a function, not MixUp"),
    ({"color": [FLIP]}, r"moves pixels; it belongs in geometry=\[...\]"),
    ({"geometry": [FLIP], "fields": ["label"]}, "no image, mask or map is loaded for Flip"),
    ({"color": [augment.ColorJitter()], "fields": ["mask"]}, "no image is loaded for ColorJitter"),
    ({"geometry": [FLIP], "cache": "decoded", **IMAGE}, "make other rows in each epoch"),
    ({"geometry": [GROWING, GROWING]}, "one op with sizes by epoch at most"),
    ({"geometry": [augment.OneOf([GROWING, augment.Crop(8, 8)])]}, "sizes by epoch at most, by itself"),
    ({"at_load": [FLIP]}, "no option 'at_load'"),
    ({"mix": [FLIP]}, "at most one augment.MixUp and one augment.CutMix"),
    ({"mix": augment.MixUp()}, "at most one augment.MixUp"),
    ({"mix": [augment.MixUp(), augment.MixUp()]}, "at most one augment.MixUp"),
    ({"mix": [augment.MixUp()]}, "MixUp cannot mix the class numbers of 'mask'"),
    ({"one_hot": 0}, "one_hot, the number of classes if it is not True, is a whole number from 1, not 0"),
    ({"one_hot": True, **IMAGE}, "one_hot: no label is loaded"),
    ({"mix": [augment.MixUp()], "one_hot": 4, **LABELED}, "'label' has 3 classes, not 4"),
    ({"bucket": [(8, 8)]}, r"bucket is Buckets\("),
    ({**BUCKET, "balance": "label"}, "leave balance and weights out"),
    ({**BUCKET, "weights": {0: 1, 1: 2, 2: 1}}, "leave balance and weights out"),
    ({**BUCKET, "geometry": [augment.Resize(9, 9)]}, "bucket makes batches of its sizes, and geometry=.* others"),
    ({**BUCKET, "geometry": [augment.Rotate90()]}, "bucket makes batches of its sizes"),
    ({**BUCKET, "geometry": [GROWING]}, "none with bucket"),
    ({**BUCKET, "fields": ["label"]}, "no image, mask or map is loaded for bucket"),
    ({**BUCKET, "batch_size": 51}, "fewer than batch_size=51: none of them would ever be seen"),
    *(
        ({"views": views}, VIEWS)
        for views in (
            {}, {"a": 2}, {"a": (0, {})}, {"a/b": (1, {})}, {"a": (1, [FLIP])}, {"a": (1, {"mix": []})}, {"": (1, {})}, 3,
        )
    ),
    ({"views": {"a": (1, {"geometry": [augment.Maybe(GROWING)]})}}, "not for views"),
    ({"views": {"a": (1, {"geometry": [augment.Blur()]})}}, "belongs in color"),
    ({"views": {"a": (1, {"geometry": [FLIP]})}, **BUCKET}, "leave geometry, color and bucket out"),
    ({"views": {"a": (1, {"geometry": [FLIP]})}, "color": [augment.Blur()]}, "leave geometry, color and bucket out"),
]  # fmt: skip


@pytest.mark.parametrize(("options", "rule"), USES)
def test_ops_that_do_not_fit_the_loader(data, options, rule):
    with pytest.raises(LoaderError, match=rule):
        data.numpy_loader("train", **options)


def test_an_import_that_fails_is_an_error_of_the_loader_and_not_of_the_sample(data):
    def imports(image, draws):
        import not_there  # noqa: F401

    with pytest.raises(LoaderError, match=re.escape("color of 'color/imports/0': ModuleNotFoundError")):
        next(iter(data.numpy_loader("train", 4, **IMAGE, color=[imports], on_bad="skip")))


def _halved(size, draws):
    return Transform(scaling(0.5, 0.5), (size[0] / 2, size[1] / 2))


@pytest.mark.parametrize("stage", ["geometry", "color"])
def test_a_function_of_another_signature_is_named_with_its_option(data, stage):
    """A layer of Keras or a transform of torchvision takes the image only."""
    with pytest.raises(
        (LoaderError, RecordError), match=rf"{stage}.*: TypeError: .* takes 1 positional argument but 2"
    ):
        next(iter(data.numpy_loader("train", 4, **IMAGE, **{stage: [lambda image: image]})))


@pytest.mark.parametrize("op", [_halved, lambda size, draws: size])
def test_an_op_that_returns_no_transform_to_whole_pixels(data, op):
    with pytest.raises(LoaderError, match="a Transform has a size of two whole numbers; <function "):
        data.numpy_loader("train", 4, **IMAGE, geometry=[op])


class _Misnamed:
    inputs = ("masque",)

    def __call__(self, sample, draws):
        return sample["mask"]


def test_inputs_of_a_derived_class_name_its_options(data):
    with pytest.raises(LoaderError, match=r"derive\['own'\]: inputs of _Misnamed .* the option 'masque'"):
        data.numpy_loader("train", 4, derive={"own": _Misnamed()})


def test_whole_numbers_that_the_dtype_of_the_first_sample_does_not_hold(data):
    made = iter([np.float64(0.5), *[np.int64(2**60 + 1)] * 1000])
    options = {"derive": {"own": derive.Own(lambda sample, draws: next(made), "scalar", reads=[])}, "fields": ["own"]}
    with pytest.raises(RecordError, match=f"'own' is float32 by its first sample, which does not hold {2**60 + 1}"):
        next(iter(data.numpy_loader("train", 4, workers="threads", **options)))


def _with_nan(sample, draws):
    return sample | {name: np.full_like(sample[name], np.nan) for name in ("image", "depth", "points")}


NANS = {
    "color": ({"color": [lambda image, draws: image * np.float32("nan")]}, "it gave NaN"),
    "image": ({"geometry": [augment.Custom(_with_nan)]}, "a Custom function, as 'image', gave NaN"),
    "no data": ({"geometry": [augment.Custom(lambda *given: _with_nan(*given) | {"image": given[0]["image"]})]}, ""),
}


@pytest.mark.parametrize("case", NANS)
def test_images_have_no_nan_and_maps_and_points_may(tmp_path, case):
    """A map may store it for pixels without data, and a perspective makes it of points at the back of the viewer."""

    def make(rng, number):
        points = np.ones([3, 2], "f")
        return {"image": rng.random((8, 8, 3), "f"), "depth": rng.random((8, 8), "f"), "points": points}

    kinds = {"image": "image", "depth": "map", "points": "points"}
    codec = {"image": codecs.Raw(), "depth": codecs.Zstd(), "points": codecs.Scalar()}
    dataset = write_dataset(
        tmp_path / "d", samples={"train": 4}, fields=tuple(codec), make=make, codec=codec, kinds=kinds
    )
    options, message = NANS[case]
    loader = tfprep.open(dataset.path).numpy_loader("train", 4, **options)
    if message:
        with pytest.raises(RecordError, match=message):
            next(iter(loader))
    else:
        assert np.isnan(next(iter(loader))["depth"]).all()
