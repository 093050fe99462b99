"""Builds into an object store: the bytes of a local build, whatever the store, other builds and kills do meanwhile."""

import json
import os
import random
import tempfile

import pytest
from PIL import Image

import tfprep
from tests.builder.conftest import FILES_OF_4000_BYTES, run
from tfprep.builder import layout, plan_build
from tfprep.dataset import clean as cleaning
from tfprep.dataset import open_dataset
from tfprep.dataset.clean import clean
from tfprep.dataset.manifest import digest_of
from tfprep.dataset.verify import verify
from tfprep.errors import BuildError, DatasetError, StorageError
from tfprep.storage import store as objects
from tfprep.storage.store import open_store
from tfprep.storage.urls import read_content

pytest.importorskip("obstore")


def content(out) -> dict[str, object]:
    """The digests of shards and `.idx` files by split, variant and shard; the index; the rest of the manifest."""
    data = open_dataset(out)
    digests = {
        (split, variant, shard, ending): digest_of(data.shards_folder / f"{file.name}{ending}").sha256
        for split, info in data.splits.items()
        for variant, files in enumerate(info.files)
        for shard, file in enumerate(files)
        for ending in ("", ".idx")
    }
    manifest = json.loads(read_content(data.path / "manifest.json"))
    rest = {name: manifest[name] for name in manifest.keys() - {"splits", "files", "within", "sha256"}}
    return {**digests, "index": digest_of(data.path / "index.parquet").sha256, "rest": rest}


@pytest.fixture
def memory(tmp_path):
    return f"memory://{tmp_path.name}/inside"


@pytest.fixture
def few(site):
    """A dataset of three shards: each object costs the server of the tests several requests."""
    site.change_recipe('{"train": 4, "val": 2}', '{"train": 2, "val": 1}')
    return site.fill(train=8, val=2)


@pytest.mark.usefixtures("reports")
def test_the_bytes_are_those_of_a_local_build(few, memory):
    """Tests of faults and kills compare those at S3."""
    url = memory
    (few.data / "train/cat/000.jpg").write_bytes(b"no image")
    few.build()
    summary = few.build(url)
    store = open_store(url)
    assert content(url) == content(few.out)
    assert list(verify(url)) == []
    assert bytes(store.read("v0001/rejects.jsonl")) == (few.out / "current/rejects.jsonl").read_bytes()
    assert (str(summary.out), summary.built_shards, summary.rejected) == (url, 3, 1)
    assert few.build(url).built_shards == 0
    assert len(bytes(store.read("v0001/report.html"))) > 10_000
    # Another reason of a rejection, and a mask that was packed again: no shard shows them, but this list and the index.
    (few.data / "train/cat/000.jpg").write_bytes(b"no image either")
    Image.open(path := few.mask("train/cat/002")).save(path, compress_level=1)
    few.build()
    few.build(url)
    assert content(url) == content(few.out)
    assert bytes(store.read("v0002/rejects.jsonl")) == (few.out / "current/rejects.jsonl").read_bytes()


@pytest.mark.usefixtures("any_age")
def test_a_reader_of_the_old_version_reads_on(full, memory):
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
    named = {
        f"shards/{file.name}" for info in open_dataset(memory).splits.values() for files in info.files for file in files
    }
    found = clean(memory)
    assert {info.name for info in found.unreferenced if ".tfrecord-" in info.name} == {
        name for name in shards if name.removesuffix(".idx") not in named
    }
    assert list(found.versions) == [1]
    assert tfprep.open(memory, version=1).path == old.path
    assert clean(memory, keep=1).unreferenced == ()
    unpublished = "v0003/manifest.json"  # of a killed build; it is none of the versions that stay
    open_store(memory).write(unpublished, bytes(open_store(memory).read("v0002/manifest.json")))
    assert [info.name for info in clean(memory, keep=1).unreferenced] == [unpublished]
    pointer = bytes(open_store(memory).read("tfprep.json"))
    open_store(memory).write("tfprep.json", pointer[1:])
    with pytest.raises(DatasetError, match=r"tfprep\.json is damaged"):  # version 3 would be taken for the current one
        clean(memory, remove=True)
    open_store(memory).write("tfprep.json", pointer)
    open_store(memory).delete([unpublished])
    assert clean(memory, remove=True).unreferenced == found.unreferenced
    with pytest.raises(DatasetError, match="has no version 1; it has 2"):
        tfprep.open(memory, version=1)
    assert (clean(memory).unreferenced, clean(memory).unfinished) == ((), ())
    assert list(verify(memory)) == []
    assert full.build(memory).built_shards == 0


def test_a_damaged_index_is_written_again(full, memory):
    full.build(memory)
    store = open_store(memory)
    store.write("v0001/index.parquet", bytes(store.read("v0001/index.parquet")).replace(b"train", b"trial"))
    assert [fault.file for fault in verify(memory)] == ["index.parquet"]
    assert full.build(memory, verify=True).built_shards == 0
    assert list(verify(memory)) == []


def test_cleaning_leaves_what_it_does_not_know_and_what_a_build_needs(full, memory, monkeypatch):
    killed = "shards/0123456789abcdef-tiny-train.tfrecord-00000-of-00001"
    store, photos = open_store(memory), ("photo.jpg", "shards/photo.jpg", "v0001/photo.jpg")
    foreign = (*photos, killed.partition("-")[2], "shards/0123456789abcdef-notes.txt", ".tfprep/other")
    full.build(memory)
    full.change_recipe("Jpeg(90)", "Jpeg(80)")
    for name in foreign:
        store.write(name, b"of somebody else")
    store.write(killed, b"of a build that was killed")
    local, full.out = full.out, memory
    full.part(0, 2)
    found = clean(memory, remove=True)
    assert (found.unreferenced, [info.name for info in found.young]) == ((), [killed])
    with pytest.raises(BuildError, match="v0001 is a version of a dataset, which never changes"):
        full.build(f"{memory}/v0001")
    monkeypatch.setattr(cleaning, "AGE_S", -60.0)
    found = clean(memory, remove=True)
    assert [info.name for info in found.unreferenced] == [killed]
    assert len(found.unfinished) == 10
    assert full.build().built_shards == 3
    assert {*photos, ".tfprep/other"} <= {info.name for info in store.list()}
    full.build(local)
    assert (dict(clean(local).versions), clean(local).unfinished) == ({}, ())
    with pytest.raises(DatasetError, match="is not a dataset built by tfprep"):
        clean(local.parent)


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
    assert few.build(url).built_shards == 0


def test_an_end_at_every_request_of_a_build_over_an_older_dataset(full, memory, monkeypatch):
    """Each run ends at the next request that changes the store, as if it were killed there. Readers see the old dataset or the
    new one; the same build, started again, makes the new one."""
    full.build(memory)
    old = content(memory)
    full.change_recipe("seed=3", "seed=4")  # so that the description of the old recipe is removed in the end
    full.build()
    new = content(full.out)
    store = open_store(memory)
    before = {info.name: bytes(store.read(info.name)) for info in store.list()}
    left, put, delete = 0, objects.Store._put, objects.Store.delete

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
        store.delete([info.name for info in store.list()])
        for name, data in before.items():
            store.write(name, data)
        with monkeypatch.context() as patch:
            patch.setattr(objects.Store, "_put", counted(put))
            patch.setattr(objects.Store, "delete", counted(delete))
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


def test_of_two_builds_at_once_the_one_that_ends_last_publishes_nothing(full, memory):
    begun = []

    def overtaken(event):
        if event.name == "planned" and not begun:
            begun.append(full.build(memory))

    with pytest.raises(BuildError, match="another process published in the meantime, so this one did not"):
        full.build(memory, on_event=overtaken)
    full.build()
    assert content(memory) == content(full.out)
    assert full.build(memory).built_shards == 0
    assert not [info for info in open_store(memory).list() if "trial" in info.name]


def test_receipts_of_a_build_that_goes_on_after_another_one_began_are_not_published(full, memory):
    """The receipt of shard 0 is written again, as by a build with the older recipe that was stopped for a minute."""
    full.build(memory)
    published, store = bytes(open_store(memory).read("tfprep.json")), open_store(memory)
    names = [info.name for info in store.list() if "receipts/train-00000" in info.name]
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


def test_parts_in_any_order(full, memory):
    """Nothing is published before all parts are there."""
    full.build()
    local, full.out = full.out, memory
    assert (len(plan_build(full.recipe, memory, full.data)), open_store(memory).list()) == (6, [])
    full.part(2, 3)
    with pytest.raises(BuildError, match=r"nothing was published, shards are missing.*Run again, of 3 parts: 0,1"):
        full.finish()
    for part in (1, 0, 2):
        full.part(part, 3)
    with pytest.raises(DatasetError):
        open_dataset(memory)
    assert full.finish().built_shards == 0
    assert content(memory) == content(local)


# --- obstacles -------------------------------------------------------------------------------------------------------------


def test_stores_that_refuse(full, s3):
    s3.proxy.write_faults.append("403")
    with pytest.raises(
        StorageError, match=r"trial-\w+ cannot be written: the store refuses these credentials .*AWS_ACCESS"
    ):
        full.build(s3.new_url())
    with pytest.raises(
        StorageError, match=r"s3://no-such-bucket/x/.tfprep/trial-\w+ cannot be written: the store answers NoSuchBucket"
    ):
        full.build("s3://no-such-bucket/x")
    with pytest.raises(BuildError, match=r"can only be read; build into a folder, or to s3://"):
        full.build(s3.endpoint)


def test_a_full_scratch_disk(site, s3, tmp_path, monkeypatch):
    full = site.fill(8, 2)
    full.change_recipe('shards={"train": 4, "val": 2}', 'shards={"train": 1, "val": 1}')
    full.build()
    url, local = s3.new_url(), full.out
    full.out = url
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    done = run(full.driver(0, FILES_OF_4000_BYTES), env={**os.environ, "TMPDIR": str(tmp_path)})
    assert "File too large; nothing was published. Make room, then run the same command again" in done.stderr
    assert [path.name for path in tmp_path.rglob("build-*")] == []
    with layout.scratch_folder() as of_another_build:
        killed = of_another_build.with_name("build-killed")  # whose lock ended with its process
        killed.mkdir()
        full.build(url)
        assert (killed.exists(), of_another_build.exists()) == (False, True)
    assert content(url) == content(local)
    store = open_store(url)
    notes = b"".join(bytes(store.read(info.name)) for info in store.list() if info.name[0] == ".")
    assert s3.environment["AWS_SECRET_ACCESS_KEY"] not in done.stderr + notes.decode(errors="replace")
