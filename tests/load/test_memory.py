"""The memory budget, and the caches within it."""

import json
import shutil
import time

import numpy as np
import pytest

import tfprep
from tests.conftest import Made, write_dataset
from tests.sources.building import write_picture
from tfprep import Recipe, augment, codecs, sources
from tfprep.builder import BuildOptions
from tfprep.errors import LoaderError, RecordError
from tfprep.load.memory import parse_bytes, plan_memory
from tfprep.load.outputs import Output
from tfprep.load.reader.batch import DecodedCache
from tfprep.load.reader.rows import COLUMNS, Rows
from tfprep.load.reader.stages import CachedRows
from tfprep.load.reader.thread_state import ThreadState


@pytest.mark.parametrize(
    ("text", "number"),
    [(5, 5), ("800M", 800 << 20), ("2GB", 2 << 30), ("1.5 GiB", 3 << 29), ("64k", 64 << 10), ("100", 100)],
)
def test_sizes_as_text(text, number):
    assert parse_bytes(text) == number


@pytest.mark.parametrize("text", [0, -1, True, "much", "2 Gx", "", "1.2.3G", None])
def test_texts_that_are_not_sizes(text):
    with pytest.raises(LoaderError, match="such as '2GB'"):
        parse_bytes(text)


def test_the_budget_limits_prefetch():
    assert plan_memory("1GB", 1 << 20, None).prefetch == 8
    assert plan_memory(20 << 20, 1 << 20, None).prefetch == 6
    assert plan_memory(5 << 20, 1 << 20, None).prefetch == 1
    assert plan_memory("1GB", 1 << 20, 3).prefetch == 3


def test_batches_that_do_not_fit():
    with pytest.raises(LoaderError, match="cannot hold 5 batches of 1,048,576"):
        plan_memory(4 << 20, 1 << 20, None)


def test_the_cache_gets_what_batches_leave():
    plan = plan_memory(100 << 20, 1 << 20, 6)
    assert plan.cache_bytes == (100 - 10) << 20


OUTPUTS = (Output("x", ("x",), (4, 3), "uint8"), Output("y", ("y",), (), "int64"))


def arrays(rows):
    return {"x": np.zeros((rows, 4, 3), np.uint8), "y": np.zeros(rows, np.int64)}


class Decoding:
    """Fills each row with its record's number, and notes which records it was asked for."""

    def __init__(self):
        self.asked = []

    def fill(self, values, rows, worker):
        self.asked += rows["record"].tolist()
        for row, record in zip(rows["row"].tolist(), rows["record"].tolist(), strict=True):
            values["x"][row], values["y"][row] = record, record
        return []


def read(cache, decoding, records, first=0):
    """The arrays after reading these records into rows from `first` on, through the cache."""
    values, rows = arrays(first + len(records)), Rows(np.zeros((len(COLUMNS), len(records)), np.int64))
    rows["row"][:], rows["record"][:] = np.arange(first, first + len(records)), records
    rows["slot"][:], rows["cached"][:] = cache.reserve(rows["record"])
    assert CachedRows(decoding, cache.rows).fill(values, rows, ThreadState()) == []
    written = (rows["slot"] >= 0) & (rows["cached"] == 0)
    cache.commit(rows["record"][written], rows["slot"][written])
    return values


@pytest.mark.parametrize("wanted", [[3, 1, 2], [3, 9, 1], [9, 8], [2, 2], [9, 9]])
def test_cached_rows_equal_the_decoded_ones(wanted):
    cache, decoding = DecodedCache(OUTPUTS, records=20, budget=1 << 20), Decoding()
    read(cache, decoding, [1, 2, 3])
    assert cache.records == 3
    values = read(cache, decoding, wanted, first=1)
    assert decoding.asked == [1, 2, 3, *(record for record in wanted if record > 3)]
    assert values["y"].tolist() == [0, *wanted]
    assert values["x"][:, 0, 0].tolist() == [0, *wanted]


def test_a_cache_stays_within_its_budget():
    cache = DecodedCache(OUTPUTS, records=100, budget=128 * 10)
    assert cache.capacity == 10
    for record in range(100):
        assert read(cache, Decoding(), [record])["y"].tolist() == [record]
    assert cache.records == 10
    assert cache.nbytes <= 128 * 10
    again = Decoding()
    read(cache, again, range(100))
    assert again.asked == list(range(10, 100))


def test_a_budget_without_room_for_a_cache():
    cache, decoding = DecodedCache(OUTPUTS, records=100, budget=10), Decoding()
    for _ in range(2):
        read(cache, decoding, [0, 1])
    assert decoding.asked == [0, 1, 0, 1]
    assert cache.records == 0


def test_a_prefetch_beyond_the_budget_raises():
    with pytest.raises(LoaderError, match=r"prefetch=97 takes 105,906,176 bytes .* prefetch=96 fits"):
        plan_memory(100 << 20, 1 << 20, 97)
    assert plan_memory(100 << 20, 1 << 20, 96).prefetch == 96
    assert plan_memory(100 << 20, 1 << 20, None, 16).prefetch == 16
    assert plan_memory(20 << 20, 1 << 20, None, 16).prefetch == 6


# --- images of different sizes ------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def originals(tmp_path_factory):
    """Noise of 255 x 382 to 300 x 450 pixels, as PNG."""

    def make(rng, number):
        scale = 1.0 if number % 13 == 0 else 0.85 + 0.01 * (number % 10)
        return {
            "image": rng.integers(0, 256, (int(300 * scale), int(450 * scale), 3)).astype(np.uint8),
            "label": number % 3,
        }

    codec, kinds = {"image": codecs.Png(), "label": codecs.Scalar()}, {"image": "image", "label": "label"}
    path = tmp_path_factory.mktemp("originals") / "d"
    return write_dataset(path, samples={"train": 60}, fields=("image", "label"), make=make, codec=codec, kinds=kinds)


def test_batch_bytes_are_those_of_the_largest_images(originals):
    sizes = sorted((values["image"].nbytes for values in originals.values["train"][0]), reverse=True)
    report = tfprep.open(originals.path).numpy_loader("train", 8, fields=["image"]).report()["memory"]
    assert sum(sizes[:8]) <= report["batch_bytes"] <= sum(sizes[:8]) + 8 * 64
    small = (
        tfprep.open(originals.path).numpy_loader("train", 8, fields=["image"], where="height < 300").report()["memory"]
    )
    assert small["batch_bytes"] <= 8 * (sizes[5] + 64)
    floats = tfprep.open(originals.path).numpy_loader("train", 8, fields=["image"], dtype="float32").report()["memory"]
    assert floats["batch_bytes"] >= 4 * sum(sizes[:8])


@pytest.mark.parametrize("sizes", [{"height": 2**31 - 1, "width": 2**31 - 1}, {"height": -300}, {"width": 2**31 - 1}])
def test_sizes_of_a_damaged_index_are_refused(originals, sizes, tmp_path):
    damaged = Made(shutil.copytree(originals.path, tmp_path / "d"))
    damaged.change_index(7, **sizes)
    with pytest.raises(LoaderError, match="the index gives sizes of 'image' that no array has"):
        tfprep.open(damaged.path).numpy_loader("train", 8, fields=["image"])


def test_the_budget_bounds_images_of_different_sizes(originals):
    """The memory of the reader stays within the budget at any moment, and a budget that is too small is refused."""
    budget = 40 << 20
    loader = (
        tfprep.open(originals.path)
        .numpy_loader("train", 16, fields=["image"], memory_budget=budget, cache=False)
        .repeat()
    )
    reader_bytes = []
    for _, _ in zip(range(40), loader, strict=False):
        time.sleep(0.005)  # Lets the reader prefetch as many batches as it may.
        for reader in loader.pipeline.readers:
            held = [image for batch in list(reader._batches.values()) for image in batch.values["image"]]
            reader_bytes.append(sum(image.nbytes for image in held if image is not None))
    loader.close()
    assert 0 < max(reader_bytes) <= budget
    with pytest.raises(LoaderError, match=r"cannot hold 5 batches of [0-9,]+ and [0-9,]+ bytes for decoding"):
        tfprep.open(originals.path).numpy_loader("train", 16, fields=["image"], memory_budget="20MB").repeat()


def test_decoding_large_originals_counts_too(originals):
    """The batches are small after resizing, but the decoded images before that are not."""
    options = {"fields": ["image"], "geometry": [augment.Resize(24, 32)], "threads": 4}
    report = tfprep.open(originals.path).numpy_loader("train", 8, **options).report()["memory"]
    assert report["batch_bytes"] == 8 * 24 * 32 * 3
    assert report["batches_bytes"] >= 4 * 300 * 450 * 3


COUNTS = (0, 3, 1, 5, 2, 4, 1)


def boxes_of(number):
    return [[at, 1, at + 4 + number, 9] for at in range(COUNTS[number])]


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    root = tmp_path_factory.mktemp("pad")
    for number in range(len(COUNTS)):
        write_picture(root / f"{number}.png", number)
    rows = [{"image": f"{n}.png", "boxes": boxes_of(n), "name": "x"} for n in range(len(COUNTS))]
    (root / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    source = sources.Table(
        "rows.jsonl", image="image", fields={"boxes": ("boxes", "boxes"), "name": ("text", "name")}, splits=None
    )
    store = {"image": codecs.Raw(), "boxes": codecs.Scalar(), "name": codecs.Text()}
    tfprep.build(Recipe(name="pad", source=source, store=store), root / "out", root, options=BuildOptions(workers=0))
    return tfprep.open(root / "out")


def expected(keys, rows):
    found = np.full((len(keys), rows, 4), -1, np.float32)
    for row, key in enumerate(keys):
        boxes = boxes_of(int(str(key).partition(".")[0]))
        found[row, : len(boxes)] = np.reshape(boxes, (-1, 4))
    return found


def check(batches, rows):
    samples = 0
    for batch in batches:
        keys = [key.decode() if isinstance(key, bytes) else key for key in np.asarray(batch["key"]).tolist()]
        np.testing.assert_array_equal(np.asarray(batch["boxes"]), expected(keys, rows))
        assert np.asarray(batch["boxes"]).dtype == np.float32
        samples += len(keys)
    assert samples == len(COUNTS)


OPTIONS = {"batch_size": 3, "training": False, "fields": ["boxes", "key", "image"], "pad": {"boxes": 6}}


def test_arrays_of_numpy(data):
    check(data.numpy_loader("train", **OPTIONS), 6)


def test_tensors_of_tensorflow(data):
    loader = data.loader("train", **OPTIONS)
    assert loader.element_spec["boxes"].shape.as_list() == [None, 6, 4]
    check(loader.as_numpy_iterator(), 6)
    check(iter(loader), 6)


def test_into_fit(data):
    keras = pytest.importorskip("keras")
    train = data.loader(
        "train", batch_size=2, inputs="image", targets="boxes", pad={"boxes": 5}, dtype="float32", seed=1
    )
    pixels = keras.Input((40, 56, 3))
    model = keras.Model(
        pixels, keras.layers.Reshape((5, 4))(keras.layers.Dense(20)(keras.layers.GlobalAveragePooling2D()(pixels)))
    )
    model.compile("sgd", "mse")
    assert np.isfinite(model.fit(train, shuffle=False, verbose=0).history["loss"]).all()


@pytest.mark.parametrize("kind", ["numpy_loader", "loader"])
def test_more_rows_than_there_is_room_for_are_an_error(data, kind):
    with pytest.raises(RecordError, match=r"boxes\W+ has (5|more) rows"):
        list(getattr(data, kind)("train", **{**OPTIONS, "pad": {"boxes": 4}}))


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
def test_what_cannot_be_padded_is_named(data, pad, message):
    with pytest.raises(LoaderError, match=message):
        data.numpy_loader("train", **{**OPTIONS, "pad": pad})
