"""Tar files that webdataset wrote, and zip files of the standard library, built and loaded."""

import io
import json
import tarfile
import zipfile

import numpy as np
import pytest

from tests.sources.building import built, fields_of, picture, png
from tfprep import sources
from tfprep.errors import SampleError, SourceError
from tfprep.sources.patterns import HIDDEN

NAMES = ("cat", "dog")


def content(number):
    mask = np.full((40, 56), number, np.uint8)
    return {
        "png": png(picture(number)), "seg.png": png(mask), "cls": str(number % 3).encode(), "txt": f"text {number}\n".encode(),
        "json": json.dumps({"age": number / 2, "kind": NAMES[number % 2], "boxes": [[1, 2, 8 + number, 10]]}).encode(),
    }  # fmt: skip


FIELDS = {
    "mask": ("mask", "seg.png"), "text": ("text", "txt"), "age": ("scalar", "json:age"), "boxes": ("boxes", "json:boxes"),
}  # fmt: skip


def check(fields, prefix, numbers):
    for number in numbers:
        row = fields[f"{prefix}/{number:04}.png"]
        np.testing.assert_array_equal(row["image"], picture(number))
        np.testing.assert_array_equal(row["mask"], np.full((40, 56), number))
        np.testing.assert_array_equal(row["boxes"], [[1, 2, 9 + number, 12]])
        assert (row["text"], float(row["age"]), int(row["label"])) == (f"text {number}", number / 2, number % 3)


def test_shards_of_webdataset(tmp_path):
    webdataset = pytest.importorskip("webdataset")
    root = tmp_path / "data"
    for split, numbers in (("train", range(9)), ("val", range(9, 12))):
        (root / split).mkdir(parents=True)
        pattern = str(root / split / "shard-%06d.tar")
        with webdataset.ShardWriter(pattern, maxcount=5, verbose=0, encoder=False) as writer:
            for number in numbers:
                writer.write({"__key__": f"{number:04}", **content(number)})
    source = sources.Archives("{split}/*.tar", label="cls", fields=FIELDS, box_format="xywh")
    fields = fields_of(source, root, tmp_path / "out")
    assert len(fields) == 12
    check(fields, "train/shard-000000.tar", range(5))
    check(fields, "train/shard-000001.tar", range(5, 9))
    check(fields, "val/shard-000000.tar", range(9, 12))
    assert source.scan(root).classes == {"label": ("0", "1", "2")}
    assert sources.Archives("{split}/*.tar", label="json:kind").scan(root).classes == {"label": NAMES}


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_zip_files(tmp_path, method):
    root = tmp_path / "data"
    root.mkdir()
    with zipfile.ZipFile(root / "all.zip", "w", method) as archive:
        for number in range(4):
            for ending, data in content(number).items():
                archive.writestr(f"{number:04}.{ending}", data)
    fields = fields_of(sources.Archives("*.zip", label="cls", fields=FIELDS, box_format="xywh"), root, tmp_path / "out")
    check(fields, "all.zip", range(4))


def tar(path, files):
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w") as archive:
        for name, data in files.items():
            info = tarfile.TarInfo(name)
            if data is None:
                info.type, info.linkname = tarfile.SYMTYPE, "/etc/passwd"
                archive.addfile(info)
            else:
                info.size = len(data)
                archive.addfile(info, io.BytesIO(data))


def test_a_build_without_samples_says_what_was_left_out(tmp_path):
    with zipfile.ZipFile(tmp_path / "a.zip", "w", zipfile.ZIP_LZMA) as archive:
        archive.writestr("cat/1.png", content(0)["png"])
    with pytest.raises(SourceError, match="finds no sample there; 1 left out: member that is encrypted, or compressed"):
        built(sources.Archives("*.zip"), tmp_path, tmp_path / "out")


def test_odd_members_are_rejected_or_counted(tmp_path):
    whole = content(0)
    files = {
        "a.png": whole["png"], "a.cls": b"1", "broken.png": b"no image", "broken.cls": b"0", "bare.png": whole["png"],
        "lonely.cls": b"0", "link.png": None, "__index__.txt": b"x", "d/with.dots.png": whole["png"], "z.png": whole["png"],
        "z.cls": b"1", "@eaDir/z.png/thumb.png": whole["png"], "./._z.png": b"",
    }  # fmt: skip
    root = tmp_path / "data"
    tar(root / "a.tar", files)
    source = sources.Archives(label="cls", classes=NAMES)
    fields, rejected = built(source, root, tmp_path / "out")
    assert set(fields) == {"a.tar/a.png", "a.tar/z.png"}
    assert "not an image" in rejected["a.tar/broken.png"]
    assert "no value" in rejected["a.tar/bare.png"]
    listing = source.scan(root)
    assert len(list(listing.entries)) == 4
    assert listing.tally[HIDDEN] == 2
    assert listing.tally["sample without an image"] == 2  # lonely, and d/with, whose ending is dots.png
    assert listing.tally["member that is a link, a device or sparse"] == 1
    listing = sources.Archives().scan(root)
    assert len(list(listing.entries)) == 4
    assert listing.tally["member that no field names"] == 3
    with pytest.raises(SourceError, match=r"is a pattern of the paths of files, and 'a.tar/a.png' is inside of one"):
        list(sources.Archives(splits="{split}/**").scan(root).entries)
    missing = sources.Archives(fields={"mask": ("mask", "seg.png")})
    with pytest.raises(Exception, match=r"there is no member '[az]\.seg\.png' in a\.tar|rejected"):
        built(missing, root, tmp_path / "missing")


def test_a_tar_that_ends_in_a_zip_is_a_tar(tmp_path):
    scores = io.BytesIO()
    np.savez(scores, a=[1.5])
    tar(tmp_path / "a.tar", {"1.png": png(picture(1)), "1.npz": scores.getvalue()})
    assert zipfile.is_zipfile(tmp_path / "a.tar")
    assert [entry.key for entry in sources.Archives().scan(tmp_path).entries] == ["a.tar/1.png"]


def test_dots_in_names(tmp_path):
    """The first dot ends the key, as in WebDataset; the last one in an archive where no image would be found so."""
    files = {"22.0/1.3.png": png(picture(1)), "22.0/1.4.png": png(picture(2)), "0000.left.png": png(picture(3))}
    tar(tmp_path / "dots/a.tar", files)
    fields = fields_of(sources.Archives("*.tar"), tmp_path / "dots", tmp_path / "out")
    assert sorted(fields) == ["a.tar/0000.left.png", "a.tar/22.0/1.3.png", "a.tar/22.0/1.4.png"]
    np.testing.assert_array_equal(fields["a.tar/22.0/1.4.png"]["image"], picture(2))
    tar(
        tmp_path / "pairs/a.tar",
        {"1.0/7.png": png(picture(1)), "1.0/7.seg.png": png(picture(2)[:, :, 0]), "8.x.png": b""},
    )
    source = sources.Archives("*.tar", fields={"mask": ("mask", "seg.png")})
    fields, rejected = built(source, tmp_path / "pairs", tmp_path / "paired")
    assert list(fields) == ["a.tar/1.0/7.png"]
    assert not rejected
    named = sources.Archives("*.tar", image=("left.png",))
    fields = fields_of(named, tmp_path / "dots", tmp_path / "left")
    assert list(fields) == ["a.tar/0000.left.png"]


def test_whole_numbers_stay_exact(tmp_path):
    """float32 has no 2^24 + 1; a scalar that is a fraction in one sample is float in all of them."""
    numbers = {(1 << 24) + 1: 0.5, (1 << 62) + 1: 2, -3: 1}
    files = {}
    for n, (number, share) in enumerate(numbers.items()):
        files |= {f"{n}.png": b"", f"{n}.json": json.dumps({"id": number, "share": share}).encode()}
    tar(tmp_path / "a.tar", files)
    source = sources.Archives(fields={name: ("scalar", f"json:{name}") for name in ("id", "share")})
    values = [entry.values for entry in source.scan(tmp_path).entries]
    assert values == list(numbers.items())
    assert {tuple(map(type, of_sample)) for of_sample in values} == {(int, float)}


def test_an_archive_that_cannot_be_read_by_place_is_refused(tmp_path):
    root = tmp_path / "data"
    tar(root / "a.tar", {"a.png": content(0)["png"], "b.png": content(1)["png"]})
    whole = (root / "a.tar").read_bytes()
    (root / "a.tar").write_bytes(b"no archive at all" * 99)
    with pytest.raises(SourceError, match="is not a whole archive"):
        list(sources.Archives().scan(root).entries)
    (root / "a.tar").write_bytes(whole)
    entries = list(sources.Archives().scan(root).entries)
    (root / "a.tar").write_bytes(whole[:2000])  # cut after it was listed
    (root / "short.tar").write_bytes(whole[: entry_end(whole)])  # between two members
    with pytest.raises(SourceError, match=r"short\.tar is not a whole archive: the mark of its end is missing"):
        list(sources.Archives("short.tar").scan(root).entries)
    damaged = bytearray(whole)
    damaged[entry_end(whole) + 5] ^= 1  # tarfile takes a header that it cannot read for the end
    for content_of_file, reason in (
        (damaged, "the header of the member at byte 3,584 is damaged"),
        (whole * 2, "after the mark"),
    ):
        (root / "short.tar").write_bytes(content_of_file)
        with pytest.raises(SourceError, match=reason):
            list(sources.Archives("short.tar").scan(root).entries)
    (root / "short.tar").unlink()
    with pytest.raises(Exception, match="was cut short"):
        sources.read_files(root, ("image",), entries[1])
    tar(root / "a.tar", {"../../a.png": content(0)["png"]})
    with pytest.raises(SourceError, match="below it"):
        list(sources.Archives().scan(root).entries)
    tar(root / "a.tar", {"a.png": content(0)["png"], "a.PNG": content(1)["png"]})
    with pytest.raises(SourceError, match=r"a\.tar: 'a\.png' and 'a\.PNG' are one part of the sample 'a'"):
        list(sources.Archives().scan(root).entries)
    with pytest.raises(SourceError, match="no archive fits"):
        sources.Archives("*.zip").scan(root)


def test_classes_are_those_of_the_values_whatever_their_type(tmp_path):
    """Floats of JSON, in two spellings of Unicode, and folders that are not among the classes."""
    whole = png(picture(0))
    for name, labels in (("floats", (2.0, 1.0, 1)), ("names", ("\u00e9", "e\u0301", "a"))):
        files = {f"{n}.{end}": data for n, label in enumerate(labels)
                 for end, data in (("png", whole), ("json", json.dumps({"kind": label}).encode()))}  # fmt: skip
        tar(tmp_path / f"{name}.tar", files)
    floats, names = (sources.Archives(f"{name}.tar", label="json:kind").scan(tmp_path) for name in ("floats", "names"))
    assert [entry.values for entry in floats.entries] == [(2,), (1,), (1,)]
    assert (floats.classes["label"], names.classes["label"]) == (("0", "1", "2"), ("a", "\u00e9"))
    assert [entry.values for entry in names.entries] == [(1,), (1,), (0,)]
    tar(tmp_path / "folders.tar", {"cow/1.png": whole})
    with pytest.raises(SourceError, match=r"folders.tar.*cow/1.*'cow' is none of the 2 classes"):
        list(sources.Archives("folders.tar", members="{label}/*", classes=NAMES).scan(tmp_path).entries)


def entry_end(data):
    """Where the first member of a tar ends."""
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        return archive.getmembers()[1].offset


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_a_damaged_member_is_rejected(tmp_path, method):
    root = tmp_path / "data"
    root.mkdir()
    with zipfile.ZipFile(root / "all.zip", "w", method) as archive:
        for number in range(2):
            archive.writestr(f"{number}.png", content(number)["png"])
    (first, _) = sources.Archives("*.zip").scan(root).entries
    start = int(first.files[0].split("//")[1].split("+")[0])
    data = bytearray((root / "all.zip").read_bytes())
    if method == zipfile.ZIP_DEFLATED:
        data[start : start + 50] = bytes(50)
    else:
        data[start + 100] ^= 1
    (root / "all.zip").write_bytes(data)
    with pytest.raises(SampleError, match="the member is damaged: "):
        sources.read_files(root, ("image",), first)
    fields, rejected = built(sources.Archives("*.zip"), root, tmp_path / "out")
    assert set(fields) == {"all.zip/1.png"}
    np.testing.assert_array_equal(fields["all.zip/1.png"]["image"], picture(1))
    assert set(rejected) == {"all.zip/0.png"}
