"""Flip, crop, MixUp and CutMix on the direct path, compared with all possible windows, the papers' formulas, and SciPy's beta."""

import itertools

import numpy as np
import pytest

import tfprep
from tests.load.batches import batches, check_same, joined, overwrite
from tfprep import Recipe, augment, codecs, derive, sources
from tfprep.errors import LoaderError, RecordError
from tfprep.load import Buckets, CutMix, MixUp, RandomCrop, RandomFlip, RandomResizedCrop, Resize
from tfprep.load.at_load.mixing import blend
from tfprep.load.at_load.plan import unfit_fields
from tfprep.load.reader.stages import mirrored as mirrored_pixels

RASTERS = ["image", "lossless", "mask", "depth", "clicks", "field"]
MIXED = {"fields": ["image", "label", "key"], "batch_size": 8, "seed": 3}


def views(array, height, width):
    """All windows of this size, unchanged and mirrored in each way: ((y, x, upside down, left to right), pixels)."""
    for y, x in itertools.product(range(array.shape[0] - height + 1), range(array.shape[1] - width + 1)):
        part = array[y : y + height, x : x + width]
        for flip_y, flip_x in itertools.product((False, True), repeat=2):
            yield (y, x, flip_y, flip_x), part[:: -1 if flip_y else 1, :: -1 if flip_x else 1]


def found(made, plain):
    return next(at for at, part in views(plain, *made.shape[:2]) if np.array_equal(part, made))


# --- flip and crop ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("channels", [1, 32, 33, 200])
def test_pixels_of_any_number_of_bytes_are_mirrored(channels):
    for dtype in (np.uint8, np.float32):
        part = np.random.default_rng(0).integers(0, 256, (5, 7, channels)).astype(dtype)
        np.testing.assert_array_equal(mirrored_pixels(part, False, True), part[:, ::-1])
        np.testing.assert_array_equal(mirrored_pixels(part, True, True), part[::-1, ::-1])


@pytest.mark.parametrize("cache", [False, "decoded"])
@pytest.mark.parametrize(
    "ops",
    [
        [RandomFlip()],
        [RandomFlip(direction="vertical"), RandomFlip()],
        [RandomCrop(20, 25)],
        [RandomFlip(), RandomCrop(20, 25), RandomFlip(direction="vertical")],
        [RandomCrop(22, 30), RandomFlip(), RandomCrop(20, 25)],
    ],
)
def test_all_rasters_show_the_same_window(data, ops, cache):
    options = {"batch_size": 10, "seed": 1, "cache": cache}
    plain, made = (joined(batches(data, 12, at_load=at_load, **options)) for at_load in ([], ops))
    seen = set()
    for row in range(0, 120, 7):
        window = found(made["lossless"][row], plain["lossless"][row])
        seen.add(window)
        for name in RASTERS:
            parts = dict(views(plain[name][row], *made["lossless"].shape[1:3]))
            np.testing.assert_array_equal(made[name][row], parts[window], err_msg=name)
    assert len(seen) > 1
    for name in ("label", "weight", "pose", "caption"):
        assert made[name].tolist() == plain[name].tolist()


@pytest.mark.parametrize("dtype", [None, "float32"])
def test_images_of_different_sizes_become_one_batch(make_dataset, dtype):
    def make(rng, number):
        size = 20 + number % 7, 30 - number % 5
        return {
            "four": rng.integers(0, 256, (*size, 4)).astype(np.uint8),
            "mask": rng.integers(0, 9, size).astype(np.uint8),
        }

    kinds, codec = {"four": "image", "mask": "mask"}, {"four": codecs.Png(), "mask": codecs.Png()}
    made = make_dataset(samples={"train": 30}, fields=("four", "mask"), make=make, kinds=kinds, codec=codec)
    data = tfprep.open(made.path)
    plain, flipped, cut = (
        batches(data, 3, batch_size=10, dtype=dtype, at_load=ops)
        for ops in ([], [RandomFlip()], [RandomFlip(), RandomCrop(18, 18)])
    )
    for before, mirror, after in zip(plain, flipped, cut, strict=True):
        assert after["four"].shape == (10, 18, 18, 4)
        for row in range(10):
            window = found(after["four"][row], before["four"][row])
            np.testing.assert_array_equal(after["mask"][row], dict(views(before["mask"][row], 18, 18))[window])
            assert found(mirror["four"][row], before["four"][row]) == (0, 0, False, window[3])
    with pytest.raises(
        RecordError, match=r"2\d x \d+ pixels are fewer than RandomCrop\(22, 26\) leaves; .* \(key 'train/"
    ):
        batches(data, 9, batch_size=10, at_load=[RandomCrop(22, 26)])
    (large,) = batches(data, 1, batch_size=10, at_load=[RandomCrop(22, 26)], on_bad="skip", fields=["four", "key"])
    numbers = [int(key.removeprefix("train/")) for key in large["key"]]
    assert all(20 + number % 7 >= 22 and 30 - number % 5 >= 26 for number in numbers)


# --- MixUp and CutMix ---------------------------------------------------------------------------------------------------


def test_blend_of_bytes_is_exact():
    """All bytes over all bytes, with every weight, in whole numbers."""
    a, b = (side.reshape(1, -1) for side in np.indices((256, 256)))
    for weight in range(257):
        made = a.astype(np.uint8)
        blend(made, b.astype(np.uint8), weight)
        np.testing.assert_array_equal(made, (weight * a + (256 - weight) * b + 128) // 256)


@pytest.mark.parametrize(("dtype", "atol"), [(np.uint16, 0.5), (np.int32, 0.5), (np.float32, 1e-2), (np.float16, 32)])
def test_blend_of_wider_numbers(dtype, atol):
    a, b = np.random.default_rng(0).integers(0, 60000, (2, 1, 500)).astype(dtype)
    made = a.copy()
    blend(made, b, 100)
    np.testing.assert_allclose(made.astype(float), (100 * a.astype(float) + 156 * b.astype(float)) / 256, atol=atol)


def test_cutmix_replaces_masks_and_maps_in_the_box_of_the_image(data):
    """The box and the labels are those of tests/fidelity."""
    options = {"batch_size": 8, "seed": 3, "fields": ["lossless", "mask", "field", "label"], "variants": 0}
    plain, made = (batches(data, 40, at_load=ops, **options) for ops in ([], [CutMix()]))
    for before, after in zip(plain, made, strict=True):
        for row in range(8):
            box = (after["field"][row] != before["field"][row]).any(axis=-1)
            for name in ("lossless", "mask", "field"):
                inside = box.reshape(box.shape + (1,) * (before[name].ndim - 3))
                expected = np.where(inside, before[name][(row + 1) % 8], before[name][row])
                np.testing.assert_array_equal(after[name][row], expected)


def test_each_sample_takes_one_of_two_ops(data):
    plain, made = (joined(batches(data, 50, at_load=ops, **MIXED)) for ops in ([], [MixUp(50.0), CutMix()]))
    untouched = [(a == b).all(axis=-1).mean() for a, b in zip(plain["image"], made["image"], strict=True)]
    assert 120 < sum(share > 0.2 for share in untouched) < 250  # A box, or a cut so small that it is empty.
    assert 150 < sum(share <= 0.2 for share in untouched) < 280


# --- exactness ----------------------------------------------------------------------------------------------------------

ALL = [RandomFlip(), RandomCrop(20, 20), MixUp(0.4), CutMix()]
EXACT = {"fields": ["image", "label", "key", "variant"], "seed": 9, "at_load": ALL, "batch_size": 10}


def test_bad_records_take_substitutes_that_all_hosts_agree_on(make_dataset):
    made = make_dataset(samples={"train": 40}, fields=("lossless", "label"))
    overwrite(next(made.path.glob("*.tfrecord-00000*")), 40, b"\xff" * 300)
    data = tfprep.open(made.path)
    options = EXACT | {"fields": ["lossless", "label"], "on_bad": "skip"}
    whole = batches(data, 12, **options)
    parts = [batches(data, 12, **options, hosts=(index, 4)) for index in range(4)]
    check_same(whole, [joined(step) for step in zip(*parts, strict=True)])


def test_a_host_without_a_part_in_the_last_batch(data):
    """50 samples in batches of 8: the seventh batch has two samples for four hosts."""
    options = EXACT | {"batch_size": 8, "remainder": "keep"}
    whole = batches(data, 7, **options)
    parts = [batches(data, 7, **options, hosts=(index, 4)) for index in range(4)]
    assert sorted(len(part[6]["image"]) for part in parts) == [0, 0, 1, 1]
    check_same(whole[6], joined([part[6] for part in parts]))


def test_labels_beyond_the_classes(make_dataset):
    def make(rng, number):
        return {"image": np.zeros((8, 8, 3), np.uint8), "grade": 7}

    codec, kinds = {"image": codecs.Png(), "grade": codecs.Scalar()}, {"image": "image", "grade": "label"}
    made = make_dataset(samples={"train": 4}, fields=("image", "grade"), make=make, kinds=kinds, codec=codec)
    data = tfprep.open(made.path)
    with pytest.raises(LoaderError, match=r"how many classes 'grade' has is not known; write MixUp\(..., classes=N\)"):
        data.numpy_loader("train", at_load=[MixUp()]).repeat()
    with pytest.raises(LoaderError, match="'grade' is 7, and there are 5 classes"):
        batches(data, 1, batch_size=4, at_load=[MixUp(classes=5)])
    assert (
        batches(data, 1, batch_size=4, at_load=[MixUp(classes=8)])[0]["grade"].tolist() == np.eye(8)[[7] * 4].tolist()
    )


def test_validation_takes_the_center_and_one_hot_labels(data):
    plain, made = (
        [next(iter(data.numpy_loader("val", 11, training=False, at_load=ops, fields=["image", "label"])))]
        for ops in ([], ALL)
    )
    np.testing.assert_array_equal(made[0]["image"], plain[0]["image"][:, 2:22, 6:26])
    np.testing.assert_array_equal(made[0]["label"], np.eye(3)[plain[0]["label"]])


# --- mistakes -----------------------------------------------------------------------------------------------------------


class OwnClicks(derive.ClickPoints):
    """A user's class."""


class Between(derive.Sobel):
    """A base of the next."""


class OwnSobel(Between):
    """A user's class of a user's class."""


RECIPE = Recipe(
    "unfit",
    sources.Paired(image="{split}/*.png", mask="{split}annot/*.png"),
    derive={
        "offsets": derive.InstanceOffsets(), "slopes": derive.Sobel(of="both"), "edges": derive.Sobel(of="magnitude"),
        "clicks": derive.ClickPoints(), "own_clicks": OwnClicks(), "own_sobel": OwnSobel(of="both"),
        "click_maps": derive.Clicks(), "joints": derive.Heatmaps(points="offsets"),
        "pose": derive.Heatmaps(points="offsets", channels=17), "spots": derive.Heatmaps(points="offsets", channels=1),
    },
    store={"image": codecs.Png()},
)  # fmt: skip


def test_derived_inputs_that_cannot_follow():
    """The derived inputs come from a real recipe, as manifest.json describes them."""
    unfit = unfit_fields(RECIPE.describe())
    refused = {
        op: {name for name, why in unfit.items() if op in why.ops} for op in (RandomFlip, RandomCrop, MixUp, CutMix)
    }
    assert refused[RandomFlip] == {"offsets", "slopes", "clicks", "joints", "pose", "own_clicks", "own_sobel"}
    assert refused[RandomCrop] == refused[MixUp] == refused[CutMix] == {"clicks", "own_clicks"}


CANNOT_FOLLOW = {
    "ClickPoints": ("holds coordinates, which do not move with the pixels; leave it out", RandomFlip(), RandomCrop(8, 8)),
    "InstanceOffsets": ("holds directions", RandomFlip(), None),
    "Distance": ("holds distances in pixels, which a resize", RandomResizedCrop(9, 9), Buckets([(9, 9)])),
    "Clicks": ("holds distances in pixels, which a resize", RandomResizedCrop(9, 9), None),
    "ClickMaps": ("holds distances in pixels, which a resize", Resize(9, 9), None),
}  # fmt: skip


def mirrored(size, generator):
    return augment.Transform(np.array([[-1.0, 0, size[1]], [0, 1, 0], [0, 0, 1]]), size)


def turned(size, generator):
    return augment.Transform(np.array([[0.0, 1, 0], [-1, 0, size[1]], [0, 0, 1]]), size[::-1])


# By the loader's `geometry`: what each may do, and what not.
BY_GEOMETRY = {
    "ClickPoints": ([augment.Resize(24, 32)], [augment.CenterCrop(8, 8), augment.CenterCrop(99, 99), mirrored, turned]),
    "InstanceOffsets": ([augment.CenterCrop(8, 8)], [mirrored, turned, augment.Resize(12, 16)]),
    "Heatmaps": ([augment.CenterCrop(8, 8), turned, augment.Resize(12, 16)], [mirrored]),
    "Distance": ([augment.CenterCrop(8, 8), mirrored, turned], [augment.Resize(24, 31), augment.Resize(shorter=48)]),
    "ClickMaps": ([mirrored], [augment.Resize(12, 16)]),
    "Sobel": ([mirrored, turned, augment.CenterCrop(8, 8)], [augment.Resize(12, 16)]),
    "Boundaries": ([augment.Resize(12, 16), mirrored, turned, augment.CenterCrop(8, 8)], []),
}  # fmt: skip


@pytest.mark.parametrize("derived", BY_GEOMETRY)
def test_a_derived_input_that_cannot_follow_geometry_is_named(make_dataset, derived):
    made = make_dataset(samples={"train": 4}, fields=("image", "clicks", "label"))
    made.seal(lambda document: document.update(recipe={"derive": {"clicks": {"type": f"tfprep.derive.{derived}"}}}))
    data, (allowed, refused) = tfprep.open(made.path), BY_GEOMETRY[derived]
    for op in allowed:
        data.numpy_loader("train", 4, geometry=[op])
    for op in refused:
        with pytest.raises(LoaderError, match=r"^geometry cannot be applied: 'clicks' (holds|has a channel)"):
            data.numpy_loader("train", 4, geometry=[op])
        data.numpy_loader("train", 4, geometry=[op], fields=["image", "label"])


@pytest.mark.parametrize("derived", CANNOT_FOLLOW)
def test_a_derived_input_that_cannot_follow_is_named(make_dataset, derived):
    made = make_dataset(samples={"train": 4}, fields=("image", "field"))
    made.seal(lambda document: document.update(recipe={"derive": {"field": {"type": f"tfprep.derive.{derived}"}}}))
    reason, *ops = CANNOT_FOLLOW[derived]
    for op in ops:
        options = {"bucket": op} if isinstance(op, Buckets) else {"at_load": [op] if op else []}
        if op:
            name = "bucket" if "bucket" in options else f"at_load: {type(op).__name__}"
            with pytest.raises(LoaderError, match=f"^{name} cannot be applied: 'field' {reason}"):
                tfprep.open(made.path).numpy_loader("train", 4, **options)
            options["fields"] = ["image"]
        tfprep.open(made.path).numpy_loader("train", 4, **options)
    if reason.startswith("holds distances"):
        tfprep.open(made.path).numpy_loader("train", 4, at_load=[RandomCrop(9, 9)])
