"""The command line as a function."""

import pytest

from tests.commands import status_of


@pytest.fixture
def run(capsys):
    """A function that runs the command line and returns its exit status, standard output and standard error."""

    def run(*args):
        status = status_of(*args)
        out, err = capsys.readouterr()
        return status, out, err

    return run


@pytest.fixture
def succeed(run):
    """A function that runs a command, which has to succeed, and returns its standard output."""

    def succeed(*args):
        status, out, err = run(*args)
        assert status == 0, err
        return out

    return succeed
