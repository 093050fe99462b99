"""The offline stage: plan, shards, publication. Never imports TensorFlow.

Names are imported when they are first used: a worker process needs neither the plan nor Arrow, and is there the sooner.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tfprep.optional import lazy_names

if TYPE_CHECKING:
    from tfprep.builder.cluster import Ray
    from tfprep.builder.options import (
        BuildEvent,
        BuildOptions,
        BuildProgress,
        BuildSummary,
        OnEvent,
        OnProgress,
        Part,
        PartSummary,
    )
    from tfprep.builder.run import plan_build
    from tfprep.builder.start import build, build_part, finish_build
    from tfprep.builder.state import ShardState, explain

__all__ = [
    "BuildEvent", "BuildOptions", "BuildProgress", "BuildSummary", "OnEvent", "OnProgress", "Part", "PartSummary", "Ray",
    "ShardState", "build", "build_part", "explain", "finish_build", "plan_build",
]  # fmt: skip

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "cluster": ["Ray"],
        "start": ["build", "build_part", "finish_build"],
        "options": [
            *("BuildOptions", "BuildSummary", "Part", "PartSummary", "BuildEvent", "BuildProgress"),
            *("OnEvent", "OnProgress"),
        ],
        "run": ["plan_build"],
        "state": ["ShardState", "explain"],
    },
)
