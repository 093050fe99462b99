"""Callbacks and functions around a training: its input, its traces, its memory and its time.

TensorFlow and Keras are imported when one of these names is first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tfprep.optional import lazy_names

if TYPE_CHECKING:
    from tfprep.train.batches import check_batches
    from tfprep.train.gpu import Precision, configure_gpu, mixed_precision
    from tfprep.train.isolation import fresh_session, isolated
    from tfprep.train.memory import BatchSize, MemoryReport, find_batch_size, memory_report
    from tfprep.train.monitor.input_monitor import InputMonitor
    from tfprep.train.profiling import profile
    from tfprep.train.retrace_guard import RetraceGuard

__all__ = [
    "BatchSize", "InputMonitor", "MemoryReport", "Precision", "RetraceGuard", "check_batches", "configure_gpu",
    "find_batch_size", "fresh_session", "isolated", "memory_report", "mixed_precision", "profile",
]  # fmt: skip

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "batches": ["check_batches"],
        "gpu": ["Precision", "configure_gpu", "mixed_precision"],
        "isolation": ["fresh_session", "isolated"],
        "memory": ["BatchSize", "MemoryReport", "find_batch_size", "memory_report"],
        "monitor.input_monitor": ["InputMonitor"],
        "profiling": ["profile"],
        "retrace_guard": ["RetraceGuard"],
    },
)
