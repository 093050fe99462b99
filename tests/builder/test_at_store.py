"""Builds into an object store: the bytes of a local build, whatever the store, other builds and kills do meanwhile."""

import hashlib
import json
import os
import random
import resource
import signal
import subprocess
import sys
import time
from collections import Counter
from contextlib import closing

import numpy as np
import pytest

import tfprep
from tests.builder.conftest import driver
from tests.waiting import wait_until
from tfprep.builder import at_store, build, build_part, finish_build, layout, plan_build
from tfprep.builder.at_store import clean, store_locked
from tfprep.builder.options import BuildOptions
from tfprep.dataset import open_dataset
from tfprep.dataset.verify import verify
from tfprep.errors import BuildError, BuildLockedError, DatasetError, StorageError
from tfprep.load.reader import ahead
from tfprep.storage import cache, objects
from tfprep.storage.address import parse_url
from tfprep.storage.store import open_store

pytest.importorskip("obstore")


def content(out) -> dict[str, object]:
    """The digests of shards and `.idx` files by split, variant and shard; the index; the rest of the manifest."""
    data, store = open_dataset(out), open_store(out)
    digests = {
        (split, variant, shard, ending): hashlib.sha256(store.read(f"{file.name}{ending}")).hexdigest()
        for split, info in data.splits.items()
        for variant, files in enumerate(info.files)
        for shard, file in enumerate(files)
        for ending in ("", ".idx")
    }
    manifest = json.loads(bytes(store.read("tfprep.json")))
    rest = {name: manifest[name] for name in manifest.keys() - {"splits", "files", "sha256"}}
    return {**digests, "index": hashlib.sha256(store.read(data.manifest.index)).hexdigest(), "rest": rest}


@pytest.fixture
def memory(tmp_path):
    return f"memory://{tmp_path.name}/inside"


@pytest.fixture(params=["memory", "s3"])
def url(request, memory):
    return memory if request.param == "memory" else request.getfixturevalue("s3").new_url()


@pytest.fixture
def few(site):
    """A dataset of three shards: each object costs the server of the tests several requests."""
    site.change_recipe('{"train": 4, "val": 2}', '{"train": 2, "val": 1}')
    return site.fill(train=8, val=2)


@pytest.fixture
def quick(monkeypatch):
    """Clients that wait for moments before they repeat a request."""
    monkeypatch.setattr(objects, "FIRST_BACKOFF_S", 0.01)
    objects._connected.cache_clear()
    yield
    objects._connected.cache_clear()


@pytest.mark.usefixtures("reports")
def test_the_bytes_are_those_of_a_local_build(few, url):
    (few.data / "train/cat/000.jpg").write_bytes(b"no image")
    few.build()
    summary = few.build(url)
    assert content(url) == content(few.out)
    assert list(verify(url)) == []
    assert bytes(open_store(url).read("rejects.jsonl")) == (few.out / "rejects.jsonl").read_bytes()
    assert (str(summary.out), summary.built_shards, summary.rejects) == (url, 3, 1)
    assert few.build(url).built_shards == 0
    assert "published: " in bytes(open_store(url).read(".tfprep/build.log")).decode()
    assert len(bytes(open_store(url).read("report.html"))) > 10_000


def test_a_reader_of_the_old_dataset_reads_on(full, memory):
    full.build(memory)
    old = open_dataset(memory)
    before = [sample["image"].tobytes() for sample in old.samples("train")]
    full.add("train/cat/900", 900)
    full.change_recipe("Brightness(0.2)", "Brightness(0.3)")
    assert full.build(memory).built_shards == 6
    assert [sample["image"].tobytes() for sample in old.samples("train")] == before
    full.build()
    assert content(memory) == content(full.out)
    shards = {name for name in (info.name for info in open_store(memory).list()) if ".tfrecord-" in name}
    found = clean(memory)
    assert {info.name for info in found.unreferenced if ".tfrecord-" in info.name} == {
        name for name in shards if name.removesuffix(".idx") not in named(memory)
    }
    assert clean(memory, remove=True).unreferenced == found.unreferenced
    assert (clean(memory).unreferenced, clean(memory).unfinished) == ((), ())
    assert list(verify(memory)) == []
    assert full.build(memory).built_shards == 0


def named(url) -> set[str]:
    return {file.name for info in open_dataset(url).splits.values() for files in info.files for file in files}


def test_cleaning_leaves_what_it_does_not_know_and_what_a_build_needs(full, memory):
    store = open_store(memory)
    for name in ("photo.jpg", "tiny-train.tfrecord-00000-of-00001", "0123456789abcdef-notes.txt", ".tfprep/other"):
        store.write(name, b"of somebody else")
    store.write("0123456789abcdef-tiny-train.tfrecord-00000-of-00001", b"of a build that was killed")
    build_part(full.recipe, memory, full.data, part=0, parts=2, options=BuildOptions(workers=0))
    found = clean(memory, remove=True)
    assert [info.name for info in found.unreferenced] == ["0123456789abcdef-tiny-train.tfrecord-00000-of-00001"]
    assert len(found.unfinished) == 10
    assert full.build(memory).built_shards == 3
    assert {"photo.jpg", ".tfprep/other"} <= {info.name for info in store.list()}
    full.build()
    assert (clean(full.out).unreferenced, clean(full.out).unfinished) == ((), ())
    with pytest.raises(DatasetError, match="is not a dataset built by tfprep"):
        clean(full.out.parent)


# --- faults and kills -----------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("quick")
def test_faults_of_the_store(few, s3):
    """Requests that are throttled, reset or cut short, and those that succeed without an answer, change nothing."""
    few.build()
    rng, url = random.Random(5), s3.new_url()
    s3.proxy.write_faults.extend(rng.choice(["503", "429", "reset", "lost", "", "", "", "", ""]) for _ in range(60))
    s3.proxy.faults.extend(rng.choice(["503", "reset", "truncate", "", "", "", ""]) for _ in range(40))
    few.build(url)
    assert content(url) == content(few.out)
    assert {"lost", "reset", "truncate"} <= {request.fault for request in s3.proxy.requests}


def test_kills_at_random_moments(few, s3):
    few.build()
    rng, url, kills = random.Random(3), s3.new_url(), 0
    few.out, local = url, few.out
    while True:
        process = subprocess.Popen(driver(few, workers=1), stderr=subprocess.PIPE, start_new_session=True)
        start = len(s3.proxy.requests)
        after = rng.randrange(2, 40) if kills < 2 else None
        while process.poll() is None and (after is None or len(s3.proxy.requests) < start + after):
            time.sleep(0.01)
        if process.poll() is not None:
            break
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        kills += 1
    assert (process.returncode, kills) == (0, 2), process.stderr.read().decode()
    process.stderr.close()
    assert content(url) == content(local)
    assert clean(url, remove=True).unfinished == ()
    assert list(verify(url)) == []


def test_an_end_at_every_request_of_a_build_over_an_older_dataset(full, memory, monkeypatch):
    """Each run ends at the next request that changes the store, as if it were killed there. Readers see the old dataset or the
    new one; the same build, started again, makes the new one."""
    full.build(memory)
    old = content(memory)
    full.add("train/cat/900", 900)
    full.build()
    new = content(full.out)
    before = {info.name: bytes(open_store(memory).read(info.name)) for info in open_store(memory).list()}
    monkeypatch.setattr(at_store, "is_alive", lambda holder: False)
    left, put, delete = 0, objects.ObjectStore._put, objects.ObjectStore.delete

    class Killed(BaseException):
        pass

    def counted(function):
        def step(*arguments, **options):
            nonlocal left
            left -= 1
            if left < 0:
                raise Killed
            return function(*arguments, **options)

        return step

    seen = []
    for steps in range(100):
        store = open_store(memory)
        store.delete([info.name for info in store.list()])
        for name, data in before.items():
            store.write(name, data)
        with monkeypatch.context() as patch:
            patch.setattr(objects.ObjectStore, "_put", counted(put))
            patch.setattr(objects.ObjectStore, "delete", counted(delete))
            left = steps
            try:
                full.build(memory)
                break
            except Killed:
                pass
        seen.append(content(memory) == new)
        assert seen[-1] or content(memory) == old
        full.build(memory)
        assert content(memory) == new
    assert content(memory) == new
    assert seen == sorted(seen), "never the old dataset after the new one"
    assert (False in seen, True in seen, len(seen) > 10) == (True, True, True)


# --- two at once ------------------------------------------------------------------------------------------------------------


def test_a_second_build_is_refused_by_name(full, memory):
    with store_locked(open_store(memory), memory):
        with pytest.raises(
            BuildLockedError, match=rf"{memory} is being built by process {os.getpid()} on .*, started "
        ):
            full.build(memory)
        with pytest.raises(BuildLockedError):
            build_part(full.recipe, memory, full.data, part=0, parts=2, options=BuildOptions(workers=0))
        with pytest.raises(BuildLockedError):
            clean(memory, remove=True)
    with store_locked(open_store(memory), memory, shared=True):
        build_part(full.recipe, memory, full.data, part=0, parts=2, options=BuildOptions(workers=0))
        with pytest.raises(BuildLockedError):
            full.build(memory)
    full.build(memory)
    assert not [info for info in open_store(memory).list(".tfprep") if "lock" in info.name or "running" in info.name]


@pytest.mark.parametrize("beats", [True, False])
def test_a_build_on_another_machine(full, memory, monkeypatch, beats):
    for name, seconds in (("HEARTBEAT_S", 0.02 if beats else 60), ("DEAD_S", 0.5), ("_POLL_S", 0.02)):
        monkeypatch.setattr(at_store, name, seconds)
    with store_locked(open_store(memory), memory) as lock:
        monkeypatch.setattr(layout, "_machine", lambda: "another")
        if beats:
            with pytest.raises(BuildLockedError, match="is being built by process"):
                full.build(memory)
            return
        monkeypatch.setattr(at_store, "HEARTBEAT_S", 0.02)
        full.build(memory)  # It shows no sign of life.
        lock._beat_once()
        with pytest.raises(BuildError, match=r"was stopped for more than .* another build began"):
            lock.check()


def test_a_build_that_was_overtaken_publishes_nothing(full, memory):
    store = open_store(memory)

    def overtaken(event):
        if event.name == "planned":
            store.write("tfprep.json", b"{}")

    with pytest.raises(BuildError, match="another build published in the meantime, so this one did not"):
        full.build(memory, on_event=overtaken)
    assert bytes(store.read("tfprep.json")) == b"{}"


def test_receipts_of_a_build_that_goes_on_after_another_one_began_are_not_published(full, memory):
    """The receipt of shard 0 is written again, as by a build with the older recipe that was stopped for a minute."""
    full.build(memory)
    published, store = bytes(open_store(memory).read("tfprep.json")), open_store(memory)
    names = [info.name for info in store.list(".tfprep/receipts") if "train-00000" in info.name]
    older = {name: bytes(store.read(name)) for name in names}
    full.change_recipe("Jpeg(90)", "Jpeg(30)")

    def goes_on(event):
        if event.name == "shard":
            for name, data in older.items():
                store.write(name, data)

    with pytest.raises(
        BuildError, match=r"shard 0 of 'train' in .* was written by another build while this one ran; run"
    ):
        full.build(memory, on_event=goes_on)
    assert bytes(store.read("tfprep.json")) == published
    assert full.build(memory).built_shards == 1
    full.build()
    assert content(memory) == content(full.out)


# --- parts ------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("parts", [3, 16])
def test_parts_in_any_order(full, memory, parts):
    full.build()
    inline = BuildOptions(workers=0)
    order = random.Random(parts).sample(range(parts), parts)
    for part in (*order, order[0]):
        build_part(full.recipe, memory, full.data, part=part, parts=parts, options=inline)
    with pytest.raises(DatasetError):
        open_dataset(memory)
    assert finish_build(full.recipe, memory, full.data, options=inline).built_shards == 0
    assert content(memory) == content(full.out)


def test_a_part_that_plans_differently_is_refused(full, memory):
    inline = BuildOptions(workers=0)
    build_part(full.recipe, memory, full.data, part=0, parts=2, options=inline)
    with pytest.raises(BuildError, match=r"nothing was published, shards are missing.*Run again, of 2 parts: 1"):
        finish_build(full.recipe, memory, full.data, options=inline)
    full.add("train/cat/900", 900)
    with pytest.raises(BuildError, match=r"would not build the same dataset.*train has 25 samples here and 24 there"):
        build_part(full.recipe, memory, full.data, part=1, parts=2, options=inline)


# --- what stands in the way ---------------------------------------------------------------------------------------------------


def test_a_dry_run_writes_nothing(full, memory):
    states = plan_build(full.recipe, memory, full.data)
    assert (len(states), open_store(memory).list()) == (6, [])


def test_stores_that_refuse(full, s3):
    s3.proxy.write_faults.append("403")
    with pytest.raises(StorageError, match=r"lock cannot be written: the store refuses these credentials .*AWS_ACCESS"):
        full.build(s3.new_url())
    with pytest.raises(
        StorageError, match=r"s3://no-such-bucket/x/.tfprep/lock does not exist in its store; check the URL"
    ):
        full.build("s3://no-such-bucket/x")
    with pytest.raises(BuildError, match=r"can only be read; build into a folder, or to s3://"):
        full.build(s3.endpoint)
    with pytest.raises(BuildError, match="a scratch folder is for builds into an object store"):
        full.build(scratch=full.data)


def test_memory_is_refused_to_worker_processes(full, memory):
    for out, data in ((memory, full.data), (full.out, memory), (full.out, parse_url(memory))):
        with pytest.raises(
            BuildError, match=r"memory://.* is in the memory of this process.* build with workers=0, or use"
        ):
            build(full.recipe, out, data, options=BuildOptions(workers=2))


def test_a_full_scratch_disk(site, s3, tmp_path):
    full = site.fill(8, 2)
    full.change_recipe('shards={"train": 4, "val": 2}', 'shards={"train": 1, "val": 1}')
    full.build()
    url, local = s3.new_url(), full.out
    full.out = url
    code = "import resource, signal\nsignal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
    code += f"resource.setrlimit(resource.RLIMIT_FSIZE, (4000, {resource.RLIM_INFINITY}))"
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    command = driver(full, workers=0, code=code)
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, env=environment)
    assert "File too large; nothing was published. Make room, then run the same command again" in done.stderr
    assert [path.name for path in tmp_path.rglob("build-*")] == []
    full.build(url)
    assert content(url) == content(local)
    assert s3.environment["AWS_SECRET_ACCESS_KEY"] not in done.stderr + bytes(
        b"".join(bytes(open_store(url).read(info.name)) for info in open_store(url).list(".tfprep"))
    ).decode(errors="replace")


def test_scratch_folders_of_killed_builds_are_removed(tmp_path):
    code = f"""
import os, pathlib
from tfprep.builder.layout import scratch_folder
with scratch_folder(pathlib.Path({str(tmp_path)!r})) as own:
    (own / "shard").write_bytes(b"x")
    os._exit(9)
"""
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 9
    (abandoned,) = tmp_path.iterdir()
    from tfprep.builder.layout import scratch_folder

    with scratch_folder(tmp_path) as own, scratch_folder(tmp_path) as other:
        assert sorted(tmp_path.iterdir()) == sorted([own, other])
        assert not abandoned.exists()
    assert list(tmp_path.iterdir()) == []


ORDERS = ({"order": "global"}, {"order": "block", "block": 8, "window": 2}, {"order": "sequential"})


def test_from_a_bucket_to_a_bucket_to_batches(site, s3, tmp_path, monkeypatch):
    monkeypatch.setattr(cache, "KEPT_FREE_BYTES", 0)
    monkeypatch.setattr(ahead, "GAP_BYTES", 200)  # joins the fields of a record, not the blocks of a window
    full = site.fill(12, 2)
    full.build()
    raw, url = s3.new_url(), s3.new_url()
    files = [path.relative_to(full.data).as_posix() for path in full.data.rglob("*") if path.is_file()]
    for name in files:
        s3.put(f"{raw}/{name}", (full.data / name).read_bytes())
    s3.proxy.reset()
    build(full.recipe, url, raw, options=BuildOptions(workers=0))
    assert content(url) == content(full.out)
    reads = Counter(request.path for request in s3.proxy.reads(raw.removeprefix("s3:/")))
    assert (len(reads), set(reads.values())) == (len(files), {1})
    s3.proxy.reset()
    assert build(full.recipe, url, raw, options=BuildOptions(workers=0)).built_shards == 0
    assert s3.proxy.reads(raw.removeprefix("s3:/")) == []
    for number, order in enumerate(ORDERS):
        _check_loading(url, full.out, s3, order, tmp_path / f"cache{number}")


def _check_loading(url, folder, s3, order, local):
    """An epoch by range, one with a cold cache, and one with a warm one."""
    options = {"seed": 2, "variants": "all", "cache": False, "workers": "threads", **order}
    data, size = tfprep.open(url), sum(file.bytes for file in _files(url))
    for cached, warm in ((False, False), (True, False), (True, True)):
        s3.proxy.reset()
        with (
            closing(
                data.numpy_loader("train", 6, local=local if cached else None, training=cached, **options)
            ) as there,
            closing(tfprep.open(folder).numpy_loader("train", 6, training=cached, **options)) as here,
        ):
            for a, b in zip(there, here, strict=True):
                assert a.keys() == b.keys()
                for name in a:
                    np.testing.assert_array_equal(a[name], b[name], name)
            if cached and not warm:
                wait_until(lambda there=there: there.report()["local"]["hits"] == 1.0)
        spans = [request.span for request in s3.proxy.reads(".tfrecord-")]
        if not cached:  # in training, the next epoch is fetched ahead
            assert sum(stop - start for start, stop in spans) == size
        assert (spans == []) == warm


def _files(url):
    return [file for files in open_dataset(url).splits["train"].files for file in files]
