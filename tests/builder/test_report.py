"""`report.html` describes the build, opens without a network, and runs no scripts."""

import base64
import html.parser
import io
import json
import re
import shutil

import pytest
from PIL import Image

import tfprep
from tfprep import Recipe, codecs, sources
from tfprep.builder import BuildOptions
from tfprep.dataset import open_dataset

pytestmark = pytest.mark.usefixtures("reports")


class Page(html.parser.HTMLParser):
    """The elements of a page, and whether every element was closed."""

    VOID = frozenset({"meta", "img", "br"})

    def __init__(self, out):
        super().__init__()
        self.text = (out / "current/report.html").read_text()
        self.open, self.seen, self.parts = [], [], []
        self.feed(self.text)
        self.words = " ".join(" ".join(self.parts).split())

    def handle_starttag(self, tag, attrs):
        self.seen.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.parts.append(data)


def test_a_page(full):
    """It has counts, classes, rejected samples, times and pictures, and nothing from outside."""
    full.add("train/cat/cut", 1).write_bytes((full.data / "train/cat/000.jpg").read_bytes()[:-80])
    full.add("train/cat/<script>alert(1)<", 1).write_bytes(b"")
    shutil.copy(full.mask("train/cat/000"), full.mask("train/cat/lost"))
    full.build()
    page, data = Page(full.out), open_dataset(full.out)
    assert page.open == []
    assert not {tag for tag, _ in page.seen} & {"script", "link", "iframe", "object"}
    for _, attributes in page.seen:
        assert attributes.get("src", "data:image/jpeg;base64,").startswith("data:image/jpeg;base64,")
        assert "href" not in attributes
        assert not any(name.startswith("on") for name in attributes)
    assert "prefers-color-scheme:dark" in page.text
    assert "&lt;script&gt;alert(1)&lt;" in page.text
    assert not re.search(r"(https?:)?//", re.sub(r"base64,[A-Za-z0-9+/=]+", "", page.text))
    for split in data.splits.values():
        assert f"{split.samples:,} {split.variants} {split.shards}" in page.words
    for name, counts in data.manifest.class_counts["mask"].items():
        assert name in page.words
        assert all(f"{count:,}" in page.words for count in counts)
    for words in (
        "30 samples 54 records", "2 of 32 samples were left out", "1 decode of image not a whole",
        "1 decode of image the file is empty (0 bytes)", "1: mask without its image",
        "read", "decode", "geometry", "derive", "encode", "write",
    ):  # fmt: skip
        assert words in page.words
    pictures = [attributes for tag, attributes in page.seen if tag == "img"]
    for attributes in pictures:
        with Image.open(io.BytesIO(base64.b64decode(attributes["src"].split(",")[1]))) as image:
            image.load()
    assert [attributes["alt"] for attributes in pictures[-2:]] == ["samples of train", "samples of val"]
    assert len(pictures) == 2 * 8 + 2  # labels, splits


def test_pictures_in_two_splits_are_shown(full):
    shutil.copy(full.data / "train/cat/004.jpg", full.data / "val/cat/copied.jpg")
    shutil.copy(full.mask("train/cat/004"), full.mask("val/cat/copied"))
    alike = "equal files train train/cat/004.jpg val val/cat/copied.jpg"
    full.build()
    page = Page(full.out)
    assert "1 pairs alike across splits" in page.words
    assert alike in page.words
    full.change_recipe("seed=3", "seed=4")
    full.build(hash=False)
    page = Page(full.out)
    assert alike in page.words
    assert "31 samples have no perceptual hash" in page.words


def test_a_report_that_fails_does_not_fail_the_build(full, monkeypatch):
    monkeypatch.setattr("tfprep.inspect.report.report_page", lambda *arguments: 1 / 0)
    events = []
    assert full.build(on_event=events.append).samples == 30
    assert "report.html was not written: ZeroDivisionError" in next(e.text for e in events if e.name == "report")
    assert open_dataset(full.out)


def test_empty_classes_splits_and_fields_are_named(tmp_path):
    rows = [
        ("0.png", "train", "a", [[1, 2, 5, 6]], [0]),
        ("1.png", "val", "b", [], []),
        ("none.png", "test", "a", [], []),
    ]
    for name, *_ in rows[:2]:
        Image.new("RGB", (16, 12)).save(tmp_path / name)
    lines = [dict(zip(("file", "set", "kind", "boxes", "kinds"), row, strict=True)) for row in rows]
    (tmp_path / "t.jsonl").write_text("\n".join(map(json.dumps, lines)))
    fields = {"boxes": ("boxes", "boxes"), "kinds": ("label", "kinds")}
    classes = {"label": ("a", "b", "c"), "kinds": ("x",)}
    source = sources.Table("t.jsonl", "file", "kind", fields, classes, splits="set")
    store = {"image": codecs.Png(), **dict.fromkeys(("label", "boxes", "kinds"), codecs.Scalar())}
    events = []
    recipe = Recipe(name="few", source=source, store=store)
    tfprep.build(recipe, tmp_path / "out", tmp_path, options=BuildOptions(workers=0), on_event=events.append)
    assert [event.text for event in events if event.name == "empty"] == [
        "the split 'test' has no sample; all of its samples were rejected (rejects.jsonl)",
        "label: 2 of 3 classes have no label in 'train': b, c",
        "label: 2 of 3 classes have no label in 'val': a, c",
        "kinds: no sample of 'val' has a label of any class",
    ]


def test_a_split_with_another_share_than_asked_is_named(tmp_path):
    for n in range(4):
        Image.new("RGB", (16, 12)).save(tmp_path / f"patient1_{n}.png")
    splits = sources.Fractions(train=0.5, val=0.5, group_by=r"(patient\d)_")
    recipe = Recipe(name="few", source=sources.Folder("**", splits=splits), store={"image": codecs.Png()})
    events = []
    tfprep.build(recipe, tmp_path / "out", tmp_path, options=BuildOptions(workers=0), on_event=events.append)
    empty = ({"train", "val"} - {*tfprep.open(tmp_path / "out").splits}).pop()
    text = f"the split {empty!r} has 0% of the samples, and Fractions asks for 50%"
    assert [event.text.split(":")[0] for event in events if event.name == "empty"] == [text]
