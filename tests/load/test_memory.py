"""The memory budget, and rows that are padded to one length."""

import shutil
from contextlib import closing
from itertools import islice

import numpy as np
import pytest

import tfprep
from tests.conftest import Made, write_dataset
from tests.load.batches import batches
from tests.waiting import wait_until
from tfprep import augment, codecs
from tfprep.errors import LoaderError, RecordError
from tfprep.load.memory import parse_bytes, plan_memory

MB = 1 << 20


@pytest.mark.parametrize(
    ("text", "number"),
    [(5, 5), ("800M", 800 << 20), ("2GB", 2 << 30), ("1.5 GiB", 3 << 29), ("64k", 64 << 10), ("100", 100)]
    + [(text, None) for text in (0, -1, True, "much", "2 Gx", "", "1.2.3G", None)],
)
def test_sizes_as_text(text, number):
    if number is not None:
        assert parse_bytes(text) == number
        return
    with pytest.raises(LoaderError, match="such as '2GB'"):
        parse_bytes(text)


@pytest.mark.parametrize(
    ("options", "prefetch"),
    [
        (("1GB", MB, None), 8),
        ((20 * MB, MB, None), 6),
        ((5 * MB, MB, None), 1),
        (("1GB", MB, 3), 3),
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
    assert plan.cache_bytes == parse_bytes(options[0]) - (prefetch + 4) * MB


# --- images of different sizes ------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def originals(tmp_path_factory):
    """Noise of 85 x 127 to 100 x 150 pixels, as PNG."""

    def make(rng, number):
        scale = 1.0 if number % 13 == 0 else 0.85 + 0.01 * (number % 10)
        return {"image": rng.integers(0, 256, (int(100 * scale), int(150 * scale), 3)).astype(np.uint8)}

    options = {"fields": ("image",), "make": make, "codec": {"image": codecs.Png()}}
    return write_dataset(tmp_path_factory.mktemp("originals") / "d", samples={"train": 60}, **options)


def test_batch_bytes_are_those_of_the_largest_images(originals):
    def memory(**options):
        return tfprep.open(originals.path).numpy_loader("train", 8, fields=["image"], **options).report()["memory"]

    sizes = sorted((values["image"].nbytes for values in originals.values["train"][0]), reverse=True)
    assert sum(sizes[:8]) <= memory()["batch_bytes"] <= sum(sizes[:8]) + 8 * 64
    assert memory(where="height < 100")["batch_bytes"] <= 8 * (sizes[5] + 64)
    assert memory(dtype="float32")["batch_bytes"] >= 4 * sum(sizes[:8])
    resized = memory(geometry=[augment.Resize(24, 32)], threads=4)  # small after resizing, but not before
    assert resized["batch_bytes"] == 8 * 24 * 32 * 3
    assert resized["batches_bytes"] >= 4 * 100 * 150 * 3


@pytest.mark.parametrize("sizes", [{"height": 2**31 - 1, "width": 2**31 - 1}, {"height": -300}])
def test_sizes_of_a_damaged_index_are_refused(originals, sizes, tmp_path):
    damaged = Made(shutil.copytree(originals.path, tmp_path / "d"))
    damaged.change_index(7, **sizes)
    with pytest.raises(LoaderError, match="the index gives sizes of 'image' that no array has"):
        tfprep.open(damaged.path).numpy_loader("train", 8)


def test_the_budget_bounds_images_of_different_sizes(originals):
    """No batch takes more than planned, no more of them are prefetched, and a budget that is too small is refused."""
    data, options = tfprep.open(originals.path), {"cache": False, "workers": "threads", "threads": 2}
    with closing(data.numpy_loader("train", 16, memory_budget="6MB", **options).repeat()) as loader:
        memory = loader.report()["memory"]
        assert memory["batches_bytes"] <= 6 * MB
        for number, batch in enumerate(islice(loader, 30)):
            if number % 10 == 9:
                wait_until(lambda: loader.stats["batches_ready"] == memory["prefetch"])
            assert sum(image.nbytes for image in batch["image"]) <= memory["batch_bytes"]
            assert loader.stats["batches_ready"] + loader.stats["batches_in_flight"] <= memory["prefetch"]
    with pytest.raises(LoaderError, match=r"cannot hold 5 batches of [0-9,]+ and [0-9,]+ bytes for decoding"):
        data.numpy_loader("train", 16, memory_budget="2MB", **options)


# --- rows that are padded -----------------------------------------------------------------------------------------------

COUNTS = (0, 3, 1, 5, 2, 4, 1)
PAD = {"batch_size": 3, "training": False, "fields": ["boxes", "key", "image"], "pad": {"boxes": 6}}


def boxes_of(number):
    return np.reshape([[at, 1, at + 4 + number, 9] for at in range(COUNTS[number])], (-1, 4)).astype(np.float32)


@pytest.fixture(scope="module")
def boxes(tmp_path_factory):
    def make(rng, number):
        return {"image": np.zeros((8, 8, 3), np.uint8), "boxes": boxes_of(number)}

    codec, kinds = {"image": codecs.Raw(), "boxes": codecs.Scalar()}, {"image": "image", "boxes": "boxes"}
    options = {"fields": tuple(codec), "make": make, "codec": codec, "kinds": kinds}
    made = write_dataset(tmp_path_factory.mktemp("pad") / "d", samples={"train": len(COUNTS)}, **options)
    return tfprep.open(made.path)


@pytest.mark.parametrize("kind", ["numpy_loader", "loader"])
def test_missing_rows_are_minus_one(boxes, kind):
    if kind == "loader":
        pytest.importorskip("tensorflow")
        assert boxes.loader("train", **PAD).element_spec["boxes"].shape.as_list() == [None, 6, 4]
    found = np.concatenate([np.asarray(batch["boxes"]) for batch in batches(boxes, None, kind=kind, **PAD)])
    assert found.dtype == np.float32
    assert len(found) == len(COUNTS)
    for number, rows in enumerate(found):
        assert np.array_equal(rows[: COUNTS[number]], boxes_of(number))
        assert (rows[COUNTS[number] :] == -1).all()


def test_more_rows_than_there_is_room_for_are_an_error(boxes):
    with pytest.raises(RecordError, match=r"boxes\W+ has (5|more) rows"):
        batches(boxes, None, **{**PAD, "pad": {"boxes": 4}})


@pytest.mark.parametrize(
    ("pad", "message"),
    [
        ({"boxes": 0}, r"pad gives numbers of rows from 1 by field, such as \{'boxes': 100\}"),
        (100, "pad gives numbers of rows"),
        ({"masks": 3}, "no such field is loaded; there are boxes, key, image"),
        ({"image": 3}, r"pad fills up fields of N rows of signed numbers, such as boxes; 'image' is a image of uint8"),
        ({"key": 3}, "'key' is a text"),
    ],
)
def test_what_cannot_be_padded_is_named(boxes, pad, message):
    with pytest.raises(LoaderError, match=message):
        boxes.numpy_loader("train", **{**PAD, "pad": pad})
