"""What changed is built anew, nothing else, and the outcome is that of a build from nothing; a reader never sees half."""

from __future__ import annotations

import json
import os

import numpy as np
import pytest
from PIL import Image

from tfprep.build import build, explain, plan_build
from tfprep.dataset import Dataset
from tfprep.seeding import sample_hash


def shards_of(site):
    return {path.name: path.stat().st_ino for path in site.out.iterdir() if ".tfrecord-" in path.name}


def dry_run(site):
    return explain(plan_build(site.recipe, site.out, site.data))


def test_dry_run_of_nothing_built_writes_nothing(full):
    assert dry_run(full) == "6 of 6 shards: not built yet"
    assert not full.out.exists()


def _changed(site):
    site.add("train/cat/000", 77, mask=False)
    return "1 of 6 shards: 1 sample changed", {"train/cat/000.jpg"}


def _mask_changed(site):
    Image.fromarray(np.full((24, 28), 1, np.uint8)).save(site.data / "train/dog/001.mask.png")
    return "1 of 6 shards: 1 sample changed", {"train/dog/001.jpg"}


def _added(site):
    site.add("train/dog/new", 5)
    return "1 of 6 shards: 1 sample added", {"train/dog/new.jpg"}


def _removed(site):
    (site.data / "train/dog/003.jpg").unlink()
    return "1 of 6 shards: 1 sample removed", {"train/dog/003.jpg"}


def _two(site):
    _changed(site)
    site.add("val/cat/new", 6)
    return "2 of 6 shards: 1 sample changed, 1 added", {"train/cat/000.jpg", "val/cat/new.jpg"}


@pytest.mark.parametrize("change", [_changed, _mask_changed, _added, _removed, _two])
def test_only_touched_shards_are_built(full, tools, change):
    full.build()
    before = shards_of(full)
    told, keys = change(full)
    assert dry_run(full) == told
    summary = full.build()
    touched = {(key.split("/")[0], sample_hash(3, key) % (4 if key.startswith("train") else 2)) for key in keys}
    assert summary.built_shards == len(touched)
    after = shards_of(full)
    changed = {name for name in after if after[name] != before.get(name)}
    assert changed == {
        f"tiny-{split}{variant}.tfrecord-{shard:05d}-of-{shards:05d}{suffix}"
        for split, shard in touched
        for shards, variants in [(4, ("", "_v1")) if split == "train" else (2, ("",))]
        for variant in variants
        for suffix in ("", ".idx")
    }
    assert tools["digests"](full.out) == full.from_nothing()
    assert dry_run(full) == "nothing to build: 6 shards up to date"


def test_a_touched_file_of_equal_content_builds_nothing(full):
    full.build()
    before = shards_of(full)
    os.utime(full.data / "train/cat/000.jpg", (5, 5))
    assert dry_run(full) == "1 of 6 shards: 1 sample changed"
    assert full.build().built_shards == 0
    assert shards_of(full) == before
    assert dry_run(full) == "nothing to build: 6 shards up to date"


def test_an_edited_row_of_a_table_builds_its_shard(site, tools):
    for number in range(12):
        site.add(f"{number:02d}", number, mask=False)
    rows = [{"path": f"{number:02d}.jpg", "age": number, "name": f"n{number}"} for number in range(12)]
    table = site.data / "table.jsonl"
    table.write_text("".join(json.dumps(row) + "\n" for row in rows))
    site.recipe.write_text(
        "from tfprep import Recipe, codecs, sources\n"
        'RECIPE = Recipe("rows", sources.Table("table.jsonl", image="path", '
        'fields={"age": ("scalar", "age"), "name": ("text", "name")}), '
        '{"image": codecs.Jpeg(), "age": codecs.Scalar(), "name": codecs.Text()}, shards={"train": 4})'
    )
    site.build()
    rows[3]["age"] = 99
    table.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert dry_run(site) == "1 of 4 shards: 1 sample changed"
    assert site.build().built_shards == 1
    assert tools["digests"](site.out) == site.from_nothing()
    ages = {sample["name"]: sample["age"] for sample in Dataset.open(site.out).samples("train")}
    assert ages["n3"] == 99


def test_a_changed_recipe_builds_what_it_changes(full, tools):
    full.build()
    full.change_recipe("Rotate(degrees=10)", "Rotate(degrees=12)")
    assert dry_run(full) == "6 of 6 shards: the recipe or the classes changed"
    full.build()
    assert tools["digests"](full.out) == full.from_nothing()


def test_more_variants_build_the_split_that_gets_them(full, tools):
    full.build()
    before = shards_of(full)
    full.change_recipe('variants={"train": 2}', 'variants={"train": 3}')
    assert dry_run(full) == "4 of 6 shards: the recipe or the classes changed"
    assert full.build().built_shards == 4
    after = shards_of(full)
    assert {name: after[name] for name in after if "-val." in name} == {n: before[n] for n in before if "-val." in n}
    assert tools["digests"](full.out) == full.from_nothing()
    full.change_recipe('variants={"train": 3}', 'variants={"train": 1}')
    full.build()
    assert not [name for name in shards_of(full) if "_v" in name]
    assert tools["digests"](full.out) == full.from_nothing("fresh again")


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('name="tiny"', 'name="other"'),
        ('"train": 4, "val": 2', '"train": 3, "val": 1'),
        (', "label": codecs.Scalar()', ""),
        ("seed=3", "seed=4"),
    ],
)
def test_files_that_no_longer_belong_go(full, tools, old, new):
    full.build()
    full.change_recipe(old, new)
    full.build()
    assert tools["digests"](full.out) == full.from_nothing()
    tools["check_whole"](full.out)


def test_other_library_versions_build_all_anew(full, tools, monkeypatch):
    full.build()
    from tfprep.build import plan, run, state, versions

    installed = versions.maker_versions()
    newer = {**installed, "pillow": "99.1"}
    for module in (plan, state, run):
        monkeypatch.setattr(module, "maker_versions", lambda: newer)
    assert dry_run(full) == f"6 of 6 shards: built with other versions: pillow {installed['pillow']} -> 99.1"
    assert full.build().built_shards == 6
    assert dry_run(full) == "nothing to build: 6 shards up to date"


def test_a_lost_or_cut_shard_is_built_again(full, tools):
    full.build()
    expected = tools["digests"](full.out)
    (full.out / "tiny-train.tfrecord-00001-of-00004").unlink()
    shard = full.out / "tiny-val.tfrecord-00000-of-00002"
    shard.write_bytes(shard.read_bytes()[:-1])
    assert dry_run(full) == "2 of 6 shards: not built yet"
    full.build()
    assert tools["digests"](full.out) == expected


@pytest.mark.parametrize("name", ["tfprep.json", "index.parquet", "dataset_info.json", "rejects.jsonl"])
def test_lost_metadata_is_written_again(full, tools, name):
    full.build()
    expected = tools["digests"](full.out)
    (full.out / name).unlink()
    assert full.build().built_shards == 0
    assert tools["digests"](full.out) == expected


def test_a_change_that_is_taken_back_before_it_is_published(full, tools):
    """Files of equal size under an older receipt: what was staged meanwhile must not pass for what was there before."""
    full.change_recipe("codecs.Jpeg(90)", "codecs.Raw()")
    full.change_recipe('"mask": codecs.Png(), ', "")
    full.build()
    expected = tools["digests"](full.out)
    old = (full.data / "train/cat/000.jpg").read_bytes()
    times = (full.data / "train/cat/000.jpg").stat()
    full.add("train/cat/000", 99, mask=False)
    (full.data / "val/cat/broken.jpg").write_text("text")
    with pytest.raises(Exception, match=r"rejected"):
        full.build(max_bad=0)
    (full.data / "val/cat/broken.jpg").unlink()
    (full.data / "train/cat/000.jpg").write_bytes(old)
    os.utime(full.data / "train/cat/000.jpg", ns=(times.st_atime_ns, times.st_mtime_ns))
    full.build()
    assert tools["digests"](full.out) == expected
    tools["check_whole"](full.out)


def test_a_file_that_could_not_be_read_is_tried_again(full, tools, monkeypatch):
    from tfprep.sources import source

    real = os.open

    def refused(path, flags, *rest, **options):
        if str(path).endswith("train/cat/000.jpg"):
            raise PermissionError(13, "Permission denied")
        return real(path, flags, *rest, **options)

    monkeypatch.setattr(source.os, "open", refused)
    full.build()
    (reject,) = full.rejects()
    assert (reject["key"], reject["stage"]) == ("train/cat/000.jpg", "read")
    assert "Permission denied" in reject["error"]
    assert dry_run(full) == "1 of 6 shards: an input could not be read last time"
    monkeypatch.undo()
    assert full.build().rejects == 0
    assert tools["digests"](full.out) == full.from_nothing()


def test_a_build_with_rejects_is_up_to_date_too(full):
    (full.data / "train/cat/000.mask.png").unlink()
    (full.data / "train/dog/001.jpg").write_text("not an image")
    assert full.build().rejects == 2
    assert dry_run(full) == "nothing to build: 6 shards up to date"
    assert full.build().built_shards == 0


def test_a_shard_left_without_samples(full, tools):
    full.build()
    for path in (full.data / "val").rglob("*.jpg"):
        if sample_hash(3, path.relative_to(full.data).as_posix()) % 2 == 0:
            path.unlink()
    full.build()
    assert next(file.records for file in Dataset.open(full.out).split("val").files[0]) == 0
    tools["check_whole"](full.out)
    assert tools["digests"](full.out) == full.from_nothing()


def test_the_recipe_as_an_object_or_as_a_file_is_one_dataset(full):
    from tfprep.recipe_file import load_recipe

    full.build()
    assert build(load_recipe(full.recipe), full.out, full.data).built_shards == 0
