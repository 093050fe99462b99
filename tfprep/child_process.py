"""What all child processes of tfprep have in common: their environment, when they end, and the errors that they send back."""

from __future__ import annotations

import ctypes
import os
import pickle
import signal
import sys
from collections.abc import Callable

from tfprep.python_file import folders_for_child

_PR_SET_PDEATHSIG = 1
"""From linux/prctl.h."""


def worker_environment() -> dict[str, str]:
    """Return the environment variables of a child process that runs tfprep's code.

    The child imports from the same folders as this process and no others: not from the current folder, unless this process does.
    OpenMP and BLAS get one thread each, because the children already share all cores.
    """
    return {**os.environ, **folders_for_child(), "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}


def end_with_parent(parent: int) -> None:
    """End this process, with status 1, if the process `parent` that started it has ended.

    On Linux the kernel kills it as soon as the thread that started it ends. Elsewhere a child must notice that its pipe closed.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it ended before the kernel was asked
        os._exit(1)


def sendable_error(error: BaseException, substitute: Callable[[str], Exception]) -> BaseException:
    """Return `error` if it survives pickling, else what `substitute` makes of its text."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return substitute(f"{type(error).__name__}: {error}")
    return error
