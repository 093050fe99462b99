"""Ctrl-C while the main thread waits inside TensorFlow.

Python runs its signal handlers in the main thread alone, between two of its instructions: while that thread waits in C++ for a
batch, Ctrl-C does nothing. The one thing that happens at once is a byte written to the file descriptor of
`signal.set_wakeup_fd`. A thread that reads it stops the readers, the wait ends with an error, and Python's own handler raises
KeyboardInterrupt.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import weakref
from collections.abc import Callable

_targets: weakref.WeakSet[Stoppable] = weakref.WeakSet()
_lock = threading.Lock()
_watching = False


class Stoppable:
    """Something that `stop` ends."""

    def __init__(self, stop: Callable[[], None]) -> None:
        self.stop = stop


def stop_on_interrupt(target: Stoppable) -> None:
    """Call `target.stop()` on SIGINT, for as long as it lives.

    Does nothing outside the main thread, where another library has taken the descriptor (asyncio, Jupyter: their loops do not
    wait in C++), and where SIGINT does not raise KeyboardInterrupt.
    """
    global _watching  # noqa: PLW0603 - signals are the process's, not an object's
    with _lock:
        _targets.add(target)
        if _watching or threading.current_thread() is not threading.main_thread():
            return
        if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
            return
        _watching = _watch()


def _watch() -> bool:
    readable, writable = os.pipe()
    os.set_blocking(writable, False)
    taken = signal.set_wakeup_fd(writable, warn_on_full_buffer=False)
    if taken != -1:
        signal.set_wakeup_fd(taken)
        os.close(readable)
        os.close(writable)
        return False
    threading.Thread(target=_wait, args=(readable,), name="tfprep-interrupt", daemon=True).start()
    return True


def _wait(readable: int) -> None:
    while caught := os.read(readable, 64):
        if signal.SIGINT in caught:
            for target in list(_targets):
                with contextlib.suppress(Exception):
                    target.stop()
