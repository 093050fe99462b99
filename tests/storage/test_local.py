"""Files of a dataset that may come from a stranger: only regular files of its own folder are opened."""

import os
import socket

import pytest

from tfprep.errors import DatasetError
from tfprep.storage.local import regular_descriptor, regular_size
from tfprep.storage.urls import open_file


def link_outside(path):
    secret = path.parent.parent / "secret"
    secret.write_bytes(b"secret")
    path.symlink_to(secret)


def link_through_a_folder(path):
    link_outside(path.with_name("step"))
    path.symlink_to("step")


REFUSED = {
    "a FIFO": (os.mkfifo, "is not a regular file"),
    "a link to a FIFO": (lambda p: (os.mkfifo(p.with_name("fifo")), p.symlink_to("fifo")), "is not a regular file"),
    "a folder": (os.mkdir, "is not a regular file"),
    "a device": (lambda path: path.symlink_to("/dev/zero"), "leads out of its folder, to /dev/zero"),
    "a link out of the folder": (link_outside, "leads out of its folder"),
    "a link to a link out of it": (link_through_a_folder, "leads out of its folder"),
    "a relative link out of it": (lambda p: ((p.parent.parent / "up").touch(), p.symlink_to("../up")), "leads out"),
    "a link to nothing": (lambda path: path.symlink_to("nowhere"), "cannot be opened"),
    "a link to itself": (lambda path: path.symlink_to(path.name), "cannot be opened"),
    "nothing": (lambda path: None, "cannot be opened"),
}


FUNCTIONS = (regular_descriptor, regular_size, open_file)


@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize("case", REFUSED)
def test_refused(tmp_path, case, function):
    make, message = REFUSED[case]
    folder = tmp_path / "dataset"
    folder.mkdir()
    make(folder / "file")
    with pytest.raises(DatasetError, match=message):
        function(folder / "file")


def test_a_socket_and_a_name_with_nul_are_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # the path of a socket has at most 107 bytes
    with socket.socket(socket.AF_UNIX) as server:
        server.bind("file")
    for name, message in (
        ("file", "is not a regular file"),
        ("a\0b", "cannot be opened"),
        ("gone/file", "cannot be opened"),
    ):
        for function in FUNCTIONS:
            with pytest.raises(DatasetError, match=message):
                function(tmp_path / name)


def test_a_link_inside_the_folder_is_followed_and_so_is_one_of_the_folder(tmp_path):
    (tmp_path / "disk").mkdir()
    (tmp_path / "disk/content").write_bytes(b"12345")
    (tmp_path / "disk/file").symlink_to("content")
    (tmp_path / "disk/absolute").symlink_to(tmp_path / "disk/content")
    (tmp_path / "dataset").symlink_to("disk")  # a user's own link to a folder is not a stranger's
    for name in ("disk/content", "disk/file", "disk/absolute", "dataset/content", "dataset/file"):
        assert regular_size(tmp_path / name) == 5
        with open_file(tmp_path / name) as file:
            assert file.read() == b"12345"
