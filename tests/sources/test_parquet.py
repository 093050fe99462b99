"""Parquet in the layout of Hugging Face, as pyarrow writes it and https://huggingface.co/docs/hub/datasets-image describes it."""

import json
import os

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.sources.building import built, fields_of, picture, png
from tfprep import sources
from tfprep.errors import SourceError

NAMES = ["tabby cat", "10", "dog"]
IMAGE = pa.struct({"bytes": pa.binary(), "path": pa.string()})
FEATURES = {
    "image": {"_type": "Image"},
    "mask": {"_type": "Image"},
    "label": {"names": NAMES, "_type": "ClassLabel"},
    "objects": {
        "feature": {"bbox": {"feature": {"dtype": "float32", "_type": "Value"}, "length": 4, "_type": "Sequence"},
                    "category": {"names": ["a", "b"], "_type": "ClassLabel"}},
        "_type": "Sequence",
    },
}  # fmt: skip


def row(number):
    return {
        "image": {"bytes": png(picture(number)), "path": f"{number}.png"},
        "mask": {"bytes": png(np.full((40, 56), number, np.uint8)), "path": None},
        "label": number % 3,
        "objects": {"bbox": [[1.0, 2.0, 3.0 + n, 4.0] for n in range(number % 3)],
                    "category": [n % 2 for n in range(number % 3)]},
        "caption": f"picture {number}",
    }  # fmt: skip


SCHEMA = pa.schema({
    "image": IMAGE, "mask": IMAGE, "label": pa.int64(), "caption": pa.string(),
    "objects": pa.struct({"bbox": pa.list_(pa.list_(pa.float32(), 4)), "category": pa.list_(pa.int64())}),
})  # fmt: skip


def write(path, rows, features=FEATURES, schema=SCHEMA):
    path.parent.mkdir(parents=True, exist_ok=True)
    metadata = {} if features is None else {"huggingface": json.dumps({"info": {"features": features}})}
    pq.write_table(pa.Table.from_pylist(rows, schema.with_metadata(metadata)), path, row_group_size=4)


SOURCE = sources.Table(
    "data/{split}-*-of-*.parquet", image="image", label="label", box_format="xywh",
    fields={"mask": ("mask", "mask"), "boxes": ("boxes", "objects.bbox"), "kinds": ("label", "objects.category"),
            "text": ("text", "caption")},
)  # fmt: skip


@pytest.fixture
def root(tmp_path):
    root = tmp_path / "raw"
    write(root / "data/train-00000-of-00002.parquet", [row(n) for n in range(6)])
    write(root / "data/train-00001-of-00002.parquet", [row(n) for n in range(6, 9)])
    write(root / "data/test-00000-of-00001.parquet", [row(9)])
    return root


def check(fields):
    names = {f"data/train-00000-of-00002.parquet/{n + 1}": n for n in range(6)}
    names |= {f"data/train-00001-of-00002.parquet/{n - 5}": n for n in range(6, 9)}
    names |= {"data/test-00000-of-00001.parquet/1": 9}
    assert set(fields) == set(names)
    for key, number in names.items():
        found = fields[key]
        assert found["split"] == key.partition("/")[2].partition("-")[0]
        np.testing.assert_array_equal(found["image"], picture(number))
        np.testing.assert_array_equal(found["mask"], np.full((40, 56), number))
        assert (int(found["label"]), found["text"]) == (number % 3, f"picture {number}")
        boxes = [[1, 2, 4 + n, 6] for n in range(number % 3)]
        np.testing.assert_array_equal(found["boxes"], np.reshape(boxes, (-1, 4)))
        assert found["kinds"].tolist() == [n % 2 for n in range(number % 3)]


def test_fields_and_class_names_of_the_metadata(root, tmp_path, staging):
    fields = fields_of(SOURCE, root, tmp_path / "out")
    check(fields)
    assert SOURCE.scan(root).classes == {"label": tuple(NAMES), "kinds": ("a", "b")}
    copies = sorted(staging.iterdir())
    assert len(copies) == 6  # image and mask of three files
    times = [copy.stat().st_mtime_ns for copy in copies]
    list(SOURCE.scan(root).entries)
    assert [copy.stat().st_mtime_ns for copy in sorted(staging.iterdir())] == times
    write(root / "data/test-00000-of-00001.parquet", [row(9), row(10)])
    assert len(list(SOURCE.scan(root).entries)) == 11
    assert len(list(staging.iterdir())) == 6


@pytest.mark.parametrize("damage", [lambda copy: os.truncate(copy, copy.stat().st_size // 2), os.unlink])
def test_a_copy_that_was_cut_short_or_lost_is_made_again(root, tmp_path, staging, damage):
    """By a disk that was full, a file system that lost the end of a file, or a user."""
    built(SOURCE, root, tmp_path / "out")
    copies = sorted(staging.iterdir())
    for copy in copies:
        damage(copy)
    check(built(SOURCE, root, tmp_path / "again")[0])
    assert sorted(staging.iterdir()) == copies


def test_objects_as_a_list_of_structs(tmp_path):
    """The way of datasets 4 and later, `List({...})`."""
    objects = pa.list_(pa.struct({"bbox": pa.list_(pa.float32(), 4), "category": pa.int64()}))
    features = {"objects": {"feature": FEATURES["objects"]["feature"], "_type": "List"}}
    rows = [{"image": row(n)["image"], "objects": [{"bbox": [n, 1, 5, 6], "category": 1}] * n} for n in range(3)]
    write(tmp_path / "raw/a.parquet", rows, features, pa.schema({"image": IMAGE, "objects": objects}))
    source = sources.Table("a.parquet", image="image", fields={"kinds": ("label", "objects.category"),
                                                              "boxes": ("boxes", "objects.bbox")})  # fmt: skip
    fields = fields_of(source, tmp_path / "raw", tmp_path / "out")
    np.testing.assert_array_equal(fields["a.parquet/3"]["boxes"], [[2, 1, 5, 6]] * 2)
    assert fields["a.parquet/3"]["kinds"].tolist() == [1, 1]
    assert source.scan(tmp_path / "raw").classes == {"kinds": ("a", "b")}


def test_bytes_without_a_struct_or_metadata(tmp_path):
    schema = pa.schema({"image": pa.binary(), "label": pa.string()})
    write(
        tmp_path / "raw/a.parquet", [{"image": row(n)["image"]["bytes"], "label": "xy"[n % 2]} for n in range(3)], None,
        schema,
    )  # fmt: skip
    source = sources.Table("a.parquet", image="image", label="label")
    fields = fields_of(source, tmp_path / "raw", tmp_path / "out")
    np.testing.assert_array_equal(fields["a.parquet/3"]["image"], picture(2))
    assert source.scan(tmp_path / "raw").classes == {"label": ("x", "y")}
    only = sources.Table("a.parquet", image="image")
    assert len(built(only, tmp_path / "raw", tmp_path / "only")[0]) == 3


def test_odd_rows_are_rejected(tmp_path):
    rows = [row(n) for n in range(5)]
    rows[1]["image"] = None
    rows[2]["image"] = {"bytes": None, "path": "elsewhere.png"}
    rows[3]["image"] = {"bytes": b"no image", "path": "3.png"}
    rows[4]["image"] = {"bytes": b"", "path": "4.png"}
    write(tmp_path / "raw/a.parquet", rows)
    fields, rejected = built(sources.Table("a.parquet", image="image"), tmp_path / "raw", tmp_path / "out")
    assert set(fields) == {"a.parquet/1"}
    assert "there is no member 'image of row 2' in a.parquet" in rejected["a.parquet/2"]
    assert "No such file" in rejected["elsewhere.png"]
    assert {"a.parquet/4", "a.parquet/5"} <= set(rejected)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda path: path.write_bytes(path.read_bytes()[:-200]), r"a\.parquet cannot be read as \.parquet"),
        (lambda path: path.write_bytes(b""), r"cannot be read as \.parquet"),
        (lambda path: write(path, [{**row(1), "label": 7}]), r"row 1, 'label': the metadata names 3 classes, and this is 7"),
        (lambda path: write(path, [row(1)], "text"), "metadata of Hugging Face cannot be read"),
        (
            lambda path: write(path, [row(1)], {**FEATURES, "label": {"names": ["x", "x"], "_type": "ClassLabel"}}),
            "two are the same",
        ),
    ],
    ids=["truncated", "empty", "class 7", "metadata", "names twice"],
)  # fmt: skip
def test_broken_files_are_named(tmp_path, change, message):
    path = tmp_path / "raw/a.parquet"
    write(path, [row(n) for n in range(4)])
    change(path)
    with pytest.raises(SourceError, match=message):
        list(sources.Table("a.parquet", image="image", label="label").scan(tmp_path / "raw").entries)


def test_a_page_with_another_checksum_is_damaged(tmp_path):
    """Spark writes checksums; Arrow does on request."""
    ages = pa.table({"image": ["0.png", "1.png", "2.png"], "age": [1.25, 7.5, 9.0]})
    options = {"use_dictionary": False, "compression": "none", "write_page_checksum": True}
    pq.write_table(ages, tmp_path / "a.parquet", **options)
    data = (tmp_path / "a.parquet").read_bytes()
    assert data.count(np.float64(7.5).tobytes()) == 1
    damaged = data.replace(np.float64(7.5).tobytes(), np.float64(7.0).tobytes(), 1)
    (tmp_path / "a.parquet").write_bytes(damaged)
    source = sources.Table("a.parquet", image="image", fields={"age": ("scalar", "age")})
    with pytest.raises(SourceError, match=r"a\.parquet cannot be read as \.parquet: .*(CRC|checksum)"):
        list(source.scan(tmp_path).entries)


def test_copies_in_a_folder_relative_to_the_current_one(root, tmp_path, monkeypatch):
    monkeypatch.delenv("TFPREP_STAGING")
    monkeypatch.setenv("XDG_CACHE_HOME", "cache")
    monkeypatch.chdir(tmp_path)
    check(fields_of(SOURCE, root, tmp_path / "out"))
    assert len(list((tmp_path / "cache/tfprep/staging").iterdir())) == 6


def test_a_user_without_a_home_folder_is_told_to_name_one(root, tmp_path, monkeypatch):
    """As in a container with a number for its user. Python leaves the tilde in the path."""
    monkeypatch.delenv("TFPREP_STAGING")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(os.path, "expanduser", lambda path: path)
    with pytest.raises(SourceError, match=r"no home folder.*TFPREP_STAGING"):
        list(SOURCE.scan(root).entries)
    assert not (tmp_path / "~").exists()


def test_no_room_for_a_copy(root, monkeypatch):
    full = open("/dev/full", "wb", buffering=0)  # noqa: SIM115
    monkeypatch.setattr("tfprep.sources.raw.whole_file", lambda path: full)
    with pytest.raises(
        SourceError, match=r"test-00000-of-00001\.parquet: its copy in .*staging does not fit.*TFPREP_STAGING"
    ):
        list(SOURCE.scan(root).entries)
