"""MixUp and CutMix, compared with the papers' formulas, in every reader; and one-hot labels."""

import numpy as np
import pytest

import tfprep
from tests.load.batches import batches, check_same, joined, overwrite, stages
from tfprep import augment, codecs, derive
from tfprep.errors import LoaderError
from tfprep.load.mixing import Mixture, mix_rows

MIXED = {"fields": ["image", "label", "key"], "batch_size": 8, "seed": 3}


def test_a_weighted_sum_of_bytes_is_exact():
    """All bytes over all bytes, with every weight, in whole numbers."""
    a, b = np.indices((256, 256))
    for weight in range(257):
        rows = np.stack([a, b]).astype(np.uint8)
        mix_rows(rows, [Mixture(weight), Mixture()])
        np.testing.assert_array_equal(rows, [(weight * a + (256 - weight) * b + 128) // 256, b])


def test_what_cannot_be_mixed_is_refused(data):
    for options in ({"fields": ["image", "weight"]}, {"inputs": "image", "targets": "pose"}):
        with pytest.raises(
            LoaderError, match=r"MixUp mixes two samples, and '(weight|targets)' would stay that of one"
        ):
            data.numpy_loader("train", 4, mix=[augment.MixUp()], **options)
    weighted = {"inputs": "image", "targets": "label", "sample_weight": "weight"}
    assert batches(data, 1, mix=[augment.MixUp()], **weighted)[0][2].shape == (8,)
    views = {name: (1, {"geometry": [augment.Crop(side, side)]}) for name, side in (("large", 20), ("small", 9))}
    options = {"fields": ["image", "label"], "views": views}
    with pytest.raises(LoaderError, match="give all views one size, or take MixUp"):
        data.numpy_loader("train", 4, mix=[augment.CutMix()], **options)
    data.numpy_loader("train", 4, mix=[augment.MixUp()], **options)
    with pytest.raises(LoaderError, match="a sample is mixed with another one of its batch; batch_size=1 has none"):
        data.numpy_loader("train", 1, mix=[augment.CutMix()], fields=["image", "label"])
    data.numpy_loader("val", 1, mix=[augment.CutMix()], fields=["image", "label"])


@pytest.mark.parametrize(("dtype", "atol"), [(np.uint16, 0.5), (np.int32, 0.5), (np.float32, 1e-2), (np.float16, 32)])
def test_a_weighted_sum_of_wider_numbers(dtype, atol):
    a, b = rows = np.random.default_rng(0).integers(0, 60000, (2, 1, 500)).astype(dtype)
    expected = (100 * a.astype(float) + 156 * b.astype(float)) / 256
    mix_rows(rows, [Mixture(100), Mixture()])
    np.testing.assert_allclose(rows[0].astype(float), expected, atol=atol)


def test_cutmix_replaces_masks_and_maps_in_the_box_of_the_image(data):
    """The box and the labels are those of tests/fidelity."""
    options = {"batch_size": 8, "seed": 3, "fields": ["lossless", "mask", "field", "label"], "variants": 0}
    plain, made = (batches(data, 40, **stages(ops), **options) for ops in ([], [augment.CutMix()]))
    for before, after in zip(plain, made, strict=True):
        for row in range(8):
            box = (after["field"][row] != before["field"][row]).any(axis=-1)
            for name in ("lossless", "mask", "field"):
                inside = box.reshape(box.shape + (1,) * (before[name].ndim - 3))
                expected = np.where(inside, before[name][(row + 1) % 8], before[name][row])
                np.testing.assert_array_equal(after[name][row], expected)


@pytest.mark.parametrize("op", [augment.MixUp(1.0), augment.CutMix()])
def test_a_weighted_loss_is_the_sum_of_those_of_both_samples(make_dataset, op):
    """The loss of a prediction p is -log(p) times the label, and the weight: of a sample without a weight nothing counts."""

    def make(rng, number):
        return {"image": np.full((8, 8, 3), number, np.float32), "label": number % 3, "weight": float(number % 4)}

    kinds = {"image": "image", "label": "label", "weight": "scalar"}
    codec = {"image": codecs.Raw(), "label": codecs.Scalar(), "weight": codecs.Scalar()}
    made = make_dataset(samples={"train": 24}, fields=tuple(kinds), make=make, kinds=kinds, codec=codec)
    options = {"inputs": "image", "targets": "label", "sample_weight": "weight", "one_hot": 3}
    plain, mixed = (batches(tfprep.open(made.path), 9, mix=mix, **options) for mix in ([], [op]))
    for (before, own, weights), (after, labels, both) in zip(plain, mixed, strict=True):
        partners = np.roll(before, -1, 0)
        share = (after - partners).mean((1, 2, 3)) / (before - partners).mean((1, 2, 3))
        expected = (share * weights)[:, None] * own + np.roll(((1 - np.roll(share, 1)) * weights)[:, None] * own, -1, 0)
        np.testing.assert_allclose(both[:, None] * labels, expected, atol=1e-4)
        assert np.allclose(labels.sum(1), 1)


def test_each_sample_takes_one_of_two_ops(data):
    plain, made = (
        joined(batches(data, 50, **stages(ops), **MIXED)) for ops in ([], [augment.MixUp(50.0), augment.CutMix()])
    )
    untouched = [(a == b).all(axis=-1).mean() for a, b in zip(plain["image"], made["image"], strict=True)]
    assert 120 < sum(share > 0.2 for share in untouched) < 250  # A box, or a cut so small that it is empty.
    assert 150 < sum(share <= 0.2 for share in untouched) < 280


# --- exactness ----------------------------------------------------------------------------------------------------------

ALL = [augment.Flip(), augment.Crop(20, 20), augment.MixUp(0.4), augment.CutMix()]
EXACT = {"fields": ["image", "label", "key", "variant"], "seed": 9, **stages(ALL), "batch_size": 10}


def test_bad_records_take_substitutes_that_all_hosts_agree_on(make_dataset):
    made = make_dataset(samples={"train": 40}, fields=("lossless", "label"))
    overwrite(next(made.path.glob("*.tfrecord-00000*")), 40, b"\xff" * 300)
    data = tfprep.open(made.path)
    options = EXACT | {"fields": ["lossless", "label"], "on_bad": "skip"}
    whole = batches(data, 12, **options)
    parts = [batches(data, 12, **options, hosts=(index, 4)) for index in range(4)]
    check_same(whole, [joined(step) for step in zip(*parts, strict=True)])


def test_labels_beyond_the_classes(make_dataset):
    def make(rng, number):
        return {"image": np.zeros((8, 8, 3), np.uint8), "grade": 7}

    codec, kinds = {"image": codecs.Png(), "grade": codecs.Scalar()}, {"image": "image", "grade": "label"}
    made = make_dataset(samples={"train": 4}, fields=("image", "grade"), make=make, kinds=kinds, codec=codec)
    data = tfprep.open(made.path)
    with pytest.raises(LoaderError, match=r"how many classes 'grade' has is not known; write one_hot=N"):
        data.numpy_loader("train", **stages([augment.MixUp()])).repeat()
    with pytest.raises(LoaderError, match="'grade' is 7, and there are 5 classes"):
        batches(data, 1, batch_size=4, mix=[augment.MixUp()], one_hot=5)
    assert (
        batches(data, 1, batch_size=4, mix=[augment.MixUp()], one_hot=8)[0]["grade"].tolist()
        == np.eye(8)[[7] * 4].tolist()
    )


def test_a_derived_label_has_not_the_classes_of_the_stored_one(data):
    def parity(sample, draws):
        return np.int64(sample["mask"][0, 0] % 2)

    options = {"fields": ["label"], "derive": {"label": derive.Own(parity, "label", reads=["mask"])}}
    plain, made = (batches(data, 1, one_hot=one_hot, **options) for one_hot in (False, 2))
    np.testing.assert_array_equal(made[0]["label"], np.eye(2)[plain[0]["label"]])
    with pytest.raises(LoaderError, match="how many classes 'label' has is not known"):
        data.numpy_loader("train", 8, one_hot=True, **options)


def test_validation_takes_the_center_and_one_hot_labels(data):
    plain, made = (
        [next(iter(data.numpy_loader("val", 11, training=False, **stages(ops), fields=["image", "label"])))]
        for ops in ([], ALL)
    )
    np.testing.assert_array_equal(made[0]["image"], plain[0]["image"][:, 2:22, 6:26])
    np.testing.assert_array_equal(made[0]["label"], np.eye(3)[plain[0]["label"]])
