"""One worker process: `python -m tfprep.builder.workers.worker ENTRY MARK_FILE OUTPUT_FILE PARENT`.

MARK_FILE and OUTPUT_FILE are inherited file descriptors, PARENT is a process id. The worker reads tasks from standard input and
writes events to standard output, as lines of JSON. The first line that it reads is the argument of the work; each further one is
{"task", "body"}. Since both streams belong to the protocol, the print() of a user's function goes to standard error, and its
input is empty.

What native code writes to descriptors 1 and 2 (warnings of libpng, libtiff and OpenCV, the last words before an abort), what
Python warns and logs (Pillow, for odd TIFF files) and what child processes print goes to OUTPUT_FILE, and is reported as an event
of the current item. The worker ends with its parent: when standard input closes, and on Linux by a signal as soon as it dies.
"""

from __future__ import annotations

import fcntl
import gc
import json
import logging
import mmap
import os
import signal
import sys
import time
import traceback
import warnings
from collections.abc import Callable
from typing import Any, TextIO

from tfprep.builder.workers.engine import MARK, MOST_OUTPUT_BYTES, NO_ITEM, Json, load_entry
from tfprep.child_process import end_with_parent
from tfprep.errors import TfprepError
from tfprep.python_file import add_folders_of_parent

_PROGRESS_S = 0.2
"""Least time between two progress events of a task."""


def main() -> int:
    entry, (mark_file, output_file, parent) = sys.argv[1], map(int, sys.argv[2:])
    end_with_parent(parent)
    signal.signal(
        signal.SIGINT, signal.SIG_IGN
    )  # Ctrl-C reaches the whole process group; the parent decides what to do.
    tasks, out = _protocol()
    native = _native_output(output_file)
    send = _sender(out)
    # What is imported stays for ever: the collector need not look at it, now or later.
    gc.disable()
    try:
        opener = load_entry(entry)
        add_folders_of_parent()
        if not (first := tasks.readline()):
            return 0
        work = opener(json.loads(first))
    except BaseException as error:
        send(_failure(error))
        return 1
    gc.freeze()
    gc.enable()
    with mmap.mmap(mark_file, MARK.size) as marks:
        for line in tasks:
            _run(json.loads(line), work, marks, send, native)
    return 0


def _protocol() -> tuple[TextIO, TextIO]:
    """Return the pipes of the protocol, and take them away from standard input and output."""
    tasks, out = os.fdopen(os.dup(0), "r", encoding="utf-8"), os.fdopen(os.dup(1), "w", encoding="utf-8")
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    return tasks, out


def _native_output(file: int) -> int:
    """Put the file in the place of descriptors 1 and 2; Python's own streams keep the terminal."""
    terminal = os.fdopen(os.dup(2), "w", encoding="utf-8", errors="backslashreplace", buffering=1)
    # The file is emptied each time it is reported: without O_APPEND the next write would leave a hole before it.
    fcntl.fcntl(file, fcntl.F_SETFL, fcntl.fcntl(file, fcntl.F_GETFL) | os.O_APPEND)
    os.dup2(file, 1)
    os.dup2(file, 2)
    sys.stdout = sys.stderr = terminal
    warnings.showwarning = _warned
    native = os.fdopen(2, "w", encoding="utf-8", errors="backslashreplace", closefd=False)
    logging.lastResort = logging.StreamHandler(native)
    logging.lastResort.setLevel(logging.WARNING)
    return file


def _warned(
    message: Warning | str, category: type[Warning], filename: str, lineno: int,
    file: TextIO | None = None, line: str | None = None,
) -> None:  # fmt: skip
    """Treat Python's warnings as those of native code: a user's function may cause one at every sample."""
    os.write(2, warnings.formatwarning(message, category, filename, lineno, line).encode(errors="backslashreplace"))


def _taken(file: int) -> str:
    """Return what was written to the file since it was last emptied, and empty it."""
    size = os.fstat(file).st_size
    if not size:
        return ""
    text = os.pread(file, min(size, MOST_OUTPUT_BYTES), 0).decode(errors="backslashreplace")
    os.ftruncate(file, 0)
    return text


def _run(task: Json, work: Any, marks: mmap.mmap, send: Callable[[Json], None], native: int) -> None:
    reported = time.monotonic()
    current = NO_ITEM

    def tell_output() -> None:
        if text := _taken(native):
            item = None if current == NO_ITEM else current
            send({"event": "output", "task": task["task"], "item": item, "text": text})

    def mark(item: int) -> None:
        nonlocal reported, current
        tell_output()
        current = item
        now = time.monotonic()
        _write_mark(marks, item, now)
        if now - reported > _PROGRESS_S:
            reported = now
            send({"event": "progress", "task": task["task"], "item": item})

    try:
        event = {"event": "done", "task": task["task"], "result": work(task["body"], mark)}
    except BaseException as error:
        event = _failure(error)
    tell_output()
    _write_mark(marks, NO_ITEM, time.monotonic())
    send(event)


def _write_mark(marks: mmap.mmap, item: int, since: float) -> None:
    # pack_into zeroes its target first: the parent would at times read an item that began at 0, when the machine did, and kill
    # this worker for it. An assignment copies the 16 bytes at once.
    marks[:] = MARK.pack(item, since)


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
            os._exit(1)  # The parent is gone.

    return send


if __name__ == "__main__":
    sys.exit(main())
