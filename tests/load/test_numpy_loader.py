"""The loader without TensorFlow, compared with the values from which the records were written."""

import pickle
import subprocess
import sys
from itertools import islice

import numpy as np
import pyarrow.compute as pc
import pytest

import tfprep
from tests.conftest import CODECS, write_dataset
from tests.load.batches import batches, check_same, joined, keys
from tfprep import augment, codecs, derive
from tfprep.errors import LoaderError
from tfprep.load import mix

NAMES = {"fields": ["key", "variant"]}


@pytest.mark.parametrize(
    ("variant", "options"),
    [(0, {}), (1, {"threads": 3}), (2, {"cache": "decoded"}), (2, {"verify": "always"}), (0, {"cache": False})],
)
def test_every_kind_of_field(photos, data, variant, options):
    loader = data.numpy_loader("train", 8, training=False, variants=variant, fields=[*CODECS, "key"], **options)
    for _ in range(2):  # The second time from the cache, or without comparing checksums again.
        batch = joined(list(loader))
        assert batch["key"].tolist() == photos.keys["train"]
        for row, expected in enumerate(photos.values["train"][variant]):
            for name in CODECS:
                assert np.array_equal(batch[name][row], expected[name]), name


def test_dtypes_and_shapes(data):
    (batch,) = batches(data, 1, "val", batch_size=4)
    assert {name: (value.dtype.name, value.shape) for name, value in batch.items()} == {
        "image": ("uint8", (4, 24, 32, 3)), "lossless": ("uint8", (4, 24, 32, 3)), "mask": ("uint8", (4, 24, 32)),
        "depth": ("uint16", (4, 24, 32)), "clicks": ("uint8", (4, 24, 32, 2)), "field": ("float32", (4, 24, 32, 2)),
        "label": ("int64", (4,)), "weight": ("float32", (4,)), "pose": ("float32", (4, 4)), "caption": ("object", (4,)),
    }  # fmt: skip


def test_structures(photos, data):
    """A weight is the third of an element."""
    wanted = {"inputs": {"a": ["lossless", "mask", "clicks"], "b": "pose"}, "targets": {"label": "label", "m": "mask"}}
    rows = photos.values["val"][0][:4]
    stacked = [np.concatenate([row["lossless"], row["mask"][..., None], row["clicks"]], -1) for row in rows]
    inputs = {"a": np.stack(stacked), "b": np.stack([row["pose"] for row in rows])}
    targets = {"label": np.array([row["label"] for row in rows]), "m": np.stack([row["mask"] for row in rows])}
    check_same((inputs, targets), batches(data, 1, "val", batch_size=4, **wanted)[0])
    for weight in ("weight", "clicks"):
        options = {**wanted, "sample_weight": weight, "batch_size": 4}
        for step, (_, _, weights) in enumerate(batches(data, None, "val", **options)):
            stored = [row[weight] for row in photos.values["val"][0][4 * step : 4 * step + 4]]
            assert np.array_equal(weights, np.stack(stored))
        assert step == 2


@pytest.mark.parametrize("field", ["clicks", "field", "lossless", "pose"])
@pytest.mark.parametrize("verify", ["always", "never"])
def test_a_field_may_fill_several_outputs(data, field, verify):
    """As the input and the target of an autoencoder does."""
    (expected,) = batches(data, 1, "val", fields=[field])
    wanted = {"inputs": field, "targets": {"same": field}, "verify": verify, "cache": False}
    for kind in ({}, {"workers": "processes", "threads": 2}):
        ((x, y),) = batches(data, 1, "val", **wanted, **kind)
        check_same([expected[field]] * 2, [x, y["same"]])
    if field == "clicks":
        ((x, y),) = batches(data, 1, "val", inputs=field, targets=["mask", field], verify=verify, cache=False)
        check_same(expected[field], x)
        assert np.array_equal(y[..., 1:], x.reshape(*x.shape[:3], -1))


@pytest.fixture(scope="module")
def channels(tmp_path_factory):
    """Rasters that are named by their dtype and their number of channels."""
    names = ["uint8_1", "uint8_3", "uint8_4", "uint8_17", "uint16_5", "float32_2"]

    def raster(rng, name):
        dtype, count = name.split("_")
        return rng.uniform(0, 250, (5, 7, int(count))).astype(dtype)

    options = {
        "fields": tuple(names), "make": lambda rng, number: {name: raster(rng, name) for name in names},
        "kinds": {**dict.fromkeys(names, "map"), "uint8_3": "image"}, "codec": dict.fromkeys(names, codecs.Raw()),
    }  # fmt: skip
    return write_dataset(tmp_path_factory.mktemp("channels") / "d", samples={"val": 5}, **options)


@pytest.mark.parametrize("last", ["float32_2", "uint16_5", "uint8_4"])
def test_rasters_are_stacked_in_their_common_dtype(channels, last):
    stack = ["uint8_17", "uint8_3", last, "uint8_1"]
    (batch,) = batches(tfprep.open(channels.path), 1, "val", inputs={"stack": stack})
    expected = [np.concatenate([row[name] for name in stack], -1) for row in channels.values["val"][0]]
    check_same({"stack": np.stack(expected)}, batch)


@pytest.mark.parametrize("workers", ["threads", "processes"])
def test_channels_first(data, workers):
    """Of rasters with channels, in every way that they are filled."""
    options = {"inputs": {"x": ["image", "mask"], "m": "mask"}, "targets": {"clicks": "clicks", "pose": "pose"}}
    last = batches(data, 8, workers=workers, threads=2, **options)
    first = batches(data, 8, workers=workers, threads=2, layout="NCHW", **options)
    for (x, y), (inputs, targets) in zip(last, first, strict=True):
        expected = ({**x, "x": x["x"].transpose(0, 3, 1, 2)}, {**y, "clicks": y["clicks"].transpose(0, 3, 1, 2)})
        check_same(expected, (inputs, targets))
        assert inputs["x"].flags.c_contiguous


def test_images_of_different_sizes_channels_first(uneven):
    options = {"fields": ["image", "mask"], "training": False}
    last, first = (batches(tfprep.open(uneven.path), 2, **options, layout=layout) for layout in ("NHWC", "NCHW"))
    for one, other in zip(last, first, strict=True):
        check_same({**one, "image": [image.transpose(2, 0, 1) for image in one["image"]]}, other)


def test_hosts(data):
    class InputContext:
        input_pipeline_id, num_input_pipelines = 1, 2

    check_same(batches(data, 3, hosts=(1, 2), **NAMES), batches(data, 3, hosts=InputContext(), **NAMES))
    parts = [batches(data, None, "val", batch_size=9, hosts=(host, 3), **NAMES) for host in range(3)]
    assert [[len(batch["key"]) for batch in part] for part in parts] == [[3, 0], [3, 1], [3, 1]]


# --- which samples ------------------------------------------------------------------------------------------------------


def test_classes_by_name(data):
    assert data.class_names == ("cat", "dog", "owl")
    of_dogs = [{"cat": 0, "dog": 1, "owl": 0}, {0.0: 0, np.float64(1): 1, np.int64(2): 0}]
    for options in ({"where": pc.field("label") == 1}, *({"weights": weights} for weights in of_dogs)):
        chosen = joined(batches(data, 6, fields=["label", "key"], **options))
        assert set(chosen["label"]) == {1}
        assert len(set(chosen["key"])) == 17


def test_a_period_of_the_order_on_disk_does_not_show_in_an_epoch(data):
    """40 samples come in every second epoch: not all even ones in one, and all odd ones in the next."""
    for batch in batches(data, 8, batch_size=50, weights=[3.0] * 10 + [0.5] * 40, fields=["key"]):
        rare = [number for key in batch["key"] if (number := int(key[-4:])) >= 10]
        assert len(rare) == 20
        assert 4 <= sum(number % 2 for number in rare) <= 16


def test_mix(make_dataset):
    a = make_dataset("a", samples={"train": 40}, fields=("clicks", "label"), variants=2)
    b = make_dataset("b", samples={"train": 10}, fields=("clicks", "label", "weight"), seed=1)
    mixed = mix({tfprep.open(a.path): 0.7, tfprep.open(b.path): 0.3})
    assert mixed.numpy_loader("train", 10).steps_per_epoch == 5
    seen = batches(mixed, 20, batch_size=10, fields=["clicks", "label", "key", "variant"])
    for batch in seen:
        numbers = [int(key[-4:]) + 1000 * v for key, v in zip(batch["key"], batch["variant"], strict=True)]
        assert (batch["clicks"][:, 0, 0].astype(int) @ [1, 256]).tolist() == numbers
    options = {"batch_size": 10, "fields": ["clicks", "label", "key", "variant"], "where": pc.field("label") >= 0}
    check_same(seen[13:15], batches(mixed, 2, start_step=13, **{**options, "where": None}))
    assert len(batches(mixed, 1, **options)[0]["label"]) == 10
    options |= {"batch_size": 7, "remainder": "keep"}  # the last batch is one sample: the first host has none
    parts = [mixed.numpy_loader("train", **options, hosts=(host, 2)) for host in range(2)]
    check_same(mixed.numpy_loader("train", **options)[7], joined([part[7] for part in parts]))
    c = make_dataset("c", samples={"train": 4}, fields=("weight",))
    with pytest.raises(LoaderError, match="no field in common"):
        mix({tfprep.open(a.path): 1, tfprep.open(c.path): 1}).numpy_loader("train", 2)


def with_classes(make_dataset, name, classes, seed=0):
    made = make_dataset(name, samples={"train": 30}, fields=("image", "label"), seed=seed)
    made.seal(lambda document: document.update(classes={"label": classes}))
    return tfprep.open(made.path)


def test_a_mix_of_other_classes_is_refused(make_dataset):
    """The same number would mean a cat in one dataset and a dog in the other."""
    one = with_classes(make_dataset, "one", ["cat", "dog", "owl"])
    both = mix({one: 0.5, with_classes(make_dataset, "other", ["dog", "cat", "owl"], seed=1): 0.5})
    alike = mix({one: 0.5, with_classes(make_dataset, "alike", ["cat", "dog", "owl"], seed=2): 0.5})
    message = r"the numbers of 'label' mean other classes in .*one \(cat, dog, owl\) than in"
    for options in (
        {},
        {"fields": ["image", "label"]},
        {"fields": ["image"], "where": pc.field("label") == 1},
        {
            "fields": ["x"],
            "derive": {"x": derive.Own(lambda sample, draws: sample["label"], "scalar", reads=["label"])},
        },
    ):
        with pytest.raises(LoaderError, match=message):
            both.numpy_loader("train", 8, **options)
        (chosen,) = batches(alike, 1, **{**options, "where": pc.field("label") == 1}, variants=0)
        assert set(chosen.get("label", np.array([1])).tolist()) == {1}
    assert both.numpy_loader("train", 8, fields=["image"], where=pc.field("height") > 0).steps_per_epoch == 7


def test_a_pickled_loader_continues_like_the_first(data):
    """A spawned worker receives the options; it starts threads and opens files itself."""
    loader = data.numpy_loader("train", 8, seed=5, start_step=3, **NAMES)
    copy = pickle.loads(pickle.dumps(loader))
    check_same(next(iter(loader)), next(iter(copy)))
    assert copy.state_dict(step=3) == loader.state_dict(step=3)


GROUPS = {
    "a function": (lambda key: int(key[-4:]) // 5, lambda row: row // 5),
    "a field": ("caption", lambda row: row),
    "a column": ("label", lambda row: row % 3),
    "values": ([number // 5 for number in range(50)], lambda row: row // 5),
}


@pytest.mark.parametrize("name", [*GROUPS, None])
def test_folds(data, name):
    """Each sample is held out once; a group is on one side."""
    group, of = GROUPS[name] if name else (None, lambda row: row)
    held_out = []
    for train, validation in data.folds(3, **({"group": group} if name else {"stratify": "label"}), seed=3):
        held = keys(validation.numpy_loader(batch_size=8, training=False, fields=["key"]))
        trained = keys(train.numpy_loader(batch_size=8, remainder="keep", fields=["key"]))
        held, trained = ([int(key[-4:]) for batch in part for key in batch] for part in (held, trained))
        assert (len(held), len(trained)) == (len(validation), len(train))
        assert sorted(held + trained) == list(range(50))
        assert not {of(row) for row in held} & {of(row) for row in trained}
        held_out += held
    assert sorted(held_out) == list(range(50))


# --- sizes that differ --------------------------------------------------------------------------------------------------


def test_images_of_different_sizes_come_as_lists(uneven):
    found = batches(tfprep.open(uneven.path), None, training=False)
    expected = uneven.values["train"][0]
    for step, batch in enumerate(found):
        for name in ("image", "mask", "boxes"):
            check_same([row[name] for row in expected[8 * step : 8 * step + 8]], list(batch[name]))
            assert isinstance(batch[name], list)
    assert len(found) == 8
    with pytest.raises(LoaderError, match="these images differ"):
        tfprep.open(uneven.path).numpy_loader("train", 4, cache="decoded", fields=["image"])


# --- the cache ----------------------------------------------------------------------------------------------------------

CACHED = {
    "images and masks": {"inputs": "image", "targets": "mask"},
    "stacked": {"inputs": ["image", "field"]},
    "mixed": {"inputs": "image", "targets": "label", "mix": [augment.MixUp(0.4)]},
    "text only": {"fields": ["caption", "key"]},
}  # fmt: skip


@pytest.mark.parametrize("case", CACHED)
def test_the_cache_delivers_what_is_read(data, case):
    options = {"batch_size": 10, "seed": 2, "variants": 0, **CACHED[case]}
    loader = data.numpy_loader("train", cache="decoded", workers="threads", **options)
    check_same(batches(data, 15, cache=False, **options), list(loader.repeat(3)))
    assert loader.stats["records_cached"] > 0
    loader.close()


def test_report_and_stats(data):
    loader = data.numpy_loader("train", 10, cache="decoded", variants=0)
    list(islice(loader.repeat(), 15))
    report, stats = loader.report(), loader.stats
    assert (report["cache"]["kind"], report["cache"]["records"], report["memory"]["prefetch"]) == ("decoded", 50, 8)
    assert (stats["batches"], stats["samples"], stats["bad_records"]) == (15, 150, 0)
    assert 50 <= stats["records_read"] < 100  # Several threads may read one record at the same time.
    assert stats["records_cached"] >= 50
    assert stats["bytes_read"] > 50 * 24 * 32 * 10
    loader.close()  # monitors ask once more at the end of a training
    assert (loader.report()["cache"], loader.stats["threads"]) == (report["cache"], report["threads"])


@pytest.mark.parametrize(
    ("options", "kind"),
    [
        ({}, "decoded"),
        ({"memory_budget": "400kB"}, "none"),
        ({"split": "val", "training": False}, "none"),
        ({"cache": False}, "none"),
    ],
)
def test_auto_caches_rows_that_fit_and_are_read_again(data, options, kind):
    assert data.numpy_loader(**{"split": "train", "batch_size": 4} | options).report()["cache"]["kind"] == kind


@pytest.mark.parametrize(
    ("field", "share", "kept"),
    [("image", 0.6, True), ("image", 0.4, False), ("clicks", 0.6, False), ("clicks", 1.0, True)],
)
def test_auto_caches_only_fields_that_are_decoded(data, field, share, kept):
    """Raw rows, such as clicks, are only read, and the page cache contains them as well."""
    row = 24 * 32 * {"image": 3, "clicks": 2}[field] + 64
    budget = (1 + 4) * 8 * row + int(share * 50 * row) + 64
    options = {"fields": [field], "variants": 0}
    loader = data.numpy_loader("train", 8, memory_budget=budget, prefetch=1, seed=3, **options)
    check_same(batches(data, 20, cache=False, **options), list(islice(loader.repeat(), 20)))
    held = loader.report()["cache"]
    assert held["kind"] == ("decoded" if kept else "none")
    if kept:
        assert held["records"] == held["capacity"] >= int(share * 50)


def test_a_loader_of_labels_reads_no_record(data):
    loader = data.numpy_loader("train", 8, fields=["label", "key"])
    assert len(list(loader)) == len(loader) == 6
    assert loader.stats["bytes_read"] == 0


def test_the_numpy_loader_imports_no_framework(photos):
    code = (
        f"import sys, tfprep; loader = tfprep.open({str(photos.path)!r}).numpy_loader('train', 8); next(iter(loader)); "
        "print([name for name in ('tensorflow', 'keras', 'torch', 'jax') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def seven(sample, draws):
    return np.array(7)


def plus_ten(sample, draws):
    return {**sample, "label": sample["label"] + 10}


def test_a_label_that_is_made_at_load_is_not_that_of_the_index(data):
    """Of a stored label alone, the index knows the number."""
    (stored,) = batches(data, 1, "val", fields=["image", "label"])
    derived = {"derive": {"label": derive.Own(seven, kind="label", reads=["image"])}}
    (batch,) = batches(data, 1, "val", fields=["image", "label"], **derived)
    assert batch["label"].tolist() == [7] * 8
    changed = {"geometry": [augment.Custom(plus_ten, always=True)]}
    (batch,) = batches(data, 1, "val", fields=["image", "label"], **changed)
    assert batch["label"].tolist() == (stored["label"] + 10).tolist()


def test_fields_of_different_sizes_are_not_stacked(data, uneven):
    """Each would need an array of its own size; after geometry to one size they are stacked."""
    images = tfprep.open(uneven.path)
    with pytest.raises(LoaderError, match=r"'inputs' stacks image, mask, whose samples differ in size: .*Resize"):
        images.numpy_loader("train", 8, inputs=["image", "mask"])
    (batch,) = batches(images, 1, inputs=["image", "mask"], geometry=[augment.Resize(24, 32)])
    assert batch.shape == (8, 24, 32, 4)
    with pytest.raises(LoaderError, match="differ in size"):
        data.numpy_loader("train", 8, inputs=["image", "mask"], geometry=[augment.Custom(plus_ten)])


@pytest.mark.parametrize("named", ["mask", "other"])
def test_class_names_of_another_field_are_not_those_of_the_label(make_dataset, named):
    """The index's column `label` holds the first label; the names of a mask's classes, or of a second label's, are others."""
    kinds = {"label": "label", "other": "label", "mask": "mask"}
    codec = {"label": codecs.Scalar(), "other": codecs.Scalar(), "mask": codecs.Png()}

    def make(rng, number):
        return {"label": number % 3, "other": 1 - number % 2, "mask": np.zeros((8, 8), np.uint8)}

    made = make_dataset(samples={"train": 12}, make=make, codec=codec, kinds=kinds)
    made.seal(lambda document: document.update(classes={named: ["road", "cat"]}))
    with pytest.raises(LoaderError, match=r"there is no class 'road'; the dataset has no class names"):
        tfprep.open(made.path).numpy_loader("train", 4, weights={"road": 1, "cat": 2})
