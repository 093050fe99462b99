"""Where tasks run: in this process, in local worker processes, or on the nodes of a Ray cluster (`cluster`)."""

from tfprep.builder.workers.engine import (
    Engine,
    Inline,
    NodeNews,
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
    "Engine", "Inline", "NodeNews", "NothingNew", "Processes", "TaskCrashed", "TaskDone", "TaskProgress", "WorkerEvent",
    "WorkerOutput", "WorkerState",
]  # fmt: skip
