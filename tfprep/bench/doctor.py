"""`tfprep doctor`: the software, processors, memory, disk and GPUs of this machine, and what to change."""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, distributions, version
from pathlib import Path
from typing import Any, Literal

import psutil

from tfprep.bench.machine import drop_cache, this_machine
from tfprep.errors import DatasetError
from tfprep.limits import available_memory, memory_limit, usable_cpus
from tfprep.units import number, size

Status = Literal["ok", "note", "problem"]

DISK_TEST_BYTES = 256 << 20
"""More than the write-back buffers of a disk's controller, less than a second on a solid-state disk."""
DESCRIPTORS = 1024
"""A loader keeps its shards open: macOS allows 256 descriptors by default, Linux 1,024."""
MEMORY_BYTES = 2 << 30
"""TensorFlow, two workers of a build and their images."""
SLOW_DISK = 100e6
"""Bytes per second of a hard disk: 900 JPEGs of 224 pixels, a tenth of what two cores decode."""
TENSORFLOW_TIMEOUT_S = 180
"""Importing TensorFlow from a cold network disk took over a minute."""
NETWORK_FILE_SYSTEMS = {
    "nfs", "nfs4", "cifs", "smb3", "lustre", "gpfs", "fuse.gcsfuse", "fuse.s3fs", "fuse.sshfs", "9p",
}  # fmt: skip
OPENCV = {f"opencv-{kind}" for kind in ("python", "python-headless", "contrib-python", "contrib-python-headless")}
"""Distributions that install the same package `cv2`."""
LOWEST_TENSORFLOW = (2, 18)
PACKAGES = ("numpy", "pillow", "simplejpeg", "pyarrow", "keras", "torch", "jax", "obstore")

_LIST_DEVICES = """
import json
import tensorflow as tf
devices = tf.config.list_physical_devices("GPU")
print(json.dumps({
    "gpus": [tf.config.experimental.get_device_details(device).get("device_name", device.name) for device in devices],
    "cuda": tf.sysconfig.get_build_info().get("cuda_version"),
}))
"""


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at.

    Attributes:
        name: What it is.
        value: What it is like here.
        status: "ok", "note" (worth knowing) or "problem" (something will fail or be slow).
        advice: What to do about it; empty if nothing.
    """

    name: str
    value: str
    status: Status = "ok"
    advice: str = ""


def examine(folder: str | os.PathLike[str] = ".", disk_bytes: int = DISK_TEST_BYTES) -> Iterator[Finding]:
    """Yield what this machine offers, one finding after the other.

    Args:
        folder: Where datasets are to lie. A temporary file of `disk_bytes` is written to it, read and removed.
        disk_bytes: The size of that file.

    Yields:
        Findings on the software, the processor, the memory, the disk and the GPUs as TensorFlow sees them.

    Raises:
        DatasetError: If the folder does not exist or cannot be written.
    """
    path = Path(folder).expanduser()
    yield Finding("Python", f"{platform.python_version()}, {platform.system()} {platform.machine()}")
    yield _opencv()
    yield _tensorflow()
    yield Finding("Packages", ", ".join(f"{name} {found}" for name in PACKAGES if (found := _version(name))))
    yield from _processor_and_memory(path)
    yield from _disk(path, disk_bytes)
    driver = Path("/proc/driver/nvidia/version").exists() or shutil.which("nvidia-smi") is not None
    if _version("tensorflow") is None:
        yield Finding("GPU", "driver found" if driver else "none")
    else:
        yield _as_finding(_devices(), driver)


def installed() -> dict[str, str]:
    """Return the versions of the packages that decide what tfprep does here, by name. Imports none of them."""
    versions = {"python": platform.python_version()}
    for name in ("tensorflow", *PACKAGES):
        if release := _version(name):
            versions[name] = release
    for name in _opencv_flavours():
        versions[name] = version(name)
    return versions


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _opencv_flavours() -> list[str]:
    names = {(distribution.metadata["Name"] or "").lower() for distribution in distributions()}
    return sorted(OPENCV & names)


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(".")[:2] if part.isdigit())


def _opencv() -> Finding:
    flavours = _opencv_flavours()
    if not flavours:
        return Finding("OpenCV", "not installed", "note", "Builds need it: pip install 'tfprep[opencv]'")
    value = ", ".join(f"{name} {version(name)}" for name in flavours)
    if len(flavours) > 1:
        keep = flavours[-1]
        others = " ".join(name for name in flavours if name != keep)
        advice = f"All of them write the package cv2: pip uninstall {others} {keep}; pip install {keep}"
        return Finding("OpenCV", value, "problem", advice)
    if _numbers(version(flavours[0])) < (5, 0):
        advice = f"Warps are rounded to 1/32 pixel before version 5: pip install -U {flavours[0]}"
        return Finding("OpenCV", value, "note", advice)
    return Finding("OpenCV", value)


def _tensorflow() -> Finding:
    release = _version("tensorflow")
    if release is None:
        advice = "All but loader(), tf_dataset() and some of train works without it: pip install 'tfprep[tensorflow]'"
        return Finding("TensorFlow", "not installed", "note", advice)
    if _numbers(release) < LOWEST_TENSORFLOW:
        return Finding("TensorFlow", release, "problem", "tfprep needs 2.18 or newer: pip install -U tensorflow")
    return Finding("TensorFlow", release)


def _processor_and_memory(folder: Path) -> Iterator[Finding]:
    import resource  # Not at the top: the module does not exist on Windows.

    cores, all_cores = usable_cpus(), os.cpu_count() or 1
    value = f"{number(cores, 'core', 'cores')} of {all_cores} usable, {this_machine(folder).processor}"
    advice = "An affinity mask or a control group sets the limit; builds and loaders start as many workers"
    yield Finding("Processor", value, "note", advice) if cores < all_cores else Finding("Processor", value)
    free, limit = available_memory(), memory_limit()
    value = f"{size(free)} free of {size(limit)}"
    if limit < psutil.virtual_memory().total:
        value += " (limit of a control group)"
    advice = "TensorFlow and two workers need 2 GiB: end other programs"
    yield Finding("Memory", value, "problem", advice) if free < MEMORY_BYTES else Finding("Memory", value)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    possible = min(hard, 4096) if hard > 0 else 4096
    advice = f"A dataset of many shards needs more: ulimit -n {possible}"
    if possible <= soft:
        advice = (
            "A dataset of many shards needs more, and this is the hard limit: an administrator raises it (limits.conf)"
        )
    value = f"at most {soft:,}"
    yield Finding("Open files", value, "problem", advice) if soft < DESCRIPTORS else Finding("Open files", value)


def _disk(folder: Path, disk_bytes: int) -> Iterator[Finding]:
    if not folder.is_dir():
        raise DatasetError(f"{folder} is not a folder; name the one where datasets are to lie")
    free = shutil.disk_usage(folder).free
    kind = this_machine(folder).file_system
    remote = kind in NETWORK_FILE_SYSTEMS
    advice = "Over a network order='block' reads whole blocks instead of records" if remote else ""
    yield Finding("Disk", f"{size(free)} free, {kind}", "note" if remote else "ok", advice)
    if free < 2 * disk_bytes:
        yield Finding("Disk rate", "not measured", "problem", "The disk is nearly full: free some space")
        return
    try:
        written, read = _disk_rates(folder, disk_bytes)
    except OSError as error:
        raise DatasetError(f"cannot write to {folder}: {error.strerror or error}; name another folder") from None
    value = f"writes {size(written)}/s, reads {size(read)}/s"
    slow = min(written, read) < SLOW_DISK
    advice = "Store JPEG instead of raw, keep what fits in memory (cache=True), or use a local disk" if slow else ""
    yield Finding("Disk rate", value, "note" if slow else "ok", advice)


def _disk_rates(folder: Path, disk_bytes: int) -> tuple[float, float]:
    """Bytes per second written (with fsync) and read past the page cache, of one file in one thread."""
    block = os.urandom(1 << 20)  # random bytes, because some file systems compress
    with tempfile.NamedTemporaryFile(dir=folder, prefix=".tfprep-doctor-") as file:
        start = time.perf_counter()
        for _ in range(disk_bytes // len(block)):
            file.write(block)
        file.flush()
        os.fsync(file.fileno())
        middle = time.perf_counter()
        drop_cache([Path(file.name)])
        begin = time.perf_counter()
        with open(file.name, "rb", buffering=0) as again:
            while again.read(len(block)):
                pass
        return disk_bytes / (middle - start), disk_bytes / (time.perf_counter() - begin)


def _devices() -> dict[str, Any] | str:
    """List the GPUs as TensorFlow does in a process of its own, so that this one takes no GPU memory; or what went wrong."""
    try:
        done = subprocess.run(
            [sys.executable, "-c", _LIST_DEVICES],
            capture_output=True,
            text=True,
            timeout=TENSORFLOW_TIMEOUT_S,
            env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "2"},
            check=True,
        )
        devices: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
        return devices
    except subprocess.TimeoutExpired:
        return f"importing TensorFlow took more than {TENSORFLOW_TIMEOUT_S} s"
    except subprocess.CalledProcessError as error:
        return (error.stderr or "").strip().splitlines()[-1:][0] if error.stderr else f"exit status {error.returncode}"
    except (ValueError, IndexError):
        return "TensorFlow printed no list of devices"


def _as_finding(devices: dict[str, Any] | str, driver: bool) -> Finding:
    if isinstance(devices, str):
        advice = "python -c 'import tensorflow' shows the whole error; reinstall TensorFlow"
        return Finding("GPU", f"TensorFlow fails: {devices}", "problem", advice)
    if devices["gpus"]:
        return Finding("GPU", f"{', '.join(devices['gpus'])} (CUDA {devices['cuda'] or 'unknown'})")
    if not driver:
        return Finding("GPU", "none")
    if not devices["cuda"]:
        advice = "This TensorFlow is built for CPUs: pip install 'tensorflow[and-cuda]'"
    else:
        advice = f"Its libraries for CUDA {devices['cuda']} were not found: pip install 'tensorflow[and-cuda]'"
    return Finding("GPU", "the driver is there, but TensorFlow sees no GPU", "problem", advice)
