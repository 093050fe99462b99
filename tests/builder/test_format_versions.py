"""A dataset of format version 1 stays 1 or becomes 2, always as a whole."""

from __future__ import annotations

import json
from dataclasses import replace

import pyarrow.parquet as pq
import pytest

from tfprep.builder.layout import Layout
from tfprep.builder.publication.publish import write_index_file
from tfprep.builder.receipts import read_receipt
from tfprep.builder.repair import repair
from tfprep.dataset import open_dataset, read_manifest
from tfprep.dataset.digests import digest_of
from tfprep.dataset.locations import without_crcs
from tfprep.dataset.verify import verify


@pytest.fixture
def old(full):
    """A dataset as version 1 has it: no `locations.bin`, and a row group for each shard."""
    full.build()
    out, layout = full.out, Layout(full.out)
    manifest = replace(without_crcs(read_manifest(out)), format_version=1)
    places = [(name, shard) for name, info in manifest.splits.items() for shard in range(info.shards)]
    write_index_file(layout, manifest, [read_receipt(layout, *place) for place in places]).replace(
        out / "index.parquet"
    )
    files = {name: digest_of(out / name) for name in manifest.files if name != "locations.bin"}
    text = replace(manifest, files=files).to_json()
    for path in (out / "tfprep.json", layout.manifest_copy):
        path.write_text(text)
    (out / "locations.bin").unlink()
    assert list(verify(out)) == []
    return full


def test_a_row_group_is_a_shard(old):
    assert pq.ParquetFile(old.out / "index.parquet").num_row_groups == 2 * 4 + 2


@pytest.mark.parametrize("changed", [False, True])
def test_a_build_makes_it_version_2(old, tools, changed):
    if changed:
        old.add("train/cat/000", 77)
    built = old.build()
    assert built.built_shards == changed
    assert open_dataset(old.out).manifest.format_version == 2
    assert tools["digests"](old.out) == old.from_nothing()
    tools["check_whole"](old.out)


def test_a_repair_keeps_the_version(old, tools):
    before = tools["digests"](old.out)
    for name in ("index.parquet", "dataset_info.json", "tiny-val.tfrecord-00001-of-00002"):
        (old.out / name).unlink()
    assert not repair(old.out, old.recipe, old.data, workers=0).lost
    assert tools["digests"](old.out) == before


def test_a_manifest_that_is_built_anew_makes_all_of_it_version_2(old, tools):
    for path in (old.out / "tfprep.json", Layout(old.out).manifest_copy):
        path.unlink()
    assert not repair(old.out, old.recipe, old.data, workers=0).lost
    assert json.loads((old.out / "tfprep.json").read_bytes())["format_version"] == 2
    assert list(verify(old.out)) == []
    tools["check_whole"](old.out)
