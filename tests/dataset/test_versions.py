"""A reader reads the version that it opened, whatever is published or removed meanwhile."""

import errno
import fcntl
import itertools
import json
import os
import pickle
import shutil
import subprocess
import sys
import threading
from contextlib import closing
from dataclasses import replace
from itertools import islice

import numpy as np
import pytest

import tfprep
from tests.commands import status_of
from tfprep.dataset import Statistics, open_dataset, read_manifest
from tfprep.dataset.clean import clean
from tfprep.dataset.versions import NewVersion, current_version, find_version, hold
from tfprep.errors import BuildError, BuildLockedError, DatasetError
from tfprep.storage.urls import durable_write

SAMPLES = 40


def shown(number):
    """Both channels hold a constant, which together are a number."""
    return np.stack([np.full((24, 32), number % 256), np.full((24, 32), number // 256)], -1).astype(np.uint8)


def numbers(batch):
    values = np.asarray(batch["clicks"]).astype(int)
    assert (values == values[:, :1, :1]).all()
    return values[:, 0, 0, 0] + 256 * values[:, 0, 0, 1]


@pytest.fixture
def publish(make_dataset, tmp_path):
    """Publish a version whose samples show numbers from `first` on; all versions have equal names and sizes."""

    count = itertools.count()

    def make(first, keep=1):
        def fields(rng, number):
            return {"clicks": shown(number + first), "label": number % 3}

        name = f"made{next(count)}"
        made = make_dataset(name, samples={"train": SAMPLES}, shards=10, fields=("clicks", "label"), make=fields)
        with NewVersion(tmp_path / "out") as new:
            for path in made.path.iterdir():
                new.add(path.name, path)
            new.complete(read_manifest(made.path))
            return new.publish(keep)

    return make


def seen(batches, count):
    return {number for batch in islice(batches, count) for number in numbers(batch).tolist()}


OLD, NEW = set(range(SAMPLES)), set(range(1000, 1000 + SAMPLES))


@pytest.mark.parametrize(
    "options", [{"workers": "threads"}, {"workers": "threads", "on_bad": "skip"}, {"workers": "processes"}]
)
def test_loaders_go_on_with_their_version_through_many_publications(publish, tmp_path, options):
    publish(0)
    with closing(tfprep.open(tmp_path / "out").numpy_loader("train", 8, cache=False, **options).repeat()) as loader:
        batches = iter(loader)
        assert seen(batches, 5) == OLD
        for _ in range(4):
            publish(1000, keep=0)
            assert seen(batches, 10) == OLD
        assert not loader.report()["bad_records"]
    assert seen(iter(tfprep.open(tmp_path / "out").numpy_loader("train", 8)), 5) == NEW


def test_samples_pickles_and_forks_are_of_the_version_that_was_opened(publish, tmp_path):
    publish(0)
    data = tfprep.open(tmp_path / "out")
    sent, samples = pickle.dumps(data), data.samples("train")
    next(samples)
    publish(1000, keep=0)
    publish(1000, keep=0)
    assert {int(sample["clicks"][0, 0, 0]) for sample in samples} | {0} == OLD
    assert pickle.loads(sent).path == data.path == tmp_path / "out/v0001"
    pid = os.fork()
    if not pid:
        status = 0 if len(list(data.samples("train"))) == SAMPLES else 1
        os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    del data, samples
    publish(1000, keep=0)
    assert not (tmp_path / "out/v0001").exists()
    with pytest.raises(DatasetError, match=r"v0001 was removed or moved: open .*out again"):
        pickle.loads(sent)


HOLDING = """
import sys, tfprep
data = tfprep.open(sys.argv[1])
print("open", flush=True)
sys.stdin.read()
print(len(list(data.samples("train"))))
"""


def test_another_process_keeps_its_version_and_a_killed_one_does_not(publish, tmp_path, capsys):
    publish(0)
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    reader, killed = (subprocess.Popen([sys.executable, "-c", HOLDING, tmp_path / "out"], **pipes) for _ in range(2))
    assert reader.stdout.readline() == killed.stdout.readline() == "open\n"
    publish(1000, keep=0)
    killed.kill()
    killed.wait()
    assert status_of("clean", tmp_path / "out", "--remove") == 0
    assert "0 B are free again\nKept: version 1, which a process reads" in capsys.readouterr().out
    assert (tmp_path / "out/v0001").exists()
    killed.communicate()
    assert reader.communicate()[0] == f"{SAMPLES}\n"
    assert clean(tmp_path / "out", remove=True).freed > 0
    assert not (tmp_path / "out/v0001").exists()


def test_readers_that_open_while_versions_are_published_and_removed_see_whole_ones(publish, tmp_path):
    publish(0)
    ended, wrong = threading.Event(), []

    def read():
        while not ended.is_set():
            data = tfprep.open(tmp_path / "out")
            found = {int(numbers({"clicks": one["clicks"][None]})[0]) for one in data.samples("train")}
            if found not in (OLD, NEW):
                wrong.append(found)

    threads = [threading.Thread(target=read) for _ in range(2)]
    for thread in threads:
        thread.start()
    for number in range(12):
        publish(1000 * (number % 2), keep=0)
    ended.set()
    for thread in threads:
        thread.join()
    assert not wrong
    publish(0, keep=0)
    assert [path.name for path in (tmp_path / "out").glob("v*")] == ["v0014"]


def test_older_versions_are_opened_by_number_and_by_folder(publish, tmp_path):
    out = tmp_path / "out"
    for first in (0, 1000, 1000):
        publish(first, keep=5)
    assert json.loads((out / "tfprep.json").read_text()) == {"version": 3, "keep": 5}
    assert os.readlink(out / "current") == "v0003"
    assert tfprep.open(out).path == tfprep.open(out / "current").path == out / "v0003"
    for data in (tfprep.open(out, version=1), tfprep.open(out / "v0001"), open_dataset(out, 1)):
        assert (data.path, data.version.number, data.version.root) == (out / "v0001", 1, out)
        assert int(next(data.samples("train"))["clicks"][0, 0, 0]) == 0
    assert find_version(out, 2).path == out / "v0002"
    for number in (9, "3", -1):
        with pytest.raises(DatasetError, match=f"has no version {number!r}; it has 1, 2, 3"):
            tfprep.open(out, version=number)
    for keep, removed in enumerate([[1, 2], [1], [], [], []]):
        assert list(clean(out, keep=keep).versions) == removed, keep


def test_other_commands_keep_the_number_of_versions_of_the_last_build(publish, tmp_path):
    """One that is read stays besides; it made this number larger, and so did each later publication."""
    out = tmp_path / "out"
    publish(0, keep=2)
    held = hold(find_version(out))
    for _ in range(4):
        publish(0, keep=None)
    assert sorted(path.name for path in out.glob("v*")) == ["v0001", "v0003", "v0004", "v0005"]
    del held
    publish(0, keep=None)
    assert sorted(path.name for path in out.glob("v*")) == ["v0004", "v0005", "v0006"]
    (out / "tfprep.json").write_text("x")
    with pytest.warns(UserWarning, match="did not say how many older versions stay: now all do, later one"):
        publish(0, keep=None)
    assert sorted(path.name for path in out.glob("v*")) == ["v0004", "v0005", "v0006", "v0007"]
    publish(0, keep=None)
    assert sorted(path.name for path in out.glob("v*")) == ["v0007", "v0008"]


def test_versions_that_were_copied_without_the_pointer_are_named(publish, tmp_path):
    publish(0)
    shutil.copytree(tmp_path / "out/v0001", tmp_path / "copy/v0001")
    with pytest.raises(DatasetError, match=r"nothing says which is current; open one of them, such as .*copy/v0001"):
        tfprep.open(tmp_path / "copy")
    assert tfprep.open(tmp_path / "copy/v0001").path == tmp_path / "copy/v0001"
    (tmp_path / "copy/tfprep.json").write_text('{"version": 2}')
    with pytest.raises(DatasetError, match=r"copy/v0002, the current version, is not there .*: copy the dataset again"):
        tfprep.open(tmp_path / "copy")


def test_unchanged_files_are_shared_and_nothing_is_written_in_place(publish, tmp_path):
    out = tmp_path / "out"
    publish(0)
    before = {path.name: (path.stat().st_ino, path.read_bytes()) for path in (out / "v0001").iterdir()}
    with NewVersion(out) as new:
        manifest = read_manifest(new.before.path)
        new.add_current(manifest.files)
        new.write("rejects.jsonl", "other")
        new.file("index.parquet").write_bytes(b"other")
        new.complete(manifest)
        new.publish()
    assert {path.name: (path.stat().st_ino, path.read_bytes()) for path in (out / "v0001").iterdir()} == before
    shared = {path.name for path in (out / "v0002").iterdir() if path.stat().st_ino == before.get(path.name, [0])[0]}
    assert shared == before.keys() - {"manifest.json", "rejects.jsonl", "index.parquet"}


POINTERS = [
    "",
    "{",
    "[]",
    *(f'{{"version": {value}}}' for value in ("0", '"1"', "true")),
    '{"format_version": 2}',
    "[" * 9999,
]


def test_a_pointer_that_is_damaged_or_of_another_format_is_named(publish, tmp_path):
    publish(0)
    pointer = tmp_path / "out/tfprep.json"
    for text in POINTERS:
        pointer.write_text(text)
        with pytest.raises(DatasetError, match=r"tfprep\.json is damaged, or of another version of tfprep"):
            tfprep.open(tmp_path / "out")
    pointer.write_text('{"version": 7}')
    with pytest.raises(DatasetError, match="v0007, the current version, is not there"):
        tfprep.open(tmp_path / "out")
    pointer.write_text('{"version": 999999999999999999}')
    publish(1000)  # counts from the versions that are there
    assert tfprep.open(tmp_path / "out").version.number == 2
    pointer.unlink()
    pointer.mkdir()
    with pytest.raises(DatasetError, match=r"tfprep\.json is not a regular file"):
        tfprep.open(tmp_path / "out")
    with pytest.raises(BuildError, match="a folder has its name: move it away"):
        publish(1000)


def test_one_publication_at_a_time_and_none_into_a_version(publish, tmp_path):
    publish(0)
    with NewVersion(tmp_path / "out"), pytest.raises(BuildLockedError), NewVersion(tmp_path / "out"):
        pass
    never = pytest.raises(BuildError, match="is a version of a dataset, which never changes")
    with never, NewVersion(tmp_path / "out/v0001"):
        pass


def test_what_nobody_could_read_is_not_published(publish, make_dataset, tmp_path):
    before = publish(0)
    manifest = read_manifest(make_dataset("other", samples={"train": 1}, fields=("image",)).path)
    with (
        NewVersion(tmp_path / "out") as new,
        pytest.raises(BuildError, match=r"nothing was published.* its numbers are finite"),
    ):
        new.complete(replace(manifest, statistics={"image": Statistics((np.nan,) * 3, (1.0,) * 3)}))
    assert current_version(tmp_path / "out") == before


def test_a_link_to_another_version_is_set_right_and_what_else_has_that_name_stays(publish, tmp_path):
    publish(0)
    (tmp_path / "out/current").unlink()
    (tmp_path / "out/current").symlink_to("v0009")
    publish(1000)
    assert os.readlink(tmp_path / "out/current") == "v0002"
    (tmp_path / "out/current").unlink()
    (tmp_path / "out/current").symlink_to("of_the_user")
    publish(0)
    assert os.readlink(tmp_path / "out/current") == "of_the_user"
    (tmp_path / "out/current").unlink()
    (tmp_path / "out/current").mkdir()
    publish(0)
    assert current_version(tmp_path / "out").number == 4
    (tmp_path / "out/current").rmdir()
    shutil.copytree(tmp_path / "out/v0004", tmp_path / "out/current")  # as copies do that follow links
    with pytest.warns(UserWarning, match="out/current is a copy of a version, where other tools read old data"):
        publish(1000)


def test_hidden_files_of_the_user_beside_a_dataset_stay(publish, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out/.draft.odt.tmp").write_text("mine")
    (tmp_path / "out/.tfprep.json.0123456789ab.tmp").write_text("of a build that was killed")
    publish(0)
    assert [path.read_text() for path in (tmp_path / "out").glob(".*.tmp")] == ["mine"]


def test_a_durable_file_is_whole_or_not_there(tmp_path, monkeypatch):
    durable_write(tmp_path / "file", "one")
    monkeypatch.setattr(os, "fsync", lambda descriptor: os.close(-1))
    with pytest.raises(BuildError, match="cannot write"):
        durable_write(tmp_path / "file", "two")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
    assert (tmp_path / "file").read_text() == "one"


def test_several_hosts_are_told_to_open_one_version(publish, tmp_path):
    publish(0)
    with pytest.warns(UserWarning, match=r"each host opens .*tfprep\.open\(path, version=1\)"):
        tfprep.open(tmp_path / "out").numpy_loader("train", 8, hosts=(0, 2))
    tfprep.open(tmp_path / "out", version=1).numpy_loader("train", 8, hosts=(0, 2))


def test_info_names_the_version_and_the_older_ones(publish, tmp_path, capsys):
    for first in (0, 1000, 1000):
        publish(first, keep=5)
    assert status_of("info", tmp_path / "out") == 0
    assert "version 3; tfprep clean lists older ones" in capsys.readouterr().out
    assert status_of("clean", tmp_path / "out", "--keep", 1, "--remove") == 0
    assert "1 older version; " in capsys.readouterr().out
    assert sorted(path.name for path in (tmp_path / "out").glob("v*")) == ["v0002", "v0003"]


def test_what_is_named_like_a_version_and_is_not_one_stays(publish, tmp_path):
    out = tmp_path / "out"
    publish(0)
    (out / "v0007").mkdir()
    for name in ("notes.txt", "manifest.json", "train.tfrecord-00000-of-00001"):
        (out / "v0007" / name).write_text("mine")
    (out / "v0009").write_text("also mine")
    for first in (1000, 0):
        publish(first, keep=0)
    assert list(clean(out, remove=True).versions) == []
    assert {path.read_text() for path in (out / "v0007").iterdir()} == {"mine"}
    assert (out / "v0009").read_text() == "also mine"
    assert int(next(tfprep.open(out).samples("train"))["clicks"][0, 0, 0]) == 0


@pytest.mark.parametrize("lost", ["manifest.json", "[!l]*"])
def test_a_version_that_lost_its_manifest_is_named_and_removed_and_is_none_of_those_that_stay(publish, tmp_path, lost):
    """Also one without shards, as that of an index."""
    out = tmp_path / "out"
    for first in (0, 1000, 0):
        publish(first, keep=5)
    for path in (out / "v0002").glob(lost):
        path.unlink()
    assert (out / "v0002/locations.bin").exists()
    assert list(clean(out, keep=1).versions) == [2]
    clean(out, keep=1, remove=True)
    assert sorted(path.name for path in out.glob("v*")) == ["v0001", "v0003"]


def test_older_versions_stay_where_a_folder_cannot_be_locked(publish, tmp_path, monkeypatch):
    """On NFS an exclusive lock of a folder is an error (flock(2), EBADF)."""
    real = fcntl.flock

    def as_on_nfs(descriptor, operation):
        read_only = fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY
        if operation & fcntl.LOCK_EX and read_only:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        real(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", as_on_nfs)
    out = tmp_path / "out"
    for first in (0, 1000, 0, 1000):
        publish(first)
    assert sorted(path.name for path in out.glob("v*")) == ["v0001", "v0002", "v0003", "v0004"]
    (out / "tfprep.json").write_text('{"version": 3}')  # killed before the pointer was replaced
    publish(0)
    assert tfprep.open(out).version.number == 5


def test_a_dataset_of_a_lower_layer_gets_new_versions(publish, tmp_path, monkeypatch):
    """overlayfs, as of an image that a container runs, renames no folder of a lower layer (rename(2), EXDEV)."""
    out = tmp_path / "out"
    publish(0)
    lower = [os.open(path, os.O_RDONLY) for path in (out / "v0001", out / ".tfprep/new")]  # they keep their inodes
    real = os.rename

    def as_on_overlayfs(source, target):
        if any(os.path.samestat(os.fstat(folder), os.stat(source)) for folder in lower):
            raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))
        real(source, target)

    monkeypatch.setattr(os, "rename", as_on_overlayfs)
    publish(1000, keep=0)
    publish(1000, keep=0)
    for folder in lower:
        os.close(folder)
    assert sorted(path.name for path in out.glob("v*")) == ["v0001", "v0003"]
    assert current_version(out).number == 3


def test_clean_makes_room_on_a_full_disk(publish, tmp_path, monkeypatch):
    def refused(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    publish(0)
    publish(1000)
    monkeypatch.setattr(os, "write", refused)
    assert clean(tmp_path / "out", remove=True).freed > 0
