"""Python processes in which TensorFlow is imported already: forked from a server of `multiprocessing` that imported it once.

Importing TensorFlow and Keras takes 4 s of a processor, the fork a hundredth of that. For tests of what a process of its own does
(killed runs, scripts of pages), not of what importing does or of how Python exits: `atexit` does not run here.
"""

import multiprocessing
import os
import runpy
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(["tensorflow", "keras"])


class WarmPython:
    """`python ARGUMENTS` (`-c CODE ...` or `SCRIPT ...`), with the methods of `subprocess.Popen` that tests use."""

    def __init__(self, arguments, *, cwd=None, env=None):
        pytest.importorskip("tensorflow")
        self._output = [tempfile.NamedTemporaryFile(prefix="tfprep-test-") for _ in range(2)]  # noqa: SIM115
        names = [file.name for file in self._output]
        changed = {name: value for name, value in (env or {}).items() if os.environ.get(name) != value}
        inherited = dict(os.environ) | changed
        self.stderr = self._output[1]
        self._process = _context.Process(target=_run, args=(list(arguments), str(cwd or Path.cwd()), inherited, names))
        self._process.start()

    @property
    def pid(self):
        assert self._process.pid is not None
        return self._process.pid

    @property
    def returncode(self):
        return self._process.exitcode

    def poll(self):
        return self._process.exitcode

    def send_signal(self, number):
        os.kill(self.pid, number)

    def communicate(self, timeout=None):
        """Wait for the end; what was printed on stdout and stderr."""
        self._process.join(timeout)
        if self._process.exitcode is None:
            self._process.kill()
            self._process.join()
            raise subprocess.TimeoutExpired("python", timeout or 0, stderr=self._text()[1])
        return self._text()

    def _text(self):
        output, errors = (Path(file.name).read_text(errors="replace") for file in self._output)
        return output, errors


def run_python(arguments, *, cwd=None, env=None, timeout=280):
    """As `subprocess.run([sys.executable, *arguments], capture_output=True, text=True)`."""
    process = WarmPython(arguments, cwd=cwd, env=env)
    output, errors = process.communicate(timeout)
    return subprocess.CompletedProcess(list(arguments), process.returncode or 0, output, errors)


def _run(arguments, cwd, environment, output):
    for number, name in enumerate(output, start=1):
        file = os.open(name, os.O_WRONLY | os.O_APPEND)
        os.dup2(file, number)
        os.close(file)
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(environment)
    if arguments[0] == "-c":
        sys.argv, sys.path[0] = ["-c", *arguments[2:]], cwd
        names = {"__name__": "__main__"}
        exec(compile(arguments[1], "<string>", "exec"), names)
    else:
        sys.argv, sys.path[0] = arguments, str(Path(arguments[0]).absolute().parent)
        runpy.run_path(arguments[0], run_name="__main__")
