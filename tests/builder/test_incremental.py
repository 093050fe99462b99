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
from tfprep.dataset import open_dataset
from tfprep.errors import BuildError, TooManyRejectedError
from tfprep.seeding import sample_hash

NOTHING = "nothing to build: 6 shards up to date"


def shards_of(site):
    return {path.name: path.stat().st_ino for path in (site.out / "current").iterdir() if ".tfrecord-" in path.name}


def moved(site, old, new):
    """Renames the files of a sample."""
    for suffix in (".jpg", ".mask.png"):
        (site.data / f"{old}{suffix}").rename(site.data / f"{new}{suffix}")


def recipe(*pairs):
    return lambda site: site.change_recipe(*pairs)


OWN = """
FACTOR = 2.0

def scaled(image):
    return image[:, :, 0] * FACTOR

class Lift:
    LEAST = 1

    def __call__(self, sample, generator):
        return (scaled(sample["image"]) + self.LEAST).astype(np.float32)
"""


@pytest.fixture
def own(full):
    """The site with a derived input of code of its own, built."""
    full.define(OWN)
    full.change_recipe("derive={", 'derive={"lift": Lift(), ', "store={", 'store={"lift": codecs.Raw(), ')
    full.build()
    return full


CHANGED = "1 of 6 shards: 1 sample changed"
RECIPE = "6 of 6 shards: the recipe changed: "
CODE = RECIPE + "module of the recipe changed"
CHANGES = [
    (lambda site: site.add("train/cat/000", 77, mask=False), CHANGED, ["train/cat/000"]),
    (lambda site: site.mask("train/dog/001", 1), CHANGED, ["train/dog/001"]),
    (lambda site: site.add("train/dog/new", 5), "1 of 6 shards: 1 sample added", ["train/dog/new"]),
    (lambda site: (site.data / "train/dog/003.jpg").unlink(), "1 of 6 shards: 1 sample removed", ["train/dog/003"]),
    (lambda site: (site.add("train/cat/000", 77), site.add("val/cat/new", 6)),
     "2 of 6 shards: 1 sample changed, 1 added", ["train/cat/000", "val/cat/new"]),
    (lambda site: moved(site, "train/cat/000", "train/cat/zzz"), None, ["train/cat/000", "train/cat/zzz"]),
    (lambda site: moved(site, "train/cat/000", "train/dog/000"), None, ["train/cat/000", "train/dog/000"]),
    (lambda site: site.add("train/ant/000", 900), None, 6),
    (recipe('"void")', '"Void")'), RECIPE + "the classes of the source", 6),
    (recipe("seed=3", "seed=4"), RECIPE, 6),
    (recipe("degrees=10", "degrees=12"), RECIPE + "geometry[1].degrees: 10 -> 12", 6),
    (recipe("codecs.Jpeg(90)", "codecs.Png()"), RECIPE, 6),
    (recipe("Distance(mask", "SignedDistance(void=2, mask"), RECIPE + "derive['distance']: Distance -> SignedDistance", 6),
    (recipe('"train": 2', '"train": 3'), "4 of 6 shards: the recipe changed: variants: 2 -> 3", 4),
    (recipe('fill={"mask": 2}', 'fill={"mask": 1}'), RECIPE, 6),
    (recipe('"train": 2', '"train": 1'), None, 4),
    (recipe('"train": 4, "val": 2', '"train": 3, "val": 1'), None, 4),
    (recipe(', "label": codecs.Scalar()', ""), None, 6),
    (recipe("FACTOR = 2.0", "FACTOR = 3.0"), CODE, 6),
    (recipe("    LEAST = 1", "    # at least\n    LEAST = 1"), NOTHING, []),
]  # fmt: skip


@pytest.mark.filterwarnings(
    "ignore:.*only augmented variants are changed", "ignore:label. the class 'cat' was number 0"
)
@pytest.mark.parametrize(("change", "due", "keys"), CHANGES)
def test_after_any_change_only_what_it_touches_is_built_and_equals_a_build_from_nothing(own, change, due, keys):
    """`keys` name the samples whose shards are built, or are the number of shards."""
    before, files = digests(own.out), shards_of(own)
    change(own)
    assert own.due().startswith(due or "")
    if due and due != RECIPE:
        assert own.due() == due
    summary = own.build()
    if isinstance(keys, int):
        assert summary.built_shards == keys
    else:
        shards = {"train": 4, "val": 2}
        hashes = {key: sample_hash(3, f"{key}.jpg") % shards[key.split("/")[0]] for key in keys}
        touched = {(key.split("/")[0], shard) for key, shard in hashes.items()}
        assert summary.built_shards == len(touched)
        assert {name for name, inode in shards_of(own).items() if inode != files.get(name)} == {
            f"tiny-{split}{variant}.tfrecord-{shard:05d}-of-{shards[split]:05d}{suffix}"
            for split, shard in touched
            for variant in (("", "_v1") if split == "train" else ("",))
            for suffix in ("", ".idx")
        }
    assert digests(own.out) == own.from_nothing()
    assert (digests(own.out) != before) == (due != NOTHING)
    assert own.due().startswith("nothing to build: ")


def test_other_code_is_accepted_for_the_shards_that_differ_in_nothing_else(own, reports):
    """An option that changed with the code is built."""
    before, files = digests(own.out), shards_of(own)
    own.change_recipe("FACTOR = 2.0", "FACTOR = 2.0 + 0")
    own.add("train/dog/new", 5)
    events = []
    assert own.due(accept_code=True) == CODE.replace("6", "1", 1)
    assert own.build(accept_code=True, on_event=events.append).built_shards == 1
    assert "5 shards are kept as they are although" in "".join(event.text for event in events if event.name == "code")
    assert own.due() == NOTHING
    new = [name for name, inode in shards_of(own).items() if inode != files.get(name)]
    assert len(new) == 4, "two variants, with their offsets"
    assert "5 shards were built with other code" in (own.out / "current/report.html").read_text()
    assert digests(own.out) == own.from_nothing()
    os.utime(own.data / "train/cat/000.jpg")
    assert own.build().built_shards == 0, "the content decides, also of what other code has built"
    own.change_recipe("FACTOR = 2.0 + 0", "FACTOR = 3.0")
    assert own.due() == CODE
    own.change_recipe("seed=3", "seed=4")
    assert own.build(accept_code=True).built_shards == 6
    assert digests(own.out) == own.from_nothing() != before
    assert "other code" not in (own.out / "current/report.html").read_text()


@pytest.mark.parametrize("answer", [True, False])
def test_a_rebuild_for_code_only_is_confirmed_first(own, answer):
    before, questions = digests(own.out), []
    own.change_recipe("FACTOR = 2.0", "FACTOR = 3.0")

    def confirm(text):
        questions.append(text)
        return answer

    if answer:
        assert own.build(confirm=confirm).built_shards == 6
    else:
        with pytest.raises(BuildError, match="nothing was built, because the code changed"):
            own.build(confirm=confirm)
        assert digests(own.out) == before
    (question,) = questions
    rule = r"the recipe changed: module of the recipe changed\..* 6 shards are built again, in about \d"
    assert re.match(rule, question)


def test_shards_of_code_without_source_are_always_built_again(full):
    full.define(
        OWN.replace("return image[:, :, 0] * FACTOR", "return image[:, :, 0]")
        + "\nLATE = eval('lambda sample, generator: sample[\"image\"][:, :, 0]')\n"
    )
    full.change_recipe("derive={", 'derive={"lift": LATE, ', "store={", 'store={"lift": codecs.Raw(), ')
    full.build()
    assert full.due() == "6 of 6 shards: the source of function <lambda> cannot be found: it may have changed"
    assert full.build().built_shards == 6


def test_a_file_system_without_hard_links_gets_copies(full, monkeypatch):
    def refused(*arguments, **options):
        raise OSError(errno.EPERM, "Operation not permitted")

    full.build()
    monkeypatch.setattr(os, "link", refused)
    full.change_recipe("seed=3", "seed=4")
    full.build()
    assert digests(full.out) == full.from_nothing()


def test_an_edited_row_of_a_table_builds_its_shard(site):
    rows = [{"path": f"{number:02d}.jpg", "age": number, "name": f"n{number}"} for number in range(12)]
    for number, row in enumerate(rows):
        site.add(row["path"][:2], number, mask=False)
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
    assert site.due() == "1 of 4 shards: 1 sample changed"
    assert site.build().built_shards == 1
    assert digests(site.out) == site.from_nothing()
    assert {sample["name"]: sample["age"] for sample in open_dataset(site.out).samples("train")}["n3"] == 99


def _other_data(site):
    site.data = site.data.with_name("elsewhere")
    for number in range(4):
        for split in ("train", "val"):
            site.add(f"{split}/{('cat', 'dog')[number % 2]}/other{number}", number)


@pytest.mark.parametrize(
    ("change", "options", "reason"),
    [
        (recipe('name="tiny"', 'name="other"'), {}, "this recipe builds another one, 'other'"),
        (lambda site: None, {"limit": 7}, "the limit would leave 7 samples"),
        (_other_data, {}, "none of its samples is among those to build (is --data the right folder?). Choose"),
    ],
)
def test_another_dataset_is_not_replaced_silently(full, change, options, reason):
    full.build()
    before = digests(full.out)
    change(full)
    message = (
        rf"out holds the finished dataset 'tiny' of 30 samples \(train, val\), and {re.escape(reason)}.* --replace"
    )
    for step in (full.due, full.build):
        with pytest.raises(BuildError, match=message):
            step(**options)
    assert digests(full.out) == before
    assert full.due(replace=True, **options)
    summary = full.build(replace=True, **options)
    assert summary.built_samples == summary.samples
    fresh = full.out.with_name("fresh")
    full.build(fresh, **options)
    assert digests(full.out) == digests(fresh)


def test_other_library_versions_build_everything_again(full, monkeypatch):
    full.build()
    from tfprep.builder import plan

    installed = plan.maker_versions()
    newer = {**installed, "pillow": "99.1"}
    monkeypatch.setattr(plan, "maker_versions", lambda: newer)
    assert full.due() == f"6 of 6 shards: built with other versions: pillow {installed['pillow']} -> 99.1"
    assert full.build().built_shards == 6
    assert full.due() == NOTHING


def test_several_reasons_are_told_with_their_numbers_of_shards(full):
    full.build()
    (full.out / ".tfprep/receipts/train-00000.json").unlink()
    full.change_recipe("seed=3", "seed=4", '"train": 4, "val": 2', '"train": 4, "val": 1')
    assert full.due() == "5 of 5 shards: the recipe changed: seed: 3 -> 4 (4 shards); not built yet (1 shard)"


def test_missing_and_truncated_files_are_made_again(full):
    full.build()
    expected = digests(full.out)
    (full.out / "current/tiny-train.tfrecord-00001-of-00004").unlink()
    shard = full.out / "current/tiny-val.tfrecord-00000-of-00002"
    shard.write_bytes(shard.read_bytes()[:-1])
    assert full.due() == "2 of 6 shards: not built yet"
    assert full.build().built_shards == 2
    assert digests(full.out) == expected
    (full.out / "current/manifest.json").unlink()
    assert full.build().built_shards == 0
    assert digests(full.out) == expected


def test_a_change_that_is_taken_back_before_it_is_published(full):
    """Files of equal size and an older receipt: shards that were built in between must not be used in place of the earlier
    ones."""
    full.change_recipe("codecs.Jpeg(90)", "codecs.Raw()", '"mask": codecs.Png(), ', "")
    full.build()
    expected, path = digests(full.out), full.data / "train/cat/000.jpg"
    old, times = path.read_bytes(), path.stat()
    full.add("train/cat/000", 99, mask=False)
    (full.data / "val/cat/broken.jpg").write_text("text")
    with pytest.raises(TooManyRejectedError, match=r"rejected"):
        full.build(max_bad=0)
    (full.data / "val/cat/broken.jpg").unlink()
    path.write_bytes(old)
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    full.build()
    assert digests(full.out) == expected
    check_whole(full.out)


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (PermissionError(13, "Permission denied"), "cannot read the file: Permission denied"),
        (MemoryError(), "its files do not fit into memory"),
    ],
)
def test_a_file_that_could_not_be_read_is_named_and_tried_again(full, monkeypatch, error, reason):
    real = os.open

    def refused(path, flags, *rest, **options):
        if str(path).endswith("train/cat/000.jpg"):
            raise error
        return real(path, flags, *rest, **options)

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", refused)
        full.build()
        (sample,) = full.rejected()
        assert (sample["key"], sample["stage"], sample["error"]) == ("train/cat/000.jpg", "read", reason)
        assert full.due() == "1 of 6 shards: an input could not be read last time"
    assert full.build().rejected == 0
    assert digests(full.out) == full.from_nothing()


def test_a_shard_left_without_samples(full):
    full.build()
    for path in (full.data / "val").rglob("*.jpg"):
        if sample_hash(3, path.relative_to(full.data).as_posix()) % 2 == 0:
            path.unlink()
    full.build()
    assert next(file.records for file in open_dataset(full.out).split("val").files[0]) == 0
    check_whole(full.out)
    assert digests(full.out) == full.from_nothing()


@pytest.mark.usefixtures("reports")
def test_a_split_that_is_gone_from_the_raw_files_is_named(site):
    site.change_recipe('"train": 4, "val": 2', '"train": 2')
    site.fill(train=4, val=2).build()
    shutil.rmtree(site.data / "val")
    with pytest.warns(UserWarning, match="the split 'val' is gone: the raw data has no sample of it any more"):
        site.build()
    assert "the split &#39;val&#39; is gone" in (site.out / "current/report.html").read_text()


def test_class_numbers_that_mean_another_class_are_named(site):
    """A model that was trained on the version before would be evaluated on other classes."""
    site.fill(train=4, val=2).build()
    site.add("train/ant/900", 0)
    with pytest.warns(UserWarning, match=r"^label: the class 'cat' was number 0 and is 1: .* classes= of the source"):
        site.build()
    site.add("train/zebra/901", 0)  # after all others, so that it changes no number
    site.build()


@pytest.fixture
def one_sample(site, monkeypatch):
    """A dataset of one sample in one shard. The recipe leaves the number of shards open; four samples are enough for one."""
    monkeypatch.setattr("tfprep.builder.plan._LEAST_SAMPLES", 4)
    site.change_recipe('    shards={"train": 4, "val": 2},\n', "")
    site.add("train/cat/000", 0)
    site.build()
    return site


@pytest.mark.parametrize("parts", [None, 2])
def test_a_dataset_that_outgrew_its_shards_is_resharded(one_sample, parts):
    """One sample first, 24 later: one shard and one worker for ever, unless the number of shards may change once."""
    site = one_sample.fill(train=24, val=0)
    assert site.build().shards == 1
    before = digests(site.out)
    assert site.due(reshard=True).startswith("4 of 4 shards: ")
    assert digests(site.out) == before
    if parts is None:
        assert site.build(reshard=True).built_shards == 4
    else:
        for part in range(parts):
            site.part(part, parts, reshard=True)
        site.finish()
    assert digests(site.out) == site.from_nothing()
    assert check_whole(site.out).split("train").shards == 4
    assert site.build().built_shards == 0, "later builds keep the number"
    (site.out / ".tfprep" / "plan.json").write_text("[1]")
    assert site.build().built_shards == 0, "what cannot be read is as nothing: 24 samples have four shards of their own"


def test_a_dataset_that_replaces_another_has_its_own_number_of_shards(one_sample):
    one_sample.fill(train=24, val=0).change_recipe('name="tiny"', 'name="other"')
    assert one_sample.build(replace=True).shards == 4
    assert digests(one_sample.out) == one_sample.from_nothing()


def test_samples_that_stay_in_their_shard_are_built_again_under_another_number_of_shards(one_sample, monkeypatch):
    """The content of a shard may be the same: its name is not."""
    monkeypatch.setattr("tfprep.builder.plan._default_shards", lambda *arguments: 2)
    one_sample.build(reshard=True)
    one_sample.build(one_sample.out.with_name("fresh"))
    assert digests(one_sample.out) == digests(one_sample.out.with_name("fresh"))


# --- files of the same size and time ---------------------------------------------------------------------------------

TIME = (10**18, 10**18)


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
        os.utime(path, ns=TIME)
    return site


def _exchanged(data):
    """Exchanges two files of one class."""
    one, two, other = (data / "cat" / name for name in ("0.bmp", "2.bmp", "other"))
    one.rename(other), two.rename(one), other.rename(two)


def _written_over(data):
    """Writes other pixels into a file and sets its time back, as `cp -p` does."""
    path = data / "cat/4.bmp"
    path.write_bytes(path.read_bytes()[:-9] + bytes(range(9)))
    os.utime(path, ns=TIME)


@pytest.mark.parametrize("change", [_exchanged, _written_over])
def test_another_file_of_the_same_size_and_time_is_seen(bitmaps, change):
    bitmaps.build()
    before = digests(bitmaps.out)
    change(bitmaps.data)
    assert bitmaps.build().built_shards
    assert digests(bitmaps.out) == bitmaps.from_nothing() != before
    assert bitmaps.due() == "nothing to build: 3 shards up to date"


def test_a_build_after_the_pointer_was_set_back_equals_one_from_nothing(bitmaps):
    """All versions have equal names and sizes; the receipts are those of the last one."""
    for number in range(3):
        path = bitmaps.data / "cat/4.bmp"
        path.write_bytes(path.read_bytes()[:-9] + bytes([number] * 9))
        bitmaps.build(keep=5)
    (bitmaps.out / "tfprep.json").write_text('{"version": 1}')
    bitmaps.build(keep=5)
    assert digests(bitmaps.out) == bitmaps.from_nothing()


def test_an_archive_that_is_packed_again_with_its_old_time_is_seen(bitmaps):
    folder, bitmaps.data = bitmaps.data, bitmaps.data.with_name("packed")
    bitmaps.data.mkdir()
    bitmaps.change_recipe("sources.Folder()", "sources.Archives('all.tar')", ", 'label': codecs.Scalar()", "")
    for change in (lambda folder: None, _exchanged):
        change(folder)
        with tarfile.open(bitmaps.data / "all.tar", "w") as tar:
            for path in sorted(folder.rglob("*.bmp")):
                tar.add(path, path.relative_to(folder))
        os.utime(bitmaps.data / "all.tar", ns=TIME)
        bitmaps.build()
    assert digests(bitmaps.out) == bitmaps.from_nothing()


def test_other_members_of_an_archive_that_is_the_same_are_read(bitmaps):
    """Of equal keys, values and sizes, in a file whose size, time and inode stay."""
    folder, bitmaps.data = bitmaps.data, bitmaps.data.with_name("packed")
    bitmaps.data.mkdir()
    with tarfile.open(bitmaps.data / "all.tar", "w") as tar:
        for path in sorted(folder.rglob("*.bmp")):
            tar.add(path, path.relative_to(folder).with_suffix(".image.bmp"))
            tar.add(path, path.relative_to(folder).with_suffix(".first.bmp"))
            path.write_bytes(path.read_bytes()[:-9] + bytes(9))
            tar.add(path, path.relative_to(folder).with_suffix(".second.bmp"))
    source = "sources.Archives('all.tar', image=('image.bmp',), fields={'other': ('image', 'first.bmp')})"
    bitmaps.change_recipe("sources.Folder()", source, "'label': codecs.Scalar()", "'other': codecs.Raw()")
    bitmaps.build()
    before = digests(bitmaps.out)
    bitmaps.change_recipe("first.bmp", "second.bmp")
    assert bitmaps.due() == "3 of 3 shards: 12 samples changed"
    assert bitmaps.build().built_shards == 3
    assert digests(bitmaps.out) == bitmaps.from_nothing() != before


def test_code_is_not_accepted_for_files_that_took_the_place_of_others(bitmaps):
    bitmaps.define("def own(sample, generator): return sample['image'][:, :, 0]")
    bitmaps.change_recipe("'label': codecs.Scalar()", "'own': codecs.Raw()", "shards=", "derive={'own': own}, shards=")
    bitmaps.build()
    _exchanged(bitmaps.data)
    bitmaps.change_recipe("[:, :, 0]", "[:, :, 0] + 0")
    bitmaps.build(accept_code=True)
    assert digests(bitmaps.out) == bitmaps.from_nothing()


opened: list[str] = []
sys.addaudithook(lambda event, arguments: opened.append(str(arguments[0])) if event == "open" else None)


def test_another_mode_or_time_reads_those_files_and_builds_nothing(bitmaps):
    bitmaps.build()
    inodes, before = shards_of(bitmaps), digests(bitmaps.out)
    (bitmaps.data / "cat/0.bmp").chmod(0o640)
    os.utime(bitmaps.data / "dog/1.bmp", (5, 5))
    assert bitmaps.due().endswith("2 samples changed")
    opened.clear()
    assert bitmaps.build().built_shards == 0
    assert sorted(path[-9:] for path in opened if path.endswith(".bmp")) == ["cat/0.bmp", "dog/1.bmp"]
    assert (shards_of(bitmaps), digests(bitmaps.out)) == (inodes, before)
    assert bitmaps.due() == "nothing to build: 3 shards up to date"


def test_parts_may_have_copies_of_the_raw_files(bitmaps):
    """Copies keep sizes and times; their inodes are others, and tell no part that its files differ."""
    copy = bitmaps.data.with_name("copy")
    shutil.copytree(bitmaps.data, copy)
    for part, data in enumerate((bitmaps.data, copy, copy)):
        assert bitmaps.part(part, 3, data).built_shards == 1
    bitmaps.finish()
    assert digests(bitmaps.out) == bitmaps.from_nothing()
    assert bitmaps.build().built_shards == 0
