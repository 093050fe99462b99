"""Errors of wrong uses say what to do next."""

import dataclasses
import inspect
import re

import numpy as np
import pyarrow.compute as pc
import pytest

import tfprep
from tests.load.batches import batches, keys
from tfprep import augment
from tfprep.codecs import Scalar
from tfprep.derive import Own
from tfprep.errors import DatasetError, LoaderError
from tfprep.load import mix
from tfprep.load.options import LoaderOptions

WRONG = [
    ({"split": "training"}, "has no split 'training'; it has train, val"),
    ({"batch_size": 0}, "batch_size is a whole number from 1, not 0"),
    ({"batch_size": True}, "batch_size is a whole number from 1, not True"),
    ({"fields": ["img"]}, "no field 'img'; it has image, lossless"),
    ({"inputs": "images", "targets": "label"}, "no field 'images'; it has image"),
    ({"targets": "label"}, "targets without inputs: name both"),
    ({"inputs": "image", "fields": ["label"]}, "fields or inputs"),
    ({"inputs": ["image", "label"]}, "'label' has the kind label: use a dict"),
    ({"shuffle": True}, "no option 'shuffle'; instead: training=True shuffles"),
    ({"drop_remainder": True}, "instead: remainder='drop'"),
    ({"drop_last": True}, "instead: remainder='drop'"),
    ({"sampler": [0, 1]}, "no option 'sampler'; instead: weights or balance"),
    ({"as_supervised": True}, "instead: inputs='image' and targets='label'"),
    ({"batchsize": 4}, "no option 'batchsize'; did you mean 'batch_size'?"),
    ({"zzz": 4}, "no option 'zzz'; there are batch_size, training"),
    ({"balance": "lable"}, "no column 'lable'; it has key, shard, label, height, width; did you mean 'label'?"),
    ({"where": pc.field("label") == 99}, "leaves none of the 50 samples"),
    ({"balance": "label", "order": "sequential"}, "leave order='sequential' out"),
    ({"inputs": []}, "fields are a name, or a list of names in their order, not []"),
    ({"inputs": "image", "targets": {"a": {}}}, "fields are a name, or a list of names in their order, not {}"),
    ({"inputs": {"mask", "image"}}, "a list of names in their order, not {'"),
    ({"inputs": {"a": 3}}, "a list of names in their order, not 3"),
    ({"inputs": ["image", None]}, "a list of names in their order, not ['image', None]"),
    ({"fields": {"label": 1}}, "a list of names in their order, not {'label': 1}"),
    ({"fields": np.int64(1)}, "a list of names in their order, not np.int64(1)"),
    ({"split": ["train"]}, "has no split ['train']; it has train, val"),
    ({"balance": ["label"]}, "balance is the name of a column of the index, not ['label']"),
    ({"seed": np.array([1, 2])}, "seed is a whole number, not array([1, 2])"),
    ({"threads": int}, "threads is a whole number from 0, not <class 'int'>"),
    ({"memory_budget": "9" * 400}, "memory_budget is a number of bytes or text such as '2GB', not '999"),
    ({"inputs": ["image", "image"]}, "a field is named twice: image, image"),
    ({"start_step": -1}, "start_step is a whole number from 0"),
    ({"verify": "sometimes"}, "'always', 'first_epoch' or 'never', not 'sometimes'"),
    ({"on_bad": "ignore"}, "'raise' or 'skip', not 'ignore'"),
    ({"cache": True}, "not True"),
    ({"variants": "each"}, "variants, if it is not 'rotate', 'random' or 'all', is a whole number, not "),
    ({"inputs": {"a": {"b": "clicks"}, "a/b": "mask"}}, "two arrays are named 'inputs/a/b'"),
    ({"variants": True}, "variants, if it is not 'rotate', 'random' or 'all', is a whole number, not "),
    ({"remainder": "cut"}, "remainder is 'keep' or 'drop', not 'cut'"),
    ({"weights": np.array([1, -1] * 25)}, "finite numbers from 0 on"),
    ({"weights": np.zeros(50)}, "finite numbers from 0 on"),
    ({"weights": np.array([1, float("nan")] * 25)}, "finite numbers from 0 on"),
    ({"weights": np.array([float("inf"), 1] * 25)}, "finite numbers from 0 on"),
    ({"weights": [1, 2, 3]}, "one number per sample of the split (50)"),
    ({"batch_size": 2**31}, "batch_size is a whole number from 1 to 16,777,216, not 2147483648"),
    ({"start_step": 2**58}, "start_step is a whole number from 0 to 68,719,476,736"),
    ({"start_step": 2**36, "batch_size": 8}, "is after the last of 4,294,967,296 epochs"),
    ({"prefetch": 10**30}, f"prefetch={10**30} takes"),
    ({"balance": "caption"}, "for a stored field give where= one bool, or weights= one number, per sample"),
    ({"where": "label == 1"}, "or one bool per sample of the split (50), not <U10 []: 'label == 1'"),
    ({"where": [True] * 3}, "one bool per sample of the split (50), not bool [3]"),
    ({"where": [1] * 50}, "one bool per sample of the split (50), not int64 [50]"),
    ({"where": pc.field("label") == "dog"}, "no kernel matching input types (int64, string) in (label == \"dog\")"),
    ({"where": pc.field("caption") == "x"}, "No match for FieldRef.Name(caption)"),
    ({"where": pc.field(0) > 3}, "columns by their names, not by numbers as in (FieldPath(0) > 3)"),
    ({"where": [[True], [True, False]]}, "where takes one value per sample of the split, not [[True], [True, False]]"),
    ({"where": pc.field("label")}, "evaluates to int64 in label. The columns are key, shard, label, height, width"),
    ({"weights": {"cat": 1}}, "do not name the classes 'dog', 'owl'; name every class, 0 leaves one out"),
    ({"weights": {"cat": 1, "dog": 1, 1: 2, "owl": 1}}, "weights name a class twice, by its name and by its number: {"),
    ({"weights": {0: 1, 1: 1, 2: 1, 0.5: 9}}, "by their names or whole numbers, not by 0.5"),
    ({"weights": {0: 1, 1: "x", 2: 1}}, "a dict by class, or one number per sample of the split (50), not {0: 1, 1: 'x'"),
    ({"weights": "label"}, "a dict by class, or one number per sample of the split (50), not 'label'"),
    ({"weights": {"cat": 1, "dog": 1, "owl": 1}, "balance": "label"}, "both say how often a sample comes; choose one"),
    ({"split": "val", "training": False, "balance": "label"}, "balance is for training"),
    ({"order": "random"}, "order is 'global' or 'sequential'"),
    ({"variants": 5}, "variants 0 to 2; there is no variant 5"),
    ({"split": "val", "batch_size": 64, "remainder": "drop"}, "11 samples are fewer than batch_size=64"),
    ({"hosts": (2, 2)}, "0 <= index < count, not (2, 2)"),
    ({"hosts": (-1, 2)}, "0 <= index < count, not (-1, 2)"),
    ({"hosts": (0.5, 2)}, "hosts is (index, count)"),
    ({"hosts": ("a", "b")}, "hosts is (index, count)"),
    ({"hosts": (3, 4), "batch_size": 2}, "give each of the 4 hosts one sample at least"),
    ({"seed": None}, "seed is a whole number, not None"),
    ({"seed": True}, "seed is a whole number, not True"),
    ({"training": "no"}, "training is True or False, not 'no'"),
    ({"timeout_s": None}, "a number of seconds above 0, not None; inf waits for ever"),
    ({"timeout_s": float("nan")}, "a number of seconds above 0"),
    ({"layout": "CHW"}, "layout is 'NHWC' or 'NCHW', not 'CHW'"),
    ({"geometry": augment.Resize(8, 8)}, "geometry: expected a list of ops"),
    ({"memory_budget": "10KB"}, "Allow more, or make batch_size smaller"),
    ({"prefetch": 10**9}, "fits, or allow more"),
    ({"memory_budget": "lots"}, "such as '2GB'"),
    ({"inputs": "image", "sample_weight": "weight"}, "name all three"),
    ({"inputs": "image", "targets": "label", "sample_weight": "caption"}, "the name of one stored number, or of a map"),
]  # fmt: skip


@pytest.mark.parametrize(("options", "message"), WRONG)
def test_the_message_says_what_to_do_next(data, options, message):
    with pytest.raises((LoaderError, DatasetError), match=re.escape(message)):
        data.numpy_loader(**{"split": "train", **options})


def test_weights_do_not_name_a_class_for_a_number_below_zero(make_dataset):
    """TensorFlow Datasets writes -1 where a label is not known."""
    made = make_dataset(samples={"train": 6}, fields=["label"], make=lambda _, number: {"label": number % 3 - 1})
    with pytest.raises(LoaderError, match="weights do not name the classes -1, 'dog'; name every class"):
        tfprep.open(made.path).numpy_loader("train", 2, weights={"cat": 1, "owl": 1})


def test_numbers_of_numpy_are_numbers(data):
    options = {"batch_size": np.int64(4), "seed": np.uint8(3), "hosts": (np.int64(0), np.int32(2))}
    assert type(LoaderOptions(**options).batch_size) is type(LoaderOptions(**options).seed) is int
    assert len(batches(data, 1, fields=["label"], **options)[0]["label"]) == 2
    one, same = (data.numpy_loader("train", 8, variants=number) for number in (1, np.int64(1)))
    assert same.state_dict() == one.state_dict()
    read = [data.random_access("val", fields=["key"], variant=number)[3] for number in (0, np.uint8(0))]
    assert read[0] == read[1]
    assert len(data.folds(np.int64(3))) == 3


@pytest.mark.parametrize("none", [None, float("nan")])
def test_samples_without_a_group_are_not_one_group(data, none):
    with pytest.raises(LoaderError, match="25 samples have no group and would be one"):
        data.folds(3, group=[number if number % 2 else none for number in range(50)])


def test_one_name_is_not_a_list_of_columns_and_no_sample_is_no_picture(data):
    with pytest.raises(DatasetError, match=r"columns is a list of names, such as \['key'\], not 'key'"):
        data.index("train", columns="key")
    with pytest.raises(LoaderError, match="samples is a whole number from 1, not 0"):
        data.show(samples=0)


def test_mixes(data, make_dataset):
    other = tfprep.open(make_dataset(samples={"train": 4}, fields=["label"]).path)
    with pytest.raises(LoaderError, match=r"a dict of opened datasets or folds and their shares, mix\(.*\), not \["):
        mix([data, other])  # type: ignore[arg-type]
    with pytest.raises(LoaderError, match="A mix loads fields that all its datasets have, alike: label"):
        mix({data: 1, other: 2}).numpy_loader("train", fields=["image"])


def test_a_mix_of_folds_has_no_other_split(data):
    mixed = mix({train: 1 for train, _ in data.folds(3)})
    with pytest.raises(LoaderError, match="a fold has no splits to choose from, not 'val'"):
        mixed.numpy_loader("val", training=True)
    with pytest.raises(LoaderError, match="a mix of a mix"):
        mix({mixed: 1, data: 2}).numpy_loader("train")  # type: ignore[dict-item]
    with pytest.raises(LoaderError, match="a mix is a dict of opened datasets or folds"):
        mix({str(data.path): 1})  # type: ignore[dict-item]
    for share in ("much", None, True, -1, float("nan"), float("inf"), 0):
        with pytest.raises(LoaderError, match=r"the shares of a mix are numbers from 0 on, not \["):
            mix({data: share})


def test_where_leaves_nothing_of_a_fold(data):
    (_, part), *_ = data.folds(3)
    where = ~pc.field("key").isin(
        [key for batch in part.numpy_loader(training=False, fields=["key"]) for key in batch["key"]]
    )
    for options in ({"balance": "label"}, {"weights": {0: 1, 1: 1, 2: 1}}, {}):
        with pytest.raises(LoaderError, match="leaves none of the 17 samples"):
            part.numpy_loader(training=True, where=where, **options)


def test_rules_for_samples_go_by_the_stored_label(data, make_dataset):
    """The index has the first one: what the name 'label' means is never guessed."""
    made = {"label": Own(lambda sample, draws: np.int64(sample["mask"].max()), "label", reads=["mask"])}
    for options in ({"where": pc.field("label") == 1}, {"balance": "label"}, {"weights": {0: 1, 1: 1, 2: 1}}):
        with pytest.raises(LoaderError, match="go by the stored 'label', and derive makes another one"):
            data.numpy_loader("train", derive=made, fields=["label"], **options)
    kinds, codec = dict.fromkeys(("color", "label"), "label"), dict.fromkeys(("color", "label"), Scalar())
    make = {"make": lambda rng, number: {"color": number % 5, "label": number % 2}}
    several = tfprep.open(make_dataset(samples={"train": 10}, kinds=kinds, codec=codec, **make).path)
    for options in ({"where": pc.field("label") == 1}, {"balance": "label"}, {"weights": {0: 1, 1: 1}}):
        with pytest.raises(LoaderError, match="holds 'color', which is stored before 'label'; name 'label' first"):
            several.numpy_loader("train", **options)
    for train, _ in several.folds(5, stratify="label"):
        labels = np.concatenate([batch["label"] for batch in train.numpy_loader(batch_size=4, training=False)])
        assert np.bincount(labels).tolist() == [4, 4]


def test_a_file_of_the_dataset_is_opened_instead_of_its_folder(photos):
    with pytest.raises(DatasetError, match=f"is a file; open the dataset's folder, {photos.path}"):
        tfprep.open(photos.path / "manifest.json")


def test_a_path_that_the_system_refuses_is_an_error_of_the_dataset():
    with pytest.raises(DatasetError, match="File name too long"):
        tfprep.open("a" * 300)


@pytest.mark.parametrize(
    ("options", "message"),
    [({"count": count}, "the number of folds is a whole number from 2, not") for count in (0, 1, 2.5, True)]
    + [({"count": 3, "seed": seed}, "seed is a whole number, not") for seed in ("x", None, 1.5, True, [1])]
    + [({"count": 3, "stratify": ["label"]}, "stratify is the name of a column of the index, not")]
    + [({"count": 4, "group": "label"}, "3 groups cannot be split into 4 folds")],
)
def test_folds(data, options, message):
    with pytest.raises(LoaderError, match=message):
        data.folds(**options)


@pytest.mark.parametrize("weight", [5e-324, 1e-300, 1e300, 1e308])
def test_weights_at_the_ends_of_what_floats_hold(data, weight):
    """Only their ratios count: the order is that of weights of 1 and 2."""
    factors = np.arange(50) % 2 + 1
    for weights in (np.ones(50), factors):
        if weight * float(weights.max()) < float("inf"):
            found, expected = (batches(data, 5, fields=["key"], weights=each) for each in (weight * weights, weights))
            assert keys(found) == keys(expected)


def test_shares_at_the_ends_of_what_floats_hold(photos, data):
    for share in (5e-324, 1e308):
        numbers = tfprep.mix({data: share, tfprep.open(photos.path): share}).batch_sampler("train", 10, variants=0)
        assert sum(number >= 50 for batch in numbers for number in batch) == 50


def test_the_signature_of_a_call_names_the_options_that_it_takes(data):
    def options(call):
        return {name for name in inspect.signature(call).parameters if name not in {"split", "sharding", "ahead"}}

    known = {field.name for field in dataclasses.fields(LoaderOptions)}
    assert options(data.numpy_loader) == options(data.torch_loader) == known
    assert options(data.loader) == options(data.keras_loader) == options(data.jax_loader) == known - {"layout"}
    assert options(data.subset("train").loader) == options(data.loader)


@pytest.mark.parametrize("rule", [{}, {"balance": "label"}, {"weights": []}, {"weights": {"cat": 1}}])
def test_a_split_without_samples(make_dataset, rule):
    data = tfprep.open(make_dataset(samples={"train": 4, "val": 0}, fields=["label"]).path)
    with pytest.raises(LoaderError, match="no sample is left to load"):
        data.numpy_loader("val", 2, training=True, **rule)
