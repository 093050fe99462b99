"""Waiting for something that another thread or process does, without guessing how long that takes."""

import time
from typing import TypeVar

T = TypeVar("T")


def wait_until(condition, process=None, seconds=300):
    """Return the first value of `condition()` that is true.

    AssertionError after that many seconds, or as soon as the process (of `subprocess.Popen`) that should make it true has ended.
    """
    end = time.monotonic() + seconds
    while not (value := condition()):
        assert process is None or process.poll() is None, (
            process.communicate()[1] if process.stderr else process.returncode
        )
        assert time.monotonic() < end, f"not within {seconds} s"
        time.sleep(0.01)
    return value
