"""`tfprep doctor`: the software, processors, memory, disk and GPUs of this machine, and what to change. Writes nothing."""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, distributions, version
from pathlib import Path
from typing import Literal

from tfprep.bench.machine import this_machine
from tfprep.errors import DatasetError
from tfprep.limits import available_memory, memory_limit, usable_cpus
from tfprep.units import size

Status = Literal["ok", "note", "problem"]
DESCRIPTORS = 1024
"""A loader keeps its shards open: macOS allows 256 descriptors by default, Linux 1,024."""
MEMORY_BYTES = 2 << 30
"""TensorFlow, two workers of a build and their images."""
NETWORK_FILE_SYSTEMS = ("nfs", "cifs", "smb", "lustre", "gpfs", "fuse.", "9p")
"""How their names begin."""
OPENCV = {f"opencv-{kind}" for kind in ("python", "python-headless", "contrib-python", "contrib-python-headless")}
"""Distributions that install the same package `cv2`."""
LOWEST_TENSORFLOW = (2, 18)
PACKAGES = ("numpy", "pillow", "simplejpeg", "pyarrow", "keras", "torch", "jax", "obstore")
LIST_GPUS = """
import json, tensorflow as tf
gpus = tf.config.list_physical_devices("GPU")
names = [tf.config.experimental.get_device_details(gpu).get("device_name", gpu.name) for gpu in gpus]
print(json.dumps([names, tf.sysconfig.get_build_info().get("cuda_version")]))
"""


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at: its name and value, "ok", "note" (worth knowing) or "problem", and what to do about it."""

    name: str
    value: str
    status: Status = "ok"
    advice: str = ""


def examine(folder: str | os.PathLike[str] = ".") -> Iterator[Finding]:
    """Yield findings on the software, the processor, the memory, the disk of `folder`, and the GPUs that TensorFlow sees.

    Raises:
        DatasetError: If the folder does not exist.
    """
    import resource  # Not at the top: the module does not exist on Windows.

    path = Path(folder).expanduser()
    yield Finding("Python", f"{platform.python_version()}, {platform.system()} {platform.machine()}")
    yield _opencv()
    release = _version("tensorflow")
    if release is None:
        advice = "All but loader(), tf_dataset() and some of train works without it: pip install 'tfprep[tensorflow]'"
        yield Finding("TensorFlow", "not installed", "note", advice)
    elif tuple(int(part) for part in release.split(".")[:2]) < LOWEST_TENSORFLOW:
        yield Finding("TensorFlow", release, "problem", "tfprep needs 2.18 or newer: pip install -U tensorflow")
    else:
        yield Finding("TensorFlow", release)
    yield Finding("Packages", ", ".join(f"{name} {found}" for name in PACKAGES if (found := _version(name))))
    machine, cores, all_cores = this_machine(path), usable_cpus(), os.cpu_count() or 1
    advice = "An affinity mask or a control group sets the limit; builds and loaders start as many workers"
    yield _unless(
        cores >= all_cores, "Processor", f"{cores} of {all_cores} cores usable, {machine.processor}", "note", advice
    )
    free, limit = available_memory(), memory_limit()
    advice = "TensorFlow and two workers need 2 GiB: end other programs"
    yield _unless(free >= MEMORY_BYTES, "Memory", f"{size(free)} free of {size(limit)}", "problem", advice)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    possible = min(hard, 4096) if hard > 0 else 4096
    raised = f"ulimit -n {possible}" if possible > soft else "an administrator raises this hard limit (limits.conf)"
    advice = f"A dataset of many shards needs more: {raised}"
    yield _unless(soft >= DESCRIPTORS, "Open files", f"at most {soft:,}", "problem", advice)
    if not path.is_dir():
        raise DatasetError(f"{path} is not a folder; name the one where datasets are to be")
    is_local, disk = (
        not machine.file_system.startswith(NETWORK_FILE_SYSTEMS),
        f"{size(shutil.disk_usage(path).free)} free",
    )
    advice = "Over a network order='block' reads whole blocks instead of records"
    yield _unless(is_local, "Disk", f"{disk}, {machine.file_system}", "note", advice)
    yield _gpu(has_tensorflow=release is not None)


def _unless(fine: bool, name: str, value: str, status: Status, advice: str) -> Finding:
    return Finding(name, value) if fine else Finding(name, value, status, advice)


def installed() -> dict[str, str]:
    """Return the versions of the packages that decide what tfprep does here, by name. Imports none of them."""
    names = ("tensorflow", *PACKAGES, *_opencv_flavors())
    return {"python": platform.python_version(), **{name: found for name in names if (found := _version(name))}}


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _opencv_flavors() -> list[str]:
    return sorted(OPENCV & {(distribution.metadata["Name"] or "").lower() for distribution in distributions()})


def _opencv() -> Finding:
    flavors = _opencv_flavors()
    value = ", ".join(f"{name} {version(name)}" for name in flavors)
    if not flavors:
        return Finding("OpenCV", "not installed", "note", "Builds need it: pip install 'tfprep[opencv]'")
    if len(flavors) > 1:
        advice = f"All of them write the package cv2: pip uninstall {' '.join(flavors)}; pip install {flavors[-1]}"
        return Finding("OpenCV", value, "problem", advice)
    if int(version(flavors[0]).split(".")[0]) < 5:
        advice = f"Warps are rounded to 1/32 pixel before version 5: pip install -U {flavors[0]}"
        return Finding("OpenCV", value, "note", advice)
    return Finding("OpenCV", value)


def _gpu(*, has_tensorflow: bool) -> Finding:
    """Return the GPUs that TensorFlow sees in a process of its own, so that this one takes no GPU memory."""
    driver = Path("/proc/driver/nvidia/version").exists() or shutil.which("nvidia-smi") is not None
    if not has_tensorflow:
        return Finding("GPU", "driver found" if driver else "none")
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "2"}
    try:
        done = subprocess.run(
            [sys.executable, "-c", LIST_GPUS], capture_output=True, text=True, timeout=180, env=environment, check=False
        )
        names, cuda = json.loads(done.stdout.strip().splitlines()[-1])
    except (subprocess.TimeoutExpired, ValueError, IndexError):
        advice = "python -c 'import tensorflow' shows the error; reinstall TensorFlow"
        return Finding("GPU", "TensorFlow cannot be imported", "problem", advice)
    if names:
        return Finding("GPU", f"{', '.join(names)} (CUDA {cuda or 'unknown'})")
    if not driver:
        return Finding("GPU", "none")
    built = f"Its libraries for CUDA {cuda} were not found" if cuda else "This TensorFlow is built for CPUs"
    advice = f"{built}: pip install 'tensorflow[and-cuda]'"
    return Finding("GPU", "the driver is there, but TensorFlow sees no GPU", "problem", advice)
