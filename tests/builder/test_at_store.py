"""Builds into an object store: the bytes of a local build, whatever the store, other builds and kills do meanwhile."""

from __future__ import annotations

import hashlib
import json

import pytest

from tfprep.dataset import open_dataset
from tfprep.dataset.verify import verify
from tfprep.storage.store import open_store

pytest.importorskip("obstore")


def content(out) -> dict[str, object]:
    """What readers get: by split, variant and shard the digest of the shard and of its `.idx`; the index; the manifest's rest."""
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
    index = hashlib.sha256(store.read(data.manifest.index)).hexdigest()
    return {**digests, "index": index, "rejects": bytes(store.read("rejects.jsonl")), "rest": rest}


@pytest.fixture(params=["memory", "s3"])
def url(request, tmp_path):
    if request.param == "memory":
        return f"memory://{tmp_path.name}/inside"
    return request.getfixturevalue("s3").new_url()


def test_the_bytes_are_those_of_a_local_build(full, url):
    (full.data / "train/cat/000.jpg").write_bytes(b"no image")
    full.build()
    summary = full.build(url, workers=0)
    assert content(url) == content(full.out)
    assert list(verify(url)) == []
    assert (str(summary.out), summary.built_shards, summary.rejects) == (url, 6, 1)
    assert full.build(url).built_shards == 0
    before = {info.name for info in open_store(url).list()}
    full.add("train/cat/900", 900)
    full.build()
    assert full.build(url).built_shards == 1
    assert content(url) == content(full.out)
    assert before - {info.name for info in open_store(url).list()} != before
