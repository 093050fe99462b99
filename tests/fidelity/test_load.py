"""What a loader delivers: orders and draws with their distributions, ops at load by formula.

The images of this dataset say where they come from: `where` holds the column and row of each pixel, `number` the sample and the
variant.
"""

import itertools
from collections import Counter
from functools import partial

import numpy as np
import pytest
from scipy import stats

import tfprep.load
from tests.conftest import write_dataset
from tests.fidelity.public import FALSE_ALARM, check_counts, check_share, check_uniform
from tests.load.batches import batches as batches_of
from tests.load.batches import check_every_way, stages
from tfprep import augment, codecs
from tfprep.errors import LoaderError

H, W = SIZE = (10, 14)
COUNT, VARIANTS = 48, 3
KINDS = {"where": "map", "noise": "image", "number": "scalar", "label": "label", "points": "points"}
CODECS = {
    "where": codecs.Raw(), "noise": codecs.Png(), "number": codecs.Scalar(), "label": codecs.Scalar(),
    "points": codecs.Scalar(),
}  # fmt: skip


def fields(rng, number):
    y, x = np.mgrid[:H, :W]
    return {
        "where": np.stack([x, y], -1).astype(np.uint8),
        "noise": rng.integers(0, 256, (*SIZE, 3), dtype=np.uint8),
        "number": np.array([number % 1000, number // 1000]),
        "label": (number % 1000) % 7 % 3,
        "points": rng.normal(size=(number % 3, 2)).astype(np.float32),
    }


OPTIONS = {"make": fields, "kinds": KINDS, "codec": CODECS}


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    samples = {"train": COUNT, "val": 9}
    return write_dataset(tmp_path_factory.mktemp("load"), samples=samples, variants=VARIANTS, shards=3, **OPTIONS)


@pytest.fixture(scope="module")
def data(made):
    return tfprep.load.open(made.path)


batches = partial(batches_of, batch_size=12, threads=1)


def column(elements, name):
    return np.concatenate([np.asarray(element[name]) for element in elements])


def numbers(data, epochs, **options):
    """The samples and variants of each epoch: int [epochs, samples, 2]."""
    whole = batches(data, epochs, fields=["number"], batch_size=COUNT, **options)
    return np.stack([element["number"] for element in whole])


# --- records ------------------------------------------------------------------------------------------------------------


def test_rows_are_padded_with_minus_one(made, data):
    for element in batches(data, 4, pad={"points": 4}, fields=["points", "number"]):
        assert element["points"].shape == (12, 4, 2)
        for points, (sample, variant) in zip(element["points"], element["number"], strict=True):
            own = made.values["train"][variant][sample]["points"]
            np.testing.assert_array_equal(points, np.concatenate([own, np.full((4 - len(own), 2), -1)]))


# --- orders, variants, samplers -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("order", ["global", "sequential"])
def test_an_epoch_holds_each_sample_once(data, order):
    epochs = numbers(data, 6, order=order)[:, :, 0]
    assert all(sorted(epoch) == list(range(COUNT)) for epoch in epochs)
    orders = {tuple(epoch) for epoch in epochs}
    assert len(orders) == (1 if order == "sequential" else 6)
    other = numbers(data, 1, order=order, seed=4)[0, :, 0]
    assert (tuple(other) in orders) == (order == "sequential")


def test_every_sample_is_as_likely_at_every_place(data):
    """Spearman's rank correlation of an order with the order on disk, and of each epoch with the next, is normal around 0."""
    epochs = numbers(data, 150, variants=0)[:, :, 0]
    check_counts(np.bincount(epochs[:, 0] // 6, minlength=8))
    check_counts(np.bincount(epochs[:, -1] // 6, minlength=8))
    rho = [stats.spearmanr(epoch, np.arange(COUNT)).statistic for epoch in epochs]
    between = [stats.spearmanr(np.argsort(a), np.argsort(b)).statistic for a, b in itertools.pairwise(epochs)]
    for values in (rho, between):
        assert abs(np.mean(values)) < 5 / np.sqrt((COUNT - 1) * len(values))
        assert np.std(values) == pytest.approx(1 / np.sqrt(COUNT - 1), rel=0.35)
    neighbors = np.abs(np.diff(epochs, axis=1)) == 1
    assert neighbors.mean() == pytest.approx(2 / COUNT, abs=0.012)


def test_variants_rotate_and_are_drawn(data):
    rotated = numbers(data, 2 * VARIANTS)
    by_sample = np.stack([epoch[np.argsort(epoch[:, 0]), 1] for epoch in rotated])
    for start in range(VARIANTS + 1):
        assert all(sorted(shown) == list(range(VARIANTS)) for shown in by_sample[start : start + VARIANTS].T)
    assert len({tuple(epoch) for epoch in by_sample}) == VARIANTS
    check_counts(np.bincount(by_sample[0], minlength=VARIANTS))
    drawn = numbers(data, 30, variants="random")
    check_counts(np.bincount(drawn[:, :, 1].ravel(), minlength=VARIANTS))
    shown = np.stack([epoch[np.argsort(epoch[:, 0]), 1] for epoch in drawn])
    check_share((shown[1:] == shown[:-1]).ravel(), 1 / VARIANTS)
    assert set(numbers(data, 2, variants=2)[:, :, 1].ravel()) == {2}
    every = batches(data, VARIANTS, fields=["number"], batch_size=COUNT, variants="all")
    assert len({tuple(pair) for pair in column(every, "number").tolist()}) == COUNT * VARIANTS


def test_balance_and_weights_draw_in_proportion(made, data):
    labels = np.array([row["label"] for row in made.values["train"][0]])
    counts = np.bincount(labels)
    assert len(set(counts)) > 1
    quota = -(-COUNT // 3)
    drawn = batches(data, 12, fields=["label", "number"], balance="label", batch_size=quota)
    assert np.bincount(column(drawn, "label")).tolist() == [4 * quota] * 3
    for label in range(3):
        times = Counter(column(drawn, "number")[column(drawn, "label") == label][:, 0].tolist())
        assert len(times) == counts[label]
        assert max(times.values()) - min(times.values()) <= 1
    weights = np.where(np.arange(COUNT) % 4 == 0, 5.0, 1.0)
    weights[7] = 0
    epochs = numbers(data, 20, weights=weights)[:, :, 0]
    times = np.bincount(epochs.ravel(), minlength=COUNT)
    np.testing.assert_allclose(times, 20 * COUNT * weights / weights.sum(), atol=2)
    assert times[7] == 0
    by_class = column(batches(data, 40, fields=["label"], weights={0: 3, 1: 1, 2: 0}), "label")
    expected = counts[:2] * [3, 1] / (counts[:2] * [3, 1]).sum()
    np.testing.assert_allclose(np.bincount(by_class, minlength=3)[:2] / len(by_class), expected, atol=0.03)
    assert 2 not in by_class


def test_a_mix_takes_its_shares(data, tmp_path):
    options = {**OPTIONS, "make": lambda rng, n: fields(rng, n + 500)}
    other = tfprep.load.open(write_dataset(tmp_path, samples={"train": 30}, **options).path)
    mix = tfprep.load.mix({data: 0.25, other: 0.75})
    mixed = column(batches(mix, 14, fields=["number"], remainder="keep"), "number")
    assert len(mixed) == 2 * (48 + 30)
    assert (mixed[:, 0] >= 500).mean() == pytest.approx(0.75, abs=1 / 78)


# --- steps, hosts -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("remainder", ["drop", "keep"])
def test_steps_hold_what_their_remainder_says(data, remainder):
    elements = batches(data, 12, fields=["number"], batch_size=20, remainder=remainder, variants=0)
    sizes = [len(element["number"]) for element in elements]
    per_epoch = 2 if remainder == "drop" else 3
    assert sizes == ([20] * 12 if remainder == "drop" else [20, 20, 8] * 4)
    epochs = [column(elements[n : n + per_epoch], "number")[:, 0] for n in range(0, 12, per_epoch)]
    left_out = [frozenset(range(COUNT)) - set(epoch.tolist()) for epoch in epochs]
    assert all(len(set(epoch.tolist())) == len(epoch) for epoch in epochs)
    assert {len(each) for each in left_out} == ({8} if remainder == "drop" else {0})
    assert len(set(left_out)) == (6 if remainder == "drop" else 1)


AT_LOAD = [augment.Flip(), augment.Crop(8, 9), augment.MixUp(0.4), augment.CutMix()]


@pytest.mark.parametrize(
    "options",
    [{}, {**stages(AT_LOAD)}, {"remainder": "keep"}, {"remainder": "keep", "order": "sequential", "batch_size": 13}],
)
def test_hosts_and_resumed_runs_deliver_the_same(data, options):
    options = {"fields": ["noise", "key", "variant", "label"], "batch_size": 12, **options}
    for hosts in (2, 3, 4):
        check_every_way(data, 9, starts=(1, 4, 8), hosts=hosts, **options)


# --- ops at load --------------------------------------------------------------------------------------------------------


def windows(data, ops, count=50, **options):
    """The column and row that the first and the last pixel of each image show: int [N, 4]."""
    where = column(batches(data, count, fields=["where"], **stages(ops), **options), "where").astype(int)
    x, y = where[..., 0], where[..., 1]
    assert (np.abs(np.diff(x, axis=2)) == 1).all()
    assert (np.abs(np.diff(y, axis=1)) == 1).all()
    assert (x == x[:, :1]).all()
    assert (y == y[:, :, :1]).all()
    return np.stack([x[:, 0, 0], y[:, 0, 0], x[:, -1, -1], y[:, -1, -1]], 1)


@pytest.mark.covers("Flip", "Crop")
def test_draws_change_from_epoch_to_epoch(data):
    drawn = windows(data, [augment.Flip(), augment.Crop(7, 11)], 8, order="sequential").reshape(2, COUNT, 4)
    assert (drawn[0] != drawn[1]).any(axis=1).mean() > 0.7


def pairs(data, op, count=40):
    """Images and one-hot labels before and after, and the partner of each row: the next of its batch, the last's the first."""
    options = {"fields": ["noise", "label", "key", "variant"], "batch_size": 8}
    for before, after in zip(
        batches(data, count, **options), batches(data, count, **stages([op]), **options), strict=True
    ):
        assert (before["key"].tolist(), before["variant"].tolist()) == (
            after["key"].tolist(),
            after["variant"].tolist(),
        )
        for row in range(8):
            partner = (row + 1) % 8
            yield (
                before["noise"][row].astype(int),
                before["noise"][partner].astype(int),
                after["noise"][row].astype(int),
                np.eye(3)[before["label"][row]],
                np.eye(3)[before["label"][partner]],
                after["label"][row],
            )


@pytest.mark.covers("MixUp")
@pytest.mark.parametrize("alpha", [0.4, 2.0])
def test_mixup_weighs_images_and_labels_alike(data, alpha):
    """Zhang et al., ICLR 2018: w a + (1 - w) b with w from Beta(alpha, alpha), the same for image and label."""
    weights = []
    for a, b, mixed, own, other, label in pairs(data, augment.MixUp(alpha)):
        difference = (a - b).ravel()
        w = float(((mixed - b).ravel() * difference).sum() / (difference**2).sum())
        assert np.abs(mixed - (w * a + (1 - w) * b)).max() < 1.3  # rounded to a level, and w to a 256th
        np.testing.assert_allclose(label, w * own + (1 - w) * other, atol=0.005)
        weights.append(w)
    p = stats.kstest(np.clip(weights, 0, 1), stats.beta(alpha, alpha).cdf, method="asymp").pvalue
    assert p > FALSE_ALARM


@pytest.mark.covers("MixUp", "CutMix")
@pytest.mark.parametrize("op", [augment.MixUp(50.0, p=0.3), augment.CutMix(50.0, p=0.3)])
def test_ops_that_mix_happen_with_their_probability(data, op):
    check_share([not np.array_equal(a, mixed) for a, _, mixed, *_ in pairs(data, op, 60)], 0.3)


@pytest.mark.covers("CutMix")
def test_cutmix_is_yuns_formula(data):
    """Yun et al., ICCV 2019: a box of sqrt(1 - w) of each side around any pixel; labels by the area that is left."""
    rng = np.random.default_rng(0)
    sides = (np.sqrt(1 - rng.beta(1, 1, 100_000))[:, None] * SIZE).astype(int)
    center = (rng.random((100_000, 2)) * SIZE).astype(int)
    low, high = np.clip(center - sides // 2, 0, SIZE), np.clip(center + sides // 2, 0, SIZE)
    expected = 1 - np.prod(high - low, axis=1) / (H * W)
    shares, rows = [], []
    for a, b, mixed, own, other, label in pairs(data, augment.CutMix(), 60):
        changed = (mixed != a).any(2)
        ys, xs = np.nonzero((a != b).any(2) & changed)
        box = np.zeros(SIZE, bool)
        if len(ys):
            box[ys.min() : ys.max() + 1, xs.min() : xs.max() + 1] = True
            rows += list(range(ys.min(), ys.max() + 1))
        np.testing.assert_array_equal(mixed, np.where(box[:, :, None], b, a))
        share = 1 - box.mean()
        np.testing.assert_allclose(label, share * own + (1 - share) * other, atol=1e-6)
        shares.append(share)
    assert stats.ks_2samp(shares, expected, method="asymp").pvalue > FALSE_ALARM
    middle = np.mean([n in (4, 5) for n in rows])
    assert 0.2 < middle < 0.32  # symmetric around the middle, where boxes overlap most
    assert np.mean(rows) == pytest.approx((H - 1) / 2, abs=0.35)


def test_uniform_weights_are_not_a_special_case(data):
    check_uniform(numbers(data, 12, weights=np.ones(COUNT))[:, :, 0].ravel() + 0.5, 0, COUNT)


def test_normalization_uses_the_training_split(photos):
    pytest.importorskip("tensorflow")
    keras = pytest.importorskip("keras")
    data = tfprep.load.open(photos.path)
    image, clicks = (np.stack([row[name] for row in photos.values["val"][0]]) for name in ("image", "clicks"))
    expected = (image - [120.0, 128.0, 130.0]) / [10.0, 11.0, 12.0]
    assert np.allclose(data.normalization("image")(image), expected, atol=1e-4)
    both = data.normalization(["image", "clicks"])(np.concatenate([image, clicks], -1))
    assert np.allclose(both, np.concatenate([expected, clicks / 255], -1), atol=1e-4)
    layers = [data.normalization("image"), keras.layers.GlobalAveragePooling2D(), keras.layers.Dense(1)]
    model = keras.Sequential(layers)  # without an Input, as in most scripts
    model.compile("sgd", "mse")
    model.fit(image, np.zeros(len(image)), verbose=0)
    with pytest.raises(LoaderError, match="has statistics of image, not of clicks"):
        data.normalization("clicks")
    for name in ("picture", "label"):
        with pytest.raises(
            LoaderError, match=f"no image, mask or map '{name}'; there are image, lossless, mask, depth"
        ):
            data.normalization(name)
