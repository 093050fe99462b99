"""Ctrl-C while the main thread waits for a batch inside TensorFlow.

Python runs signal handlers in the main thread, between two of its instructions, so none runs while that thread waits in C++.
But the signal's number is written to the descriptor of `signal.set_wakeup_fd` at once. A thread that reads it ends the waits
for batches with an error, TensorFlow returns, and Python's handler raises KeyboardInterrupt.
"""

from __future__ import annotations

import os
import signal
import threading
import weakref
from typing import Protocol


class Interruptible(Protocol):
    """Something whose waits Ctrl-C ends."""

    def interrupt(self) -> None:
        """End all waits of this moment with an error. Runs in the thread that reads signals."""


_targets: weakref.WeakSet[Interruptible] = weakref.WeakSet()
_lock = threading.Lock()
_watching = False


def end_waits_on_interrupt(target: Interruptible) -> None:
    """Call `target.interrupt` on SIGINT, for as long as the target lives and SIGINT raises KeyboardInterrupt.

    Nothing is interrupted while a handler of the user is installed, nor if another library has taken the descriptor before
    (asyncio and Jupyter do; their loops do not wait in C++).

    Args:
        target: The object to interrupt. A weak reference is kept.
    """
    global _watching  # noqa: PLW0603 - signals are the process's, not an object's
    with _lock:
        _targets.add(target)
        if not _watching and threading.current_thread() is threading.main_thread():
            _watching = _watch()


def _watch() -> bool:
    """Start the thread that reads signals; False if another library reads them."""
    readable, writable = os.pipe()
    os.set_blocking(writable, False)
    taken = signal.set_wakeup_fd(writable, warn_on_full_buffer=False)
    if taken != -1:
        signal.set_wakeup_fd(taken)
        os.close(readable)
        os.close(writable)
        return False
    # A forked child would write its signals into this process's pipe.
    os.register_at_fork(after_in_child=lambda: signal.set_wakeup_fd(-1))
    threading.Thread(target=_wait, args=(readable,), name="tfprep-interrupt", daemon=True).start()
    return True


def _wait(readable: int) -> None:
    while caught := os.read(readable, 64):
        # The handler of this moment: a user may have installed one since the loader was made.
        if signal.SIGINT in caught and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            with _lock:
                targets = list(_targets)
            for target in targets:
                target.interrupt()
