"""Manifests from unknown sources: an entry that breaks a rule is a DatasetError with the file, the entry and the rule."""

import copy
import json
from pathlib import Path

import numpy as np
import pytest

from tfprep.dataset.manifest import FORMAT_VERSION, parse_manifest, seal
from tfprep.errors import DatasetError

PATH = Path("some/manifest.json")


@pytest.fixture(scope="module")
def document(photos):
    """A manifest with every kind of entry."""
    document = json.loads((photos.path / "manifest.json").read_bytes())
    del document["sha256"]
    document["recipe"] = {"name": "made", "geometry": [{"type": "Flip", "p": 0.5}]}
    document["class_counts"] = {"label": {"train": [20, 20, 10], "val": [4, 4, 3]}}
    document["versions"] = {"numpy": "2.0"}
    return document


def parse(document):
    return parse_manifest(seal(document).encode(), PATH)


def first_shard(document):
    return document["splits"]["train"]["files"][0][0]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d: d.update(name="a\0b"), "the name of a dataset is a letter followed by"),
        (lambda d: d.update(name="../evil"), "the name of a dataset is a letter followed by"),
        (lambda d: d.pop("fields"), "fields is missing"),
        (lambda d: d["splits"]["train"]["files"][1][0].update(records=1), "variant 1 holds"),
        (lambda d: d["splits"]["train"].update(samples="many"), "splits.train.samples is a whole number from 0 on, not 'many'"),
        (lambda d: d["splits"]["val"].update(rows_crc32c=[]), "splits.val.rows_crc32c does not have one number for each shard"),
        (lambda d: d["splits"]["val"].pop("rows_crc32c"), "splits.val.rows_crc32c is missing"),
        (lambda d: d.update(recipe=None), "recipe is an object, not None"),
        (lambda d: d.update(recipe=json.loads("[" * 70 + "]" * 70) and {"x": json.loads("[" * 70 + "]" * 70)}), "nested"),
        (lambda d: d.update(recipe={"derive": []}), "recipe.derive is an object, not list"),
        (lambda d: d.update(recipe={"derive": {"clicks": "x"}}), "recipe.derive.clicks is an object, not 'x'"),
        (lambda d: d.update(recipe={"p": float("inf")}), "its numbers are finite, .* not JSON compliant"),
        (lambda d: d["statistics"]["image"].update(mean=[float("inf")] * 3), "its numbers are finite"),
        (lambda d: d["statistics"]["image"].update(std=[-1.0] * 3), "std is not negative"),
        (lambda d: d["statistics"]["image"].update(mean=[0.0], std=[1.0]), "not have one mean per channel"),
        (lambda d: first_shard(d).update(name="a\0b"), "its name cannot be 'a\\\\x00b'"),
        (lambda d: first_shard(d).update(name="../../etc/passwd"), "cannot be '../../etc/passwd'"),
        (lambda d: first_shard(d).update(name="/etc/passwd"), "cannot be '/etc/passwd'"),
        (lambda d: first_shard(d).update(name="a\\b"), "cannot be"),
        (lambda d: first_shard(d).update(name="x" * 300), "at most 255 bytes"),
        (lambda d: first_shard(d).update(name="index.parquet"), "names a file twice"),
        (lambda d: first_shard(d).update(bytes=-1), "bytes is a whole number from 0 on, not -1"),
        (lambda d: first_shard(d).update(bytes=2**70), "bytes is a whole number"),
        (lambda d: first_shard(d).update(records=2**40), "records do not fit into"),
        (lambda d: first_shard(d).update(records=True), "records is a whole number from 0 on, not True"),
        (lambda d: first_shard(d).update(records=1.0), "records is a whole number"),
        (lambda d: first_shard(d).update(sha256="Z" * 64), "sha256 is a SHA-256"),
        (lambda d: d["splits"]["train"].update(samples=51), "51 samples are listed"),
        (lambda d: d["splits"]["train"].update(files=[]), "splits.train.files names no shard"),
        (lambda d: d["splits"]["train"].update(files={"0": []}), "splits.train.files is a list"),
        (lambda d: d["splits"].update({"a/b": d["splits"]["val"]}), "the name of a split is a letter"),
        (lambda d: d.update(splits={}), "at least one field and one split"),
        (lambda d: d["fields"].update({"../../evil": d["fields"]["image"]}), "the name of a field is a letter"),
        (lambda d: d["fields"].update({"a\x1b[31m": d["fields"]["image"]}), "the name of a field is a letter"),
        (lambda d: d["fields"]["image"]["spec"].update(kind=["image"]), r"spec.kind is one of image, .*, not list"),
        (lambda d: d["fields"]["image"]["spec"].update(shape=[2**40, 2**40, 3]), "value of more than"),
        (lambda d: d["fields"]["image"]["spec"].update(shape=[-1, 5, 3]), r"shape\[0\] is a whole number"),
        (lambda d: d["fields"]["image"]["spec"].update(shape=[1] * 40), "at most 8 dimensions"),
        *[
            (lambda d, dtype=dtype: d["fields"]["image"]["spec"].update(dtype=dtype), "plain name of a type of numbers")
            for dtype in ("O", "f4", "6|", ",.", "a")
        ],
        (lambda d: d["fields"]["image"]["spec"].update(dtype="string"), "'string' for text and for nothing else"),
        (lambda d: d["fields"]["image"].update(codec={"codec": ["jpeg"]}), "codec is not one that tfprep writes"),
        (lambda d: d["fields"]["image"]["codec"].update(codec="zip"), "unknown codec 'zip'"),
        (lambda d: d["fields"]["image"].update(codec={"codec": "jpeg", "quality": 1000}), "codec is not one"),
        (lambda d: d["fields"]["image"].update(codec={"codec": "jpeg", "evil": 1}), "codec is not one"),
        (lambda d: d["fields"]["image"].update(codec={"codec": "text"}), "codec is not one"),
        (lambda d: d["fields"]["image"].update(follows=["crop", "bend"]), "follows holds names of crop, flip, resize, warp"),
        (lambda d: d["fields"]["image"].pop("follows"), "follows"),
        (lambda d: d["classes"].update(label=["cat", None, "owl"]), r"classes.label\[1\] is text, not None"),
        (lambda d: d["classes"].update(label=["cat", "\ud800", "owl"]), "can be written as UTF-8"),
        (lambda d: d["class_counts"]["label"].update(train=[1, 2]), "not have one count for each of 3 classes"),
        (lambda d: d["class_counts"]["label"].update(test=[1, 2, 3]), "names a split that is not there"),
        (lambda d: d["class_counts"].update(other={}), "of no field with classes"),
        (lambda d: d.update(versions=None), "versions is an object"),
        (lambda d: d["files"].pop("index.parquet"), "files does not name index.parquet"),
        (lambda d: d["files"].update({"../x": d["files"]["index.parquet"]}), r"cannot be '../x'"),
        (lambda d: d["files"]["index.parquet"].update(bytes="0"), "bytes is a whole number"),
        (lambda d: d.update(rejected=None), "rejected is a whole number"),
    ],
)  # fmt: skip
def test_an_entry_that_breaks_a_rule_is_named(document, change, message):
    changed = copy.deepcopy(document)
    change(changed)
    with pytest.raises(DatasetError, match=message) as caught:
        parse(changed)
    assert str(caught.value).startswith("some/manifest.json is damaged: ")
    assert str(caught.value).isprintable()


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"null", b"[]", b"1e999", b"\xff\xfe", b"[" * 100_000, b'{"a":' * 100_000, b"9" * 5000, b" " * 200],
    ids=["empty", "cut", "null", "list", "1e999", "no UTF-8", "deep lists", "deep objects", "long number", "spaces"],
)
def test_a_file_that_is_not_a_manifest(content):
    with pytest.raises(DatasetError, match=r"some/manifest\.json"):
        parse_manifest(content, PATH)


@pytest.mark.parametrize(
    ("version", "advice"),
    [(FORMAT_VERSION + 1, "upgrade tfprep"), (FORMAT_VERSION - 1, "build it again with this version"), (True, "")],
)
def test_other_versions_of_the_format_are_refused(document, version, advice):
    with pytest.raises(DatasetError, match=f"format version {version}, this tfprep reads .*; {advice}"):
        parse({**document, "format_version": version})


def test_a_huge_manifest_is_not_parsed(monkeypatch):
    monkeypatch.setattr("tfprep.dataset.manifest.MOST_BYTES", 100)
    with pytest.raises(DatasetError, match="has 101 bytes; a manifest has at most 100"):
        parse_manifest(b" " * 101, PATH)


@pytest.mark.parametrize("value", [None, True, -1, 2**70, 1e308, "", "x" * 10_000, "\x1b[2J", [], {}, [[]], {"": None}])
def test_any_value_anywhere_is_read_or_a_dataset_error(document, value):
    """Every entry of the document, at any depth, is replaced by each value."""

    def ways(node, way=()):
        yield way
        items = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
        for name, inner in items:
            yield from ways(inner, (*way, name))

    draws = np.random.default_rng(0)
    every = [way for way in ways(document) if way]
    for number in draws.permutation(len(every))[:200]:
        changed = copy.deepcopy(document)
        *above, last = every[number]
        node = changed
        for name in above:
            node = node[name]
        node[last] = value
        message = ""
        try:
            parse(changed).to_json()
        except DatasetError as error:
            message = str(error)
        assert message.isprintable()
        assert len(message) < 500


def test_a_correct_manifest_is_read_and_names_that_are_not_utf8_are_kept(document):
    assert json.loads(parse(document).to_json()) == json.loads(seal(document))
    changed = copy.deepcopy(document)
    changed["classes"]["label"] = ["caf\udce9", "größe", "owl"]
    assert parse(changed).classes["label"] == ("caf\udce9", "größe", "owl")
    assert "größe" in seal({"a": "größe"})
