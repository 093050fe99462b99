"""A Ray cluster on this machine in a network namespace of its own, with nodes that can be killed whole, as by a power failure.

Each node has an address of its own and a process namespace of its own, so that one signal ends its daemons, its actor and the
actor's workers. It takes Linux and root.
"""

from __future__ import annotations

import itertools
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Any

HEAD = "10.77.0.1"
ADDRESS = f"{HEAD}:6379"
CLIENT_ADDRESS = f"ray://{HEAD}:10001"
_NAMESPACE = ["unshare", "--net"]
_NODE_NAMESPACES = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"]
_FAST_DEATH = '{"health_check_initial_delay_ms": 0, "health_check_period_ms": 500, "health_check_timeout_ms": 60000}'
"""A killed raylet refuses connections, which is noticed within some periods; one that is only slow has a minute to answer."""
_MOST_STARTS = 3
"""Ray gives a node 30 s to start, which a busy machine may exceed."""


def why_not() -> str:
    """Return why no cluster can be made here; empty if one can."""
    if sys.platform != "linux" or shutil.which("unshare") is None:
        return "network namespaces are a part of Linux (package util-linux)"
    if shutil.which("ip") is None:
        return "the command ip is missing (package iproute2)"
    tried = subprocess.run([*_NAMESPACE, *_NODE_NAMESPACES, "true"], capture_output=True, text=True, check=False)
    return f"no namespaces for networks and processes: {tried.stderr.strip()}" if tried.returncode else ""


class Cluster:
    """A head without workers, on which drivers run, and nodes that are added and killed. Use it as a context."""

    def __init__(self, environment: Mapping[str, str] | None = None) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="ray-", dir="/tmp"))  # Ray's sockets need a short path.
        self.nodes: dict[str, subprocess.Popen[bytes]] = {}
        self._numbers = itertools.count(2)
        # A node takes the first name of a socket that is free: of two that look at the same moment, one fails after 30 s.
        self._naming = threading.Lock()
        self._holder: subprocess.Popen[bytes] | None = None
        root = str(Path(__file__).resolve().parents[2])
        paths = os.pathsep.join(path for path in (root, os.environ.get("PYTHONPATH", "")) if path)
        settings = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_memory_monitor_refresh_ms": "0", "PYTHONPATH": paths}
        self.environment = {**os.environ, **settings, **(environment or {})}

    def __enter__(self) -> Cluster:
        script = "ip link set lo up && ip addr add 10.77.0.1/16 dev lo && echo ready && exec sleep infinity"
        self._holder = subprocess.Popen([*_NAMESPACE, "sh", "-c", script], stdout=subprocess.PIPE)
        assert self._holder.stdout is not None
        assert self._holder.stdout.readline() == b"ready\n"
        options = ["--head", "--port=6379", "--num-cpus=0", "--include-dashboard=false", f"--temp-dir={self.folder}"]
        self.nodes[HEAD] = self._start(HEAD, [*options, f"--system-config={_FAST_DEATH}"])
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for address in list(self.nodes):
            self.kill(address)
        if self._holder is not None:
            self._holder.kill()
            self._holder.wait()
            assert self._holder.stdout is not None
            self._holder.stdout.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    def add(self, *, cpus: int = 1, environment: Mapping[str, str] | None = None, before: str = "true") -> str:
        """Start a node and return its address. `before` is a shell command in the node's own mount namespace."""
        address = f"10.77.0.{next(self._numbers)}"
        subprocess.run(self.inside(["ip", "addr", "add", f"{address}/16", "dev", "lo"]), check=True)
        self.nodes[address] = self._start(
            address, [f"--address={ADDRESS}", f"--num-cpus={cpus}"], environment or {}, before
        )
        return address

    def add_all(self, *nodes: Mapping[str, Any]) -> list[str]:
        """Start nodes at the same time, each with its options of `add`."""
        with ThreadPoolExecutor(len(nodes)) as pool:
            return list(pool.map(lambda options: self.add(**options), nodes))

    def kill(self, address: str) -> None:
        """End all processes of a node at once."""
        node = self.nodes.pop(address)
        node.kill()
        node.wait()

    def inside(self, command: Sequence[str]) -> list[str]:
        """Return the command that runs another one in the network of the cluster."""
        assert self._holder is not None
        return ["nsenter", f"--net=/proc/{self._holder.pid}/ns/net", *command]

    def run(self, command: Sequence[str], **options: Any) -> subprocess.Popen[str]:
        """Start a driver."""
        return subprocess.Popen(self.inside(command), text=True, env=self.environment, **options)

    def _start(
        self, address: str, options: Sequence[str], environment: Mapping[str, str] | None = None, before: str = "true"
    ) -> subprocess.Popen[bytes]:
        ray = [sys.executable, "-m", "ray.scripts.scripts", "start", "--block", f"--node-ip-address={address}"]
        more = ["--object-store-memory=80000000", "--disable-usage-stats", "--include-log-monitor=false", *options]
        script = f'{before} && exec "$@"'
        command = self.inside([*_NODE_NAMESPACES, "sh", "-c", script, "sh", *ray, *more])
        for _ in range(_MOST_STARTS):
            if (node := self._started(command, {**self.environment, **(environment or {})}, address)) is not None:
                return node
        raise RuntimeError(f"no Ray node at {address}:\n{self._log(address).read_text(errors='replace')}")

    def _started(
        self, command: Sequence[str], environment: Mapping[str, str], address: str
    ) -> subprocess.Popen[bytes] | None:
        """Start a node and return it when it runs; None if it ended."""
        log = self._log(address)
        with self._naming, log.open("wb") as file:
            sockets = self._sockets()
            node = subprocess.Popen(command, env=environment, stdout=file, stderr=subprocess.STDOUT)
            while node.poll() is None and self._sockets() == sockets:
                time.sleep(0.05)
        while b"Ray runtime started" not in log.read_bytes():
            if node.poll() is not None:
                return None
            time.sleep(0.1)
        return node

    def _sockets(self) -> int:
        return len(list(self.folder.glob("session_*/sockets/raylet*")))

    def _log(self, address: str) -> Path:
        return self.folder / f"{address}.log"
