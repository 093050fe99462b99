"""Samples that are warped while they are loaded, in every reader and after every resume; and what cannot follow.

That they are those of a build is tested in test_ahead_or_at_load.py, and that all fields of a build follow in tests/fidelity.
"""

import itertools
from functools import partial

import numpy as np
import pytest
from PIL import Image

import tfprep.load
from tests.conftest import smooth, write_dataset
from tests.load.batches import batches as batches_of
from tests.load.batches import check_every_way, check_same, stages
from tests.photos import oriented
from tfprep import Recipe, augment, codecs, sources
from tfprep.builder import BuildOptions
from tfprep.errors import LoaderError, RecordError
from tfprep.load import Buckets

KINDS = {
    "image": "image", "where": "map", "mask": "mask", "boxes": "boxes", "box_labels": "scalar", "points": "points",
    "label": "label",
}  # fmt: skip
CODEC = {
    "image": codecs.Jpeg(95), "where": codecs.Raw(), "mask": codecs.Png(), "boxes": codecs.Scalar(),
    "box_labels": codecs.Scalar(), "points": codecs.Scalar(), "label": codecs.Scalar(),
}  # fmt: skip
OPS = [
    augment.RandomResizedCrop(24, 32, (0.2, 1.0)),
    augment.Flip(),
    augment.ColorJitter(),
    augment.Grayscale(),
    augment.Solarize(),
    augment.Erasing(),
]
PIXELS = ["image", "where", "mask", "label"]


def scene(rng, number):
    """Images of different sizes; a field that holds coordinates, boxes and points of three objects, class numbers by column."""
    height, width = 60 + number % 9, 90 - number % 7
    y, x = np.mgrid[:height, :width] + 0.5
    corners = rng.uniform((2, 2), (width - 22, height - 22), (3, 2))
    boxes = np.concatenate([corners, corners + rng.uniform(4, 20, (3, 2))], 1).astype(np.float32)
    smooth = 128 + 100 * np.sin(x / 17 + number)[..., None] * np.cos(y / 13 + np.arange(3)[:, None, None]).transpose(
        1, 2, 0
    )
    return {
        "image": smooth.astype(np.uint8), "where": np.stack([x, y], -1).astype(np.float32),
        "mask": (x // 5 % 7).astype(np.uint8), "boxes": boxes, "box_labels": np.arange(3) + 10 * number,
        "points": np.concatenate([corners + 1, np.ones((3, 1))], 1).astype(np.float32), "label": number % 3,
    }  # fmt: skip


RULES = {"flip_indices": {"points": [0, 2, 1]}, "min_visible": 0.3, "row_fields": {"boxes": ["box_labels"]}}


def scenes(folder, recipe, **samples):
    """A dataset of scenes that was built by this recipe."""
    made = write_dataset(folder, samples=samples, make=scene, kinds=KINDS, codec=CODEC)
    made.seal(lambda document: document.update(recipe=recipe))
    return tfprep.load.open(made.path)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return scenes(tmp_path_factory.mktemp("warps") / "made", RULES, train=40, val=9)


batches = partial(batches_of, batch_size=8)


def test_padded_boxes_and_stacked_floats(data):
    options = {"inputs": ["image", "where"], "targets": {"boxes": "boxes", "mask": "mask"}, **stages(OPS)}
    ((x, y),) = batches(data, 1, pad={"boxes": 5}, **options)
    single = batches(data, 1, **stages(OPS), fields=["image", "where", "boxes", "mask"])[0]
    np.testing.assert_array_equal(x, np.concatenate([single["image"].astype(np.float32), single["where"]], -1))
    np.testing.assert_array_equal(y["mask"], single["mask"])
    for padded, boxes in zip(y["boxes"], single["boxes"], strict=True):
        np.testing.assert_array_equal(padded[: len(boxes)], boxes)
        assert (padded[len(boxes) :] == -1).all()


# --- a JPEG is decoded at a fraction ---------------------------------------------------------------------------------------


def test_reduced_decoding_moves_no_pixels(make_dataset):
    """The same smooth pictures as JPEG, decoded at 1/2, 1/4 and 1/8, and as PNG, decoded whole."""

    def make(rng, number):
        height, width = 403 + number, 510 - 3 * number
        y, x = np.mgrid[:height, :width]
        waves = [128 + 60 * np.sin(x / (31 + n)) + 60 * np.cos(y / (27 + n)) for n in range(3)]
        picture = np.stack(waves, -1).astype(np.uint8)
        return {"lossy": picture, "exact": picture}

    kinds, codec = dict.fromkeys(("lossy", "exact"), "image"), {"lossy": codecs.Jpeg(98, "444"), "exact": codecs.Png(1)}
    made = make_dataset(samples={"train": 6}, fields=("lossy", "exact"), make=make, kinds=kinds, codec=codec, shards=1)
    data = tfprep.load.open(made.path)
    for size in (150, 75, 36):
        lossy, exact = (
            batches(
                data,
                2,
                batch_size=6,
                fields=[name],
                **stages([augment.RandomResizedCrop(size, size, (0.5, 1)), augment.Flip()]),
            )
            for name in ("lossy", "exact")
        )
        for one, other in zip(lossy, exact, strict=True):
            difference = one["lossy"].astype(int) - other["exact"]
            assert np.abs(difference).max() <= 4
            assert abs(difference.mean()) < 0.5
            slope = np.gradient(other["exact"].astype(float), axis=2)
            assert abs((difference * slope).sum() / (slope**2).sum()) < 0.02  # pixels of the output that it is shifted


def test_all_exif_orientations_are_upright(tmp_path):
    """Photos as cameras write them, stored as they are and as JPEG: eight ways to store the same picture."""
    y, x = np.mgrid[:96, :144]
    upright = np.stack([x * 255 // 143, y * 255 // 95, (x + y) * 255 // 238], -1).astype(np.uint8)
    turns = {
        1: lambda a: a, 2: lambda a: a[:, ::-1], 3: lambda a: a[::-1, ::-1], 4: lambda a: a[::-1],
        5: lambda a: a.swapaxes(0, 1), 6: lambda a: a.swapaxes(0, 1)[::-1], 7: lambda a: a.swapaxes(0, 1)[::-1, ::-1],
        8: lambda a: a.swapaxes(0, 1)[:, ::-1],
    }  # fmt: skip
    (tmp_path / "raw/photos").mkdir(parents=True)
    for orientation, turn in turns.items():
        photo = Image.fromarray(np.ascontiguousarray(turn(upright)))
        photo.save(tmp_path / f"raw/photos/{orientation}.jpg", quality=97, subsampling=0, exif=oriented(orientation))
    for number, codec in enumerate((codecs.Original(), codecs.Jpeg(97, "444"))):
        recipe = Recipe("photos", sources.Folder(), {"image": codec})
        tfprep.build(recipe, tmp_path / f"out{number}", tmp_path / "raw", options=BuildOptions(workers=0))
        data = tfprep.open(tmp_path / f"out{number}")
        for ops in ([augment.Resize(24, 36)], [augment.Resize(48, 72), augment.CenterCrop(24, 24)]):
            (batch,) = data.numpy_loader("train", 8, fields=["image"], **stages(ops))
            assert np.abs(batch["image"].astype(int) - batch["image"][:1]).max() <= 6
            left, right = batch["image"][:, :, 0, 0].mean(), batch["image"][:, :, -1, 0].mean()
            assert right - left > 60


# --- exactness ----------------------------------------------------------------------------------------------------------


ALL = [*OPS, augment.MixUp(0.4), augment.CutMix()]


def test_threads_processes_resumes_and_hosts_deliver_the_same(data):
    check_every_way(data, 8, starts=(3,), **stages(ALL), fields=["image", "where", "label"])
    fields = ["image", "boxes", "box_labels", "points"]  # boxes are lists
    check_every_way(data, 6, starts=(5,), hosts=1, **stages(OPS[:2]), fields=fields)


@pytest.mark.parametrize(
    ("more", "fields"),
    [
        ([augment.ColorJitter(), augment.Erasing()], ["image", "label", "where"]),
        ([augment.MixUp(p=0), augment.CutMix(p=0)], ["image", "label", "where"]),
        ([], ["mask", "where"]),
    ],
)
def test_other_ops_and_fields_change_no_draws(data, more, fields):
    """A sample's window depends on its position in the run only, and not on how far a JPEG beside it is reduced."""
    options = {"order": "sequential", "batch_size": 5}
    ops = [augment.RandomResizedCrop(12, 16, (0.5, 1.0)), augment.Flip()]
    plain = batches(data, 4, **stages(ops), fields=["where"], **options)
    whole = batches(data, 4, **stages([*ops, *more]), fields=fields, **options)
    check_same(plain, [{"where": batch["where"]} for batch in whole])


def test_a_mask_beside_a_jpeg_changes_no_pixel_of_it(data):
    ops = [augment.RandomResizedCrop(12, 16, (0.5, 1.0)), augment.Flip()]
    plain, whole = (
        batches(data, 3, **stages(ops), fields=fields) for fields in (["image"], ["where", "mask", "image"])
    )
    check_same(plain, [{"image": batch["image"]} for batch in whole])


def mirrored(size, generator):
    return augment.Transform(np.array([[-1.0, 0, size[1]], [0, 1, 0], [0, 0, 1]]), size)


MIRRORS = r"^geometry: .*mirrors 'points', and a left hand becomes a right hand; say in the recipe .* flip_ind"
LOST = "'box_labels' loses the rows of boxes"
REFUSED = [
    (
        {},
        ["image", "mask"],
        [augment.Resize(50, 50, pad=True)],
        r"outside of the image, .* in 'mask'; build with Recipe\(fill=",
    ),
    (
        {},
        ["image", "boxes", "box_labels"],
        [augment.Crop(9, 9)],
        r"which of box_labels have .*; build with Recipe\(row_fields=",
    ),
    (
        {"row_fields": {"boxes": ["mask"]}},
        ["boxes", "mask"],
        [augment.Crop(9, 9)],
        "'mask' numbers objects by the places",
    ),
    ({}, ["image", "points"], {"geometry": [mirrored]}, MIRRORS),
    ({}, ["image", "points"], [augment.Flip()], MIRRORS),
    (RULES, ["boxes"], [augment.RandomResizedCrop(20, 20)], "no image, mask or map is loaded"),
    (RULES, ["image", "label"], [augment.Resize(shorter=30), augment.MixUp()], "images of one size are mixed"),
    (RULES, ["image", "box_labels"], OPS[:2], LOST),
    (RULES, ["image", "box_labels"], [augment.Crop(9, 9)], LOST),
    (RULES, ["image", "box_labels"], {"bucket": Buckets([(9, 9)])}, LOST),
    (RULES, ["image", "boxes", "label"], [augment.Resize(9, 9), augment.CutMix()], "CutMix does not move boxes"),
]


@pytest.mark.parametrize(("recipe", "fields", "ops", "rule"), REFUSED)
def test_what_cannot_follow_is_refused(tmp_path, recipe, fields, ops, rule):
    """Also what a recipe does not say, which a loader needs to know."""
    with pytest.raises(LoaderError, match=rule):
        scenes(tmp_path, recipe, train=4).numpy_loader("train", 2, fields=fields, **stages(ops))


@pytest.mark.parametrize("ops", [{"geometry": [augment.CenterCrop(30, 40)]}, {"geometry": [augment.Resize(30, 40)]}])
def test_rules_of_fields_that_are_not_loaded_part_no_mix(tmp_path, ops):
    """Images of a dataset with key points and one without: boxes and points do not matter."""
    poses, plain = (
        scenes(tmp_path / "poses", {**RULES, "fill": {"mask": 11}}, train=4),
        scenes(tmp_path / "plain", {}, train=4),
    )
    mix = tfprep.mix({poses: 0.5, plain: 0.5})
    (batch,) = itertools.islice(mix.numpy_loader("train", 4, fields=["image", "label"], **ops), 1)
    assert batch["image"].shape == (4, 30, 40, 3)
    for field in ("mask", "boxes", "points"):
        with pytest.raises(LoaderError, match="the datasets of a mix were built with different border, fill, min_vis"):
            mix.numpy_loader("train", 4, fields=["image", field], **ops)


@pytest.mark.parametrize("count", [3, None])
@pytest.mark.parametrize("field", ["points", "boxes"])
def test_whole_numbers_become_floats_where_geometry_moves_them(make_dataset, field, count):
    """As in a build. Their shares of pixels would be cut off."""

    def made(dtype):
        def make(rng, number):
            corners = rng.integers(2, 20, (count or number % 4, 2))
            value = corners if field == "points" else np.concatenate([corners, corners + 9], 1)
            return {"image": np.zeros((40, 50, 3), np.uint8), field: value.astype(dtype)}

        codec = {"image": codecs.Png(), field: codecs.Scalar()}
        return tfprep.open(make_dataset(dtype, samples={"train": 8}, make=make, codec=codec, kinds=KINDS).path)

    options = {"geometry": [augment.Resize(28, 36), augment.Crop(27, 35)], "fields": ["image", field]}
    for pad in ({}, {field: 4}):
        whole, floats = (batches(made(dtype), 4, **options, pad=pad) for dtype in ("int64", "float32"))
        check_same(floats, whole)
        assert whole[0][field][0].dtype == np.float32


# --- mistakes -----------------------------------------------------------------------------------------------------------


def test_fields_that_a_model_added_follow_where_they_can(data, monkeypatch):
    """Their records are read by themselves: scalars are taken as they are, boxes and maps of them could not follow."""
    monkeypatch.setattr(type(data), "group_of", lambda self, field: "model" if field == "boxes" else "")
    with pytest.raises(LoaderError, match=r"'boxes' is in records of its own \(model\), and cannot follow"):
        data.numpy_loader("train", **stages(OPS[:1]), fields=["image", "boxes"])
    data.numpy_loader("train", **stages(OPS[:1]), fields=["image", "points"])


def test_a_mask_that_has_not_the_size_of_its_image_is_an_error_also_where_the_image_is_decoded_at_that_size(
    make_dataset,
):
    def make(rng, number):
        side = 64 + 2 * (number % 2)
        return {"image": smooth(rng, side, side, 3), "mask": np.zeros((side // 2, side // 2), np.uint8)}

    kinds, codec = {"image": "image", "mask": "mask"}, {"image": codecs.Jpeg(), "mask": codecs.Png()}
    made = make_dataset(samples={"train": 4}, fields=tuple(kinds), make=make, kinds=kinds, codec=codec)
    for side in (64, 32, 20):  # decoded whole, and at 1/2
        with pytest.raises(RecordError, match=r"one height and width, not \(64, 64\) and \(32, 32\) \(key"):
            batches(
                tfprep.load.open(made.path), 1, geometry=[augment.Resize(side, side)], order="sequential", threads=1
            )


def test_images_of_different_sizes_stay_a_list(data):
    """After `Resize(shorter=...)`, and where only color is changed; processes cannot fill them."""
    for ops, shorter in (([augment.Resize(shorter=30)], 30), ([augment.ColorJitter()], None)):
        (batch,) = batches(data, 1, **stages(ops), fields=["image", "mask"])
        sides = {min(image.shape[:2]) for image in batch["image"]}
        assert sides == {shorter} if shorter else len(sides) > 1
        assert [image.shape[:2] for image in batch["image"]] == [mask.shape for mask in batch["mask"]]
        with pytest.raises(LoaderError, match="differ in size"):
            data.numpy_loader("train", **stages(ops), fields=["image"], workers="processes")


def halved(sample, draws):
    return {**sample, "mask": sample["mask"] * 0.5}


@pytest.mark.parametrize("ops", [[], [augment.Crop(20, 20)]])
def test_a_function_that_changes_the_type_of_a_mask_is_named(data, ops):
    """Its numbers would be cut off."""
    with pytest.raises(RecordError, match=r"made 'mask' float64; it stays uint8 \(key"):
        batches(data, 1, geometry=[augment.Custom(halved), *ops], fields=["image", "mask"])


def test_all_images_of_a_sample_get_the_same_change_whatever_their_type(make_dataset):
    """16 bits, gray, many channels, wide masks: the same windows and rectangles; color needs RGB of 8 bits."""

    def make(rng, number):
        height, width = 40 + number % 3, 50
        y, x = np.mgrid[:height, :width]
        return {
            "deep": np.stack([x, y, x + y], -1).astype(np.uint16) * 600 + 600, "gray": (x * 4 + 40)[..., None].astype(np.uint8),
            "many": np.stack([x + n for n in range(5)], -1).astype(np.float32), "ids": (x * 1000).astype(np.uint16),
        }  # fmt: skip

    kinds = {"deep": "image", "gray": "image", "many": "map", "ids": "mask"}
    codec = {"deep": codecs.Png(), "gray": codecs.Jpeg(98), "many": codecs.Raw(), "ids": codecs.Png()}
    made = make_dataset(samples={"train": 12}, fields=tuple(kinds), make=make, kinds=kinds, codec=codec)
    data = tfprep.load.open(made.path)
    ops = [augment.RandomResizedCrop(24, 28), augment.Flip(), augment.Erasing(1.0, level=0)]
    for fields in (list(kinds), list(kinds)[::-1]):
        (batch,) = batches(data, 1, batch_size=12, **stages(ops), fields=fields, order="sequential")
        erased = (batch["deep"] == 0).all(-1)
        assert erased.any((1, 2)).all()
        np.testing.assert_array_equal(erased, batch["gray"][..., 0] == 0)
        kept = ~erased
        np.testing.assert_allclose(batch["deep"][..., 0][kept] / 600 - 1, batch["many"][..., 0][kept], atol=0.01)
        np.testing.assert_allclose(batch["gray"][..., 0][kept] / 4 - 10, batch["many"][..., 0][kept], atol=1.5)
        assert np.abs(batch["ids"] / 1000 - batch["many"][..., 0]).max() < 1.5
    with pytest.raises(LoaderError, match="ColorJitter takes gray or RGB of 8 bits; 'deep' is uint16"):
        data.numpy_loader("train", 4, **stages([augment.ColorJitter()]))
