"""Whether another machine sees the folders of a build as the driver does: the output folder, its lock, and the raw files."""

from __future__ import annotations

import fcntl
import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

from tfprep.builder.layout import Layout
from tfprep.builder.shards.inputs import Inputs
from tfprep.builder.workers.engine import Json
from tfprep.errors import BuildError, DatasetError, StorageError
from tfprep.sources.raw import raw_root
from tfprep.storage.urls import folder_at, read_content, remove_file, write_content


@dataclass(frozen=True)
class Sight:
    """What another machine has to see.

    Attributes:
      mark: The name and the content of a file below the output folder.
      samples: Files, values and digest of some samples.
    """

    mark: str
    samples: Sequence[tuple[Sequence[str], Sequence[Any], bytes]]

    def look(self, argument: Json) -> None:
        """Compare the folders of this machine. Raises BuildError that says what differs."""
        layout = Layout(folder_at(argument["out"]))
        self._look_at_output(layout)
        if not layout.at_store:
            _check_lock(layout)
        inputs = _raw_inputs(argument)
        for files, values, digest in self.samples:
            if inputs.digest(files, values) != digest:
                names = ", ".join(files) or "a sample"
                raise BuildError(
                    f"{names} below {argument['root']} is missing or another file there; --data names a folder that all nodes "
                    "see, or a copy on each node"
                )

    def _look_at_output(self, layout: Layout) -> None:
        path = layout.marks / self.mark
        own = path.with_name(f"{self.mark}-{secrets.token_hex(4)}")
        try:
            same = read_content(path).decode() == self.mark
            write_content(own, self.mark)
            remove_file(own)
        except FileNotFoundError:
            same = False
        except (OSError, DatasetError, BuildError) as error:
            raise BuildError(f"{layout.out} cannot be used there: {error}") from error
        if not same:
            raise BuildError(f"{layout.out} is not the driver's folder there; --out names a folder that all nodes see")


def _check_lock(layout: Layout) -> None:
    """Raise BuildError if the driver's lock is not seen: attempts at one shard rely on locks that all machines share."""
    with layout.lock.open("a+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return
    raise BuildError(
        f"{layout.lock} is locked by the driver and not locked there: the file system is mounted without shared locks "
        "(the options nolock and local_lock of NFS, noflock of Lustre)"
    )


@contextmanager
def shown(argument: Json) -> Iterator[Sight]:
    """Leave a mark in the output folder, and digest the samples of `argument["witnesses"]`."""
    layout, mark = Layout(folder_at(argument["out"])), secrets.token_hex(8)
    inputs = _raw_inputs(argument)
    samples = [(files, values, inputs.digest(files, values)) for files, values in argument["witnesses"]]
    path = layout.marks / mark
    if not layout.at_store:
        path.parent.mkdir(exist_ok=True)
    write_content(path, mark)
    try:
        yield Sight(mark, samples)
    finally:
        with suppress(StorageError):  # The next build removes it.
            remove_file(path)


def _raw_inputs(argument: Json) -> Inputs:
    return Inputs(raw_root(argument["root"]), tuple(argument["files"]), tuple(argument["values"]))
