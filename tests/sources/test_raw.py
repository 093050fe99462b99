"""References to raw files: what they hold, their bytes, the states of their files, and roots that are refused."""

import os
import zipfile
from pathlib import Path

import pytest

from tfprep import sources
from tfprep.errors import SampleError, SourceError
from tfprep.sources import raw
from tfprep.sources.raw import Reference, parse_reference, read_raw
from tfprep.storage.store import open_store
from tfprep.storage.urls import folder_at


@pytest.mark.parametrize(
    "reference",
    [
        Reference("cat/1.jpg"),
        Reference("s3://bucket/a.tfrecord", 57, 20, False, "cat/1.jpg"),
        Reference("a.tar", 512, 20, False, "cat/1.jpg"),
        Reference("/copies/a.zip", 0, 7, True, "x//y z.png", crc=0x1C),
        Reference("b#c/a.zip", 0, 7, False, "x#y z.png", crc=0),
        Reference("b/a.zip", member="x.png", missing=True),
        Reference("a b.tar", 1, 0, False, ""),
    ],
)
def test_the_text_of_a_reference_holds_all_of_it(reference):
    assert parse_reference(str(reference)) == reference


@pytest.mark.parametrize("url", ["https://host/photos", "memory://bucket/photos"])
@pytest.mark.parametrize(
    "source",
    [sources.Folder(), sources.Table("t.csv", image="f"), sources.Coco(), sources.Yolo(), sources.Archives()],
    ids=lambda source: type(source).__name__,
)
def test_a_url_is_refused(source, url):
    pytest.importorskip("obstore")
    pytest.importorskip("yaml")
    with pytest.raises(SourceError, match="raw files are read from folders; copy them first"):
        list(source.scan(folder_at(url)).entries)


def test_states_and_parts_of_objects():
    """As the references of `tfprep.dataset.Records` name them."""
    pytest.importorskip("obstore")
    url = "memory://raw-states/data"
    open_store(url).write("a.bin", b"0123456789")
    for root, name in ((folder_at(url), "a.bin"), (Path("elsewhere"), f"{url}/a.bin")):
        states = raw.raw_states(root, [f"{name}//2+3//x", f"{url}/nowhere"])
        assert (states[name].bytes, states[f"{url}/nowhere"].text) == (10, "FileNotFoundError")
        assert raw.read_raw(root, f"{name}//2+3//x") == b"234"
        for reference, reason in ((f"{name}//2+9//x", "cut short"), (f"{url}/nowhere//0+1//x", "no such object")):
            with pytest.raises(SampleError, match=reason):
                raw.read_raw(root, reference)


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


@pytest.mark.skipif(not os.path.exists("/proc/meminfo"), reason="there are no files without a size")
def test_the_limit_holds_for_what_is_read_whatever_size_the_file_says_it_has():
    assert os.stat("/proc/meminfo").st_size == 0
    content = raw.read_raw(Path("/proc"), "meminfo", 1 << 20)
    assert content.startswith(b"MemTotal:")
    with pytest.raises(SampleError, match=r"limit of 1,?000"):
        raw.read_raw(Path("/proc"), "meminfo", 1000)


def test_a_member_that_is_large_when_it_is_inflated_is_over_the_limit(tmp_path):
    with zipfile.ZipFile(tmp_path / "a.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("zeros", bytes(5000))
        info = archive.getinfo("zeros")
    member = str(Reference("a.zip", 30 + len("zeros"), info.compress_size, deflated=True, member="zeros"))
    assert info.compress_size < 100
    assert read_raw(tmp_path, member) == bytes(5000)
    with pytest.raises(SampleError, match="the file has 5,000 bytes, more than the limit of 4,999"):
        read_raw(tmp_path, member, 4999)
