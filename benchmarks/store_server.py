"""The server of `harness.store`: files of a folder as objects of S3, each answer after a latency.

Run: python benchmarks/store_server.py FOLDER MS

One thread serves all connections and sends with sendfile, so that it takes little of the processors that the clients need.
It knows GET of ranges and HEAD. It prints its port.
"""

from __future__ import annotations

import asyncio
import re
import socket
import sys
import urllib.parse
from functools import partial
from pathlib import Path

_RANGE = re.compile(rb"\r\nrange: *bytes=(\d+)-(\d*)", re.IGNORECASE)


async def connection(
    folder: Path, latency_s: float, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> None:
    """Answer the requests of one connection, one after the other, for objects of whatever bucket they name."""
    writer.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    try:
        while True:
            request = await reader.readuntil(b"\r\n\r\n")
            method, target = request.decode("latin-1").split(" ", 2)[:2]
            await asyncio.sleep(latency_s)
            path = folder / urllib.parse.unquote(target.partition("?")[0]).lstrip("/").partition("/")[2]
            if not path.is_file():
                writer.write(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")
                continue
            size, span = path.stat().st_size, _RANGE.search(request)
            start, stop = (int(span[1]), min(int(span[2] or size) + 1, size)) if span else (0, size)
            status = "206 Partial Content" if span else "200 OK"
            head = (
                f"HTTP/1.1 {status}\r\nContent-Length: {max(0, stop - start)}\r\n"
                f"Content-Range: bytes {start}-{stop - 1}/{size}\r\n"
                f'ETag: "{size}"\r\nLast-Modified: Sun, 01 Jan 2023 00:00:00 GMT\r\n\r\n'
            )
            writer.write(head.encode())
            if method == "GET" and stop > start:
                await writer.drain()
                with path.open("rb") as file:
                    await asyncio.get_running_loop().sendfile(writer.transport, file, start, stop - start)
    except (asyncio.IncompleteReadError, OSError):  # the client has gone
        writer.close()


async def serve(folder: Path, latency_s: float) -> None:
    server = await asyncio.start_server(partial(connection, folder, latency_s), "127.0.0.1", backlog=1024)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(serve(Path(sys.argv[1]), float(sys.argv[2]) / 1e3))
