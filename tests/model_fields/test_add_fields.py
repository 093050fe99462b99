"""Fields that a model computes: continued after kills, stale when they are, refused where they are wrong, gone when removed."""

import hashlib
import json
import os
import shutil
import subprocess
import sys

import numpy as np
import pyarrow.parquet as pq
import pytest

import tfprep
from tests.commands import status_of
from tests.conftest import Made
from tests.examples import serialized, write
from tests.model_fields.conftest import check_all, check_batch, expected
from tests.storage.server import copied_to_memory
from tests.waiting import wait_until
from tfprep import ModelFields, Recipe, codecs, sources
from tfprep.builder import BuildOptions, build_part
from tfprep.dataset import index_tfrecords, open_dataset
from tfprep.dataset.clean import clean
from tfprep.dataset.manifest import seal
from tfprep.dataset.verify import verify
from tfprep.errors import BuildError, DatasetError, RecipeError
from tfprep.export import export
from tfprep.inspect.diff import compare
from tfprep.model_fields import add_fields, remove_fields
from tfprep.seeding import sample_hash
from tfprep.storage.store import open_store


def test_a_run_at_a_store_that_was_killed_continues_to_the_bytes_of_an_undisturbed_one(plain, s3):
    undisturbed, url = s3.copy(plain.out), s3.copy(plain.out)
    plain.define("time.sleep(0.02)", "splits=['train'], variants=1,")
    before = len(s3.proxy.requests)
    add_fields(undisturbed, plain.fields)
    requests, calls = len(s3.proxy.requests) - before, len(plain.calls)
    end = len(s3.proxy.requests) + 3 * requests // 4
    command = [sys.executable, "-m", "tfprep", "fields", "add", url, str(plain.fields), "--quiet"]
    with subprocess.Popen(command, stderr=subprocess.PIPE) as process:
        wait_until(lambda: len(s3.proxy.requests) >= end, process)
        process.kill()
    assert process.returncode == -9
    assert "score" not in tfprep.open(url).fields
    assert add_fields(url, plain.fields).kept > 0
    assert len(plain.calls) < 3 * calls
    results = []
    for place in (url, undisturbed):
        data = tfprep.open(place)
        store = open_store(data.added("score").path)
        files = {info.name: bytes(store.read(info.name)) for info in store.list()}
        results.append((files, data.manifest.to_json()))
    assert results[0] == results[1]
    assert left(url) == (set(), set())


def test_parts_in_any_order_give_the_same_bytes(site):
    undisturbed = site.added_files()
    remove_fields(site.out, "score")
    for part in (2, 0, 1):
        assert not add_fields(site.out, site.fields, part=(part, 3)).published
        assert "score" not in tfprep.open(site.out).fields
    assert add_fields(site.out, site.fields).shards == 0
    assert site.added_files() == undisturbed


def test_shards_stay_that_a_part_of_a_build_has_made(plain):
    stored = {"image": codecs.Png(), "label": codecs.Scalar()}
    recipe = Recipe("tiny", sources.Folder("{split}/{label}/*.png"), stored, shards={"train": 3, "val": 1})

    def built():
        return build_part(recipe, plain.out, plain.data, part=0, parts=2, options=BuildOptions(workers=0)).built_shards

    assert built() == 2
    add_fields(plain.out, plain.fields)
    remove_fields(plain.out, "score")
    assert built() == 0


def test_another_model_needs_replace_and_readers_of_the_old_one_go_on(site):
    opened = tfprep.open(site.out)
    add_fields(site.out, site.fields)
    check_batch(next(opened.samples("train")))  # the same values disturb nobody
    site.define(weight="3.0")
    with pytest.raises(BuildError, match=r"of other options \(files\['weight\.txt'\] changed\); allow them to be"):
        add_fields(site.out, site.fields)
    site.define("batch = dict(batch)", "depends=[1],")
    with pytest.raises(BuildError, match=r"\(.*source of the function changed, .*depends: \[\] -> \[1\], .*\); allow"):
        add_fields(site.out, site.fields)
    site.define(weight="3.0")
    check_all(site)
    add_fields(site.out, site.fields, replace=True)
    check_all(site, 3.0)
    for one in (*opened.samples("train"), *opened.numpy_loader("train", 2, cache=False)):
        check_batch(one)  # of the version that was opened
    assert len({name.split("/")[0] for name in site.added_files()}) == 1


def test_a_changed_photo_makes_its_shard_stale_and_no_other(site):
    key = tfprep.open(site.out).index("train", 0, ["key"]).column("key")[0].as_py()
    site.photo(f"{key}.png" if (site.data / f"{key}.png").exists() else key, 999)
    (warning,) = [text for text in site.build() if "score" in text]
    assert "published without them" in warning
    assert "fields add" in warning
    assert "score" not in tfprep.open(site.out).fields
    calls = len(site.calls)
    summary = add_fields(site.out, site.fields)
    assert (summary.shards, summary.kept) == (2, 5)
    assert len(site.calls) == calls + summary.calls
    check_all(site)
    assert site.build() == []
    assert "score" in tfprep.open(site.out).fields


RAISES = r"the model failed on .* samples of train.* \(image uint8 \[4, 16, 16, 3\]\): ValueError: no memory left"
SIDES = "*[1] * ((HERE / 'calls.txt').read_text().count(' ') % 2)"
RAW = 'codecs.Raw("float32")'
FAULTS = [  # code of the model, a text of the file and what takes its place, and the error
    ("raise ValueError('no memory left')", None, RAISES),
    ("raise SystemExit('no license')", None, r"the model failed on .* samples of train.*: SystemExit: no license"),
    ("", ("def model():", "def model():\n    raise SystemExit(3)"), r"model\(\) of 'score' failed: SystemExit: 3"),
    ("return batch['image'].mean((1, 2))", None, r"model\(\) returned gives \{'score': array\}, not ndarray"),
    ("batch['image'] = batch['image'] * np.float32('nan')", None, "NaN or infinity in 'score' for .*such as"),
    ("return {'score': np.full(len(batch['image']), np.nan, 'bfloat16')}", (RAW, 'codecs.Raw("bfloat16")'), "NaN or infinity in"),
    ("return {'other': np.zeros(len(batch['image']))}", None, "returned 'other'; store names 'score'"),
    ("return {'score': np.zeros((1, 3))}", None, r"shape \[1, 3\] for a batch of 4"),
    (f"return {{'score': np.zeros((len(batch['image']), {SIDES}))}}", None, "of samples before it"),
    ("", ('"score"', '"label"'), "has a field 'label' already"),
    ("", ('inputs=["image"]', 'inputs=["photo"]'), "has no field 'photo'"),
    ("", ("FIELDS = ", "FIELD = "), r"expected FIELDS = tfprep.ModelFields\(...\), found no FIELDS"),
    ("", ("def model():", "def model():\n    (HERE / 'weight.txt').write_text('9.0')"),
     "files of 'score' changed while the model was loaded"),
]  # fmt: skip


@pytest.mark.parametrize(("body", "change", "message"), FAULTS)
def test_a_fault_of_the_model_is_named_and_publishes_nothing(plain, body, change, message):
    before = (plain.out / "current/manifest.json").read_bytes()
    with pytest.raises((BuildError, RecipeError), match=message):
        add_fields(plain.out, plain.define(body, change=change))
    assert (plain.out / "current/manifest.json").read_bytes() == before
    assert not any(name.endswith(".json") for name in plain.added_files())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"inputs": "image"}, "inputs: expected a list"),
        ({"store": {}}, "store: nothing would be stored"),
        ({"store": {"a b": codecs.Raw()}}, "name of a field"),
        ({"store": {"score": codecs.Png()}}, "Png holds"),
        ({"batch_size": 0}, "batch_size: expected a whole number"),
        ({"variants": 0}, "variants: expected .all. or a whole number"),
        ({"kinds": {"score": "boxes"}}, "kinds: that of 'score'"),
        ({"kinds": {"other": "map"}}, "kinds names 'other'"),
        ({"splits": "train"}, "splits: expected a list of splits"),
        ({"files": "teacher.keras"}, "files: expected a list of names"),
        ({"model": 3}, "model: expected a function"),
        ({"store": {"logits_v1": codecs.Raw()}}, "'logits_v1' ends like a variant"),
        *(
            ({"name": name}, r"name, by default the first of store,.*give name=")
            for name in ("logits_v1", "_score", "x" * 101, "a b", "../evil")
        ),
    ],
)
def test_wrong_options_are_refused(options, message):
    good = {"model": lambda: None, "inputs": ["image"], "store": {"score": codecs.Raw()}}
    with pytest.raises(RecipeError, match=message):
        ModelFields(**{**good, **options})


@pytest.mark.parametrize("receipts", ["receipts", "none"])
@pytest.mark.parametrize(
    "name", ["tiny-train_v1.tfrecord-00001-of-00003", "index.parquet", "tiny-val.tfrecord-00000-of-00001.idx"]
)
def test_a_damaged_shard_is_computed_again_and_no_other_that_has_a_receipt(site, name, receipts):
    undisturbed, path = site.added_files(), tfprep.open(site.out).added("score").path / name
    if receipts == "none":
        shutil.rmtree(site.out / ".tfprep")
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    assert list(verify(site.out))
    if name == "index.parquet":
        with pytest.raises(DatasetError, match="run tfprep fields add --verify again"):
            tfprep.open(site.out).added("score").index("train")
    summary = add_fields(site.out, site.fields, verify=True)
    due = 7 if receipts == "none" else 0 if name == "index.parquet" else 1
    assert (summary.shards, summary.kept) == (due, 7 - due)
    assert site.added_files() == undisturbed
    read = []
    assert not list(verify(site.out, lambda done, total: read.append((done, total))))
    of_shards = sum(path.stat().st_size for path in (site.out / "current").resolve().rglob("*.tfrecord-?????-of-?????"))
    assert read[-1] == (of_shards, of_shards)


@pytest.mark.parametrize(
    ("swapped", "reason"),
    [
        (["source_digest"], "record 0 of train, variant 0 was computed from another record"),
        (["offset", "size", "payload_crc", "score_offset", "score_size"], "record 0: it holds the fields of another sample"),
    ],
)  # fmt: skip
def test_records_of_another_place_are_found_by_verify(site, swapped, reason):
    """Two rows of the tables change places, with all checksums in order: digests of main records, and keys, tell."""
    folder = tfprep.open(site.out).added("score").path
    rows = pq.read_table(folder / "index.parquet").slice(0, 2).to_pylist()
    for number, other in ((0, 1), (1, 0)):
        Made(folder).change_index(number, **{name: rows[other][name] for name in swapped})
    document = json.loads((site.out / "current/manifest.json").read_bytes())
    del document["sha256"]
    document["added"]["score"]["sha256"] = hashlib.sha256((folder / "manifest.json").read_bytes()).hexdigest()
    (site.out / "current/manifest.json").write_text(seal(document))
    assert any(reason in fault.reason for fault in verify(site.out))


def test_other_commands_know_them(site):
    assert not compare(open_dataset(site.out), tfprep.open(site.out)).fields
    other = site.root / "other"
    shutil.copytree(site.out, other, symlinks=True)
    add_fields(other, site.define(weight="3.0"), replace=True)
    ((old, new),) = compare(open_dataset(site.out), open_dataset(other)).fields.values()
    assert "computed as" in old
    assert "computed as" in new
    assert old != new
    for form in ("webdataset", "parquet"):
        export(open_dataset(site.out), site.root / form, form)
    rows = pq.read_table(sorted((site.root / "parquet").glob("*train*"))).column("score").to_pylist()
    np.testing.assert_allclose(rows, expected(site, "train", 0), rtol=1e-5)


def test_the_command_reports(plain, capsys):
    def run(*arguments):
        assert status_of(*arguments) == 0
        return capsys.readouterr().out

    summary = json.loads(run("fields", "add", plain.out, plain.fields, "--json"))
    assert summary["fields"] == ["score"]
    assert summary["published"]
    assert 0 < summary["model_s"] < summary["seconds"]
    assert "train x 2, val x 1 (by score)" in run("info", plain.out)
    run("stats", plain.out, "--html", plain.root / "stats.html")
    assert "<td>score</td>" in (plain.root / "stats.html").read_text()
    assert "removed score" in run("fields", "remove", plain.out, "score")


def test_shards_without_records_get_files_too(plain):
    shutil.rmtree(plain.out)
    plain.build(shards={"train": 1, "val": 12})
    assert 0 in [file.records for file in tfprep.open(plain.out).splits["val"].files[0]]
    add_fields(plain.out, plain.fields)
    check_all(plain)


DOUBLE = """FIELDS = ModelFields(
    model=lambda: lambda batch: {"double": batch["score"] * 2}, inputs=["score"], store={"double": codecs.Raw("float32")})"""


def test_fields_are_no_inputs_of_another_model(site):
    """They would be stale when these are computed again."""
    with pytest.raises(
        RecipeError, match=r"has no field 'score' in its records; those that a model added are not inputs"
    ):
        add_fields(site.out, site.other(DOUBLE))


@pytest.mark.parametrize("damage", ["manifest", "folder"])
def test_adding_again_mends_fields_that_are_damaged_or_gone(site, damage):
    undisturbed, folder = site.added_files(), tfprep.open(site.out).added("score").path
    if damage == "folder":
        shutil.rmtree(folder)
    else:
        (folder / "manifest.json").write_text("{}")
        with pytest.raises(BuildError, match="allow them to be replaced"):
            add_fields(site.out, site.define(weight="3.0"))
    add_fields(site.out, site.define())
    assert site.added_files() == undisturbed
    assert not list(verify(site.out))


def test_a_dataset_with_another_name_keeps_the_values(site):
    site.build(name="renamed", replace=True)
    calls = len(site.calls)
    add_fields(site.out, site.fields)
    assert len(site.calls) == calls
    check_all(site)


def sum_of(values):
    """Fields of a model that adds up `values(x)` for each record."""

    def sums(batch):
        return {"sum": values(batch["x"]).sum(1).astype(np.float32)}

    return ModelFields(model=lambda: sums, inputs=["x"], store={"sum": codecs.Raw("float32")})


def test_imported_tfrecords_get_fields_and_others_of_the_same_size_and_time_do_not_keep_them(tmp_path):
    for number in range(4):
        path = tmp_path / f"{'ab'[number // 2]}-{number % 2}.tfrecord"
        write(path, [serialized({"x": [float(number), 1.0]})])
        os.utime(path, (1e9, 1e9))  # as files of one archive may have
    fields = sum_of(lambda x: x)
    for letter, sums in (("a", [1, 2]), ("b", [3, 4])):
        index_tfrecords(f"{tmp_path}/{letter}-*.tfrecord", "train")
        assert "sum" not in tfprep.open(tmp_path).fields
        files = [path for path in tmp_path.iterdir() if path.is_file() and path.name != "tfprep.json"]
        before = {path: path.read_bytes() for path in files}
        add_fields(tmp_path, fields)
        assert {path: path.read_bytes() for path in files} == before
        index_tfrecords(f"{tmp_path}/{letter}-*.tfrecord", "train")
        assert [float(one["sum"]) for one in tfprep.open(tmp_path).samples("train")] == sums
        assert sorted(np.concatenate([b["sum"] for b in tfprep.open(tmp_path).numpy_loader("train", 2)])) == sums
        assert not list(verify(tmp_path))


def test_shards_that_were_indexed_before_another_one_keep_their_fields(tmp_path):
    for number in range(3):
        write(tmp_path / f"{number}.tfrecord", [serialized({"x": [float(number), 1.0]})])
        index_tfrecords(f"{tmp_path}/*.tfrecord", "train")
        summary = add_fields(tmp_path, sum_of(lambda x: x))
        assert (summary.shards, summary.kept) == (1, number)
        assert [float(one["sum"]) for one in tfprep.open(tmp_path).samples("train")] == [1.0, 2.0, 3.0][: number + 1]


def test_fields_are_stale_when_an_input_is_read_in_another_way(tmp_path):
    """The bytes of the records are the same: a declaration was corrected."""
    write(tmp_path / "a.tfrecord", [serialized({"x": bytes(range(6))})])
    fields, declared = sum_of(lambda x: x[:, 0]), tmp_path / "features.json"
    for shape, total in (([2, 3], 3), ([3, 2], 1)):
        declared.write_text(json.dumps({"x": {"dtype": "uint8", "shape": shape}}))
        index_tfrecords(f"{tmp_path}/a.tfrecord", "train", features=declared)
        assert "sum" not in tfprep.open(tmp_path).fields
        add_fields(tmp_path, fields)
        assert [float(one["sum"]) for one in tfprep.open(tmp_path).samples("train")] == [total]


def test_a_shard_whose_last_batch_fails_is_not_complete(plain):
    """The end of the shard waits after the batch already when that fails in the thread that writes."""
    text = """
from dataclasses import dataclass
import time
from tfprep.errors import SampleError


@dataclass(frozen=True)
class Late(codecs.Raw):
    def encode(self, value):
        if value.any():
            time.sleep(0.2)
            raise SampleError("too late")
        return super().encode(value)


def last_is_one(batch):
    values = np.zeros((len(batch["image"]), 64))
    values[-1] = 1
    return {"other": values}


FIELDS = ModelFields(model=lambda: last_is_one, inputs=["image"], store={"other": Late()}, batch_size=64)
"""
    path = plain.other(text)
    for _ in range(2):
        with pytest.raises(BuildError, match="cannot be stored: too late"):
            add_fields(plain.out, path)
    assert not plain.added_files()


def test_a_full_disk_is_said_with_the_file(plain):
    plain.define("return {'score': np.zeros((len(batch['image']), 60_000), np.float32)}")
    command = f"ulimit -f 300; exec {sys.executable} -m tfprep fields add {plain.out} {plain.fields} --quiet"
    ended = subprocess.run(command, shell=True, capture_output=True, text=True, check=False)
    assert "tiny-train.tfrecord-00000-of-00003: File too large; nothing was published. Make room" in ended.stderr
    assert not plain.added_files()


@pytest.mark.parametrize("lost", ["another model", "not copied"])
def test_published_fields_are_not_computed_again_where_receipts_are_lost(site, lost):
    """A model may give other values each time: nothing may take the place of files that tfprep.json names."""
    undisturbed = site.added_files()
    if lost == "another model":
        site.define("if len((HERE / 'calls.txt').read_text().splitlines()) > 26: raise ValueError", weight="3.0")
        with pytest.raises(BuildError):
            add_fields(site.out, site.fields, replace=True)
        site.define()
    else:
        shutil.rmtree(site.out / ".tfprep")
    calls = len(site.calls)
    for _ in range(2):
        assert add_fields(site.out, site.fields).kept == 7
    assert len(site.calls) == calls
    assert site.added_files() == undisturbed
    assert not list(verify(site.out))


def test_a_folder_of_fields_that_is_a_link_is_neither_read_nor_written(site):
    folder, outside = tfprep.open(site.out).added("score").path, site.root / "outside"
    folder.rename(outside)
    folder.symlink_to(outside)
    for use in (lambda: list(tfprep.open(site.out).samples("train")), lambda: add_fields(site.out, site.fields)):
        with pytest.raises(DatasetError, match="is a link; a dataset has folders of its own"):
            use()
    assert any("is a link" in fault.reason for fault in verify(site.out))


def test_a_folder_of_receipts_that_is_a_link_is_not_emptied(site):
    receipts, outside = site.out / ".tfprep/fields/score", site.root / "outside"
    assert receipts.is_dir()
    receipts.rename(outside)
    (outside / "theses").mkdir()
    (outside / "theses/thesis.txt").write_text("of somebody else")
    receipts.symlink_to(outside)
    with pytest.raises(DatasetError, match="is a link; a dataset has folders of its own"):
        remove_fields(site.out, "score")
    assert (outside / "theses/thesis.txt").read_text() == "of somebody else"


def left(place):
    """The folders of fields that `clean` would remove, and those that it keeps for a run that has not published."""
    found = clean(place)
    return tuple(
        {info.name.split("/")[1] for info in infos if info.name.startswith("shards/")}
        for infos in (found.unreferenced, found.unfinished)
    )


@pytest.mark.usefixtures("any_age")
def test_clean_removes_folders_of_fields_that_nothing_refers_to(plain):
    place = copied_to_memory(plain.out)
    store = open_store(place)
    add_fields(place, plain.define())
    first = tfprep.open(place).added("score").path.name
    foreign = ("shards/mine-0123456789ab/photo.jpg", "other-0123456789ab/manifest.json", "shards/score/index.parquet")
    for name in foreign:
        store.write(name, b"{}")
    assert left(place) == (set(), set())
    loader = tfprep.open(place).numpy_loader("train", 6, workers="threads", cache=False)
    add_fields(place, plain.define(weight="3.0"), part=(0, 2), replace=True)
    (second,) = left(place)[1]
    assert left(place) == (set(), {second})
    clean(place, remove=True)
    assert add_fields(place, plain.fields, replace=True).kept == 4  # what the part computed
    assert left(place) == ({first}, set())  # the loader of the first model goes on until clean
    assert len(list(loader)) == 4
    clean(place, remove=True)
    assert left(place) == (set(), set())
    assert not [info for info in store.list() if info.name.startswith(f"shards/{first}")]
    assert not list(verify(place))
    add_fields(place, plain.define(weight="4.0"), part=(0, 2), replace=True)
    assert remove_fields(place, "score") == ["score"]
    clean(place, remove=True)
    assert not [info.name for info in store.list() if info.name.startswith((f"shards/{second}", ".tfprep/fields"))]
    assert {*foreign} <= {info.name for info in store.list()}


def test_a_local_folder_keeps_nothing_of_fields_that_are_gone(plain):
    add_fields(plain.out, plain.fields, part=(0, 2))
    assert remove_fields(plain.out, "score") == []
    assert not list((plain.out / ".tfprep/fields").rglob("*.*"))
    add_fields(plain.out, plain.fields)
    remove_fields(plain.out, "score")
    assert list(clean(plain.out, remove=True).versions) == [2]
    assert not [path for path in plain.out.rglob("*") if "score" in path.name and path.is_file()]
    assert not list(verify(plain.out))


@pytest.mark.usefixtures("any_age")
def test_what_a_run_computed_and_did_not_publish_can_be_given_up(plain):
    url = copied_to_memory(plain.out)
    add_fields(url, plain.fields, part=(0, 2))
    assert len(left(url)[1]) == 1
    assert remove_fields(url, "score") == []
    assert len(left(url)[0]) == 1
    clean(url, remove=True)
    assert left(url) == (set(), set())
    for name in ("score", "../score", "label"):
        with pytest.raises(DatasetError, match="has no added fields"):
            remove_fields(url, name)


def test_fields_of_a_raw_file_that_was_renamed_are_computed_again(plain):
    """Its shard is the same: it holds no keys, and the new name keeps the order."""
    shards = {"train": 1, "val": 1}
    plain.build(shards=shards)
    model = "lambda: lambda b: {'n': np.array([len(key) for key in b['key']])}"
    add_fields(plain.out, plain.other(f"FIELDS = ModelFields({model}, ['key'], {{'n': codecs.Scalar()}})"))
    keys = tfprep.open(plain.out).index("val")["key"].to_pylist()
    names = (f"{keys[0].rpartition('/')[0]}/long{number}.png" for number in range(1000))
    new = next(name for name in names if sample_hash(0, name) < sample_hash(0, keys[1]))
    (plain.data / keys[0]).rename(plain.data / new)
    (warning,) = plain.build(shards=shards)
    assert "the fields 'n' that a model added do not fit the dataset any more" in warning
    assert add_fields(plain.out, plain.root / "other.py").shards == 1
    data = tfprep.open(plain.out)
    assert [sample["n"] for sample in data.samples("val")] == [len(key) for key in data.index("val")["key"].to_pylist()]
    assert not list(verify(plain.out))


def test_a_dataset_that_was_copied_from_a_store_is_built_on_with_its_fields(plain):
    url = copied_to_memory(plain.out)
    add_fields(url, plain.fields)
    store = open_store(url)
    shutil.rmtree(plain.out)
    for info in store.list():
        (plain.out / info.name).parent.mkdir(parents=True, exist_ok=True)
        (plain.out / info.name).write_bytes(store.read(info.name))
    assert plain.build() == []
    check_all(plain)
    other = (
        "FIELDS = ModelFields(lambda: lambda b: {'n': np.zeros(len(b['image']))}, ['image'], {'n': codecs.Scalar()})"
    )
    add_fields(plain.out, plain.other(other))
    check_all(plain)


def test_published_fields_at_a_store_need_no_receipts(plain, s3):
    url = s3.copy(plain.out)
    add_fields(url, plain.fields)
    store, calls = open_store(url), len(plain.calls)
    store.delete([info.name for info in store.list() if info.name.startswith(".tfprep/fields")])
    before = {info.name: info.version for info in store.list()}
    s3.proxy.requests.clear()
    assert add_fields(url, plain.fields).kept == 7
    assert len(plain.calls) == calls
    assert not [one for one in s3.proxy.reads("score-") if one.path.endswith("-of-00003")]
    assert {info.name: info.version for info in store.list()} == before
