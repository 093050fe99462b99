"""The machine: what a figure depends on, and what `tfprep doctor` finds: software, processors, memory, disk and GPUs."""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Literal

import psutil

from tfprep.errors import DatasetError
from tfprep.limits import available_memory, memory_limit, usable_cpus
from tfprep.storage.urls import is_remote, scheme_of
from tfprep.units import size

DESCRIPTORS = 1024
"""A loader keeps its shards open: macOS allows 256 descriptors by default, Linux 1,024."""
MEMORY_BYTES = 2 << 30
"""TensorFlow, two workers of a build and their images."""
NETWORK_FILE_SYSTEMS = ("nfs", "cifs", "smb", "lustre", "gpfs", "fuse.", "9p")
"""How their names begin."""
OPENCV = ("opencv-contrib-python", "opencv-contrib-python-headless", "opencv-python", "opencv-python-headless")
"""Distributions that install the same package `cv2`."""
TENSORFLOW_ADVICE = "loader(), tf_dataset() and some of tfprep.train need it: pip install 'tfprep[tensorflow]'"
PACKAGES = ("tensorflow", "numpy", "pillow", "simplejpeg", "pyarrow", "keras", "torch", "jax", "obstore")
LIST_GPUS = """
import json, tensorflow as tf
gpus = tf.config.list_physical_devices("GPU")
names = [tf.config.experimental.get_device_details(gpu).get("device_name", gpu.name) for gpu in gpus]
print(json.dumps([names, tf.sysconfig.get_build_info().get("cuda_version")]))
"""


@dataclass(frozen=True)
class Machine:
    """The parts of a machine that a figure depends on: processor, usable cores and memory, the dataset's file system."""

    processor: str
    cores: int
    memory_bytes: int
    file_system: str
    python: str

    @property
    def words(self) -> str:
        return f"{self.processor}, {self.cores} cores, {round(self.memory_bytes / 2**30)} GiB, {self.file_system}"


def this_machine(folder: Path) -> Machine:
    """This machine, with the file system of `folder`."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
        processor = names[0] if names else platform.machine()
    except OSError:
        processor = platform.processor() or platform.machine()
    return Machine(processor, usable_cpus(), memory_limit(), file_system(folder), platform.python_version())


def file_system(folder: Path) -> str:
    """The type of the file system that `folder` is on, such as `ext4` or `nfs4`; "unknown" where the system does not say."""
    if is_remote(folder):
        return scheme_of(folder)
    path = folder.resolve()
    mounts = [part for part in psutil.disk_partitions(all=True) if path.is_relative_to(part.mountpoint)]
    return str(max(mounts, key=lambda part: len(part.mountpoint)).fstype) if mounts else "unknown"


# --- `tfprep doctor`


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at: its name and value, "ok", "note" (worth knowing) or "problem", and what to do about it."""

    name: str
    value: str
    status: Literal["ok", "note", "problem"] = "ok"
    advice: str = ""


def examine(folder: str | os.PathLike[str] = ".") -> Iterator[Finding]:
    """Yield findings on the software, the processor, the memory, the disk of `folder`, and the GPUs that TensorFlow sees.

    Raises:
        DatasetError: If the folder does not exist.
    """
    import resource  # Not at the top: the module does not exist on Windows.

    path = Path(os.path.expanduser(folder))
    if not path.is_dir():
        raise DatasetError(f"{path} is not a folder; name the one where datasets are to be")
    packages, machine = installed(), this_machine(path)
    yield Finding("Python", f"{platform.python_version()}, {platform.system()} {platform.machine()}")
    yield Finding("Packages", ", ".join(f"{name} {number}" for name, number in packages.items() if name != "python"))
    flavors = [name for name in OPENCV if name in packages]
    if not flavors:
        yield Finding("OpenCV", "not installed", "note", "Builds need it: pip install 'tfprep[opencv]'")
    elif len(flavors) > 1:
        advice = f"All of them write the package cv2: pip uninstall {' '.join(flavors)}; pip install {flavors[-1]}"
        yield Finding("OpenCV", ", ".join(flavors), "problem", advice)
    cores, all_cores = usable_cpus(), os.cpu_count() or 1
    advice = "An affinity mask or a control group sets the limit; builds and loaders start one worker per usable core"
    value = f"{cores} of {all_cores} cores usable, {machine.processor}"
    yield Finding("Processor", value, *(("note", advice) if cores < all_cores else ()))
    free = available_memory()
    lacking = ("problem", "TensorFlow and two workers need 2 GiB: end other programs") if free < MEMORY_BYTES else ()
    yield Finding("Memory", f"{size(free)} free of {size(memory_limit())}", *lacking)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    possible = min(hard, 4096) if hard > 0 else 4096
    if soft < DESCRIPTORS:
        raised = f"ulimit -n {possible}" if possible > soft else "an administrator raises this hard limit (limits.conf)"
        yield Finding("Open files", f"at most {soft:,}", "problem", f"A dataset of many shards needs more: {raised}")
    remote = machine.file_system.startswith(NETWORK_FILE_SYSTEMS)
    advice = "order='sequential' reads many records at once over a network"
    disk = f"{size(shutil.disk_usage(path).free)} free, {machine.file_system}"
    yield Finding("Disk", disk, *(("note", advice) if remote else ()))
    yield _gpu() if "tensorflow" in packages else Finding("TensorFlow", "not installed", "note", TENSORFLOW_ADVICE)


def installed() -> dict[str, str]:
    """Return the versions of the packages that decide what tfprep does here, by name. Imports none of them."""
    found = {name: _version(name) for name in (*PACKAGES, *OPENCV)}
    return {"python": platform.python_version(), **{name: number for name, number in found.items() if number}}


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return ""


def _gpu() -> Finding:
    """Return the GPUs that TensorFlow sees in a process of its own, so that this one takes no GPU memory."""
    environment, command = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "2"}, [sys.executable, "-c", LIST_GPUS]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=180, env=environment, check=False)
        names, cuda = json.loads(done.stdout.strip().splitlines()[-1])
    except (subprocess.TimeoutExpired, ValueError, IndexError):
        advice = "python -c 'import tensorflow' shows the error"
        return Finding("GPU", "TensorFlow cannot be imported", "problem", advice)
    if names:
        return Finding("GPU", f"{', '.join(names)} (CUDA {cuda or 'unknown'})")
    if shutil.which("nvidia-smi") is None:
        return Finding("GPU", "none")
    advice = "Install TensorFlow with the libraries of CUDA: pip install 'tensorflow[and-cuda]'"
    return Finding("GPU", "the driver is there, but TensorFlow sees no GPU", "problem", advice)
