"""Tables in every format, compared with Python's csv and json readers; every error names its row."""

import csv
import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.sources.building import built, folder, write_picture
from tfprep import codecs
from tfprep.errors import BuildError, SourceError
from tfprep.sources import Fractions, Table, rows
from tfprep.sources.detection.detect import detect


def write_csv(path, table, delimiter=","):
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(table[0]), delimiter=delimiter)
        writer.writeheader()
        writer.writerows(table)


def write_tsv(path, table):
    write_csv(path, table, "\t")


def write_jsonl(path, table):
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in table), encoding="utf-8")


def write_parquet(path, table):
    pq.write_table(pa.Table.from_pylist([dict(row) for row in table]), path, row_group_size=3)


WRITERS = {
    "csv": write_csv, "tsv": write_tsv, "jsonl": write_jsonl, "ndjson": write_jsonl, "parquet": write_parquet,
}  # fmt: skip
ANIMALS = [
    {"file": "img/b c.jpg", "kind": "dog", "age": 3, "weight": 2.5, "says": 'wuff, "wau"\nwau', "set": "train"},
    {"file": "img/ü.jpg", "kind": "cat", "age": 12, "weight": 4.0, "says": "NA", "set": "val"},
    {"file": "./img//x/../d.png", "kind": "dog", "age": 0, "weight": -1e-3, "says": "007", "set": "train"},
]
SOURCE = {
    "image": "file",
    "label": "kind",
    "fields": {
        "age": ("scalar", "age"), "weight": ("scalar", "weight"), "caption": ("text", "says"),
        "mask": ("mask", "masks/{age}-{kind}.png"),
    },
    "splits": "set",
}  # fmt: skip


def table(tmp_path, content, suffix="jsonl", **options):
    WRITERS[suffix](tmp_path / f"t.{suffix}", content)
    return list(Table(f"t.{suffix}", **{"image": "file", **options}).scan(tmp_path).entries)


@pytest.mark.parametrize("suffix", WRITERS)
def test_every_format_gives_the_same_entries(tmp_path, suffix):
    WRITERS[suffix](tmp_path / f"t.{suffix}", ANIMALS)
    listing = Table(f"t.{suffix}", **SOURCE).scan(tmp_path)
    assert dict(listing.kinds) == {
        **{"image": "image", "label": "label", "age": "scalar", "weight": "scalar", "caption": "text", "mask": "mask"}
    }
    assert (listing.files, listing.values) == (("image", "mask"), ("label", "age", "weight", "caption"))
    assert listing.classes == {"label": ("cat", "dog")}
    entries = list(listing.entries)
    assert [(e.key, e.split, e.files) for e in entries] == [
        ("img/b c.jpg", "train", ("img/b c.jpg", "masks/3-dog.png")),
        ("img/ü.jpg", "val", ("img/ü.jpg", "masks/12-cat.png")),
        ("img/d.png", "train", ("img/d.png", "masks/0-dog.png")),
    ]
    assert [e.values for e in entries] == [(1, 3, 2.5, 'wuff, "wau"\nwau'), (0, 12, 4.0, "NA"), (1, 0, -1e-3, "007")]
    for entry in entries:
        assert [type(value) for value in entry.values] == [int, int, float, str]


def test_a_table_of_blank_lines_has_no_rows(tmp_path):
    (tmp_path / "t.csv").write_text("\n\n")
    assert (rows.column_names(tmp_path / "t.csv"), list(rows.rows_of(tmp_path / "t.csv", []))) == ([], [])


@pytest.mark.parametrize("suffix", ["csv", "jsonl", "parquet"])
def test_many_batches(tmp_path, monkeypatch, suffix):
    monkeypatch.setattr(rows, "BATCH_ROWS", 7)
    content = [{"file": f"{i:04d}.jpg", "kind": f"c{i % 5}", "x": i / 2} for i in range(400)]
    entries = table(tmp_path, content, suffix, label="kind", fields={"x": ("scalar", "x")})
    assert [(e.key, *e.values) for e in entries] == [(f"{i:04d}.jpg", i % 5, i / 2) for i in range(400)]


def test_only_one_batch_is_in_memory_at_a_time(tmp_path, monkeypatch):
    monkeypatch.setattr(rows, "BATCH_ROWS", 10)
    write_jsonl(tmp_path / "t.jsonl", [{"file": f"{i}.jpg"} for i in range(100)] + [{"file": None}])
    entries = Table("t.jsonl", image="file").scan(tmp_path).entries
    assert [next(entries).key for _ in range(100)] == [f"{i}.jpg" for i in range(100)]
    with pytest.raises(SourceError, match="row 101"):
        next(entries)


LABEL, N = {"label": "kind"}, {"fields": {"n": ("scalar", "n")}}
LISTS = {"boxes": ("boxes", "boxes"), "points": ("points", "eyes"), "vector": ("scalar", "v")}
VALUES = [
    # Only the sample of an empty cell is rejected.
    ([{"kind": kind} for kind in ("a", None, "b", "a")], LABEL, [(0,), (None,), (1,), (0,)], ["csv", "jsonl", "parquet"]),
    ([{"n": 1}, {"n": None}], N, [(1,), (None,)], ["csv", "jsonl", "parquet"]),
    ([{}, {"n": "wau"}], {"fields": {"n": ("text", "n")}}, [(None,), ("wau",)], ["jsonl"]),
    ([{"n": float("nan")}, {"n": 7.5}], {"fields": {"n": ("text", "n")}}, [(None,), ("7.5",)], ["jsonl", "parquet"]),
    # Classes that are numbers are sorted by value; given ones have their numbers, or are these.
    ([{"kind": n} for n in (10, 2, 0, 1, *range(3, 10))], LABEL, [(n,) for n in (10, 2, 0, 1, *range(3, 10))], list(WRITERS)),
    ([{"kind": "b"}, {"kind": "a"}], {**LABEL, "classes": {"label": ("b", "a")}}, [(0,), (1,)], ["jsonl"]),
    ([{"kind": 1}, {"kind": 0}], {**LABEL, "classes": {"label": ("b", "a")}}, [(1,), (0,)], ["jsonl"]),
    ([{"kind": 7}, {"kind": 3}], {**LABEL, "classes": {"label": ("3", "7")}}, [(1,), (0,)], ["jsonl"]),
    ([{"kind": True}, {"kind": False}], {**LABEL, "classes": {"label": ("false", "true")}}, [(1,), (0,)], ["jsonl"]),
    ([{"kind": 1.0}, {"kind": 0.0}], {**LABEL, "classes": {"label": ("x", "y")}}, [(1,), (0,)], ["jsonl"]),
    ([{"kind": n} for n in (10.0, 2.0, 0.0)], LABEL, [(2,), (1,), (0,)], list(WRITERS)),
    ([{"n": 1.5}, {"n": float("nan")}], N, [(1.5,), (None,)], list(WRITERS)),
    # Several classes in a cell, in a list, or in columns.
    ([{"kind": "a|b"}, {"kind": "b"}, {"kind": ""}], {**LABEL, "separator": "|"}, [([0, 1],), ([1],), (None,)], ["jsonl"]),
    ([{"kind": ["b", "a"]}, {"kind": []}], LABEL, [([1, 0],), ([],)], ["jsonl", "parquet"]),
    ([{"a": 1, "b": 0.0}, {"a": "0", "b": "1.0"}], {"label": ("b", "a")}, [(1,), (0,)], ["jsonl"]),
    (
        [{"a": 1, "b": "-1"}, {"a": True, "b": "True"}, {"a": None, "b": 1}],
        {"label": ("a", "b")}, [([0],), ([0, 1],), (None,)], ["jsonl"],
    ),
    # A scalar is an integer if its whole column is.
    ([{"n": [1]}, {"n": [2]}], N, [([1],), ([2],)], ["jsonl", "parquet"]),
    (
        [*({"n": n, "m": n} for n in range(9)), {"n": 9, "m": 9.5}], {"fields": {**N["fields"], "m": ("scalar", "m")}},
        [*((n, float(n)) for n in range(9)), (9, 9.5)], list(WRITERS),
    ),
    (
        [{"boxes": [[0.0, 0.0, 2.0, 2.5]], "eyes": [[1, 2], [3, 4]], "v": [1, 2]}, {"boxes": [], "eyes": [], "v": [3, 0.5]}],
        {"fields": LISTS}, [([[0.0, 0.0, 2.0, 2.5]], [[1, 2], [3, 4]], [1.0, 2.0]), ([], [], [3.0, 0.5])], ["jsonl", "parquet"],
    ),
]  # fmt: skip


@pytest.mark.parametrize(("content", "options", "values", "suffixes"), VALUES)
def test_cells_become_values(tmp_path, content, options, values, suffixes):
    for suffix in suffixes:
        entries = table(tmp_path, [{"file": f"{n}.jpg", **row} for n, row in enumerate(content)], suffix, **options)
        assert [repr(entry.values) for entry in entries] == list(map(repr, values)), suffix  # 1 is not 1.0


def test_columns_of_classes_with_0_and_minus_1_are_refused(tmp_path, monkeypatch):
    """As CheXpert has them, also where only a later batch has them."""
    monkeypatch.setattr(rows, "BATCH_ROWS", 3)
    content = [{"file": f"{n}.jpg", "a": 1.0, "b": [1.0, 0.0, -1.0][n // 3]} for n in range(9)]
    with pytest.raises(SourceError, match=r"t\.csv: the columns of label hold 0 and -1, which may mean no and unknown"):
        table(tmp_path, content, "csv", label=("a", "b"))


def test_an_empty_label_is_of_no_stratum_and_a_flag_is_1_or_0(tmp_path):
    content = [{"file": f"{n}.jpg", "kind": kind} for n, kind in enumerate(["a", None, "b", "a"])]
    splits = Fractions(train=0.5, val=0.5, stratify="label")
    assert [e.values for e in table(tmp_path, content, label="kind", splits=splits)] == [(0,), (None,), (1,), (0,)]
    with pytest.raises(SourceError, match="row 2, 'a': expected 1 or 0"):
        table(tmp_path, [{"file": "1.jpg", "a": 1, "b": 0}, {"file": "2.jpg", "a": 2, "b": 0}], label=("a", "b"))


def test_marks_between_cells_and_other_encodings(tmp_path):
    for mark, name in ((";", "t.csv"), ("\t", "t.csv"), ("\t", "t.tsv")):
        rows = [["file", "kind", "n"], ["a.jpg", "caf\u00e9", "0.5"], ["b.jpg", "th\u00e9, noir", "1.25"]]
        (tmp_path / name).write_text("\n".join(mark.join(row) for row in rows), "utf-8-sig")
        listing = Table(name, "file", "kind", fields={"n": ("scalar", "n")}).scan(tmp_path)
        assert [e.values for e in listing.entries] == [(0, 0.5), (1, 1.25)]
        assert listing.classes["label"] == ("caf\u00e9", "th\u00e9, noir")
    for content in ("file;kind\na.jpg;caf\u00e9", "fil\u00e9;kind\na.jpg;x"):
        for encoding in ("latin-1", "utf-16"):
            (tmp_path / "t.csv").write_bytes(content.encode(encoding))
            with pytest.raises(SourceError, match=r"t\.csv.*UTF-?8"):
                list(Table("t.csv", "file", "kind").scan(tmp_path).entries)
    (tmp_path / "t.csv").write_bytes("file;kind;note\na.jpg;x;caf\u00e9".encode("latin-1"))  # nobody asks for the note
    assert [e.values for e in Table("t.csv", "file", "kind").scan(tmp_path).entries] == [(0,)]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('a.jpg\t"Hello\nb.jpg\tworld\nc.jpg\t"end"\n', r"t\.tsv, line 4: .* expected after '\"': double the quotes"),
        ('a.jpg\t"Hello\nb.jpg\tworld\n', r"t\.tsv, line 3: unexpected end of data"),
        ("a.jpg\tx\tx\n", r"t\.tsv, line 2: there are 3 cells, and 2 in the header"),
    ],
)
def test_a_quote_does_not_take_rows_into_a_cell(tmp_path, text, message):
    (tmp_path / "t.tsv").write_text(f"file\tsays\n{text}")
    with pytest.raises(SourceError, match=message):
        list(Table("t.tsv", "file", fields={"says": ("text", "says")}).scan(tmp_path).entries)
    (tmp_path / "t.tsv").write_text(f'file\tsays\na.jpg\tsay "{"hi" * 200_000}" twice\n')
    (entry,) = Table("t.tsv", "file", fields={"says": ("text", "says")}).scan(tmp_path).entries
    assert entry.values == (f'say "{"hi" * 200_000}" twice',)


def test_spaces_before_a_cell_do_not_make_its_quotes_a_part_of_it(tmp_path):
    (tmp_path / "t.csv").write_text('file, kind, says\na.jpg, "cat", "so, so"\nb.jpg,cat," twice"\n')
    listing = Table("t.csv", "file", "kind", fields={"says": ("text", "says")}).scan(tmp_path)
    assert [entry.values for entry in listing.entries] == [(0, "so, so"), (0, " twice")]
    assert listing.classes["label"] == ("cat",)


def test_images_in_any_folder_and_splits_by_their_paths(tmp_path):
    for path in ("train/x/1.jpg", "val/2.jpg"):
        (tmp_path / path).parent.mkdir(parents=True)
        (tmp_path / path).write_bytes(b"x")
    content = [{"id": 1}, {"id": 2}]
    options = {"image": "**/{id}.jpg", "splits": "{split}/**"}
    assert [(e.key, e.split) for e in table(tmp_path, content, **options)] == [
        ("train/x/1.jpg", "train"), ("val/2.jpg", "val")
    ]  # fmt: skip
    (tmp_path / "val/1.jpg").write_bytes(b"x")
    with pytest.raises(SourceError, match=r"may be train/x/1\.jpg or val/1\.jpg"):
        table(tmp_path, content, **options)


SMALL = [  # files, options, (key, split, values) of the entries, and classes
    (
        {"t.csv": "file,kind,color\na.jpg,dog,red\nb.jpg,cat,blue\n"}, {"label": "kind", "fields": {"color": ("label", "color")}},
        [("a.jpg", "train", (1, 1)), ("b.jpg", "train", (0, 0))], {"label": ("cat", "dog"), "color": ("blue", "red")},
    ),
    (
        {"train.csv": "file,kind\na.jpg,x\n", "val.csv": "file,kind\nb.jpg,y\n"}, {"table": "{split}.csv", "label": "kind"},
        [("a.jpg", "train", (0,)), ("b.jpg", "val", (1,))], {"label": ("x", "y")},
    ),
    ({"t.csv": "file,id\na.jpg,7\na.jpg,8\n"}, {"key": "id"}, [("7", "train", ()), ("8", "train", ())], {}),
    # A byte order mark, and blank lines.
    ({"t.csv": "\ufefffile\na.jpg\n\nb.jpg\n"}, {}, [("a.jpg", "train", ()), ("b.jpg", "train", ())], {}),
    (
        {"t.jsonl": '\ufeff{"file": "a.jpg"}\n\n{"file": "b.jpg"}'}, {"table": "t.jsonl"},
        [("a.jpg", "train", ()), ("b.jpg", "train", ())], {},
    ),
    # Half a surrogate pair in a key can be stored.
    ({"t.jsonl": '{"file": "a.jpg", "id": "\\ud800"}'}, {"table": "t.jsonl", "key": "id"}, [(r"\xed\xa0\x80", "train", ())], {}),
]  # fmt: skip


@pytest.mark.parametrize(("files", "options", "expected", "classes"), SMALL)
def test_small_tables(tmp_path, files, options, expected, classes):
    for name, text in files.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    listing = Table(**{"table": "t.csv", "image": "file", **options}).scan(tmp_path)
    assert [(entry.key, entry.split, entry.values) for entry in listing.entries] == expected
    assert listing.classes == classes


UNKNOWN = "does not say whether a row has 2 or 3 numbers"
TWO = "it is points of float32 [H, 2], most samples have points of float32 [H, 3]"
BUILT = {  # the kind of a field, its cells, what is stored of them and why others are rejected
    "a point without a coordinate": ("points", [[[1, 2]], [[None, 2]]], {0: [[1, 2]]}, {1: "one of the points has no number"}),
    "no points": ("points", [[[1, 2, 1]], [], []], {0: [[1, 2, 1]]}, {1: UNKNOWN, 2: UNKNOWN}),
    "two and three numbers": ("points", [[[1, 2, 1]], [[1, 2]], [[3, 4, 0]]], {0: [[1, 2, 1]], 2: [[3, 4, 0]]}, {1: TWO}),
    "no numbers": ("scalar", [[], [1, 2], []], {0: [], 1: [1.0, 2.0], 2: []}, {}),
    "several sides": ("scalar", [[[1, 2], [3, 4]], [[1, 2, 3]]], {0: [[1, 2], [3, 4]], 1: [[1, 2, 3]]}, {}),
}  # fmt: skip


@pytest.mark.parametrize("case", BUILT)
def test_lists_of_numbers_are_stored_or_reject_their_image(tmp_path, case):
    kind, cells, stored, reasons = BUILT[case]
    root, options = folder(tmp_path / "raw", {f"{n}.png": n for n in range(len(cells))}), {}
    write_jsonl(root / "t.jsonl", [{"file": f"{n}.png", "n": cell} for n, cell in enumerate(cells)])
    source = Table("t.jsonl", "file", fields={"n": (kind, "n")})
    if case == "several sides":
        with pytest.raises(
            BuildError, match=r"'n' differ in several sides, \[None, None\].*store=\{'n': codecs.Raw\(\)\}"
        ):
            built(source, root, tmp_path / "refused")
        options = {"store": {"image": codecs.Raw(), "n": codecs.Raw()}}
    fields, rejected = built(source, root, tmp_path / "out", **options)
    assert {key: row["n"].tolist() for key, row in fields.items()} == {f"{n}.png": value for n, value in stored.items()}
    assert rejected.keys() == {f"{n}.png" for n in reasons}
    assert all(reason in rejected[f"{n}.png"] for n, reason in reasons.items())


def test_classes_and_other_rows_are_as_many_as_their_boxes(tmp_path):
    """Without geometry too, where nothing else looks at both."""
    root = folder(tmp_path / "raw", {f"{n}.png": n for n in range(3)})
    rows = [(["a", "b"], [[0, 0, 5, 5], [1, 1, 9, 9]], [1, 2]), (["a"], [[0, 0, 5, 5], [1, 1, 9, 9]], [1, 2])]
    rows += [(["a", "b"], [[0, 0, 5, 5], [1, 1, 9, 9]], [1])]
    write_jsonl(
        root / "t.jsonl",
        [{"file": f"{n}.png", "kind": kinds, "b": b, "age": age} for n, (kinds, b, age) in enumerate(rows)],
    )
    fields: dict = {"boxes": ("boxes", "b"), "ages": ("scalar", "age")}
    source = Table("t.jsonl", "file", **LABEL, fields=fields)
    kept, rejected = built(source, root, tmp_path / "out", row_fields={"boxes": ["ages"]})
    assert kept["0.png"]["label"].tolist() == [0, 1]
    assert rejected == {
        "1.png": "'label' has a class for each box: 1 classes, 2 boxes",
        "2.png": "'ages' has one row for each of 'boxes': 2 boxes, [1]",
    }


def test_fractions_by_group(tmp_path):
    content = [{"file": f"{i}.jpg", "kind": str(i % 2), "patient": f"{i // 8}{' ' * (i % 2)}"} for i in range(400)]
    fractions = Fractions(train=0.5, val=0.5, group_by="patient")
    for suffix in ("csv", "parquet"):
        entries = table(tmp_path, content, suffix, label="kind", splits=fractions)
        assert len({(row["patient"].strip(), entry.split) for row, entry in zip(content, entries, strict=True)}) == 50


def test_one_number_in_two_spellings_is_not_two_classes(tmp_path):
    """As pandas writes a column of whole numbers in which one is missing."""
    content = [{"file": f"{n}.jpg", "kind": kind} for n, kind in enumerate(("3", "3.0", "x"))]
    with pytest.raises(SourceError, match=r"the classes '3' and '3\.0' are one number; write it in one way"):
        table(tmp_path, content[:2], "csv", label="kind")
    assert [entry.values for entry in table(tmp_path, content, "csv", label="kind")] == [(0,), (1,), (2,)]


def test_rows_of_one_image_are_not_drawn_into_two_splits(tmp_path):
    """As captions: each image has several."""
    content = [{"file": f"{n // 5}.jpg", "id": n} for n in range(100)]
    with pytest.raises(SourceError, match=r"rows of \d+.jpg would be in (train|val) and in .*group_by"):
        table(tmp_path, content, key="id", splits=Fractions(train=0.5, val=0.5))
    entries = table(tmp_path, content, key="id", splits=Fractions(train=0.5, val=0.5, group_by="file"))
    assert len({(entry.files, entry.split) for entry in entries}) == 20


BAD_ROWS = [
    ({"file": None}, {}, r"row 2, 'image': it is empty; fill it in or take the row out"),
    ({"file": ""}, {}, r"row 2, 'image': it is empty"),
    ({"file": 2.5}, {}, r"row 2, 'image': expected a path, or a part of one, as text; got 2.5"),
    ({"file": "/etc/x.jpg"}, {}, r"row 2, 'image': expected a path relative to the data's root .* got '/etc/x.jpg'"),
    ({"file": "a/../../x.jpg"}, {}, r"row 2, 'image': expected a path relative to the data's root"),
    ({"kind": {"a": 1}}, {"label": "kind"}, r"row 2, 'kind': expected text or a whole number; got \{'a': 1\}"),
    ({"kind": 0.5}, {"label": "kind"}, r"row 2, 'kind': expected text or a whole number; got 0.5"),
    ({"kind": "owl"}, {"label": "kind", "classes": {"label": ("x",)}}, r"row 2, 'kind': 'owl' is none of the 1 classes"),
    ({"kind": 1}, {"label": "kind", "classes": {"label": ("x",)}}, r"row 2, 'kind': '1' is none of the 1 classes: 'x'"),
    ({"n": "three"}, {"fields": {"n": ("scalar", "n")}}, r"row 2, 'n': expected a finite number; got 'three'"),
    ({"n": {"a": 1}}, {"fields": {"n": ("scalar", "n")}}, r"row 2, 'n': expected a finite number; got \{'a': 1\}"),
    ({"n": ["x"]}, {"fields": {"n": ("text", "n")}}, r"row 2, 'n': expected text; got \['x'\]"),
    ({"n": "0 0 1 1"}, {"fields": {"n": ("boxes", "n")}}, r"row 2, 'n': expected a list of rows of numbers"),
    ({"set": None}, {"splits": "set"}, r"row 2, 'set': it is empty"),
    ({"id": None}, {"key": "id"}, r"row 2, 'id': it is empty"),
    ({"set": None}, {"splits": Fractions(train=1.0, group_by="set")}, r"row 2, 'set': it is empty"),
]  # fmt: skip


@pytest.mark.parametrize(("change", "options", "message"), BAD_ROWS)
def test_a_bad_cell_names_table_row_and_column(tmp_path, change, options, message):
    good = {"file": "a.jpg", "kind": "x", "n": None, "set": "train", "id": "1"}
    with pytest.raises(SourceError, match=r"t\.jsonl: " + message):
        table(tmp_path, [good, {**good, "file": "b.jpg", "id": "2", **change}], **options)


@pytest.mark.parametrize("column", ["label", "key", "splits"])
def test_texts_of_parquet_that_are_bytes(tmp_path, column):
    with pytest.raises(
        SourceError, match="row 1, 'kind': expected text or a whole number; got bytes; make a column of str"
    ):
        table(tmp_path, [{"file": "a.jpg", "kind": b"owl"}], "parquet", **{column: "kind"})


@pytest.mark.parametrize("cell", ["three", "1_000", "true", "1,5", "-inf", "1e400", "1" * 400])
def test_a_text_in_csv_that_is_not_a_number(tmp_path, cell):
    content = [{"file": "a.jpg", "n": "1"}, {"file": "b.jpg", "n": cell}]
    with pytest.raises(SourceError, match=rf"t\.csv: row 2, 'n': expected a finite number; got '{cell[:50]}"):
        table(tmp_path, content, "csv", fields={"n": ("scalar", "n")})


@pytest.mark.parametrize("suffix", WRITERS)
def test_a_missing_column_is_named_with_the_existing_ones(tmp_path, suffix):
    with pytest.raises(SourceError, match=rf"t\.{suffix}: there is no column 'path'; the columns are 'file', 'kind'"):
        table(tmp_path, [{"file": "a.jpg", "kind": "x"}], suffix, image="path")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("t.csv", b"file,kind\na.jpg,x\nb.jpg\n", r"t.csv, line 3: there are 1 cells, and 2 in the header"),
        ("t.csv", b"", "there is no column 'file'; the table is empty"),
        ("t.csv", b"file,kind\n", "no rows in t.csv"),
        ("t.jsonl", b'{"file": "a.jpg"}\n{"file": \n', "t.jsonl: row 2 is not JSON: Expecting value"),
        ("t.jsonl", b'{"file": "a.jpg"}\n["b.jpg"]\n', "expected one JSON object a line; row 2 is a list"),
        ("t.jsonl", b'{"file": "a\xff.jpg"}\n', "t.jsonl: row 1 is not JSON: .*utf-8"),
        ("t.jsonl", b"", "there is no column 'file'; the table is empty"),
        ("t.parquet", b"PAR1 but not really PAR1", r"t.parquet cannot be read as .parquet"),
        ("t.csv", b"file,file\na,b\n", "there are 2 columns 'file'"),
        ("t.jsonl", b'{"file": "a\\ud800.jpg"}\n', "the name of no file"),
        ("other.csv", b"", "t.csv: there is no such table"),
    ],
)
def test_a_broken_table_is_named(tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(SourceError, match=message):
        list(Table(name.replace("other", "t"), "file").scan(tmp_path).entries)


def test_a_pattern_that_no_table_fits(tmp_path):
    with pytest.raises(SourceError, match=r"no table fits '\{split\}.csv'"):
        Table("{split}.csv", "file").scan(tmp_path)


def test_a_table_of_which_images_are_missing_names_them(tmp_path):
    root = tmp_path / "data"
    for number in set(range(12)) - {3, 7}:
        write_picture(root / f"images/{number}.png", number)
    rows = [f"images/{number}.png,{'ab'[number % 2]}" for number in range(12)]
    (root / "train.csv").write_text("\n".join(["path,label", *rows]))
    with pytest.raises(
        SourceError, match=r"2 of the first 12 images that 'path' names are missing: images/3.png, images/7.png"
    ):
        detect(root)
    fields, rejected = built(Table("train.csv", image="path", label="label"), root, tmp_path / "out")
    assert len(fields) == 10
    assert set(rejected) == {"images/3.png", "images/7.png"}
    assert all("No such file" in reason for reason in rejected.values())
