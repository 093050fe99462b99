"""The memory budget, and rows that are padded to one length."""

import shutil
from contextlib import closing
from itertools import islice

import numpy as np
import pyarrow.compute as pc
import pytest

import tfprep
from tests.conftest import Made
from tests.load.batches import batches, check_same
from tests.waiting import wait_until
from tfprep import augment, codecs
from tfprep.errors import LoaderError, RecordError
from tfprep.load.budget import plan_memory
from tfprep.load.options import LoaderOptions

MB = 1 << 20


@pytest.mark.parametrize(
    ("text", "number"),
    [(5, 5), ("800M", 800 << 20), ("2GB", 2 << 30), ("1.5 GiB", 3 << 29), ("64k", 64 << 10), ("100", 100)]
    + [(text, None) for text in (0, -1, True, "much", "2 Gx", "", "1.2.3G")],
)
def test_sizes_as_text(text, number):
    if number is not None:
        assert LoaderOptions(memory_budget=text).memory_budget == number
        return
    with pytest.raises(LoaderError, match="such as '2GB'"):
        LoaderOptions(memory_budget=text)


@pytest.mark.parametrize(
    ("options", "prefetch"),
    [
        ((1 << 30, MB, None), 8),
        ((20 * MB, MB, None), 6),
        ((5 * MB, MB, None), 1),
        ((1 << 30, MB, 3), 3),
        ((100 * MB, MB, 96), 96),
        ((100 * MB, MB, None, 16), 16),
        ((20 * MB, MB, None, 16), 6),
        ((4 * MB, MB, None), "cannot hold 5 batches of 1,048,576"),
        ((100 * MB, MB, 97), r"prefetch=97 takes 105,906,176 bytes .* prefetch=96 fits"),
    ],
)
def test_the_budget_limits_prefetch_and_the_cache_gets_the_rest(options, prefetch):
    if isinstance(prefetch, str):
        with pytest.raises(LoaderError, match=prefetch):
            plan_memory(*options)
        return
    plan = plan_memory(*options)
    assert plan.prefetch == prefetch
    assert plan.cache_bytes == options[0] - (prefetch + 4) * MB


# --- images of different sizes ------------------------------------------------------------------------------------------


def test_batch_bytes_are_those_of_the_largest_images(uneven):
    def memory(**options):
        return tfprep.open(uneven.path).numpy_loader("train", 8, fields=["image"], **options).report()["memory"]

    sizes = sorted((values["image"].nbytes for values in uneven.values["train"][0]), reverse=True)
    assert sum(sizes[:8]) <= memory()["batch_bytes"] <= sum(sizes[:8]) + 8 * 64
    low = max(values["image"].nbytes for values in uneven.values["train"][0] if len(values["image"]) < 45)
    assert memory(where=pc.field("height") < 45)["batch_bytes"] <= 8 * (low + 64)
    resized = memory(geometry=[augment.Resize(24, 32)], threads=4)  # small after resizing, but not before
    assert resized["batch_bytes"] == 8 * 24 * 32 * 3
    assert resized["batches_bytes"] >= 4 * sizes[0]


@pytest.mark.parametrize("sizes", [{"height": 2**31 - 1, "width": 2**31 - 1}, {"height": -300}])
def test_sizes_of_a_damaged_index_are_refused(uneven, sizes, tmp_path):
    damaged = Made(shutil.copytree(uneven.path, tmp_path / "d"))
    damaged.change_index(7, **sizes)
    with pytest.raises(LoaderError, match="the index gives sizes of 'image' that no array has"):
        tfprep.open(damaged.path).numpy_loader("train", 8)


def test_the_budget_bounds_images_of_different_sizes(uneven):
    """No batch takes more than planned, no more of them are prefetched, and a budget that is too small is refused."""
    data = tfprep.open(uneven.path)
    options = {"cache": False, "workers": "threads", "threads": 2, "fields": ["image"]}
    with closing(data.numpy_loader("train", 16, memory_budget="1MB", **options).repeat()) as loader:
        memory = loader.report()["memory"]
        assert memory["batches_bytes"] <= MB
        for number, batch in enumerate(islice(loader, 30)):
            if number % 10 == 9:
                wait_until(lambda: loader.stats["batches_ready"] == memory["prefetch"])
            assert sum(image.nbytes for image in batch["image"]) <= memory["batch_bytes"]
            assert loader.stats["batches_ready"] + loader.stats["batches_in_flight"] <= memory["prefetch"]
    with pytest.raises(LoaderError, match=r"cannot hold 5 batches of [0-9,]+ and [0-9,]+ bytes for decoding"):
        data.numpy_loader("train", 16, memory_budget="400k", **options)


# --- rows that are padded, whose values are in tests/fidelity -------------------------------------------------------------


def test_the_shape_of_padded_rows(uneven):
    pytest.importorskip("tensorflow")
    options = {"batch_size": 8, "training": False, "fields": ["boxes"], "pad": {"boxes": 6}}
    train = tfprep.open(uneven.path).loader("train", **options)
    assert train.element_spec["boxes"].shape.as_list() == [None, 6, 4]
    check_same(batches(tfprep.open(uneven.path), None, **options), list(train))


@pytest.mark.parametrize(
    ("pad", "error", "message"),
    [
        ({"boxes": 2}, RecordError, r"boxes\W+ has (3|more) rows"),
        ({"boxes": 0}, LoaderError, r"pad\['boxes'\] is a whole number from 1, not 0"),
        (100, LoaderError, "pad gives numbers of rows"),
        ({"masks": 3}, LoaderError, "no such field is loaded; there are boxes, key, image"),
        (
            {"image": 3},
            LoaderError,
            r"pad fills up fields of N rows of signed numbers.*; 'image' has the kind image, uint8",
        ),
        ({"key": 3}, LoaderError, "'key' has the kind text"),
    ],
)
def test_what_cannot_be_padded_is_named(uneven, pad, error, message):
    with pytest.raises(error, match=message):
        list(tfprep.open(uneven.path).numpy_loader("train", 8, fields=["boxes", "key", "image"], pad=pad))


def test_there_is_no_padding_of_flags(make_dataset):
    """-1 would be True."""
    made = make_dataset(
        samples={"train": 4}, make=lambda rng, number: {"flags": np.zeros(number + 1, bool)},
        codec={"flags": codecs.Raw()}, kinds={"flags": "scalar"},
    )  # fmt: skip
    with pytest.raises(LoaderError, match=r"signed numbers.*; 'flags' has the kind scalar, bool"):
        tfprep.open(made.path).numpy_loader("train", 2, pad={"flags": 5})
