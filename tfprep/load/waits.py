"""The loader that a thread takes batches from, and the clock that notes its waits: for monitors behind a framework's loop."""

from __future__ import annotations

import threading
import weakref
from typing import Any, Protocol

_of_thread = threading.local()


class WaitClock(Protocol):
    """Notes when a batch was requested and when it came."""

    def asking(self) -> None:
        """Called when the trainer requests a batch."""

    def answered(self, images: int) -> None:
        """Called when the batch of so many samples is there."""

    def ended(self) -> None:
        """Called when there are no more batches."""


class TimedLoader(Protocol):
    """A loader whose passes note the waits of the trainer in `clock` while it is set."""

    clock: WaitClock | None

    @property
    def stats(self) -> dict[str, Any]:
        """Counters as plain numbers."""


def note_loader(loader: TimedLoader) -> None:
    """Note that this thread takes a batch from `loader`."""
    if loader_of_this_thread() is not loader:
        _of_thread.loader = weakref.ref(loader)


def loader_of_this_thread() -> TimedLoader | None:
    """The loader that this thread took its last batch from; None since `forget_loader`."""
    reference = getattr(_of_thread, "loader", None)
    return reference() if reference is not None else None


def forget_loader() -> None:
    """Forget which loader this thread took its last batch from: another input begins."""
    _of_thread.loader = None
