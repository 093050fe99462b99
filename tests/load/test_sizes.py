"""Batches of several sizes: sizes that grow by epoch, buckets of aspect ratios, and several views of a sample."""

import itertools
from functools import partial

import numpy as np
import pyarrow.compute as pc
import pytest

import tfprep.load
from tests.conftest import write_dataset
from tests.load.batches import batches as batches_of
from tests.load.batches import check_every_way, check_same, joined, overwrite, stages, view
from tfprep import augment, codecs
from tfprep.load import Buckets

KINDS = {"image": "image", "where": "map", "label": "label", "number": "scalar"}
CODEC = {"image": codecs.Jpeg(95), "where": codecs.Raw(), "label": codecs.Scalar(), "number": codecs.Scalar()}
SHAPES = [(30, 60), (40, 40), (62, 30), (41, 39), (33, 58)]
COUNT = 43


def scene(rng, number):
    height, width = SHAPES[number % 1000 % 5]
    y, x = np.mgrid[:height, :width] + 0.5
    image = rng.integers(0, 256, (height, width, 3)).astype(np.uint8)
    return {
        "image": image, "where": np.stack([x, y], -1).astype(np.float32), "label": number % 3,
        "number": np.array(number),
    }  # fmt: skip


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    options = {"fields": tuple(KINDS), "make": scene, "kinds": KINDS, "codec": CODEC, "variants": 2}
    made = write_dataset(tmp_path_factory.mktemp("sizes") / "made", samples={"train": COUNT, "val": 11}, **options)
    return tfprep.load.open(made.path)


batches = partial(batches_of, batch_size=4)


BUCKETS = Buckets([(16, 32), (24, 24), (32, 16)])
GROWING = [
    augment.RandomResizedCrop(sizes={0: 8, 2: (12, 16), 3: 24}),
    augment.Flip(),
    augment.ColorJitter(),
    augment.MixUp(),
]
VIEWS = {
    "global": view(2, [augment.RandomResizedCrop(24, 24, (0.4, 1)), augment.Flip(), augment.ColorJitter()]),
    "local": view(3, [augment.RandomResizedCrop(12, 12, (0.05, 0.4))]),
}
CASES = {
    "growing": {**stages(GROWING), "fields": ["image", "label", "key"]},
    "buckets": {
        "bucket": BUCKETS,
        **stages([augment.Flip(), augment.Erasing(), augment.MixUp()]),
        "fields": ["image", "label", "key"],
    },
    "all variants": {"bucket": BUCKETS, "variants": "all", "remainder": "keep", "fields": ["image", "number"]},
    "views": {"views": VIEWS, "one_hot": True, "fields": ["image", "label"]},
}


@pytest.mark.parametrize("case", CASES)
def test_threads_processes_resumes_and_hosts_deliver_the_same(data, case):
    """Four epochs, so over every size; views, whose images are in dicts, have the same ones in all epochs."""
    if case == "views":
        whole = check_every_way(data, 12, starts=(9,), hosts=1, batch_size=4, **CASES[case])
        assert whole[0]["label"].shape == (4, 3)
        return
    whole = check_every_way(data, 44, starts=(1, 19, 31, 43), batch_size=4, **CASES[case])
    assert len({batch["image"].shape[1:3] for batch in whole}) == 3


# --- sizes by epoch -----------------------------------------------------------------------------------------------------


def test_sizes_hold_from_their_epoch_on(data):
    loader = data.numpy_loader("train", 4, **stages(GROWING), fields=["image", "label"])
    shapes = [{batch["image"].shape[1:3] for batch in loader} for _ in range(5)]
    assert shapes == [{(8, 8)}, {(8, 8)}, {(12, 16)}, {(24, 24)}, {(24, 24)}]
    loader.set_epoch(2)
    assert {batch["image"].shape[1:3] for batch in loader} == {(12, 16)}
    (validation,) = batches(data, 1, "val", batch_size=11, **stages(GROWING[:1]), fields=["where"])
    assert validation["where"].shape == (11, 24, 24, 2)  # the last size
    for remainder, sizes in (("keep", {3, 4}), ("drop", {4})):
        assert {
            len(b["image"]) for b in batches(data, 22, remainder=remainder, **stages(GROWING[:1]), fields=["image"])
        } == sizes


def test_a_size_changes_no_window(data):
    """A window is drawn without the size to which it is resized."""
    options = {"fields": ["where"], "order": "sequential", "variants": 0}
    growing = batches(data, 40, **stages([augment.RandomResizedCrop(sizes={0: 24, 1: 20})]), **options)
    fixed = batches(data, 40, **stages([augment.RandomResizedCrop(24, 24)]), **options)
    for step, (one, other) in enumerate(zip(growing, fixed, strict=True)):
        size = 24 if step < 10 else 20
        assert one["where"].shape[1] == size
        ends = [
            (each["where"][:, 1:-1, 1:-1].min((1, 2)), each["where"][:, 1:-1, 1:-1].max((1, 2)))
            for each in (one, other)
        ]
        np.testing.assert_allclose(ends[0], ends[1], atol=4 if size == 20 else 0)


def test_sizes_that_differ_within_an_epoch_come_as_lists_in_all(data):
    ops = [augment.RandomResizedCrop(sizes={0: 8, 1: (8, 12)}), augment.Rotate90()]
    made = batches(data, 20, geometry=ops, fields=["where"])
    assert {image.shape[:2] for batch in made[:10] for image in batch["where"]} == {(8, 8)}
    assert {image.shape[:2] for batch in made[10:] for image in batch["where"]} == {(8, 12), (12, 8)}
    assert {type(batch["where"]) for batch in made} == {list}


# --- buckets ------------------------------------------------------------------------------------------------------------


def nearest(number):
    height, width = SHAPES[number % 1000 % 5]
    return min(range(3), key=lambda at: abs(np.log(height / width) - np.log(np.divide(*BUCKETS.sizes[at]))))


@pytest.mark.parametrize("remainder", ["drop", "keep"])
def test_each_batch_is_of_the_bucket_of_its_samples(data, remainder):
    loader = data.numpy_loader("train", 4, bucket=BUCKETS, remainder=remainder, fields=["where", "number"], variants=0)
    counts = np.bincount([nearest(number) for number in range(COUNT)])
    left_out, orders = [], []
    for _ in range(6):
        epoch = list(loader)
        assert len(epoch) == len(loader) == (counts // 4 if remainder == "drop" else -(-counts // 4)).sum()
        seen = np.concatenate([batch["number"] for batch in epoch])
        assert len(set(seen.tolist())) == len(seen)  # each sample once at most
        for batch in epoch:
            (bucket,) = {nearest(number) for number in batch["number"].tolist()}
            assert batch["where"].shape[1:3] == BUCKETS.sizes[bucket]
            steps = [np.diff(batch["where"][..., axis], axis=2 - axis)[:, 2:-2, 2:-2] for axis in (0, 1)]
            np.testing.assert_allclose(steps[0].mean((1, 2)), steps[1].mean((1, 2)), rtol=0.08)  # its aspect is kept
        left_out.append(frozenset(range(COUNT)) - set(seen.tolist()))
        orders.append([batch["where"].shape for batch in epoch])
    lost = (counts % 4).sum() if remainder == "drop" else 0
    assert {len(each) for each in left_out} == {lost}
    assert len({str(order) for order in orders}) > 1  # shuffled among buckets
    if lost:
        assert len(set(left_out)) > 1
    assert (f"{lost} samples left out" in repr(loader)) == (remainder == "drop")


@pytest.mark.parametrize("sizes", [[(16, 32), (32, 16)], [(32, 16), (16, 32)], [(20, 30), (30, 20)]])
def test_of_two_buckets_equally_near_the_taller_takes_a_sample(data, sizes):
    """Squares, whatever the order of the sizes and the logarithms of this machine say."""
    (batch,) = batches(
        data, 1, "val", batch_size=4, bucket=Buckets(sizes), fields=["where"], where=pc.field("height") == 40
    )
    assert batch["where"].shape[1:3] == max(sizes)


def test_the_picture_covers_its_bucket(data):
    """Along one side all of the picture is seen, along the other a window: random in training, the center in evaluation."""
    starts = set()
    for split, count in (("train", 40), ("val", 3)):
        for batch in batches(data, count, split, bucket=BUCKETS, fields=["where", "number"], variants=0):
            for where, number in zip(batch["where"], batch["number"].tolist(), strict=True):
                height, width = SHAPES[number % 5]
                scale = max(where.shape[0] / height, where.shape[1] / width)
                seen = [np.ptp(where[..., 0]) + 1 / scale, np.ptp(where[..., 1]) + 1 / scale]
                expected = [where.shape[1] / scale, where.shape[0] / scale]
                np.testing.assert_allclose(seen, expected, atol=1.6)
                middle = where[..., 0].mean() - width / 2, where[..., 1].mean() - height / 2
                if split == "val":
                    np.testing.assert_allclose(middle, 0, atol=1.1)
                starts.add(tuple(np.round(middle).astype(int)))
    assert len(starts) > 3


def test_evaluation_reads_every_sample_once(data):
    loader = data.numpy_loader("val", 4, bucket=BUCKETS, fields=["where", "number"])
    assert sorted(np.concatenate([batch["number"] for batch in loader]).tolist()) == list(range(11))


@pytest.mark.parametrize("variants", ["rotate", "all"])
def test_bad_records_are_replaced_from_the_same_bucket(make_dataset, variants):
    options = {"fields": ("image", "number"), "make": scene, "kinds": KINDS, "codec": CODEC, "variants": 2}
    made = make_dataset(samples={"train": 40}, shards=1, **options)
    path = next(made.path.glob("*.tfrecord-*"))
    overwrite(path, path.read_bytes().index(b"\xff\xd8\xff"), bytes(300))
    broken = tfprep.load.open(made.path)
    options = {"bucket": BUCKETS, "fields": ["image", "number"], "variants": variants}
    whole = batches(broken, 60, **options, on_bad="skip")
    for batch in whole:
        assert {BUCKETS.sizes[nearest(number)] for number in batch["number"].tolist()} == {batch["image"].shape[1:3]}


def test_the_largest_part_of_a_host_may_be_that_of_a_smaller_batch(data):
    """Of five hosts the third takes one sample of a batch of 8, and two of the last one of 7."""
    options = {
        "batch_size": 8,
        "fields": ["where", "number"],
        "where": pc.field("height") < 41,
        **stages([augment.Resize(90, 90)]),
    }
    whole = batches(data, 99, "val", **options)
    for count in (2, 5, 7):
        parts = [batches(data, 99, "val", **options, hosts=(index, count)) for index in range(count)]
        check_same(whole, [joined(step) for step in zip(*parts, strict=True)])


# --- views --------------------------------------------------------------------------------------------------------------


def test_each_view_has_draws_of_its_own_from_one_decode(data):
    options = {"fields": ["image", "where", "label"], "variants": 0}
    for batch in batches(data, 3, views=VIEWS, **options):
        assert batch["image"].keys() == batch["where"].keys() == {"global", "local"}
        assert [each.shape for each in batch["image"]["global"]] == [(4, 24, 24, 3)] * 2
        assert [each.shape for each in batch["where"]["local"]] == [(4, 12, 12, 2)] * 3
        assert batch["label"].shape == (4,)
        for kind in ("global", "local"):
            for one, other in itertools.combinations(batch["where"][kind], 2):
                assert (np.abs(one - other).max((1, 2, 3)) > 0.5).all()


@pytest.mark.parametrize(
    ("split", "options", "shapes"),
    [
        ("train", {**stages(GROWING[:2]), "one_hot": True}, [[4, None, None, 3], [4, 3]]),
        ("train", {"bucket": BUCKETS}, [[4, None, None, 3], [4]]),
        ("val", {"bucket": BUCKETS}, [[None, None, None, 3], [None]]),
        (
            "val",
            {**stages([augment.Resize(shorter=1)])},
            [[None, None, None, 3], [None]],
        ),  # of a wide image more than 1 x 1
        ("train", {"views": VIEWS}, [[4, 24, 24, 3]] * 2 + [[4, 12, 12, 3]] * 3 + [[4]]),
    ],
)
def test_tensorflow_is_told_which_sizes_differ(data, split, options, shapes):
    """That every loader delivers the same pixels, and that a model is traced once a size, is in tests/backends."""
    tf = pytest.importorskip("tensorflow")
    spec = data.loader(split, 4, inputs="image", targets="label", **options).element_spec
    assert [one.shape.as_list() for one in tf.nest.flatten(spec)] == shapes


def test_a_view_more_changes_no_other(data):
    options = {"fields": ["where"], "variants": 0}
    ops = [augment.RandomResizedCrop(16, 16), augment.Flip()]
    two, five = (batches(data, 3, views={"global": view(count, ops)}, **options) for count in (2, 5))
    for one, other in zip(two, five, strict=True):
        for a, b in zip(one["where"]["global"], other["where"]["global"], strict=False):
            np.testing.assert_array_equal(a, b)
