"""`tf_dataset`: the samples of the dataset through public TensorFlow ops only."""

import uuid
from collections import Counter

import numpy as np
import pytest

import tfprep
from tests.conftest import CODECS, write_dataset
from tests.examples import image_bytes, serialized, write
from tests.load.batches import batches, check_same
from tfprep import codecs
from tfprep.dataset import index_tfrecords
from tfprep.errors import DatasetError, LoaderError
from tfprep.fields import FieldSpec
from tfprep.storage import address
from tfprep.storage import store as objects
from tfprep.storage.address import Url
from tfprep.storage.store import open_store

tf = pytest.importorskip("tensorflow")


def numbers(batches):
    """The number of each sample, and that of its variant: see `photo_fields`."""
    clicks = np.concatenate([batch["clicks"].numpy()[:, 0, 0].astype(int) for batch in batches])
    values = (clicks[:, 0] + 256 * clicks[:, 1]).tolist()
    return [value % 1000 for value in values], [value // 1000 for value in values]


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"inputs": ["image", "clicks", "mask"], "targets": "label"},
        {"inputs": {"a": "image", "b": "field"}, "targets": {"m": "mask", "t": "caption"}},
        {"inputs": "image", "targets": "label", "sample_weight": "weight"},
        {"inputs": ["clicks", "field"], "targets": {"t": "caption", "p": "pose"}},
    ],
)
def test_evaluation_delivers_what_the_loader_delivers(data, options):
    """JPEG, PNG of 8 and 16 bits, raw bytes and floats, numbers and text in the order on disk, bit for bit."""
    dataset = data.tf_dataset("val", 4, **options)
    tf.nest.assert_same_structure(dataset.element_spec, data.loader("val", 4, **options).element_spec)
    check_same(batches(data, None, "val", batch_size=4, **options), list(dataset))


def test_evaluation_is_in_the_order_on_disk_with_all_variants_too(make_dataset):
    """Shards are longer than what is taken from one before the next in training."""
    made = make_dataset(samples={"train": 50, "val": 50}, variants=2, shards=2, fields=("clicks", "label"))
    data = tfprep.open(made.path)
    for options in ({"split": "val"}, {"split": "train", "training": False, "variants": "all"}):
        options |= {"batch_size": 8, "fields": ["clicks", "label"]}
        check_same(list(data.numpy_loader(**options)), list(data.tf_dataset(**options)))
    for rows, batch_size in ((96, 96), (100, 128)):  # full batches, where there is one
        (batch,) = data.tf_dataset("train", batch_size, variants="all", fields=["label"])
        assert len(batch["label"]) == rows


def test_a_batch_with_a_record_of_another_shape_is_an_error():
    spec = FieldSpec("map", (2, 3), "uint8")
    stored = {"map": tf.constant([bytes(6), bytes(6)]), "map/shape": tf.constant([[2, 3], [3, 2]], tf.int64)}
    with pytest.raises(tf.errors.InvalidArgumentError, match="shape of 'map'"):
        codecs.Raw().tf_decode(stored, "map", spec)


def test_each_iteration_of_training_has_each_sample_once_in_another_order_and_variant(data):
    train = data.tf_dataset("train", 8, seed=3, fields=["clicks"], remainder="keep")
    epochs = [numbers(train) for _ in range(6)]
    assert all(sorted(samples) == list(range(50)) for samples, _ in epochs)
    assert len({tuple(samples) for samples, _ in epochs}) == 6
    assert set(Counter(v for _, variants in epochs for v in variants)) == {0, 1, 2}
    again = data.tf_dataset("train", 8, seed=3, fields=["clicks"], remainder="keep")
    assert [numbers(again) for _ in range(2)] == epochs[:2]


@pytest.mark.parametrize(
    ("options", "samples", "variants"),
    [
        ({"variants": 0}, 48, {0}),
        ({"variants": 2}, 48, {2}),
        ({"variants": "all"}, 144, {0, 1, 2}),
        ({"variants": 1, "remainder": "keep"}, 50, {1}),
        ({"training": False}, 50, {0}),
    ],
)
def test_variants_and_remainders(data, options, samples, variants):
    dataset = data.tf_dataset("train", 8, fields=["clicks"], **options)
    seen, of = numbers(dataset)
    assert (len(seen), set(of)) == (samples, variants)


def test_without_a_buffer_the_shards_alone_are_shuffled(data):
    none, one, many = (
        numbers(data.tf_dataset("train", 8, fields=["clicks"], shuffle_buffer=buffer, variants=0))[0]
        for buffer in (None, 1, 20)
    )
    assert none == one != many


def test_the_buffer_is_as_large_as_the_memory_budget_allows(data):
    from tfprep.load.options import LoaderOptions
    from tfprep.load.tf_dataset import _buffer

    info = data.split("train")
    files = [file for files in info.files for file in files]
    mean = sum(file.bytes for file in files) / 150
    assert _buffer(info, "auto", LoaderOptions(2, memory_budget=int(20 * mean))) == pytest.approx(10, abs=1)
    assert _buffer(info, "auto", LoaderOptions(2, memory_budget="1GB")) == 150
    assert _buffer(info, "auto", LoaderOptions(32, memory_budget=1)) == 32


def test_images_of_different_sizes(make_dataset):
    def make(rng, number):
        return {"image": np.full((3 + number % 4, 5, 3), number, np.uint8), "label": number}

    codec = {"image": tfprep.codecs.Png(), "label": tfprep.codecs.Scalar()}
    data = tfprep.open(make_dataset(samples={"val": 9}, fields=("image", "label"), make=make, codec=codec).path)
    for one, other in zip(data.tf_dataset("val", 4), data.loader("val", 4), strict=True):
        assert one["image"].to_list() == other["image"].to_list()


def test_it_can_be_serialized(data):
    train = data.tf_dataset("train", 8, inputs="clicks", targets="label")
    policy = tf.data.experimental.ExternalStatePolicy.FAIL
    assert b"PyFunc" not in train._as_serialized_graph(external_state_policy=policy).numpy()


def test_urls(photos, data, monkeypatch):
    """TensorFlow has a file system `ram://`, and none for `memory://`."""
    client = objects._client
    monkeypatch.setattr(address, "SCHEMES", (*address.SCHEMES, "ram"))
    monkeypatch.setattr(
        objects, "_client", lambda url: client(Url("memory", url.bucket, "") if url.scheme == "ram" else url)
    )
    bucket = uuid.uuid4().hex
    store = open_store(f"ram://{bucket}")
    for path in photos.path.iterdir():
        store.write(path.name, path)
        with tf.io.gfile.GFile(f"ram://{bucket}/{path.name}", "wb") as file:
            file.write(path.read_bytes())
    there = tfprep.open(f"ram://{bucket}").tf_dataset("train", 8, seed=1, fields=["clicks"])
    assert numbers(there) == numbers(data.tf_dataset("train", 8, seed=1, fields=["clicks"]))
    with pytest.raises(LoaderError, match=r"TensorFlow does not read memory://; loader\(\) does"):
        tfprep.open(f"memory://{bucket}").tf_dataset("train", 8)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"split": "tests"}, DatasetError, "has no split 'tests'"),
        ({"fields": ["key"]}, LoaderError, r"'key' is in the index, which tf_dataset\(\) does not read; use loader\(\)"),
        ({"batch_size": 64, "remainder": "drop"}, LoaderError, "leaves no batch: 50 samples are fewer than batch_size=64"),
        ({"variants": "rotate"}, LoaderError, "takes variants='random', 'all' or a number"),
        ({"order": "global"}, LoaderError, r"tf_dataset\(\) has no option 'order'"),
        ({"shuffle_buffer": 0}, LoaderError, "shuffle_buffer, if it is not 'auto' or None, is a whole number from 1, not 0"),
    ],
)  # fmt: skip
def test_wrong_options(data, options, error, message):
    with pytest.raises(error, match=message):
        data.tf_dataset(**options)


def test_records_that_the_index_leaves_out_are_not_delivered(tmp_path):
    """Added fields, whose records follow those of the index, would be those of other samples after the first of them."""
    picture = image_bytes(np.random.default_rng(0), (8, 8), "PNG")
    records = [{"number": number, **({"picture": picture} if number != 5 else {})} for number in range(200)]
    path = write(tmp_path / "val.tfrecord", map(serialized, records))
    assert index_tfrecords(path, "val", on_bad="skip", workers=0).manifest.rejected == 1
    with pytest.raises(LoaderError, match=r"1 records that the index leaves out are in the shards.*; use loader\(\)"):
        tfprep.open(tmp_path).tf_dataset("val", 8, fields=["number"])


def test_fields_that_tensorflow_cannot_decode(tmp_path):
    stored = {**CODECS, "depth": codecs.Zstd()}
    made = write_dataset(tmp_path / "made", samples={"train": 9}, fields=["image", "depth"], codec=stored)
    with pytest.raises(
        LoaderError, match=r"^'depth' is stored as Zstd, for which TensorFlow has no op; use loader\(\)"
    ):
        tfprep.open(made.path).tf_dataset("train", 2)
    (batch,) = tfprep.open(made.path).tf_dataset("train", 9, fields=["image"])
    assert len(batch["image"]) == 9
    (batch,) = tfprep.open(made.path).loader("train", 9, training=False)
    assert np.array_equal(np.stack([row["depth"] for row in made.values["train"][0]]), batch["depth"].numpy())
