"""How a loader runs: threads, prefetched batches, cache and allocator. None of it changes what is delivered.

The user's options take precedence, then the dataset's `tuning.json`, then the defaults. `tfprep bench --tune` measures which
settings are fastest on this kind of machine and writes them to `tuning.json`, next to `tfprep.json`. A file that is damaged, or
that was measured on another build of the dataset or another kind of machine, is not used, and the loader's report says why.
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

from tfprep.dataset import Dataset
from tfprep.errors import DatasetError
from tfprep.limits import memory_limit, usable_cpus
from tfprep.load.options import CacheChoice, LoaderOptions
from tfprep.storage.local import write_whole
from tfprep.storage.urls import is_remote, open_file, scheme_of

TUNING = "tuning.json"
FORMAT_VERSION = 1
TUNABLE = ("threads", "prefetch", "cache")
"""The options that a tuning may set: none of them changes what a batch holds."""
_MOST_BYTES = 1 << 20  # an entry has some 300 bytes
_MOST_THREADS, _MOST_PREFETCH = 1024, 1024
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_KEPT_BYTES = 1 << 30
"""Blocks up to this size come from the heap, and freed memory up to this size stays with the process."""
_USUAL_BYTES = 32 << 20
"""The largest threshold that glibc reaches by itself on 64 bits (mallopt(3)); that of trimming is twice as large."""
_MALLOC_VARIABLES = ("MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_")


@dataclass(frozen=True)
class Tuning:
    """Settings for one kind of machine: `options` of the loader, whether to set the allocator's thresholds, and the gain.

    `gain` and `verified` are the images/s as a multiple of those with the defaults, measured twice.
    """

    options: Mapping[str, Any] = field(default_factory=dict)
    allocator: bool = False
    gain: float = 1.0
    verified: float = 1.0


def machine_key(folder: Path) -> str:
    """The kind of machine: cores, memory and the dataset's file system, on which the best settings depend."""
    return f"{usable_cpus()} cores, {round(memory_limit() / 2**30)} GiB, {file_system(folder)}"


@dataclass(frozen=True)
class TuningLookup:
    """The tuning for this dataset on this kind of machine; without one, `because` says why ("" where there is no file)."""

    tuning: Tuning | None
    because: str = ""

    @property
    def use(self) -> str:
        """ "used", "none", or "passed over"."""
        if self.tuning is not None:
            return "used"
        return "passed over" if self.because else "none"


def find_tuning(folder: Path, fingerprint: str) -> TuningLookup:
    """This machine's entry in the dataset's `tuning.json`, or why there is none. Raises nothing."""
    try:
        document = _read(folder / TUNING)
        if document["format_version"] != FORMAT_VERSION:
            return TuningLookup(
                None, f"it is of version {document['format_version']!r}, this tfprep reads {FORMAT_VERSION}"
            )
        if document["fingerprint"] != fingerprint:
            return TuningLookup(None, "it was measured on another build of the dataset; run tfprep bench --tune again")
        here = machine_key(folder)
        if here not in document["machines"]:
            known = "; ".join(sorted(document["machines"])) or "no machine"
            return TuningLookup(
                None, f"it was measured on {known}, this machine has {here}; run tfprep bench --tune here"
            )
        return TuningLookup(_tuning(document["machines"][here]))
    except DatasetError as error:
        missing = isinstance(error.__cause__, FileNotFoundError)
        return TuningLookup(None, "" if missing else f"it cannot be read ({error})")
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        return TuningLookup(None, f"it is damaged ({type(error).__name__}: {error}); run tfprep bench --tune again")


def _read(path: Path) -> Any:
    with open_file(path) as file:
        content = file.read(_MOST_BYTES + 1)
    if len(content) > _MOST_BYTES:
        raise ValueError(f"it is larger than {_MOST_BYTES} bytes")
    try:
        return json.loads(content)
    except RecursionError:
        raise ValueError("it is nested too deep") from None


def _tuning(entry: Mapping[str, Any]) -> Tuning:
    """An entry of the file, checked: it may have been written by hand. ValueError, KeyError or TypeError where it is wrong."""
    options = {name: entry["options"][name] for name in TUNABLE if name in entry["options"]}
    for name, most in (("threads", _MOST_THREADS), ("prefetch", _MOST_PREFETCH)):
        value = options.get(name, 1)
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
            raise ValueError(f"{name} is {value!r}")
    cache = options.get("cache", False)
    if cache is not False and cache not in ("auto", "encoded", "decoded"):
        raise ValueError(f"cache is {cache!r}")
    if not isinstance(entry["allocator"], bool):
        raise ValueError(f"allocator is {entry['allocator']!r}")
    return Tuning(options, entry["allocator"], float(entry["gain"]), float(entry["verified"]))


def write_tuning(folder: Path, fingerprint: str, tuning: Tuning) -> Path:
    """Add or replace this machine's entry; entries of another build of the dataset are dropped. Returns the file's path."""
    path = folder / TUNING
    machines = {}
    try:
        document = _read(path)
        if document["fingerprint"] == fingerprint:
            machines = dict(document["machines"])
    except (DatasetError, ValueError, KeyError, TypeError):
        pass
    machines[machine_key(folder)] = asdict(tuning)
    whole = {"format_version": FORMAT_VERSION, "fingerprint": fingerprint, "machines": machines}
    write_whole(path, json.dumps(whole, indent=1) + "\n")
    return path


_DEFAULTS: Mapping[str, Any] = {"threads": 0, "prefetch": None, "cache": "auto"}
"""Defaults of `LoaderOptions`: an option with this value may be set by the tuning."""


@dataclass(frozen=True)
class Settings:
    """`threads` 0: one a usable CPU. `most_prefetch` None: as many as make sense. `report`: what the loader's report says of it.

    `allocator`: its thresholds are to be set when reading begins, after TensorFlow has set them (see `restore_allocator`).
    """

    threads: int
    most_prefetch: int | None
    cache: CacheChoice
    allocator: bool = False
    report: Mapping[str, Any] = field(default_factory=dict)


def settings_for(options: LoaderOptions, datasets: list[Dataset]) -> Settings:
    """The settings of a loader that reads these datasets."""
    lookup = _look_up(options, datasets)
    if lookup.tuning is None:
        use = lookup.use if options.tuning else "off"
        return Settings(options.threads, None, options.cache, report={"use": use, "because": lookup.because})
    tuning = lookup.tuning
    used = {name: value for name, value in tuning.options.items() if _applies(options, name)}
    report: dict[str, Any] = {
        "use": "used",
        "because": f"{TUNING} was measured on a machine of this kind",
        "options": dict(used),
        "overridden": sorted(name for name in tuning.options if name not in used),
        "allocator": tuning.allocator,
        "gain": tuning.verified,
    }
    threads = used.get("threads") or options.threads
    return Settings(threads, used.get("prefetch"), used.get("cache", options.cache), tuning.allocator, report)


def _look_up(options: LoaderOptions, datasets: list[Dataset]) -> TuningLookup:
    if not options.tuning:
        return TuningLookup(None, "tuning=False")
    if options.path == "graph":
        return TuningLookup(None, "path='graph' reads without threads and caches of its own")
    if len(datasets) > 1:
        return TuningLookup(None, "a mix of datasets has no tuning of its own")
    return find_tuning(datasets[0].path, datasets[0].manifest.fingerprint)


def _applies(options: LoaderOptions, name: str) -> bool:
    """Whether the tuning may set the option. A cache is of no use where every sample is read once."""
    value, default = getattr(options, name), _DEFAULTS[name]
    return (value is default or value == default) and (name != "cache" or options.training is True)


def set_allocator() -> bool:
    """Make glibc keep large freed blocks, whose pages would be faulted in again; returns whether it was possible."""
    return _set_thresholds(_KEPT_BYTES, _KEPT_BYTES)


def restore_allocator() -> None:
    """Let glibc keep freed blocks as it does by itself, unless the environment sets its thresholds.

    TensorFlow 2.21 sets one of them when it makes a dataset of a Python iterator, also in `from_generator`. glibc adjusts none of
    them from then on and gives most freed blocks back to the system: `tf.data` on raw images in the same process had a fifth of
    its rate.
    """
    tunables = os.environ.get("GLIBC_TUNABLES", "")
    if "glibc.malloc" not in tunables and not any(name in os.environ for name in _MALLOC_VARIABLES):
        _set_thresholds(_USUAL_BYTES, 2 * _USUAL_BYTES)


def _set_thresholds(mmap_bytes: int, trim_bytes: int) -> bool:
    libc = ctypes.CDLL(None)
    if not hasattr(libc, "mallopt"):
        return False
    return bool(libc.mallopt(_M_MMAP_THRESHOLD, mmap_bytes) and libc.mallopt(_M_TRIM_THRESHOLD, trim_bytes))


def file_system(folder: Path) -> str:
    """The type of the file system that `folder` lies on, as `ext4` or `nfs4`; "unknown" where the system does not say."""
    if is_remote(folder):
        return scheme_of(folder)
    path = os.path.realpath(folder)
    mounts = [part for part in psutil.disk_partitions(all=True) if _below(path, part.mountpoint)]
    return str(max(mounts, key=lambda part: len(part.mountpoint)).fstype) if mounts else "unknown"


def _below(path: str, mountpoint: str) -> bool:
    return os.path.commonpath([path, mountpoint]) == mountpoint
