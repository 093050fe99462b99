"""Statistics against pictures whose brightness, objects and masks are known."""

import json
import re

import cv2
import numpy as np
import pytest
from PIL import Image

import tfprep
from tests.commands import status_of
from tests.damage import flip
from tests.photos import natural, save
from tfprep import codecs, sources
from tfprep.dataset import open_dataset
from tfprep.errors import DatasetError
from tfprep.fields import FieldSpec
from tfprep.inspect.sheet import contact_sheet
from tfprep.inspect.stats import counted, statistics_of


@pytest.fixture(scope="module")
def built(tmp_path_factory, build_folder):
    """Pictures with masks: number 3 is dark, number 5 blurred; the mask of number n covers n rows of 48."""
    root = tmp_path_factory.mktemp("stats")
    for number in range(12):
        pixels = np.random.default_rng(number).integers(90, 200, (48, 64, 3)).astype(np.uint8)
        pixels = pixels // 8 if number == 3 else cv2.GaussianBlur(pixels, (0, 0), 4) if number == 5 else pixels
        mask = np.zeros((48, 64), np.uint8)
        mask[:number] = 1
        split = "val" if number > 8 else "train"
        for name, content in (("jpg.png", pixels), ("mask.png", mask)):
            save(root / "raw" / split / "ab"[number % 2] / f"{number:02d}.{name}", content)
    (root / "raw" / "train" / "a" / "99.jpg.png").write_bytes(b"broken")
    Image.fromarray(mask).save(root / "raw" / "train" / "a" / "99.mask.png")
    source = sources.Paired(
        image="{split}/{label}/*.jpg.png", mask="{split}/{label}/*.mask.png", classes=("ground", "thing")
    )
    store = {"image": codecs.Png(), "mask": codecs.Png(), "label": codecs.Scalar()}
    return build_folder(root / "raw", root / "out", source=source, store=store)


def test_distributions_are_those_of_the_stored_pictures(built):
    data = open_dataset(built)
    stats = statistics_of(data)
    for split, count in (("train", 9), ("val", 3)):
        samples = list(data.samples(split))
        assert stats.samples[split] == stats.measured[split] == count
        means = [np.asarray(Image.fromarray(one["image"]).convert("L"), np.float64).mean() for one in samples]
        brightness = stats.distributions["brightness"][split]
        assert brightness.quartiles == pytest.approx(np.quantile(means, (0, 0.25, 0.5, 0.75, 1)), abs=0.6)
        areas = [100 * one["mask"].mean() for one in samples]
        assert stats.distributions["mask area"][split].quartiles[2] == pytest.approx(np.median(areas))
        for one in stats.distributions.values():
            assert sum(one[split].counts) == one[split].count == count
    assert stats.distributions["width"]["train"].quartiles == (64,) * 5
    (sample,) = stats.rejected
    assert (sample.count, sample.stage, sample.field) == (1, "decode", "image")
    assert sample.files == ("train/a/99.jpg.png",)


def test_few_samples_are_read_if_few_are_asked_for(built):
    seen = []
    stats = statistics_of(open_dataset(built), most_samples=2, on_sample=lambda done, total: seen.append((done, total)))
    assert stats.measured == {"train": 2, "val": 2}
    assert seen == [(1, 4), (2, 4), (3, 4), (4, 4)]
    assert stats.distributions["height"]["train"].count == 9


@pytest.mark.parametrize(
    ("spec", "unit"),
    [
        (FieldSpec("mask", (None, None), "uint8"), "pixels"),
        (FieldSpec("label", (), "int64"), "samples"),
        (FieldSpec("label", (3,), "float32"), "samples"),  # 1 for each class of the sample
        (FieldSpec("label", (None,), "int64"), "labels"),  # of boxes: a class may occur several times
    ],
)
def test_what_class_counts_are_numbers_of(spec, unit):
    assert counted(spec) == unit


def test_a_text_of_two_lines_is_drawn_in_one(make_dataset):
    sheets = []
    for text in ("one two", "one\n two"):
        made = make_dataset(
            samples={"train": 1},
            make=lambda *_, text=text: {"image": np.full((24, 32, 3), 7, np.uint8), "text": text},
            codec={"image": codecs.Png(), "text": codecs.Text()},
            kinds={"image": "image", "text": "text"},
        )
        sheets.append(np.asarray(contact_sheet(open_dataset(made.path))))
    np.testing.assert_array_equal(*sheets)


def test_boxes_are_measured(make_dataset):
    boxes = [
        np.array([[0, 0, 12, 16]], np.float32),
        np.array([[0, 0, 32, 24], [4, 4, 4, 9], [np.nan, 0, 1e30, 1]], np.float32),
    ]
    made = make_dataset(
        samples={"train": 2},
        make=lambda rng, number: {"image": np.full((24, 32, 3), 7, np.uint8), "boxes": boxes[number]},
        codec={"image": codecs.Png(), "boxes": codecs.Raw()},
        kinds={"image": "image", "boxes": "boxes"},
    )
    data = open_dataset(made.path)
    contact_sheet(data)  # it draws them too
    stats = statistics_of(data)
    assert stats.distributions["objects"]["train"].quartiles[0::4] == (1, 3)
    assert stats.distributions["object size"]["train"].quartiles[0::4] == (0, 100)


def test_the_command(built, tmp_path, capsys):
    page = tmp_path / "stats.html"
    assert status_of("stats", built, "--json", "--html", page) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["duplicates"]["near_across"] == 0
    assert result["distributions"]["brightness"]["val"]["count"] == 3
    html = page.read_text()
    assert "<script" not in html
    assert html.count("<svg") == 2
    assert "48 in all samples" in html
    assert html.count("data:image/jpeg") == 5 + 4 + 2  # labels, splits
    assert status_of("stats", built) == 0
    assert "brightness" in capsys.readouterr().out


def test_the_page_says_how_many_classes_are_missing_in_a_split(build_folder, tmp_path):
    for place in ("train/a", "train/b", "train/c", "val/b"):
        save(tmp_path / "raw" / place / "1.png", natural(len(place)))
    page = tmp_path / "stats.html"
    status_of("stats", str(build_folder(tmp_path / "raw", tmp_path / "out")), "--html", page)
    html = page.read_text()
    assert "2 of 3 classes are missing in val" in html
    assert "missing in train" not in html


@pytest.mark.parametrize("is_damaged", [False, True])
def test_only_a_dataset_without_pictures_has_no_duplicates(make_dataset, capsys, is_damaged):
    """A record that cannot be read, whose hash would be computed, is an error and not that there is nothing to compare."""
    made = make_dataset(samples={"train": 4}, shards=1, fields=("image", "label") if is_damaged else ("label",))
    if is_damaged:
        (shard,) = made.path.glob("*.tfrecord-*")
        flip(shard, -40)
    assert status_of("stats", made.path, "--samples", 1, "--json") == is_damaged
    result = json.loads(capsys.readouterr().out)
    assert ("wrong checksum" in result["error"]["message"]) if is_damaged else (result["duplicates"] is None)


# --- in a notebook ----------------------------------------------------------------------------------------------------


def test_a_notebook_shows_splits_fields_and_six_pictures(photos):
    data = tfprep.open(photos.path)
    html = data._repr_html_()
    assert len(re.findall(r'<img alt="a sample" src="data:image/jpeg;base64,[\w+/=]+">', html)) == 6
    for cell in ("train", "50", "image", "uint8", *data.fields):
        assert f">{cell}</td>" in html
    assert "<script" not in html


def test_a_split_by_name_has_a_length_loaders_and_a_picture(photos):
    data = tfprep.open(photos.path)
    assert list(data) == list(data.splits)
    assert len(data["train"]) == data.splits["train"].samples == 50
    assert repr(data["train"]) == "<Subset of made/train: 50 samples>"
    one, other = (next(iter(of)) for of in (data["val"].numpy_loader(batch_size=4), data.numpy_loader("val", 4)))
    np.testing.assert_array_equal(one["image"], other["image"])
    assert data.show("val", samples=2, variants=1).height < data.show("val", samples=4, variants=1).height
    with pytest.raises(DatasetError, match="nowhere"):
        data["nowhere"]
