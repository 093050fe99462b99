"""The order of keys in a recipe never decides silently which bytes are which field: compared with TensorFlow's Example parser."""

from dataclasses import dataclass, replace

import numpy as np
import pytest

import tfprep
from tests.examples import read_records
from tests.photos import write_photos
from tfprep import Recipe, codecs
from tfprep.builder import BuildOptions, build_part, explain, finish_build, plan_build
from tfprep.dataset.verify import verify
from tfprep.fields import Kind
from tfprep.sources import Entry, Listing

tf = pytest.importorskip("tensorflow")

INLINE = BuildOptions(workers=0)
CODECS = {"one": codecs.Scalar(), "two": codecs.Scalar()}
FIELDS = "image m q one two"


@dataclass(frozen=True)
class Numbered:
    """Twelve images a.png and b.png with two labels each; `files` and `values` say which is which field."""

    files: tuple[str, ...] = ("image", "other")
    values: tuple[str, ...] = ("one", "two")

    def scan(self, root):
        kinds: dict[str, Kind] = {"image": "image", "other": "image", "one": "label", "two": "label"}
        if (root / "order").exists():  # as the columns of a table are listed
            kinds = {name: kinds[name] for name in (root / "order").read_text().split()}
        entries = (Entry(f"{n}", "train", (f"{n}.png", f"{n + 12}.png"), (n, 100 + n)) for n in range(12))
        return Listing(kinds, self.files, self.values, entries)


def channel(number):
    return lambda sample, generator: sample["image"][:, :, number].astype(np.float32) + number


def recipe(fields=FIELDS, **options):
    derived = {"m": channel(0), "q": channel(1)}
    store = {name: CODECS.get(name, codecs.Raw()) for name in fields.split()}
    return Recipe("keys", Numbered(), store, **{"derive": derived, "shards": {"train": 3}, **options})


@pytest.fixture(scope="module")
def photos_of_two(tmp_path_factory):
    return write_photos(tmp_path_factory.mktemp("raw"), 24, "{number}.png", noise=(7, 9))


@pytest.fixture
def raw(photos_of_two):
    yield photos_of_two
    (photos_of_two / "order").unlink(missing_ok=True)


@pytest.fixture
def out(tmp_path):
    return tmp_path / "out"


def build(recipe, out, raw):
    return tfprep.build(recipe, out, raw, options=INLINE)


def check(out):
    """Each field, by the span of the index, is the feature that TensorFlow finds in the record under its name."""
    data = tfprep.open(out)
    rows, checked = data.index("train", 0).to_pylist(), 0
    payloads = [payload for file in data.splits["train"].files[0] for _, payload in read_records(data.path / file.name)]
    first_label = next(name for name in data.fields if name in ("one", "two"))
    for row, payload, sample in zip(rows, payloads, data.samples("train"), strict=True):
        features = tf.train.Example.FromString(bytes(payload)).features.feature
        for name in ("m", "q"):
            start = row[f"{name}_offset"] - row["offset"] - 12  # the header of a record's frame
            content = features[name].bytes_list.value[0]
            assert payload[start : start + row[f"{name}_size"]] == content
            assert (sample[name] == np.frombuffer(content, np.float32).reshape(7, 9)).all()
            checked += 1
        assert row["label"] == features[first_label].int64_list.value[0]
        assert sample["one"] == int(row["key"]) == sample["two"] - 100
    assert checked == 24
    assert list(verify(out)) == []


@pytest.mark.parametrize(
    ("fields", "due"),
    [
        ("image q m one two", "nothing to build"),
        ("one image two q m", "nothing to build"),
        ("q m image one two", "nothing to build"),
        ("image m q two one", "the recipe changed: the first label of store"),
        ("other image m q one two", "the recipe changed: store['other'] added"),
    ],
)
def test_another_order_of_store_reads_the_same_fields(raw, out, fields, due):
    build(recipe(), out, raw)
    check(out)
    assert due in explain(plan_build(recipe(fields), out, raw))
    build(recipe(fields), out, raw)
    assert list(tfprep.open(out).fields) == fields.split()
    check(out)


def test_the_first_image_of_store_is_the_hashed_one(raw, out):
    build(recipe("image other"), out, raw)
    before = tfprep.open(out).index("train", 0, ["image_digest"]).to_pylist()
    assert build(recipe("other image"), out, raw).built_shards == 3
    assert tfprep.open(out).index("train", 0, ["image_digest"]).to_pylist() != before


def test_parts_whose_recipes_differ_only_in_the_order_make_one_dataset(raw, out):
    for part, fields in enumerate((FIELDS, "image q m one two", "one two q image m")):
        build_part(recipe(fields), out, raw, part=part, parts=3, options=INLINE)
    finish_build(recipe(), out, raw, options=INLINE)
    check(out)


@pytest.mark.parametrize("names", ["files", "values"])
def test_a_source_that_exchanges_the_names_of_its_columns_builds_again(raw, out, names):
    """The entries stay equal, so that only the order of the names says which file or value is which field."""
    before = recipe("image other one two")
    build(before, out, raw)
    (raw / "order").write_text("image one other two")
    assert explain(plan_build(before, out, raw)).endswith("the recipe changed: the kinds of the source")
    (raw / "order").unlink()
    after = replace(before, source=replace(before.source, **{names: getattr(before.source, names)[::-1]}))
    assert f"the {names} of the source" in explain(plan_build(after, out, raw))
    build(after, out, raw)
    build(after, out.with_name("fresh"), raw)
    both = [list(tfprep.open(folder).samples("train")) for folder in (out, out.with_name("fresh"))]
    for sample, expected in zip(*both, strict=True):
        assert all(np.array_equal(sample[name], expected[name]) for name in expected)
