"""One worker process: `python -m tfprep.engines.worker ENTRY MARK_FILE PARENT`.

It reads tasks from standard input and writes events to standard output.
Lines of JSON both ways. The first line in is the argument of the work; each further one is {"task", "body"}.
Both belong to the protocol: what a user's function prints goes to standard error, and what it reads is empty. The worker ends
with its parent: when standard input closes, and on Linux by a signal the moment the parent dies.
"""

from __future__ import annotations

import ctypes
import json
import mmap
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from typing import Any, TextIO

from tfprep.engines.engine import MARK, NO_ITEM, Json, load_entry
from tfprep.errors import TfprepError

_PROGRESS_S = 0.2
_PR_SET_PDEATHSIG = 1


def main() -> int:
    entry, mark_file, parent = sys.argv[1:]
    _end_with_parent(int(parent))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the parent decides what to do
    orders, out = _protocol()
    send = _sender(out)
    try:
        opener = load_entry(entry)
        if not (first := orders.readline()):
            return 0
        work = opener(json.loads(first))
    except BaseException as error:
        send(_failure(error))
        return 1
    with open(mark_file, "r+b") as file, mmap.mmap(file.fileno(), MARK.size) as marks:
        for line in orders:
            _run(json.loads(line), work, marks, send)
    return 0


def _protocol() -> tuple[TextIO, TextIO]:
    """The pipes of the protocol, taken away from standard input and output."""
    orders, out = os.fdopen(os.dup(0), "r", encoding="utf-8"), os.fdopen(os.dup(1), "w", encoding="utf-8")
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)
    return orders, out


def _run(order: Json, work: Any, marks: mmap.mmap, send: Callable[[Json], None]) -> None:
    told = time.monotonic()

    def mark(item: int) -> None:
        nonlocal told
        now = time.monotonic()
        MARK.pack_into(marks, 0, item, now)
        if now - told > _PROGRESS_S:
            told = now
            send({"event": "progress", "task": order["task"], "item": item})

    try:
        event = {"event": "done", "task": order["task"], "result": work(order["body"], mark)}
    except BaseException as error:
        event = _failure(error)
    MARK.pack_into(marks, 0, NO_ITEM, time.monotonic())
    send(event)


def _failure(error: BaseException) -> Json:
    known = isinstance(error, TfprepError | OSError)
    text = str(error) if known else "".join(traceback.format_exception(error))
    return {"event": "failed", "type": type(error).__name__, "message": text}


def _sender(out: Any) -> Callable[[Json], None]:
    def send(message: Json) -> None:
        try:
            out.write(json.dumps(message) + "\n")
            out.flush()
        except BrokenPipeError:
            os._exit(1)  # the parent is gone, and nobody is left to tell

    return send


def _end_with_parent(parent: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it died before that
        os._exit(1)


if __name__ == "__main__":
    sys.exit(main())
