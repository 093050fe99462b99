"""The offline stage: plan, shards, publication. Never imports TensorFlow.

Names are imported when they are first used: a worker process needs neither the plan nor Arrow, and is there the sooner.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tfprep.lazy import lazy_names

if TYPE_CHECKING:
    from tfprep.builder.options import BuildOptions, BuildSummary
    from tfprep.builder.progress import BuildEvent, BuildProgress, OnEvent, OnProgress, WorkerProgress
    from tfprep.builder.run import plan_build
    from tfprep.builder.start import build
    from tfprep.builder.state import ShardState, explain

__all__ = [
    "BuildEvent",
    "BuildOptions",
    "BuildProgress",
    "BuildSummary",
    "OnEvent",
    "OnProgress",
    "ShardState",
    "WorkerProgress",
    "build",
    "explain",
    "plan_build",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "start": ["build"],
        "options": ["BuildOptions", "BuildSummary"],
        "progress": ["BuildEvent", "BuildProgress", "OnEvent", "OnProgress", "WorkerProgress"],
        "run": ["plan_build"],
        "state": ["ShardState", "explain"],
    },
)
