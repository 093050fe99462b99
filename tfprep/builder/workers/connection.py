"""The connection of this process to a Ray cluster."""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Mapping
from typing import Any

from tfprep.engines import Ray
from tfprep.errors import BuildError
from tfprep.storage.address import without_secrets

_CONNECT_S = 10.0
FAILED_START = "error raised in its creation task"
"""Ray's words for an actor whose process runs and cannot make it, for example where tfprep is not installed."""


class Connection:
    """The connection that the program has, or else one to the cluster that `options` names.

    Attributes:
      runtime_env: What each actor is given. A connection of our own has it whole, since folders travel with that alone.
    """

    def __init__(self, options: Ray) -> None:
        """Connect. Raises BuildError."""
        import ray

        self._options = options
        self._check_environment()
        self._is_own = not ray.is_initialized()
        self.runtime_env = {} if self._is_own else dict(options.runtime_env)
        if self._is_own:
            self._connect()

    def close(self) -> None:
        import ray

        if self._is_own:
            ray.shutdown()

    def summary_of(self, error: Exception) -> str:
        """Return one line of an error's text: the first, or the last where the first only announces a traceback."""
        lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
        is_traceback = lines[0].endswith(":") or FAILED_START in lines[0] or "Traceback" in str(error)
        return self.without_values(lines[-1] if is_traceback else lines[0])

    def without_values(self, text: str) -> str:
        """Return a message of Ray or of a node with the values of the nodes' environment variables replaced by their names."""
        variables = self._options.runtime_env.get("env_vars")
        if not isinstance(variables, Mapping):  # it is checked later
            return without_secrets(text)
        return without_secrets(text, {name: str(value) for name, value in variables.items()})

    def _check_environment(self) -> None:
        """Raise BuildError for a value that Ray refuses, and for a field that Ray ignores."""
        from ray.runtime_env import RuntimeEnv

        runtime_env = self._options.runtime_env
        unknown = sorted(set(runtime_env) - RuntimeEnv.known_fields)
        if unknown and "RAY_RUNTIME_ENV_PLUGINS" not in os.environ:
            known = ", ".join(sorted(name for name in RuntimeEnv.known_fields if not name.startswith("_")))
            raise BuildError(f"runtime_env has no field {unknown[0]!r}; those of Ray are {known}")
        try:
            RuntimeEnv(**runtime_env)
        except (TypeError, ValueError) as error:
            # Without the cause, whose text may hold a value.
            raise BuildError(f"runtime_env: {self.summary_of(error)}") from None

    def _connect(self) -> None:
        import ray

        options = self._options
        quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
        try:
            _check_port(options.address)
            ray.init(options.address, runtime_env=dict(options.runtime_env), **quiet)
        except Exception as error:  # OSError, RuntimeError, ValueError or an exception of gRPC
            raise BuildError(
                f"no Ray cluster at {options.address!r}: {self.summary_of(error)}. Start one with `ray start --head`, or say "
                "with --address where it is"
            ) from error


def _check_port(address: str) -> None:
    """Raise OSError if nothing answers at "host:port", which Ray itself would try for up to minutes."""
    address = os.environ.get("RAY_ADDRESS", address) if address == "auto" else address
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if host and port.isdecimal() and "/" not in host:
        socket.create_connection((host.strip("[]"), int(port)), timeout=_CONNECT_S).close()
