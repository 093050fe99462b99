"""Raw files at URLs are read ahead: the same bytes and errors as one by one, a bounded number of them, one request each."""

import time
import zipfile

import pytest

from tests.waiting import wait_until
from tfprep.errors import SampleError, StorageError
from tfprep.images import check_file_size
from tfprep.sources import raw as module
from tfprep.sources.raw import Reference, files_ahead, raw_root, read_raw

pytest.importorskip("obstore")
CONTENTS = {f"{number:03d}.bin": bytes([number]) * (number + 1) for number in range(60)}


@pytest.fixture
def url(s3):
    url = s3.new_url()
    for name, content in CONTENTS.items():
        s3.put(f"{url}/{name}", content)
    return url


def test_every_file_is_one_request(url, s3):
    names = [*CONTENTS, "000.bin//0+1//member"]
    with files_ahead(raw_root(url), names) as read:
        contents = [read(raw_root(url), name) for name in names]
    assert contents == [*CONTENTS.values(), b"\0"]
    assert len(s3.proxy.reads(url.removeprefix("s3:/"))) == len(names)


def test_a_bounded_number_is_ahead(url, s3):
    with files_ahead(raw_root(url), CONTENTS) as read:
        read(raw_root(url), "000.bin")
        wait_until(lambda: len(s3.proxy.reads()) >= module.FILES_AHEAD)
        time.sleep(0.1)
        assert len(s3.proxy.reads()) == module.FILES_AHEAD


def test_what_cannot_be_read_ahead_is_read_when_its_turn_comes(url, s3, monkeypatch):
    monkeypatch.setattr(module, "MOST_BYTES", 30)
    names = ["001.bin", "001.bin", "missing.bin", "059.bin", "002.bin"]
    with files_ahead(raw_root(url), names) as read:
        assert [read(raw_root(url), name) for name in names[:2]] == [b"\1\1"] * 2
        with pytest.raises(SampleError, match="there is no such object"):
            read(raw_root(url), "missing.bin")
        assert [read(raw_root(url), name) for name in names[3:]] == [CONTENTS["059.bin"], CONTENTS["002.bin"]]
        s3.proxy.always = "403"
        with pytest.raises(StorageError, match="the store refuses these credentials"):
            read(raw_root(url), "003.bin")


def test_a_file_that_is_too_large_is_refused_before_its_bytes_are_fetched(url, s3, monkeypatch):
    sizes = []

    def check(size, most_bytes):
        sizes.append(size)
        check_file_size(size, most_bytes)

    monkeypatch.setattr(module, "check_file_size", check)
    s3.proxy.faults.append("truncate")  # Nobody asks for the rest.
    with pytest.raises(SampleError, match="the file has 11 bytes, more than the limit of 10"):
        read_raw(raw_root(url), "010.bin", 10)
    assert (sizes, len(s3.proxy.reads())) == ([0, 11], 1)


def test_files_of_rejected_samples_do_not_end_the_reading_ahead(s3, monkeypatch):
    url, numbers = s3.new_url(), range(60)
    for number in numbers:
        for kind in ("image", "mask")[number < 20 :]:  # the first 20 samples have no image
            s3.put(f"{url}/{kind}{number}", b"%d" % number)
    direct = []
    monkeypatch.setattr(
        module, "read_raw", lambda *args: (direct.append(args) if len(args) == 2 else None, read_raw(*args))[1]
    )
    with files_ahead(raw_root(url), [f"{kind}{number}" for number in numbers for kind in ("image", "mask")]) as read:
        for number in numbers[:20]:
            with pytest.raises(SampleError, match="there is no such object"):
                read(raw_root(url), f"image{number}")
        for number in numbers[20:]:
            contents = [read(raw_root(url), f"{kind}{number}") for kind in ("image", "mask")]
            assert contents == [b"%d" % number] * 2
    assert [name for _, name in direct] == [f"image{number}" for number in numbers[:20]]


def test_a_member_that_is_large_when_it_is_inflated_is_over_the_limit(tmp_path):
    with zipfile.ZipFile(tmp_path / "a.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("zeros", bytes(5000))
        info = archive.getinfo("zeros")
    member = str(Reference("a.zip", 30 + len("zeros"), info.compress_size, deflated=True, member="zeros"))
    assert info.compress_size < 100
    assert read_raw(tmp_path, member) == bytes(5000)
    with pytest.raises(SampleError, match="the file has 5,000 bytes, more than the limit of 4,999"):
        read_raw(tmp_path, member, 4999)


def test_local_files_are_read_when_they_are_needed(tmp_path):
    (tmp_path / "a").write_bytes(b"x")
    with files_ahead(tmp_path, ["a"]) as read:
        assert read is read_raw
