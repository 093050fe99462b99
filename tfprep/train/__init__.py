"""Callbacks and functions around a training: its input, its traces and its memory.

TensorFlow and Keras are imported when one of these names is first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tfprep.optional import lazy_names

if TYPE_CHECKING:
    from tfprep.train.batches import check_batches
    from tfprep.train.isolation import isolated
    from tfprep.train.memory import BatchSize, MemoryReport, configure_gpu, find_batch_size, memory_report
    from tfprep.train.monitor.input_monitor import InputMonitor
    from tfprep.train.retrace_guard import RetraceGuard

__all__ = [
    "BatchSize", "InputMonitor", "MemoryReport", "RetraceGuard", "check_batches", "configure_gpu", "find_batch_size",
    "isolated", "memory_report",
]  # fmt: skip

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "batches": ["check_batches"],
        "isolation": ["isolated"],
        "memory": ["BatchSize", "MemoryReport", "configure_gpu", "find_batch_size", "memory_report"],
        "monitor.input_monitor": ["InputMonitor"],
        "retrace_guard": ["RetraceGuard"],
    },
)
