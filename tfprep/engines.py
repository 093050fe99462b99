"""Engines of `tfprep.build(..., engine=...)`: where the shards of a build are made. Without one, in processes of this machine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tfprep.errors import BuildError


@dataclass(frozen=True)
class Ray:
    """The nodes of a Ray cluster, each with worker processes of its own.

    tfprep, the recipe's libraries and the raw files are the same on each node, and `out` is a folder that all nodes see, or
    an object store. The recipe, the Python and small text files beside it, and the user's modules that it imports are sent to the
    nodes.

    Attributes:
      address: The address of the cluster, such as "10.0.0.1:6379"; "auto" takes the one that this machine belongs to, and
        "ray://10.0.0.1:10001" is one that it does not belong to. A connection that exists (`ray.init`) is used whatever the
        address.
      runtime_env: Ray's runtime environment of the processes on the nodes, for example `{"env_vars": {...}}`. Folders
        (`working_dir`, `py_modules`) travel with a connection that the build makes, not with one that exists.
      wait_s: Seconds to wait for a node while the cluster has none, before the build fails; 8 at least at the beginning.

    Raises:
      BuildError: An option is out of range.

    Example:
      >>> tfprep.build("photos.py", "/shared/photos", "/shared/raw", engine=tfprep.engines.Ray("10.0.0.1:6379"))
    """

    address: str = "auto"
    runtime_env: Mapping[str, Any] = field(default_factory=dict)
    wait_s: float = 600.0

    def __post_init__(self) -> None:
        if self.wait_s < 0:
            raise BuildError(f"wait_s is at least 0 seconds, not {self.wait_s}")
