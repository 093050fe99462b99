"""Records at URLs are fetched ahead, in few requests: what is planned is exactly what is read, in every order."""

import gc
import threading
import time
from contextlib import closing
from itertools import islice

import pytest

import tfprep
from tests.load.batches import batches, check_same, copy_in_memory
from tests.photos import write_photos
from tests.waiting import wait_until
from tfprep import Recipe, codecs, sources
from tfprep.builder import BuildOptions
from tfprep.errors import DatasetError, RecordError, StalledPipelineError, StorageError
from tfprep.load.options import LoaderOptions
from tfprep.load.pipeline import Pipeline
from tfprep.load.plan import LoaderPlan
from tfprep.load.reader import files
from tfprep.load.reader.batch import Batch
from tfprep.storage.store import open_store

pytest.importorskip("obstore")
ORDERS = {
    "global": {"order": "global"},
    "sequential": {"order": "sequential"},
    "hosts": {"hosts": (1, 3)},
    "all variants": {"order": "global", "variants": "all"},
    "validation": {"training": False},
    "one variant": {"variants": 1, "remainder": "keep"},
    "balanced": {"order": "global", "balance": "label"},
}


@pytest.fixture(scope="module")
def url(photos, _s3_server):
    return _s3_server.copy(photos.path)


def read(data, steps, **options):
    return batches(data, steps, batch_size=7, **options)


@pytest.mark.parametrize("order", ORDERS)
def test_batches_equal_those_of_the_folder(data, url, s3, order):
    """All fields, read with their checksums, and in the second epoch without; then two fields of ten."""
    for fields, steps in ((None, 9), (["lossless", "label", "key"], 3)):
        options = {**ORDERS[order], "fields": fields, "cache": False}
        check_same(read(data, steps, **options), read(tfprep.open(url), steps, **options))
    assert all(request.span for request in s3.proxy.reads(".tfrecord-"))


@pytest.mark.parametrize("order", ORDERS)
def test_the_requests_cover_what_is_read_and_no_more(photos, order, monkeypatch):
    """Computed record by record from the index."""
    monkeypatch.setattr(files, "GAP_BYTES", 0)
    options = LoaderOptions(batch_size=7, seed=3, cache=False, **ORDERS[order])
    pipeline = Pipeline(tfprep.open(copy_in_memory(photos)).subset("train").sources, options)
    table = pipeline.plan.table
    for step in range(20 if pipeline.plan.training else pipeline.schedule.steps_per_epoch):
        (rows,) = pipeline.rows_of([step])
        records = table.record(rows["sample"], rows["variant"])
        places = table.locate(records, ["offset", "size"])
        starts = zip(table.file_of(records).tolist(), places["offset"].tolist(), strict=True)
        needed = dict(zip(starts, places["size"].tolist(), strict=True))
        for request_bytes in (2_000, 1 << 20):
            monkeypatch.setattr(files, "REQUEST_BYTES", request_bytes)
            ranges = files.ranges_of(pipeline.byte_spans(rows))
            assert all(part.stop - part.start <= request_bytes + max(needed.values()) for part in ranges)
            assert sum(part.stop - part.start for part in ranges) == sum(needed.values())  # none twice
            for (file, start), size in needed.items():
                assert (
                    sum(part.file == file and part.start <= start <= start + size <= part.stop for part in ranges) == 1
                )
    pipeline.close()


def test_a_validation_run_fetches_every_byte_once(url, s3):
    data = tfprep.open(url)
    with closing(data.numpy_loader("train", 7, training=False, cache=False)) as loader:
        s3.proxy.requests.clear()
        assert sum(len(batch["label"]) for batch in loader) == 50
        stats = loader.stats
    reads = s3.proxy.reads(".tfrecord-")
    files = data.splits["train"].files[0]
    assert len(reads) == stats["requests"] <= 8 + len(files)  # one of each batch, or two where it begins another file
    assert sum(stop - start for start, stop in (request.span for request in reads)) == sum(file.bytes for file in files)
    assert stats["bytes_fetched"] == sum(file.bytes for file in files)


@pytest.mark.parametrize(
    "steps", [1, 7], ids=["in an epoch", "after an epoch, whose end keeps what is read for the next"]
)
def test_a_loader_that_is_dropped_ends_its_threads(url, s3, steps):
    def threads():
        return {thread for thread in threading.enumerate() if thread.name.startswith("tfprep-")}

    before = threads()
    loader = tfprep.open(url).numpy_loader("train", 7, cache=False)
    iterator = iter(loader)
    assert len(list(islice(iterator, steps))) == steps
    assert next(iterator, None) is None or steps == 1
    assert threads() - before
    del loader, iterator
    gc.collect()
    wait_until(lambda: not threads() - before)


def test_what_is_in_the_decoded_cache_is_not_fetched_again(url, s3):
    options = {"order": "global", "variants": 0, "fields": ["lossless"], "cache": "decoded"}
    with closing(tfprep.open(url).numpy_loader("train", 10, **options)) as loader:
        iterator = iter(loader.repeat())
        list(islice(iterator, 20))
        count = len(s3.proxy.reads(".tfrecord-"))
        list(islice(iterator, 20))
        assert len(s3.proxy.reads(".tfrecord-")) == count


@pytest.mark.parametrize("steps", [None, 1000], ids=["", "where records are larger than they are on average"])
def test_memory_is_bounded(photos, steps, monkeypatch):
    """What is fetched is at most what has been delivered, the batches on their way, and the share of the budget."""
    if steps is not None:
        monkeypatch.setattr(LoaderPlan, "fetch_steps", steps)
    data = tfprep.open(copy_in_memory(photos))
    options = {"training": False, "cache": False, "fields": ["clicks"], "prefetch": 1, "threads": 1}
    sizes = data.index("train", 0, ["size"])["size"].to_numpy()
    with closing(data.numpy_loader("train", 5, memory_budget=60_000, **options)) as loader:
        budget = loader.report()["fetching"]["memory_bytes"]
        assert 0 < budget <= 15_000
        for step, _ in enumerate(islice(loader, 4)):
            time.sleep(0.03)  # longer than fetching all takes
            assert 0 < loader.stats["bytes_fetched"] <= sizes[: 5 * (step + 3)].sum() + budget + sizes.max()


def test_batches_that_were_delivered_are_let_go(photos, monkeypatch):
    """Without the collector of cycles: their memory is used again as soon as nobody refers to it."""
    request = files.Files.request
    monkeypatch.setattr(files.Files, "request", lambda *given: time.sleep(0.01) or request(*given))
    data = tfprep.open(copy_in_memory(photos))
    with closing(data.numpy_loader("train", 10, cache=False, prefetch=2).repeat()) as loader:
        gc.collect()
        gc.disable()
        try:
            list(islice(loader, 60))
            assert sum(isinstance(held, Batch) for held in gc.get_objects()) <= loader.steps_per_epoch + 4
        finally:
            gc.enable()


@pytest.mark.parametrize("fault", ["503", "reset", "truncate"])
@pytest.mark.usefixtures("quick")
def test_faults_that_pass_change_nothing(data, url, s3, fault):
    remote = tfprep.open(url)
    s3.proxy.faults.extend([fault, "", fault, fault, ""] * 2)
    check_same(read(data, 8), read(remote, 8))


def test_a_store_that_does_not_answer_is_a_stalled_pipeline(url, s3, monkeypatch):
    monkeypatch.setattr("tfprep.load.threads.JOIN_S", 0.1)
    data = tfprep.open(url)
    loader = data.numpy_loader("train", 8, timeout_s=1.0)
    loader.pipeline.plan.table.read()  # the index is read before the store stalls
    s3.proxy.always = "stall"
    with pytest.raises(StalledPipelineError, match=r"(?s)no batch for step 0 in 1 s.*read s3://bucket/.*tfrecord"):
        next(iter(loader))
    s3.proxy.always = ""
    s3.proxy.released.set()
    loader.close()
    s3.proxy.released.clear()


def test_a_damaged_record_is_one_bad_record_of_its_range(photos, s3):
    url = s3.copy(photos.path)
    data = tfprep.open(url)
    shard = data.file("train", 0, 0)
    content = bytearray((photos.path / shard.name).read_bytes())
    content[shard.bytes // 2] ^= 1
    s3.put(f"{url}/{shard.name}", bytes(content))
    with closing(data.numpy_loader("train", 8, training=False, on_bad="skip")) as loader:
        assert sum(len(batch["label"]) for batch in loader) == 49
        (bad,) = loader.report()["bad_records"]
    assert "checksum" in bad["reason"]
    with pytest.raises(RecordError, match="wrong checksum"):
        list(data.numpy_loader("train", 8, training=False))


# --- stores in general --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fault", "message"), [("403", "cannot be read: the store refuses"), ("gone", "does not exist in its store")]
)
def test_a_request_that_fails_is_no_bad_record(photos, s3, fault, message):
    """Records that a store does not deliver are not damaged: leaving them out would train on less, and nobody would notice."""
    url = s3.copy(photos.path)
    data = tfprep.open(url)
    loader = data.numpy_loader("train", 8, training=False, on_bad="skip")
    loader.pipeline.plan.table.read()  # the index is read before the store refuses
    shard = data.file("train", 0, 0).name
    if fault == "gone":
        s3.put(f"{url}/{shard}", b"", method="DELETE")
    else:
        s3.proxy.always = fault
    with pytest.raises(StorageError, match=f"{shard}.* {message}"):
        list(loader)


def test_the_loader_of_tensorflow_at_a_url_that_tensorflow_does_not_read(photos, data):
    options = {"fields": ["image", "lossless", "label", "key"], "variants": "rotate"}
    check_same(read(data, 18, **options), read(tfprep.open(copy_in_memory(photos)), 18, kind="loader", **options))


def test_an_object_that_is_cut_short(photos):
    folder = copy_in_memory(photos)
    data, store = tfprep.open(folder), open_store(folder)
    shard = data.file("train", 0, 0).name
    loader = data.numpy_loader("train", 8, training=False)  # it compares the sizes
    store.write(shard, bytes(store.read(shard))[:-10])
    with pytest.raises(RecordError, match="cut short: the file holds"):
        list(loader)


def test_a_shard_that_is_replaced_is_named_in_each_part_of_a_mix_that_reads_it(photos):
    data = tfprep.open(copy_in_memory(photos))
    path = data.shard_path(data.file("train", 0, 0))
    opened = files.Files([path, path])  # as two folds of a dataset are
    opened.request(0, 0, 9)
    open_store(path.parent).write(path.name, photos.path / path.name)
    for number in (1, 0):
        with pytest.raises(DatasetError, match=f"{path.name} was replaced since the loader began to read it"):
            opened.request(number, 0, 9)


def test_empty_text_is_read_without_a_request(tmp_path, s3):
    """A range of no bytes is none that HTTP can ask for."""
    write_photos(tmp_path / "raw", 4, "{number}.png")
    (tmp_path / "raw" / "table.csv").write_text("image,caption\n" + "".join(f"{n}.png,\n" for n in range(4)))
    source = sources.Table(
        "table.csv", "image", fields={"caption": ("text", "caption")}, splits=sources.Fractions(train=1.0)
    )
    recipe = Recipe(name="empty", source=source, store={"image": codecs.Raw(), "caption": codecs.Text()})
    tfprep.build(recipe, tmp_path / "out", tmp_path / "raw", options=BuildOptions(workers=0))
    data = tfprep.open(s3.copy(tmp_path / "out"))
    with closing(data.numpy_loader("train", 1, fields="caption", verify="never", cache=False)) as loader:
        assert [text for batch in islice(loader, 4) for text in batch["caption"]] == [""] * 4
        assert loader[2]["caption"] == [""]
        assert loader.stats["requests"] == 0
