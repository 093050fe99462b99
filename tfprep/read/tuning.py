"""`tuning.json`: how a dataset is best loaded on machines of one kind, as `tfprep bench --tune` found out.

It stands beside the dataset's `tfprep.json` and changes nothing that is delivered: threads, batches ahead, cache, the
allocator's thresholds. Options that a trainer gives go before it. What is damaged, of another build of the dataset or of
another kind of machine is passed over, and the loader's report says so.
"""

from __future__ import annotations

import ctypes
import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import psutil

from tfprep.cpus import usable_cpus
from tfprep.dataset.place import is_remote, scheme_of
from tfprep.memory import memory_limit

TUNING = "tuning.json"
FORMAT_VERSION = 1
TUNABLE = ("threads", "ahead", "cache")
"""Options that a tuning may set: none that changes which samples a batch holds."""
_MOST_THREADS, _MOST_AHEAD = 1024, 1024
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_KEPT_BYTES = 1 << 30
"""Freed memory up to this stays with the process, and blocks up to this come from its heap."""


@dataclass(frozen=True)
class Tuning:
    """Settings for one kind of machine: `options` of the loader, whether to set the allocator's thresholds, and what that
    gained: images a second over those of the defaults, measured twice."""

    options: Mapping[str, Any] = field(default_factory=dict)
    allocator: bool = False
    gain: float = 1.0
    verified: float = 1.0


def machine_key(folder: Path) -> str:
    """The same for machines on which one setting is as good as on the other: cores, memory, and the dataset's file system."""
    return f"{usable_cpus()} cores, {round(memory_limit() / 2**30)} GiB, {file_system(folder)}"


@dataclass(frozen=True)
class Found:
    """What `tuning.json` holds for this dataset on this kind of machine. Without a `tuning`, `because` says why: there is no
    such file ("none"), or it is passed over."""

    tuning: Tuning | None
    because: str = ""

    @property
    def use(self) -> str:
        """ "used", "none", or "passed over"."""
        if self.tuning is not None:
            return "used"
        return "passed over" if self.because else "none"


def find_tuning(folder: Path, fingerprint: str) -> Found:
    """This machine's entry in the dataset's `tuning.json`, or why there is none to use. Raises nothing."""
    try:
        document = json.loads((folder / TUNING).read_bytes())
        if document["format_version"] != FORMAT_VERSION:
            return Found(None, f"it is of version {document['format_version']!r}, this tfprep reads {FORMAT_VERSION}")
        if document["fingerprint"] != fingerprint:
            return Found(None, "it was measured on another build of the dataset; run tfprep bench --tune again")
        here = machine_key(folder)
        if here not in document["machines"]:
            known = "; ".join(sorted(document["machines"])) or "no machine"
            return Found(None, f"it was measured on {known}, this machine has {here}; run tfprep bench --tune here")
        return Found(_tuning(document["machines"][here]))
    except FileNotFoundError:
        return Found(None)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        return Found(None, f"it is damaged ({type(error).__name__}: {error}); run tfprep bench --tune again")


def read_tuning(folder: Path, fingerprint: str) -> Tuning | None:
    """What was found for this dataset on this kind of machine; None where nothing was."""
    return find_tuning(folder, fingerprint).tuning


def _tuning(found: Mapping[str, Any]) -> Tuning:
    """An entry of the file, checked: it may have been written by hand. ValueError, KeyError or TypeError where it is wrong."""
    options = {name: found["options"][name] for name in TUNABLE if name in found["options"]}
    for name, most in (("threads", _MOST_THREADS), ("ahead", _MOST_AHEAD)):
        value = options.get(name, 1)
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
            raise ValueError(f"{name} is {value!r}")
    cache = options.get("cache", False)
    if cache is not False and cache not in ("auto", "encoded", "decoded"):
        raise ValueError(f"cache is {cache!r}")
    if not isinstance(found["allocator"], bool):
        raise ValueError(f"allocator is {found['allocator']!r}")
    return Tuning(options, found["allocator"], float(found["gain"]), float(found["verified"]))


def write_tuning(folder: Path, fingerprint: str, tuning: Tuning) -> Path:
    """Add or replace this machine's entry; those of another build of the dataset are dropped."""
    path = folder / TUNING
    machines = {}
    try:
        document = json.loads(path.read_bytes())
        if document["fingerprint"] == fingerprint:
            machines = dict(document["machines"])
    except (OSError, ValueError, KeyError, TypeError):
        pass
    machines[machine_key(folder)] = asdict(tuning)
    whole = {"format_version": FORMAT_VERSION, "fingerprint": fingerprint, "machines": machines}
    temporary = path.with_name(f".{TUNING}.{os.getpid()}")
    temporary.write_text(json.dumps(whole, indent=1) + "\n")
    temporary.replace(path)
    return path


def set_allocator() -> bool:
    """Let glibc keep large freed blocks instead of giving each back: a fresh one is page-faulted in anew. False elsewhere."""
    libc = ctypes.CDLL(None)
    if not hasattr(libc, "mallopt"):
        return False
    return bool(libc.mallopt(_M_MMAP_THRESHOLD, _KEPT_BYTES) and libc.mallopt(_M_TRIM_THRESHOLD, _KEPT_BYTES))


def file_system(folder: Path) -> str:
    """The type of the file system that `folder` lies on, as `ext4` or `nfs4`; "unknown" where the system does not say."""
    if is_remote(folder):
        return scheme_of(folder)
    path = os.path.realpath(folder)
    mounts = [part for part in psutil.disk_partitions(all=True) if _below(path, part.mountpoint)]
    return str(max(mounts, key=lambda part: len(part.mountpoint)).fstype) if mounts else "unknown"


def _below(path: str, mountpoint: str) -> bool:
    return os.path.commonpath([path, mountpoint]) == mountpoint
