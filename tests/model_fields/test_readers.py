"""Every reader delivers the fields that a model computed, beside the record that they are of, or says why it cannot."""

import json
import math

import numpy as np
import pyarrow.parquet as pq
import pytest

import tfprep
from tests.commands import status_of
from tests.damage import flip
from tests.load.batches import stages
from tests.model_fields.conftest import VIEWS, check_all, check_batch, every_batch, expected
from tfprep import augment, derive
from tfprep.dataset import open_dataset
from tfprep.dataset.verify import verify
from tfprep.errors import DatasetError, LoaderError, RecordError
from tfprep.export import export
from tfprep.model_fields import add_fields


def test_every_reader_delivers_them_beside_the_record_that_they_are_of(plain):
    before, opened = plain.main_files(), tfprep.open(plain.out)
    summary = add_fields(plain.out, plain.fields)
    assert plain.main_files() == before
    for read in (opened.numpy_loader, opened.random_access):
        with pytest.raises(LoaderError, match="no field 'score'"):
            read("train", fields=["image", "score"])
    assert (summary.fields, summary.shards, summary.kept, summary.published) == (("score",), 7, 0, True)
    data = tfprep.open(plain.out)
    batches = [math.ceil(file.records / 4) for info in data.splits.values() for files in info.files for file in files]
    assert len(plain.calls) == summary.calls == sum(batches)
    assert sum(plain.calls) == summary.samples == sum(info.samples * info.variants for info in data.splits.values())
    assert add_fields(plain.out, plain.fields).calls == 0
    assert len(plain.calls) == sum(batches)
    assert (data.fields["score"].shape, data.fields["score"].dtype) == ((3,), "float32")
    check_all(plain)
    for split, variant in VIEWS:
        access = data.random_access(split, variant=variant)
        np.testing.assert_allclose([one["score"] for one in access], expected(plain, split, variant), rtol=1e-5)
    loader = data.numpy_loader("train", 5, variants=1, training=False, remainder="keep", fields=["score", "key"])
    found = np.concatenate([batch["score"] for batch in loader])
    np.testing.assert_allclose(found, expected(plain, "train", 1), rtol=1e-5)
    for batch in every_batch(data):
        check_batch(batch)


def test_tensorflow_reads_them_in_its_own_ways(site):
    import tensorflow as tf

    data = tfprep.open(site.out)
    for batch in data.tf_dataset("train", 4, variants=0, training=True):
        check_batch(batch)
    folder = data.added("score").path
    wanted = expected(site, "train", 1)
    files = sorted(str(path) for path in folder.glob("tiny-train_v1.tfrecord-?????-of-00003"))
    features = {"key": tf.io.FixedLenFeature([], tf.string), "score": tf.io.FixedLenFeature([], tf.string)}
    parsed = [tf.io.parse_single_example(record, features) for record in tf.data.TFRecordDataset(files)]
    np.testing.assert_allclose([tf.io.decode_raw(one["score"], tf.float32) for one in parsed], wanted, rtol=1e-5)
    keys = tfprep.open(site.out).index("train", 1, ["key"]).column("key").to_pylist()
    assert [one["key"].numpy().decode() for one in parsed] == keys


RAW = 'codecs.Raw("float32")'
REUSED = "count = len(batch['image']); OUT[:] = 0; OUT[:count] = batch['image'].mean((1, 2)) * weight"
FORMS = {  # what `Site.define` gets, and the precision
    "bfloat16": ({"change": (RAW, 'codecs.Raw("bfloat16")')}, 2**-8),
    "single numbers": ({"body": "return {'score': batch['image'].mean((1, 2, 3)) * weight}"}, 1e-5),
    "memory that the model uses again": (
        {"body": f"{REUSED}; return {{'score': OUT[:count]}}", "change": ("FIELDS =", "OUT = np.empty((4, 3), 'f4')\nFIELDS =")},
        1e-5,
    ),
}  # fmt: skip


@pytest.mark.parametrize("form", FORMS)
def test_outputs_of_every_form_reach_the_loaders(plain, form):
    definition, precision = FORMS[form]
    add_fields(plain.out, plain.define(**definition))
    assert not list(verify(plain.out))
    axes = (1, 2, 3) if form == "single numbers" else (1, 2)
    for batch in every_batch(tfprep.open(plain.out)):
        found = np.asarray(batch["score"])
        wanted = np.asarray(batch["image"], np.float64).mean(axes) * 2
        np.testing.assert_allclose(found.astype(np.float32), wanted, rtol=precision)
        assert (found.dtype.name == "bfloat16") == (form == "bfloat16")


def test_ops_that_change_pixels_are_refused_unless_values_do_not_follow_them(site):
    before = site.added_files()
    changes = [
        ("Flip", {**stages([augment.Flip()])}),
        ("Resize", {"geometry": [tfprep.augment.Resize(8, 8)]}),
        ("RandomResizedCrop", {**stages([augment.RandomResizedCrop(8, 8)])}),
        ("views", {"views": {"a": (2, {"geometry": [augment.Flip()]})}}),
        ("bucket", {"bucket": tfprep.load.Buckets([(8, 8)])}),
    ]
    for name, options in changes:
        with pytest.raises(LoaderError, match=f"{name} changes the pixels that a model computed 'score' from"):
            tfprep.open(site.out).numpy_loader("train", 4, **options)
        assert len(next(iter(tfprep.open(site.out).numpy_loader("train", 4, fields=["image"], **options)))) == 1
    assert add_fields(site.out, site.define(options="follows_pixels=False,")).shards == 0
    assert site.added_files() == before
    for workers in ("threads", "processes"):
        for _, options in changes:
            loader = tfprep.open(site.out).numpy_loader("train", 24, variants=0, workers=workers, **options)
            found = next(iter(loader))["score"]
            wanted = expected(site, "train", 0)
            np.testing.assert_allclose(found[np.lexsort(found.T)], wanted[np.lexsort(wanted.T)], rtol=1e-5)
            loader.close()


def brightest(sample, draws):
    return sample["image"].max(axis=2).astype(np.float32)


def doubled(sample, draws):
    return sample["score"] * 2


def test_derived_inputs_read_no_added_fields(plain):
    """They are in records of their own, which the stages of a sample do not see; others may be derived beside them."""
    add_fields(plain.out, plain.define())
    data = tfprep.open(plain.out)
    with pytest.raises(
        LoaderError, match="'twice' reads 'score', which a model added, in records of its own; there are image"
    ):
        data.numpy_loader("train", 4, derive={"twice": derive.Own(doubled, kind="scalar", reads=["score"])})
    batch = next(iter(data.numpy_loader("train", 4, derive={"light": derive.Own(brightest)})))
    assert np.array_equal(batch["light"], batch["image"].max(axis=3))
    assert batch["score"].shape == (4, 3)


@pytest.mark.parametrize("follows", ["", "follows_pixels=False,"])
def test_samples_are_not_mixed_where_a_field_would_stay_that_of_one(plain, follows):
    add_fields(plain.out, plain.define(options=follows))
    data = tfprep.open(plain.out)
    for op in (augment.MixUp(), augment.CutMix()):
        message = f"{type(op).__name__} mixes images and labels of two samples, and 'score', which a model"
        with pytest.raises(LoaderError, match=message):
            data.numpy_loader("train", 4, **stages([op]))
        assert len(next(iter(data.numpy_loader("train", 4, fields=["image", "label"], **stages([op]))))["label"]) == 4


def test_a_run_does_not_resume_with_the_values_of_another_model(site):
    before = tfprep.open(site.out)
    state = json.loads(json.dumps(before.numpy_loader("train", 4, seed=1).state_dict(step=3)))
    of_images = before.numpy_loader("train", 4, seed=1, fields=["image"]).state_dict(step=3)
    add_fields(site.out, site.define(weight="3.0"), replace=True)
    data = tfprep.open(site.out)
    with pytest.raises(LoaderError, match=r"its added is .* computed again meanwhile, by another model"):
        data.numpy_loader("train", 4, seed=1).load_state_dict(state)
    damaged = state | {"identity": state["identity"] | {"added": 5}}
    with pytest.raises(LoaderError, match="its added is 5"):
        data.numpy_loader("train", 4, seed=1).load_state_dict(damaged)
    data.numpy_loader("train", 4, seed=1, fields=["image"]).load_state_dict(of_images)
    add_fields(site.out, site.define(), replace=True)
    tfprep.open(site.out).numpy_loader("train", 4, seed=1).load_state_dict(state)


def test_some_splits_and_variants_have_them_and_others_say_so(plain):
    add_fields(plain.out, plain.define(options="splits=['train'], variants=1,"))
    data = tfprep.open(plain.out)
    assert "score" not in next(iter(data.numpy_loader("val", 4)))
    assert not list(verify(plain.out))
    with pytest.raises(LoaderError, match="score"):
        data.numpy_loader("val", 4, fields=["score"])
    with pytest.raises(LoaderError, match="are of 1 variants of 'train'"):
        data.numpy_loader("train", 4)
    with pytest.raises(DatasetError, match="variant 1 of split 'train' has no 'score'; run tfprep fields add"):
        list(data.samples("train", 1, fields=["score"]))
    assert "score" in next(iter(data.numpy_loader("train", 4, variants=0)))
    assert "score" in next(iter(data.samples("train", 0)))
    assert "score" not in next(iter(data.samples("train", 1)))


BRIGHT = """
def model():
    return lambda batch: {"bright": (batch["image"][..., 0] > 128).astype(np.uint8)}

FIELDS = ModelFields(
    model=model, inputs=["image"], store={"bright": codecs.Png()}, kinds={"bright": "mask"}, splits=["train"], variants=1
)
"""


def test_exports_pictures_and_statistics_show_fields_where_they_are(plain, capsys):
    add_fields(plain.out, plain.other(BRIGHT))
    data = open_dataset(plain.out)
    for form in ("webdataset", "parquet"):
        for variant, samples in ((0, {"train": 24, "val": 8}), (1, {"train": 24})):
            assert export(data, plain.root / f"{form}{variant}", form, variant=variant).samples == samples
    for place, has in (("0/tiny-train", True), ("0/tiny-val", False), ("1/tiny-train", False)):
        (path, *_) = sorted(plain.root.glob(f"parquet{place}*"))
        assert ("bright" in pq.read_schema(path).names) == has
    for split in data.splits:
        assert status_of("show", plain.out, "--split", split, "--out", plain.root / "sheet.png") == 0
    capsys.readouterr()
    assert status_of("stats", plain.out, "--json", "--html", plain.root / "page.html") == 0
    assert json.loads(capsys.readouterr().out)["distributions"]["mask area"].keys() == {"train"}


def test_damage_of_added_fields_is_found_and_named(site):
    data = tfprep.open(site.out)
    path = next(data.added("score").path.glob("tiny-train.tfrecord-00001-of-00003"))
    flip(path, path.stat().st_size // 2)
    assert any(fault.file.endswith(path.name) for fault in verify(site.out))
    with pytest.raises(RecordError, match=path.name):
        list(data.numpy_loader("train", 4, training=False, workers="threads"))
    loader = data.numpy_loader("train", 4, training=False, on_bad="skip", workers="threads")
    assert sum(len(batch["score"]) for batch in loader) == data.split("train").samples - 1
    assert path.name in loader.report()["bad_records"][0]["reason"]
