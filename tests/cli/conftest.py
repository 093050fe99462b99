"""The command line as a function."""

import pytest

from tfprep.cli import main


@pytest.fixture
def run(capsys):
    """A function that runs the command line and returns its exit status, standard output and standard error."""

    def run(*args: object) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as caught:
            main([str(arg) for arg in args])
        out, err = capsys.readouterr()
        return int(caught.value.code or 0), out, err

    return run
