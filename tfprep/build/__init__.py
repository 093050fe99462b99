"""The offline stage: plan, shards, publication. Never imports TensorFlow."""

from tfprep.build.options import BuildOptions, BuildSummary, available_cores
from tfprep.build.progress import BuildEvent, BuildProgress, OnEvent, OnProgress, WorkerProgress
from tfprep.build.run import build, plan_build
from tfprep.build.state import ShardState, explain

__all__ = [
    "BuildEvent",
    "BuildOptions",
    "BuildProgress",
    "BuildSummary",
    "OnEvent",
    "OnProgress",
    "ShardState",
    "WorkerProgress",
    "available_cores",
    "build",
    "explain",
    "plan_build",
]
