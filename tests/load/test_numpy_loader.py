"""The loader without TensorFlow, compared with the values from which the records were written."""

import pickle
import subprocess
import sys
from itertools import islice

import cv2
import numpy as np
import pyarrow.compute as pc
import pytest

import tfprep
from tfprep import augment, codecs
from tfprep.errors import DatasetError, LoaderError
from tfprep.load import mix

ALL = ["image", "lossless", "mask", "depth", "clicks", "field", "label", "weight", "pose", "caption"]


def rows_of(loader, steps=None):
    """(key, variant) of every sample, batch after batch: of a pass, or of so many steps of training."""
    found = []
    for batch in loader if steps is None else islice(loader.repeat(), steps):
        found.append(list(zip(batch["key"].tolist(), batch["variant"].tolist(), strict=True)))
    return found


def flat(batches):
    return [sample for batch in batches for sample in batch]


NAMES = {"fields": ["key", "variant"]}


@pytest.mark.parametrize("options", [{}, {"cache": "decoded"}, {"verify": "always"}, {"threads": 3}])
@pytest.mark.parametrize("variant", [0, 2])
def test_every_kind_of_field(photos, variant, options):
    data = tfprep.open(photos.path)
    loader = data.numpy_loader("train", 8, training=False, variants=variant, fields=[*ALL, "key"], **options)
    for _ in range(2):  # The second time from the cache, or without comparing checksums again.
        row = 0
        for batch in loader:
            for at in range(len(batch["key"])):
                expected = photos.values["train"][variant][row]
                assert batch["key"][at] == photos.keys["train"][row]
                for name in ALL:
                    assert np.array_equal(batch[name][at], expected[name]), name
                row += 1
        assert row == 50
    loader.close()


def test_dtypes_and_shapes(photos):
    batch = next(iter(tfprep.open(photos.path).numpy_loader("val", 4, training=False)))
    forms = {name: (value.dtype.name, value.shape) for name, value in batch.items()}
    assert forms == {
        "image": ("uint8", (4, 24, 32, 3)),
        "lossless": ("uint8", (4, 24, 32, 3)),
        "mask": ("uint8", (4, 24, 32)),
        "depth": ("uint16", (4, 24, 32)),
        "clicks": ("uint8", (4, 24, 32, 2)),
        "field": ("float32", (4, 24, 32, 2)),
        "label": ("int64", (4,)),
        "weight": ("float32", (4,)),
        "pose": ("float32", (4, 4)),
        "caption": ("object", (4,)),
    }


def test_inputs_and_targets(photos):
    data = tfprep.open(photos.path)
    values = photos.values["val"][0]
    wanted = {"inputs": {"a": ["image", "mask", "clicks"], "b": "pose"}, "targets": "label"}
    inputs, labels = next(iter(data.numpy_loader("val", 4, training=False, **wanted)))
    assert labels.tolist() == [row["label"] for row in values[:4]]
    assert inputs["b"].tolist() == [row["pose"].tolist() for row in values[:4]]
    for at, row in enumerate(values[:4]):
        stacked = np.concatenate([row["image"], row["mask"][..., None], row["clicks"]], -1)
        assert np.array_equal(inputs["a"][at], stacked)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("normalize", [False, True])
def test_types_of_images_and_maps(photos, dtype, normalize):
    import ml_dtypes

    data = tfprep.open(photos.path)
    options = {"dtype": dtype, "normalize": normalize, "inputs": ["image", "clicks"], "targets": "mask"}
    x, y = next(iter(data.numpy_loader("val", 4, training=False, **options)))
    kind = ml_dtypes.bfloat16 if dtype == "bfloat16" else np.dtype(dtype)
    mean, std = [120, 128, 130, 0, 0], [10, 11, 12, 255, 255]
    for at in range(4):
        row = photos.values["val"][0][at]
        exact = np.concatenate([row["image"], row["clicks"]], -1).astype(np.float64)
        exact = (exact - mean) / std if normalize else exact
        assert x.dtype == kind
        assert np.allclose(x[at].astype(np.float64), exact, rtol=2**-8 if dtype == "bfloat16" else 2**-10, atol=1e-3)
    assert y.dtype == np.uint8


def test_pixels_follow_their_sample(photos):
    """`clicks` contains the number of the sample plus 1000 for each variant, which identifies the key."""
    loader = tfprep.open(photos.path).numpy_loader("train", 7, seed=3, fields=["key", "variant", "clicks", "label"])
    for _, batch in zip(range(30), loader.repeat(), strict=False):
        for key, variant, clicks, label in zip(
            *(batch[name] for name in ("key", "variant", "clicks", "label")), strict=True
        ):
            number = int(clicks[0, 0, 0]) + 256 * int(clicks[0, 0, 1])
            assert number == int(key[-4:]) + 1000 * variant
            assert label == number % 1000 % 3


def test_the_number_of_threads_changes_nothing(photos):
    data = tfprep.open(photos.path)
    runs = [
        rows_of(data.numpy_loader("train", 8, seed=5, threads=n, prefetch=a, **NAMES), 20) for n, a in ((1, 1), (4, 6))
    ]
    assert runs[0] == runs[1]


def test_hosts_of_an_input_context(photos):
    class InputContext:
        input_pipeline_id, num_input_pipelines = 1, 2

    data = tfprep.open(photos.path)
    one = rows_of(data.numpy_loader("train", 8, hosts=InputContext(), **NAMES), 3)
    assert one == rows_of(data.numpy_loader("train", 8, hosts=(1, 2), **NAMES), 3)


def test_a_host_may_have_no_part_of_the_last_batch(photos):
    data = tfprep.open(photos.path)
    sizes = [
        [len(batch["key"]) for batch in data.numpy_loader("val", 9, training=False, hosts=(i, 3), **NAMES)]
        for i in range(3)
    ]
    assert sizes == [[3, 0], [3, 1], [3, 1]]


def test_block_order_takes_blocks_of_one_variant(photos):
    loader = tfprep.open(photos.path).numpy_loader("train", 10, order="block", block=10, window=1, **NAMES)
    for batch in rows_of(loader, 5):
        keys, variants = zip(*batch, strict=True)
        assert len(set(variants)) == 1
        assert len({int(key[-4:]) // 10 for key in keys}) == 1


# --- which samples ------------------------------------------------------------------------------------------------------


def test_where(photos):
    loader = tfprep.open(photos.path).numpy_loader("train", 8, where="label == 'dog'", fields=["key", "label"])
    assert loader.steps_per_epoch == 2
    seen = [batch for _, batch in zip(range(6), loader.repeat(), strict=False)]
    assert {label for batch in seen for label in batch["label"]} == {1}
    assert {key for batch in seen for key in batch["key"]} == {
        k for n, k in enumerate(photos.keys["train"]) if n % 3 == 1
    }


def test_where_without_a_match_raises(photos):
    with pytest.raises(LoaderError, match="leaves none of the 50 samples"):
        tfprep.open(photos.path).numpy_loader("train", 8, where="label > 5")


def test_weights(photos):
    data = tfprep.open(photos.path)
    options = {"weights": {"cat": 3, "dog": 1, "owl": 0}, "fields": ["label"]}
    loader = data.numpy_loader("train", 10, **options)
    labels = np.concatenate([batch["label"] for _, batch in zip(range(20), loader.repeat(), strict=False)])
    cats, dogs = 17 * 3, 17  # There are 17 of each of labels 0 and 1.
    assert abs((labels == 0).sum() - 200 * cats / (cats + dogs)) <= 4
    assert not (labels == 2).any()
    with pytest.raises(LoaderError, match="do not name the classes 'owl'; name every class"):
        data.numpy_loader("train", 10, weights={0: 1, 1: 1})
    with pytest.raises(LoaderError, match="one number a sample of the split \\(50\\)"):
        data.numpy_loader("train", 10, weights=[1, 2, 3])


def test_mix(make_dataset):
    a = make_dataset("a", samples={"train": 40}, fields=("clicks", "label"), variants=2)
    b = make_dataset("b", samples={"train": 10}, fields=("clicks", "label", "weight"), seed=1)
    mixed = mix({tfprep.open(a.path): 0.7, tfprep.open(b.path): 0.3})
    loader = mixed.numpy_loader("train", 10, fields=["clicks", "label", "key", "variant"], seed=2)
    assert loader.steps_per_epoch == 5
    seen = []
    for _, batch in zip(range(20), loader.repeat(), strict=False):
        for at in range(10):
            number = int(batch["clicks"][at, 0, 0, 0]) + 256 * int(batch["clicks"][at, 0, 0, 1])
            assert number == int(batch["key"][at][-4:]) + 1000 * batch["variant"][at]
            seen.append((number, batch["variant"][at]))
    whole = next(iter(mixed.numpy_loader("train", 10, where="label >= 0", fields=["label"])))
    assert whole["label"].shape == (10,)
    for epoch in range(4):
        from_b = _from_b(loader, epoch)
        assert from_b == 15
    resumed = mixed.numpy_loader("train", 10, fields=["clicks", "key", "variant"], seed=2, start_step=13)
    batch = next(iter(resumed))
    assert [(int(k[-4:]) + 1000 * v, v) for k, v in zip(batch["key"], batch["variant"], strict=True)] == seen[130:140]


def _from_b(loader, epoch):
    """The number of rows of the second dataset in an epoch: rows from 40 on."""
    schedule = loader.pipeline.schedule
    return int((schedule.at(np.arange(epoch * 50, epoch * 50 + 50)).row >= 40).sum())


def test_a_mix_of_datasets_with_different_fields(make_dataset):
    a = make_dataset("a", samples={"train": 4}, fields=("clicks",))
    b = make_dataset("b", samples={"train": 4}, fields=("label",))
    with pytest.raises(LoaderError, match="no field in common"):
        mix({tfprep.open(a.path): 1, tfprep.open(b.path): 1}).numpy_loader("train", 2)


def with_classes(make_dataset, name, classes, seed=0):
    made = make_dataset(name, samples={"train": 30}, fields=("image", "label"), seed=seed)
    made.seal(lambda document: document.update(classes={"label": classes}))
    return tfprep.open(made.path)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"fields": ["image", "label"]},
        {"fields": ["image"], "where": "label == 'cat'"},
        {"fields": ["image"], "where": pc.field("label") == 1},
    ],
)
def test_a_mix_of_other_classes_is_refused(make_dataset, options):
    """The same number would mean a cat in one dataset and a dog in the other."""
    one = with_classes(make_dataset, "one", ["cat", "dog", "owl"])
    other = with_classes(make_dataset, "other", ["dog", "cat", "owl"], seed=1)
    both = mix({one: 0.5, other: 0.5})
    with pytest.raises(
        LoaderError, match=r"the numbers of 'label' mean other classes in .*one \(cat, dog, owl\) than in"
    ):
        both.numpy_loader("train", 8, **options)
    assert both.numpy_loader("train", 8, fields=["image"], where="height > 0").steps_per_epoch == 7
    alike = mix({one: 0.5, with_classes(make_dataset, "alike", ["cat", "dog", "owl"], seed=2): 0.5})
    chosen = next(iter(alike.numpy_loader("train", 8, **{**options, "where": "label == 'dog'"}, variants=0)))
    assert set(chosen.get("label", np.array([1])).tolist()) == {1}


def test_a_pickled_loader_continues_like_the_first(photos):
    """A spawned worker receives the options; it starts threads and opens files itself."""
    loader = tfprep.open(photos.path).numpy_loader("train", 8, seed=5, start_step=3, **NAMES)
    first = next(iter(loader))
    copy = pickle.loads(pickle.dumps(loader))
    again = next(iter(copy))
    assert all(np.array_equal(first[name], again[name]) for name in first)
    assert copy.state_at(3) == loader.state_at(3)


def test_folds(photos):
    data = tfprep.open(photos.path)
    seen = []
    for train, validation in data.folds(5, stratify="label", seed=3):
        mine = flat(rows_of(validation.numpy_loader(8, training=False, **NAMES)))
        theirs = {key for key, _ in flat(rows_of(train.numpy_loader(8, **NAMES), 20))}
        assert len(mine) == len(validation) == 10
        assert len(train) == 40
        assert theirs == set(photos.keys["train"]) - {key for key, _ in mine}
        assert {variant for _, variant in mine} == {0}
        seen += [key for key, _ in mine]
    assert sorted(seen) == sorted(photos.keys["train"])


@pytest.mark.parametrize("group", [lambda key: int(key[-4:]) // 5, "caption", "label", [n // 5 for n in range(50)]])
def test_folds_of_groups(photos, group):
    for train, validation in tfprep.open(photos.path).folds(3, group=group):
        rows = [part.sources[0].rows.tolist() for part in (train, validation)]
        assert sorted(rows[0] + rows[1]) == list(range(50))
        by = {"label": lambda row: row % 3, "caption": lambda row: row}.get(
            group if isinstance(group, str) else "", lambda r: r // 5
        )
        assert not {by(row) for row in rows[0]} & {by(row) for row in rows[1]}


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"balance": "label", "weights": {0: 1, 1: 1, 2: 1}}, "balance and weights both say"),
        ({"balance": "label", "order": "block"}, "needs order='global'"),
        ({"balance": "label", "training": False}, "for training"),
        ({"balance": "colour"}, "no column 'colour'"),
        ({"fields": ["picture"]}, "no field 'picture'; it has image, lossless"),
        ({"inputs": ["image", "label"]}, "only images, masks and maps can be stacked; 'label' is a label"),
        ({"targets": "label"}, "targets without inputs"),
        ({"inputs": "image", "fields": ["label"]}, "fields or inputs"),
        ({"inputs": []}, "empty list"),
        ({"variants": 3}, "variants 0 to 2"),
        ({"batch_size": 0}, "batch_size is a whole number from 1, not 0"),
        ({"start_step": -1}, "start_step is a whole number from 0"),
        ({"timeout_s": 0}, "a number of seconds above 0"),
        ({"verify": "sometimes"}, "'always', 'first_epoch', 'never', not 'sometimes'"),
        ({"on_bad": "ignore"}, "'raise', 'skip', not 'ignore'"),
        ({"cache": True}, "not True"),
        ({"training": False, "remainder": "wrap"}, "'keep' or 'drop'"),
        ({"hosts": 3}, "hosts is \\(index, count\\)"),
        ({"hosts": (2, 2)}, "0 <= index < count"),
        ({"hosts": (-1, 2)}, "0 <= index < count"),
        ({"hosts": (0, 0)}, "0 <= index < count"),
        ({"dtype": "int8"}, "dtype is float32, float16, bfloat16"),
        ({"normalize": True}, "name their dtype"),
        ({"dtype": "float16", "fields": ["depth"]}, "float16 ends at 65,504; 'depth' holds uint16"),
        ({"geometry": "resize"}, "geometry is a list of ops"),
        ({"memory_budget": "1 kB"}, "cannot hold 5 batches"),
    ],
)
def test_wrong_options_raise(photos, options, says):
    with pytest.raises(LoaderError, match=says):
        tfprep.open(photos.path).numpy_loader("train", **({"batch_size": 8} | options))


def test_an_unknown_split_raises(photos):
    with pytest.raises(DatasetError, match="no split 'test'; it has train, val"):
        tfprep.open(photos.path).numpy_loader("test")


# --- sizes that differ --------------------------------------------------------------------------------------------------

SIZES = [(30, 40), (40, 30), (17, 64), (64, 64)]


@pytest.fixture
def originals(make_dataset):
    """Photos of four sizes stored by `Original`, with a raw map of the same size and boxes."""

    def make(rng, number):
        height, width = SIZES[number % 4]
        image = cv2.GaussianBlur(rng.integers(0, 256, (height, width, 3), dtype=np.uint8), (0, 0), 2)
        return {
            "image": codecs.Jpeg(95).encode(image)[""],
            "field": rng.normal(size=(height, width)).astype(np.float32),
            "boxes": rng.uniform(0, 10, (number % 3, 4)).astype(np.float32),
        }

    kinds = {"image": "image", "field": "map", "boxes": "boxes"}
    codec = {"image": codecs.Original(), "field": codecs.Raw(), "boxes": codecs.Scalar()}
    options = {"make": make, "kinds": kinds, "codec": codec, "fields": ("image", "field", "boxes")}
    return make_dataset("originals", samples={"train": 12}, **options)


def test_images_of_different_sizes_come_as_lists(originals):
    loader = tfprep.open(originals.path).numpy_loader("train", 5, training=False)
    row = 0
    for batch in loader:
        assert isinstance(batch["image"], list)
        for at in range(len(batch["image"])):
            for name in ("image", "field", "boxes"):
                assert np.array_equal(batch[name][at], originals.values["train"][0][row][name])
            row += 1
    assert row == 12


def test_geometry_at_load(originals):
    """Images and maps are resized and cropped as by `tfprep.augment.warp`."""
    ops = [augment.Resize(shorter=20), augment.CenterCrop(16, 16)]
    loader = tfprep.open(originals.path).numpy_loader(
        "train", 6, training=False, geometry=ops, fields=["image", "field"]
    )
    row = 0
    for batch in loader:
        assert batch["image"].shape[1:] == (16, 16, 3)
        for at in range(len(batch["image"])):
            sample = {name: originals.values["train"][0][row][name] for name in ("image", "field")}
            size = sample["image"].shape[:2]
            transform = ops[0](size, None).then(ops[1](ops[0](size, None).size, None))
            expected = augment.warp.warp_sample(sample, {"image": "image", "field": "map"}, transform)
            assert np.array_equal(batch["image"][at], expected["image"])
            assert np.array_equal(batch["field"][at], expected["field"])
            row += 1


def test_sizes_that_stay_different_cannot_be_cached_decoded(originals):
    with pytest.raises(LoaderError, match="these images differ"):
        tfprep.open(originals.path).numpy_loader("train", 4, cache="decoded")


CASTS = {
    "cast": {"inputs": ["image"], "dtype": "float32"},
    "normalised": {"inputs": "image", "targets": "mask", "dtype": "float32", "normalize": True},
    "half": {"inputs": {"image": "image", "clicks": "clicks"}, "dtype": "float16"},
    "stacked": {"inputs": ["image", "clicks"], "dtype": "float32", "normalize": True},
    "warped": {"inputs": "image", "dtype": "float32", "geometry": [augment.Resize(16, 16)]},
    "cropped and mixed": {
        "inputs": "image", "targets": "label", "dtype": "float32",
        "at_load": [tfprep.load.RandomCrop(16, 16), tfprep.load.MixUp(0.4)],
    },
}  # fmt: skip


@pytest.mark.parametrize("case", CASTS)
def test_the_cache_keeps_what_is_stored_and_casts_it_on_the_way_out(photos, case):
    data, options = tfprep.open(photos.path), {"seed": 2, "variants": 0, **CASTS[case]}
    uncached = data.numpy_loader("train", 10, cache=False, **options).repeat(3)
    loader = data.numpy_loader("train", 10, cache="decoded", **options)
    for batch, expected in zip(loader.repeat(3), uncached, strict=True):
        assert_same_element(batch, expected)
    cache = loader.pipeline.cache
    assert loader.stats["records_cached"] > 0
    assert {rows.dtype.name for name, rows in cache.rows.items() if name.endswith("as stored")} == {"uint8"}
    loader.close()


def assert_same_element(element, expected):
    if isinstance(element, dict):
        element, expected = tuple(element.values()), tuple(expected.values())
    if not isinstance(element, tuple):
        element, expected = (element,), (expected,)
    for array, other in zip(element, expected, strict=True):
        assert array.dtype == other.dtype
        assert np.array_equal(array, other)


# --- the rest -----------------------------------------------------------------------------------------------------------


def test_report_and_stats(photos):
    loader = tfprep.open(photos.path).numpy_loader("train", 10, cache="decoded", variants=0)
    for _, _ in zip(range(15), loader.repeat(), strict=False):
        pass
    report, stats = loader.report(), loader.stats
    assert report["cache"]["kind"] == "decoded"
    assert report["cache"]["records"] == 50
    assert report["memory"]["prefetch"] == 8
    assert stats["batches"] == 15
    assert stats["samples"] == 150
    assert 50 <= stats["records_read"] < 100  # Several threads may read one record at the same time.
    assert stats["records_cached"] >= 90
    assert stats["bytes_read"] > 50 * 24 * 32 * 10
    assert stats["bad_records"] == 0


def test_auto_caches_rows_that_fit_and_are_read_again(photos):
    def kind(**options):
        return (
            tfprep.open(photos.path)
            .numpy_loader(**({"split": "train", "batch_size": 4} | options))
            .report()["cache"]["kind"]
        )

    assert kind() == "decoded"
    assert kind(memory_budget="400kB") == "none"
    assert kind(split="val", training=False) == "none"
    assert kind(cache=False) == "none"


@pytest.mark.parametrize(
    ("field", "share", "kept"),
    [("image", 0.6, True), ("image", 0.4, False), ("clicks", 0.6, False), ("clicks", 1.0, True)],
)
def test_auto_caches_only_fields_that_are_decoded(make_dataset, field, share, kept):
    """Raw rows, such as clicks, are only read, and the page cache contains them as well."""
    made = make_dataset(samples={"train": 50}, fields=("image", "clicks"), variants=1)
    row = 24 * 32 * {"image": 3, "clicks": 2}[field] + 64
    budget = (1 + 4) * 8 * row + int(share * 50 * row) + 64
    loader = tfprep.open(made.path).numpy_loader("train", 8, fields=[field], memory_budget=budget, prefetch=1, seed=3)
    plain = tfprep.open(made.path).numpy_loader("train", 8, fields=[field], cache=False, seed=3)
    for batch, other in islice(zip(loader.repeat(), plain.repeat(), strict=False), 20):
        assert np.array_equal(batch[field], other[field])
    held = loader.report()["cache"]
    assert held["kind"] == ("decoded" if kept else "none")
    if kept:
        assert held["records"] == held["capacity"] >= int(share * 50)


def test_class_names_and_length(photos):
    data = tfprep.open(photos.path)
    assert data.class_names == ("cat", "dog", "owl")
    assert len(data.subset("train")) == 50
    assert len(data.numpy_loader("val", 4)) == 3
    assert len(data.numpy_loader("train", 4)) == 12
    with pytest.raises(TypeError, match="no end"):
        len(data.numpy_loader("train", 4).repeat())


def test_the_numpy_loader_imports_no_framework(photos):
    code = (
        f"import sys, tfprep; loader = tfprep.open({str(photos.path)!r}).numpy_loader('train', 8); next(iter(loader)); "
        "print([name for name in ('tensorflow', 'keras', 'torch', 'jax') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_sample_weight_is_the_third_of_an_element(photos):
    options = {"inputs": "image", "targets": "mask", "training": False, "dtype": "float32", "normalize": True}
    for weight in ("weight", "clicks"):
        loader = tfprep.open(photos.path).numpy_loader("val", 4, sample_weight=weight, **options)
        stored = [row[weight] for row in photos.values["val"][0]]
        at = 0
        for x, y, w in loader:
            assert x.dtype == np.float32
            assert y.dtype == np.uint8
            assert np.array_equal(
                w, np.stack(stored[at : at + len(w)])
            )  # A weight is delivered as stored and not normalised.
            at += len(w)
        assert at == 11


def test_a_loader_of_labels_reads_no_record(photos):
    loader = tfprep.open(photos.path).numpy_loader("train", 8, fields=["label", "key"])
    for _, batch in zip(range(10), loader.repeat(), strict=False):
        assert len(batch["label"]) == 8
    assert loader.stats["bytes_read"] == 0
