"""`isolated`: a function in a process of its own, which gives its memory back."""

from __future__ import annotations

import multiprocessing
import pickle
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from typing import Any, TypeVar

from tfprep.errors import TrainError
from tfprep.pool import ending_of, sendable_error

Result = TypeVar("Result")
_GRACE_S = 10.0
"""Time for a process whose caller was interrupted: Ctrl-C in a terminal reaches both, and it may save what it has."""


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
        BaseException: What the function raised, with the traceback of the other process as a note.
    """
    require_picklable("isolated", function, args, kwargs)
    name = getattr(function, "__qualname__", repr(function))
    with fresh_process(_run, function, args, kwargs) as (process, receiver):
        try:
            message = receiver.recv_bytes()
        except (EOFError, OSError):  # an OSError in the middle of the message
            process.join()
            ending = f"{'was ' if process.exitcode < 0 else ''}{ending_of(process.exitcode)}"
            raise TrainError(f"the process of {name} {ending} before it had a result") from None
    outcome, content = pickle.loads(message)
    if outcome == "failed":
        error, trace = content
        error.add_note(f"in the process of {name}:\n{trace}")
        raise error
    result: Result = content
    return result


@contextmanager
def fresh_process(function: Callable[..., None], *args: Any) -> Iterator[tuple[Any, Connection]]:
    """Run `function(sender, *args)` in a fresh process: the value is that process, and what it sends. Joined on exit, and
    ended first where an exception leaves the block."""
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=function, args=(sender, *args))
    process.start()
    sender.close()
    try:
        yield process, receiver
    except BaseException as error:
        try:
            if isinstance(error, KeyboardInterrupt):
                process.join(_GRACE_S)
        finally:
            process.kill()
        raise
    finally:
        receiver.close()
        process.join()


def _run(sender: Connection, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    try:
        result = function(*args, **kwargs)
        try:
            message = pickle.dumps(("done", result))
        except Exception as error:
            rule = f"the result is pickled, and this {type(result).__name__} cannot be ({error})"
            raise TrainError(f"{rule}; return numbers, or a path to saved weights") from error
    except BaseException as error:
        message = pickle.dumps(("failed", (sendable_error(error, TrainError), traceback.format_exc())))
    sender.send_bytes(message)


def require_picklable(caller: str, *sent: Any) -> None:
    """Raise a `TrainError` in the name of the function `caller` where something cannot be sent to another process."""
    try:
        pickle.dumps(sent)
    except Exception as error:
        raise TrainError(
            f"{caller}() sends its functions and their arguments to another process, and these cannot be sent ({error}); define "
            "each function at the top of a module, and pass paths and numbers rather than models or datasets"
        ) from error
