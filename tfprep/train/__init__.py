"""Around training: what watches the input, the traces, the memory and the time of a TensorFlow training.

TensorFlow and Keras are imported when one of these names is first used, not before.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tfprep.train.batch_size import BatchSize as BatchSize
    from tfprep.train.batch_size import find_batch_size as find_batch_size
    from tfprep.train.batches import BatchReport as BatchReport
    from tfprep.train.batches import check_batches as check_batches
    from tfprep.train.cross_validation import Scores as Scores
    from tfprep.train.cross_validation import cross_validate as cross_validate
    from tfprep.train.gpu import configure_gpu as configure_gpu
    from tfprep.train.input_monitor import InputMonitor as InputMonitor
    from tfprep.train.memory import MemoryReport as MemoryReport
    from tfprep.train.memory import memory_report as memory_report
    from tfprep.train.own_process import isolated as isolated
    from tfprep.train.precision import Precision as Precision
    from tfprep.train.precision import mixed_precision as mixed_precision
    from tfprep.train.profiling import profile as profile
    from tfprep.train.retrace_guard import RetraceGuard as RetraceGuard
    from tfprep.train.samples import Thresholds as Thresholds
    from tfprep.train.session import Session as Session
    from tfprep.train.session import fresh_session as fresh_session
    from tfprep.train.watchdog import Watchdog as Watchdog
    from tfprep.train.xplane import Shares as Shares

_HOME = {
    "BatchReport": "batches",
    "BatchSize": "batch_size",
    "InputMonitor": "input_monitor",
    "MemoryReport": "memory",
    "Precision": "precision",
    "RetraceGuard": "retrace_guard",
    "Scores": "cross_validation",
    "Session": "session",
    "Shares": "xplane",
    "Thresholds": "samples",
    "Watchdog": "watchdog",
    "check_batches": "batches",
    "configure_gpu": "gpu",
    "cross_validate": "cross_validation",
    "find_batch_size": "batch_size",
    "fresh_session": "session",
    "isolated": "own_process",
    "memory_report": "memory",
    "mixed_precision": "precision",
    "profile": "profiling",
}

__all__ = [
    "BatchReport",
    "BatchSize",
    "InputMonitor",
    "MemoryReport",
    "Precision",
    "RetraceGuard",
    "Scores",
    "Session",
    "Shares",
    "Thresholds",
    "Watchdog",
    "check_batches",
    "configure_gpu",
    "cross_validate",
    "find_batch_size",
    "fresh_session",
    "isolated",
    "memory_report",
    "mixed_precision",
    "profile",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
