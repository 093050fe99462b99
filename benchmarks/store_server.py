"""The server of `remote.py`: files of a folder as objects of S3, each answer after a latency.

Run: python benchmarks/store_server.py FOLDER MS

One thread serves all connections with epoll and sendfile, so that it takes little of the processors that the clients need.
It knows GET of ranges and HEAD. It prints its port.
"""

from __future__ import annotations

import argparse
import heapq
import itertools
import os
import re
import select
import socket
import sys
import time
import urllib.parse
from collections.abc import Generator
from pathlib import Path
from typing import Any, TypeAlias

Step: TypeAlias = "Generator[float, None, Any]"
"""Yields what a connection waits for: `_READ`, `_WRITE` (negative), or a number of seconds."""
_READ, _WRITE = -1.0, -2.0
_EVENTS = {_READ: select.EPOLLIN, _WRITE: select.EPOLLOUT}
_RANGE = re.compile(rb"\r\nrange: *bytes=(\d+)-(\d*)", re.IGNORECASE)


class Server:
    """Serves the files of a folder, as objects of whatever bucket a request names."""

    def __init__(self, folder: Path, latency_s: float) -> None:
        self._folder, self._latency_s = folder, latency_s
        self._files: dict[str, tuple[int, int]] = {}

    def connection(self, client: socket.socket) -> Step:
        """Answer the requests of one connection, one after the other."""
        unread = b""
        while True:
            while b"\r\n\r\n" not in unread:
                piece = yield from _received(client)
                if not piece:
                    return
                unread += piece
            request, _, unread = unread.partition(b"\r\n\r\n")
            method, target = request.decode("latin-1").split(" ", 2)[:2]
            yield self._latency_s
            yield from self._answer(client, method, target, _RANGE.search(request))

    def _answer(self, client: socket.socket, method: str, target: str, span: re.Match[bytes] | None) -> Step:
        path = urllib.parse.unquote(target.partition("?")[0])
        descriptor, size = self._file(path.lstrip("/").partition("/")[2])
        if descriptor < 0:
            yield from _send(client, b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")
            return
        start, stop = 0, size
        if span:
            start, stop = int(span[1]), min(int(span[2] or size) + 1, size)
        yield from _send(client, _head(start, max(start, stop), size, partial=span is not None))
        if method == "GET":
            yield from _send_file(client, descriptor, start, stop)

    def _file(self, name: str) -> tuple[int, int]:
        """The descriptor and size of a file; a negative descriptor where there is none."""
        if name not in self._files:
            path = self._folder / name
            if not name or not path.is_file():
                return -1, 0
            self._files[name] = (os.open(path, os.O_RDONLY), path.stat().st_size)
        return self._files[name]


def _head(start: int, stop: int, size: int, *, partial: bool) -> bytes:
    status = "206 Partial Content" if partial else "200 OK"
    return (
        f"HTTP/1.1 {status}\r\nContent-Length: {stop - start}\r\nContent-Range: bytes {start}-{stop - 1}/{size}\r\n"
        f'ETag: "{size}"\r\nLast-Modified: Sun, 01 Jan 2023 00:00:00 GMT\r\n\r\n'
    ).encode()


def _received(client: socket.socket) -> Step:
    while True:
        try:
            return client.recv(1 << 16)
        except BlockingIOError:
            yield _READ


def _send(client: socket.socket, content: bytes) -> Step:
    while content:
        try:
            content = content[client.send(content) :]
        except BlockingIOError:
            yield _WRITE


def _send_file(client: socket.socket, descriptor: int, start: int, stop: int) -> Step:
    while start < stop:
        try:
            start += os.sendfile(client.fileno(), descriptor, start, stop - start)
        except BlockingIOError:
            yield _WRITE


def run(server: Server) -> None:
    """Serve until the process is ended."""
    listener = socket.create_server(("127.0.0.1", 0), backlog=1024)
    listener.setblocking(False)
    poll = select.epoll()
    poll.register(listener.fileno(), select.EPOLLIN)
    steps: dict[int, Step] = {}
    later: list[tuple[float, int, int]] = []
    order = itertools.count()

    def proceed(number: int) -> None:
        try:
            wait = next(steps[number])
        except (StopIteration, OSError):  # the client has gone
            del steps[number]
            os.close(number)
            return
        if wait in _EVENTS:
            poll.register(number, _EVENTS[wait])
        else:
            heapq.heappush(later, (time.monotonic() + wait, next(order), number))

    print(listener.getsockname()[1], flush=True)
    while True:
        timeout = max(0.0, later[0][0] - time.monotonic()) if later else None
        for number, _ in poll.poll(timeout):
            if number == listener.fileno():
                proceed(_accepted(listener, server, steps))
            else:
                poll.unregister(number)  # nothing is heard from a connection that waits for its latency
                proceed(number)
        while later and later[0][0] <= time.monotonic():
            proceed(heapq.heappop(later)[2])


def _accepted(listener: socket.socket, server: Server, steps: dict[int, Step]) -> int:
    client, _ = listener.accept()
    client.setblocking(False)
    client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    number = os.dup(client.fileno())  # closed by the loop
    steps[number] = server.connection(client)
    return number


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="Folder of the objects")
    parser.add_argument("latency", type=float, metavar="MS", help="Milliseconds before each answer")
    options = parser.parse_args()
    run(Server(options.folder, options.latency / 1e3))


if __name__ == "__main__":
    sys.exit(main())
