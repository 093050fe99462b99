"""Locks of datasets: in a local folder, and at an object store. Each names its holder.

A lock in a folder is one of the operating system: it ends with its process. A store has no such locks. There the lock is an
object that names its holder, who writes it again every few seconds:

    .tfprep/lock              a build, a publication, a cleaning: one at a time
    .tfprep/running/<run>     a part of a build: many at a time, but none while `.tfprep/lock` is held

A holder of this machine is gone when its process is; one of another machine when its object has not changed for `DEAD_S`,
measured by the clock of the process that waits.
"""

from __future__ import annotations

import json
import os
import secrets
import socket
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from tfprep.errors import BuildError, BuildLockedError, ObjectChangedError, StorageError
from tfprep.storage.address import without_secrets
from tfprep.storage.local import locked as file_locked
from tfprep.storage.store import Store, find_object

HEARTBEAT_S, DEAD_S = 10.0, 45.0
"""A holder misses four heartbeats before it counts as gone: a store that throttles delays a request by seconds."""
_POLL_S = 1.0
LOCK, RUNNING = ".tfprep/lock", ".tfprep/running"


@contextmanager
def folder_locked(path: Path, place: Path, *, shared: bool = False) -> Iterator[None]:
    """Hold the lock of a local dataset, exclusively or shared with other parts. It ends with its process, however that ends.

    Args:
      path: The file of the lock.
      place: The dataset's folder, for messages.
      shared: Whether parts of a build hold it together.

    Raises:
      BuildLockedError: Another process holds it; the message names its process, host and start.
      BuildError: The file system has no locks.
    """
    busy = BuildLockedError()
    try:
        with file_locked(path, busy, shared=shared) as descriptor:
            os.ftruncate(descriptor, 0)
            if not shared:
                os.write(descriptor, json.dumps(this_process()).encode())
            try:
                yield
            finally:
                if not shared:
                    os.ftruncate(descriptor, 0)
    except BuildLockedError as error:
        if error is not busy:
            raise
        holder = path.read_text()
        parts = f"parts of {place} are being built; wait for them, or build into another folder"
        raise BuildLockedError(refusal(place, holder) if holder else parts) from error


class StoreLock:
    """The lock that a build holds at a store."""

    def __init__(self, store: Store, name: str, place: str) -> None:
        self._store, self._name, self._place = store, name, place
        self._note = {**this_process(), "run": secrets.token_hex(6)}
        self._version: str | None = None
        self._ended, self._lost = threading.Event(), False

    def acquire(self) -> None:
        """Write the object, in the place of one whose holder is gone. Raises BuildLockedError, which names the holder."""
        while True:
            try:
                self._version = self._store.replace(self._name, self._content(), self._version)
                break
            except ObjectChangedError:
                self._version = version_left(self._store, self._name, self._place)

        def beat() -> None:
            while not self._lost and not self._ended.wait(HEARTBEAT_S):
                self._beat_once()

        threading.Thread(target=beat, name="tfprep-store-lock", daemon=True).start()

    def release(self) -> None:
        """Delete the object, unless another process took the lock."""
        self._ended.set()
        if not self._lost:
            with suppress(StorageError):  # The next build sees that this process is gone.
                self._store.delete([self._name])

    def check(self) -> None:
        """Raise BuildError if another process took the lock because this one showed no sign of life."""
        if self._lost:
            raise BuildError(
                f"{self._place}: this process was stopped for more than {DEAD_S:.0f} s and another build began; run the same "
                "command again when that one has ended: it continues"
            )

    def _beat_once(self) -> None:
        try:
            self._version = self._store.replace(self._name, self._content(), self._version)
        except ObjectChangedError:
            self._lost = not self._ended.is_set()
        except StorageError:
            pass  # The build itself meets a store that is gone.

    def _content(self) -> bytes:
        return json.dumps({**self._note, "beat": time.time_ns()}).encode()


@contextmanager
def store_locked(store: Store, place: str, *, shared: bool = False) -> Iterator[StoreLock]:
    """Hold the lock of a dataset at a store, exclusively or shared with other parts.

    Both kinds write their own object first and look for the other kind then: of two that begin at once, at least one sees the
    other.

    Raises:
        BuildLockedError: Another process holds it, which is named.
        StorageError: The store cannot be reached or refuses.
    """
    lock = StoreLock(store, f"{RUNNING}/{secrets.token_hex(8)}" if shared else LOCK, place)
    lock.acquire()
    try:
        others = [LOCK] if shared else [info.name for info in store.list(RUNNING)]
        for name in others:
            version = version_left(store, name, place)
            if version is not None and not shared:
                store.delete([name])
        yield lock
    finally:
        lock.release()


def version_left(store: Store, name: str, place: str) -> str | None:
    """Return the version of a lock's object whose holder is gone; None where there is no object.

    Raises:
        BuildLockedError: The holder is alive.
    """
    try:
        version = store.info(name).version
        holder = bytes(store.read(name)).decode(errors="replace")
    except StorageError as error:
        if isinstance(error.__cause__, FileNotFoundError):
            return None
        raise
    alive = is_alive(holder)
    end = time.monotonic() + DEAD_S
    while alive is None and time.monotonic() < end:  # a holder on another machine: wait for a heartbeat
        time.sleep(_POLL_S)
        info = find_object(store, name)
        if info is None or info.version != version:
            alive = info is not None  # else it was released
    if alive:
        raise BuildLockedError(refusal(place, holder))
    return version


# --- the holder of a lock ---------------------------------------------------------------------------------------------


def this_process() -> dict[str, Any]:
    """Return what a lock says of its holder."""
    return {
        "process": os.getpid(),
        "host": socket.gethostname(),
        "started": time.strftime("%Y-%m-%d %H:%M:%S"),
        "command": without_secrets(" ".join(sys.argv)),
        "machine": _machine(),
        "born": _born(os.getpid()),
    }


def is_alive(holder: str) -> bool | None:
    """Return True if the holder's process runs; None if that cannot be seen from this machine."""
    try:
        note = json.loads(holder)
        is_here = note["machine"] == _machine() != ""
        return bool(_born(int(note["process"])) == note["born"]) if is_here else None
    except (ValueError, KeyError, TypeError):
        return None


def _machine() -> str:
    """Return what two processes share exactly if each one sees the other's process id; "" where the system does not say."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return ""


def _born(process: int) -> str:
    """Return when a process started, in ticks of the system; "" if it does not run. Ids of processes are used again."""
    try:
        state, *fields = Path(f"/proc/{process}/stat").read_text().rpartition(") ")[2].split()
    except (OSError, ValueError):
        return ""
    return "" if state in "ZX" else fields[18]


def refusal(place: str | Path, holder: str) -> str:
    """Return the message that names the process, host and start of the build that holds a lock, from what it wrote there."""
    try:
        build = json.loads(holder)
        who = f"process {build['process']} on {build['host']}, started {build['started']}: {build['command']}"
    except (ValueError, KeyError, TypeError):
        who = "another process"
    return f"{place} is being built by {who}; wait for it, or build into another folder"
