"""Raw files at URLs: the same samples and the same bytes as in a folder."""

import itertools
import json
import os
import tarfile
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import tfprep
from tests.sources.building import built, write_picture
from tfprep import Recipe, codecs, sources
from tfprep.builder import BuildOptions, plan_build
from tfprep.errors import BuildError, SampleError, SourceError, StorageError
from tfprep.sources import raw
from tfprep.sources.raw import Reference, parse_reference
from tfprep.storage.store import open_store

pytest.importorskip("obstore")
_numbers = itertools.count()


@pytest.mark.parametrize(
    "reference",
    [
        Reference("cat/1.jpg"),
        Reference("a.tar", 512, 20, False, "cat/1.jpg"),
        Reference("/copies/a.zip", 0, 7, True, "x//y z.png"),
        Reference("b/a.zip", member="x.png", missing=True),
        Reference("a b.tar", 1, 0, False, ""),
    ],
)
def test_the_text_of_a_reference_holds_all_of_it(reference):
    assert parse_reference(str(reference)) == reference


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Photos in two splits and two classes with masks, a tar, tables, a COCO file; hidden files and an empty folder's marker."""
    root = tmp_path_factory.mktemp("raw")
    numbers = range(6)
    for number in numbers:
        name = f"{'train' if number < 4 else 'val'}/{'cat' if number % 2 else 'a dog#1%'}/{number} ü.png"
        write_picture(root / "photos" / name, number)
        write_picture(root / "masks" / name, 0)
    (root / "photos/.hidden.png").write_bytes(b"")
    photos = sorted(path for path in (root / "photos").rglob("*.png") if path.name[0] != ".")
    with tarfile.open(root / "all.tar", "w") as archive:
        for number, path in enumerate(photos):
            archive.add(path, f"{number:04}.png")
    rows = [{"image": path.relative_to(root).as_posix(), "label": path.parent.name} for path in photos]
    (root / "rows.csv").write_text("image,label\n" + "".join(f"{row['image']},{row['label']}\n" for row in rows))
    (root / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    pq.write_table(pa.Table.from_pylist(rows), root / "rows.parquet")
    images = [{"id": n, "file_name": row["image"], "height": 40, "width": 56} for n, row in enumerate(rows)]
    boxes = [{"id": n, "image_id": n, "category_id": 1, "bbox": [n, 2, 9, 8]} for n in range(len(rows))]
    coco = {"images": images, "annotations": boxes, "categories": [{"id": 1, "name": "thing"}]}
    (root / "coco.json").write_text(json.dumps(coco))
    return root


def put(folder, url):
    store = open_store(url)
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            store.write(path.relative_to(folder).as_posix(), path)
    return url


@pytest.fixture(scope="module")
def url(folder):
    url = put(folder, f"memory://raw-{next(_numbers)}/below")
    open_store(url).write("photos", b"")  # what some tools write in the name of a folder
    return url


SOURCES = [
    sources.Folder("photos/{split}/{label}/*"),
    sources.Folder("photos/**", splits=sources.Fractions(train=0.5, val=0.5)),
    sources.Paired(image="photos/{split}/{a}/*.png", mask="masks/{split}/{a}/*.png"),
    sources.Archives("*.tar"),
    sources.Table("rows.csv", image="image", label="label"),
    sources.Table("rows.jsonl", image="image", label="label"),
    sources.Table("*.parquet", image="image", label="label"),
    sources.Coco(annotations="coco.json", images="{file_name}"),
]


@pytest.mark.parametrize("source", SOURCES, ids=lambda source: f"{type(source).__name__}-{SOURCES.index(source)}")
def test_samples_at_a_url_are_those_of_the_folder(folder, url, source):
    local, remote = source.scan(folder), source.scan(raw.raw_root(url))
    entries = list(local.entries)
    assert list(remote.entries) == entries
    assert len(entries) == 6
    assert (remote.kinds, remote.classes, remote.tally) == (local.kinds, local.classes, local.tally)
    root = raw.raw_root(url)
    for entry in entries:
        assert sources.read_files(root, remote.files, entry) == sources.read_files(folder, local.files, entry)


def test_a_url_without_the_files_says_what_is_there(url):
    with pytest.raises(SourceError, match=r"no file fits 'x/\*'.*'coco.json'.*'photos/'"):
        list(sources.Folder("x/*").scan(raw.raw_root(url)).entries)
    with pytest.raises(SourceError, match=r"memory://nothing/here: there are no objects below this URL"):
        list(sources.Folder("x/*").scan(raw.raw_root("memory://nothing/here")).entries)


def test_a_missing_object_rejects_its_sample_alone(folder, tmp_path):
    url = put(folder, f"memory://raw-{next(_numbers)}")
    open_store(url).delete(["photos/train/cat/1 ü.png"])
    source = sources.Coco(annotations="coco.json", images="{file_name}", fields=("boxes",))
    fields, rejected = built(source, url, tmp_path / "out")
    assert {key: "no such object" in reason for key, reason in rejected.items()} == {"photos/train/cat/1 ü.png": True}
    assert len(fields) == 5


def test_building_from_s3_makes_the_bytes_of_a_local_build_and_notices_changes(s3, folder, tmp_path, monkeypatch):
    for name, value in s3.environment.items():
        monkeypatch.setenv(name, value)
    s3.proxy.reset()
    url = put(folder, s3.new_url())
    store = {"image": codecs.Png(), "label": codecs.Scalar()}
    recipe = Recipe(name="raw", source=sources.Folder("photos/{split}/{label}/*"), store=store)
    tfprep.build(recipe, tmp_path / "local", folder, options=BuildOptions(workers=0))
    for workers in (2, 0):
        tfprep.build(recipe, tmp_path / f"out{workers}", url, options=BuildOptions(workers=workers))
        for path in (tmp_path / "local").glob("current/*.tfrecord-*"):
            assert path.read_bytes() == (tmp_path / f"out{workers}" / "current" / path.name).read_bytes(), path.name
    assert all(state.up_to_date for state in plan_build(recipe, tmp_path / "out2", url))
    # The store's entity tag tells the change of a file from one of the same content.
    open_store(url).write("photos/val/cat/5 ü.png", folder / "photos/val/cat/5 ü.png")
    assert all(state.up_to_date for state in plan_build(recipe, tmp_path / "out2", url))
    open_store(url).write("photos/val/cat/5 ü.png", folder / "photos/train/cat/3 ü.png")
    assert {state.split for state in plan_build(recipe, tmp_path / "out2", url) if not state.up_to_date} == {"val"}
    s3.proxy.always = "403"
    with pytest.raises(StorageError, match="AWS_ACCESS_KEY_ID"):
        raw.read_raw(raw.raw_root(url), "photos/val/cat/5 ü.png")
    with pytest.raises(BuildError, match=r"the store refuses these credentials.*Run the same command again"):
        tfprep.build(recipe, tmp_path / "none", url, options=BuildOptions(workers=0))
    s3.proxy.reset()


def test_a_web_server_is_refused():
    with pytest.raises(SourceError, match="a web server does not list its files; copy them"):
        raw.raw_root("https://host/photos")


def test_states_name_what_is_missing(folder, url):
    for root in (folder, raw.raw_root(url)):
        states = raw.raw_states(root, ["all.tar//512+3//x", "all.tar", "nowhere.png"])
        assert (states["all.tar"].bytes, states["nowhere.png"].text) == (
            (folder / "all.tar").stat().st_size,
            "FileNotFoundError",
        )
    with pytest.raises(SampleError, match="cut short"):
        raw.read_raw(raw.raw_root(url), "coco.json//10+99999999//x")


def test_states_of_a_path_outside_the_root_and_of_a_root_that_is_gone(tmp_path):
    path = tmp_path / "copy.png"
    path.write_bytes(b"12345")
    for root in (tmp_path / "gone", tmp_path):
        states = raw.raw_states(root, [str(path), "a.png"])
        assert (states[str(path)].bytes, states["a.png"].text) == (5, "FileNotFoundError")


def test_a_table_with_urls_is_refused_without_their_credentials(tmp_path):
    (tmp_path / "t.csv").write_text("image\nhttps://host/a.png?X-Amz-Signature=5EC\n")
    with pytest.raises(SourceError, match=r"row 1, 'image': expected a path below .* got a URL: download") as error:
        list(sources.Table("t.csv", image="image").scan(tmp_path).entries)
    assert "5EC" not in str(error.value)


@pytest.mark.parametrize("size", [0, 1, 200_000, 200_001, 10**6])
def test_a_file_is_read_to_its_end_whatever_size_it_had_when_it_was_looked_at(tmp_path, size):
    content = bytes(range(250)) * 800
    (tmp_path / "file").write_bytes(content)
    descriptor = os.open(tmp_path / "file", os.O_RDONLY)
    try:
        assert raw._read_to_end(descriptor, size, lambda total: None) == content
    finally:
        os.close(descriptor)


@pytest.mark.skipif(not os.path.exists("/proc/meminfo"), reason="there are no files without a size")
def test_the_limit_holds_for_what_is_read_whatever_size_the_file_says_it_has():
    assert os.stat("/proc/meminfo").st_size == 0
    content = raw.read_raw(Path("/proc"), "meminfo", 1 << 20)
    assert content.startswith(b"MemTotal:")
    with pytest.raises(SampleError, match=r"limit of 1,?000"):
        raw.read_raw(Path("/proc"), "meminfo", 1000)
