"""A Ray cluster on this machine in a network namespace of its own, with nodes that can be killed whole, as by a power failure.

Each node has an address of its own and a process namespace of its own, so that one signal ends its daemons, its actor and the
actor's workers. It takes Linux and root.
"""

import itertools
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

HEAD = "10.77.0.1"
ADDRESS = f"{HEAD}:6379"
CLIENT_ADDRESS = f"ray://{HEAD}:10001"
_NAMESPACE = ["unshare", "--net"]
_NODE_NAMESPACES = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"]
_FAST_DEATH = '{"health_check_initial_delay_ms": 0, "health_check_period_ms": 500, "health_check_timeout_ms": 60000}'
"""A killed raylet refuses connections, which is noticed within some periods; one that is only slow has a minute to answer."""
_MOST_STARTS = 3
"""Ray gives a node 30 s to start, which a busy machine may exceed."""


def why_not():
    """Return why no cluster can be made here; empty if one can."""
    if sys.platform != "linux" or shutil.which("unshare") is None:
        return "network namespaces are a part of Linux (package util-linux)"
    if shutil.which("ip") is None:
        return "the command ip is missing (package iproute2)"
    tried = subprocess.run([*_NAMESPACE, *_NODE_NAMESPACES, "true"], capture_output=True, text=True, check=False)
    return f"no namespaces for networks and processes: {tried.stderr.strip()}" if tried.returncode else ""


class Cluster:
    """A head without workers, on which drivers run, and nodes that are added and killed. Use it as a context."""

    def __init__(self):
        self.folder = Path(tempfile.mkdtemp(prefix="ray-", dir="/tmp"))  # Ray's sockets need a short path.
        self.nodes, self._holder, self._numbers = {}, None, itertools.count(2)
        # A node takes the first name of a socket that is free: of two that look at the same moment, one fails after 30 s.
        self._naming = threading.Lock()
        root = str(Path(__file__).resolve().parents[2])
        paths = os.pathsep.join(path for path in (root, os.environ.get("PYTHONPATH", "")) if path)
        settings = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_memory_monitor_refresh_ms": "0", "PYTHONPATH": paths}
        self.environment = {**os.environ, **settings}

    def __enter__(self):
        script = "ip link set lo up && ip addr add 10.77.0.1/16 dev lo && echo ready && exec sleep infinity"
        self._holder = subprocess.Popen([*_NAMESPACE, "sh", "-c", script], stdout=subprocess.PIPE)
        assert self._holder.stdout.readline() == b"ready\n"
        options = ["--head", "--port=6379", "--num-cpus=0", "--include-dashboard=false", f"--temp-dir={self.folder}"]
        self._start(HEAD, [*options, f"--system-config={_FAST_DEATH}"])
        return self

    def __exit__(self, *_):
        for address in list(self.nodes):
            self.kill(address)
        if self._holder is not None:
            self._holder.kill()
            self._holder.communicate()
        shutil.rmtree(self.folder, ignore_errors=True)

    def add(self, **options):
        """Start a node of one processor, and return its address. `environment` is added to that of the cluster; `before` is a
        shell command in the node's own mount namespace."""
        address = f"10.77.0.{next(self._numbers)}"
        subprocess.run(self.inside(["ip", "addr", "add", f"{address}/16", "dev", "lo"]), check=True)
        self._start(address, [f"--address={ADDRESS}", "--num-cpus=1"], **options)
        return address

    def add_all(self, count):
        """Start nodes at the same time."""
        with ThreadPoolExecutor() as pool:
            return list(pool.map(lambda _: self.add(), range(count)))

    def kill(self, address):
        """End all processes of a node at once."""
        node = self.nodes.pop(address)
        node.kill()
        node.wait()

    def inside(self, command):
        """Return the command that runs another one in the network of the cluster."""
        return ["nsenter", f"--net=/proc/{self._holder.pid}/ns/net", *command]

    def run(self, command, **options):
        """Start a driver."""
        return subprocess.Popen(self.inside(command), text=True, env=self.environment, **options)

    def _start(self, address, options, environment=None, before="true"):
        ray = [sys.executable, "-m", "ray.scripts.scripts", "start", "--block", f"--node-ip-address={address}"]
        more = ["--object-store-memory=80000000", "--disable-usage-stats", "--include-log-monitor=false", *options]
        command = self.inside([*_NODE_NAMESPACES, "sh", "-c", f'{before} && exec "$@"', "sh", *ray, *more])
        log = self.folder / f"{address}.log"
        for _ in range(_MOST_STARTS):
            node = self._started(command, {**self.environment, **(environment or {})}, log)
            if node.poll() is None:
                self.nodes[address] = node
                return
        raise RuntimeError(f"no Ray node at {address}:\n{log.read_text(errors='replace')}")

    def _started(self, command, environment, log):
        """Start a node, and return its process when it runs or has ended."""

        def sockets():
            return len(list(self.folder.glob("session_*/sockets/raylet*")))

        with self._naming, log.open("wb") as file:
            before = sockets()
            node = subprocess.Popen(command, env=environment, stdout=file, stderr=subprocess.STDOUT)
            while node.poll() is None and sockets() == before:
                time.sleep(0.05)
        while node.poll() is None and b"Ray runtime started" not in log.read_bytes():
            time.sleep(0.1)
        return node
