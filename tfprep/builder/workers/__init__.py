"""Where tasks run: in this process, or in local worker processes."""

from tfprep.builder.workers.engine import (
    Engine,
    Inline,
    NothingNew,
    TaskCrashed,
    TaskDone,
    TaskProgress,
    WorkerEvent,
    WorkerOutput,
    WorkerState,
)
from tfprep.builder.workers.processes import Processes

__all__ = [
    "Engine", "Inline", "NothingNew", "Processes", "TaskCrashed", "TaskDone", "TaskProgress", "WorkerEvent", "WorkerOutput",
    "WorkerState",
]  # fmt: skip
