"""Callbacks and functions around a training: its input, its traces, its memory and its time.

TensorFlow and Keras are imported when one of these names is first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tfprep.optional import lazy_names

if TYPE_CHECKING:
    from tfprep.train.batches import check_batches as check_batches
    from tfprep.train.gpu import Precision as Precision
    from tfprep.train.gpu import configure_gpu as configure_gpu
    from tfprep.train.gpu import mixed_precision as mixed_precision
    from tfprep.train.isolation import fresh_session as fresh_session
    from tfprep.train.isolation import isolated as isolated
    from tfprep.train.memory import BatchSize as BatchSize
    from tfprep.train.memory import MemoryReport as MemoryReport
    from tfprep.train.memory import find_batch_size as find_batch_size
    from tfprep.train.memory import memory_report as memory_report
    from tfprep.train.monitor.input_monitor import InputMonitor as InputMonitor
    from tfprep.train.monitor.watchdog import Watchdog as Watchdog
    from tfprep.train.profiling import profile as profile
    from tfprep.train.retrace_guard import RetraceGuard as RetraceGuard

__all__ = [
    "BatchSize",
    "InputMonitor",
    "MemoryReport",
    "Precision",
    "RetraceGuard",
    "Watchdog",
    "check_batches",
    "configure_gpu",
    "find_batch_size",
    "fresh_session",
    "isolated",
    "memory_report",
    "mixed_precision",
    "profile",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "batches": ["check_batches"],
        "gpu": ["Precision", "configure_gpu", "mixed_precision"],
        "isolation": ["fresh_session", "isolated"],
        "memory": ["BatchSize", "MemoryReport", "find_batch_size", "memory_report"],
        "monitor.input_monitor": ["InputMonitor"],
        "monitor.watchdog": ["Watchdog"],
        "profiling": ["profile"],
        "retrace_guard": ["RetraceGuard"],
    },
)
