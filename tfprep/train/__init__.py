"""Around training: what watches the input, the traces, the memory and the time of a TensorFlow training.

TensorFlow and Keras are imported when one of these names is first used, not before.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tfprep.train.input_monitor import InputMonitor as InputMonitor
    from tfprep.train.session import fresh_session as fresh_session

_HOME = {
    "fresh_session": "session",
    "InputMonitor": "input_monitor",
}

__all__ = sorted(_HOME)  # noqa: PLE0605


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
