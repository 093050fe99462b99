"""A run's state is small JSON, and is accepted only by a run that would continue as if it had never stopped."""

import json
import threading
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from typing import Any

import numpy as np
import pyarrow.compute as pc
import pytest

import tfprep
from tests.load.batches import batches, keys, stages
from tfprep import augment
from tfprep.errors import LoaderError
from tfprep.load import Buckets

RASTERS = {"inputs": "image", "targets": "label"}


class CustomGeometry:
    """A user's geometry op, which is not a dataclass."""

    def __init__(self, *sides):
        self.sides = sides

    def __call__(self, size, rng):
        return augment.Resize(12, 16)(size, rng)


@dataclass(frozen=True)
class CustomDataclass(CustomGeometry):
    """A user's geometry op whose options have no order, no equality, or a `repr` that differs from process to process."""

    option: Any


def resized(side, size, rng):
    return augment.Resize(side, side)(size, rng)


CUSTOM = r"geometry is \['[\w<>.]+ [0-9a-f]{16}'\]"


def resumed_at(loader, state):
    """The step with which a loader begins that was given this state."""
    loader.load_state_dict(state)
    return loader.next_step


def through_a_file(state):
    return json.loads(json.dumps(state))


def test_a_state_is_read_back_and_small(data):
    loader = data.numpy_loader("train", 8, seed=4)
    state = loader.state_dict(step=1234)
    assert resumed_at(loader, through_a_file(state)) == 1234
    assert data.numpy_loader("train", 8, seed=4, start_step=state).next_step == 1234
    assert len(json.dumps(state)) < 700


@pytest.mark.parametrize(("option", "values"), [("where", [True, False] * 25), ("weights", [1.0, 2.5] * 25)])
def test_a_state_holds_a_digest_of_one_value_per_sample(data, option, values):
    """A list and an array of the same values are the same run."""
    state = data.numpy_loader("train", 8, **{option: values}).state_dict(step=2)
    assert len(json.dumps(state)) < 700
    assert data.numpy_loader("train", 8, **{option: np.array(values)}, start_step=state).next_step == 2
    with pytest.raises(LoaderError, match=f"its {option} is"):
        data.numpy_loader("train", 8, **{option: values[::-1]}, start_step=state)


@pytest.mark.parametrize(
    ("name", "first", "other"),
    [
        ("seed", {}, {"seed": 5}),
        ("batch_size", {}, {"batch_size": 4}),
        ("dataset", {}, {"split": "val"}),
        ("order", {}, {"order": "sequential"}),
        ("bucket", {}, {"bucket": Buckets([(16, 32), (24, 24)])}),
        ("bucket", {"bucket": Buckets([(16, 32), (24, 24)])}, {"bucket": Buckets([(16, 32), (24, 25)])}),
        ("variants", {}, {"variants": "random"}),
        ("where", {}, {"where": pc.field("label") == 1}),
        ("balance", {}, {"balance": "label"}),
        ("weights", {"weights": {0: 1, 1: 1, 2: 1}}, {"weights": {0: 1, 1: 2, 2: 1}}),
        ("remainder", {}, {"remainder": "keep"}),
        ("geometry", {}, {"geometry": [augment.Resize(12, 16)]}),
        ("geometry", {"geometry": [augment.Resize(12, 16)]}, {"geometry": [augment.Resize(16, 12)]}),
        (r"geometry is \['CustomGeometry \w+'\]", {"geometry": [CustomGeometry()]}, {"fields": ["image", "mask"]}),
        (CUSTOM, {"geometry": [CustomGeometry(12, 16)]}, {"geometry": [CustomGeometry(16, 12)]}),
        (CUSTOM, {"geometry": [CustomDataclass(np.eye(2))]}, {"geometry": [CustomDataclass(np.ones((2, 2)))]}),
        (CUSTOM, {"geometry": [CustomDataclass(through_a_file)]}, {"geometry": [CustomDataclass(batches)]}),
        (CUSTOM, {"geometry": [partial(resized, 12)]}, {"geometry": [partial(resized, 16)]}),
        ("geometry", RASTERS, {**RASTERS, **stages([augment.Flip()])}),
        (
            "geometry",
            {**RASTERS, **stages([augment.Crop(20, 20), augment.Flip()])},
            {**RASTERS, **stages([augment.Flip(), augment.Crop(20, 20)])},
        ),
        ("one_hot", RASTERS, {**RASTERS, "one_hot": True}),
        ("geometry", {**RASTERS, **stages([augment.Flip(p=0.25)])}, {**RASTERS, **stages([augment.Flip()])}),
        ("layout", RASTERS, {**RASTERS, "layout": "NCHW"}),
        ("inputs", {"inputs": {"a": "clicks"}}, {"inputs": {"a": "mask"}}),
        ("inputs", {"inputs": ["clicks", "mask"]}, {"inputs": ["mask", "clicks"]}),
        ("targets", {"inputs": "image", "targets": "mask"}, {"inputs": "image", "targets": "depth"}),
    ],
)
def test_a_state_of_another_run_is_refused(data, name, first, other):
    def loader(options):
        options = {"split": "train", "batch_size": 8, "seed": 4, **options}
        if "inputs" not in options:
            options["fields"] = ["image", "mask"]
        return data.numpy_loader(options.pop("split"), **options)

    state = through_a_file(loader(first).state_dict(step=7))
    assert resumed_at(loader(first), state) == 7
    with pytest.raises(LoaderError, match=rf"its {name}.*, here it is .*\. Make the loader as it was then"):
        resumed_at(loader(other), state)


def test_an_op_that_cannot_be_compared_is_named(data):
    options = {"fields": ["image"], "geometry": [CustomDataclass(threading.Lock())]}
    loader = data.numpy_loader("train", 8, **options)
    with pytest.raises(
        LoaderError, match=r"a state cannot say what CustomDataclass does: .* described: .*__getstate__"
    ):
        loader.state_dict(step=7)


class CountingGeometry(CustomGeometry):
    """A user's geometry op that keeps something of each call."""

    calls = 0

    def __call__(self, size, rng):
        self.calls += 1
        return super().__call__(size, rng)


def test_what_an_op_keeps_of_its_calls_is_no_other_run(data):
    op, options = CountingGeometry(), {"fields": ["image"], "workers": "threads"}
    with closing(data.numpy_loader("train", 8, geometry=[op], **options)) as loader:
        next(iter(loader))
        state = through_a_file(loader.state_dict(step=1))
    assert op.calls
    again = data.numpy_loader("train", 8, geometry=[CountingGeometry()], **options)
    assert resumed_at(again, state) == 1


@pytest.mark.parametrize(
    "options",
    [
        {"hosts": (1, 2)},
        {"threads": 1, "prefetch": 2, "cache": False, "memory_budget": "100MB", "timeout_s": 9.0},
        {"verify": "never", "on_bad": "skip"},
        {"start_step": 3},
        {"geometry": (), "color": (), "mix": ()},
        {"geometry": [], "derive": {}, "one_hot": False},
    ],
)
def test_options_that_change_no_values_are_not_part_of_it(data, options):
    state = through_a_file(data.numpy_loader("train", 8, seed=4).state_dict(step=7))
    assert resumed_at(data.numpy_loader("train", 8, seed=4, **options), state) == 7


def test_equal_options_in_another_form_are_accepted(data):
    ops = {"mix": [augment.CutMix()], "targets": "label"}
    state = data.numpy_loader("train", 8, inputs="image", **ops).state_dict(step=7)
    again = data.numpy_loader("train", 8, inputs="image", mix=(augment.CutMix(alpha=1.0),), targets="label")
    assert resumed_at(again, through_a_file(state)) == 7


def test_options_with_their_defaults_are_left_out_and_ops_have_a_version(data, monkeypatch):
    """A later version may have more options, and may compute an op in another way."""
    state = data.numpy_loader("train", 8, **RASTERS).state_dict()
    assert state["identity"].keys().isdisjoint({"layout", "geometry", "weights", "seed"})
    assert data.numpy_loader("train", 8, start_step=state, layout="NHWC", seed=0, **RASTERS).next_step == 0
    with pytest.raises(LoaderError, match="its layout is 'NHWC', here it is 'NCHW'"):
        data.numpy_loader("train", 8, start_step=state, layout="NCHW", **RASTERS)
    monkeypatch.setattr("tfprep.load.plan.OPS", 1000)
    with pytest.raises(LoaderError, match="computes an op in another way"):
        data.numpy_loader("train", 8, start_step=state, **RASTERS)


def test_an_option_that_is_added_later_is_part_of_the_identity(data):
    """A state of a version with another option is refused in both directions, unless the option has its default."""
    loader = data.numpy_loader("train", 8)
    state = loader.state_dict(step=1)
    state["identity"]["later"] = 3
    with pytest.raises(LoaderError, match="its later is 3, here it is None"):
        loader.load_state_dict(state)
    options = {"layout": "NCHW", "seed": 1, "balance": "label", "inputs": "image"}
    assert options.keys() <= data.numpy_loader("train", 8, **options).state_dict()["identity"].keys()


@pytest.mark.parametrize("rule", [{"fill": {"mask": 11}}, {"border": "reflect"}])
def test_rules_of_the_manifest_are_part_of_the_identity(data, rule):
    """They decide how samples follow ops at load: recipes that differ in them make the same shards."""
    options = {"fields": ["image", "mask"], "geometry": [augment.RandomResizedCrop(12, 12)], "batch_size": 4}
    recipe = {**(data.manifest.recipe or {}), **rule}
    other = replace(data, manifest=replace(data.manifest, recipe=recipe))
    state = data.numpy_loader("train", **options).state_dict(step=1)
    with pytest.raises(LoaderError, match="its rules is"):
        other.numpy_loader("train", **options).load_state_dict(state)


def test_the_number_of_classes_is_part_of_the_identity(data):
    """It is the length of one-hot labels, whatever the name of their output."""
    more = replace(data, manifest=replace(data.manifest, classes={"label": ("cat", "dog", "owl", "yak")}))
    for options in ({"fields": ["image", "label"]}, RASTERS):
        one, other = (each.numpy_loader("train", 4, **options, one_hot=True) for each in (data, more))
        with pytest.raises(LoaderError, match="its rules is"):
            other.load_state_dict(one.state_dict(step=1))


@pytest.mark.parametrize("state", ["run/0007.loader.json", None, [], {}, {"step": "7"}, {"step": -1}, {"step": True}])
def test_no_state(data, state):
    with pytest.raises(LoaderError, match="the JSON object that state_dict returned"):
        data.numpy_loader("train", 8).load_state_dict(state)


@pytest.mark.parametrize("step", [-1, 1.5, "3", True])
def test_no_step(data, step):
    with pytest.raises(LoaderError, match="step is a whole number from 0"):
        data.numpy_loader("train", 8).state_dict(step=step)


def test_another_dataset_of_the_same_name(make_dataset):
    one, other = (
        tfprep.open(make_dataset(n, samples={"train": c}, fields=("label",)).path) for n, c in (("a", 6), ("b", 7))
    )
    with pytest.raises(LoaderError, match=r"its fingerprint is .* built again"):
        other.numpy_loader("train", 2).load_state_dict(one.numpy_loader("train", 2).state_dict(step=3))


PACKAGES = {"numpy_loader": "numpy", "loader": "tensorflow", "batch_sampler": "numpy"}


@pytest.fixture(params=PACKAGES)
def make(data, request):
    """The function of a loader of keys, or of the batch sampler."""
    pytest.importorskip(PACKAGES[request.param])
    fields = {} if request.param == "batch_sampler" else {"fields": ["key"]}

    def make(*args, **options):
        loader = getattr(data, request.param)(*args, **fields, **options)
        return loader.eager() if request.param == "loader" else loader

    return make


def shown(batches, split="train"):
    """The keys of each batch, also of numbers of samples."""
    batches = list(batches)
    if batches and isinstance(batches[0], list):
        return [[f"{split}/{number % 50:04d}" for number in batch] for batch in batches]
    return keys(batches)


@pytest.mark.parametrize("taken", [0, 5, 6, 7, 16])
def test_state_dict_follows_the_batches_that_were_delivered(data, make, taken):
    """50 samples make 6 steps an epoch. The pass that continues ends where the interrupted one would have ended."""
    options = {"batch_size": 8, "seed": 4}
    expected = keys(batches(data, 24, fields=["key"], **options))
    first, seen = make("train", **options), []
    while taken - len(seen) >= 6:
        seen += shown(first)
    seen += shown(islice(iter(first), taken - len(seen)))
    state = through_a_file(first.state_dict())
    assert state["step"] == taken
    resumed = make("train", **options)
    resumed.load_state_dict(state)
    assert resumed.state_dict() == state
    passes = [shown(resumed) for _ in range(2)]
    assert [len(one) for one in passes] == [6 - taken % 6, 6]
    assert [*seen, *passes[0], *passes[1]] == expected[: taken + 12 - taken % 6]
    for epoch in (1, 5):
        resumed.set_epoch(epoch)
        assert resumed.state_dict()["step"] == 6 * epoch


@pytest.mark.parametrize("order", ["sequential", "global"])
@pytest.mark.parametrize("taken", [0, 1, 2, 3])
def test_state_dict_of_an_evaluation(make, taken, order):
    """Its next pass is what is left; the passes after it are whole."""
    loader, resumed = (make("val", 4, order=order) for _ in range(2))
    whole = shown(loader, "val")
    seen = shown(islice(iter(loader), taken), "val")
    state = through_a_file(loader.state_dict())
    resumed.load_state_dict(state)
    for again in (resumed, make("val", 4, order=order, start_step=state)):
        rest = shown(again, "val")
        assert (seen + rest == whole) if taken < 3 else (rest == whole)
        assert shown(again, "val") == whole
    with pytest.raises(LoaderError, match="is for training; with training=False"):
        loader.set_epoch(1)


def test_state_dict_of_a_loader_that_is_read_in_advance(data):
    pytest.importorskip("tensorflow")
    loader = data.loader("train", 8, fields=["key"])
    next(iter(loader.prefetch(2)))
    with pytest.raises(LoaderError, match="take batches in advance"):
        loader.state_dict()
    assert loader.state_dict(step=3)["step"] == 3
