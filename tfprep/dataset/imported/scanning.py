"""Many shards scanned, in this process or in several: each leaves a part file and, after it, a receipt."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import closing
from math import inf
from pathlib import Path
from typing import Any

from tfprep.child_process import Mark, Processes, TaskCrashed, TaskDone, TaskProgress
from tfprep.dataset.imported.scan import Scanned, compression_of, scan
from tfprep.dataset.imported.shards import Shard, current, open_shard
from tfprep.errors import DatasetError, TfprepError
from tfprep.limits import usable_cpus
from tfprep.plain_json import from_json, indented
from tfprep.storage.local import whole_file, write_whole
from tfprep.storage.urls import is_remote

FEW_BYTES = 64 << 20
"""Less than this is scanned sooner than another process has started, which takes half a second."""
_ENTRY = f"{__name__}:open_scan"
_VERSION = 2
_IDENTITY = ("form", "path", "bytes", "version")
OnBytes = Callable[[int], None]


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
        return
    shards = sorted(shards, key=lambda shard: -shard.bytes)
    done = [0] * len(shards)
    with closing(Processes(_ENTRY, workers=count, item_timeout_s=inf)) as processes:
        processes.start()
        processes.open((folder, verify))
        for number, shard in enumerate(shards):
            processes.submit(number, shard)
        for event in processes.events():
            if isinstance(event, TaskProgress | TaskDone):
                read = event.item if isinstance(event, TaskProgress) else event.result
                on_bytes(read - done[event.task])
                done[event.task] = read
            elif isinstance(event, TaskCrashed):
                path = shards[event.task].path
                raise DatasetError(f"the process that read {path} died ({event.reason}); run the command again")


def scan_one(shard: Shard, folder: Path, *, verify: bool, on_bytes: OnBytes) -> None:
    """Scan one shard, and write its part and its receipt."""
    identity = _identity(shard, folder)
    part, receipt = _paths(folder, identity)
    receipt.unlink(missing_ok=True)  # that of a scan without `verify` describes another part
    with open_shard(shard.path) as file, whole_file(part) as out:
        if kind := compression_of(file.read(64)):
            raise DatasetError(
                f"{shard.path} is compressed as a whole ({kind}): to read one of its records, all before it have to be unpacked. "
                f"Index copies without compression, which `gzip -dc < FILE` (`pigz -dc` for ZLIB) writes"
            )
        file.seek(0)
        try:
            found = scan(file, {**identity, "verify": verify}, out, on_bytes)
        except OSError as error:
            raise DatasetError(f"{shard.path} cannot be read ({error.strerror or error})") from error
    if current(shard.path) != shard:
        raise DatasetError(
            f"{shard.path} was written to while it was indexed; run the command again when it is complete"
        )
    write_whole(receipt, indented(found))


# --- receipts ---------------------------------------------------------------------------------------------------------


def find_receipt(shard: Shard, folder: Path, *, verify: bool) -> Scanned | None:
    """Return what was found in a shard as it is now; None if it was not scanned, or `verify` asks for more than was compared."""
    identity = _identity(shard, folder)
    part, receipt = _paths(folder, identity)
    try:
        found = from_json(Scanned, json.loads(receipt.read_text()))
    except (FileNotFoundError, ValueError):
        return None
    is_same = part.is_file() and identity.items() <= vars(found).items()
    return found if is_same and verify <= found.verify else None


def part_of(found: Scanned, folder: Path) -> Path:
    """Return the part file of a shard that was scanned."""
    return _paths(folder, {name: getattr(found, name) for name in _IDENTITY})[0]


def remove_receipts(folder: Path, kept: Collection[Path]) -> None:
    """Remove the parts that are not among `kept`, with their receipts: shards that changed, or belong to no split any more."""
    for part in folder.glob("*.part"):
        if part not in kept:
            part.with_suffix(".json").unlink(missing_ok=True)
            part.unlink(missing_ok=True)


def _identity(shard: Shard, folder: Path) -> dict[str, Any]:
    """Return what tells one state of a shard from another. A local path is relative, so that all can be moved together."""
    path = str(shard.path) if is_remote(shard.path) else os.path.relpath(shard.path, folder)
    return {"form": _VERSION, "path": path, "bytes": shard.bytes, "version": shard.version}


def _paths(folder: Path, identity: Mapping[str, Any]) -> tuple[Path, Path]:
    digest = hashlib.sha256(json.dumps(identity).encode()).hexdigest()[:24]
    return folder / f"{digest}.part", folder / f"{digest}.json"


def open_scan(argument: tuple[Path, bool]) -> Callable[[Shard, Mark], int]:
    """Return the work of a process (`tfprep.child_process`): scan a shard, with the bytes read so far as marks."""
    folder, verify = argument

    def work(shard: Shard, mark: Mark) -> int:
        done = 0

        def count(more: int) -> None:
            nonlocal done
            done += more
            mark(done)

        try:
            scan_one(shard, folder, verify=verify, on_bytes=count)
        except TfprepError:
            raise
        except Exception as error:
            raise DatasetError(f"{shard.path} cannot be indexed ({type(error).__name__}: {error})") from error
        return done

    return work
