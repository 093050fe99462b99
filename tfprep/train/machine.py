"""Memory of the machine as a trainer sees it: this process, the host, swap, and the GPUs that TensorFlow uses."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field

import psutil
import tensorflow as tf

from tfprep.memory import available_memory


@dataclass(frozen=True)
class Machine:
    """All in bytes. `swapped_in` and `swapped_out` count since the machine started; `gpus` maps a device to bytes in
    use and at the peak, of what TensorFlow allocated."""

    rss: int
    available: int
    swap_used: int
    swapped_in: int
    swapped_out: int
    gpus: dict[str, tuple[int, int]] = field(default_factory=dict)


def look() -> Machine:
    swap = psutil.swap_memory()
    return Machine(
        rss=psutil.Process().memory_info().rss,
        available=available_memory(),
        swap_used=swap.used,
        swapped_in=swap.sin,
        swapped_out=swap.sout,
        gpus=_gpus(),
    )


def _gpus() -> dict[str, tuple[int, int]]:
    found = {}
    for device in tf.config.list_logical_devices("GPU"):
        name = device.name.removeprefix("/device:")
        with contextlib.suppress(ValueError):  # a pluggable device may keep no count
            memory = tf.config.experimental.get_memory_info(name)
            found[name] = (int(memory["current"]), int(memory["peak"]))
    return found
