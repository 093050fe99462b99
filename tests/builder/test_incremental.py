"""Only what changed is built again, and the result equals a build from nothing; a reader never sees a mixed dataset."""

import errno
import json
import os
import re
import shutil
import sys
import tarfile

import numpy as np
import pytest
from PIL import Image

from tests.builder.conftest import check_whole, digests
from tfprep.builder import BuildOptions, build, build_part, explain, finish_build, plan_build
from tfprep.dataset import open_dataset
from tfprep.errors import BuildError
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
def test_only_touched_shards_are_built(full, change):
    full.build()
    before = shards_of(full)
    reason, keys = change(full)
    assert dry_run(full) == reason
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
    assert digests(full.out) == full.from_nothing()
    assert dry_run(full) == "nothing to build: 6 shards up to date"


def _replaced(site):
    """Writes other pixels to a file of the same name."""
    path = site.data / "train/cat/000.jpg"
    with Image.open(path) as image:
        turned = image.rotate(180)
    turned.save(path, quality=92)


def _renamed(site):
    for suffix in (".jpg", ".mask.png"):
        (site.data / f"train/cat/000{suffix}").rename(site.data / f"train/cat/zzz{suffix}")


def _other_label(site):
    for suffix in (".jpg", ".mask.png"):
        (site.data / f"train/cat/000{suffix}").rename(site.data / f"train/dog/000{suffix}")


def _another_class(site):
    site.add("train/ant/000", 900)


MATRIX = {
    "file replaced": (_replaced, 1),
    "file renamed": (_renamed, None),
    "label of one sample": (_other_label, None),
    "one class more": (_another_class, 6),
    "class name of the masks": (lambda site: site.change_recipe('"void")', '"nothing")'), 6),
    "seed": (lambda site: site.change_recipe("seed=3", "seed=4"), 6),
    "an op's option": (lambda site: site.change_recipe("degrees=10", "degrees=12"), 6, "geometry[1].degrees: 10 -> 12"),
    "one op less": (lambda site: site.change_recipe("augment.Flip(p=0.5), ", ""), 6),
    "codec": (lambda site: site.change_recipe("codecs.Jpeg(90)", "codecs.Png()"), 6),
    "codec's quality": (lambda site: site.change_recipe("codecs.Jpeg(90)", "codecs.Jpeg(91)"), 6),
    "derived input": (lambda site: site.change_recipe("target=1", "target=2"), 6),
    "variants": (lambda site: site.change_recipe('"train": 2', '"train": 3'), 4, "variants: 2 -> 3"),
    "fill": (lambda site: site.change_recipe('fill={"mask": 2}', 'fill={"mask": 1}'), 6),
}


@pytest.mark.parametrize("name", MATRIX)
def test_after_any_change_the_result_equals_a_build_from_nothing(full, name):
    change, built_shards, *reason = MATRIX[name]
    full.build()
    before = digests(full.out)
    change(full)
    if reason:
        assert dry_run(full) == f"{built_shards} of 6 shards: the recipe changed: {reason[0]}"
    summary = full.build()
    assert summary.built_shards == (built_shards or summary.built_shards) > 0
    assert digests(full.out) == full.from_nothing() != before


def test_a_file_system_without_hard_links_gets_copies(full, monkeypatch):
    def refused(*arguments, **options):
        raise OSError(errno.EPERM, "Operation not permitted")

    full.build()
    monkeypatch.setattr(os, "link", refused)
    full.change_recipe("seed=3", "seed=4")
    full.build()
    assert digests(full.out) == full.from_nothing()


def test_a_touched_file_of_equal_content_builds_nothing(full):
    full.build()
    before = shards_of(full)
    os.utime(full.data / "train/cat/000.jpg", (5, 5))
    assert dry_run(full) == "1 of 6 shards: 1 sample changed"
    assert full.build().built_shards == 0
    assert shards_of(full) == before
    assert dry_run(full) == "nothing to build: 6 shards up to date"


def test_an_edited_row_of_a_table_builds_its_shard(site):
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
    assert digests(site.out) == site.from_nothing()
    ages = {sample["name"]: sample["age"] for sample in open_dataset(site.out).samples("train")}
    assert ages["n3"] == 99


OWN = """
FACTOR = 2.0

def scaled(image):
    return image[:, :, 0] * FACTOR

class Lift:
    LEAST = 1

    def __call__(self, sample, generator):
        return (scaled(sample["image"]) + self.LEAST).astype(np.float32)

RECIPE = Recipe("""


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("FACTOR = 2.0", "FACTOR = 3.0", "constant FACTOR: 2.0 -> 3.0"),
        ("LEAST = 1", "LEAST = 5", "class Lift: LEAST: 1 -> 5"),
        ("image[:, :, 0]", "image[:, :, 1]", "function scaled changed"),
        ("+ self.LEAST", "- self.LEAST", "function Lift.__call__ changed"),
        ("Distance(mask", "SignedDistance(mask", "derive['distance']: Distance -> SignedDistance"),
        ("void", "Void", "the classes of the source"),
    ],
)
def test_changed_user_code_is_built_again(full, old, new, reason):
    full.change_recipe("RECIPE = Recipe(", OWN)
    full.change_recipe("derive={", 'derive={"lift": Lift(), ')
    full.change_recipe("store={", 'store={"lift": codecs.Raw(), ')
    full.build()
    full.change_recipe(old, new)
    assert dry_run(full) == f"6 of 6 shards: the recipe changed: {reason}"
    assert full.build().built_shards == 6
    assert digests(full.out) == full.from_nothing()
    assert dry_run(full) == "nothing to build: 6 shards up to date"


def test_comments_build_nothing(full):
    full.change_recipe("RECIPE = Recipe(", OWN)
    full.change_recipe("derive={", 'derive={"lift": Lift(), ')
    full.build()
    full.change_recipe("    LEAST = 1", "    # at least\n    LEAST = 1")
    assert full.build().built_shards == 0


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('name="tiny"', 'name="other"'),
        ('"train": 4, "val": 2', '"train": 3, "val": 1'),
        ('"train": 2', '"train": 1'),
        (', "label": codecs.Scalar()', ""),
        ("seed=3", "seed=4"),
    ],
)
def test_files_that_no_longer_belong_to_the_dataset_are_deleted(full, old, new):
    full.build()
    full.change_recipe(old, new)
    full.build(replace=True)
    assert digests(full.out) == full.from_nothing()
    check_whole(full.out)


def _other_name(site):
    site.change_recipe('name="tiny"', 'name="other"')
    return {}, "this recipe builds another one, 'other'"


def _limit(site):
    return {"limit": 7}, "the limit would leave 7 samples"


def _other_data(site):
    site.data = site.data.with_name("elsewhere")
    for number in range(4):
        site.add(f"train/{('cat', 'dog')[number % 2]}/other{number}", number)
        site.add(f"val/{('cat', 'dog')[number % 2]}/other{number}", number)
    return {}, "none of its samples is among those to build; is --data the right folder?"


@pytest.mark.parametrize("change", [_other_name, _limit, _other_data])
def test_another_dataset_is_not_replaced_silently(full, change):
    full.build()
    before = digests(full.out)
    options, reason = change(full)
    message = (
        rf"out holds the finished dataset 'tiny' of 30 samples \(train, val\), and {re.escape(reason)}.* --replace"
    )
    with pytest.raises(BuildError, match=message):
        plan_build(full.recipe, full.out, full.data, **options)
    with pytest.raises(BuildError, match=message):
        full.build(**options)
    assert digests(full.out) == before
    assert plan_build(full.recipe, full.out, full.data, replace=True, **options)
    summary = full.build(replace=True, **options)
    assert summary.built_samples == summary.samples
    fresh = full.out.with_name("fresh")
    full.build(fresh, **options)
    assert digests(full.out) == digests(fresh)


def test_a_limited_build_grows_into_the_whole_dataset(full):
    full.build(limit=5)
    full.build(limit=9)
    full.build()
    assert digests(full.out) == full.from_nothing()


def test_other_library_versions_build_everything_again(full, monkeypatch):
    full.build()
    from tfprep.builder import run
    from tfprep.builder.planning import plan, state

    installed = plan.maker_versions()
    newer = {**installed, "pillow": "99.1"}
    for module in (plan, state, run):
        monkeypatch.setattr(module, "maker_versions", lambda: newer)
    assert dry_run(full) == f"6 of 6 shards: built with other versions: pillow {installed['pillow']} -> 99.1"
    assert full.build().built_shards == 6
    assert dry_run(full) == "nothing to build: 6 shards up to date"


def test_a_missing_or_truncated_shard_is_built_again(full):
    full.build()
    expected = digests(full.out)
    (full.out / "tiny-train.tfrecord-00001-of-00004").unlink()
    shard = full.out / "tiny-val.tfrecord-00000-of-00002"
    shard.write_bytes(shard.read_bytes()[:-1])
    assert dry_run(full) == "2 of 6 shards: not built yet"
    full.build()
    assert digests(full.out) == expected


@pytest.mark.parametrize("name", ["tfprep.json", "index.parquet", "dataset_info.json", "rejects.jsonl"])
def test_missing_metadata_is_written_again(full, name):
    full.build()
    expected = digests(full.out)
    (full.out / name).unlink()
    assert full.build().built_shards == 0
    assert digests(full.out) == expected


def test_a_change_that_is_taken_back_before_it_is_published(full):
    """Files of equal size and an older receipt: shards that were built in between must not be used in place of the earlier
    ones."""
    full.change_recipe("codecs.Jpeg(90)", "codecs.Raw()")
    full.change_recipe('"mask": codecs.Png(), ', "")
    full.build()
    expected = digests(full.out)
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
    assert digests(full.out) == expected
    check_whole(full.out)


def test_a_file_that_could_not_be_read_is_tried_again(full, monkeypatch):
    from tfprep.sources import raw

    real = os.open

    def refused(path, flags, *rest, **options):
        if str(path).endswith("train/cat/000.jpg"):
            raise PermissionError(13, "Permission denied")
        return real(path, flags, *rest, **options)

    monkeypatch.setattr(raw.os, "open", refused)
    full.build()
    (reject,) = full.rejects()
    assert (reject["key"], reject["stage"]) == ("train/cat/000.jpg", "read")
    assert "Permission denied" in reject["error"]
    assert dry_run(full) == "1 of 6 shards: an input could not be read last time"
    monkeypatch.undo()
    assert full.build().rejects == 0
    assert digests(full.out) == full.from_nothing()


def test_a_build_with_rejects_is_up_to_date_too(full):
    (full.data / "train/cat/000.mask.png").unlink()
    (full.data / "train/dog/001.jpg").write_text("not an image")
    assert full.build().rejects == 2
    assert dry_run(full) == "nothing to build: 6 shards up to date"
    assert full.build().built_shards == 0


def test_a_shard_left_without_samples(full):
    full.build()
    for path in (full.data / "val").rglob("*.jpg"):
        if sample_hash(3, path.relative_to(full.data).as_posix()) % 2 == 0:
            path.unlink()
    full.build()
    assert next(file.records for file in open_dataset(full.out).split("val").files[0]) == 0
    check_whole(full.out)
    assert digests(full.out) == full.from_nothing()


@pytest.mark.parametrize("parts", [None, 2])
def test_a_dataset_that_outgrew_its_shards_says_so_and_is_resharded(site, monkeypatch, parts):
    """One sample first, 24 later: one shard and one worker for ever, unless the number of shards may change once."""
    monkeypatch.setattr("tfprep.builder.planning.plan._LEAST_SAMPLES", 4)
    site.change_recipe('    shards={"train": 4, "val": 2},\n', "")
    site.add("train/cat/000", 0)
    site.build()
    site.fill(train=24, val=0)
    events = []
    assert site.build(on_event=events.append).shards == 1
    (warning,) = [event.text for event in events if event.name == "warning" and "shards" in event.text]
    assert "'train' has 1 instead of 4 shards" in warning
    assert "--reshard" in warning
    before = digests(site.out)
    assert explain(plan_build(site.recipe, site.out, site.data, reshard=True)).startswith("4 of 4 shards: ")
    assert digests(site.out) == before
    options = BuildOptions(workers=0, reshard=True)
    if parts is None:
        assert build(site.recipe, site.out, site.data, options=options).built_shards == 4
    else:
        for part in range(parts):
            build_part(site.recipe, site.out, site.data, part=part, parts=parts, options=options)
        finish_build(site.recipe, site.out, site.data, options=BuildOptions(workers=0))
    assert digests(site.out) == site.from_nothing()
    assert check_whole(site.out).split("train").shards == 4
    again = []
    assert site.build(on_event=again.append).built_shards == 0, "later builds keep the number"
    assert not [event for event in again if "reshard" in event.text]


def test_samples_that_stay_in_their_shard_are_built_anew_under_another_number_of_shards(site, monkeypatch):
    """The content of a shard may be the same: its name is not."""
    site.change_recipe('    shards={"train": 4, "val": 2},\n', "")
    site.add("train/cat/000", 0)
    site.build()
    monkeypatch.setattr("tfprep.builder.planning.plan._default_shards", lambda *arguments: 2)
    site.build(reshard=True)
    assert digests(site.out) == site.from_nothing()


# --- files of the same size and time ---------------------------------------------------------------------------------


@pytest.fixture
def bitmaps(site):
    """Twelve uncompressed images of one size and one time, as an archive unpacks them."""
    site.recipe.write_text(
        "from tfprep import Recipe, codecs, sources\n"
        "RECIPE = Recipe('bitmaps', sources.Folder(), {'image': codecs.Raw(), 'label': codecs.Scalar()}, shards={'train': 3})\n"
    )
    for number in range(12):
        path = site.data / ("cat", "dog")[number % 2] / f"{number}.bmp"
        path.parent.mkdir(exist_ok=True)
        Image.fromarray(np.random.default_rng(number).integers(0, 256, (8, 9, 3), np.uint8)).save(path)
        os.utime(path, ns=(10**18, 10**18))
    return site


def _moved(site):
    """Exchanges two files of one class."""
    one, two, other = (site.data / "cat" / name for name in ("0.bmp", "2.bmp", "other"))
    one.rename(other), two.rename(one), other.rename(two)


def _written_over(site):
    """Writes other pixels into a file and sets its time back, as `cp -p` does."""
    path = site.data / "cat/4.bmp"
    path.write_bytes(path.read_bytes()[:-9] + bytes(range(9)))
    os.utime(path, ns=(10**18, 10**18))


@pytest.mark.parametrize("change", [_moved, _written_over])
def test_another_file_of_the_same_size_and_time_is_seen(bitmaps, change):
    bitmaps.build()
    before = digests(bitmaps.out)
    change(bitmaps)
    assert bitmaps.build().built_shards
    assert digests(bitmaps.out) == bitmaps.from_nothing() != before
    assert dry_run(bitmaps) == "nothing to build: 3 shards up to date"


def test_an_archive_that_is_packed_anew_with_its_old_time_is_seen(bitmaps):
    archive = bitmaps.data.with_name("packed") / "all.tar"
    archive.parent.mkdir()

    def pack():
        with tarfile.open(archive, "w") as tar:
            for path in sorted(bitmaps.data.rglob("*.bmp")):
                tar.add(path, path.relative_to(bitmaps.data))
        os.utime(archive, ns=(10**18, 10**18))

    pack()
    bitmaps.change_recipe("sources.Folder()", "sources.Archives('all.tar')")
    bitmaps.change_recipe(", 'label': codecs.Scalar()", "")
    folder, bitmaps.data = bitmaps.data, archive.parent
    bitmaps.build()
    bitmaps.data = folder
    _moved(bitmaps)
    pack()
    bitmaps.data = archive.parent
    bitmaps.build()
    assert digests(bitmaps.out) == bitmaps.from_nothing()


opened: list[str] = []
sys.addaudithook(lambda event, arguments: opened.append(str(arguments[0])) if event == "open" else None)


def test_a_changed_mode_reads_those_files_and_builds_nothing(bitmaps):
    bitmaps.build()
    inodes, before = shards_of(bitmaps), digests(bitmaps.out)
    for name in ("cat/0.bmp", "dog/1.bmp"):
        (bitmaps.data / name).chmod(0o640)
    assert dry_run(bitmaps).endswith("2 samples changed")
    opened.clear()
    assert bitmaps.build().built_shards == 0
    assert sorted(path[-9:] for path in opened if path.endswith(".bmp")) == ["cat/0.bmp", "dog/1.bmp"]
    assert shards_of(bitmaps) == inodes
    assert digests(bitmaps.out) == before
    assert dry_run(bitmaps) == "nothing to build: 3 shards up to date"


def test_parts_may_have_copies_of_the_raw_files(bitmaps):
    """Copies keep sizes and times; their inodes are others, and tell no part that its files differ."""
    expected = bitmaps.from_nothing()
    copy = bitmaps.data.with_name("copy")
    shutil.copytree(bitmaps.data, copy)
    options = BuildOptions(workers=0)
    for part, data in enumerate((bitmaps.data, copy, copy)):
        assert build_part(bitmaps.recipe, bitmaps.out, data, part=part, parts=3, options=options).built_shards == 1
    finish_build(bitmaps.recipe, bitmaps.out, bitmaps.data, options=options)
    assert digests(bitmaps.out) == expected
    assert bitmaps.build().built_shards == 0
