"""The loader that a thread takes batches from, for monitors that see only a framework's loop."""

from __future__ import annotations

import threading
import weakref
from typing import Any, Protocol

_of_thread = threading.local()


class CountingLoader(Protocol):
    """A loader with counters."""

    @property
    def stats(self) -> dict[str, Any]:
        """Counters as plain numbers."""


def note_loader(loader: CountingLoader) -> None:
    """Note that this thread takes a batch from `loader`."""
    if loader_of_this_thread() is not loader:
        _of_thread.loader = weakref.ref(loader)


def loader_of_this_thread() -> CountingLoader | None:
    """Return the loader that this thread took its last batch from; None since `forget_loader`."""
    reference = getattr(_of_thread, "loader", None)
    return reference() if reference is not None else None


def forget_loader() -> None:
    """Forget which loader this thread took its last batch from: another input begins."""
    _of_thread.loader = None
