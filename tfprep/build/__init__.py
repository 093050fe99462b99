"""The offline stage: plan, shards, publication. Never imports TensorFlow."""

from tfprep.build.plan import ShardState
from tfprep.build.run import BuildOptions, BuildProgress, BuildSummary, build, plan_build

__all__ = ["BuildOptions", "BuildProgress", "BuildSummary", "ShardState", "build", "plan_build"]
