"""Processes of their own for trainings."""

import os
import signal
import struct
import sys
import threading
import time
from multiprocessing.connection import Connection

import pytest

from tests.waiting import wait_until
from tfprep import train
from tfprep.errors import TrainError


def _pid_and_tensorflow(add):
    return os.getpid(), "tensorflow" in sys.modules, add + 1


def _fail():
    raise LookupError("of the function")


def _die():
    os.kill(os.getpid(), 9)


def _die_while_sending():
    def send_a_part(self, message):
        os.write(self.fileno(), struct.pack("!i", len(message)) + message[:10])
        _die()

    Connection.send_bytes = send_a_part


def _unsendable():
    return lambda: 0


def _sleep(path):
    path.write_text(f"{os.getpid()}")
    time.sleep(60)


def test_ctrl_c_ends_the_other_process(tmp_path, monkeypatch):
    """Of a notebook, only the process of the notebook gets the signal."""
    pid, main = tmp_path / "pid", threading.get_ident()
    interrupt = threading.Thread(
        target=lambda: (wait_until(lambda: pid.exists() and pid.read_text()), signal.pthread_kill(main, signal.SIGINT))
    )
    monkeypatch.setattr("tfprep.train.isolation._GRACE_S", 0.1)
    interrupt.start()
    with pytest.raises(KeyboardInterrupt):
        train.isolated(_sleep, pid)
    interrupt.join()
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid.read_text()), 0)


def test_isolated_runs_in_another_process():
    pid, _, value = train.isolated(_pid_and_tensorflow, add=2)
    assert pid != os.getpid()
    assert value == 3
    with pytest.raises(LookupError, match="of the function") as caught:
        train.isolated(_fail)
    assert "in the process of _fail" in caught.value.__notes__[0]
    with pytest.raises(TrainError, match=r"_die was killed by SIGKILL \(out of memory\?\) before it had a result"):
        train.isolated(_die)
    with pytest.raises(TrainError, match="_die_while_sending was killed by SIGKILL"):
        train.isolated(_die_while_sending)
    with pytest.raises(TrainError, match="the result is pickled, and this function cannot be"):
        train.isolated(_unsendable)
