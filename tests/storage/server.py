"""An S3 server on loopback (moto's), and a proxy before it that counts requests and puts in faults."""

import contextlib
import http.client
import itertools
import socket
import struct
import subprocess
import sys
import threading
import time
from collections import deque
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from tests.waiting import wait_until
from tfprep.storage.store import open_store

STARTED_S = 60.0
_numbers = itertools.count()


@dataclass(frozen=True)
class Request:
    """A request that passed the proxy: its method, path, byte range (None: no range) and what was done to it ("" for nothing)."""

    method: str
    path: str
    span: tuple[int, int] | None
    fault: str


VERBS = ("GET", "HEAD", "LIST", "PUT", "DELETE", "BEGIN", "PART", "COMPLETE")
"""Kinds of requests; the last three are those of an upload in parts."""


def _verb(method, path):
    query = path.partition("?")[2]
    if method == "GET" and query:
        return "LIST"
    if method == "POST":
        return "DELETE" if query.startswith("delete") else "BEGIN" if query.startswith("uploads") else "COMPLETE"
    return "PART" if method == "PUT" and "partNumber" in query else method


class Proxy(ThreadingHTTPServer):
    """Forwards to the server.

    `faults_of[verb]` are put into the next requests of a verb of `VERBS`, one each; `faults` is that of GET, `write_faults` that
    of PUT. `always` is put into each GET. They are "503", "400 ExpiredToken" and the like, which are answers; "reset", which
    resets the connection without one; "truncate", which closes it in the middle of the body of what was found; "stall", which
    sends nothing until `released` is set; and "lost", which lets the server do what it was asked for and closes the connection
    without its answer. `ignores_conditions` hides the conditions of requests from the server, as one that knows none would. Each
    answer waits `delay_s` seconds.
    """

    daemon_threads = True
    request_queue_size = 256

    def __init__(self, port):
        self.upstream, self.ignores_conditions = port, False
        self.faults_of = {verb: deque() for verb in VERBS}
        self.faults, self.write_faults = self.faults_of["GET"], self.faults_of["PUT"]
        self.always, self.delay_s = "", 0.0
        self.requests = []
        self.released = threading.Event()
        super().__init__(("127.0.0.1", 0), _Handler)

    def handle_error(self, request, client_address):
        """A client that goes away is part of the tests."""

    def reset(self):
        for faults in self.faults_of.values():
            faults.clear()
        self.requests.clear()
        self.always, self.ignores_conditions, self.delay_s = "", False, 0.0

    def reads(self, name=""):
        """The GET requests of objects whose path contains `name`, those that list a bucket left out."""
        reads = [one for one in self.requests if one.method == "GET" and "?" not in one.path]
        return [request for request in reads if name in request.path]


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Proxy
    upstream: http.client.HTTPConnection | None = None

    def log_message(self, *_):
        pass

    def finish(self):
        if self.upstream:
            self.upstream.close()
        super().finish()

    def do_GET(self):
        self.forward()

    do_PUT = do_POST = do_DELETE = do_HEAD = do_GET

    def do_PROPFIND(self):
        """How obstore lists a folder of a web server; most do not know the verb."""
        self.server.requests.append(Request(self.command, self.path, None, "501"))
        self.send_error(501)

    def forward(self):
        proxy = self.server
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        verb = _verb(self.command, self.path)
        faults = proxy.faults_of[verb]
        fault = faults.popleft() if faults else proxy.always if verb == "GET" else ""
        text = self.headers.get("Range", "").removeprefix("bytes=")
        first, _, last = text.partition("-")
        span = (int(first), int(last) + 1) if first and last else None
        proxy.requests.append(Request(self.command, self.path, span, fault))
        time.sleep(proxy.delay_s)
        status, _, code = fault.partition(" ")
        if status.isdigit():
            content = f"<Error><Code>{code}</Code><Message>It is so.</Message></Error>".encode() if code else b""
            self.send_response(int(status))
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)
            return
        if fault == "stall":
            proxy.released.wait(STARTED_S)
        if fault in ("reset", "stall"):
            self.close_connection = True
            if fault == "reset":  # with RST, where a shutdown sends FIN
                self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            else:
                self.connection.shutdown(socket.SHUT_RDWR)
            return
        self.answer(body, cut=fault == "truncate", lost=fault == "lost")

    def answer(self, body, *, cut, lost):
        if self.upstream is None:
            self.upstream = http.client.HTTPConnection("127.0.0.1", self.server.upstream)
        hidden = ("if-match", "if-none-match") if self.server.ignores_conditions else ()
        headers = {name: value for name, value in self.headers.items() if name.lower() not in hidden}
        self.upstream.request(self.command, self.path, body or None, headers)
        response = self.upstream.getresponse()
        content = response.read()
        cut = cut and response.status < 300
        if lost:
            self.close_connection = True
            self.connection.shutdown(socket.SHUT_RDWR)
            return
        self.send_response_only(response.status)
        for name, value in response.getheaders():
            if name.lower() not in ("connection", "transfer-encoding", "content-length"):
                self.send_header(name, value)
        self.send_header("Content-Length", response.headers.get("Content-Length") or str(len(content)))
        self.end_headers()
        self.wfile.write(content[: len(content) // 2] if cut else content)
        if cut:
            self.close_connection = True
            self.wfile.flush()
            self.connection.shutdown(socket.SHUT_RDWR)


@dataclass
class S3:
    """A server with one bucket, reached through the proxy."""

    proxy: Proxy
    bucket: str = "bucket"

    @property
    def endpoint(self):
        return f"http://127.0.0.1:{self.proxy.server_port}"

    @property
    def environment(self):
        return {
            "AWS_ENDPOINT_URL": self.endpoint, "AWS_ACCESS_KEY_ID": "an-access-key",
            "AWS_SECRET_ACCESS_KEY": "a-secret-that-nobody-may-see", "AWS_REGION": "us-east-1",
        }  # fmt: skip

    def new_url(self):
        """The URL of a folder that nobody has used."""
        return f"s3://{self.bucket}/folder-{next(_numbers)}"

    def put(self, url, content, method="PUT"):
        """Write an object past tfprep and the proxy."""
        connection = http.client.HTTPConnection("127.0.0.1", self.proxy.upstream)
        connection.request(method, "/" + url.removeprefix("s3://"), content, {"x-amz-acl": "public-read"})
        assert connection.getresponse().status in (200, 204)
        connection.close()

    def copy(self, folder):
        """Copy the files of a folder to a new URL."""
        url = self.new_url()
        for name, path in _files(folder):
            self.put(f"{url}/{name}", path.read_bytes())
        return url


def copied_to_memory(folder):
    """Copy the files of a folder to a new URL of a store in the memory of this process."""
    url = f"memory://bucket-{next(_numbers)}/{folder.name}"
    for name, path in _files(folder):
        open_store(url).write(name, path)
    return url


def _files(folder):
    """The files of a dataset by name, without the notes of its builds."""
    files = [path for path in folder.rglob("*") if path.is_file() and ".tfprep" not in path.parts]
    return [(path.relative_to(folder).as_posix(), path) for path in files]


@contextmanager
def s3_server():
    """Start moto's server in a process of its own and the proxy in this one."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    proxy = None
    try:
        wait_until(lambda: _answers(port), process, STARTED_S)
        proxy = Proxy(port)
        threading.Thread(target=proxy.serve_forever, daemon=True).start()
        server = S3(proxy)
        server.put("s3://bucket", b"")
        yield server
    finally:
        if proxy:
            proxy.released.set()
            proxy.shutdown()
            proxy.server_close()
        process.kill()
        process.wait()


def _answers(port):
    with contextlib.suppress(OSError):
        socket.create_connection(("127.0.0.1", port), 1).close()
        return True
    return False
