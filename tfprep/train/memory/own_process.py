"""`isolated`: one training in a process of its own, for memory that nothing else frees."""

from __future__ import annotations

import multiprocessing
import pickle
import signal
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any, TypeVar

from tfprep.child_process import sendable_error
from tfprep.errors import TrainError

Result = TypeVar("Result")

_LIKELY_CAUSES = {"SIGKILL": " (out of memory?)", "SIGSEGV": " (a crash in native code)"}


def isolated(function: Callable[..., Result], *args: Any, **kwargs: Any) -> Result:
    """Run a function in a fresh process, which gives all memory back when it ends, that of the GPU too.

    Starting the process costs the import of TensorFlow, some seconds. A GPU whose memory this process has taken is not free for
    the other one: use no GPU here, or call `configure_gpu(growth=True)` in both.

    Args:
        function: A function at the top of a module. A script that calls `isolated` guards its start with
            `if __name__ == "__main__":`.
        *args: Arguments that can be pickled.
        **kwargs: Keyword arguments that can be pickled.

    Returns:
        What the function returned. It is pickled, so return numbers or a path to saved weights rather than a model.

    Raises:
        TrainError: The process died, or something cannot be pickled.
        BaseException: What the function raised, with the traceback of the other process as a note (Python 3.11 and later).
    """
    require_picklable("isolated", function, args, kwargs)
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_run, args=(sender, function, args, kwargs))
    process.start()
    sender.close()
    try:
        outcome, content = receiver.recv()
    except EOFError:
        process.join()
        raise TrainError(
            f"the process of {_name(function)} {_ended(process.exitcode)} before it had a result"
        ) from None
    finally:
        receiver.close()
        process.join()
    if outcome == "failed":
        error, trace = content
        error.add_note(f"in the process of {_name(function)}:\n{trace}") if hasattr(error, "add_note") else None
        raise error
    result: Result = content
    return result


def _run(sender: Connection, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    try:
        message = pickle.dumps(("done", function(*args, **kwargs)))
    except BaseException as error:
        message = pickle.dumps(("failed", (sendable_error(error, TrainError), traceback.format_exc())))
    sender.send_bytes(message)
    sender.close()


def require_picklable(caller: str, *sent: Any) -> None:
    """Raise a `TrainError` in the name of the function `caller` where something cannot be sent to another process."""
    try:
        pickle.dumps(sent)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise TrainError(
            f"{caller}() sends its functions and their arguments to another process, and these cannot be sent ({error}); define "
            "each function at the top of a module, and pass paths and numbers rather than models or datasets"
        ) from error


def _name(function: Callable[..., Any]) -> str:
    return getattr(function, "__qualname__", repr(function))


def _ended(status: int | None) -> str:
    if status is None or status >= 0:
        return f"ended with exit status {status}"
    name = signal.Signals(-status).name
    return f"was killed by {name}{_LIKELY_CAUSES.get(name, '')}"
