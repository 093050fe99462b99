"""Many shards scanned, in this process or in several: each leaves a part file and, after it, a receipt.

A process reads jobs from its standard input and answers on its standard output, one line of JSON each: how many bytes it has read
since the last line, and at the end of a job "done" or an error. It has nothing else to send: what it found is in files.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import queue
import subprocess
import sys
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tfprep.child_process import end_with_parent, worker_environment
from tfprep.dataset.imported.scan import LostRecord, compression_of, scan
from tfprep.dataset.imported.schema import FeatureSummary
from tfprep.dataset.imported.shards import OpenShard, Shard, current
from tfprep.errors import DatasetError, TfprepError
from tfprep.limits import usable_cpus
from tfprep.plain_json import from_json, indented
from tfprep.storage.local import whole_file, write_whole
from tfprep.storage.urls import folder_at, is_remote

FEW_BYTES = 64 << 20
"""Less than this is scanned sooner than another process has started, which takes half a second."""
_PROGRAM = "from tfprep.dataset.imported.scanning import serve; serve({parent})"
_VERSION = 1
_IDENTITY = ("form", "path", "bytes", "version", "verify")
OnBytes = Callable[[int], None]


@dataclass(frozen=True)
class Scanned:
    """The receipt of a shard.

    Attributes:
        form: The version of receipts.
        path: The shard's path, relative to the folder of receipts, or its URL.
        bytes, version: Its size, and a text that changes when it is written.
        verify: Whether the checksum of every payload was compared.
        records: The number of good records, which are in the part file.
        bad: The records that are not good.
        fault: Why the file does not end with a record; "" if it does.
        end: Where its last whole record ends.
        summaries: The summary of each feature.
    """

    form: int
    path: str
    bytes: int
    version: str
    verify: bool
    records: int
    bad: tuple[LostRecord, ...]
    fault: str
    end: int
    summaries: Mapping[str, FeatureSummary]


def scan_shards(
    shards: Sequence[Shard],
    folder: Path,
    *,
    verify: bool,
    workers: int | None = None,
    on_bytes: OnBytes = lambda _: None,
) -> None:
    """Scan shards, so that each has a part and a receipt.

    Args:
        shards: The shards.
        folder: Where parts and receipts lie.
        verify: Whether the checksum of every payload is compared.
        workers: The number of processes; None for one a usable CPU, 0 for this process alone.
        on_bytes: Called with the number of bytes that were read.

    Raises:
        DatasetError: A shard cannot be read, is compressed as a whole, or was written to meanwhile.
    """
    count = min(usable_cpus() if workers is None else workers, len(shards))
    if count <= 1 or (workers is None and sum(shard.bytes for shard in shards) < FEW_BYTES):
        for shard in shards:
            scan_one(shard, folder, verify=verify, on_bytes=on_bytes)
    else:
        _in_processes(shards, folder, verify, count, on_bytes)


def scan_one(shard: Shard, folder: Path, *, verify: bool, on_bytes: OnBytes) -> None:
    """Scan one shard, and write its part and its receipt."""
    part, receipt = _paths(shard, folder, verify)
    with OpenShard(shard.path) as opened, whole_file(part) as out:
        start = opened.bytes(0, 64)
        if kind := compression_of(start):
            raise DatasetError(_compressed(shard, kind))
        try:
            found = scan(opened.read, shard.bytes, out, verify=verify, on_bytes=on_bytes)
        except OSError as error:
            raise DatasetError(f"{shard.path} cannot be read ({error.strerror or error})") from error
    if current(shard.path) != shard:
        raise DatasetError(
            f"{shard.path} was written to while it was indexed; run the command again when it is complete"
        )
    content = Scanned(
        **_identity(shard, folder, verify),
        records=found.records - len(found.bad),
        bad=tuple(found.bad),
        fault=found.fault,
        end=found.end,
        summaries=found.summaries,
    )
    write_whole(receipt, indented(content))


def _compressed(shard: Shard, kind: str) -> str:
    reading = "gzip -dc" if kind == "GZIP" else f"{sys.executable} -c {_UNPACK_ZLIB!r}"
    name = shard.path.name.removesuffix(".gz")
    return (
        f"{shard.path} is compressed as a whole ({kind}): to read one of its records, all before it have to be unpacked. "
        f"Write it without compression: {reading} < {shard.path} > {shard.path.with_name('plain-' + name)}"
    )


_UNPACK_ZLIB = "import sys, zlib; sys.stdout.buffer.write(zlib.decompress(sys.stdin.buffer.read()))"


# --- receipts ---------------------------------------------------------------------------------------------------------


def find_receipt(shard: Shard, folder: Path, *, verify: bool) -> Scanned | None:
    """Return what was found in a shard as it is now; None if it was not scanned, or `verify` asks for more than was compared."""
    for verified in (True, False)[: 1 if verify else 2]:
        part, receipt = _paths(shard, folder, verified)
        try:
            found = from_json(Scanned, json.loads(receipt.read_text()))
        except (FileNotFoundError, ValueError):
            continue
        if part.is_file() and _identity(shard, folder, verified).items() <= vars(found).items():
            return found
    return None


def part_of(found: Scanned, folder: Path) -> Path:
    """Return the part file of a shard that was scanned."""
    return _named(folder, {name: getattr(found, name) for name in _IDENTITY})[0]


def remove_receipts(folder: Path, kept: Collection[Path]) -> None:
    """Remove the parts that are not among `kept`, with their receipts: shards that changed, or belong to no split any more."""
    for part in folder.glob("*.part"):
        if part not in kept:
            part.with_suffix(".json").unlink(missing_ok=True)
            part.unlink(missing_ok=True)


def _identity(shard: Shard, folder: Path, verify: bool) -> dict[str, Any]:
    """Return what tells one scan of a shard from another. A local path is relative, so that all can be moved together."""
    path = str(shard.path) if is_remote(shard.path) else os.path.relpath(shard.path, folder)
    return {"form": _VERSION, "path": path, "bytes": shard.bytes, "version": shard.version, "verify": verify}


def _paths(shard: Shard, folder: Path, verify: bool) -> tuple[Path, Path]:
    return _named(folder, _identity(shard, folder, verify))


def _named(folder: Path, identity: Mapping[str, Any]) -> tuple[Path, Path]:
    digest = hashlib.sha256(json.dumps(identity).encode()).hexdigest()[:24]
    return folder / f"{digest}.part", folder / f"{digest}.json"


# --- processes --------------------------------------------------------------------------------------------------------


def _in_processes(shards: Sequence[Shard], folder: Path, verify: bool, count: int, on_bytes: OnBytes) -> None:
    """Each of `count` threads has a process that it gives one shard after another."""
    jobs: queue.SimpleQueue[Shard] = queue.SimpleQueue()
    for shard in sorted(shards, key=lambda shard: -shard.bytes):
        jobs.put(shard)
    events: queue.SimpleQueue[int | Exception | None] = queue.SimpleQueue()
    processes = [_start() for _ in range(count)]
    threads = [
        threading.Thread(target=_feed, args=(process, jobs, events, folder, verify), daemon=True)
        for process in processes
    ]
    try:
        for thread in threads:
            thread.start()
        left = count
        while left:
            event = events.get()
            if isinstance(event, Exception):
                raise event
            if event is None:
                left -= 1
            else:
                on_bytes(event)
    finally:
        for process in processes:
            process.kill()
            process.wait()
        for thread in threads:
            thread.join()
        for process in processes:
            for pipe in (process.stdin, process.stdout):
                with contextlib.suppress(OSError):  # what was not sent yet, to a process that died
                    if pipe is not None:
                        pipe.close()


def _start() -> subprocess.Popen[bytes]:
    command = [sys.executable, "-c", _PROGRAM.format(parent=os.getpid())]
    return subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=worker_environment(),
        start_new_session=True,  # a terminal's Ctrl-C goes to this process alone
    )


def _feed(
    process: subprocess.Popen[bytes],
    jobs: queue.SimpleQueue[Shard],
    events: queue.SimpleQueue[int | Exception | None],
    folder: Path,
    verify: bool,
) -> None:
    """Give a process one shard after another, and pass on what it says; None at the end."""
    assert process.stdin is not None
    assert process.stdout is not None
    while True:
        try:
            shard = jobs.get_nowait()
        except queue.Empty:
            events.put(None)
            return
        job = {"path": str(shard.path), "bytes": shard.bytes, "version": shard.version}
        try:
            process.stdin.write(json.dumps({**job, "folder": str(folder), "verify": verify}).encode() + b"\n")
            process.stdin.flush()
            for line in process.stdout:
                answer = json.loads(line)
                if isinstance(answer, int):
                    events.put(answer)
                    continue
                if "error" in answer:
                    events.put(DatasetError(answer["error"]))
                    return
                break
            else:
                raise BrokenPipeError
        except (BrokenPipeError, ValueError, OSError):
            events.put(
                DatasetError(
                    f"the process that read {shard.path} died (status {process.wait()}); run the command again"
                )
            )
            return


def serve(parent: int) -> None:
    """The program of a process: jobs from standard input, answers to standard output."""
    end_with_parent(parent)
    out = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)  # what a library prints must not stand among the answers
    for line in sys.stdin.buffer:
        job = json.loads(line)
        path = job["path"]
        place: Any = folder_at(path) if "://" in path else Path(path)
        shard = Shard(place, job["bytes"], job["version"])
        answer: dict[str, Any] = {"done": True}
        try:
            scan_one(shard, Path(job["folder"]), verify=job["verify"], on_bytes=lambda count: _answer(out, count))
        except TfprepError as error:
            answer = {"error": str(error)}
        except Exception as error:
            answer = {"error": f"{path} cannot be indexed ({type(error).__name__}: {error})"}
        _answer(out, answer)


def _answer(out: Any, value: Any) -> None:
    out.write(json.dumps(value).encode() + b"\n")
