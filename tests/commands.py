"""The command line as a function."""

import shlex

import pytest

from tfprep.cli import main


def status_of(*arguments):
    """The exit status of `tfprep` with these arguments, or of a whole line such as `tfprep info out`."""
    line = shlex.split(str(arguments[0]))
    with pytest.raises(SystemExit) as ended:
        main(
            [*line[1:], *map(str, arguments[1:])] if line[0] == "tfprep" else [str(argument) for argument in arguments]
        )
    return int(ended.value.code or 0)
