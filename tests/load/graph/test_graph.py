"""The graph path delivers the same values as the direct path, bit for bit, with TensorFlow ops only."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from PIL import Image

import tfprep
from tfprep import Recipe, codecs, sources
from tfprep.builder import BuildOptions, build
from tfprep.errors import LoaderError, RecordError
from tfprep.load import mix
from tfprep.load.order import permutation as numpy_permute
from tfprep.load.order.epoch_order import EpochOrder

tf = pytest.importorskip("tensorflow")

from tfprep.load.graph import order as graph_order  # noqa: E402 - it imports TensorFlow


def same(one, other):
    tf.nest.assert_same_structure(one, other)
    for a, b in zip(tf.nest.flatten(one), tf.nest.flatten(other), strict=True):
        assert a.dtype == b.dtype
        assert np.array_equal(a.numpy(), b.numpy())


@pytest.mark.parametrize("size", [1, 2, 5, 97, 1000, 2**40 + 3])
def test_permutations(size):
    index = np.random.default_rng(0).integers(0, size, 200)
    keys = np.arange(200, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    expected = numpy_permute.permute(index, size, keys)
    assert graph_order.permute(tf.constant(index), size, tf.constant(keys)).numpy().tolist() == expected.tolist()
    back = graph_order.permute(tf.constant(expected), size, tf.constant(keys), inverse=True)
    assert back.numpy().tolist() == index.tolist()


@pytest.mark.parametrize("name", ["global", "block", "sequential"])
@pytest.mark.parametrize("size", [1, 63, 130, 1037])
def test_orders(name, size):
    order = EpochOrder(name, 4, block=8, window=3)
    place, epoch = np.tile(np.arange(size), 2), np.repeat([0, 5], size)
    made = graph_order.items(order, tf.constant(place.astype(np.uint64)), tf.constant(epoch.astype(np.uint64)), size)
    assert made.numpy().tolist() == order.items(place, epoch, size).tolist()


CASES = {
    "as it comes": {},
    "blocks": {"order": "block", "block": 4, "window": 3},
    "sequential": {"order": "sequential"},
    "all variants": {"variants": "all"},
    "random variants": {"variants": "random"},
    "one variant": {"variants": 1},
    "kept remainder": {"remainder": "keep", "start_step": 2},
    "wrapped remainder": {"remainder": "wrap"},
    "one of three hosts": {"hosts": (1, 3)},
    "far away": {"start_step": 10_000_000},
    "balanced": {"balance": "label"},
    "weighted": {"weights": {0: 1, 1: 2.5, 2: 0.3}},
    "some of them": {"where": "label == 'dog' or key < 'train/0010'"},
    "once": {"training": False},
}


@pytest.mark.parametrize("case", CASES)
def test_order_and_pixels_of_every_field(photos, case):
    """JPEG, PNG of 8 and 16 bits, raw bytes and floats, numbers and text, in batches of more records than are read at a time."""
    data = tfprep.open(photos.path)
    options = {"seed": 3, "fields": [*data.fields, "key", "variant"], **CASES[case]}
    direct, graph = (data.loader("train", 20, path=path, **options) for path in ("direct", "graph"))
    assert graph.element_spec == direct.element_spec
    count = 0
    for _ in range(3):
        for one, other in zip(direct, graph, strict=True):
            same(one, other)
            count += 1
        assert direct.next_step == graph.next_step
    assert count == 3 * len(direct)


@pytest.mark.parametrize(
    "options",
    [
        {"inputs": ["image", "clicks", "mask"], "targets": "label"},
        {"inputs": ["image", "clicks"], "dtype": "float32", "normalize": True},
        {"inputs": ["image", "depth"], "dtype": "bfloat16", "normalize": True},
        {"inputs": {"a": "image", "b": "field"}, "targets": {"m": "mask", "t": "caption"}, "dtype": "float16"},
    ],
)
def test_structures_and_types(photos, options):
    data = tfprep.open(photos.path)
    direct, graph = (data.loader("train", 8, seed=3, path=path, **options) for path in ("direct", "graph"))
    assert graph.element_spec == direct.element_spec
    for one, other in zip(direct.take(3), graph.take(3), strict=True):
        same(one, other)


def test_a_mix(make_dataset):
    a = tfprep.open(make_dataset("a", samples={"train": 14}, fields=("image", "label"), variants=3).path)
    b = tfprep.open(make_dataset("b", samples={"train": 5}, fields=("image", "label"), seed=1).path)
    both = mix({a: 0.6, b: 0.4})
    options = {"seed": 3, "fields": ["image", "label", "key", "variant"]}
    direct, graph = (both.loader("train", 6, path=path, **options) for path in ("direct", "graph"))
    for one, other in zip(direct.repeat().take(8), graph.repeat().take(8), strict=True):
        same(one, other)


def test_the_graph_contains_only_ops(photos):
    """The graph contains no Python function, so that it can be serialised and run by another process."""
    graph = tfprep.open(photos.path).loader("train", 8, path="graph").repeat()
    text = graph._as_serialized_graph(external_state_policy=tf.data.experimental.ExternalStatePolicy.FAIL).numpy()
    assert b"PyFunc" not in text
    direct = tfprep.open(photos.path).loader("train", 8, path="direct")
    with pytest.raises(tf.errors.OpError):
        direct._as_serialized_graph(external_state_policy=tf.data.experimental.ExternalStatePolicy.FAIL)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"on_bad": "skip"}, "cannot do on_bad='skip'"),
        ({"verify": "never"}, "cannot do verify='never'"),
        ({"cache": "decoded"}, "cannot do cache"),
        ({"geometry": [lambda size, generator: None]}, "cannot do geometry"),
        ({"training": False, "hosts": (0, 3), "batch_size": 9}, "an empty last batch"),
    ],
)
def test_options_that_the_graph_path_refuses(photos, options, says):
    split = "val" if "hosts" in options else "train"
    if "geometry" in options:
        from tfprep.augment import CenterCrop

        options = {"geometry": [CenterCrop(8, 8)]}
    with pytest.raises(LoaderError, match=says):
        tfprep.open(photos.path).loader(split, **({"batch_size": 8, "path": "graph"} | options))


@pytest.fixture
def swapped(tmp_path):
    """A dataset in which two shards of equal size have been exchanged."""
    for number in range(24):
        path = tmp_path / "data" / "ab"[number % 2] / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.full((4, 4, 3), number, np.uint8)).save(path)
    store = {"image": codecs.Raw("uint8"), "label": codecs.Scalar()}
    recipe = Recipe("r", sources.Folder(), store, shards={"train": 8})
    build(recipe, tmp_path / "out", tmp_path / "data", options=BuildOptions(workers=0))
    shards = sorted(tmp_path.glob("out/*.tfrecord-*-of-00008"), key=lambda path: path.stat().st_size)
    one, other = next((a, b) for a, b in pairwise(shards) if 0 < a.stat().st_size == b.stat().st_size)
    content = one.read_bytes()
    one.write_bytes(other.read_bytes())
    other.write_bytes(content)
    return tmp_path / "out"


@pytest.mark.parametrize("path", ["graph", "direct"])
def test_exchanged_shards_are_an_error(swapped, path):
    with pytest.raises(RecordError, match="not the record that the index describes"):
        list(tfprep.open(swapped).loader("train", batch_size=4, path=path, training=False))
