"""Full, read-only and missing disks, and concurrent builds: a clear error, no half-written dataset, and the next build
continues.
"""

import errno
import fcntl
import os
import shutil
import socket
import sys

import pytest

from tests.builder.conftest import FILES_OF_4000_BYTES, check_whole, digests, run
from tfprep.builder.layout import Layout
from tfprep.dataset import open_dataset
from tfprep.dataset.versions import locked
from tfprep.errors import BuildError, BuildLockedError, DatasetError, SourceError, TfprepError


@pytest.mark.parametrize("workers", [0, 1])
def test_a_write_that_fails_ends_the_build_and_the_next_one_continues(full, workers):
    error = run(full.driver(workers, FILES_OF_4000_BYTES)).stderr
    assert "BuildError: cannot write " in error
    assert ".tfrecord-0000" in error.splitlines()[-1]
    assert (
        "File too large; nothing was published. Make room, then run the same command again: a build continues" in error
    )
    with pytest.raises(DatasetError, match=r"a build has begun here and not finished"):
        open_dataset(full.out)
    assert not list((full.out / ".tfprep/new").glob(".*"))
    full.build()
    assert digests(full.out) == full.from_nothing()


FORBIDDEN = "choose a folder that this user may write to"
FULL = "nothing was published. Make room, then run the same command again"
MANY = r"raise the limit of open files \(ulimit -n\)"
FIXES = {errno.EROFS: FORBIDDEN, errno.EACCES: FORBIDDEN, errno.ENOSPC: FULL, errno.EDQUOT: FULL, errno.EMFILE: MANY}


@pytest.mark.parametrize(("number", "fix"), FIXES.items())
def test_a_disk_that_refuses_is_named_with_the_fix(full, monkeypatch, number, fix):
    def refuse(*_):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "mkdir", refuse)
    with pytest.raises(BuildError, match=rf"cannot write .*out: {os.strerror(number)}; {fix}"):
        full.build()


@pytest.mark.parametrize(
    ("out", "message"),
    [
        ("", "a path is empty; the current folder is '.'"),
        ("file", r"file: .*file is a file; --out names a folder, which is created if it is missing"),
        ("file/below", r"below: .*file is a file; --out names a folder"),
        ("data", r"data holds the raw data; choose another folder with --out, such as .*data/built"),
        ("/proc/tfprep", r"cannot write /proc/tfprep"),
        ("out\udcff", r"the path is not UTF-8, and Arrow opens no other; choose another with --out"),
    ],
)
def test_an_output_path_that_cannot_be_a_folder(full, out, message):
    full.out.with_name("file").write_text("mine")
    before = sorted(full.data.rglob("*"))
    with pytest.raises(TfprepError, match=message):
        full.build(full.out.parent / out if out else "")
    assert full.out.with_name("file").read_text() == "mine"
    assert sorted(full.data.rglob("*")) == before


def test_an_output_folder_that_disappears(full):
    def remove(event):
        if event.name == "shard":
            shutil.rmtree(full.out, ignore_errors=True)

    with pytest.raises(BuildError, match=r"the output folder is gone .* Run the same command again"):
        full.build(on_event=remove)
    full.build()
    assert digests(full.out) == full.from_nothing()


def test_raw_data_that_disappears_rejects_nothing(full):
    expected = full.from_nothing()
    away = full.data.with_name("away")

    def unmount(event):
        if event.name == "shard" and not away.exists():
            full.data.rename(away)
            full.data.mkdir()  # An empty mount point.

    with pytest.raises(BuildError, match=r"the raw data is gone: .*data was removed or unmounted while it was read"):
        full.build(on_event=unmount)
    with pytest.raises(SourceError):
        full.build()
    full.data.rmdir()
    away.rename(full.data)
    full.build()
    assert full.rejected() == []
    assert digests(full.out) == expected


# --- the lock ---------------------------------------------------------------------------------------------------------


def test_a_second_build_into_one_folder_is_refused_by_name(full, monkeypatch):
    refusals = []
    monkeypatch.setattr(sys, "argv", ["its_build.py", "--key=wJalrSECRET"])
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wJalrSECRET")

    def second(event):
        if event.name == "planned":
            refusals.append(run(full.driver(0)).stderr.splitlines()[-1])

    full.build(on_event=second)
    (refusal,) = refusals
    assert refusal.startswith(f"tfprep.errors.BuildLockedError: {full.out} is being built by process {os.getpid()} on "
                              f"{socket.gethostname()}, started 2")  # fmt: skip
    assert refusal.endswith(": its_build.py --key=$AWS_SECRET_ACCESS_KEY; wait, or build into another folder")
    check_whole(full.out)


def test_a_lock_is_one_of_this_process_too_and_of_no_dead_one(full):
    layout = Layout(full.out)
    layout.make()
    end, writer = os.pipe()
    with locked(full.out):
        with pytest.raises(BuildLockedError):
            full.build()
        if not (child := os.fork()):  # as a DataLoader's worker, which lives on
            os.close(writer)
            os._exit(len(os.read(end, 1)))
    (layout.private / "lock").write_text("process 1 on elsewhere")
    assert full.build().samples == 30
    os.close(writer)
    assert os.waitpid(child, 0)[1] == 0


def test_a_file_system_without_locks_is_named(full, monkeypatch):
    def refused(file, how):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refused)
    with pytest.raises(BuildError, match=r"cannot lock .*: No locks available; choose a folder on another file system"):
        full.build()


def test_a_relative_path_that_looks_like_a_url_is_a_folder(full, monkeypatch):
    monkeypatch.chdir(full.data.parent)
    full.build("run:1/out")
    assert open_dataset("run:1/out").index("val").num_rows == 6
