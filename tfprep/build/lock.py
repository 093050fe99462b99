"""One build at a time writes into a folder."""

from __future__ import annotations

import fcntl
import json
import os
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from tfprep.build.files import writing
from tfprep.build.layout import Layout
from tfprep.errors import BuildError, BuildLockedError


@contextmanager
def locked(layout: Layout) -> Iterator[None]:
    """Hold the folder's lock. BuildLockedError names process, host and start of the build that has it.

    The lock is the system's (`flock`): it goes with its process, however that ends, so no dead one is left behind.
    """
    layout.make()
    with writing(layout.lock):
        opened = layout.lock.open("a+")
    with opened as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError) as error:
            file.seek(0)
            raise BuildLockedError(_refusal(layout, file.read())) from error
        except OSError as error:
            told = f"cannot lock {layout.lock}: {error.strerror}; build into a folder on another file system"
            raise BuildError(told) from error
        file.truncate(0)
        started = time.strftime("%Y-%m-%d %H:%M:%S")
        command = " ".join(sys.argv)
        holder = {"process": os.getpid(), "host": socket.gethostname(), "started": started, "command": command}
        file.write(json.dumps(holder))
        file.flush()
        try:
            yield
        finally:
            file.truncate(0)


def _refusal(layout: Layout, holder: str) -> str:
    try:
        told = json.loads(holder)
        who = f"process {told['process']} on {told['host']}, started {told['started']}: {told['command']}"
    except (ValueError, KeyError):
        who = "another process"
    return f"{layout.out} is being built by {who}; wait for it, or build into another folder"
