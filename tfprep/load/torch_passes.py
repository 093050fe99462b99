"""Passes of a PyTorch `DataLoader` with worker processes.

Its workers begin a pass without a word to the process that owns the `DataLoader`, so they agree by a small file: the iteration
that began last, its first step, and the step that comes next. Workers of one iteration have the same base seed, other
iterations other ones; the first worker of an iteration takes the next epoch, and the others join it.
"""

from __future__ import annotations

import contextlib
import fcntl
import multiprocessing
import os
import secrets
import shutil
import struct
import tempfile
import weakref
from pathlib import Path

_RECORD = struct.Struct("<qqq")


class TorchPasses:
    """The next step of a run, known to a process and its workers. Each process that owns a `DataLoader` has a run of its own.

    The first worker makes the folder of the files, so that a loader without workers needs none. It is removed with the object
    that named it, in the process that made that.
    """

    def __init__(self) -> None:
        self._name = f"tfprep-torch-{secrets.token_hex(8)}"
        self._seed, self._passes = -1, 0
        weakref.finalize(self, _remove, self._name, os.getpid())

    @property
    def next_step(self) -> int:
        """The step that comes next, as far as workers of this process have begun passes."""
        try:
            content = (Path(tempfile.gettempdir()) / self._name / str(os.getpid())).read_bytes()
        except FileNotFoundError:  # no worker has begun a pass; there may be no folder for temporary files either
            return 0
        return int(_RECORD.unpack(content)[2])

    def begin(self, seed: int, steps: int, at_least: int) -> int:
        """The first step of the pass that this worker begins.

        Args:
            seed: The base seed of the iteration, the same for all of its workers.
            steps: The steps of a pass.
            at_least: The next step as this process knows it from passes without workers.
        """
        self._passes = self._passes + 1 if seed == self._seed else 0  # persistent workers begin one pass after another
        self._seed = seed
        owner = multiprocessing.parent_process()
        folder = Path(tempfile.gettempdir()) / self._name
        folder.mkdir(0o700, exist_ok=True)
        path = folder / str(owner.pid if owner else os.getpid())
        with os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT, 0o600), "r+b", buffering=0) as file:
            fcntl.lockf(file, fcntl.LOCK_EX)
            last, base, following = _RECORD.unpack(file.read(_RECORD.size) or _RECORD.pack(-1, 0, 0))
            if last != seed:
                base = max(following, at_least)
            first: int = base + self._passes * steps
            file.seek(0)
            file.write(_RECORD.pack(seed, base, max(following, first + steps)))
        return first


def _remove(name: str, process: int) -> None:
    if os.getpid() == process:
        with contextlib.suppress(FileNotFoundError):  # no folder for temporary files
            shutil.rmtree(Path(tempfile.gettempdir()) / name, ignore_errors=True)
